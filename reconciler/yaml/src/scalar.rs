//! Scalars: null, booleans, numbers and texts.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use granit_parser::{ScalarStyle, Tag};
use serde_json::{Number, Value};

/// The namespace of the tags that YAML defines, `!!binary` for example.
const YAML_TAGS: &str = "tag:yaml.org,2002:";

/// The value of a scalar.
pub(crate) fn value(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, &'static str> {
    let name = tag.and_then(|tag| tag.suffix_in_namespace(YAML_TAGS));
    match name.as_deref() {
        Some("null") => Ok(Value::Null),
        Some("str") => Ok(text.into()),
        Some("binary") => binary(&text).map(Value::String),
        // Such a tag also decides the type of a text in quotes.
        Some("bool" | "int" | "float") => Ok(plain(text)),
        _ if style == ScalarStyle::Plain => Ok(plain(text)),
        _ => Ok(text.into()),
    }
}

/// Whether a plain scalar is null.
pub(crate) fn is_null(text: &str) -> bool {
    text.is_empty() || text == "~" || text.eq_ignore_ascii_case("null")
}

fn plain(text: String) -> Value {
    if is_null(&text) {
        return Value::Null;
    }
    let number = || integer(&text).or_else(|| float(&text)).map(Value::Number);
    match boolean(&text).map(Value::Bool).or_else(number) {
        Some(value) => value,
        None => text.into(),
    }
}

fn boolean(text: &str) -> Option<bool> {
    let is_one_of = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is_one_of(["true", "yes", "y", "on"]) {
        return Some(true);
    }
    is_one_of(["false", "no", "n", "off"]).then_some(false)
}

/// An integer as in YAML 1.2, whose octal numbers begin with `0o`; its digits may be grouped with `_`, which is no first digit.
fn integer(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !unsigned.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let (radix, digits) = match unsigned.get(..2) {
        Some("0x" | "0X") => (16, &unsigned[2..]),
        Some("0o" | "0O") => (8, &unsigned[2..]),
        Some("0b" | "0B") => (2, &unsigned[2..]),
        _ => (10, unsigned),
    };
    let mut value = None;
    for digit in digits.chars().filter(|digit| *digit != '_') {
        let digit = u64::from(digit.to_digit(radix)?);
        value = Some(value.unwrap_or(0_u64).checked_mul(radix.into())?.checked_add(digit)?);
    }
    match text.starts_with('-') {
        true => Some(0_i64.checked_sub_unsigned(value?)?.into()),
        false => Some(value?.into()),
    }
}

/// A number with a fraction or an exponent. JSON has neither infinity nor NaN: they stay texts.
fn float(text: &str) -> Option<Number> {
    Number::from_f64(text.parse().ok()?)
}

/// The text that is encoded in base64.
fn binary(text: &str) -> Result<String, &'static str> {
    let text: String = text.split_ascii_whitespace().collect();
    let bytes = STANDARD.decode(text).map_err(|_| "a value with the tag !!binary is no base64")?;
    String::from_utf8(bytes).map_err(|_| "a value with the tag !!binary is no UTF-8 text")
}
