//! Validation of Events. Writes through `events.k8s.io` must say when, by what and why.

use berth_apimachinery::meta::{invalid, required};
use berth_apimachinery::schema::FieldError;
use serde_json::Value;

/// The maximum length of fields that are not free text.
const MAX_WORD: usize = 128;
const MAX_NOTE: usize = 1024;

fn text<'a>(object: &'a Value, member: &str) -> &'a str {
    object[member].as_str().unwrap_or_default()
}

/// Validates an Event with the field names of the core group. `strict`: the request came through
/// `events.k8s.io`.
pub(super) fn validate(object: &Value, strict: bool, errors: &mut Vec<FieldError>) {
    let involved = text(&object["involvedObject"], "namespace");
    let namespace = text(&object["metadata"], "namespace");
    // Events about cluster-scoped objects belong in `default`, those of the server itself in `kube-system`.
    let is_there = match involved {
        "" => matches!(namespace, "default" | "kube-system"),
        involved => namespace == involved,
    };
    if !is_there {
        let why = "does not match event.namespace";
        errors.push(invalid("involvedObject.namespace", &involved.into(), why));
    }
    if text(object, "message").len() > MAX_NOTE {
        errors.push(invalid("message", &"".into(), &format!("can have at most {MAX_NOTE} characters")));
    }
    if !strict {
        return;
    }
    if object["eventTime"].is_null() {
        errors.push(required("eventTime", ""));
    }
    if !matches!(text(object, "type"), "Normal" | "Warning") {
        errors.push(invalid("type", &object["type"], "must be Normal or Warning"));
    }
    for (field, member) in [
        ("reportingController", "reportingComponent"),
        ("reportingInstance", "reportingInstance"),
        ("action", "action"),
        ("reason", "reason"),
    ] {
        match text(object, member).len() {
            0 => errors.push(required(field, "")),
            1..=MAX_WORD => {}
            _ => {
                errors.push(invalid(field, &"".into(), &format!("can have at most {MAX_WORD} characters")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reported(object: &Value, strict: bool) -> Vec<String> {
        let mut errors = Vec::new();
        validate(object, strict, &mut errors);
        errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
    }

    #[test]
    fn an_event_is_in_the_namespace_of_its_object() {
        let event = |namespace: &str, of: &str| {
            let object = json!({"metadata": {"namespace": namespace}, "involvedObject": {"namespace": of}});
            reported(&object, false)
        };
        assert!(event("a", "a").is_empty() && event("default", "").is_empty());
        assert_eq!(
            event("a", "b"),
            ["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"]
        );
        assert_eq!(event("a", "").len(), 1);
    }

    #[test]
    fn an_event_of_the_new_group_says_when_by_what_and_why() {
        let bare = json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}});
        assert!(reported(&bare, false).is_empty(), "through the core group it need not");
        assert_eq!(reported(&bare, true).len(), 6);
        let mut whole = json!({"eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "x.y/z",
            "reportingInstance": "i", "action": "Act", "reason": "Why", "type": "Normal"});
        whole.as_object_mut().unwrap().extend(bare.as_object().unwrap().clone());
        assert!(reported(&whole, true).is_empty());
        whole["reason"] = "x".repeat(MAX_WORD + 1).into();
        assert_eq!(reported(&whole, true).len(), 1);
    }
}
