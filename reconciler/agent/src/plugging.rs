//! Disks of a running machine: how a volume becomes a disk of QEMU, and how it leaves. VMs and attachments plug disks the
//! same way.

use berth_api::{DiskLimits, Quantity};
use berth_qemu::block::{IoLimits, ObservedDisk, Unplugged};
use berth_qemu::machine::{Bus, DiskSpec};

use crate::context::Context;
use crate::error::Error;
use crate::index::volume_of;
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

/// Gives disks of a machine the ceilings that their Disks declare, before the guest uses them. Their own reconciles apply later
/// changes.
pub(crate) async fn limit(ctx: &Context, machine: &Machine, volumes: &[&str]) -> Result<(), Error> {
    let declared: Vec<(String, IoLimits)> = {
        let tables = ctx.index.read();
        let disks = tables.disks.all().filter_map(|(_, disk)| {
            let volume = volume_of(disk).filter(|volume| volumes.contains(volume))?;
            Some((volume.to_owned(), io_limits(Some(disk.spec.limits.as_deref()?))))
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

/// Returns the disk's device in the guest: as its agent reports it, else the path udev derives from the serial number.
pub(crate) fn device(disk: &ObservedDisk, guest: &GuestFacts) -> String {
    match guest.devices.get(&disk.serial) {
        Some(device) => device.clone(),
        None => format!("/dev/disk/by-id/{}{}", disk.bus.by_id_prefix(), disk.serial),
    }
}
