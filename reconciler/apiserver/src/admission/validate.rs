//! Validation of policies and bindings when they are written, as in Kubernetes.

use berth_apimachinery::schema::expression::Expression;
use berth_apimachinery::schema::message::{child, forbidden, index, invalid, required, unsupported};
use berth_apimachinery::schema::{FieldError, expression};
use serde_json::{Value, json};

use super::Operation;
use super::policy::compile;

const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

/// Returns the field errors of a ValidatingAdmissionPolicy; empty if it may be stored.
pub(crate) fn validate_policy(policy: &Value) -> Vec<FieldError> {
    expression::on_big_stack(|| {
        let mut errors = Vec::new();
        let empty = json!({});
        let spec = policy.get("spec").unwrap_or(&empty);
        choice(spec, "spec", "failurePolicy", &["Fail", "Ignore"], &mut errors);
        constraints(spec, &mut errors);
        if let Some(kind) = spec.get("paramKind").filter(|kind| !kind.is_null()) {
            for name in ["apiVersion", "kind"] {
                if is_empty(kind, name) {
                    errors.push(required(&child("spec.paramKind", name), ""));
                }
            }
        }
        let validations = list(spec, "validations");
        if validations.is_empty() && list(spec, "auditAnnotations").is_empty() {
            let detail = "validations or auditAnnotations must contain at least one item";
            errors.push(required("spec.validations", detail));
            errors.push(required("spec.auditAnnotations", detail));
        }
        for (at, item) in validations.iter().enumerate() {
            let here = index("spec.validations", at);
            expression_at(item, "expression", &here, Some(Wanted::Bool), &mut errors);
            if item.get("messageExpression").is_some_and(|m| m.as_str() != Some("")) {
                expression_at(item, "messageExpression", &here, Some(Wanted::Text), &mut errors);
            }
            if let Some(message) = item.get("message").and_then(Value::as_str).filter(|m| m.contains('\n')) {
                errors.push(invalid(
                    &child(&here, "message"),
                    &json!(message),
                    "message must not contain line breaks",
                ));
            }
            choice(item, &here, "reason", &REASONS, &mut errors);
        }
        for name in ["matchConditions", "variables"] {
            for (at, item) in list(spec, name).iter().enumerate() {
                let here = index(&child("spec", name), at);
                if item.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
                    errors.push(required(&child(&here, "name"), ""));
                }
                let wanted = (name == "matchConditions").then_some(Wanted::Bool);
                expression_at(item, "expression", &here, wanted, &mut errors);
            }
        }
        errors
    })
}

/// Sets Kubernetes' defaults of a policy or binding when it is written. `constraints` is
/// `spec.matchConstraints` of a policy or `spec.matchResources` of a binding.
pub(crate) fn default_constraints(constraints: &mut Value) {
    let Some(members) = constraints.as_object_mut() else { return };
    for (name, value) in [
        ("namespaceSelector", json!({})),
        ("objectSelector", json!({})),
        ("matchPolicy", json!("Equivalent")),
    ] {
        let entry = members.entry(name).or_insert(Value::Null);
        if entry.is_null() {
            *entry = value;
        }
    }
    for name in ["resourceRules", "excludeResourceRules"] {
        for rule in members.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(rule) =
                rule.as_object_mut().filter(|rule| rule.get("scope").is_none_or(Value::is_null))
            {
                rule.insert("scope".to_owned(), json!("*"));
            }
        }
    }
}

/// Returns the field errors of a ValidatingAdmissionPolicyBinding.
pub(crate) fn validate_binding(binding: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let empty = json!({});
    let spec = binding.get("spec").unwrap_or(&empty);
    if spec.get("policyName").and_then(Value::as_str).is_none_or(str::is_empty) {
        errors.push(required("spec.policyName", ""));
    }
    if let Some(selection) = spec.get("paramRef").filter(|selection| !selection.is_null()) {
        param_ref(selection, &mut errors);
    }
    let actions = list(spec, "validationActions");
    if actions.is_empty() {
        errors.push(required("spec.validationActions", "at least one validation action is required"));
    }
    let allowed = ["Audit", "Deny", "Warn"].map(Value::from);
    for (at, action) in actions.iter().enumerate().filter(|(_, action)| !allowed.contains(action)) {
        errors.push(unsupported(&index("spec.validationActions", at), action, &allowed));
    }
    if actions.contains(&json!("Deny")) && actions.contains(&json!("Warn")) {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                      response and headers serves no purpose)";
        errors.push(invalid("spec.validationActions", &json!(actions), detail));
    }
    errors
}

