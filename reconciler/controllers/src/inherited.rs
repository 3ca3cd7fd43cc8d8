//! The labels and annotations that an object passes down to the objects that the controllers make for it. Pure.
//!
//! ```text
//!   VM ─▶ Disks of its templates (also when they change later)
//!   VM, SnapshotSchedule ─▶ VMSnapshot ─▶ DiskSnapshots, Backups (as they are when those are made)
//!   Disk, SnapshotSchedule ─▶ DiskSnapshot, Backup (by a schedule of Disks, likewise)
//! ```
//!
//! Keys of berth and of Kubernetes have a meaning for one object, and are never passed down. Neither are those by which tools of
//! deployment know their own objects: such a tool would take the new object for one that it has to remove.

use std::collections::BTreeMap;

use berth_api::{INHERITED_ANNOTATIONS_ANNOTATION, INHERITED_LABELS_ANNOTATION};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

type Entries = BTreeMap<String, String>;

/// Domains whose keys, and those of their subdomains, are not passed down.
const RESERVED: [&str; 8] =
    ["berth.dev", "kubernetes.io", "k8s.io", "helm.sh", "argoproj.io", "fluxcd.io", "k14s.io", "cattle.io"];
/// The greatest number of labels, and of annotations, that are passed down: the first ones by key.
const MOST: usize = 64;
/// The length in bytes of the longest value that is passed down. An object has at most 256 KiB of annotations.
const LONGEST: usize = 2048;

/// Labels and annotations that are passed down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inherited {
    labels: Entries,
    annotations: Entries,
}

