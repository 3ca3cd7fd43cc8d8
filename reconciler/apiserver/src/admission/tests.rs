use serde_json::{Value, json};

use super::*;

fn policy(spec: Value) -> Value {
    let mut all = json!({"matchConstraints": {"resourceRules": [
        {"apiGroups": ["x.dev"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["things"]}]}});
    if let (Some(all), Value::Object(spec)) = (all.as_object_mut(), spec) {
        all.extend(spec);
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p"}, "spec": all})
}

fn binding(actions: &[&str]) -> Value {
    json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": actions}})
}

fn rule(expression: &str) -> Value {
    policy(json!({"validations": [{"expression": expression, "message": "no"}]}))
}

struct Case {
    operation: Operation,
    object: Option<Value>,
    old: Option<Value>,
    namespace: Value,
    user: Identity,
    subresource: &'static str,
    version: &'static str,
}

impl Default for Case {
    fn default() -> Self {
        let object = json!({"metadata": {"name": "t", "labels": {"app.x/tier": "web"}}, "spec": {"size": 3}});
        let user = Identity {
            user: "ada".to_owned(),
            groups: vec!["ops".to_owned()],
            uid: "1".to_owned(),
            credential: String::new(),
        };
        Self {
            operation: Operation::Create,
            object: Some(object),
            old: None,
            namespace: json!({"metadata": {"name": "n", "labels": {"team": "red"}}}),
            user,
            subresource: "",
            version: "v1",
        }
    }
}

impl Case {
    fn check(&self, policies: &Policies) -> Result<Vec<String>, Denied> {
        policies.check(&Request {
            operation: self.operation,
            group: "x.dev",
            version: self.version,
            resource: "things",
            subresource: self.subresource,
            kind: "Thing",
            namespace: "n",
            name: "t",
            dry_run: true,
            user: &self.user,
            object: self.object.as_ref(),
            old_object: self.old.as_ref(),
            namespace_object: policies.reads_namespace().then_some(&self.namespace),
            options: None,
        })
    }

    fn allows(&self, policy: Value) -> bool {
        self.check(&Policies::build(&[policy], &[binding(&["Deny"])])).is_ok()
    }

    fn refusal(&self, policy: Value) -> String {
        self.check(&Policies::build(&[policy], &[binding(&["Deny"])])).expect_err("denied").message
    }
}

#[test]
fn a_refusal_reads_as_in_kubernetes() {
    let policies = Policies::build(&[rule("object.spec.size < 3")], &[binding(&["Deny"])]);
    let denied = Case::default().check(&policies).expect_err("denied");
    assert_eq!(denied.message, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no");
    assert_eq!(
        denied.to_string(),
        "things.x.dev \"t\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
    );
    assert_eq!((denied.reason.as_str(), denied.code), ("Invalid", 422));
    let forbidden = policy(json!({"validations": [{"expression": "false", "reason": "Forbidden"}]}));
    let denied =
        Case::default().check(&Policies::build(&[forbidden], &[binding(&["Deny"])])).expect_err("denied");
    assert_eq!((denied.reason.as_str(), denied.code), ("Forbidden", 403));
    assert!(denied.message.ends_with("denied request: failed expression: false"));
}

#[test]
fn expressions_see_the_request() {
    for expression in [
        "object.spec.size == 3",
        "oldObject == null",
        "params == null",
        "request.operation == 'CREATE'",
        "request.dryRun",
        "request.name == 't' && request.namespace == 'n'",
        "request.userInfo.username == 'ada' && 'ops' in request.userInfo.groups",
        "request.resource.resource == 'things' && request.kind.kind == 'Thing' && request.subResource == ''",
        "object.metadata.labels['app.x/tier'] == 'web'",
        "namespaceObject.metadata.labels.team == 'red'",
        "!has(object.spec.nothing)",
    ] {
        assert!(Case::default().allows(rule(expression)), "{expression}");
    }
}

#[test]
fn a_delete_is_judged_by_the_old_object() {
    let case = Case {
        operation: Operation::Delete,
        object: None,
        old: Some(json!({"status": {"usedBy": ["vm-1"]}})),
        ..Case::default()
    };
    let in_use = policy(json!({"validations": [{
        "expression": "request.operation != 'DELETE' || size(oldObject.status.usedBy) == 0",
        "messageExpression": "'in use by ' + oldObject.status.usedBy.join(', ')",
    }]}));
    assert!(case.refusal(in_use.clone()).ends_with("denied request: in use by vm-1"));
    let free = Case {
        old: Some(json!({"status": {"usedBy": []}})),
        operation: Operation::Delete,
        object: None,
        ..Case::default()
    };
    assert!(free.allows(in_use));
    assert!(case.allows(rule("object == null")));
}

#[test]
fn variables_are_lazy_and_see_each_other() {
    let with = |expression: &str| {
        policy(json!({
            "variables": [
                {"name": "size", "expression": "object.spec.size"},
                {"name": "double", "expression": "variables.size * 2"},
                {"name": "broken", "expression": "object.spec.nothing"},
            ],
            "validations": [{"expression": expression, "messageExpression": "string(variables.double)"}],
        }))
    };
    assert!(Case::default().allows(with("variables.double == 6")));
    assert!(Case::default().refusal(with("variables.double == 7")).ends_with("denied request: 6"));
    assert!(Case::default().refusal(with("variables.broken == 1")).ends_with(
        "expression 'variables.broken == 1' resulted in error: composited variable \"broken\" fails to evaluate: no such \
         key: nothing"
    ));
}

#[test]
fn match_conditions_decide_whether_a_policy_is_about_a_request() {
    let with = |conditions: Value| {
        policy(json!({"matchConditions": conditions, "validations": [{"expression": "false"}]}))
    };
    let condition = |e: &str| json!({"name": "c", "expression": e});
    assert!(Case::default().allows(with(json!([condition("request.userInfo.username != 'ada'")]))));
    assert!(!Case::default().allows(with(json!([condition("true")]))));
    assert!(Case::default().allows(with(json!([condition("object.nothing == 1"), condition("false")]))));
    assert!(
        Case::default()
            .refusal(with(json!([condition("object.nothing == 1")])))
            .contains("no such key: nothing")
    );
}

#[test]
fn the_failure_policy_decides_what_errors_mean() {
    let with = |expression: &str, policy_: &str| {
        policy(json!({"failurePolicy": policy_, "validations": [{"expression": expression}]}))
    };
    for broken in ["object.nothing == 1", "this does not parse", "authorizer.check('x')", "1 + 1"] {
        assert!(!Case::default().allows(with(broken, "Fail")), "{broken}");
        assert!(Case::default().allows(with(broken, "Ignore")), "{broken}");
    }
    let params = policy(json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": []}));
    assert!(
        Case::default().refusal(params).contains("failed to configure policy: paramKind is not supported")
    );
    let unbound = Policies::build(&[rule("authorizer.check('x')")], &[]);
    assert!(Case::default().check(&unbound).is_ok(), "a policy that is not bound is not in force");
}

#[test]
fn actions_are_the_bindings() {
    let case = Case::default();
    let warn = Policies::build(&[rule("false")], &[binding(&["Warn", "Audit"])]);
    assert_eq!(
        case.check(&warn).expect("allowed"),
        ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': no"]
    );
    let audit = Policies::build(&[rule("false")], &[binding(&["Audit"])]);
    assert_eq!(case.check(&audit).expect("allowed"), Vec::<String>::new());
}

#[test]
fn constraints_choose_requests() {
    let with = |constraints: Value| {
        let mut p = rule("false");
        p["spec"]["matchConstraints"] = constraints;
        p
    };
    let base = json!({"apiGroups": ["x.dev"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"]});
    let changed = |name: &str, value: Value| {
        let mut rule = base.clone();
        rule[name] = value;
        json!({"resourceRules": [rule]})
    };
    let hit = |constraints: Value| !Case::default().allows(with(constraints));
    assert!(hit(json!({"resourceRules": [base]})));
    assert!(hit(changed("apiGroups", json!(["*"]))));
    assert!(hit(changed("resources", json!(["*"]))));
    assert!(hit(changed("scope", json!("Namespaced"))));
    assert!(hit(changed("resourceNames", json!(["t"]))));
    assert!(!hit(changed("apiGroups", json!(["y.dev"]))));
    assert!(!hit(changed("operations", json!(["UPDATE", "DELETE"]))));
    assert!(!hit(changed("resources", json!(["things/status"]))));
    assert!(!hit(changed("scope", json!("Cluster"))));
    assert!(!hit(changed("resourceNames", json!(["u"]))));
    assert!(!hit(json!({"resourceRules": [base], "excludeResourceRules": [base]})));
    let selected = |name: &str, selector: Value| json!({"resourceRules": [base], name: selector});
    assert!(hit(selected("namespaceSelector", json!({"matchLabels": {"team": "red"}}))));
    assert!(!hit(selected("namespaceSelector", json!({"matchLabels": {"team": "blue"}}))));
    assert!(hit(selected(
        "objectSelector",
        json!({"matchExpressions": [{"key": "app.x/tier", "operator": "Exists"}]})
    )));
    assert!(!hit(selected(
        "objectSelector",
        json!({"matchExpressions": [
        {"key": "app.x/tier", "operator": "NotIn", "values": ["web"]}]})
    )));

    let other = Case { version: "v2", ..Case::default() };
    assert!(
        !other.allows(with(json!({"resourceRules": [base]}))),
        "another version of the resource is equivalent"
    );
    assert!(other.allows(with(json!({"resourceRules": [base], "matchPolicy": "Exact"}))));
    let status = Case { subresource: "status", ..Case::default() };
    assert!(status.allows(with(json!({"resourceRules": [base]}))));
    assert!(!status.allows(with(changed("resources", json!(["things/*"])))));
}

#[test]
fn a_binding_may_narrow_its_policy() {
    let mut narrow = binding(&["Deny"]);
    narrow["spec"]["matchResources"] = json!({"namespaceSelector": {"matchLabels": {"team": "blue"}}});
    let policies = Policies::build(&[rule("false")], &[narrow]);
    assert!(Case::default().check(&policies).is_ok());
    let blue = Case { namespace: json!({"metadata": {"labels": {"team": "blue"}}}), ..Case::default() };
    assert!(blue.check(&policies).is_err());
}

#[test]
fn a_policy_that_costs_too_much_is_stopped() {
    let case = Case { object: Some(json!({"l": (0..2000).collect::<Vec<_>>()})), ..Case::default() };
    assert!(
        case.refusal(rule("object.l.all(a, object.l.all(b, a + b >= 0))"))
            .contains("running out of cost budget")
    );
}

#[test]
fn constraints_are_filled_in_as_kubernetes_does() {
    let mut constraints = json!({"resourceRules": [{"scope": "Cluster"}, {}], "matchPolicy": "Exact"});
    default_constraints(&mut constraints);
    assert_eq!(
        constraints,
        json!({"resourceRules": [{"scope": "Cluster"}, {"scope": "*"}], "matchPolicy": "Exact",
            "namespaceSelector": {}, "objectSelector": {}})
    );
    default_constraints(&mut Value::Null);
}

#[test]
fn policies_and_bindings_are_checked_when_written() {
    let shown = |errors: Vec<berth_apimachinery::schema::FieldError>| {
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(shown(validate_policy(&rule("object.spec.size > 1"))), Vec::<String>::new());
    let errors = shown(validate_policy(
        &json!({"spec": {"failurePolicy": "Maybe", "variables": [{"expression": "1 +"}]}}),
    ));
    assert_eq!(
        errors[0],
        "spec.failurePolicy: Unsupported value: \"Maybe\": supported values: \"Fail\", \"Ignore\""
    );
    assert_eq!(errors[1], "spec.matchConstraints: Required value");
    assert!(errors[2].starts_with("spec.validations: Required value"));
    assert!(errors[3].starts_with("spec.auditAnnotations: Required value"));
    assert_eq!(errors[4], "spec.variables[0].name: Required value");
    assert!(
        errors[5].starts_with("spec.variables[0].expression: Invalid value: \"1 +\": compilation failed")
    );
    assert_eq!(shown(validate_binding(&binding(&["Deny"]))), Vec::<String>::new());
    assert_eq!(validate_binding(&binding(&["Deny", "Warn"])).len(), 1);
    assert_eq!(validate_binding(&json!({})).len(), 2);
    assert_eq!(validate_binding(&binding(&["Shout"])).len(), 1);
}
