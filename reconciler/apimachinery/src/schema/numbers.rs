//! Integral floats: Go writes `2.0` as `2`, so that a value that is stored and read again is an integer.

use serde_json::{Number, Value};

/// Converts all integral floats to integers.
pub fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(integer) = number.as_f64().and_then(whole) {
                *number = integer;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(members) => members.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

/// Returns the integer that a float becomes when it is written and read again.
pub fn whole(value: f64) -> Option<Number> {
    // Beyond this an integer has more digits than the float's precision.
    (value.fract() == 0.0 && value.abs() < 1e18).then(|| Number::from(value as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_floats_become_integers_and_others_stay() {
        let mut value = json!({"a": 2.0, "b": [1.5, -3.0, {"c": 1e20}], "d": "2.0"});
        whole_numbers(&mut value);
        assert_eq!(value.to_string(), r#"{"a":2,"b":[1.5,-3,{"c":1e+20}],"d":"2.0"}"#);
    }
}
