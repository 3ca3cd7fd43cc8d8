//! Disks of a running machine: how a volume becomes a disk of QEMU, and how it leaves. VMs and attachments plug disks the
//! same way.

use berth_api::{Disk, DiskLimits, Quantity, VM};
use berth_qemu::block::{IoLimits, ObservedDisk, Unplugged};
use berth_qemu::machine::{Bus, DiskSpec};

use crate::context::Context;
use crate::error::Error;
use crate::index::{Tables, class_of, volume_of};
use crate::key::ObjectName;
use crate::machine::{GuestFacts, Machine, MachineError};
use berth_host::VolumeFacts;

/// Returns a volume as QEMU's disk configuration. Device and node are named after the volume's id.
pub(crate) fn disk_spec(volume: &VolumeFacts, serial: &str, boot: bool, target: Option<u8>) -> DiskSpec {
    DiskSpec {
        id: volume.id.clone(),
        file: volume.path.clone(),
        format: volume.format,
        backing: volume.backing.clone(),
        serial: serial.to_owned(),
        wwn: None,
        boot,
        read_only: false,
        target,
        cache: volume.cache,
        bus: Bus::VirtioScsi,
        keeps_space: volume.reserved.is_some(),
        shared: volume.is_shared(),
    }
}

/// Returns the ceilings that a disk has: its own, or those of the class of its VM. None: its VM or the class is not known here.
pub(crate) fn limits_of(tables: &Tables, disk: &Disk) -> Option<IoLimits> {
    match disk.spec.limits.as_deref() {
        Some(own) => Some(io_limits(Some(own))),
        None => class_limits(tables, disk),
    }
}

/// Returns the ceilings of a disk that has none of its own: those of the class of its VM. A disk for several VMs has none. None: its VM
/// or the class is not known here.
pub(crate) fn class_limits(tables: &Tables, disk: &Disk) -> Option<IoLimits> {
    if disk.is_for_many() {
        return Some(IoLimits::default());
    }
    let user = disk.status.as_ref()?.used_by.first()?;
    let name = ObjectName::of(disk).beside(&user.vm);
    let vm = tables.vms.get(&name)?;
    if vm.metadata.uid.as_ref() != Some(&user.vm_uid) {
        return None;
    }
    if vm.spec.class.is_none() {
        return Some(IoLimits::default());
    }
    let class = class_of(tables, &name, &vm);
    let values = vm.class_values(class.as_deref().map(|class| &class.spec))?;
    Some(io_limits(values.disk_limits.as_deref()))
}

/// Whether a disk has ceilings, as far as they are known.
pub(crate) fn is_limited(tables: &Tables, disk: &Disk) -> bool {
    limits_of(tables, disk).is_some_and(|limits| limits != IoLimits::default())
}

/// Whether a disk of this VM has ceilings.
pub(crate) fn has_limited_disk(tables: &Tables, vm: &VM) -> bool {
    let namespace = vm.metadata.namespace.as_deref().unwrap_or_default();
    let is_its = |disk: &Disk| {
        let mut users = disk.status.iter().flat_map(|status| &status.used_by);
        users.any(|user| Some(&user.vm_uid) == vm.metadata.uid.as_ref())
    };
    tables.disks.in_namespace(namespace).any(|(_, disk)| is_its(disk) && is_limited(tables, disk))
}

/// Returns the ceilings that a Disk declares in QEMU's form. Quantities that did not pass admission count as none.
pub(crate) fn io_limits(declared: Option<&DiskLimits>) -> IoLimits {
    let Some(limits) = declared else { return IoLimits::default() };
    let rate = |rate: Option<i64>| rate.and_then(|rate| u64::try_from(rate).ok()).unwrap_or_default();
    let bytes = |bytes: &Option<Quantity>| bytes.as_ref().and_then(|b| b.bytes().ok()).unwrap_or_default();
    let has_burst = limits.burst_iops.is_some() || limits.burst_bandwidth.is_some();
    IoLimits {
        iops: rate(limits.iops),
        read_iops: rate(limits.read_iops),
        write_iops: rate(limits.write_iops),
        bandwidth: bytes(&limits.bandwidth),
        read_bandwidth: bytes(&limits.read_bandwidth),
        write_bandwidth: bytes(&limits.write_bandwidth),
        burst_iops: rate(limits.burst_iops),
        burst_bandwidth: bytes(&limits.burst_bandwidth),
        burst_seconds: if has_burst { rate(Some(limits.burst_length())) } else { 0 },
    }
}

