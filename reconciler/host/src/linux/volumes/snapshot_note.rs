//! The note beside a snapshot's file.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::files;
use super::note::{self, Base, Note};
use super::{Result, exists};
use crate::{NewSnapshot, SealedKey, Taken, VolumeOwner};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotNote {
    /// None: no object names it (any more), and it goes with the last file that is based on it.
    pub(super) owner: Option<VolumeOwner>,
    #[serde(rename = "volumeID", alias = "encryptedVolumeID")]
    pub(super) volume_id: String,
    /// The generation of the volume's file that becomes the snapshot.
    pub(super) generation: u32,
    /// The image it is based on.
    pub(super) base: Option<Base>,
    /// The snapshot it is based on, instead of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<String>,
    /// None: it is begun and not finished.
    pub(super) taken: Option<Taken>,
    /// Its file gets the data of another snapshot: it has no data of its own any more that anything can be based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) merge: Option<NotedMerge>,
    /// The key of its file, which is that of its volume. None: it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) encryption: Option<SealedKey>,
    /// The pool that its volume is moved from: until the volume is here, it is that pool's, and so is its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved_from: Option<String>,
}

/// The merge of a snapshot's file with that of the snapshot above it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotedMerge {
    /// The snapshot above it, whose name the file gets.
    pub(super) into: String,
    /// Whether the file has all the data. If it is missing since then, it has the other name.
    pub(super) complete: bool,
}

impl SnapshotNote {
    pub(super) fn new(new: &NewSnapshot, volume: &Note) -> Self {
        Self {
            owner: new.owner.clone(),
            volume_id: new.volume.clone(),
            generation: volume.generation,
            base: volume.base.clone(),
            snapshot: volume.snapshot.clone(),
            taken: None,
            merge: None,
            encryption: volume.encryption.clone(),
            moved_from: None,
        }
    }

    /// Returns the object that owns the snapshot in this pool.
    pub(super) fn owner_here(&self) -> Option<&VolumeOwner> {
        self.owner.as_ref().filter(|_| self.moved_from.is_none())
    }

    /// Whether the file of this snapshot has the name of the one above it, which has all its data.
    pub(super) fn is_renamed(&self, file: &Path) -> Result<bool> {
        let is_complete = self.merge.as_ref().is_some_and(|merge| merge.complete);
        Ok(is_complete && !exists(file)?)
    }

    /// None: there is no note. The inner error: the note is unreadable.
    pub(super) fn read(path: &Path) -> Result<Option<std::result::Result<Self, String>>> {
        files::read_json(path)
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        note::write(path, self, self.encryption.as_ref().map(|_| note::ENCRYPTED_ID))
    }
}
