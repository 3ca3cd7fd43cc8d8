//! Disks of a running machine: how a volume becomes a disk of QEMU, and how it leaves. VMs and attachments plug disks the
//! same way.

use berth_qemu::block::Unplugged;
use berth_qemu::machine::DiskSpec;

use crate::context::Context;
use crate::error::Error;
use crate::machine::{GuestFacts, MachineError};
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
    }
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
pub(crate) fn device(serial: &str, guest: &GuestFacts) -> String {
    match guest.devices.get(serial) {
        Some(device) => device.clone(),
        None => format!("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}"),
    }
}
