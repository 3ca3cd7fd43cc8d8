//! The snapshots of a volume that moves to another pool of this host: they go with it.
//!
//! ```text
//!                  note in the target:               note of the volume    owner in the    no owner here: the file goes,
//!                  owner, moved from here            here: moved           target          or is the base of copies only
//!   snapshot here ──────────────────────▶ ○ ─────────────────────▶ ● ───────────────▶ ● ───────────────▶ snapshot there
//! ```
//!
//! The one step that counts is that of the volume, see `moves`: before it the snapshots are here, and after it there. A snapshot that
//! was deleted here between this step and the next one is deleted there.

use std::collections::BTreeSet;

use super::super::layout::check_name;
use super::copying::{CHANGED, busy};
use super::note::Note;
use super::snapshot_note::SnapshotNote;
use super::snapshots::SnapshotPlace;
use super::{LinuxVolumes, Result, exists};
use crate::{MOST_SNAPSHOTS, NewMove, SystemError};

/// The greatest number of files of snapshots that are copied in one move: each of them is open meanwhile.
const MOST_FILES: usize = 128;
const MERGING: &str = "files of deleted snapshots below it are being merged: it is moved afterwards";
const LOST: &str = "the file of a snapshot that would go with the disk is lost: bring it back, or delete the DiskSnapshot with the reason SnapshotLost";
const TOO_MANY: &str =
    "more than 128 files of snapshots would be copied with the disk: delete some of its DiskSnapshots";

/// The files of snapshots that a volume needs in another pool.
#[derive(Default)]
pub(super) struct SnapshotFiles {
    /// Those that the target does not have, each after the one that it is based on.
    pub(super) copied: Vec<(SnapshotPlace, SnapshotNote)>,
    /// Those that the target has already.
    pub(super) reused: BTreeSet<String>,
}

impl SnapshotFiles {
    pub(super) fn ids(&self) -> Vec<String> {
        let copied = self.copied.iter().map(|(at, _)| &at.id);
        copied.chain(&self.reused).cloned().collect()
    }
}

impl LinuxVolumes {
    /// Returns the pool, of those that are there, in which an object owns this snapshot.
    pub(in super::super) fn pool_of_snapshot(&self, id: &str) -> Result<Option<String>> {
        check_name("snapshot", id)?;
        for pool in self.pools()? {
            let note = self.snapshot_place(&pool, id)?.read()?;
            if note.is_some_and(|note| note.owner_here().is_some()) {
                return Ok(Some(pool));
            }
        }
        Ok(None)
    }

    /// Collects the files below a volume, and those of its snapshots, also of those that it was restored from and is not based on any
    /// more. The caller holds the lock.
    pub(super) fn snapshot_files(&self, new: &NewMove, note: &Note) -> Result<SnapshotFiles> {
        let mut files = SnapshotFiles::default();
        let own = self.own_snapshots(&new.from, &new.id)?;
        for top in note.snapshot.iter().chain(&own) {
            let (mut found, mut next) = (Vec::new(), Some(top.clone()));
            while let Some(id) = next.take() {
                if files.copied.iter().any(|(at, _)| at.id == id) {
                    break;
                }
                if self.snapshot(&new.to, &id)?.is_some_and(|facts| facts.taken.is_some()) {
                    files.reused.insert(id);
                    break;
                }
                let at = self.snapshot_place(&new.from, &id)?;
                let below = at.read()?.ok_or_else(|| SystemError::SnapshotLost { id: id.clone() })?;
                if below.merge.is_some() || exists(&self.snapshot_place(&new.to, &id)?.note)? {
                    return Err(busy(new, MERGING));
                }
                if !exists(&at.file)? {
                    return Err(SystemError::Invalid { what: "pool", value: new.to.clone(), why: LOST });
                }
                if found.len() > MOST_SNAPSHOTS {
                    let detail = format!("there are more than {MOST_SNAPSHOTS} files below snapshot {top}");
                    return Err(SystemError::VolumeDamaged { id: new.id.clone(), detail });
                }
                next.clone_from(&below.snapshot);
                found.push((at, below));
            }
            files.copied.extend(found.into_iter().rev());
        }
        match files.copied.len() > MOST_FILES {
            true => Err(SystemError::Invalid { what: "pool", value: new.to.clone(), why: TOO_MANY }),
            false => Ok(files),
        }
    }

