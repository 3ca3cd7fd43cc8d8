//! The files of volumes as a machine opens them, at its start or later.
//!
//! A machine is described before it is started, and a disk before it is plugged in. A volume that was restored, moved or continued after a
//! snapshot meanwhile has another file, and its former one may be left, after a crash or an error: what a guest wrote to that would be lost
//! with it.

use std::collections::BTreeMap;

use berth_qemu::machine::{DiskKey, DiskSpec, Format};

use super::note::Note;
use super::{LinuxVolumes, Result};
use crate::SystemError;

const FORMER: &str = "it has another file than when the machine was described";

impl LinuxVolumes {
    /// Returns disks with the chains of files that their volumes are based on now.
    ///
    /// *Errors*: [`SystemError::PoolAway`] if the pool of one of them is; [`SystemError::VolumeBusy`] if the file is a former one of its volume.
    pub(in super::super) fn with_chains(&self, disks: Vec<DiskSpec>) -> Result<Vec<DiskSpec>> {
        let refreshed = disks.into_iter().map(|disk| {
            let Some(pool) = self.layout.pool_of(&disk.file) else { return Ok(disk) };
            self.pool_folders.ensure_there(&pool)?;
            self.ensure_present(&pool, &disk)?;
            if disk.backing.is_none() {
                return Ok(disk);
            }
            match self.volume(&pool, &disk.id)? {
                Some(volume) if volume.path == disk.file => Ok(DiskSpec { backing: volume.backing, ..disk }),
                _ => Ok(disk),
            }
        });
        refreshed.collect()
    }

    /// Checks that the file of a disk is the one that the note of its volume names, if there is a note.
    pub(in super::super) fn ensure_present(&self, pool: &str, disk: &DiskSpec) -> Result<()> {
        let place = self.place(pool, &disk.id)?;
        let Some(Ok(note)) = Note::read(&place.note)? else { return Ok(()) };
        match note.moved_to.is_some() || place.file != disk.file {
            true => Err(SystemError::VolumeBusy { id: disk.id.clone(), detail: FORMER }),
            false => Ok(()),
        }
    }

    /// Returns the keys of the encrypted disks in files among these, by their ids.
    pub(in super::super) fn keys_of(&self, disks: &[DiskSpec]) -> Result<BTreeMap<String, DiskKey>> {
        let mut keys = BTreeMap::new();
        for disk in disks.iter().filter(|disk| disk.format == Format::EncryptedQcow2) {
            keys.insert(disk.id.clone(), self.key_of_disk(disk)?);
        }
        Ok(keys)
    }

    /// Returns the key of an encrypted disk.
    fn key_of_disk(&self, disk: &DiskSpec) -> Result<DiskKey> {
        let lost = || SystemError::VolumeLost { id: disk.id.clone() };
        let pool = self.layout.pool_of(&disk.file).ok_or_else(lost)?;
        let place = self.place(&pool, &disk.id)?;
        let note = Note::read(&place.note)?.ok_or_else(lost)?.map_err(|detail| place.damaged(&detail))?;
        self.keys.key_of(&disk.id, note.encryption.as_ref())?.ok_or_else(lost)
    }
}

#[cfg(test)]
mod tests {
    use berth_qemu::machine::{Bus, Cache};

    use super::super::snapshots::tests::{Fixture, ID, POOL, snapshot};
    use super::*;
    use crate::VolumeFacts;

    fn disk(volume: &VolumeFacts) -> DiskSpec {
        DiskSpec {
            id: volume.id.clone(),
            file: volume.path.clone(),
            format: volume.format,
            backing: volume.backing.clone(),
            serial: volume.id.clone(),
            wwn: None,
            boot: true,
            read_only: false,
            target: None,
            cache: Cache::Writeback,
            bus: Bus::VirtioScsi,
            keeps_space: false,
            shared: false,
        }
    }

    #[test]
    fn a_machine_is_not_started_on_a_former_file_of_its_volume() {
        let f = Fixture::new();
        let before = f.found(ID);
        let start = |volume: &VolumeFacts| f.volumes.with_chains(vec![disk(volume)]);
        assert_eq!(start(&before).expect("present"), [disk(&before)]);
        // The call ends before the former name is removed.
        let now = f.volumes.begin_snapshot(&snapshot("s-1")).expect("begun");
        assert!(before.path.exists());
        let error = start(&before).expect_err("the volume has continued");
        assert_eq!((error.variant().as_str(), error.retry()), ("VolumeBusy", crate::Retry::Backoff));
        assert_eq!(start(&now).expect("present"), [disk(&now)]);
        // The former file of a move could not be removed.
        let place = f.volumes.place(POOL, ID).expect("a place");
        let note = Note::read(&place.note).expect("read").expect("there").expect("a note");
        Note { moved_to: Some("slow".to_owned()), ..note }.write(&place.note).expect("written");
        assert!(now.path.exists());
        assert_eq!(start(&now).expect_err("it is in another pool").variant(), "VolumeBusy");
    }
}
