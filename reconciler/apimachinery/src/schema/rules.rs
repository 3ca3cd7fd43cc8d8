//! `x-kubernetes-validations`: parsed, compiled once, evaluated within a budget.

mod typed;

use std::hash::Hash as _;

use serde_json::{Map, Value};

use super::expression::{self, Expression, Failure, Scope, Ty, optional, with_budget};
use super::message::{child, duplicate, forbidden, index, internal, invalid, key, required};
use super::node::{ListType, Node, Type};
use super::old_items::OldItems;
use super::rule::Rule;
use super::{ErrorKind, FieldError};
use typed::{count, hash, type_of, typed};

/// The budget of all rules of one object together: an evaluation, a turn of a loop, and [`VALUES`] values that
/// are handed to the interpreter take 1 each.
const OBJECT_BUDGET: i64 = 200_000;
const VALUES: usize = 16;
/// The maximum length of the result of a `messageExpression`.
const MAX_MESSAGE: usize = 5 * 1024;
const MAX_RULES: usize = 1_000;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Parses the rules that a schema node declares, without compiling them.
pub(super) fn declared(map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) -> Vec<Rule> {
    let Some(list) = map.get("x-kubernetes-validations").and_then(Value::as_array) else { return Vec::new() };
    let path = child(path, "x-kubernetes-validations");
    if list.len() > MAX_RULES {
        errors.push(forbidden(&path, "too many rules"));
        return Vec::new();
    }
    list.iter().enumerate().map(|(at, rule)| one(rule, index(&path, at), errors)).collect()
}

fn one(rule: &Value, path: String, errors: &mut Vec<FieldError>) -> Rule {
    let text =
        |name: &str| rule.get(name).and_then(Value::as_str).filter(|t| !t.is_empty()).map(str::to_owned);
    let reason = text("reason").and_then(|reason| match reason.as_str() {
        "FieldValueInvalid" => Some(ErrorKind::Invalid),
        "FieldValueForbidden" => Some(ErrorKind::Forbidden),
        "FieldValueRequired" => Some(ErrorKind::Required),
        "FieldValueDuplicate" => Some(ErrorKind::Duplicate),
        other => {
            let allowed =
                ["FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired", "FieldValueDuplicate"];
            let here = child(&path, "reason");
            errors.push(super::message::unsupported(&here, &Value::from(other), &allowed.map(Value::from)));
            None
        }
    });
    Rule {
        source: text("rule").unwrap_or_default(),
        message: text("message"),
        message_source: text("messageExpression"),
        reason,
        field_path: text("fieldPath"),
        optional_old_self: rule.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false),
        program: None,
        message_program: None,
        path,
    }
}

/// Compiles every rule of the tree.
pub(super) fn compile_all(root: &mut Node, errors: &mut Vec<FieldError>) {
    if root.has_rules {
        expression::on_big_stack(|| compile_node(root, true, errors));
    }
}

/// Checks the types of all rules of the tree. Their cost is limited when they are evaluated.
pub(super) fn check_all(root: &Node, errors: &mut Vec<FieldError>) {
    if root.has_rules {
        expression::on_big_stack(|| check_types(root, errors));
    }
}

fn check_types(node: &Node, errors: &mut Vec<FieldError>) {
    let own = if node.rules.is_empty() { Ty::Dyn } else { type_of(node) };
    for rule in &node.rules {
        // `optional.of(self)` and the like have methods of their own.
        let old = if rule.optional_old_self { Ty::Dyn } else { own.clone() };
        let variables = [("self", own.clone()), ("oldSelf", old)];
        let refused =
            |program: &Expression, fits: fn(&Ty) -> bool, why: &str| match program.type_of(&variables) {
                Ok(ty) if fits(&ty) => None,
                Ok(_) => Some(why.to_owned()),
                Err(why) => Some(why),
            };
        let mut tell = |member: &str, program: &Expression, why: Option<String>| {
            let source = Value::from(program.source());
            errors.extend(why.map(|why| invalid(&child(&rule.path, member), &source, &why)));
        };
        if let Some(program) = &rule.program {
            tell("rule", program, refused(program, |ty| ty.may_be_bool(), "must evaluate to a bool"));
        }
        if let Some(program) = &rule.message_program {
            let why = refused(program, |ty| ty.may_be_string(), "must evaluate to a string");
            tell("messageExpression", program, why);
        }
    }
    for of in node.properties.values().chain(node.items.as_deref()).chain(node.additional_schema()) {
        check_types(of, errors);
    }
}

