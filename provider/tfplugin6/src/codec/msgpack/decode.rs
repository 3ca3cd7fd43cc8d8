//! Decodes bytes to a value.

use std::collections::BTreeMap;

use rmp::{Marker, decode as mp};

use super::{EXT_REFINED, MAX_REFINEMENT, refinement};
use crate::{
    codec::{ValueError, ValueProblem, nth},
    number::{Number, NumberError},
    path::Step,
    ty::Type,
    value::{Refinement, Value},
};

/// Decodes a value of a type; trailing bytes are an error.
pub(crate) fn decode(bytes: &[u8], ty: &Type) -> Result<Value, ValueError> {
    let mut reader = Reader { rest: bytes, typed: false };
    let value = read(&mut reader, ty)?;
    if reader.rest.is_empty() { Ok(value) } else { Err(ValueProblem::malformed("bytes after the value")) }
}

/// The unread bytes.
struct Reader<'a> {
    rest: &'a [u8],
    /// Whether the reader is within a value that carries its own type. An `any` left in that type has no value: otherwise the
    /// encoder would have sent its type. So carried types do not nest, and the depth is bounded by one type of the schema and
    /// one carried type.
    typed: bool,
}

fn read(rd: &mut Reader<'_>, ty: &Type) -> Result<Value, ValueError> {
    match peek(rd)? {
        Marker::Null => {
            skip_marker(rd);
            return Ok(Value::Null);
        }
        marker if is_extension(marker) => return read_unknown(rd),
        _ => {}
    }
    match ty {
        Type::Dynamic => read_dynamic(rd),
        Type::Bool => match marker(rd)? {
            Marker::True => Ok(Value::Bool(true)),
            Marker::False => Ok(Value::Bool(false)),
            other => Err(mismatch(ty, other)),
        },
        Type::Number => read_number(rd).map(Value::Number),
        Type::String => read_str(rd).map(Value::String),
        Type::List(element) | Type::Set(element) => {
            let length = array_len(rd, ty)?;
            // Not `with_capacity(length)`: the length is untrusted.
            let mut elements = Vec::new();
            for i in 0..length {
                elements.push(read(rd, element).map_err(|error| error.under(nth(i)))?);
            }
            Ok(Value::List(elements))
        }
        Type::Tuple(types) => {
            let length = array_len(rd, ty)?;
            if length != types.len() {
                let expected = format!("a tuple of {}", types.len());
                return Err(ValueProblem::mismatch(expected, format!("one of {length}")));
            }
            let elements = types.iter().enumerate();
            let elements = elements.map(|(i, ty)| read(rd, ty).map_err(|error| error.under(nth(i))));
            Ok(Value::List(elements.collect::<Result<_, _>>()?))
        }
        Type::Map(element) => {
            let mut entries = BTreeMap::new();
            for _ in 0..map_len(rd, ty)? {
                let key = read_str(rd)?;
                let value = read(rd, element).map_err(|error| error.under(Step::Key(key.clone())))?;
                entries.insert(key, value);
            }
            Ok(Value::Map(entries))
        }
        Type::Object(attributes) => read_object(rd, ty, attributes),
    }
}

fn read_object(
    rd: &mut Reader<'_>,
    ty: &Type,
    attributes: &BTreeMap<String, Type>,
) -> Result<Value, ValueError> {
    let mut entries = BTreeMap::new();
    for _ in 0..map_len(rd, ty)? {
        let name = read_str(rd)?;
        let Some(ty) = attributes.get(&name) else {
            return Err(ValueProblem::UnknownAttribute.here().under(Step::Attribute(name)));
        };
        let value = read(rd, ty).map_err(|error| error.under(Step::Attribute(name.clone())))?;
        entries.insert(name, value);
    }
    for name in attributes.keys() {
        if !entries.contains_key(name) {
            entries.insert(name.clone(), Value::Null);
        }
    }
    Ok(Value::Map(entries))
}

/// `[type as JSON, value]`
fn read_dynamic(rd: &mut Reader<'_>) -> Result<Value, ValueError> {
    if rd.typed {
        return Err(ValueProblem::malformed("a value without its type"));
    }
    if array_len(rd, &Type::Dynamic)? != 2 {
        return Err(ValueProblem::malformed("a value of any type is a type and a value"));
    }
    let json = match peek(rd)? {
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
            let length = mp::read_bin_len(&mut rd.rest).map_err(ValueProblem::malformed)?;
            String::from_utf8(take(rd, length as usize)?.to_vec()).map_err(ValueProblem::malformed)?
        }
        _ => read_str(rd)?,
    };
    let ty = json.parse::<Type>().map_err(ValueProblem::malformed)?;
    rd.typed = true;
    let value = read(rd, &ty);
    rd.typed = false;
    let value = value?;
    Ok(Value::Dynamic(Box::new((ty, value))))
}

fn read_number(rd: &mut Reader<'_>) -> Result<Number, ValueError> {
    match peek(rd)? {
        Marker::F32 => float(f64::from(mp::read_f32(&mut rd.rest).map_err(ValueProblem::malformed)?)),
        Marker::F64 => float(mp::read_f64(&mut rd.rest).map_err(ValueProblem::malformed)?),
        Marker::U64 => {
            mp::read_int::<u64, _>(&mut rd.rest).map(Number::from).map_err(ValueProblem::malformed)
        }
        Marker::FixPos(_) | Marker::FixNeg(_) | Marker::U8 | Marker::U16 | Marker::U32 => int(rd),
        Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => int(rd),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
            read_str(rd)?.parse().map_err(|error: NumberError| number_problem(error))
        }
        other => Err(mismatch(&Type::Number, other)),
    }
}

