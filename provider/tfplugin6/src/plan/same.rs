//! Equality by Terraform's rules.

use crate::{ty::Type, value::Value};

/// Whether two values of a type are equal: sets in any order, absent attributes as null.
///
/// Two unknown values count as equal here; their later values may differ.
#[must_use]
pub fn same(ty: &Type, a: &Value, b: &Value) -> bool {
    match (ty, a, b) {
        (Type::List(element), Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(element, a, b))
        }
        (Type::Tuple(types), Value::List(a), Value::List(b)) => {
            let pairs = a.iter().zip(b).zip(types);
            a.len() == b.len()
                && a.len() == types.len()
                && pairs.into_iter().all(|((a, b), ty)| same(ty, a, b))
        }
        (Type::Set(element), Value::List(a), Value::List(b)) => same_set(element, a, b),
        (Type::Map(element), Value::Map(a), Value::Map(b)) => {
            let equal = |(key, a)| b.get(key).is_some_and(|b| same(element, a, b));
            a.len() == b.len() && a.iter().all(equal)
        }
        (Type::Object(attributes), Value::Map(_), Value::Map(_)) => {
            attributes.iter().all(|(name, ty)| same(ty, a.get(name), b.get(name)))
        }
        _ => a == b || (a.is_null() && b.is_null()),
    }
}

fn same_set(element: &Type, a: &[Value], b: &[Value]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    // Terraform sends a set in an order that depends only on the elements: this is the usual case.
    if a.iter().zip(b).all(|(a, b)| same(element, a, b)) {
        return true;
    }
    let mut rest: Vec<&Value> = b.iter().collect();
    a.iter().all(|a| match rest.iter().position(|b| same(element, a, b)) {
        Some(place) => {
            rest.swap_remove(place);
            true
        }
        None => false,
    })
}
