//! The two forms of an Event: the core group's, which is stored, and `events.k8s.io/v1`.

use serde_json::{Map, Value, json};

/// The field names: core, then `events.k8s.io`.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("source", "deprecatedSource"),
    ("reportingComponent", "reportingController"),
];

/// Fields of `events.k8s.io` that are omitted when empty.
const WHO_REPORTS: [&str; 2] = ["reportingController", "reportingInstance"];

fn rename(object: &mut Value, api_version: &str, name: impl Fn(&str) -> Option<&'static str>) {
    let Some(members) = object.as_object_mut() else { return };
    let renamed: Map<String, Value> = std::mem::take(members)
        .into_iter()
        .map(|(member, value)| (name(&member).map_or(member, str::to_owned), value))
        .collect();
    *members = renamed;
    members.insert("apiVersion".into(), api_version.into());
}

pub(crate) fn to_events_group(object: &mut Value) {
    rename(object, "events.k8s.io/v1", |name| {
        RENAMED.iter().find(|(core, _)| *core == name).map(|(_, new)| *new)
    });
    // In `events.k8s.io` these are omitted when empty.
    if let Some(members) = object.as_object_mut() {
        let kept = |name: &str, value: &Value| !WHO_REPORTS.contains(&name) || value != "";
        members.retain(|name, value| kept(name, value));
    }
}

/// Returns the fields that an Event of the core group always has, even if empty.
pub(crate) fn blank() -> Value {
    json!({
        "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null, "eventTime": null,
        "reportingComponent": "", "reportingInstance": "",
    })
}

/// Adds the fields that are always present.
pub(crate) fn complete(object: &mut Value) {
    let (Some(members), Value::Object(blank)) = (object.as_object_mut(), blank()) else { return };
    for (name, nothing) in blank {
        members.entry(name).or_insert(nothing);
    }
}

pub(crate) fn to_core_group(object: &mut Value) {
    rename(object, "v1", |name| RENAMED.iter().find(|(_, new)| *new == name).map(|(core, _)| *core));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_survives_the_round_trip() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "a"}, "message": "m",
            "count": 2, "source": {"component": "c"}, "reportingComponent": "r", "reason": "R"});
        let mut object = core.clone();
        to_events_group(&mut object);
        assert_eq!(object["regarding"]["name"], "a");
        assert_eq!(object["note"], "m");
        assert!(object.get("message").is_none());
        to_core_group(&mut object);
        assert_eq!(object, core);
    }

    #[test]
    fn what_an_event_does_not_say_is_there_as_nothing() {
        let mut object = json!({"apiVersion": "v1", "reason": "R", "eventTime": "t"});
        complete(&mut object);
        assert_eq!(
            object,
            json!({"apiVersion": "v1", "reason": "R", "eventTime": "t", "involvedObject": {}, "source": {},
                "firstTimestamp": null, "lastTimestamp": null, "reportingComponent": "", "reportingInstance": ""})
        );
        to_events_group(&mut object);
        assert!(object.get("reportingController").is_none() && object["deprecatedFirstTimestamp"].is_null());
        assert_eq!(object["regarding"], json!({}));
    }
}