    /// Returns the snapshots of a volume that objects own in this pool.
    fn own_snapshots(&self, pool: &str, volume: &str) -> Result<Vec<String>> {
        let mut own = Vec::new();
        for id in self.snapshot_ids(pool)? {
            let note = self.snapshot_place(pool, &id)?.read()?;
            if note.is_some_and(|note| note.volume_id == volume && note.owner_here().is_some()) {
                own.push(id);
            }
        }
        Ok(own)
    }

    /// Records in the target, which has their files, that the snapshots of a volume come with it. The caller holds the lock.
    pub(super) fn announce_snapshots(&self, new: &NewMove) -> Result<()> {
        for id in self.own_snapshots(&new.from, &new.id)? {
            let there = self.snapshot_place(&new.to, &id)?;
            let (here, Some(noted)) = (self.snapshot_place(&new.from, &id)?.read()?, there.read()?) else {
                return Err(busy(new, CHANGED));
            };
            // An earlier move here was interrupted before its last step.
            if noted.owner_here().is_some() {
                continue;
            }
            let Some(SnapshotNote { owner, encryption, .. }) = here else { continue };
            let moved_from = Some(new.from.clone());
            SnapshotNote { owner, encryption, moved_from, ..noted }.write(&there.note)?;
        }
        Ok(())
    }

    /// Makes the snapshots of a volume that has moved those of its new pool. The caller holds the lock.
    pub(super) fn settle_snapshots(&self, from: &str, to: &str, volume: &str) -> Result<()> {
        for id in self.snapshot_ids(to)? {
            let (here, there) = (self.snapshot_place(from, &id)?, self.snapshot_place(to, &id)?);
            let Some(noted) = there.read()?.filter(|noted| noted.volume_id == volume) else { continue };
            let former = here.read()?;
            let is_owned = if noted.moved_from.as_deref() == Some(from) {
                let owner = former.as_ref().and_then(|former| former.owner.clone());
                let is_owned = owner.is_some();
                SnapshotNote { owner, moved_from: None, ..noted }.write(&there.note)?;
                is_owned
            } else {
                noted.owner_here().is_some()
            };
            if let Some(former) = former.filter(|former| is_owned && former.owner.is_some()) {
                SnapshotNote { owner: None, ..former }.write(&here.note)?;
            }
        }
        Ok(())
    }

    /// Makes the snapshots of a volume those of the pool that it has moved to, after its former pool was given up with all of its notes. The
    /// caller holds the lock.
    pub(super) fn adopt_announced_snapshots(&self, from: &str, to: &str, volume: &str) -> Result<()> {
        for id in self.snapshot_ids(to)? {
            let at = self.snapshot_place(to, &id)?;
            let is_announced =
                |noted: &SnapshotNote| noted.volume_id == volume && noted.moved_from.as_deref() == Some(from);
            let Some(noted) = at.read()?.filter(is_announced) else { continue };
            if !exists(&self.snapshot_place(from, &id)?.note)? {
                SnapshotNote { moved_from: None, ..noted }.write(&at.note)?;
            }
        }
        Ok(())
    }

    /// Takes back what is recorded of the snapshots of a volume in a pool that it has not moved to. The caller holds the lock.
    pub(super) fn drop_announced_snapshots(&self, pool: &str, volume: &str) -> Result<()> {
        for id in self.snapshot_ids(pool)? {
            let at = self.snapshot_place(pool, &id)?;
            let noted = at.read()?;
            if let Some(noted) = noted.filter(|noted| noted.volume_id == volume && noted.moved_from.is_some())
            {
                SnapshotNote { owner: None, moved_from: None, ..noted }.write(&at.note)?;
            }
        }
        Ok(())
    }
}
