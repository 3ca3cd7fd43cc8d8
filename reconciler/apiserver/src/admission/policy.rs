//! A compiled policy, and its evaluation for a request.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use berth_apimachinery::schema::expression::{self, Expression, Reads, Scope, native, object, with_budget};
use kube_cel::cel;
use serde_json::{Value, json};

use super::matching::Constraints;
use super::params::{ParamKind, ParamRef};
use super::{Denied, Request, TOKEN_REQUEST};

/// The variables that every expression of a policy may use.
pub(super) const ROOTS: [&str; 7] =
    ["object", "oldObject", "request", "params", "namespaceObject", "variables", "authorizer"];

/// The maximum number of loop iterations one policy may take for one request.
const POLICY_BUDGET: i64 = 200_000;
const MAX_MESSAGE: usize = 5 * 1024;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

#[derive(Debug)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) constraints: Constraints,
    pub(super) param_kind: Option<ParamKind>,
    pub(super) bindings: Vec<Binding>,
    pub(super) configuration_error: Option<String>,
    ignore_errors: bool,
    conditions: Vec<Compiled>,
    variables: Vec<(String, Compiled)>,
    validations: Vec<Validation>,
    /// The parts of each variable that the conditions read, and those that all expressions together read.
    read_by_conditions: BTreeMap<&'static str, Reads>,
    read: BTreeMap<&'static str, Reads>,
}

/// An expression, or the error of compiling it.
type Compiled = Result<Expression, String>;

#[derive(Debug)]
struct Validation {
    check: Compiled,
    source: String,
    message: Option<String>,
    message_expression: Option<Expression>,
    reason: String,
}

#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: String,
    pub(super) constraints: Option<Constraints>,
    pub(super) param_ref: Option<ParamRef>,
    pub(super) actions: Vec<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Deny,
    Warn,
    Audit,
}

/// A validation that failed, or could not be evaluated.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) reason: String,
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str).filter(|s| !s.is_empty())
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn name_of(object: &Value) -> String {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Compiles one expression of a policy.
pub(super) fn compile(source: &str) -> Compiled {
    let expression = Expression::compile(source, &ROOTS)?;
    if expression.uses("authorizer") {
        return Err("compilation failed: authorizer is not supported by this server".to_owned());
    }
    Ok(expression)
}

impl Policy {
    pub(super) fn compile(policy: &Value, bindings: &[Value]) -> Self {
        let name = name_of(policy);
        let empty = json!({});
        let spec = policy.get("spec").unwrap_or(&empty);
        let conditions: Vec<Compiled> =
            expressions(spec, "matchConditions").into_iter().map(|(_, e)| e).collect();
        let variables = expressions(spec, "variables");
        let validations = validations(spec);
        let mut configuration_error = None;
        let constraints =
            Constraints::parse(spec.get("matchConstraints").unwrap_or(&empty)).unwrap_or_else(|error| {
                configuration_error = Some(error);
                Constraints::default()
            });
        let mut bindings: Vec<Binding> = bindings
            .iter()
            .filter(|b| b.pointer("/spec/policyName").and_then(Value::as_str) == Some(&name))
            .map(|b| binding(b, &mut configuration_error))
            .collect();
        bindings.sort_by(|a, b| a.name.cmp(&b.name));
        let read_by_conditions = read_by(conditions.iter().flatten());
        let messages = validations.iter().filter_map(|v| v.message_expression.as_ref());
        let checks = validations.iter().flat_map(|v| v.check.as_ref());
        let computed = variables.iter().flat_map(|(_, expression)| expression);
        let read = read_by(conditions.iter().flatten().chain(computed).chain(checks).chain(messages));
        Self {
            constraints,
            param_kind: ParamKind::parse(spec),
            bindings,
            configuration_error,
            ignore_errors: text(spec, "failurePolicy") == Some("Ignore"),
            conditions,
            variables,
            validations,
            read_by_conditions,
            read,
            name,
        }
    }

    /// Whether the policy uses the Namespace object that a request is in.
    pub(super) fn reads_namespace(&self) -> bool {
        let of_bindings = self.bindings.iter().filter_map(|binding| binding.constraints.as_ref());
        let mut constraints = of_bindings.chain([&self.constraints]);
        constraints.any(Constraints::reads_namespace) || self.read.contains_key("namespaceObject")
    }

    /// Decides about a request that the policy could not evaluate.
    pub(super) fn on_error(&self, denied: Denied) -> Result<bool, Denied> {
        if self.ignore_errors { Ok(false) } else { Err(denied) }
    }

    fn failed_to_decide(&self, message: String) -> Vec<Failure> {
        if self.ignore_errors { Vec::new() } else { vec![Failure { message, reason: "Invalid".to_owned() }] }
    }

    /// Returns the failed validations with this parameter, in order; empty if a match condition excludes the request.
    pub(super) fn evaluate(&self, facts: &Facts<'_>, params: Option<&Value>) -> Vec<Failure> {
        with_budget(POLICY_BUDGET, || {
            // The match conditions of most policies exclude a given request: values that only the validations
            // use are not computed before the conditions hold.
            let conditions_alone = !self.read_by_conditions.contains_key("variables");
            if conditions_alone {
                let scope = facts.scope(&self.read_by_conditions, params);
                if let Some(settled) = self.settled_by_conditions(&scope, &Variables::default()) {
                    return settled;
                }
            }
            let mut scope = facts.scope(&self.read, params);
            let variables = Variables::evaluate(&self.variables, &mut scope);
            if !conditions_alone && let Some(settled) = self.settled_by_conditions(&scope, &variables) {
                return settled;
            }
            let mut failures = Vec::new();
            for validation in &self.validations {
                match variables.truth(&validation.check, &validation.source, &scope) {
                    Ok(true) => {}
                    Ok(false) => failures.push(Failure {
                        message: validation.message(&scope),
                        reason: validation.reason.clone(),
                    }),
                    Err(message) => failures.extend(self.failed_to_decide(message)),
                }
            }
            failures
        })
    }

    /// Returns the result of a policy that its match conditions already determine; `None` if the conditions
    /// hold.
    fn settled_by_conditions(&self, scope: &Scope<'_>, variables: &Variables) -> Option<Vec<Failure>> {
        match self.conditions_hold(scope, variables) {
            Ok(true) => None,
            Ok(false) => Some(Vec::new()),
            Err(message) => Some(self.failed_to_decide(message)),
        }
    }

    /// A false condition determines the result even if another condition cannot be evaluated.
    fn conditions_hold(&self, scope: &Scope<'_>, variables: &Variables) -> Result<bool, String> {
        let mut undecided = None;
        for condition in &self.conditions {
            let source = condition.as_ref().map_or("", Expression::source);
            match variables.truth(condition, source, scope) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(message) => undecided = undecided.or(Some(message)),
            }
        }
        undecided.map_or(Ok(true), Err)
    }
}

