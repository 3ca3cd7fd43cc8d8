//! The Disks that a VM declares by a template: created for it, owned by it, and changed with their templates.

use berth_api::vm::is_disk_of;
use berth_api::{Disk, DiskSpec, HOST_FINALIZER, Quantity, QuotaAmounts, VM};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::OwnerReference,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};

use crate::{
    batch::Write,
    cache::Cache,
    inherited::Inherited,
    key::{Key, ObjectKind},
    kinds::quota::{self, Excess},
    object::Object,
};

/// The time after which a VM without one of its Disks says so: usually it is created at once.
const CREATED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// Returns the writes that create and change the VM's Disks.
pub(super) fn writes(cache: &Cache, vm: &VM) -> Vec<Write> {
    let write = |(key, template): (Key, &DiskSpec)| match cache.tables.disks.get(&key) {
        None => new_disk(vm, &key.name, template).map(|disk| Write::Create(disk.into())),
        Some(disk) if is_disk_of(disk, vm) && disk.metadata.deletion_timestamp.is_none() => {
            changes(&disk.spec, template).map(|spec| Write::ChangeDisk(disk.clone(), spec))
        }
        Some(_) => None,
    };
    templates(vm).filter_map(write).collect()
}

/// Returns the writes that have the VM's Disks follow its labels and annotations.
pub(super) fn metadata_writes(cache: &Cache, vm: &VM) -> Vec<Write> {
    let mut declared = templates(vm).peekable();
    if declared.peek().is_none() {
        return Vec::new();
    }
    let inherited = Inherited::of(&vm.metadata);
    let write = |(key, _): (Key, &DiskSpec)| {
        let disk = cache.tables.disks.get(&key)?;
        let follows = is_disk_of(disk, vm) && disk.metadata.deletion_timestamp.is_none();
        let changes = inherited.changes(&disk.metadata).filter(|_| follows)?;
        Some(Write::ChangeMetadata(disk.clone(), changes))
    };
    declared.filter_map(write).collect()
}

/// Removes what a quota of the namespace does not allow: all creations together, or none of them, and the size of each disk that would
/// grow too much; its other changes stay. Returns the quota.
pub(super) fn keep_within_quota(cache: &Cache, vm: &Key, writes: &mut Vec<Write>) -> Option<Excess> {
    let namespace = vm.namespace();
    let mut more = quota::of_disks(cache, namespace, writes.iter().filter_map(created));
    let mut excess = quota::excess_of_new(cache, namespace, more);
    if excess.is_some() {
        writes.retain(|write| created(write).is_none());
        more = QuotaAmounts::default();
    }
    writes.retain_mut(|write| {
        let growth = growth(write);
        if growth == QuotaAmounts::default() {
            return true;
        }
        match quota::excess_of_new(cache, namespace, more.plus(growth)) {
            None => {
                more = more.plus(growth);
                true
            }
            Some(too_much) => {
                excess = excess.take().or(Some(too_much));
                without_size(write)
            }
        }
    });
    excess
}

/// Removes the size from the changes of a disk; returns whether any are left.
fn without_size(write: &mut Write) -> bool {
    let Write::ChangeDisk(_, Value::Object(changes)) = write else { return true };
    changes.remove("size");
    !changes.is_empty()
}

fn created(write: &Write) -> Option<&DiskSpec> {
    match write {
        Write::Create(Object::Disk(disk)) => Some(&disk.spec),
        _ => None,
    }
}

/// The bytes by which a change makes a disk larger.
fn growth(write: &Write) -> QuotaAmounts {
    let size = match write {
        Write::ChangeDisk(disk, changes) => {
            changes.get("size").and_then(Value::as_str).map(|size| (disk, size))
        }
        _ => None,
    };
    let disk_size = size.map_or(0, |(disk, size)| {
        let wanted = Quantity(size.to_owned()).bytes().unwrap_or_default();
        let has = disk.status.as_ref().and_then(|status| Quantity(status.size.clone()?).bytes().ok());
        let declared = disk.spec.size.as_ref().and_then(|size| size.bytes().ok());
        wanted.saturating_sub(has.max(declared).unwrap_or_default())
    });
    QuotaAmounts { disk_size, ..QuotaAmounts::default() }
}

