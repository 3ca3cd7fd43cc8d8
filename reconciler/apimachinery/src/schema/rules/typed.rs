//! Values and types for rules, by the schema: property names escaped, numbers and formats by declared type.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{Hash as _, Hasher};
use std::sync::Arc;

use kube_cel::cel::Value as Cel;
use serde_json::{Map, Value};

use crate::schema::expression::{Reads, Ty, WHOLE, formatted, native, number, object};
use crate::schema::node::{Additional, Node, Type};
use crate::schema::whole;

/// Converts the part of a value that rules read.
pub(super) fn typed(value: &Value, node: &Node, reads: &Reads) -> Cel {
    match value {
        Value::Number(n) if node.ty == Some(Type::Number) => Cel::Float(n.as_f64().unwrap_or(f64::NAN)),
        Value::Number(n) if node.ty == Some(Type::Integer) || node.int_or_string => {
            number(&n.as_f64().filter(|_| n.is_f64()).and_then(whole).unwrap_or_else(|| n.clone()))
        }
        Value::String(s) if !node.int_or_string => formatted(s, node.checks.format.as_deref()),
        Value::Array(_) if reads.presence() => Cel::List(Arc::new(Vec::new())),
        Value::Array(items) => {
            let item = |v| node.items.as_deref().map_or_else(|| native(v, &WHOLE), |of| typed(v, of, &WHOLE));
            Cel::List(Arc::new(items.iter().map(item).collect()))
        }
        Value::Object(map) => {
            let mut members = Vec::with_capacity(map.len());
            for (name, value, reads) in read_members(map, node, reads) {
                let cel =
                    node.member(name).map_or_else(|| native(value, reads), |of| typed(value, of, reads));
                if has_free_keys(node) {
                    members.push((name.clone(), cel));
                    continue;
                }
                if is_word(name) {
                    members.push((name.clone(), cel.clone()));
                }
                members.push((escape(name).into_owned(), cel));
            }
            object(members.into_iter())
        }
        other => native(other, reads),
    }
}

/// Returns the number of values in the part of a value that rules read.
pub(super) fn count(value: &Value, node: Option<&Node>, reads: &Reads) -> usize {
    match (value, node) {
        (Value::Object(map), Some(node)) => {
            let members = read_members(map, node, reads);
            1 + members.map(|(name, value, reads)| count(value, node.member(name), reads)).sum::<usize>()
        }
        (Value::Object(map), None) => 1 + map.values().map(|value| count(value, None, &WHOLE)).sum::<usize>(),
        (Value::Array(items), _) if !reads.presence() => {
            1 + items.iter().map(|item| count(item, None, &WHOLE)).sum::<usize>()
        }
        _ => 1,
    }
}

/// Hashes the part of a value that rules read.
pub(super) fn hash(value: &Value, node: &Node, reads: &Reads, mut to: &mut dyn Hasher) {
    let Value::Object(map) = value else { return value.hash(&mut to) };
    // Begins differently from every value that is hashed whole.
    to.write_isize(-1);
    for (name, value, reads) in read_members(map, node, reads) {
        name.hash(&mut to);
        match node.member(name) {
            Some(of) => hash(value, of, reads, to),
            None => value.hash(&mut to),
        }
    }
    // Ends the members: no name begins with this byte.
    to.write_u8(0xff);
}

/// The members of an object that rules read, with what they read of each.
fn read_members<'a>(
    map: &'a Map<String, Value>,
    node: &'a Node,
    reads: &'a Reads,
) -> impl Iterator<Item = (&'a String, &'a Value, &'a Reads)> {
    map.iter().filter_map(|(name, value)| {
        let of = if has_free_keys(node) {
            reads.member(name)
        } else {
            match (reads.member(&escape(name)), reads.member(name).filter(|_| is_word(name))) {
                // Written in both forms: each may read another part.
                (Some(_), Some(_)) => Some(&WHOLE),
                (escaped, as_written) => escaped.or(as_written),
            }
        };
        Some((name, value, of?))
    })
}

/// Whether the keys of a value are data and not names of fields, which rules write in their escaped form.
fn has_free_keys(node: &Node) -> bool {
    !matches!(node.additional, Additional::Absent)
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
                    fields.insert(escape(name).into_owned(), ty);
                }
                Ty::Object(Arc::new(fields))
            }
            _ => Ty::Dyn,
        },
        None => Ty::Dyn,
    }
}

/// Whether a name is a literal or an operator of the language.
fn is_token(name: &str) -> bool {
    matches!(name, "true" | "false" | "null" | "in")
}

/// Whether a name is reserved and the parser accepts it after a dot. Since Kubernetes 1.32 rules may also use those
/// unescaped.
fn is_word(name: &str) -> bool {
    // Matched, and not searched in a list: every member of every object is asked about.
    matches!(
        name,
        "as" | "break"
            | "const"
            | "continue"
            | "else"
            | "for"
            | "function"
            | "if"
            | "import"
            | "let"
            | "loop"
            | "package"
            | "namespace"
            | "return"
            | "var"
            | "void"
            | "while"
    )
}

/// Returns the name in rules of a property that is not a CEL identifier.
fn escape(name: &str) -> Cow<'_, str> {
    if is_token(name) || is_word(name) {
        return format!("__{name}__").into();
    }
    if !name.bytes().any(|byte| matches!(byte, b'_' | b'.' | b'-' | b'/')) {
        return name.into();
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
    out.into()
}

#[cfg(test)]
mod tests;
