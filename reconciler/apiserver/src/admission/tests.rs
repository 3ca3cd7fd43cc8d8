use serde_json::{Value, json};

use super::*;

/// The objects of kind `Limit`, which are in namespaces, and one of kind `Site`, which is not.
struct Objects(Vec<Value>);

impl ParamSource for Objects {
    fn namespaced(&self, kind: &ParamKind) -> Option<bool> {
        match (kind.api_version.as_str(), kind.kind.as_str()) {
            ("x.dev/v1", "Limit") => Some(true),
            ("x.dev/v1", "Site") => Some(false),
            _ => None,
        }
    }

    fn objects(&self, _: &ParamKind, namespace: &str) -> Vec<Value> {
        let of = |object: &&Value| object["metadata"]["namespace"].as_str().unwrap_or_default() == namespace;
        self.0.iter().filter(of).cloned().collect()
    }
}

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
        self.check_with(policies, &Objects(Vec::new()))
    }

    fn request(&self) -> Request<'_> {
        Request {
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
            namespace_object: None,
            options: None,
        }
    }

    fn check_with(&self, policies: &Policies, objects: &Objects) -> Result<Vec<String>, Denied> {
        let request = self.request();
        let namespace_object = policies.reads_namespace(&request).then_some(&self.namespace);
        policies.check(&Request { namespace_object, ..request }, objects)
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
fn a_namespace_is_read_only_for_requests_that_a_policy_with_it_selects() {
    let reads = |expression: &str, resource: &str| {
        let mut policy = rule(expression);
        policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"] = json!([resource]);
        let policies = Policies::build(&[policy], &[binding(&["Deny"])]);
        policies.reads_namespace(&Case::default().request())
    };
    assert!(reads("namespaceObject.metadata.labels.team == 'red'", "things"));
    assert!(!reads("namespaceObject.metadata.labels.team == 'red'", "others"));
    assert!(!reads("object.spec.size == 3", "things"));
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
    let mut with_ref = binding(&["Deny"]);
    with_ref["spec"]["paramRef"] = json!({"selector": {}, "parameterNotFoundAction": "Allow"});
    let denied = Case::default().check(&Policies::build(&[params], &[with_ref])).expect_err("denied");
    assert!(
        denied.message.contains("failed to configure binding: paramKind kind `v1, Kind=ConfigMap` not known"),
        "{denied}"
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

fn limit(namespace: &str, name: &str, most: i64) -> Value {
    let labels = json!({"tier": name});
    json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {"most": most}})
}

/// The refusal of an object of size 3 by its limits.
fn refused_by_params(kind: &str, param_ref: Value, objects: Vec<Value>) -> Option<String> {
    let limited = policy(json!({
        "paramKind": {"apiVersion": "x.dev/v1", "kind": kind},
        "validations": [{
            "expression": "object.spec.size <= params.spec.most",
            "messageExpression": "params.metadata.name + ' allows ' + string(params.spec.most)",
        }],
    }));
    let mut bound = binding(&["Deny"]);
    bound["spec"]["paramRef"] = param_ref;
    let denied =
        Case::default().check_with(&Policies::build(&[limited], &[bound]), &Objects(objects)).err()?;
    denied.message.split_once("denied request: ").map(|(_, why)| why.to_owned())
}

#[test]
fn a_request_must_pass_for_each_parameter_of_its_namespace() {
    let all = || json!({"selector": {}, "parameterNotFoundAction": "Allow"});
    let refused = |objects| refused_by_params("Limit", all(), objects);
    assert_eq!(refused(Vec::new()), None, "nothing is found, and that is allowed");
    assert_eq!(refused(vec![limit("other", "a", 1)]), None, "it is of another namespace");
    assert_eq!(refused(vec![limit("n", "a", 3), limit("n", "b", 4)]), None);
    assert_eq!(
        refused(vec![limit("n", "a", 3), limit("n", "b", 2)]).as_deref(),
        Some("b allows 2"),
        "the second one refuses"
    );
    let too_many = (0..=MOST_PARAMS).map(|n| limit("n", &n.to_string(), 9)).collect();
    let why = refused(too_many).expect("refused");
    assert!(why.starts_with("failed to configure binding: there are more than 128 objects"), "{why}");
}

#[test]
fn parameters_are_selected_by_name_labels_and_namespace() {
    let refused = |param_ref| {
        let objects = vec![limit("n", "a", 1), limit("n", "b", 9), limit("other", "c", 2)];
        refused_by_params("Limit", param_ref, objects)
    };
    let named = |name: &str, missing: &str| json!({"name": name, "parameterNotFoundAction": missing});
    assert_eq!(refused(named("a", "Allow")).as_deref(), Some("a allows 1"));
    assert_eq!(refused(named("b", "Allow")), None);
    assert_eq!(refused(named("gone", "Allow")), None);
    assert_eq!(
        refused(named("gone", "Deny")).as_deref(),
        Some(
            "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
        )
    );
    let labels = json!({"selector": {"matchLabels": {"tier": "b"}}, "parameterNotFoundAction": "Deny"});
    assert_eq!(refused(labels), None);
    let elsewhere = json!({"selector": {}, "namespace": "other", "parameterNotFoundAction": "Allow"});
    assert_eq!(refused(elsewhere).as_deref(), Some("c allows 2"));
}

#[test]
fn a_cluster_scoped_parameter_is_in_no_namespace() {
    let site = || vec![json!({"metadata": {"name": "s"}, "spec": {"most": 2}})];
    let named =
        |namespace: Value| json!({"name": "s", "namespace": namespace, "parameterNotFoundAction": "Allow"});
    assert_eq!(refused_by_params("Site", named(Value::Null), site()).as_deref(), Some("s allows 2"));
    let why = refused_by_params("Site", named(json!("n")), site()).expect("refused");
    assert!(why.contains("paramRef.namespace must not be provided"), "{why}");
}

#[test]
fn selections_of_parameters_are_checked_when_written() {
    let errors = |param_ref: Value| {
        let mut bound = binding(&["Deny"]);
        bound["spec"]["paramRef"] = param_ref;
        validate_binding(&bound).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(errors(json!({"selector": {}, "parameterNotFoundAction": "Allow"})), Vec::<String>::new());
    assert_eq!(
        errors(json!({})),
        [
            "spec.paramRef: Required value: one of name or selector must be specified",
            "spec.paramRef.parameterNotFoundAction: Required value"
        ]
    );
    assert_eq!(errors(json!({"name": "a", "selector": {}, "parameterNotFoundAction": "Deny"})).len(), 2);
    assert_eq!(errors(json!({"name": "a", "parameterNotFoundAction": "Maybe"})).len(), 1);
    let mut kind = rule("true");
    kind["spec"]["paramKind"] = json!({"kind": "Limit"});
    let errors: Vec<String> = validate_policy(&kind).iter().map(ToString::to_string).collect();
    assert_eq!(errors, ["spec.paramKind.apiVersion: Required value"]);
}
