//! Which reconciles read what has changed of a VM: most changes are reports, which nothing else on its host reads.

use berth_api::{Disk, Host, Network, VM, VMStatus, former_uid};
use kube::ResourceExt;

use crate::index::{Tables, instance_of};
use crate::key::{Key, ObjectName, kind};

/// Whether the reconcile of this key reads a part of the VM that differs.
pub(super) fn is_concerned(key: &Key, old: &VM, new: &VM) -> bool {
    if identity(old) != identity(new) {
        true
    } else if key.kind == kind::<Network>() {
        networks(old) != networks(new) || (has_process(old) && !has_process(new))
    } else if key.kind == kind::<Host>() {
        usage(old) != usage(new)
    } else if key.kind == kind::<Disk>() {
        disks(old) != disks(new)
    } else if key.kind == kind::<VM>() && key.name != ObjectName::of(new) {
        old.labels() != new.labels() || admission_differs(old, new)
    } else {
        true
    }
}

/// Returns the other VMs here with a rule that keeps them apart from a VM: each reports that they are on one host.
pub(super) fn kept_apart(name: &ObjectName, vm: &VM, tables: &Tables) -> Vec<Key> {
    tables.vms_where(|other_name, other| {
        other_name != name && other_name.namespace == name.namespace && other.kept_apart_from(vm).is_some()
    })
}

/// Whether the decision about its admission differs, which its own reconcile reads from the status.
pub(super) fn admission_differs(old: &VM, new: &VM) -> bool {
    let admission = |vm: &VM| {
        let status = vm.status.as_ref()?;
        Some((status.is_admitted(), status.refused().cloned()))
    };
    admission(old) != admission(new)
}

/// Returns what every reconcile reads.
fn identity(vm: &VM) -> impl PartialEq {
    let binding = vm.status.as_ref().and_then(|s| s.binding.as_ref());
    let is_deleted = vm.metadata.deletion_timestamp.is_some();
    (&vm.metadata.uid, former_uid(vm), is_deleted, binding, instance_of(vm))
}

/// Returns what the networks' reconcile reads.
fn networks(vm: &VM) -> impl PartialEq {
    let hostname = vm.spec.bootstrap.as_ref().map(|bootstrap| &bootstrap.hostname);
    let status = vm.status.as_ref();
    let interfaces = status.map(|s| (&s.interfaces, &s.public_address));
    (&vm.spec.network_interfaces, hostname, interfaces)
}

/// Returns what the Host's report reads: the capacity that the VM takes.
fn usage(vm: &VM) -> impl PartialEq {
    let declared = (
        &vm.spec.class,
        vm.spec.cpus,
        vm.spec.max_cpus,
        &vm.spec.memory,
        &vm.spec.max_memory,
        vm.spec.cpu_topology,
    );
    (declared, vm.status.as_ref().and_then(|s| s.hardware.as_ref()))
}

/// Returns what its disks read: whether it may have them, which it has, the snapshot that they are restored from, and the class that gives
/// them ceilings.
fn disks(vm: &VM) -> impl PartialEq {
    let status = vm.status.as_ref();
    let holds = status.map(|s| (&s.disks, s.state));
    let declared = (&vm.spec.disks, &vm.spec.restore, &vm.spec.class, vm.spec.class_policy);
    (declared, status.is_some_and(VMStatus::is_admitted), holds, has_process(vm))
}

fn has_process(vm: &VM) -> bool {
    vm.status.as_ref().is_some_and(|s| s.process.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(status: serde_json::Value) -> VM {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {"class": "s", "disks": [{"name": "root", "boot": true}]},
            "status": status,
        }))
        .expect("a VM")
    }

    #[test]
    fn other_labels_concern_the_vms_that_are_kept_apart_and_a_report_does_not() {
        let apart = Key::new::<VM>(ObjectName::new("ns", "apart"));
        let before = vm(json!({"binding": {"host": "h", "epoch": 1}}));
        let mut labelled = before.clone();
        labelled.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
        assert!(is_concerned(&apart, &before, &labelled));
        let mut reported = before.clone();
        reported.spec.cpus = Some(4);
        assert!(!is_concerned(&apart, &before, &reported));
    }

    fn concerned(old: &VM, new: &VM) -> [bool; 4] {
        let disk = Key::new::<Disk>(ObjectName::new("ns", "root"));
        let own = Key::new::<VM>(ObjectName::new("ns", "web"));
        [own, Key::networks(), Key::host(), disk].map(|key| is_concerned(&key, old, new))
    }

    #[test]
    fn a_change_concerns_what_reads_it() {
        let bound = json!({"binding": {"host": "h", "epoch": 1}, "instanceID": "i-1"});
        let with = |field: &str, value: serde_json::Value| {
            let mut status = bound.clone();
            status[field] = value;
            vm(status)
        };
        let before = vm(bound.clone());
        let guest = with("guest", json!({"agent": true}));
        assert_eq!(concerned(&before, &guest), [true, false, false, false], "a report");
        let admitted = with("admittedEpoch", json!(1));
        assert_eq!(concerned(&before, &admitted), [true, false, false, true]);
        assert!(admission_differs(&before, &admitted) && !admission_differs(&before, &guest));
        let hardware = json!({
            "class": "s", "cpus": 1, "memory": "1Gi", "firmware": "BIOS", "machineType": "q35", "cpuModel": "max",
            "accelerator": "tcg", "uuid": "u",
        });
        let sized = with("hardware", hardware);
        assert!(concerned(&before, &sized)[2], "its capacity");
        let addressed = with(
            "interfaces",
            json!([{"name": "nic0", "network": "ns/a", "macAddress": "m", "address": "a"}]),
        );
        assert_eq!(concerned(&before, &addressed), [true, true, false, false]);
        let started = with("process", json!({"pid": 1, "startedAt": "2026-01-01T00:00:00Z"}));
        assert!(!concerned(&before, &started)[1], "the networks were made for it before");
        assert!(concerned(&started, &before)[1], "its tap is gone");
        let mut classed = before.clone();
        classed.spec.class = Some("other".into());
        assert!(concerned(&before, &classed)[3], "the ceilings of its disks");
        let mut larger = before.clone();
        larger.spec.cpus = Some(4);
        assert!(concerned(&before, &larger)[2], "what it takes at its next start");
        let moved = with("binding", json!({"host": "h", "epoch": 2}));
        assert_eq!(concerned(&before, &moved), [true; 4]);
    }
}
