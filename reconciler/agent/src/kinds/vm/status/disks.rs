//! The disks that a VM has.

use berth_api::vm::DiskAttachmentStatus;
use berth_qemu::machine::Bus;

use super::super::Observed;
use super::super::declared_disks::DeclaredDisk;
use crate::plugging::device;

/// Returns the names of disks that the machine has otherwise than declared, and the serial numbers of those that are not declared
/// any more and stay until it is off.
pub(super) fn disks_of_another_start(observed: &Observed) -> impl Iterator<Item = String> {
    let machine = observed.machine.as_ref();
    let disks = machine.map(|machine| machine.disks.as_slice()).unwrap_or_default();
    let differs = move |disk: &&DeclaredDisk| {
        machine.is_some()
            && match disks.iter().find(|d| Some(&d.id) == disk.volume_id.as_ref()) {
                Some(has) => has.bus != disk.bus || has.read_only != disk.read_only,
                None => disk.bus != Bus::VirtioScsi && !is_booted_later(disk, observed),
            }
    };
    let is_declared = |id: &str| observed.disks.iter().any(|d| d.volume_id.as_deref() == Some(id));
    let boot = observed.journal.run.as_ref().map(|run| run.boot_volume.as_str());
    let former = disks
        .iter()
        .filter(move |d| d.bus != Bus::VirtioScsi && !is_declared(&d.id) && Some(d.id.as_str()) != boot);
    let declared = observed.disks.iter().filter(differs).map(|disk| disk.name.clone());
    declared.chain(former.map(|disk| disk.serial.clone()))
}

/// Whether the machine runs and has booted from another disk than this boot disk.
pub(super) fn is_booted_later(disk: &DeclaredDisk, observed: &Observed) -> bool {
    let booted = observed.journal.run.as_ref().filter(|run| run.process.is_some());
    disk.boot && booted.is_some_and(|run| Some(&run.boot_volume) != disk.volume_id.as_ref())
}

/// Returns the disks of the spec, then those plugged by attachments.
pub(super) fn disks(observed: &Observed) -> Vec<DiskAttachmentStatus> {
    let plugged = |volume: Option<&str>| {
        let machine = observed.machine.as_ref()?;
        machine.disks.iter().find(|d| Some(d.id.as_str()) == volume)
    };
    let is_encrypted = |volume: Option<&str>| {
        let disk = observed.disks.iter().find(|disk| disk.volume_id.as_deref() == volume);
        disk.and_then(|disk| disk.volume.as_ref()).is_some_and(|facts| facts.encryption.is_some())
    };
    let entry = |name: &str, attachment: Option<&str>, volume: Option<&str>, message: Option<String>| {
        let encrypted = is_encrypted(volume);
        let plugged = plugged(volume);
        let report =
            volume.and_then(|volume| observed.reported_disks.get(volume)).cloned().unwrap_or_default();
        DiskAttachmentStatus {
            name: name.to_owned(),
            attachment: attachment.map(str::to_owned),
            attached: plugged.is_some(),
            serial: plugged.map(|d| d.serial.clone()),
            origin: report.origin,
            size: report.size,
            used: report.used,
            device: plugged.map(|d| device(d, &observed.guest)),
            cache: plugged.map(|d| if d.is_direct { "none" } else { "writeback" }.to_owned()),
            encrypted: plugged.map_or(encrypted, |d| d.is_encrypted),
            message: message.filter(|_| plugged.is_none()),
        }
    };
    let mut all: Vec<DiskAttachmentStatus> = Vec::new();
    for disk in &observed.disks {
        let message = if is_booted_later(disk, observed) {
            Some("becomes the boot disk at the next power cycle".to_owned())
        } else {
            disk.problem.clone()
        };
        all.push(entry(&disk.name, None, disk.volume_id.as_deref(), message));
    }
    for (volume, (disk, attachment)) in &observed.attachments {
        let listed = all.iter().any(|entry| entry.name == *disk);
        if !listed && plugged(Some(volume)).is_some() {
            all.push(entry(disk, Some(attachment), Some(volume), None));
        }
    }
    all
}
