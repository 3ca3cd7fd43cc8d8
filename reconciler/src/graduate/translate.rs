//! Translates an object for the other control plane. Pure.
//!
//! Fields that the other control plane sets are left out (uid, revision, times, generation); references to them are
//! translated: uids in statuses and owners, the generation that conditions were computed from.

use std::collections::BTreeMap;

use berth_api::{
    MOVED_FROM_ANNOTATION,
    gates::DELETE_GATE,
    restrictions::{OFFERED_CLASSES_ANNOTATION, PRIVILEGED_FIELDS_LABEL},
};
use serde_json::{Map, Value, json};

use super::kinds::Object;

/// On an object that a host has realized: the uid under which the host knows it.
const FORMER_UID: &str = berth_api::FORMER_UID_ANNOTATION;

/// The number of former uids an object keeps.
const MAX_MOVES: usize = 8;

/// The marks by which a Namespace is restricted, and the field of its metadata that each is in.
const MARKS: [(&str, &str); 2] =
    [("annotations", OFFERED_CLASSES_ANNOTATION), ("labels", PRIVILEGED_FIELDS_LABEL)];

/// Former uids and the current uid of each.
pub(super) type Uids = BTreeMap<String, String>;

/// Whether a host has realized the object: the host knows its files and guests by the former uid.
fn is_real(object: &Object) -> bool {
    let status = &object.value["status"];
    let made = match object.kind.name {
        "VM" => !status["admittedEpoch"].is_null(),
        "Disk" => !status["size"].is_null(),
        "DiskSnapshot" => !status["takenAt"].is_null(),
        "Backup" => !status["backupID"].is_null(),
        _ => false,
    };
    made && status["binding"].is_object()
}

/// Returns the object to create: everything except status, owners and the fields that the control plane sets.
pub(super) fn created(object: &Object) -> Value {
    let meta = &object.value["metadata"];
    let mut annotations = meta["annotations"].as_object().cloned().unwrap_or_default();
    annotations.remove(FORMER_UID);
    if is_real(object) {
        annotations.insert(FORMER_UID.to_owned(), object.uid().into());
    }
    let known: Vec<&str> = std::iter::once(object.uid()).chain(object.before()).take(MAX_MOVES).collect();
    annotations.insert(MOVED_FROM_ANNOTATION.to_owned(), known.join(",").into());
    let mut metadata = Map::new();
    for field in ["name", "namespace", "labels", "finalizers"] {
        if let Some(value) = meta.get(field).filter(|value| !value.is_null()) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    metadata.insert("annotations".to_owned(), annotations.into());
    let mut copy = object.value.as_object().cloned().unwrap_or_default();
    copy.remove("status");
    copy.insert("metadata".to_owned(), metadata.into());
    Value::Object(copy)
}

/// Whether a Namespace restricts its VMs.
pub(super) fn is_restricted(namespace: &Object) -> bool {
    MARKS.iter().any(|(field, mark)| namespace.value["metadata"][field][mark].is_string())
}

/// Returns the metadata to merge into the target's Namespace, so that it restricts its VMs as the source's does; `None` if nothing is to
/// be done. A mark that the target has itself stays, unless that is an older state of the same site.
pub(super) fn restrictions(source: &Object, target: &Object, is_older: bool) -> Option<Value> {
    let mut metadata = json!({});
    for (field, mark) in MARKS {
        let [wanted, has] = [source, target].map(|object| &object.value["metadata"][field][mark]);
        if wanted != has && (is_older || has.is_null()) {
            metadata[field][mark] = wanted.clone();
        }
    }
    (metadata != json!({})).then_some(metadata)
}

/// Marks an object that the target had before and that is the same with its own uid too, so that it stays when the
/// copies are removed.
pub(super) fn take_over(wanted: &mut Value, uid: &str) {
    let annotation = &mut wanted["metadata"]["annotations"][MOVED_FROM_ANNOTATION];
    let before = annotation.as_str().unwrap_or_default();
    if !before.split(',').any(|before| before == uid) {
        *annotation = format!("{before},{uid}").into();
    }
}

/// Returns the existing object corrected to what [`created`] returns; `None` if it is so already.
pub(super) fn corrected(wanted: &Value, found: &Value) -> Option<Value> {
    let mut corrected = found.clone();
    for (field, value) in wanted.as_object().into_iter().flatten().filter(|(field, _)| *field != "metadata") {
        corrected[field] = value.clone();
    }
    for field in ["labels", "annotations", "finalizers"] {
        match wanted["metadata"].get(field) {
            Some(value) => corrected["metadata"][field] = value.clone(),
            None => {
                if let Some(metadata) = corrected["metadata"].as_object_mut() {
                    metadata.remove(field);
                }
            }
        }
    }
    // Values that the other control plane defaulted are not a difference.
    (corrected != *found).then_some(corrected)
}

/// Returns the status to write: with the uids and the generation of the other control plane.
pub(super) fn status(object: &Object, uids: &Uids, generation: i64) -> Option<Value> {
    let mut status = object.value.get("status").filter(|status| !status.is_null())?.clone();
    if object.kind.name == "Host"
        && let Some(status) = status.as_object_mut()
    {
        // Only the host's agent may report its inventory there: until then nothing is placed.
        status.remove("inventory");
        status.remove("orphans");
    }
    let before = object.value["metadata"]["generation"].as_i64().unwrap_or(0);
    rewrite(&mut status, uids, &|seen| match seen {
        seen if seen == before => generation,
        seen => seen.min(generation - 1),
    });
    Some(status)
}

fn rewrite(value: &mut Value, uids: &Uids, generation: &dyn Fn(i64) -> i64) {
    match value {
        Value::String(text) => {
            if let Some(new) = uids.get(text.as_str()) {
                *text = new.clone();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, uids, generation)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_i64().filter(|_| name == "observedGeneration") {
                    Some(seen) => *value = generation(seen).into(),
                    None => rewrite(value, uids, generation),
                }
            }
        }
        _ => {}
    }
}