/// Whether a Disk should be there by now: its creation may be refused, by a quota or a policy.
pub(super) fn is_overdue(vm: &VM, writes: &[Write], now: Timestamp) -> bool {
    let waits = writes.iter().any(|write| matches!(write, Write::Create(_)));
    waits && vm.creation_timestamp().is_some_and(|made| now.duration_since(made.0) > CREATED_WITHIN)
}

fn templates(vm: &VM) -> impl Iterator<Item = (Key, &DiskSpec)> {
    let namespace = vm.namespace().unwrap_or_default();
    let lives = vm.metadata.deletion_timestamp.is_none();
    vm.spec.disks.iter().filter(move |_| lives).filter_map(move |disk| {
        let key = Key::namespaced(ObjectKind::Disk, &namespace, disk.name.as_str());
        Some((key, disk.template.as_deref()?))
    })
}

/// Returns the Disk to create. `None` for a disk that the VM has had: its Disk was removed by force, and another one, without its
/// data, would take its place unnoticed.
fn new_disk(vm: &VM, name: &str, template: &DiskSpec) -> Option<Disk> {
    let status = vm.status.as_ref();
    let had =
        status.is_some_and(|s| s.disks.iter().any(|d| d.name == name && (d.attached || d.serial.is_some())));
    if had {
        return None;
    }
    let mut disk = Disk::new(name, template.clone());
    disk.metadata.namespace = vm.namespace();
    Inherited::of(&vm.metadata).add_recorded_to(&mut disk.metadata);
    disk.metadata.finalizers = Some(vec![HOST_FINALIZER.to_owned()]);
    disk.metadata.owner_references = Some(vec![OwnerReference {
        api_version: VM::api_version(&()).into_owned(),
        kind: VM::kind(&()).into_owned(),
        name: vm.name_any(),
        uid: vm.uid()?,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    Some(disk)
}

/// Returns the values of the Disk's spec that the template declares otherwise, as a merge patch. A Disk that has become larger than
/// its template stays as large, because no disk shrinks.
fn changes(disk: &DiskSpec, template: &DiskSpec) -> Option<Value> {
    let mut changes = Map::new();
    let bytes = |size: &Option<Quantity>| size.as_ref().and_then(|size| size.bytes().ok());
    if let (Some(size), Some(wanted)) = (&template.size, bytes(&template.size))
        && bytes(&disk.size).is_none_or(|is| is < wanted)
    {
        changes.insert("size".to_owned(), json!(size));
    }
    if disk.deletion_policy != template.deletion_policy {
        changes.insert("deletionPolicy".to_owned(), json!(template.deletion_policy));
    }
    if disk.expand_policy != template.expand_policy {
        changes.insert("expandPolicy".to_owned(), json!(template.expand_policy));
    }
    if let (Some(is), Some(wanted)) = (&disk.encryption, &template.encryption)
        && is != wanted
    {
        changes.insert("encryption".to_owned(), json!(wanted));
    }
    if disk.limits != template.limits {
        changes.insert("limits".to_owned(), limits(disk, template));
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// Returns the limits as a merge patch: one that is not declared any more is null.
fn limits(disk: &DiskSpec, template: &DiskSpec) -> Value {
    let (Value::Object(is), Value::Object(mut wanted)) = (json!(disk.limits), json!(template.limits)) else {
        return json!(template.limits);
    };
    for name in is.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect::<Vec<_>>() {
        wanted.insert(name, Value::Null);
    }
    Value::Object(wanted)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    fn vm(template: &Value, status: &Value) -> VM {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": "web", "namespace": "default", "uid": "u1", "labels": {"app": "shop"}},
            "spec": {"cpus": 1, "disks": [
                {"name": "web-root", "boot": true, "template": template}, {"name": "data"},
            ]},
            "status": status,
        }))
        .expect("a VM")
    }

    fn disk(name: &str, owner: &str, spec: &Value) -> Disk {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": name, "namespace": "default", "uid": "d1", "resourceVersion": "7", "ownerReferences": [
                {"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "name": "web", "uid": owner, "controller": true},
            ]},
            "spec": spec,
        }))
        .expect("a Disk")
    }

    fn written(vm: &VM, disks: Vec<Disk>) -> Vec<Value> {
        let mut cache = Cache::new(Duration::from_secs(40));
        for disk in disks {
            cache.put(disk, Instant::now());
        }
        let shown = writes(&cache, vm).into_iter().map(|write| match write {
            Write::Create(Object::Disk(disk)) => json!({"create": &*disk}),
            Write::ChangeDisk(disk, spec) => json!({"change": disk.name_any(), "spec": spec}),
            other => panic!("{other:?}"),
        });
        shown.collect()
    }

    #[test]
    fn a_disk_of_a_template_is_created_with_its_vm_as_owner_and_others_are_not() {
        let template = json!({"image": "debian", "size": "4Gi"});
        let created = written(&vm(&template, &json!(null)), Vec::new());
        let [created] = created.as_slice() else { panic!("{created:?}") };
        let metadata = &created["create"]["metadata"];
        assert_eq!(metadata["name"], "web-root");
        assert_eq!(metadata["labels"]["app"], "shop");
        assert_eq!(metadata["ownerReferences"][0]["uid"], "u1");
        assert_eq!(created["create"]["spec"]["size"], "4Gi");
        assert_eq!(created["create"]["spec"]["image"], "debian");
    }

    #[test]
    fn nothing_is_created_for_a_vm_that_is_being_deleted_or_that_has_had_the_disk() {
        let template = json!({"size": "4Gi"});
        let mut deleted = vm(&template, &json!(null));
        deleted.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        assert_eq!(written(&deleted, Vec::new()), Vec::<Value>::new());
        let had = json!({"disks": [{"name": "web-root", "attached": false, "serial": "v0123"}]});
        assert_eq!(written(&vm(&template, &had), Vec::new()), Vec::<Value>::new());
        let waits = json!({"disks": [{"name": "web-root", "attached": false}]});
        assert_eq!(written(&vm(&template, &waits), Vec::new()).len(), 1, "it has not been there yet");
    }

    #[test]
    fn a_disk_follows_its_template_and_never_shrinks() {
        let changed = |template: &Value, spec: &Value| {
            written(&vm(template, &json!(null)), vec![disk("web-root", "u1", spec)])
        };
        let change = |spec: Value| vec![json!({"change": "web-root", "spec": spec})];
        assert_eq!(changed(&json!({"size": "4Gi"}), &json!({"size": "4Gi"})), Vec::<Value>::new());
        assert_eq!(changed(&json!({"size": "5Gi"}), &json!({"size": "4Gi"})), change(json!({"size": "5Gi"})));
        assert_eq!(changed(&json!({"size": "4Gi"}), &json!({"size": "5Gi"})), Vec::<Value>::new());
        assert_eq!(
            changed(&json!({"image": "debian"}), &json!({"image": "debian", "size": "5Gi"})),
            Vec::<Value>::new()
        );
        let class = |name: &str| json!({"size": "4Gi", "encryption": {"keyClass": name}});
        let other = change(json!({"encryption": {"keyClass": "next"}}));
        assert_eq!(changed(&class("next"), &class("default")), other);
        let limited = json!({"size": "4Gi", "limits": {"iops": 100, "bandwidth": "1Mi"}});
        let less = json!({"size": "4Gi", "limits": {"iops": 50}});
        assert_eq!(changed(&less, &limited), change(json!({"limits": {"iops": 50, "bandwidth": null}})));
        assert_eq!(changed(&json!({"size": "4Gi"}), &limited), change(json!({"limits": null})));
        assert_eq!(
            changed(&json!({"size": "4Gi", "deletionPolicy": "Retain"}), &json!({"size": "4Gi"})),
            change(json!({"deletionPolicy": "Retain"}))
        );
    }

    #[test]
    fn a_disk_follows_the_labels_and_annotations_of_its_vm() {
        let vm = vm(&json!({"size": "4Gi"}), &json!(null));
        let changed = |disk: Disk| -> Vec<Value> {
            let mut cache = Cache::new(Duration::from_secs(40));
            cache.put(disk, Instant::now());
            let shown = metadata_writes(&cache, &vm).into_iter().map(|write| match write {
                Write::ChangeMetadata(_, changes) => changes,
                other => panic!("{other:?}"),
            });
            shown.collect()
        };
        let mut made = disk("web-root", "u1", &json!({"size": "4Gi"}));
        let expected = json!({
            "labels": {"app": "shop"}, "annotations": {"berth.dev/inherited-labels": "app"},
        });
        assert_eq!(changed(made.clone()), vec![expected]);
        Inherited::of(&vm.metadata).add_recorded_to(&mut made.metadata);
        assert_eq!(changed(made), Vec::<Value>::new(), "nothing is written when nothing has changed");
        assert_eq!(changed(disk("web-root", "another", &json!({"size": "4Gi"}))), Vec::<Value>::new());
        assert_eq!(
            changed(disk("data", "u1", &json!({"size": "4Gi"}))),
            Vec::<Value>::new(),
            "it is no template's"
        );
    }

    #[test]
    fn a_disk_of_another_owner_is_left_alone() {
        let foreign = disk("web-root", "another", &json!({"size": "1Gi"}));
        assert_eq!(written(&vm(&json!({"size": "4Gi"}), &json!(null)), vec![foreign]), Vec::<Value>::new());
    }

    #[test]
    fn disks_beyond_a_quota_are_neither_created_nor_grown() {
        let left = |limit: &str, disks: Vec<Disk>, template: &Value| {
            let quota: berth_api::Quota = serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "Quota",
                "metadata": {"name": "team", "namespace": "default", "uid": "q1", "resourceVersion": "1"},
                "spec": {"hard": {"diskSize": limit}},
            }))
            .expect("a Quota");
            let mut cache = Cache::new(Duration::from_secs(40));
            cache.put(quota, Instant::now());
            for disk in disks {
                cache.put(disk, Instant::now());
            }
            let vm = vm(template, &json!(null));
            let mut writes = writes(&cache, &vm);
            let excess = keep_within_quota(&cache, &Key::of(&vm), &mut writes);
            (writes.len(), excess.map(|excess| excess.text))
        };
        let text = |text: &str| Some(format!("Quota team: diskSize: {text}"));
        let size = |size: &str| json!({"size": size});
        assert_eq!(left("4Gi", Vec::new(), &size("4Gi")), (1, None));
        let none = left("3Gi", Vec::new(), &size("4Gi"));
        assert_eq!(none, (0, text("0 used, 4Gi more needed, limit 3Gi")));
        let made = || vec![disk("web-root", "u1", &size("4Gi"))];
        assert_eq!(left("5Gi", made(), &size("5Gi")), (1, None));
        let stays = left("4Gi", made(), &size("5Gi"));
        assert_eq!(stays, (0, text("4Gi used, 1Gi more needed, limit 4Gi")));
        let kept = json!({"size": "5Gi", "deletionPolicy": "Retain"});
        let other_change = left("4Gi", made(), &kept);
        assert_eq!(other_change, (1, text("4Gi used, 1Gi more needed, limit 4Gi")));
        // Admission refuses a disk of unknown size once everything is used.
        let other = || vec![disk("other", "u9", &size("4Gi"))];
        let unknown = left("4Gi", other(), &json!({"image": "debian"}));
        assert_eq!(unknown, (0, text("4Gi used, 1 more needed, limit 4Gi")));
        assert_eq!(left("5Gi", other(), &json!({"image": "debian"})), (1, None));
    }
}