fn is_empty(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_str).is_none_or(str::is_empty)
}

fn param_ref(selection: &Value, errors: &mut Vec<FieldError>) {
    let here = "spec.paramRef";
    let has_selector = selection.get("selector").is_some_and(|selector| !selector.is_null());
    match (is_empty(selection, "name"), has_selector) {
        (true, false) => errors.push(required(here, "one of name or selector must be specified")),
        (false, true) => {
            for name in ["name", "selector"] {
                errors.push(forbidden(&child(here, name), "name and selector are mutually exclusive"));
            }
        }
        (true, true) | (false, false) => {}
    }
    if is_empty(selection, "parameterNotFoundAction") {
        errors.push(required(&child(here, "parameterNotFoundAction"), ""));
    } else {
        choice(selection, here, "parameterNotFoundAction", &["Allow", "Deny"], errors);
    }
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn choice(value: &Value, path: &str, name: &str, allowed: &[&str], errors: &mut Vec<FieldError>) {
    if let Some(chosen) = value.get(name).filter(|v| !v.is_null())
        && chosen.as_str().is_none_or(|c| !allowed.contains(&c))
    {
        let allowed: Vec<Value> = allowed.iter().map(|a| json!(a)).collect();
        errors.push(unsupported(&child(path, name), chosen, &allowed));
    }
}

/// The required type of an expression's value.
#[derive(Clone, Copy)]
enum Wanted {
    Bool,
    Text,
}

fn expression_at(item: &Value, name: &str, path: &str, wanted: Option<Wanted>, errors: &mut Vec<FieldError>) {
    let here = child(path, name);
    let source = item.get(name).and_then(Value::as_str).unwrap_or_default();
    if source.trim().is_empty() {
        errors.push(required(&here, &format!("{name} is not specified")));
    } else if let Err(detail) = compile(source).and_then(|expression| check_type(&expression, wanted)) {
        errors.push(invalid(&here, &json!(source), &detail));
    }
}

/// Checks the type of an expression. Values from requests are untyped; an expression computed from them may
/// have a type.
fn check_type(expression: &Expression, wanted: Option<Wanted>) -> Result<(), String> {
    let ty = expression.type_of(&[])?;
    match wanted {
        Some(Wanted::Bool) if !ty.may_be_bool() => Err("must evaluate to bool".to_owned()),
        Some(Wanted::Text) if !ty.may_be_string() => Err("must evaluate to string".to_owned()),
        _ => Ok(()),
    }
}

fn constraints(spec: &Value, errors: &mut Vec<FieldError>) {
    let here = "spec.matchConstraints";
    let Some(constraints) = spec.get("matchConstraints").filter(|c| c.is_object()) else {
        errors.push(required(here, ""));
        return;
    };
    choice(constraints, here, "matchPolicy", &["Equivalent", "Exact"], errors);
    if list(constraints, "resourceRules").is_empty() {
        errors.push(required(&child(here, "resourceRules"), ""));
    }
    for name in ["resourceRules", "excludeResourceRules"] {
        for (at, rule) in list(constraints, name).iter().enumerate() {
            let here = index(&child(here, name), at);
            for name in ["apiGroups", "apiVersions", "operations", "resources"] {
                if list(rule, name).is_empty() {
                    errors.push(required(&child(&here, name), ""));
                }
            }
            let allowed = Operation::NAMES.map(Value::from);
            for (at, operation) in list(rule, "operations").iter().enumerate() {
                if !allowed.contains(operation) {
                    errors.push(unsupported(&index(&child(&here, "operations"), at), operation, &allowed));
                }
            }
            choice(rule, &here, "scope", &["*", "Cluster", "Namespaced"], errors);
        }
    }
}
