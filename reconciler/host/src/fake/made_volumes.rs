//! Volumes that are made on the fake host.

use berth_qemu::machine::{Backing, Cache, Format};

use super::FakeSystem;
use super::state::{Volume, volume_path};
use crate::volumes::check_encryption;
use crate::{Fill, NewDevice, NewVolume, Result, SystemError, VolumeFacts};

impl FakeSystem {
    pub(super) fn facts_of(&self, volume: &Volume) -> VolumeFacts {
        let size = self.files.size_of(&volume.facts.path).unwrap_or(0);
        VolumeFacts { size, ..volume.facts.clone() }
    }

    /// Makes a volume that does not depend on an image. One that is there is returned as it is.
    pub(super) fn make_filled(&self, new: &NewVolume, fill: &Fill) -> Result<VolumeFacts> {
        let at_least = |least: u64| match new.size {
            Some(size) if size < least => Err(SystemError::SmallerThanImage { size, image: least }),
            size => Ok(size.or(Some(least))),
        };
        let size = match (fill, &new.base) {
            (Fill::Image, Some(digest)) => {
                let found = self.state().images.get(digest).map(|image| image.virtual_size);
                at_least(found.ok_or_else(|| SystemError::ImageNotCached { digest: digest.clone() })?)?
            }
            (Fill::Snapshot { id, .. }, _) => {
                let found = self.state().snapshots.get(id).map(|snapshot| snapshot.facts.clone());
                let taken = found.filter(|facts| facts.taken.is_some());
                at_least(taken.ok_or_else(|| SystemError::SnapshotLost { id: id.clone() })?.size)?
            }
            (Fill::RawFile(file), _) => {
                let awaited =
                    || SystemError::FileAwaited { path: file.clone(), why: "there is no such file" };
                at_least(self.files.size_of(file).ok_or_else(awaited)?)?
            }
            _ => new.size,
        };
        self.make_volume(&NewVolume { size, base: None, ..new.clone() })
    }

    /// Makes a block device of the facts of this host a volume.
    pub(super) fn device_used(&self, new: &NewDevice) -> Result<VolumeFacts> {
        let mut state = self.state();
        state.ensure_there(&new.pool)?;
        if let Some(volume) = state.volumes.get(&new.id) {
            return Ok(state.with_device(self.facts_of(volume)));
        }
        let refuse =
            |detail: &str| SystemError::BlockDevice { name: new.device.clone(), detail: detail.to_owned() };
        let mut devices = state.facts.block_devices.iter_mut();
        let device = devices.find(|device| device.name == new.device);
        let device = device.ok_or_else(|| refuse("this host does not offer it"))?;
        if let Some(problem) = &device.problem {
            return Err(refuse(problem));
        }
        if device.held_by.is_some() {
            return Err(refuse("another Disk has it"));
        }
        if new.size.is_some_and(|least| least > device.size) {
            return Err(refuse("it is smaller than the disk is to be"));
        }
        device.held_by = Some(new.owner.clone());
        let (path, size) = (device.path.clone(), device.size);
        self.files.put(&path, size);
        let facts = VolumeFacts {
            problem: None,
            encryption: None,
            retained: false,
            reserved: None,
            pool: new.pool.clone(),
            id: new.id.clone(),
            size,
            base: None,
            owner: new.owner.clone(),
            path,
            format: Format::Raw,
            cache: Cache::DirectIoUring,
            pending_snapshot: None,
            restores: Vec::new(),
            restoring: false,
            backing: None,
        };
        state.volumes.insert(new.id.clone(), Volume { facts: facts.clone() });
        Ok(facts)
    }

    pub(super) fn make_volume(&self, new: &NewVolume) -> Result<VolumeFacts> {
        let path = volume_path(&new.pool, &new.id);
        let mut state = self.state();
        state.ensure_there(&new.pool)?;
        if let Some(volume) = state.volumes.get(&new.id) {
            return Ok(self.facts_of(volume));
        }
        let (backing, least) = match (&new.snapshot, &new.base) {
            (Some(id), _) => {
                let snapshot = state.snapshots.get(id).filter(|s| s.facts.taken.is_some());
                let snapshot = snapshot.ok_or_else(|| SystemError::SnapshotLost { id: id.clone() })?;
                check_encryption(new, snapshot.facts.encryption.as_deref())?;
                (Some(snapshot.backing.clone()), snapshot.facts.size)
            }
            (None, None) => match &new.file {
                Some(file) => {
                    check_encryption(new, None)?;
                    let awaited =
                        || SystemError::FileAwaited { path: file.clone(), why: "there is no such file" };
                    (None, self.files.size_of(file).ok_or_else(awaited)?)
                }
                None => (None, 0),
            },
            (None, Some(digest)) => {
                let image = state.images.get(digest);
                let image = image.ok_or_else(|| SystemError::ImageNotCached { digest: digest.clone() })?;
                let backing = Backing { file: image.path.clone(), format: image.format, backing: None };
                (Some(backing), image.virtual_size)
            }
        };
        let size = new.size.unwrap_or(least);
        if size < least {
            return Err(SystemError::SmallerThanImage { size, image: least });
        }
        state.keys.key_of(&new.id, new.encryption.as_deref())?;
        self.files.put(&path, size);
        if let Some(file) = &new.file {
            self.files.remove(file);
        }
        let facts = VolumeFacts {
            problem: None,
            encryption: new.encryption.clone(),
            retained: false,
            reserved: new.thick.then_some(size),
            pool: new.pool.clone(),
            id: new.id.clone(),
            size,
            base: new.base.clone(),
            owner: new.owner.clone(),
            path,
            format: match (new.shared, &new.encryption) {
                (true, _) => Format::Raw,
                (false, Some(_)) => Format::EncryptedQcow2,
                (false, None) => Format::Qcow2,
            },
            cache: if new.shared { Cache::Writeback } else { Cache::DirectIoUring },
            pending_snapshot: None,
            restores: Vec::new(),
            restoring: false,
            backing,
        };
        state.volumes.insert(new.id.clone(), Volume { facts: facts.clone() });
        Ok(facts)
    }
}
