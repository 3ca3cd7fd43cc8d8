//! The members of a custom resource that its scale subresource shows: every write is checked for them.

use serde_json::Value;

use crate::meta::invalid;
use crate::schema::FieldError;
use crate::schema::message::{go_type, go_value};

/// What is wrong with the replicas and the selector that `scale` (`subresources.scale` of the definition) points to.
/// `of_spec` is false for writes that cannot change them there.
pub(crate) fn validate(scale: &Value, object: &Value, of_spec: bool) -> Vec<FieldError> {
    let path = |member: &str| scale[member].as_str().filter(|path| !path.is_empty());
    let spec = path("specReplicasPath").filter(|_| of_spec);
    let counts = [spec, path("statusReplicasPath")].into_iter().flatten();
    let counts = counts.filter_map(|path| count(object, path).err());
    let selector = path("labelSelectorPath").and_then(|path| selector(object, path).err());
    counts.chain(selector).collect()
}

fn count(object: &Value, path: &str) -> Result<(), FieldError> {
    let found = nested(object, path).map_err(|why| invalid(path, &0.into(), &why))?;
    let Some(value) = found else { return Ok(()) };
    let Some(count) = value.as_i64() else {
        return Err(invalid(path, &0.into(), &unlike(path, value, "int64")));
    };
    if count < 0 {
        return Err(invalid(path, value, "should be a non-negative integer"));
    }
    if count > i64::from(i32::MAX) {
        return Err(invalid(path, value, &format!("should be less than or equal to {}", i32::MAX)));
    }
    Ok(())
}

fn selector(object: &Value, path: &str) -> Result<(), FieldError> {
    match nested(object, path).map_err(|why| invalid(path, &"".into(), &why))? {
        Some(value) if !value.is_string() => Err(invalid(path, &"".into(), &unlike(path, value, "string"))),
        _ => Ok(()),
    }
}

/// The value at a dotted path.
fn nested<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut at = object;
    let mut walked = String::new();
    for name in path.trim_start_matches('.').split('.') {
        walked.push('.');
        walked.push_str(name);
        match at {
            Value::Null => return Ok(None),
            Value::Object(members) => match members.get(name) {
                Some(value) => at = value,
                None => return Ok(None),
            },
            other => return Err(unlike(&walked, other, "map[string]interface{}")),
        }
    }
    Ok(Some(at))
}

fn unlike(path: &str, value: &Value, expected: &str) -> String {
    format!(
        "{path} accessor error: {} is of the type {}, expected {expected}",
        go_value(value),
        go_type(value)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replicas_are_whole_numbers_and_the_selector_a_text() {
        let scale = json!({"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.s"});
        let told = |object: Value| -> Vec<String> {
            validate(&scale, &object, true).iter().map(ToString::to_string).collect()
        };
        assert!(told(json!({"spec": {"n": 3}, "status": {"n": 0, "s": "a=b"}})).is_empty());
        assert!(told(json!({"spec": {}, "status": null})).is_empty());
        assert_eq!(
            told(json!({"spec": {"n": 2.0}})),
            [".spec.n: Invalid value: 0: .spec.n accessor error: 2 is of the type float64, expected int64"]
        );
        assert_eq!(
            told(json!({"spec": {"n": -1}, "status": {"s": 1}})),
            [
                ".spec.n: Invalid value: -1: should be a non-negative integer",
                ".status.s: Invalid value: \"\": .status.s accessor error: 1 is of the type int64, expected string"
            ]
        );
        assert_eq!(
            told(json!({"spec": [1, "a"]})),
            [
                ".spec.n: Invalid value: 0: .spec.n accessor error: [1 a] is of the type []interface {}, expected \
              map[string]interface{}"
            ]
        );
        assert_eq!(
            told(json!({"spec": {"n": 2_147_483_648_i64}})),
            [".spec.n: Invalid value: 2147483648: should be less than or equal to 2147483647"]
        );
        assert!(validate(&scale, &json!({"spec": {"n": "x"}}), false).is_empty());
    }
}