impl Inherited {
    /// Returns those of an object.
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self { labels: passed(meta.labels.as_ref()), annotations: passed(meta.annotations.as_ref()) }
    }

    /// Adds those of a nearer object, whose values count.
    pub(crate) fn with(mut self, nearer: &ObjectMeta) -> Self {
        let nearer = Self::of(nearer);
        self.labels.extend(nearer.labels);
        self.annotations.extend(nearer.annotations);
        self
    }

    /// Adds them to a new object.
    pub(crate) fn add_to(self, meta: &mut ObjectMeta) {
        // Limited again: they can be those of several objects.
        for (to, entries) in [(&mut meta.labels, self.labels), (&mut meta.annotations, self.annotations)] {
            for (key, value) in entries.into_iter().take(MOST) {
                to.get_or_insert_default().entry(key).or_insert(value);
            }
        }
    }

    /// Adds them to a new object that follows them, with a record of their keys: by it, one that is not passed down any more is
    /// known from one of the object's own.
    pub(crate) fn add_recorded_to(self, meta: &mut ObjectMeta) {
        let followed = self.followed_by(meta);
        let records = followed.records();
        followed.add_to(meta);
        for (name, record) in records {
            if let Some(keys) = record {
                meta.annotations.get_or_insert_default().insert(name.to_owned(), keys);
            }
        }
    }

    /// Returns those that an object follows: without keys of its own, which it has with another value, and which no record names. One
    /// with the same value is taken for an inherited one: earlier versions recorded none.
    fn followed_by(&self, meta: &ObjectMeta) -> Self {
        let annotations = meta.annotations.as_ref();
        let follows = |entries: &Entries, is: Option<&Entries>, record: &str| {
            let record = annotations.and_then(|annotations| annotations.get(record));
            let is_recorded =
                |key: &str| record.is_some_and(|keys| keys.split(',').any(|known| known == key));
            let is_own = |key: &str, value: &String| {
                is.and_then(|is| is.get(key)).is_some_and(|own| own != value) && !is_recorded(key)
            };
            let followed = entries.iter().filter(|(key, value)| !is_own(key.as_str(), value));
            followed.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        Self {
            labels: follows(&self.labels, meta.labels.as_ref(), INHERITED_LABELS_ANNOTATION),
            annotations: follows(&self.annotations, annotations, INHERITED_ANNOTATIONS_ANNOTATION),
        }
    }

    /// Returns the changes of an object that follows them, as a merge patch of its metadata. None: it has all of them, and none that
    /// is not passed down any more.
    pub(crate) fn changes(&self, of: &ObjectMeta) -> Option<Value> {
        let followed = self.followed_by(of);
        let annotations = of.annotations.as_ref();
        let recorded = |name: &str| annotations.and_then(|annotations| annotations.get(name));
        let of_labels =
            differences(of.labels.as_ref(), &followed.labels, recorded(INHERITED_LABELS_ANNOTATION));
        let mut of_annotations =
            differences(annotations, &followed.annotations, recorded(INHERITED_ANNOTATIONS_ANNOTATION));
        for (name, record) in followed.records() {
            if recorded(name) != record.as_ref() {
                of_annotations.insert(name.to_owned(), json!(record));
            }
        }
        let mut changes = Map::new();
        for (name, entries) in [("labels", of_labels), ("annotations", of_annotations)] {
            if !entries.is_empty() {
                changes.insert(name.to_owned(), Value::Object(entries));
            }
        }
        (!changes.is_empty()).then_some(Value::Object(changes))
    }

    /// Returns the annotations with the keys of labels and of annotations; None for one that is not needed.
    fn records(&self) -> [(&'static str, Option<String>); 2] {
        let keys = |entries: &Entries| {
            let keys: Vec<&str> = entries.keys().map(String::as_str).collect();
            (!keys.is_empty()).then(|| keys.join(","))
        };
        [
            (INHERITED_LABELS_ANNOTATION, keys(&self.labels)),
            (INHERITED_ANNOTATIONS_ANNOTATION, keys(&self.annotations)),
        ]
    }
}

/// Returns the entries to set and, as null, to remove: of those that were passed down before, which the record names.
fn differences(is: Option<&Entries>, wanted: &Entries, record: Option<&String>) -> Map<String, Value> {
    let value_of = |key: &str| is.and_then(|is| is.get(key));
    let set = wanted.iter().filter(|(key, value)| value_of(key.as_str()) != Some(*value));
    let mut changes: Map<String, Value> = set.map(|(key, value)| (key.clone(), json!(value))).collect();
    // An editor of the object can write its record: a reserved key in it removes nothing.
    for key in record.into_iter().flat_map(|keys| keys.split(',')) {
        if !is_reserved(key) && !wanted.contains_key(key) && value_of(key).is_some() {
            changes.insert(key.to_owned(), Value::Null);
        }
    }
    changes
}

fn passed(entries: Option<&Entries>) -> Entries {
    let all = entries.into_iter().flatten();
    let passed = all.filter(|(key, value)| !is_reserved(key) && value.len() <= LONGEST).take(MOST);
    passed.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let is_in = |reserved: &str| {
        domain.strip_suffix(reserved).is_some_and(|begin| begin.is_empty() || begin.ends_with('.'))
    };
    RESERVED.into_iter().any(is_in)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meta(labels: &Value, annotations: &Value) -> ObjectMeta {
        serde_json::from_value(json!({"name": "x", "labels": labels, "annotations": annotations}))
            .expect("metadata")
    }

    /// The metadata after a merge patch.
    fn patched(meta: &ObjectMeta, patch: &Value) -> ObjectMeta {
        let mut meta = meta.clone();
        for (name, of) in [("labels", &mut meta.labels), ("annotations", &mut meta.annotations)] {
            for (key, value) in patch[name].as_object().into_iter().flatten() {
                let entries = of.get_or_insert_default();
                match value.as_str() {
                    Some(text) => entries.insert(key.clone(), text.to_owned()),
                    None => entries.remove(key),
                };
            }
        }
        meta
    }

    #[test]
    fn keys_of_berth_of_kubernetes_and_of_deployment_tools_are_not_passed_down() {
        let labels = json!({
            "team": "shop", "example.com/tier": "front", "notberth.dev/a": "b", "berth.dev/vm-snapshot": "x",
            "app.kubernetes.io/instance": "shop", "topology.kubernetes.io/zone": "a", "k8s.io/x": "y",
            "kustomize.toolkit.fluxcd.io/name": "x", "kapp.k14s.io/app": "1", "fleet.cattle.io/bundle-id": "x",
        });
        let annotations = json!({
            "note": "mine", "poweron.check.berth.dev/backup": "wait", "argocd.argoproj.io/tracking-id": "x",
            "kubectl.kubernetes.io/last-applied-configuration": "{}", "meta.helm.sh/release-name": "x",
            "long": "x".repeat(LONGEST + 1),
        });
        let inherited = Inherited::of(&meta(&labels, &annotations));
        let keys: Vec<&str> = inherited.labels.keys().map(String::as_str).collect();
        assert_eq!(keys, ["example.com/tier", "notberth.dev/a", "team"]);
        assert_eq!(inherited.annotations, [("note".to_owned(), "mine".to_owned())].into());
    }

    #[test]
    fn the_nearer_object_counts_and_an_own_value_stays() {
        let vm = meta(&json!({"team": "shop", "tier": "front"}), &json!(null));
        let schedule = meta(&json!({"team": "backup"}), &json!({"note": "nightly"}));
        let mut made = meta(&json!({"tier": "own"}), &json!(null));
        Inherited::of(&vm).with(&schedule).add_to(&mut made);
        assert_eq!(made, meta(&json!({"team": "backup", "tier": "own"}), &json!({"note": "nightly"})));
        let mut none = ObjectMeta::default();
        Inherited::default().add_recorded_to(&mut none);
        assert_eq!(none, ObjectMeta::default());
    }

    #[test]
    fn one_that_is_not_passed_down_any_more_is_removed_and_own_ones_stay() {
        let mut disk = meta(&json!({"own": "1"}), &json!(null));
        let before = Inherited::of(&meta(&json!({"team": "shop", "tier": "front"}), &json!({"note": "a"})));
        before.clone().add_recorded_to(&mut disk);
        assert_eq!(before.changes(&disk), None);
        let after = Inherited::of(&meta(&json!({"team": "other"}), &json!(null)));
        let changes = after.changes(&disk).expect("it differs");
        assert_eq!(
            changes,
            json!({
                "labels": {"team": "other", "tier": null},
                "annotations": {
                    "note": null, "berth.dev/inherited-labels": "team", "berth.dev/inherited-annotations": null,
                },
            })
        );
        let disk = patched(&disk, &changes);
        assert_eq!(disk.labels, meta(&json!({"own": "1", "team": "other"}), &json!(null)).labels);
        assert_eq!(after.changes(&disk), None);
    }

    #[test]
    fn a_key_that_an_object_has_with_a_value_of_its_own_is_neither_changed_nor_removed() {
        let passed = Inherited::of(&meta(&json!({"team": "shop", "tier": "front"}), &json!(null)));
        let disk = meta(&json!({"team": "own", "tier": "front"}), &json!(null));
        let changes = passed.changes(&disk).expect("a record");
        assert_eq!(changes, json!({"annotations": {"berth.dev/inherited-labels": "tier"}}));
        let disk = patched(&disk, &changes);
        let changes = Inherited::default().changes(&disk).expect("nothing is passed down any more");
        assert_eq!(patched(&disk, &changes).labels, meta(&json!({"team": "own"}), &json!(null)).labels);
        let mut new = meta(&json!({"team": "own"}), &json!(null));
        passed.clone().add_recorded_to(&mut new);
        assert_eq!(passed.changes(&new), None);
        // A value that was passed down and is changed is set back.
        let changed = patched(&new, &json!({"labels": {"tier": "back"}}));
        assert_eq!(passed.changes(&changed), Some(json!({"labels": {"tier": "front"}})));
    }

    #[test]
    fn a_record_with_reserved_keys_removes_none_of_them() {
        let forged =
            json!({"berth.dev/inherited-annotations": "berth.dev/former-uid,", "berth.dev/former-uid": "u1"});
        let changes = Inherited::default().changes(&meta(&json!(null), &forged));
        assert_eq!(changes, Some(json!({"annotations": {"berth.dev/inherited-annotations": null}})));
    }

    proptest! {
        /// One patch is enough: after it there is nothing to change.
        #[test]
        fn a_change_is_made_once(
            before in proptest::collection::btree_map("[a-c]{1,2}|berth[.]dev/[ab]", "[xy]", 0..5),
            own in proptest::collection::btree_map("[a-c]{1,2}|berth[.]dev/[ab]", "[xy]", 0..5),
            after in proptest::collection::btree_map("[a-c]{1,2}|berth[.]dev/[ab]", "[xy]", 0..5),
        ) {
            let of = |entries: &Entries| Inherited::of(&meta(&json!(entries), &json!(entries)));
            let mut object = meta(&json!(own), &json!(null));
            of(&before).add_recorded_to(&mut object);
            if let Some(patch) = of(&after).changes(&object) {
                object = patched(&object, &patch);
            }
            prop_assert_eq!(of(&after).changes(&object), None);
        }
    }
}