fn compile_node(node: &mut Node, correlatable: bool, errors: &mut Vec<FieldError>) {
    let mut rules = std::mem::take(&mut node.rules);
    for rule in &mut rules {
        compile_rule(rule, node, correlatable, errors);
    }
    let programs = rules.iter().flat_map(|rule| [&rule.program, &rule.message_program]).flatten();
    for reads in programs.flat_map(|program| ["self", "oldSelf"].map(|name| program.reads(name))).flatten() {
        node.rules_read.extend(reads);
    }
    node.held = (!rules.is_empty()).then(Box::default);
    node.rules = rules;
    for of in node.properties.values_mut() {
        compile_node(of, correlatable, errors);
    }
    let items_correlate = correlatable && node.list_type == ListType::Map;
    if let Some(of) = node.items.as_deref_mut() {
        compile_node(of, items_correlate, errors);
    }
    if let super::Additional::Schema(of) = &mut node.additional {
        compile_node(of, correlatable, errors);
    }
}

fn compile_rule(rule: &mut Rule, node: &Node, correlatable: bool, errors: &mut Vec<FieldError>) {
    const ROOTS: [&str; 2] = ["self", "oldSelf"];
    let here = child(&rule.path, "rule");
    if rule.source.trim().is_empty() {
        errors.push(required(&here, "rule is not specified"));
        return;
    }
    match Expression::compile(&rule.source, &ROOTS) {
        Ok(program) => {
            let old = program.uses("oldSelf");
            if old && !correlatable {
                let detail = "oldSelf cannot be used on the uncorrelatable portion of the schema";
                errors.push(invalid(&here, &Value::from(rule.source.as_str()), detail));
            }
            if rule.optional_old_self && !old {
                let detail = "may not be set if oldSelf is not used in rule";
                errors.push(invalid(&child(&rule.path, "optionalOldSelf"), &Value::Bool(true), detail));
            }
            rule.program = Some(program);
        }
        Err(detail) => errors.push(invalid(&here, &Value::from(rule.source.as_str()), &detail)),
    }
    if let Some(source) = &rule.message_source {
        match Expression::compile(source, &ROOTS) {
            Ok(program) => rule.message_program = Some(program),
            Err(detail) => {
                let here = child(&rule.path, "messageExpression");
                errors.push(invalid(&here, &Value::from(source.as_str()), &detail));
            }
        }
    }
    if let Some(path) = &rule.field_path {
        match normalized(path, node) {
            Some(path) => rule.field_path = Some(path),
            None => {
                let here = child(&rule.path, "fieldPath");
                errors.push(invalid(&here, &Value::from(path.as_str()), "must be a valid path"));
            }
        }
    }
}

/// Returns `.spec.x` or `['spec']['x.y']` as the path of an error, if the schema has that field.
fn normalized(path: &str, mut node: &Node) -> Option<String> {
    let mut out = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        let name = if let Some(after) = rest.strip_prefix("['") {
            let (name, after) = after.split_once("']")?;
            rest = after;
            name
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            rest = &after[end..];
            &after[..end]
        };
        out = if node.properties.contains_key(name) { child(&out, name) } else { key(&out, name) };
        node = node.member(name)?;
    }
    (!out.is_empty()).then_some(out)
}

pub(super) fn validate_object(root: &Node, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if !root.has_rules || super::too_deep(object) || old.is_some_and(super::too_deep) {
        return Vec::new();
    }
    let mut walk = Walk { errors: Vec::new() };
    // `Err` only means that the budget ran out, which the errors already contain.
    let _ = with_budget(OBJECT_BUDGET, || walk.node(root, object, old, ""));
    walk.errors
}

struct Stop;

struct Walk {
    errors: Vec<FieldError>,
}