/// Returns the owners that were copied too.
pub(super) fn owners(object: &Object, uids: &Uids) -> Value {
    let owners = object.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let known = owners.filter_map(|owner| {
        let mut owner = owner.clone();
        owner["uid"] = uids.get(owner["uid"].as_str()?)?.clone().into();
        Some(owner)
    });
    known.collect()
}

/// Returns the field ownership. It names owners by uid, in text.
pub(super) fn ownership(object: &Object, uids: &Uids) -> Option<Value> {
    let entries = object.value["metadata"].get("managedFields").filter(|entries| !entries.is_null())?;
    let mut text = entries.to_string();
    for owner in object.value["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
        if let Some((old, new)) = owner["uid"].as_str().and_then(|old| Some((old, uids.get(old)?))) {
            text = text.replace(old, new);
        }
    }
    serde_json::from_str(&text).ok()
}

/// The patch that removes finalizers, protection and gates from an object, so that it can be deleted and no controller
/// acts on it.
pub(super) fn released(object: &Object) -> Value {
    let mut patch = json!({"metadata": {"finalizers": null}});
    if object.value["spec"]["deletionProtection"] == true {
        patch["spec"] = json!({"deletionProtection": false});
    }
    let annotations = object.value["metadata"]["annotations"].as_object().into_iter().flatten();
    for (gate, _) in annotations.filter(|(key, _)| key.starts_with(DELETE_GATE)) {
        patch["metadata"]["annotations"][gate.as_str()] = Value::Null;
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{HOST, NAMESPACE, OURS, SECRET, VM};
    use super::*;

    fn vm() -> Object {
        Object::new(
            VM,
            json!({
                "metadata": {
                    "name": "web", "namespace": "ns", "uid": "old-vm", "resourceVersion": "7", "generation": 5,
                    "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}, "finalizers": ["berth.dev/host"],
                    "annotations": {"note": "x", "berth.dev/moved-from": "older"},
                    "managedFields": [{"manager": "terraform:default", "operation": "Apply",
                        "fieldsV1": {"f:metadata": {"f:ownerReferences": {"k:{\"uid\":\"old-owner\"}": {}}}}}],
                    "ownerReferences": [{"kind": "X", "uid": "old-owner"}, {"kind": "Y", "uid": "not copied"}],
                },
                "spec": {"class": "small"},
                "status": {"observedGeneration": 5, "admittedEpoch": 1, "binding": {"host": "h1", "epoch": 1},
                    "conditions": [{"type": "Ready", "observedGeneration": 4}]},
            }),
        )
    }

    fn uids() -> Uids {
        [("old-vm", "new-vm"), ("old-owner", "new-owner")].map(|(a, b)| (a.to_owned(), b.to_owned())).into()
    }

    #[test]
    fn a_copy_has_what_was_declared_and_says_whom_it_was_made_from() {
        let copy = created(&vm());
        assert_eq!(
            copy,
            json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
                "metadata": {
                    "name": "web", "namespace": "ns", "labels": {"a": "b"}, "finalizers": ["berth.dev/host"],
                    "annotations": {"note": "x", "berth.dev/moved-from": "old-vm,older", "berth.dev/former-uid": "old-vm"},
                },
                "spec": {"class": "small"},
            })
        );
    }

    #[test]
    fn what_was_there_before_says_so_once() {
        let mut copy = created(&vm());
        for _ in 0..2 {
            take_over(&mut copy, "own");
        }
        assert_eq!(copy["metadata"]["annotations"]["berth.dev/moved-from"], "old-vm,older,own");
    }

    #[test]
    fn what_no_host_has_made_anything_for_waits_for_none() {
        let mut waiting = vm();
        waiting.value["status"] = json!({"observedGeneration": 5});
        assert_eq!(created(&waiting)["metadata"]["annotations"]["berth.dev/former-uid"], Value::Null);
    }

    #[test]
    fn a_status_speaks_of_the_other_control_planes_uids_and_generations() {
        let disk = Object::new(
            *OURS.iter().find(|kind| kind.name == "Disk").expect("a kind"),
            json!({"metadata": {"generation": 3, "uid": "d"},
                "status": {"observedGeneration": 3, "usedBy": [{"vm": "web", "vmUid": "old-vm"}]}}),
        );
        assert_eq!(
            status(&disk, &uids(), 1),
            Some(json!({"observedGeneration": 1, "usedBy": [{"vm": "web", "vmUid": "new-vm"}]}))
        );
        let of_vm = status(&vm(), &uids(), 1).expect("it has one");
        assert_eq!(of_vm["conditions"][0]["observedGeneration"], 0, "it was behind, and is");
    }

    #[test]
    fn a_hosts_own_word_is_not_copied() {
        let host =
            Object::new(HOST, json!({"metadata": {}, "status": {"vms": 2, "inventory": {}, "orphans": []}}));
        assert_eq!(status(&host, &uids(), 1), Some(json!({"vms": 2})));
    }

    #[test]
    fn owners_that_were_copied_stay_owners_and_their_fields_too() {
        assert_eq!(owners(&vm(), &uids()), json!([{"kind": "X", "uid": "new-owner"}]));
        let fields = ownership(&vm(), &uids()).expect("it has the field owners");
        assert_eq!(
            fields[0]["fieldsV1"]["f:metadata"]["f:ownerReferences"],
            json!({"k:{\"uid\":\"new-owner\"}": {}})
        );
    }

    #[test]
    fn what_is_there_is_put_right_and_left_alone_when_it_is() {
        let wanted = created(&vm());
        let mut found = wanted.clone();
        found["metadata"]["uid"] = "new-vm".into();
        found["status"] = json!({"observedGeneration": -1});
        assert_eq!(corrected(&wanted, &found), None);
        found["spec"] = json!({"class": "large"});
        found["metadata"]["labels"] = json!({"c": "d"});
        let put_right = corrected(&wanted, &found).expect("it differs");
        assert_eq!(put_right["spec"], wanted["spec"]);
        assert_eq!(put_right["metadata"]["labels"], wanted["metadata"]["labels"]);
        assert_eq!(put_right["metadata"]["uid"], "new-vm");
        let secret =
            Object::new(SECRET, json!({"metadata": {"name": "s", "uid": "u"}, "data": {"a": "Yg=="}}));
        assert_eq!(created(&secret)["data"], json!({"a": "Yg=="}));
    }

    #[test]
    fn a_namespace_that_is_there_is_restricted_as_the_sources_is() {
        let namespace = |metadata: Value| Object::new(NAMESPACE, json!({"metadata": metadata}));
        let offered = |classes: &str| json!({"annotations": {OFFERED_CLASSES_ANNOTATION: classes}});
        let (plain, small) = (namespace(json!({"name": "n"})), namespace(offered("small")));
        let reserved = namespace(json!({"labels": {"a": "b", PRIVILEGED_FIELDS_LABEL: "Reserved"}}));
        assert!(is_restricted(&small) && is_restricted(&reserved) && !is_restricted(&plain));
        assert_eq!(restrictions(&small, &plain, false), Some(offered("small")));
        let label = json!({"labels": {PRIVILEGED_FIELDS_LABEL: "Reserved"}});
        assert_eq!(restrictions(&reserved, &small, false), Some(label));
        assert_eq!(restrictions(&small, &small, false), None);
        let large = namespace(offered("large"));
        assert_eq!(restrictions(&small, &large, false), None, "the target's own mark stays");
        assert_eq!(restrictions(&plain, &large, false), None);
        assert_eq!(restrictions(&small, &large, true), Some(offered("small")));
        let removed = json!({"annotations": {OFFERED_CLASSES_ANNOTATION: null}});
        assert_eq!(restrictions(&plain, &large, true), Some(removed));
    }

    #[test]
    fn what_holds_back_a_deletion_is_removed_first_and_nothing_else() {
        let metadata = json!({"name": "web", "annotations": {"note": "x", "delete.check.berth.dev/a": "y"}});
        let vm =
            Object { kind: VM, value: json!({"metadata": metadata, "spec": {"deletionProtection": true}}) };
        let patch = json!({
            "metadata": {"finalizers": null, "annotations": {"delete.check.berth.dev/a": null}},
            "spec": {"deletionProtection": false},
        });
        assert_eq!(released(&vm), patch);
        let plain = Object { kind: VM, value: json!({"metadata": {"name": "web"}, "spec": {}}) };
        assert_eq!(released(&plain), json!({"metadata": {"finalizers": null}}));
    }
}
