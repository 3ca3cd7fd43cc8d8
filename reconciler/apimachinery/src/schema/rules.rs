//! `x-kubernetes-validations`: parsed, checked with a new schema, evaluated within a budget.

mod typed;

use std::hash::Hash as _;

use serde_json::{Map, Value};

use super::expression::{self, Expression, Failure, Scope, Ty, optional, with_budget};
use super::message::{child, duplicate, forbidden, index, internal, invalid, key, required};
use super::node::{ListType, Node, Type};
use super::old_items::OldItems;
use super::rule::{Programs, Rule, Rules};
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
pub(super) fn declared(map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) -> Rules {
    let Some(list) = map.get("x-kubernetes-validations").and_then(Value::as_array) else {
        return Rules::default();
    };
    let path = child(path, "x-kubernetes-validations");
    if list.len() > MAX_RULES {
        errors.push(forbidden(&path, "too many rules"));
        return Rules::default();
    }
    Rules::new(list.iter().enumerate().map(|(at, rule)| one(rule, index(&path, at), errors)).collect())
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
        path,
    }
}

/// Compiles the rules of a new schema and checks them, their types last. Their cost is limited when they are evaluated.
pub(super) fn check_all(root: &Node, errors: &mut Vec<FieldError>) {
    if root.has_rules {
        expression::on_big_stack(|| {
            check_programs(root, true, errors);
            if errors.is_empty() {
                check_types(root, errors);
            }
        });
    }
}

fn check_types(node: &Node, errors: &mut Vec<FieldError>) {
    if !node.has_rules {
        return;
    }
    let own = if node.rules.is_empty() { Ty::Dyn } else { type_of(node) };
    for (rule, programs) in node.rules.declared.iter().zip(&node.rules.compiled_here().programs) {
        // `optional.of(self)` and the like have methods of their own.
        let old = if rule.optional_old_self { Ty::Dyn } else { own.clone() };
        let variables = [("self", own.clone()), ("oldSelf", old)];
        let refused =
            |program: &Expression, fits: fn(&Ty) -> bool, why: &str| match program.type_of(&variables) {
                Ok(ty) if fits(&ty) => None,
                Ok(_) => Some(why.to_owned()),
                Err(why) => Some(why),
            };
        let mut report = |member: &str, program: &Expression, why: Option<String>| {
            let source = Value::from(program.source());
            errors.extend(why.map(|why| invalid(&child(&rule.path, member), &source, &why)));
        };
        if let Ok(program) = &programs.rule {
            report("rule", program, refused(program, |ty| ty.may_be_bool(), "must evaluate to a bool"));
        }
        if let Some(Ok(program)) = &programs.message {
            let why = refused(program, |ty| ty.may_be_string(), "must evaluate to a string");
            report("messageExpression", program, why);
        }
    }
    for of in node.properties.values().chain(node.items.as_deref()).chain(node.additional_schema()) {
        check_types(of, errors);
    }
}

/// Checks that each rule of the tree compiles and has the previous value if it uses it.
fn check_programs(node: &Node, correlatable: bool, errors: &mut Vec<FieldError>) {
    if !node.has_rules {
        return;
    }
    for (rule, programs) in node.rules.declared.iter().zip(&node.rules.compiled_here().programs) {
        check_program(rule, programs, correlatable, errors);
    }
    let items_correlate = correlatable && node.list_type == ListType::Map;
    let items = node.items.as_deref().map(|of| (of, items_correlate));
    let members = node.properties.values().chain(node.additional_schema()).map(|of| (of, correlatable));
    for (of, correlatable) in members.chain(items) {
        check_programs(of, correlatable, errors);
    }
}

fn check_program(rule: &Rule, programs: &Programs, correlatable: bool, errors: &mut Vec<FieldError>) {
    let here = child(&rule.path, "rule");
    let source = Value::from(rule.source.as_str());
    if rule.source.trim().is_empty() {
        errors.push(required(&here, "rule is not specified"));
        return;
    }
    match &programs.rule {
        Ok(program) => {
            let old = program.uses("oldSelf");
            if old && !correlatable {
                let detail = "oldSelf cannot be used on the uncorrelatable portion of the schema";
                errors.push(invalid(&here, &source, detail));
            }
            if rule.optional_old_self && !old {
                let detail = "may not be set if oldSelf is not used in rule";
                errors.push(invalid(&child(&rule.path, "optionalOldSelf"), &Value::Bool(true), detail));
            }
        }
        Err(detail) => errors.push(invalid(&here, &source, detail)),
    }
    if let (Some(source), Some(Err(detail))) = (&rule.message_source, &programs.message) {
        let here = child(&rule.path, "messageExpression");
        errors.push(invalid(&here, &Value::from(source.as_str()), detail));
    }
}

