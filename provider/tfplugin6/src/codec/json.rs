//! cty's JSON: the encoding of stored states, and the alternative encoding of a `DynamicValue`.
//!
//! Numbers are read from their digits: a JSON library's own number type is a float as soon as there is a decimal point.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::{
    codec::{ValueError, ValueProblem, msgpack, nth},
    path::Step,
    ty::Type,
    value::Value,
};

/// Decodes a value of a type. Attributes the type does not have are an error, absent ones are null.
pub(crate) fn decode(json: &[u8], ty: &Type) -> Result<Value, ValueError> {
    read(parse(json)?, ty, Rules { extra: UnknownAttributes::Refused, typed: false })
}

/// Decodes a stored state. Attributes the type does not have, for example of an older schema, are ignored.
pub(crate) fn decode_state(json: &[u8], ty: &Type) -> Result<Value, ValueError> {
    read(parse(json)?, ty, Rules { extra: UnknownAttributes::Ignored, typed: false })
}

/// Encodes a value of a type. Unknown values cannot be encoded.
pub(crate) fn encode(value: &Value, ty: &Type) -> Result<String, ValueError> {
    let mut out = String::new();
    write(&mut out, value, ty)?;
    Ok(out)
}

/// Decoding rules.
#[derive(Clone, Copy)]
struct Rules {
    extra: UnknownAttributes,
    /// Whether the reader is within a value that carries its own type: such types do not nest, see the MessagePack reader.
    typed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UnknownAttributes {
    Refused,
    Ignored,
}

fn parse(json: &[u8]) -> Result<&RawValue, ValueError> {
    serde_json::from_slice(json).map_err(ValueProblem::malformed)
}

fn read(raw: &RawValue, ty: &Type, rules: Rules) -> Result<Value, ValueError> {
    let text = raw.get().trim();
    if text == "null" {
        return Ok(Value::Null);
    }
    let mismatch = || ValueProblem::mismatch(ty, found(text));
    match ty {
        Type::Dynamic => read_dynamic(text, rules),
        Type::Bool => serde_json::from_str(text).map(Value::Bool).map_err(|_| mismatch()),
        Type::String => serde_json::from_str(text).map(Value::String).map_err(|_| mismatch()),
        Type::Number => {
            // cty accepts a number in quotes, and old states contain some.
            let digits = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
            digits.parse().map(Value::Number).map_err(|_| mismatch())
        }
        Type::List(element) | Type::Set(element) => {
            let raw: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| mismatch())?;
            let elements = raw.into_iter().enumerate();
            let elements =
                elements.map(|(i, raw)| read(raw, element, rules).map_err(|error| error.under(nth(i))));
            Ok(Value::List(elements.collect::<Result<_, _>>()?))
        }
        Type::Tuple(types) => {
            let raw: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| mismatch())?;
            if raw.len() != types.len() {
                return Err(mismatch());
            }
            let elements = raw.into_iter().zip(types).enumerate();
            let elements =
                elements.map(|(i, (raw, ty))| read(raw, ty, rules).map_err(|error| error.under(nth(i))));
            Ok(Value::List(elements.collect::<Result<_, _>>()?))
        }
        Type::Map(element) => {
            let raw: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|_| mismatch())?;
            let entries = raw.into_iter().map(|(key, raw)| match read(raw, element, rules) {
                Ok(value) => Ok((key, value)),
                Err(error) => Err(error.under(Step::Key(key))),
            });
            Ok(Value::Map(entries.collect::<Result<_, _>>()?))
        }
        Type::Object(attributes) => {
            let raw: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|_| mismatch())?;
            if rules.extra == UnknownAttributes::Refused
                && let Some(name) = raw.keys().find(|name| !attributes.contains_key(*name))
            {
                return Err(ValueProblem::UnknownAttribute.here().under(Step::Attribute(name.clone())));
            }
            let entries = attributes.iter().map(|(name, ty)| match raw.get(name) {
                None => Ok((name.clone(), Value::Null)),
                Some(raw) => match read(raw, ty, rules) {
                    Ok(value) => Ok((name.clone(), value)),
                    Err(error) => Err(error.under(Step::Attribute(name.clone()))),
                },
            });
            Ok(Value::Map(entries.collect::<Result<_, _>>()?))
        }
    }
}

