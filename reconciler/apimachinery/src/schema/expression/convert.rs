//! Conversion of JSON values to CEL values.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Program, Value as Cel};
use serde_json::{Number, Value};

use super::{Scope, on_big_stack};
use crate::schema::node::{Additional, Node, Type};
use crate::schema::whole;

/// Converts a value for admission policies: names unchanged, numbers as in JSON.
pub fn native(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => number(n),
        Value::String(s) => text(s),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(native).collect())),
        Value::Object(map) => object(map.iter().map(|(k, v)| (k.clone(), native(v)))),
    }
}

/// Converts a value for schema rules: property names escaped, numbers and formats by declared type.
pub fn typed(value: &Value, node: &Node) -> Cel {
    match value {
        Value::Number(n) if node.ty == Some(Type::Number) => Cel::Float(n.as_f64().unwrap_or(f64::NAN)),
        Value::Number(n) if wants_integer(node) => {
            number(&n.as_f64().filter(|_| n.is_f64()).and_then(whole).unwrap_or_else(|| n.clone()))
        }
        Value::String(s) => formatted(s, node),
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

pub fn object(members: impl Iterator<Item = (String, Cel)>) -> Cel {
    let map: HashMap<Key, Cel> = members.map(|(k, v)| (Key::String(Arc::new(k)), v)).collect();
    Cel::Map(Map { map: Arc::new(map) })
}

pub(crate) fn text(text: &str) -> Cel {
    Cel::String(Arc::new(text.to_owned()))
}

fn number(n: &Number) -> Cel {
    match (n.as_i64(), n.as_u64()) {
        (Some(i), _) => Cel::Int(i),
        (None, Some(u)) => Cel::UInt(u),
        (None, None) => Cel::Float(n.as_f64().unwrap_or(f64::NAN)),
    }
}

fn wants_integer(node: &Node) -> bool {
    node.ty == Some(Type::Integer) || node.int_or_string
}

fn formatted(s: &str, node: &Node) -> Cel {
    if node.int_or_string {
        return text(s);
    }
    match node.checks.format.as_deref() {
        Some("date-time") => timestamp(s),
        Some("date") => match timestamp(&format!("{s}T00:00:00Z")) {
            at @ Cel::Timestamp(_) => at,
            _ => text(s),
        },
        Some("duration") => made_by(&DURATION, s),
        Some("byte") => STANDARD.decode(s).map_or_else(|_| text(s), |bytes| Cel::Bytes(Arc::new(bytes))),
        _ => text(s),
    }
}

// Times are created by the interpreter, so that this crate needs no second time library.
static TIMESTAMP: LazyLock<Program> = LazyLock::new(|| constant("timestamp(s)"));
static DURATION: LazyLock<Program> = LazyLock::new(|| constant("duration(s)"));

fn constant(source: &str) -> Program {
    on_big_stack(|| Program::compile(source).expect("a constant expression, compiled by a test"))
}

fn timestamp(s: &str) -> Cel {
    made_by(&TIMESTAMP, s)
}

fn made_by(program: &Program, s: &str) -> Cel {
    let mut scope = Scope::default();
    scope.set("s", text(s));
    program.execute(&scope.0).unwrap_or_else(|_| text(s))
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

/// Whether rules may refer to a property by this name.
pub(crate) fn is_called(property: &str, name: &str) -> bool {
    escape(property) == name || (property == name && is_word(name))
}

/// Returns the name in rules of a property that is not a CEL identifier.
pub(crate) fn escape(name: &str) -> String {
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
