//! Plan for a VMSnapshot. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{
    ConditionType, Consistency, Disk, DiskSnapshot, DiskSnapshotSpec, HOST_FINALIZER, Power, Readiness,
    Reason, ResourceName, SnapshotOfDisk, VM, VMSnapshot, VMState, condition,
    vm_snapshot::{
        MOST_SNAPSHOT_DISKS, VM_SNAPSHOT_LABEL, VM_SNAPSHOT_MEMORY_ANNOTATION, VM_SNAPSHOT_PARTS_ANNOTATION,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::observe::{Observed, is_part_of};
use crate::{
    inherited::Inherited,
    key::{Key, ObjectKind},
    plan::{Dependency, Plan},
};

/// The decision about a VMSnapshot.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) disks: Vec<SnapshotOfDisk>,
    /// The DiskSnapshots to create.
    pub(super) create: Vec<DiskSnapshot>,
    pub(super) readiness: Readiness,
    /// The moment of all of them.
    pub(super) taken: Option<(String, Consistency)>,
}

impl Decision {
    fn waits(readiness: Readiness) -> Self {
        Self { disks: Vec::new(), create: Vec::new(), readiness, taken: None }
    }
}

pub(super) fn plan(snapshot: &VMSnapshot, observed: &Observed) -> Plan<Decision> {
    if observed.parts.is_empty() { decide(snapshot, observed) } else { follow(snapshot, observed) }
}

fn key_of(snapshot: &VMSnapshot, kind: ObjectKind, name: &ResourceName) -> Key {
    Key::namespaced(kind, &snapshot.namespace().unwrap_or_default(), name.as_str())
}

/// Decides the disks, once all of them have files.
fn decide(snapshot: &VMSnapshot, observed: &Observed) -> Plan<Decision> {
    let name = &snapshot.spec.vm;
    let mut dependencies = vec![Dependency::Object(key_of(snapshot, ObjectKind::VM, name))];
    dependencies.extend(
        observed.disks.iter().map(|(disk, _)| Dependency::Object(key_of(snapshot, ObjectKind::Disk, disk))),
    );
    dependencies.extend(observed.others.iter().map(|other| Dependency::Object(Key::of(other.as_ref()))));
    match disks(snapshot, observed) {
        Err(readiness) => Plan::blocked(Decision::waits(readiness), dependencies),
        Ok(disks) => {
            let text = format!("the snapshots of {} disks are being created", disks.len());
            let readiness = Readiness::Reconciling(Reason::Provisioning, text);
            Plan::settled(Decision { disks, ..Decision::waits(readiness) })
        }
    }
}

fn disks(snapshot: &VMSnapshot, observed: &Observed) -> Result<Vec<SnapshotOfDisk>, Readiness> {
    let name = &snapshot.spec.vm;
    let wait = |reason, text: String| Err(Readiness::Reconciling(reason, text));
    let Some(vm) = &observed.vm else {
        return wait(Reason::WaitingForVM, format!("VM {name} does not exist"));
    };
    // Its host keeps a VM that it asks for a snapshot of until that is taken or its time is over, also when the VM is deleted.
    if snapshot.is_of_stop() {
        if !is_asked_for(snapshot, vm) {
            return Err(too_late(snapshot));
        }
    } else if vm.metadata.deletion_timestamp.is_some() {
        return wait(Reason::WaitingForVM, format!("VM {name} is being deleted"));
    }
    if let Some(readiness) = with_shared_disk(snapshot, observed).or_else(|| without_guest(snapshot, vm)) {
        return Err(readiness);
    }
    if observed.disks.len() > MOST_SNAPSHOT_DISKS {
        let text = format!(
            "VM {name} has {} disks: the snapshot of a VM has at most {MOST_SNAPSHOT_DISKS}",
            observed.disks.len()
        );
        return Err(Readiness::Stalled(Reason::NotSupported, text));
    }
    if observed.disks.is_empty() {
        let text = format!(
            "VM {name} has no disks but those that several VMs read (ReadOnlyMany), which never change"
        );
        return Err(Readiness::Stalled(Reason::NotSupported, text));
    }
    let mut hosts: Vec<(&str, &ResourceName)> = Vec::new();
    for (disk_name, disk) in &observed.disks {
        match disk {
            None => return wait(Reason::WaitingForDisk, format!("Disk {disk_name} does not exist")),
            Some(disk) if disk.metadata.deletion_timestamp.is_some() => {
                return wait(Reason::WaitingForDisk, format!("Disk {disk_name} is being deleted"));
            }
            Some(disk) if disk.without_snapshots().is_some() => {
                let text = format!(
                    "Disk {disk_name} of VM {name} {}: it is in no snapshot, and a snapshot of the VM is of all disks that are written to. Take \
                     DiskSnapshots of its other disks",
                    disk.without_snapshots().unwrap_or_default()
                );
                return Err(Readiness::Stalled(Reason::NotSupported, text));
            }
            Some(disk) => match host_of(disk) {
                Some(host) => hosts.push((host, disk_name)),
                None => {
                    let text = format!(
                        "Disk {disk_name} has no file yet: the snapshot is taken once all disks of VM {name} have one"
                    );
                    return wait(Reason::WaitingForDisk, text);
                }
            },
        }
    }
    if let Some(((host, disk), (other_host, other))) =
        hosts.iter().zip(hosts.iter().skip(1)).find(|((host, _), (other, _))| host != other)
    {
        let text = format!("Disk {disk} is on host {host}, Disk {other} on host {other_host}");
        return Err(Readiness::Stalled(Reason::DiskOnOtherHost, text));
    }
    if let Some(other) = observed.others.first() {
        return Err(foreign(snapshot, other));
    }
    let of = |(place, (disk, _)): (usize, &(ResourceName, Option<Arc<Disk>>))| SnapshotOfDisk {
        disk: disk.clone(),
        snapshot: snapshot.part_name(place),
    };
    Ok(observed.disks.iter().enumerate().map(of).collect())
}

