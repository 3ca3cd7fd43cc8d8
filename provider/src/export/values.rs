//! Values of Terraform as HCL.

use berth_hcl::{Expression, key, quoted};
use tfplugin6::Value;

use crate::field::{Field, Shape};

/// The arguments that are set, in the order of the table. `keep` stores the text of a sensitive attribute elsewhere.
pub(super) fn object(
    fields: &[Field],
    value: &Value,
    keep: &mut dyn FnMut(&str, &str) -> Expression,
) -> Vec<(String, Expression)> {
    fields
        .iter()
        .filter(|field| !value.get(field.name).is_null())
        .map(|field| (field.name.to_owned(), expression(field, value.get(field.name), keep)))
        .collect()
}

fn expression(field: &Field, value: &Value, keep: &mut dyn FnMut(&str, &str) -> Expression) -> Expression {
    match (&field.shape, value.as_str()) {
        (_, Some(text)) if field.sensitive => keep(field.name, text),
        (Shape::Object(fields), _) => Expression::Object(object(fields, value, keep)),
        (Shape::Keyed(fields), _) => Expression::List(
            value
                .elements()
                .iter()
                .map(|element| Expression::Object(object(fields, element, keep)))
                .collect(),
        ),
        _ => plain(value),
    }
}

fn plain(value: &Value) -> Expression {
    match value {
        Value::Bool(value) => Expression::Raw(value.to_string()),
        Value::Number(number) => Expression::Raw(number.to_string()),
        Value::String(text) => Expression::Raw(quoted(text)),
        Value::List(elements) => Expression::List(elements.iter().map(plain).collect()),
        Value::Map(entries) => {
            Expression::Object(entries.iter().map(|(name, value)| (key(name), plain(value))).collect())
        }
        Value::Dynamic(inner) => plain(&inner.1),
        Value::Null | Value::Unknown(_) => Expression::Raw("null".to_owned()),
    }
}

/// The entries of a map that are texts.
pub(super) fn texts(map: &Value) -> Vec<(String, Expression)> {
    let entries = map.as_map().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((key(name), Expression::Raw(quoted(value.as_str()?))))).collect()
}