/// Brings the `fieldPath` of each rule of the tree into the form of the paths of errors.
pub(super) fn resolve_paths(node: &mut Node, errors: &mut Vec<FieldError>) {
    if !node.has_rules {
        return;
    }
    let mut rules = std::mem::take(&mut node.rules);
    for rule in &mut rules.declared {
        let Some(path) = &rule.field_path else { continue };
        match normalized(path, node) {
            Some(path) => rule.field_path = Some(path),
            None => {
                let here = child(&rule.path, "fieldPath");
                errors.push(invalid(&here, &Value::from(path.as_str()), "must be a valid path"));
            }
        }
    }
    node.rules = rules;
    for of in node.properties.values_mut().chain(node.items.as_deref_mut()) {
        resolve_paths(of, errors);
    }
    if let super::Additional::Schema(of) = &mut node.additional {
        resolve_paths(of, errors);
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
        let rules = node.rules.compiled().map_err(|error| {
            let here = if path.is_empty() { "<nil>" } else { path };
            self.errors.push(internal(here, &format!("the rules cannot be compiled now: {error}")));
            Stop
        })?;
        let needed = |programs: &Programs| !unchanged || programs.uses_old_self();
        if !rules.programs.iter().any(needed) {
            return Ok(());
        }
        let (reads, held) = (&rules.reads, &rules.held);
        let digest = held.digest(|mut to| {
            // Which rules are evaluated depends on these two.
            (unchanged, old.is_some()).hash(&mut to);
            [Some(value), old].iter().flatten().for_each(|value| hash(value, node, reads, to));
        });
        let (errors, budget) = (self.errors.len(), expression::left());
        let known = held.turns(digest);
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
        // Computed only where a rule uses it: the interpreter copies every value that it receives.
        let old_self = match old {
            Some(_) if !rules.programs.iter().any(Programs::uses_old_self) => None,
            Some(_) if unchanged => Some(this.clone()),
            old => old.map(|old| typed(old, node, reads)),
        };
        scope.set("self", this);
        if let Some(old_self) = &old_self {
            scope.set("oldSelf", old_self.clone());
        }
        // A stored object that a newer rule refuses may still be written as long as this part stays
        // unchanged: such rules need not be evaluated.
        let declared = node.rules.declared.iter().zip(&rules.programs);
        for (rule, programs) in declared.filter(|(_, programs)| needed(programs)) {
            if programs.uses_old_self() && old.is_none() && !rule.optional_old_self {
                continue;
            }
            let mut scope = scope.inner();
            if rule.optional_old_self {
                scope.set("oldSelf", optional(old_self.clone()));
            }
            self.rule(rule, programs, &scope, Place { node, path })?;
        }
        if self.errors.len() == errors {
            held.insert(digest, budget - expression::left());
        }
        Ok(())
    }

    fn rule(
        &mut self,
        rule: &Rule,
        programs: &Programs,
        scope: &Scope<'_>,
        at: Place<'_>,
    ) -> Result<(), Stop> {
        let here = if at.path.is_empty() { "<nil>" } else { at.path };
        let type_name = type_name(at.node);
        // A rule that was accepted by another version may not compile.
        let result = match &programs.rule {
            Ok(program) => program.evaluate(scope),
            Err(why) => Err(Failure::Error(why.clone())),
        };
        match result {
            Ok(kube_cel::cel::Value::Bool(true)) => Ok(()),
            Ok(kube_cel::cel::Value::Bool(false)) => {
                let error = self.failed(rule, programs, scope, &at);
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

    fn failed(&self, rule: &Rule, programs: &Programs, scope: &Scope<'_>, at: &Place<'_>) -> FieldError {
        let detail = programs.evaluated_message(scope).unwrap_or_else(|| match &rule.message {
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
}

impl Programs {
    /// Evaluates the message expression. An empty message, one with line breaks or one that is too long
    /// counts as none, as in Kubernetes.
    fn evaluated_message(&self, scope: &Scope<'_>) -> Option<String> {
        let program = self.message.as_ref()?.as_ref().ok()?;
        let kube_cel::cel::Value::String(text) = program.evaluate(scope).ok()? else { return None };
        let text = text.trim();
        (!text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n')).then(|| text.to_owned())
    }
}