/// Returns the readiness of a snapshot with memory of a VM that has a disk which is in no snapshot: a guest that goes on with its memory
/// has all its disks.
fn with_shared_disk(snapshot: &VMSnapshot, observed: &Observed) -> Option<Readiness> {
    let disk = observed.shared.as_ref().filter(|_| snapshot.spec.memory)?;
    let text = format!(
        "Disk {disk} of VM {} is ReadOnlyMany, and a snapshot with memory is of all disks of its VM: take the snapshot without memory",
        snapshot.spec.vm
    );
    Some(Readiness::Stalled(Reason::NotSupported, text))
}

/// Returns the readiness of a snapshot with memory of a VM whose guest does not run.
fn without_guest(snapshot: &VMSnapshot, vm: &VM) -> Option<Readiness> {
    if !snapshot.spec.memory {
        return None;
    }
    let name = &snapshot.spec.vm;
    if vm.spec.power != Power::Running {
        let text = format!(
            "power of VM {name} is {}: a snapshot with memory is of a guest that runs. Set it to Running, or take the snapshot without memory",
            vm.spec.power.as_str()
        );
        return Some(Readiness::Stalled(Reason::NotSupported, text));
    }
    let state = vm.status.as_ref().and_then(|status| status.state);
    (state != Some(VMState::Running)).then(|| {
        let text = format!("the guest of VM {name} does not run: the snapshot is taken once it does");
        Readiness::Reconciling(Reason::WaitingForVM, text)
    })
}

/// Whether the host of the VM asks for this snapshot before it stops the VM.
fn is_asked_for(snapshot: &VMSnapshot, vm: &VM) -> bool {
    let asked = vm.status.as_ref().and_then(|status| status.stop_snapshot.as_ref());
    asked.is_some_and(|asked| asked.name.as_str() == snapshot.name_any())
}

/// Returns the readiness of the snapshot of a stop that its host has gone on with.
fn too_late(snapshot: &VMSnapshot) -> Readiness {
    let text = format!(
        "the host of VM {} does not wait for it: taken now, it would be of a later moment than the stop",
        snapshot.spec.vm
    );
    Readiness::Reconciling(Reason::WaitingForVM, text)
}

/// Returns the readiness of a VMSnapshot while a DiskSnapshot that is not its own has the name of one of its parts. That of a former
/// VMSnapshot of the same name leaves by itself.
fn foreign(snapshot: &VMSnapshot, other: &DiskSnapshot) -> Readiness {
    let name = other.name_any();
    let is_of_former = other.part_of().is_some_and(|of| of.name == snapshot.name_any());
    if is_of_former || other.metadata.deletion_timestamp.is_some() {
        let text = format!("DiskSnapshot {name}, which is not a part of this VMSnapshot, is being deleted");
        return Readiness::Reconciling(Reason::WaitingForSnapshot, text);
    }
    let text = format!(
        "DiskSnapshot {name} exists and is not a part of this VMSnapshot: delete it, or create a VMSnapshot of another name"
    );
    Readiness::Stalled(Reason::InvalidSpec, text)
}