/// `{"value": …, "type": …}`
fn read_dynamic(text: &str, rules: Rules) -> Result<Value, ValueError> {
    #[derive(serde::Deserialize)]
    struct Typed<'a> {
        #[serde(borrow)]
        value: &'a RawValue,
        #[serde(borrow)]
        r#type: &'a RawValue,
    }
    if rules.typed {
        return Err(ValueProblem::malformed("a value without its type"));
    }
    let typed: Typed<'_> = serde_json::from_str(text).map_err(ValueProblem::malformed)?;
    let ty = typed.r#type.get().parse::<Type>().map_err(ValueProblem::malformed)?;
    let value = read(typed.value, &ty, Rules { typed: true, ..rules })?;
    Ok(Value::Dynamic(Box::new((ty, value))))
}

fn write(out: &mut String, value: &Value, ty: &Type) -> Result<(), ValueError> {
    match (value, ty) {
        (Value::Dynamic(inner), Type::Dynamic) => {
            out.push_str("{\"value\":");
            write(out, &inner.1, &inner.0)?;
            out.push_str(",\"type\":");
            out.push_str(&inner.0.to_json().to_string());
            out.push('}');
        }
        (Value::Null, _) => out.push_str("null"),
        (Value::Unknown(_), _) => return Err(ValueProblem::Unknown.here()),
        (Value::Bool(value), Type::Bool) => out.push_str(if *value { "true" } else { "false" }),
        (Value::Number(value), Type::Number) => out.push_str(&value.to_string()),
        (Value::String(value), Type::String) => quote(out, value),
        (Value::List(elements), Type::List(element) | Type::Set(element)) => {
            let elements = elements.iter().map(|value| (value, &**element));
            write_list(out, elements)?;
        }
        (Value::List(elements), Type::Tuple(types)) if elements.len() == types.len() => {
            write_list(out, elements.iter().zip(types))?;
        }
        (Value::Map(entries), Type::Map(element)) => {
            out.push('{');
            for (i, (key, value)) in entries.iter().enumerate() {
                separate(out, i);
                quote(out, key);
                out.push(':');
                write(out, value, element).map_err(|error| error.under(Step::Key(key.clone())))?;
            }
            out.push('}');
        }
        (Value::Map(entries), Type::Object(attributes)) => {
            if let Some(name) = entries.keys().find(|name| !attributes.contains_key(*name)) {
                return Err(ValueProblem::UnknownAttribute.here().under(Step::Attribute(name.clone())));
            }
            out.push('{');
            for (i, (name, ty)) in attributes.iter().enumerate() {
                separate(out, i);
                quote(out, name);
                out.push(':');
                write(out, entries.get(name).unwrap_or(&Value::Null), ty)
                    .map_err(|error| error.under(Step::Attribute(name.clone())))?;
            }
            out.push('}');
        }
        (value, ty) => return Err(ValueProblem::mismatch(ty, msgpack::kind(value))),
    }
    Ok(())
}

fn write_list<'a>(
    out: &mut String,
    elements: impl Iterator<Item = (&'a Value, &'a Type)>,
) -> Result<(), ValueError> {
    out.push('[');
    for (i, (value, ty)) in elements.enumerate() {
        separate(out, i);
        write(out, value, ty).map_err(|error| error.under(nth(i)))?;
    }
    out.push(']');
    Ok(())
}

fn separate(out: &mut String, index: usize) {
    if index > 0 {
        out.push(',');
    }
}

fn quote(out: &mut String, text: &str) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

fn found(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "a map or object",
        Some(b'[') => "a list",
        Some(b't' | b'f') => "a bool",
        _ => "a number",
    }
}
