//! What makes an Event unfit to be stored. Those that say when they happened (`eventTime`) must say more; who writes through
//! `events.k8s.io` must say when.

use serde_json::Value;

use crate::meta::names::{dns_subdomain, qualified_name};
use crate::meta::{field_error, invalid, required};
use crate::schema::{ErrorKind, FieldError};

/// Letters of the members that are no free text.
const MAX_WORD: usize = 128;
const MAX_NOTE: usize = 1024;

/// `object` has the names of members of the core group. `strict`: the request came through `events.k8s.io`, with what was
/// stored before.
pub(super) fn validate(object: &Value, strict: Option<Option<&Value>>, errors: &mut Vec<FieldError>) {
    legacy(object, strict.is_some(), errors);
    match strict {
        None => {}
        Some(None) => created(object, errors),
        Some(Some(old)) => changed(object, old, errors),
    }
}

fn text<'a>(object: &'a Value, member: &str) -> &'a str {
    object[member].as_str().unwrap_or_default()
}

fn without_value(field: &str, why: &str) -> FieldError {
    invalid(field, &"".into(), why)
}

fn legacy(object: &Value, strict: bool, errors: &mut Vec<FieldError>) {
    let involved = text(&object["involvedObject"], "namespace");
    let namespace = text(&object["metadata"], "namespace");
    let timed = !object["eventTime"].is_null();
    let misplaced = match (timed, involved) {
        // Events about cluster-scoped objects live in `default`.
        (false, "") => namespace != "default",
        (false, involved) => namespace != involved,
        (true, involved) => involved.is_empty() && !matches!(namespace, "default" | "kube-system"),
    };
    if misplaced {
        let why = "does not match event.namespace";
        errors.push(invalid("involvedObject.namespace", &involved.into(), why));
    }
    if timed {
        words(object, strict, errors);
    }
    let problems = dns_subdomain(namespace);
    errors.extend(problems.iter().map(|why| invalid("namespace", &namespace.into(), why)));
}

fn words(object: &Value, strict: bool, errors: &mut Vec<FieldError>) {
    let controller = text(object, "reportingComponent");
    let field = if strict { "reportingController" } else { "reportingComponent" };
    if controller.is_empty() {
        errors.push(required(field, ""));
    }
    let problems = qualified_name(controller);
    errors.extend(problems.iter().map(|why| invalid(field, &controller.into(), why)));
    for member in ["reportingInstance", "action", "reason"] {
        match text(object, member).len() {
            0 => errors.push(required(member, "")),
            1..=MAX_WORD => {}
            _ => errors.push(without_value(member, &format!("can have at most {MAX_WORD} characters"))),
        }
    }
    if text(object, "message").len() > MAX_NOTE {
        errors.push(without_value("message", &format!("can have at most {MAX_NOTE} characters")));
    }
}

fn series(object: &Value, errors: &mut Vec<FieldError>) {
    let series = &object["series"];
    if series.is_null() {
        return;
    }
    if series["count"].as_i64().unwrap_or_default() < 2 {
        errors.push(without_value("series.count", "should be at least 2"));
    }
    if series["lastObservedTime"].is_null() {
        errors.push(required("series.lastObservedTime", ""));
    }
}

fn created(object: &Value, errors: &mut Vec<FieldError>) {
    series(object, errors);
    if object["eventTime"].is_null() {
        errors.push(required("eventTime", ""));
    }
    let kind = text(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(without_value("type", &format!("has invalid value: {kind}")));
    }
    let source = &object["source"];
    let unset = [
        ("firstTimestamp", object["firstTimestamp"].is_null()),
        ("lastTimestamp", object["lastTimestamp"].is_null()),
        ("count", object["count"].as_i64().unwrap_or_default() == 0),
        ("source", text(source, "component").is_empty() && text(source, "host").is_empty()),
    ];
    let set = unset.into_iter().filter(|(_, unset)| !unset);
    errors.extend(set.map(|(field, _)| without_value(field, "needs to be unset")));
}

/// Only the series of an Event goes on.
fn changed(object: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if object["series"] != old["series"] {
        series(object, errors);
    }
    let kept = [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingComponent"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (field, member) in kept {
        if object[member] != old[member] {
            let message = format!("Invalid value: {}: field is immutable", object[member]);
            errors.push(field_error(ErrorKind::Invalid, field, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(object: &Value, strict: Option<Option<&Value>>) -> Vec<String> {
        let mut errors = Vec::new();
        validate(object, strict, &mut errors);
        errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
    }

    #[test]
    fn an_event_is_where_the_object_it_is_about_is() {
        let event = |namespace: &str, of: &str| {
            let object = json!({"metadata": {"namespace": namespace}, "involvedObject": {"namespace": of}});
            told(&object, None)
        };
        assert!(event("a", "a").is_empty() && event("default", "").is_empty());
        assert_eq!(
            event("a", "b"),
            ["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"]
        );
        assert_eq!(event("a", "").len(), 1);
    }

    fn good() -> Value {
        json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}, "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingComponent": "x.y/z", "reportingInstance": "i", "action": "Act", "reason": "Why", "type": "Normal"})
    }

    #[test]
    fn who_writes_through_the_new_group_says_everything() {
        assert!(told(&good(), Some(None)).is_empty());
        let bare = json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}, "count": 1});
        assert_eq!(
            told(&bare, Some(None)),
            [
                "eventTime: Required value",
                "type: Invalid value: \"\": has invalid value: ",
                "count: Invalid value: \"\": needs to be unset",
            ]
        );
        assert!(told(&bare, None).is_empty(), "through the core group it need not");
        let timed =
            json!({"metadata": {"namespace": "a"}, "eventTime": "t", "involvedObject": {"namespace": "a"}});
        let fields: Vec<String> =
            told(&timed, None).iter().filter_map(|one| one.split(':').next().map(str::to_owned)).collect();
        let part = "reportingComponent";
        assert_eq!(fields, [part, part, part, "reportingInstance", "action", "reason"]);
    }

    #[test]
    fn only_the_series_goes_on() {
        let mut more = good();
        more["series"] = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"});
        assert!(told(&more, Some(Some(&good()))).is_empty());
        more["reason"] = "Other".into();
        more["series"]["count"] = 1.into();
        assert_eq!(
            told(&more, Some(Some(&good()))),
            [
                "series.count: Invalid value: \"\": should be at least 2",
                "reason: Invalid value: \"Other\": field is immutable"
            ]
        );
    }
}