/// Returns the host of the disk's file.
pub(super) fn host_of(disk: &Disk) -> Option<&str> {
    let status = disk.status.as_ref()?;
    let has_file = status.volume_id.is_some() && status.size.is_some();
    status.binding.as_ref().filter(|_| has_file).map(|binding| binding.host.as_str())
}

/// Creates the DiskSnapshots, and reports them. Of the snapshot of a stop, none is created once the host has gone on with the stop.
fn follow(snapshot: &VMSnapshot, observed: &Observed) -> Plan<Decision> {
    let mut dependencies: Vec<Dependency> = observed
        .parts
        .iter()
        .map(|(of, _)| Dependency::Object(key_of(snapshot, ObjectKind::DiskSnapshot, &of.snapshot)))
        .collect();
    let disks: Vec<SnapshotOfDisk> = observed.parts.iter().map(|(of, _)| of.clone()).collect();
    let was_taken = snapshot.status.as_ref().is_some_and(|status| status.taken_at.is_some());
    let parts = || observed.parts.iter().filter_map(|(_, part)| part.as_ref());
    let is_taken =
        was_taken || parts().any(|part| part.status.as_ref().is_some_and(|status| status.taken_at.is_some()));
    let missing: Vec<&SnapshotOfDisk> =
        observed.parts.iter().filter(|(_, part)| part.is_none()).map(|(of, _)| of).collect();
    let is_to_be_created = !missing.is_empty() && !is_taken && observed.incomplete.is_none();
    let is_late = is_to_be_created
        && snapshot.is_of_stop()
        && observed.vm.as_ref().is_none_or(|vm| !is_asked_for(snapshot, vm));
    let vm = observed.vm.as_deref();
    let create = match is_to_be_created && !is_late {
        false => Vec::new(),
        true => missing.iter().filter_map(|of| new_part(snapshot, vm, of, disks.len())).collect(),
    };
    if is_late {
        dependencies.push(Dependency::Object(key_of(snapshot, ObjectKind::VM, &snapshot.spec.vm)));
    }
    let obstacle = obstacle(snapshot, observed, is_taken)
        .or_else(|| differing_moments(parts()))
        .or_else(|| if was_taken { None } else { without_memory(snapshot, parts()) })
        .or_else(|| is_late.then(|| too_late(snapshot)));
    let readiness = obstacle.unwrap_or_else(|| readiness_of(&observed.parts));
    // Without the last of them it is not decided: the disks are known again once they are back.
    let disks = if observed.incomplete.is_some() { Vec::new() } else { disks };
    let taken = if missing.is_empty() { moment(parts()) } else { None };
    Plan::blocked(Decision { disks, create, readiness, taken }, dependencies)
}

/// Returns why the snapshot is not of all disks, whatever the DiskSnapshots report.
fn obstacle(snapshot: &VMSnapshot, observed: &Observed, is_taken: bool) -> Option<Readiness> {
    let stalled = |reason, text| Some(Readiness::Stalled(reason, text));
    if let Some(total) = observed.incomplete {
        let found = observed.parts.len();
        let text = format!(
            "{found} of its {total} DiskSnapshots are there: delete the VMSnapshot, and create another"
        );
        return stalled(Reason::SnapshotLost, text);
    }
    for (SnapshotOfDisk { disk, snapshot: name }, part) in &observed.parts {
        match part {
            Some(part) if !is_part_of(part, snapshot) => return Some(foreign(snapshot, part)),
            Some(part) if part.metadata.deletion_timestamp.is_some() => {
                let text = format!(
                    "DiskSnapshot {name} of Disk {disk} is being deleted: what is left is not of all disks"
                );
                return stalled(Reason::SnapshotLost, text);
            }
            None if is_taken => {
                let text = format!(
                    "DiskSnapshot {name} of Disk {disk} was deleted: what is left is not of all disks. Delete the VMSnapshot, and create another"
                );
                return stalled(Reason::SnapshotLost, text);
            }
            _ => {}
        }
    }
    None
}

/// Returns the readiness of parts of different moments: an agent that does not know VMSnapshots takes each by itself.
fn differing_moments<'a>(parts: impl Iterator<Item = &'a Arc<DiskSnapshot>>) -> Option<Readiness> {
    let moments: BTreeSet<&str> =
        parts.filter_map(|part| part.status.as_ref()?.taken_at.as_deref()).collect();
    (moments.len() > 1).then(|| {
        let text = "its DiskSnapshots were taken at different moments: upgrade berth on the host of the disks, delete the VMSnapshot, and \
                    create another";
        Readiness::Stalled(Reason::SnapshotInterrupted, text.to_owned())
    })
}

