//! Encodes a value to bytes.

use rmp::encode as mp;

use super::{EXT_REFINED, EXT_UNKNOWN, MAX_REFINEMENT, refinement};
use crate::{
    codec::{ValueError, ValueProblem, nth},
    number::Number,
    path::Step,
    ty::Type,
    value::{Refinement, Value},
};

/// Encodes a value of a type. An absent attribute is encoded as null.
pub(crate) fn encode(value: &Value, ty: &Type) -> Result<Vec<u8>, ValueError> {
    let mut out = Vec::new();
    write(&mut out, value, ty)?;
    Ok(out)
}

fn write(out: &mut Vec<u8>, value: &Value, ty: &Type) -> Result<(), ValueError> {
    match (value, ty) {
        (Value::Dynamic(inner), Type::Dynamic) => return write_dynamic(out, &inner.0, &inner.1),
        // The schema defines the type, so the type that the value carries must be equal to it.
        (Value::Dynamic(inner), _) if inner.0 == *ty => return write(out, &inner.1, ty),
        (Value::Unknown(refinement), _) => return write_unknown(out, refinement.as_deref()),
        (Value::Null, _) => push(mp::write_nil(out))?,
        (Value::Bool(value), Type::Bool) => push(mp::write_bool(out, *value))?,
        (Value::Number(value), Type::Number) => write_number(out, value)?,
        (Value::String(value), Type::String) => push(mp::write_str(out, value))?,
        (Value::List(elements), Type::List(element) | Type::Set(element)) => {
            push(mp::write_array_len(out, length(elements.len())?))?;
            for (i, value) in elements.iter().enumerate() {
                write(out, value, element).map_err(|error| error.under(nth(i)))?;
            }
        }
        (Value::List(elements), Type::Tuple(types)) if elements.len() == types.len() => {
            push(mp::write_array_len(out, length(elements.len())?))?;
            for (i, (value, ty)) in elements.iter().zip(types).enumerate() {
                write(out, value, ty).map_err(|error| error.under(nth(i)))?;
            }
        }
        (Value::Map(entries), Type::Map(element)) => {
            push(mp::write_map_len(out, length(entries.len())?))?;
            for (key, value) in entries {
                push(mp::write_str(out, key))?;
                write(out, value, element).map_err(|error| error.under(Step::Key(key.clone())))?;
            }
        }
        (Value::Map(entries), Type::Object(attributes)) => {
            if let Some(name) = entries.keys().find(|name| !attributes.contains_key(*name)) {
                return Err(ValueProblem::UnknownAttribute.here().under(Step::Attribute(name.clone())));
            }
            push(mp::write_map_len(out, length(attributes.len())?))?;
            for (name, ty) in attributes {
                push(mp::write_str(out, name))?;
                write(out, entries.get(name).unwrap_or(&Value::Null), ty)
                    .map_err(|error| error.under(Step::Attribute(name.clone())))?;
            }
        }
        (value, Type::Dynamic) => return write_dynamic(out, &natural_type(value), value),
        (value, ty) => return Err(ValueProblem::mismatch(ty, kind(value))),
    }
    Ok(())
}

/// Writes a value with its type, where the schema has `any`.
fn write_dynamic(out: &mut Vec<u8>, ty: &Type, value: &Value) -> Result<(), ValueError> {
    if *ty == Type::Dynamic {
        // The type is unknown: only null and unknown values can be sent without one.
        return match value {
            Value::Null => push(mp::write_nil(out)),
            Value::Unknown(refinement) => write_unknown(out, refinement.as_deref()),
            value => write_dynamic(out, &natural_type(value), value),
        };
    }
    push(mp::write_array_len(out, 2))?;
    push(mp::write_bin(out, ty.to_json().to_string().as_bytes()))?;
    write(out, value, ty)
}

/// The type of a value without a declared type: Terraform's type of such a literal.
fn natural_type(value: &Value) -> Type {
    match value {
        Value::Null | Value::Unknown(_) => Type::Dynamic,
        Value::Bool(_) => Type::Bool,
        Value::Number(_) => Type::Number,
        Value::String(_) => Type::String,
        Value::List(elements) => Type::Tuple(elements.iter().map(natural_type).collect()),
        Value::Map(entries) => {
            Type::Object(entries.iter().map(|(name, value)| (name.clone(), natural_type(value))).collect())
        }
        Value::Dynamic(inner) => inner.0.clone(),
    }
}

/// Writes an integer or a float if the number is exactly that, else decimal digits.
fn write_number(out: &mut Vec<u8>, number: &Number) -> Result<(), ValueError> {
    if let Some(int) = number.as_i64() {
        push(mp::write_sint(out, int)).map(drop)
    } else if let Some(float) = number.exact_f64() {
        push(mp::write_f64(out, float))
    } else {
        push(mp::write_str(out, &number.to_string()))
    }
}

fn write_unknown(out: &mut Vec<u8>, refinement: Option<&Refinement>) -> Result<(), ValueError> {
    let body = refinement.map(refinement_body).transpose()?.unwrap_or_default();
    // A refinement that is too long is not an error: fewer constraints are always correct.
    if body.is_empty() || body.len() > MAX_REFINEMENT {
        push(mp::write_ext_meta(out, 1, EXT_UNKNOWN))?;
        out.push(0);
    } else {
        push(mp::write_ext_meta(out, length(body.len())?, EXT_REFINED))?;
        out.extend_from_slice(&body);
    }
    Ok(())
}

fn refinement_body(known: &Refinement) -> Result<Vec<u8>, ValueError> {
    let mut body = Vec::new();
    let mut count = 0;
    let mut key = |body: &mut Vec<u8>, key: u64| {
        count += 1;
        push(mp::write_uint(body, key)).map(drop)
    };
    if known.not_null {
        key(&mut body, refinement::NULLNESS)?;
        push(mp::write_bool(&mut body, false))?;
    }
    if let Some(prefix) = &known.prefix {
        key(&mut body, refinement::PREFIX)?;
        push(mp::write_str(&mut body, prefix))?;
    }
    let bounds = [(refinement::NUMBER_MIN, &known.number_min), (refinement::NUMBER_MAX, &known.number_max)];
    for (name, bound) in bounds {
        if let Some((number, inclusive)) = bound {
            key(&mut body, name)?;
            push(mp::write_array_len(&mut body, 2))?;
            write_number(&mut body, number)?;
            push(mp::write_bool(&mut body, *inclusive))?;
        }
    }
    let lengths = [(refinement::LENGTH_MIN, known.length_min), (refinement::LENGTH_MAX, known.length_max)];
    for (name, length) in lengths {
        if let Some(length) = length {
            key(&mut body, name)?;
            push(mp::write_uint(&mut body, length))?;
        }
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut out = Vec::new();
    push(mp::write_map_len(&mut out, count))?;
    out.append(&mut body);
    Ok(out)
}

/// The kind of a value, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Unknown(_) => "an unknown value",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::List(_) => "a list",
        Value::Map(_) => "a map or object",
        Value::Dynamic(_) => "a value of another type",
    }
}

fn length(length: usize) -> Result<u32, ValueError> {
    u32::try_from(length)
        .map_err(|_| ValueProblem::malformed("longer than the largest length in MessagePack"))
}

/// Converts the error of a write. Writing to memory cannot fail, but the signatures return an error.
fn push<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, ValueError> {
    result.map_err(ValueProblem::malformed)
}