impl Walk {
    fn node(&mut self, node: &Node, value: &Value, old: Option<&Value>, path: &str) -> Result<(), Stop> {
        if !node.has_rules || value.is_null() {
            return Ok(());
        }
        if !node.rules.is_empty() {
            self.rules(node, value, old.filter(|o| !o.is_null()), path)?;
        }
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    if let Some(of) = node.member(name).filter(|of| of.has_rules) {
                        let declared = node.properties.contains_key(name);
                        let here = if declared { child(path, name) } else { key(path, name) };
                        self.node(of, value, old.and_then(|o| o.get(name)), &here)?;
                    }
                }
            }
            Value::Array(items) => {
                let Some(of) = node.items.as_deref().filter(|of| of.has_rules) else { return Ok(()) };
                let old = OldItems::new(node, old);
                for (at, item) in items.iter().enumerate() {
                    self.node(of, item, old.get(item), &index(path, at))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rules(&mut self, node: &Node, value: &Value, old: Option<&Value>, path: &str) -> Result<(), Stop> {
        let unchanged = old == Some(value);
        let needed = |rule: &Rule| rule.program.as_ref().is_some_and(|p| !unchanged || p.uses("oldSelf"));
        if !node.rules.iter().any(needed) {
            return Ok(());
        }
        let reads = &node.rules_read;
        let held = node.held.as_deref().map(|held| {
            let digest = held.digest(|mut to| {
                // Which rules are evaluated depends on these two.
                (unchanged, old.is_some()).hash(&mut to);
                [Some(value), old].iter().flatten().for_each(|value| hash(value, node, reads, to));
            });
            (held, digest)
        });
        let (errors, budget) = (self.errors.len(), expression::left());
        let known = held.and_then(|(held, digest)| held.turns(digest));
        if expression::charge(known.unwrap_or_else(|| count(value, Some(node), reads) / VALUES)).is_err() {
            self.errors.push(invalid(
                if path.is_empty() { "<nil>" } else { path },
                &type_name(node),
                OUT_OF_BUDGET,
            ));
            return Err(Stop);
        }
        if known.is_some() {
            return Ok(());
        }
        let mut scope = Scope::default();
        let this = typed(value, node, reads);
        let of_old = |rule: &Rule| rule.program.as_ref().is_some_and(|p| p.uses("oldSelf"));
        // Computed only where a rule uses it: the interpreter copies every value that it receives.
        let old_self = match old {
            Some(_) if !node.rules.iter().any(of_old) => None,
            Some(_) if unchanged => Some(this.clone()),
            old => old.map(|old| typed(old, node, reads)),
        };
        scope.set("self", this);
        if let Some(old_self) = &old_self {
            scope.set("oldSelf", old_self.clone());
        }
        // A stored object that a newer rule refuses may still be written as long as this part stays
        // unchanged: such rules need not be evaluated.
        for rule in node.rules.iter().filter(|rule| needed(rule)) {
            let Some(program) = &rule.program else { continue };
            if program.uses("oldSelf") && old.is_none() && !rule.optional_old_self {
                continue;
            }
            let mut scope = scope.inner();
            if rule.optional_old_self {
                scope.set("oldSelf", optional(old_self.clone()));
            }
            self.rule(rule, program, &scope, Place { node, path })?;
        }
        if let Some((held, digest)) = held.filter(|_| self.errors.len() == errors) {
            held.insert(digest, budget - expression::left());
        }
        Ok(())
    }

    fn rule(
        &mut self,
        rule: &Rule,
        program: &Expression,
        scope: &Scope<'_>,
        at: Place<'_>,
    ) -> Result<(), Stop> {
        let here = if at.path.is_empty() { "<nil>" } else { at.path };
        let type_name = type_name(at.node);
        match program.evaluate(scope) {
            Ok(kube_cel::cel::Value::Bool(true)) => Ok(()),
            Ok(kube_cel::cel::Value::Bool(false)) => {
                let error = self.failed(rule, scope, &at);
                self.errors.push(error);
                Ok(())
            }
            Ok(_) => {
                let detail = format!("rule did not evaluate to a boolean: {}", rule.shown());
                self.errors.push(internal(here, &detail));
                Ok(())
            }
            Err(Failure::OutOfBudget) => {
                self.errors.push(invalid(here, &type_name, OUT_OF_BUDGET));
                Err(Stop)
            }
            Err(Failure::Error(error)) => {
                let detail = format!("{error} evaluating rule: {}", rule.shown());
                self.errors.push(invalid(here, &type_name, &detail));
                Ok(())
            }
        }
    }

    fn failed(&self, rule: &Rule, scope: &Scope<'_>, at: &Place<'_>) -> FieldError {
        let detail = rule.evaluated_message(scope).unwrap_or_else(|| match &rule.message {
            Some(message) => message.trim().to_owned(),
            None => format!("failed rule: {}", rule.shown()),
        });
        let here = match (&rule.field_path, at.path) {
            (Some(below), path) => child(path, below),
            (None, "") => "<nil>".to_owned(),
            (None, path) => path.to_owned(),
        };
        // As in Kubernetes, the error shows the value's type instead of the value: rules may cover far more
        // than one scalar.
        let shown = type_name(at.node);
        match rule.reason {
            Some(ErrorKind::Forbidden) => forbidden(&here, &detail),
            Some(ErrorKind::Required) => required(&here, &detail),
            Some(ErrorKind::Duplicate) => duplicate(&here, &shown),
            _ => invalid(&here, &shown, &detail),
        }
    }
}

fn type_name(node: &Node) -> Value {
    Value::from(node.ty.map_or("", Type::name))
}

struct Place<'a> {
    node: &'a Node,
    path: &'a str,
}

impl Rule {
    fn shown(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.source).trim()
    }

    /// Evaluates the message expression. An empty message, one with line breaks or one that is too long
    /// counts as none, as in Kubernetes.
    fn evaluated_message(&self, scope: &Scope<'_>) -> Option<String> {
        let program = self.message_program.as_ref()?;
        let kube_cel::cel::Value::String(text) = program.evaluate(scope).ok()? else { return None };
        let text = text.trim();
        (!text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n')).then(|| text.to_owned())
    }
}