/// Returns the parts of each variable that these expressions read.
fn read_by<'a>(expressions: impl Iterator<Item = &'a Expression>) -> BTreeMap<&'static str, Reads> {
    let mut read: BTreeMap<&'static str, Reads> = BTreeMap::new();
    for expression in expressions {
        for name in ROOTS {
            if let Some(reads) = expression.reads(name) {
                read.entry(name).or_default().extend(reads);
            }
        }
    }
    read
}

fn binding(binding: &Value, error: &mut Option<String>) -> Binding {
    let empty = json!({});
    let spec = binding.get("spec").unwrap_or(&empty);
    let constraints = spec.get("matchResources").filter(|m| !m.is_null()).and_then(|m| {
        Constraints::parse(m)
            .map_err(|e| {
                error.get_or_insert(e);
            })
            .ok()
    });
    let param_ref = ParamRef::parse(spec).unwrap_or_else(|e| {
        error.get_or_insert(e);
        None
    });
    let actions =
        list(spec, "validationActions").filter_map(Value::as_str).filter_map(|action| match action {
            "Deny" => Some(Action::Deny),
            "Warn" => Some(Action::Warn),
            "Audit" => Some(Action::Audit),
            _ => None,
        });
    Binding { name: name_of(binding), constraints, param_ref, actions: actions.collect() }
}

fn expressions(spec: &Value, name: &str) -> Vec<(String, Compiled)> {
    let one = |item| {
        let compiled = compile(text(item, "expression").unwrap_or_default());
        (text(item, "name").unwrap_or_default().to_owned(), compiled)
    };
    list(spec, name).map(one).collect()
}

fn validations(spec: &Value) -> Vec<Validation> {
    let one = |item| {
        let source = text(item, "expression").unwrap_or_default().trim().to_owned();
        Validation {
            check: compile(&source),
            message: text(item, "message").map(|m| m.trim().to_owned()),
            // An expression that does not compile counts as absent: the policy still denies the request.
            message_expression: text(item, "messageExpression").and_then(|m| compile(m).ok()),
            reason: text(item, "reason").unwrap_or("Invalid").to_owned(),
            source,
        }
    };
    list(spec, "validations").map(one).collect()
}

