//! Conversion of JSON values to CEL values.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Program, Value as Cel};
use serde_json::{Number, Value};

use super::{Reads, Scope, WHOLE, on_big_stack};

/// Converts the part of a value that admission policies read: names unchanged, numbers as in JSON.
pub fn native(value: &Value, reads: &Reads) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => number(n),
        Value::String(s) => text(s),
        Value::Array(_) if reads.presence() => Cel::List(Arc::new(Vec::new())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(|item| native(item, &WHOLE)).collect())),
        Value::Object(map) => {
            object(map.iter().filter_map(|(k, v)| Some((k.clone(), native(v, reads.member(k)?)))))
        }
    }
}

pub fn object(members: impl Iterator<Item = (String, Cel)>) -> Cel {
    let map: HashMap<Key, Cel> = members.map(|(k, v)| (Key::String(Arc::new(k)), v)).collect();
    Cel::Map(Map { map: Arc::new(map) })
}

fn text(text: &str) -> Cel {
    Cel::String(Arc::new(text.to_owned()))
}

pub(crate) fn number(n: &Number) -> Cel {
    match (n.as_i64(), n.as_u64()) {
        (Some(i), _) => Cel::Int(i),
        (None, Some(u)) => Cel::UInt(u),
        (None, None) => Cel::Float(n.as_f64().unwrap_or(f64::NAN)),
    }
}

/// Converts a string of a schema's format; one that is not in the format stays a string.
pub(crate) fn formatted(s: &str, format: Option<&str>) -> Cel {
    match format {
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