fn int(rd: &mut Reader<'_>) -> Result<Number, ValueError> {
    mp::read_int::<i64, _>(&mut rd.rest).map(Number::from).map_err(ValueProblem::malformed)
}

fn float(float: f64) -> Result<Number, ValueError> {
    Number::exactly(float).ok_or_else(|| number_problem(format!("{float} is not a finite number")))
}

fn number_problem(what: impl ToString) -> ValueError {
    ValueProblem::Number(what.to_string()).here()
}

fn read_str(rd: &mut Reader<'_>) -> Result<String, ValueError> {
    let length = match peek(rd)? {
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
            mp::read_str_len(&mut rd.rest).map_err(ValueProblem::malformed)?
        }
        other => return Err(mismatch(&Type::String, other)),
    };
    String::from_utf8(take(rd, length as usize)?.to_vec()).map_err(ValueProblem::malformed)
}

fn read_unknown(rd: &mut Reader<'_>) -> Result<Value, ValueError> {
    let meta = mp::read_ext_meta(&mut rd.rest).map_err(ValueProblem::malformed)?;
    let body = take(rd, meta.size as usize)?;
    // cty's rule: an unknown extension type is an unknown value without constraints.
    if meta.typeid != EXT_REFINED {
        return Ok(Value::Unknown(None));
    }
    if body.len() > MAX_REFINEMENT {
        return Err(ValueProblem::malformed("oversize refinement of an unknown value"));
    }
    let known = read_refinement(&mut Reader { rest: body, typed: true })?;
    Ok(Value::Unknown((known != Refinement::default()).then(|| Box::new(known))))
}

fn read_refinement(rd: &mut Reader<'_>) -> Result<Refinement, ValueError> {
    let mut known = Refinement::default();
    for _ in 0..mp::read_map_len(&mut rd.rest).map_err(ValueProblem::malformed)? {
        match mp::read_int::<u64, _>(&mut rd.rest).map_err(ValueProblem::malformed)? {
            refinement::NULLNESS => {
                known.not_null = !mp::read_bool(&mut rd.rest).map_err(ValueProblem::malformed)?
            }
            refinement::PREFIX => known.prefix = Some(read_str(rd)?),
            refinement::NUMBER_MIN => known.number_min = Some(read_bound(rd)?),
            refinement::NUMBER_MAX => known.number_max = Some(read_bound(rd)?),
            refinement::LENGTH_MIN => known.length_min = Some(read_length(rd)?),
            refinement::LENGTH_MAX => known.length_max = Some(read_length(rd)?),
            // A key of a later cty version. This reader cannot skip a value of unknown shape, and fewer
            // constraints are always correct.
            _ => break,
        }
    }
    Ok(known)
}

fn read_bound(rd: &mut Reader<'_>) -> Result<(Number, bool), ValueError> {
    if mp::read_array_len(&mut rd.rest).map_err(ValueProblem::malformed)? != 2 {
        return Err(ValueProblem::malformed("a bound is a number and a bool"));
    }
    Ok((read_number(rd)?, mp::read_bool(&mut rd.rest).map_err(ValueProblem::malformed)?))
}

fn read_length(rd: &mut Reader<'_>) -> Result<u64, ValueError> {
    mp::read_int(&mut rd.rest).map_err(ValueProblem::malformed)
}

fn array_len(rd: &mut Reader<'_>, ty: &Type) -> Result<usize, ValueError> {
    match peek(rd)? {
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
            mp::read_array_len(&mut rd.rest).map(|length| length as usize).map_err(ValueProblem::malformed)
        }
        other => Err(mismatch(ty, other)),
    }
}

fn map_len(rd: &mut Reader<'_>, ty: &Type) -> Result<usize, ValueError> {
    match peek(rd)? {
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
            mp::read_map_len(&mut rd.rest).map(|length| length as usize).map_err(ValueProblem::malformed)
        }
        other => Err(mismatch(ty, other)),
    }
}

fn peek(rd: &Reader<'_>) -> Result<Marker, ValueError> {
    rd.rest
        .first()
        .map(|byte| Marker::from_u8(*byte))
        .ok_or_else(|| ValueProblem::malformed("ends too early"))
}

fn marker(rd: &mut Reader<'_>) -> Result<Marker, ValueError> {
    let marker = peek(rd)?;
    skip_marker(rd);
    Ok(marker)
}

fn skip_marker(rd: &mut Reader<'_>) {
    rd.rest = rd.rest.get(1..).unwrap_or_default();
}

fn take<'a>(rd: &mut Reader<'a>, length: usize) -> Result<&'a [u8], ValueError> {
    let (taken, rest) =
        rd.rest.split_at_checked(length).ok_or_else(|| ValueProblem::malformed("ends too early"))?;
    rd.rest = rest;
    Ok(taken)
}

const fn is_extension(marker: Marker) -> bool {
    matches!(
        marker,
        Marker::FixExt1
            | Marker::FixExt2
            | Marker::FixExt4
            | Marker::FixExt8
            | Marker::FixExt16
            | Marker::Ext8
            | Marker::Ext16
            | Marker::Ext32
    )
}

fn mismatch(expected: &Type, found: Marker) -> ValueError {
    let found = match found {
        Marker::True | Marker::False => "a bool",
        Marker::FixPos(_) | Marker::FixNeg(_) | Marker::U8 | Marker::U16 | Marker::U32 | Marker::U64 => {
            "a number"
        }
        Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 | Marker::F32 | Marker::F64 => "a number",
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => "a string",
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => "a list",
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => "a map or object",
        _ => "bytes",
    };
    ValueProblem::mismatch(expected, found)
}