/// Returns the readiness of parts that were taken without the memory: an agent that does not know it takes the disks alone.
fn without_memory<'a>(
    snapshot: &VMSnapshot,
    mut parts: impl Iterator<Item = &'a Arc<DiskSnapshot>>,
) -> Option<Readiness> {
    let lacks_it = |part: &Arc<DiskSnapshot>| {
        part.status.as_ref().is_some_and(|status| status.taken_at.is_some() && status.memory != Some(true))
    };
    (snapshot.spec.memory && parts.any(lacks_it)).then(|| {
        let text = "it was taken without the guest's memory: upgrade berth on the host of the VM, delete the VMSnapshot, and create another";
        Readiness::Stalled(Reason::SnapshotInterrupted, text.to_owned())
    })
}

/// Returns the readiness of the parts together: that of the first that needs a person, else of the first that is not ready.
fn readiness_of(parts: &[(SnapshotOfDisk, Option<Arc<DiskSnapshot>>)]) -> Readiness {
    let of_part = |(of, part): &(SnapshotOfDisk, Option<Arc<DiskSnapshot>>)| {
        let name = &of.snapshot;
        let Some(part) = part else {
            return Readiness::Reconciling(
                Reason::Provisioning,
                format!("DiskSnapshot {name} is being created"),
            );
        };
        let conditions = part.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        let Some(ready) = condition::find(conditions, ConditionType::Ready.as_str()) else {
            let text = format!("DiskSnapshot {name} is not taken yet");
            return Readiness::Reconciling(Reason::Provisioning, text);
        };
        let known = Reason::ALL.iter().find(|reason| reason.as_str() == ready.reason);
        let reason = known.copied().unwrap_or(Reason::Provisioning);
        let text = format!("DiskSnapshot {name} of Disk {}: {}", of.disk, ready.message);
        match ready.status.as_str() {
            "True" => Readiness::Ready(Reason::Available, String::new()),
            "Unknown" => Readiness::Unknown(reason, text),
            _ if condition::is_true(conditions, ConditionType::Stalled) => Readiness::Stalled(reason, text),
            _ => Readiness::Reconciling(reason, text),
        }
    };
    let all: Vec<Readiness> = parts.iter().map(of_part).collect();
    let stalled = all.iter().find(|readiness| matches!(readiness, Readiness::Stalled(..)));
    let unready = || all.iter().find(|readiness| !matches!(readiness, Readiness::Ready(..)));
    stalled.or_else(unready).cloned().unwrap_or(Readiness::Ready(Reason::Available, String::new()))
}

/// Returns the moment of the parts, once all of them are taken.
fn moment<'a>(parts: impl Iterator<Item = &'a Arc<DiskSnapshot>>) -> Option<(String, Consistency)> {
    let mut moment = None;
    for part in parts {
        let status = part.status.as_ref()?;
        moment.get_or_insert((status.taken_at.clone()?, status.consistency?));
    }
    moment
}

fn new_part(
    snapshot: &VMSnapshot,
    vm: Option<&VM>,
    of: &SnapshotOfDisk,
    parts: usize,
) -> Option<DiskSnapshot> {
    let mut part = DiskSnapshot::new(
        of.snapshot.as_str(),
        DiskSnapshotSpec { disk: of.disk.clone(), ..DiskSnapshotSpec::default() },
    );
    part.metadata.namespace = snapshot.namespace();
    part.metadata.labels = Some([(VM_SNAPSHOT_LABEL.to_owned(), snapshot.name_any())].into());
    let mut annotations = BTreeMap::from([(VM_SNAPSHOT_PARTS_ANNOTATION.to_owned(), parts.to_string())]);
    if snapshot.spec.memory {
        annotations.insert(VM_SNAPSHOT_MEMORY_ANNOTATION.to_owned(), "true".to_owned());
    }
    part.metadata.annotations = Some(annotations);
    let of_vm = vm.map(|vm| Inherited::of(&vm.metadata)).unwrap_or_default();
    of_vm.with(&snapshot.metadata).add_to(&mut part.metadata);
    part.metadata.finalizers = Some(vec![HOST_FINALIZER.to_owned()]);
    part.metadata.owner_references = Some(vec![OwnerReference {
        api_version: VMSnapshot::api_version(&()).into_owned(),
        kind: VMSnapshot::kind(&()).into_owned(),
        name: snapshot.name_any(),
        uid: snapshot.uid()?,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    Some(part)
}
