//! The `timeouts` block.

use std::time::Duration;

use serde_json::{Map, Value as Json};
use tfplugin6::{Attribute, AttributePath, Diagnostic, NestedBlock, Value};

/// The annotation that stores the block on the object, so that an import finds it.
pub const ANNOTATION: &str = "terraform.berth.dev/timeouts";
/// The default timeout of a read, in seconds.
const READ: u64 = 60;
/// The longest timeout accepted, in seconds: a day.
const LONGEST: u64 = 86_400;
/// The operations, in the order of [`crate::kind::KindInfo::timeouts`].
pub const OPERATIONS: [&str; 4] = ["create", "update", "delete", "read"];

/// An operation with a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Read,
}

/// The block in the Terraform schema.
#[must_use]
pub fn block(defaults: [u64; 3]) -> NestedBlock {
    let attributes = OPERATIONS.iter().enumerate().map(|(i, name)| {
        let default = text(defaults.get(i).copied().unwrap_or(READ));
        let text =
            format!("Timeout of the {name} operation, such as `30s`, `10m` or `1h`. Default `{default}`.");
        Attribute::string(*name).optional().description(text)
    });
    NestedBlock::single("timeouts", attributes.collect())
}

/// The timeout of an operation.
#[must_use]
pub fn limit(operation: Operation, state: &Value, defaults: [u64; 3]) -> Duration {
    let index = operation as usize;
    let written =
        OPERATIONS.get(index).and_then(|name| state.get("timeouts").get(name).as_str()).and_then(parse);
    Duration::from_secs(written.unwrap_or_else(|| defaults.get(index).copied().unwrap_or(READ)))
}

/// The problems with the block.
#[must_use]
pub fn check(config: &Value) -> Vec<Diagnostic> {
    let wrong = |name: &&str| {
        let text = config.get("timeouts").get(name).as_str()?;
        if parse(text).is_some() {
            return None;
        }
        let detail = format!(
            "{text:?} is not a duration between 1s and 24h: write for example \"30s\", \"10m\" or \"1h30m\"."
        );
        Some(
            Diagnostic::error("Invalid timeout", detail).at(AttributePath::root("timeouts").attribute(*name)),
        )
    };
    OPERATIONS.iter().filter_map(wrong).collect()
}

/// The block as the annotation's value.
#[must_use]
pub fn to_annotation(block: &Value) -> Option<String> {
    let entries =
        OPERATIONS.iter().filter_map(|&name| Some((name.to_owned(), Json::from(block.get(name).as_str()?))));
    let entries: Map<String, Json> = entries.collect();
    (!block.is_null()).then(|| Json::Object(entries).to_string())
}

/// The block from the annotation.
#[must_use]
pub fn from_annotation(object: &Json) -> Value {
    let text =
        object.pointer("/metadata/annotations").and_then(|all| all.get(ANNOTATION)).and_then(Json::as_str);
    let Some(Ok(Json::Object(entries))) = text.map(serde_json::from_str) else { return Value::Null };
    Value::object(OPERATIONS.map(|name| (name, Value::from(entries.get(name).and_then(Json::as_str)))))
}

/// Parses `1h30m` into seconds.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let mut seconds = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let count: u64 = rest.get(..digits)?.parse().ok()?;
        let unit = match rest.as_bytes().get(digits)? {
            b'h' => 3600,
            b'm' => 60,
            b's' => 1,
            _ => return None,
        };
        seconds = seconds.checked_add(count.checked_mul(unit)?)?;
        rest = rest.get(digits + 1..)?;
    }
    (1..=LONGEST).contains(&seconds).then_some(seconds)
}

/// Formats seconds for people.
#[must_use]
pub fn text(seconds: u64) -> String {
    if seconds.is_multiple_of(60) { format!("{}m", seconds / 60) } else { format!("{seconds}s") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(parse("1h30m"), Some(5400));
        assert_eq!(parse("45s"), Some(45));
        for bad in ["", "0s", "10", "m", "1d", "-1m", "25h", "99999999999999999999s", "10 m", "ä"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_block_survives_on_the_object() {
        let block = Value::object([("create", Value::from("10m")), ("update", Value::Null)]);
        let annotation = to_annotation(&block).expect("there is a block");
        let object = json!({"metadata": {"annotations": {ANNOTATION: annotation}}});
        assert_eq!(from_annotation(&object).get("create").as_str(), Some("10m"));
        assert_eq!(to_annotation(&Value::Null), None);
        assert_eq!(from_annotation(&json!({"metadata": {}})), Value::Null);
    }

    #[test]
    fn an_operation_without_a_timeout_has_a_default() {
        let state = Value::object([("timeouts", Value::object([("create", Value::from("90s"))]))]);
        assert_eq!(limit(Operation::Create, &state, [1, 2, 3]), Duration::from_secs(90));
        assert_eq!(limit(Operation::Delete, &state, [1, 2, 3]), Duration::from_secs(3));
        assert_eq!(limit(Operation::Read, &Value::Null, [1, 2, 3]), Duration::from_secs(READ));
    }
}