impl Validation {
    fn message(&self, scope: &Scope<'_>) -> String {
        let evaluated = self.message_expression.as_ref().and_then(|e| match e.evaluate(scope) {
            Ok(cel::Value::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        });
        evaluated
            .filter(|m| !m.is_empty() && m.len() <= MAX_MESSAGE && !m.contains('\n'))
            .or_else(|| self.message.clone())
            .unwrap_or_else(|| format!("failed expression: {}", self.source))
    }
}

/// `variables`, evaluated in order. A variable that fails is an error only where it is used.
#[derive(Default)]
struct Variables {
    failed: BTreeMap<String, String>,
}

impl Variables {
    fn evaluate(declared: &[(String, Compiled)], scope: &mut Scope<'_>) -> Self {
        let mut values: Vec<(String, cel::Value)> = Vec::new();
        let mut out = Self { failed: BTreeMap::new() };
        scope.set("variables", object(std::iter::empty()));
        for (name, compiled) in declared {
            let value = match compiled {
                Ok(expression) => expression.evaluate(scope).map_err(|e| out.explain(e)),
                Err(error) => Err(error.clone()),
            };
            match value {
                Ok(value) => {
                    values.push((name.clone(), value));
                    scope.set("variables", object(values.iter().cloned()));
                }
                Err(error) => {
                    out.failed.insert(name.clone(), error);
                }
            }
        }
        out
    }

    fn explain(&self, failure: expression::Failure) -> String {
        match failure {
            expression::Failure::OutOfBudget => OUT_OF_BUDGET.to_owned(),
            expression::Failure::Error(error) => {
                let missing =
                    error.strip_prefix("no such key: ").and_then(|key| self.failed.get_key_value(key));
                match missing {
                    Some((name, why)) => format!("composited variable \"{name}\" fails to evaluate: {why}"),
                    None => error,
                }
            }
        }
    }

    fn truth(&self, compiled: &Compiled, source: &str, scope: &Scope<'_>) -> Result<bool, String> {
        let expression = compiled.as_ref().map_err(|e| format!("compilation error: {e}"))?;
        match expression.evaluate(scope) {
            Ok(cel::Value::Bool(truth)) => Ok(truth),
            Ok(_) => Err(format!("expression '{source}' resulted in error: must evaluate to bool")),
            Err(expression::Failure::OutOfBudget) => Err(OUT_OF_BUDGET.to_owned()),
            Err(failure) => {
                Err(format!("expression '{source}' resulted in error: {}", self.explain(failure)))
            }
        }
    }
}

/// The variables of a request that expressions can use.
pub(super) struct Facts<'a> {
    request: &'a Request<'a>,
    /// `request`, once an expression has used it.
    described: OnceCell<Value>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(request: &'a Request<'a>) -> Self {
        Self { request, described: OnceCell::new() }
    }

    /// Returns a scope with the parts that are read of each variable.
    fn scope(&self, read: &BTreeMap<&'static str, Reads>, params: Option<&Value>) -> Scope<'static> {
        let mut scope = Scope::default();
        for (name, reads) in read {
            if let Some(value) = self.value(name, reads, params) {
                scope.set(name, value);
            }
        }
        scope
    }

    /// Returns the part of a variable; `None` for the variables that the policy itself defines.
    fn value(&self, name: &str, reads: &Reads, params: Option<&Value>) -> Option<cel::Value> {
        let request = self.request;
        let or_null = |value: Option<&Value>| value.map_or(cel::Value::Null, |value| native(value, reads));
        match name {
            "object" => Some(or_null(request.object)),
            "oldObject" => Some(or_null(request.old_object)),
            // A Namespace is not in a namespace, even if the request names one.
            "namespaceObject" => {
                let in_namespace = !(request.group.is_empty() && request.resource == "namespaces");
                Some(or_null(request.namespace_object.filter(|_| in_namespace)))
            }
            "params" => Some(or_null(params)),
            "request" => Some(native(self.described.get_or_init(|| described(request)), reads)),
            _ => None,
        }
    }
}

fn described(request: &Request<'_>) -> Value {
    let is_token = request.group.is_empty() && request.kind == TOKEN_REQUEST;
    let group = if is_token { "authentication.k8s.io" } else { request.group };
    let kind = json!({"group": group, "version": request.version, "kind": request.kind});
    let resource = json!({"group": request.group, "version": request.version, "resource": request.resource});
    let extra = Some(request.user.extra()).filter(Value::is_object).unwrap_or_else(|| json!({}));
    json!({
        "kind": kind,
        "resource": resource,
        "subResource": request.subresource,
        "requestKind": kind,
        "requestResource": resource,
        "requestSubResource": request.subresource,
        "name": request.name,
        "namespace": request.namespace,
        "operation": request.operation.as_str(),
        "userInfo": {
            "username": request.user.user,
            "uid": request.user.uid,
            "groups": request.user.groups,
            "extra": extra,
        },
        "dryRun": request.dry_run,
        "options": request.options.cloned().unwrap_or_else(|| json!({})),
    })
}
