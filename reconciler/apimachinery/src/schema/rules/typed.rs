//! Values and types for rules, by the schema: property names escaped, numbers and formats by declared type.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::Value as Cel;
use serde_json::Value;

use crate::schema::expression::{Ty, formatted, native, number, object};
use crate::schema::node::{Additional, Node, Type};
use crate::schema::whole;

/// Converts a value.
pub(super) fn typed(value: &Value, node: &Node) -> Cel {
    match value {
        Value::Number(n) if node.ty == Some(Type::Number) => Cel::Float(n.as_f64().unwrap_or(f64::NAN)),
        Value::Number(n) if node.ty == Some(Type::Integer) || node.int_or_string => {
            number(&n.as_f64().filter(|_| n.is_f64()).and_then(whole).unwrap_or_else(|| n.clone()))
        }
        Value::String(s) if !node.int_or_string => formatted(s, node.checks.format.as_deref()),
        Value::Array(items) => {
            let item = |v| node.items.as_deref().map_or_else(|| native(v), |of| typed(v, of));
            Cel::List(Arc::new(items.iter().map(item).collect()))
        }
        Value::Object(map) => {
            let keys_are_data = !matches!(node.additional, Additional::Absent);
            let mut members = Vec::with_capacity(map.len());
            for (name, value) in map {
                let cel = node.member(name).map_or_else(|| native(value), |of| typed(value, of));
                if keys_are_data {
                    members.push((name.clone(), cel));
                    continue;
                }
                if is_word(name) {
                    members.push((name.clone(), cel.clone()));
                }
                members.push((escape(name), cel));
            }
            object(members.into_iter())
        }
        other => native(other),
    }
}

/// Returns the type of values with this schema.
pub(super) fn type_of(node: &Node) -> Ty {
    // The value of a nullable field may also be null.
    if node.int_or_string || node.nullable {
        return Ty::Dyn;
    }
    match node.ty {
        Some(Type::Boolean) => Ty::Bool,
        Some(Type::Integer | Type::Number) => Ty::Scalar,
        Some(Type::String) => match node.checks.format.as_deref() {
            Some("date" | "date-time" | "duration" | "byte") => Ty::Scalar,
            _ => Ty::String,
        },
        Some(Type::Array) => Ty::List(Box::new(node.items.as_deref().map_or(Ty::Dyn, type_of))),
        Some(Type::Object) => match &node.additional {
            Additional::Schema(of) => Ty::Map(Box::new(type_of(of))),
            // An embedded resource also has the fields of every resource.
            Additional::Absent if !node.embedded && !node.preserve_unknown => {
                let mut fields = HashMap::new();
                for (name, of) in &node.properties {
                    let ty = type_of(of);
                    if is_word(name) {
                        fields.insert(name.clone(), ty.clone());
                    }
                    fields.insert(escape(name), ty);
                }
                Ty::Object(Arc::new(fields))
            }
            _ => Ty::Dyn,
        },
        None => Ty::Dyn,
    }
}

/// The first four are tokens of the language, the others are reserved words.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether the parser accepts a reserved name after a dot. Since Kubernetes 1.32 rules may also use those
/// unescaped.
fn is_word(name: &str) -> bool {
    RESERVED[4..].contains(&name)
}

/// Returns the name in rules of a property that is not a CEL identifier.
fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("__") {
            out.push_str("__underscores__");
            rest = after;
            continue;
        }
        match c {
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            c => out.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

#[cfg(test)]
mod tests;