/// Gives disks of a machine their ceilings, before the guest uses them. Their own reconciles apply later
/// changes.
pub(crate) async fn limit(ctx: &Context, machine: &Machine, volumes: &[&str]) -> Result<(), Error> {
    let declared: Vec<(String, IoLimits)> = {
        let tables = ctx.index.read();
        let disks = tables.disks.all().filter_map(|(_, disk)| {
            let volume = volume_of(disk).filter(|volume| volumes.contains(volume))?;
            let limits = limits_of(&tables, disk).filter(|limits| *limits != IoLimits::default())?;
            Some((volume.to_owned(), limits))
        });
        disks.collect()
    };
    for (volume, limits) in declared {
        machine.set_limits(&volume, limits).await?;
    }
    Ok(())
}

/// Unplugs a volume from a machine.
///
/// *Errors:* [`Error::StillHeld`] while the guest keeps the disk: the caller retries.
pub(crate) async fn unplug(ctx: &Context, instance: &str, volume: &str) -> Result<(), Error> {
    let machine = ctx.machines.get(instance).ok_or(MachineError::Gone)?;
    if machine.unplug(volume).await? == Unplugged::Waiting {
        return Err(Error::StillHeld { name: volume.to_owned() });
    }
    ctx.machines.unreserve(instance, volume);
    // The driver's latest observation decides what counts as held.
    machine.state().await?;
    // Last: the machine has released the disk, whether or not the file's ownership changes now.
    Ok(ctx.system.revoke_disk(instance, volume).await?)
}

/// Has the QEMU of a machine close a volume that it has no disk of, and releases the volume. Does nothing if it has a disk of it by now.
///
/// *Errors:* as [`unplug`].
pub(crate) async fn close_left(ctx: &Context, instance: &str, volume: &str) -> Result<(), Error> {
    let machine = ctx.machines.get(instance).ok_or(MachineError::Gone)?;
    match machine.state().await?.disks.iter().any(|disk| disk.id == volume) {
        true => Ok(()),
        false => unplug(ctx, instance, volume).await,
    }
}

/// Returns the disk's device in the guest: as its agent reports it, else the path udev derives from the serial number.
pub(crate) fn device(disk: &ObservedDisk, guest: &GuestFacts) -> String {
    match guest.devices.get(&disk.serial) {
        Some(device) => device.clone(),
        None => format!("/dev/disk/by-id/{}{}", disk.bus.by_id_prefix(), disk.serial),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::VMClass;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::{Index, Indexed};

    fn put<K: Indexed + serde::de::DeserializeOwned>(index: &Index, name: &str, spec: Value, status: Value) {
        let metadata = json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"});
        let object = json!({"metadata": metadata, "spec": spec, "status": status});
        index.apply::<K>(Event::Apply(serde_json::from_value(object).expect("an object")));
    }

    fn disk(spec: Value, user: Option<&str>) -> Disk {
        let users = user.map(|uid| json!({"use": "Fixed", "vm": "web", "vmUid": uid}));
        let users: Vec<Value> = users.into_iter().collect();
        let mut whole = json!({"size": "1Gi"});
        for (key, value) in spec.as_object().cloned().unwrap_or_default() {
            whole[key] = value;
        }
        let object = json!({"metadata": {"name": "data", "namespace": "ns"}, "spec": whole, "status": {"usedBy": users}});
        serde_json::from_value(object).expect("a Disk")
    }

    #[test]
    fn a_disk_has_its_own_ceilings_or_those_of_the_class_of_its_vm() {
        let index = Index::default();
        let disks = json!([{"name": "data", "boot": true}]);
        put::<VM>(&index, "web", json!({"class": "slow", "disks": disks}), json!(null));
        let iops = |disk: Disk| limits_of(&index.read(), &disk).map(|limits| limits.iops);
        assert_eq!(iops(disk(json!({}), Some("web"))), None, "the class is not known yet");
        put::<VMClass>(&index, "slow", json!({"cpus": 1, "diskLimits": {"iops": 100}}), json!(null));
        assert_eq!(iops(disk(json!({}), Some("web"))), Some(100));
        assert_eq!(iops(disk(json!({"limits": {"iops": 7}}), Some("web"))), Some(7));
        assert_eq!(iops(disk(json!({"limits": {"readIops": 7}}), Some("web"))), Some(0), "all are its own");
        assert_eq!(iops(disk(json!({}), Some("former"))), None, "of a VM that is gone");
        assert_eq!(iops(disk(json!({}), None)), None, "no VM has it");
        assert_eq!(iops(disk(json!({"access": "ReadOnlyMany"}), Some("web"))), Some(0), "it has several VMs");
        assert!(is_limited(&index.read(), &disk(json!({}), Some("web"))));
        put::<VM>(&index, "web", json!({"cpus": 1, "disks": disks}), json!(null));
        assert_eq!(iops(disk(json!({}), Some("web"))), Some(0), "its VM has no class any more");
    }
}
