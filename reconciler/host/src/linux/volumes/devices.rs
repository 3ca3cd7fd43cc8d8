//! Volumes that are block devices of the host. Of such a one there is only the note, which names the device: its data, size and file system
//! are not berth's, and stay when the volume is gone.
//!
//! ```text
//!               note
//!    device ───────────▶ volume ──trash──▶ device
//! ```
//!
//! A device is one volume at most. Whether it can be opened is seen anew each time: its number and its path change with the host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_qemu::machine::Cache;

use super::super::block_devices::Found;
use super::super::files;
use super::super::layout::is_name;
use super::note::Note;
use super::{LinuxVolumes, Place, Result};
use crate::{BlockDeviceFacts, NewDevice, NewVolume, SystemError, VolumeFacts, VolumeOwner};

/// Why a block device is not treated as files are.
pub(super) const REFUSED: &str = "it is a block device of the host: it has no snapshots and no copies, and stays in its pool and on its host";

/// The notes of all volumes, as far as they are about block devices.
#[derive(Debug, Default)]
struct DeviceNotes {
    /// The identities and owners of the volumes that are block devices, by the name of the device.
    taken: BTreeMap<String, (String, VolumeOwner)>,
    /// A note that cannot be read: it may name any device.
    unreadable: Option<PathBuf>,
}

impl LinuxVolumes {
    pub(in super::super) fn use_device(&self, new: &NewDevice) -> Result<VolumeFacts> {
        let _chains = self.lock(&[&new.pool])?;
        let _alone = self.devices.lock();
        let place = self.place(&new.pool, &new.id)?;
        match Note::read(&place.note)? {
            Some(note) => {
                let note = note.map_err(|detail| place.damaged(&detail))?;
                if note.device.as_ref() != Some(&new.device) {
                    return Err(place.damaged("it is another volume than that block device"));
                }
            }
            None => self.take_device(&place, new)?,
        }
        self.volume(&new.pool, &new.id)?.ok_or_else(|| SystemError::VolumeLost { id: new.id.clone() })
    }

    fn take_device(&self, place: &Place, new: &NewDevice) -> Result<()> {
        let refuse = |detail: String| SystemError::BlockDevice { name: new.device.clone(), detail };
        if let Some(pool) = self.pool_folders.first_away() {
            return Err(refuse(format!(
                "another volume may be it, in the storage pool {pool}, which is away"
            )));
        }
        let mut notes = self.device_notes()?;
        if let Some((id, owner)) = notes.taken.remove(&new.device) {
            let VolumeOwner { namespace, name, .. } = owner;
            return Err(refuse(format!("Disk {namespace}/{name} has it (volume {id})")));
        }
        if let Some(note) = notes.unreadable {
            return Err(refuse(format!(
                "another volume may be it, whose note {} cannot be read: restore the note, or move it elsewhere",
                note.display()
            )));
        }
        let Found { size, problem, .. } = self.devices.look(&new.device);
        if let Some(problem) = problem {
            return Err(refuse(problem));
        }
        if let Some(least) = new.size.filter(|least| *least > size) {
            return Err(refuse(format!("the disk is to have {least} bytes, and it has {size}")));
        }
        files::ensure_folder(&self.layout.volumes(&new.pool))?;
        let blank = NewVolume {
            pool: new.pool.clone(),
            id: new.id.clone(),
            size: None,
            base: None,
            snapshot: None,
            file: None,
            thick: false,
            // The note is that of raw data: an agent of an earlier version leaves such a volume alone.
            shared: true,
            owner: new.owner.clone(),
            encryption: None,
        };
        let note = Note { device: Some(new.device.clone()), complete: true, ..Note::new(&blank, None) };
        note.write(&place.note)?;
        tracing::info!(volume = place.id, device = new.device, size, "block device taken");
        Ok(())
    }

    fn device_notes(&self) -> Result<DeviceNotes> {
        let mut found = DeviceNotes::default();
        for pool in self.pools()? {
            let folder = self.layout.volumes(&pool);
            for name in files::names(&folder)? {
                let Some(id) = name.strip_suffix(".json").filter(|id| is_name(id)) else { continue };
                let path = folder.join(&name);
                match Note::read(&path)? {
                    Some(Ok(Note { device: Some(device), owner, .. })) => {
                        found.taken.insert(device, (id.to_owned(), owner));
                    }
                    Some(Err(_)) => found.unreadable = Some(path),
                    Some(Ok(_)) | None => {}
                }
            }
        }
        Ok(found)
    }

    /// Returns the block devices that are offered, as they are now.
    pub(in super::super) fn block_devices(&self) -> Result<Vec<BlockDeviceFacts>> {
        if self.devices.is_empty() {
            return Ok(Vec::new());
        }
        let held =
            self.device_notes()?.taken.into_iter().map(|(device, (_, owner))| (device, owner)).collect();
        Ok(self.devices.facts(&held))
    }

    /// Returns the name of the block device that a volume is. None: it is a file, or there is none.
    pub(in super::super) fn device_of(&self, id: &str) -> Result<Option<String>> {
        if self.devices.is_empty() {
            return Ok(None);
        }
        let notes = self.device_notes()?.taken;
        Ok(notes.into_iter().find_map(|(device, (of, _))| (of == id).then_some(device)))
    }

    /// The facts of a volume that is a block device, also while that is not there.
    pub(super) fn device_facts(&self, place: &Place, note: &Note, device: &str) -> VolumeFacts {
        let Found { path, size, problem } = self.devices.look_for(&place.id, device);
        VolumeFacts {
            pool: place.pool.clone(),
            id: place.id.clone(),
            size,
            base: None,
            owner: note.owner.clone(),
            path,
            format: note.format(),
            backing: None,
            cache: Cache::default(),
            reserved: None,
            retained: note.retained,
            pending_snapshot: None,
            restores: Vec::new(),
            restoring: false,
            encryption: None,
            problem,
        }
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
