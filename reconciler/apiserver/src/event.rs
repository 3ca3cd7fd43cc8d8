//! The two forms of an Event: the core group's, which is stored, and `events.k8s.io/v1`.

use serde_json::{Map, Value};

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
}
