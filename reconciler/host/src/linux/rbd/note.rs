//! The note of a volume in Ceph: a file of the host that has it, and a copy in the metadata of the image, by which another host takes it.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::files::{self, blocking};
use super::super::layout::is_name;
use super::Result;
use crate::{NewVolume, Restored, SealedKey, SystemError, VolumeOwner};

/// The field with the identity of the volume in the notes of an encrypted one, in the place of `volumeID`. An agent without encryption in
/// Ceph cannot read such a note, so it leaves the volume alone: it would give its header to a guest as data.
const ENCRYPTED_ID: &str = "encryptedVolumeID";

/// The encryption of an image, in the note of a volume or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Luks {
    /// The key that opens the header.
    pub(super) key: SealedKey,
    /// The size of the header, in bytes.
    pub(super) header: u64,
}

/// The size of the header of an image, in bytes.
pub(super) fn header_of(luks: Option<&Luks>) -> u64 {
    luks.map_or(0, |luks| luks.header)
}

/// Returns the note of a volume or a snapshot as JSON.
pub(super) fn json_of<T: Serialize>(note: &T, luks: Option<&Luks>) -> Value {
    let mut json = serde_json::to_value(note).expect("our own types are plain JSON");
    if luks.is_some()
        && let Some(fields) = json.as_object_mut()
        && let Some(id) = fields.remove("volumeID")
    {
        fields.insert(ENCRYPTED_ID.to_owned(), id);
    }
    json
}

/// Lists the notes in a folder that can be read, of volumes or of snapshots.
pub(super) async fn notes_in<T: DeserializeOwned + Send + 'static>(folder: PathBuf) -> Result<Vec<T>> {
    let list = move || {
        let mut notes = Vec::new();
        for name in files::names(&folder)? {
            if name.strip_suffix(".json").is_some_and(is_name) {
                let found = files::read_json::<T>(&folder.join(&name))?;
                notes.extend(found.and_then(std::result::Result::ok));
            }
        }
        Ok::<_, SystemError>(notes)
    };
    blocking(list).await
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Note {
    #[serde(rename = "volumeID", alias = "encryptedVolumeID")]
    pub(super) volume_id: String,
    /// The host that has it.
    pub(super) host: String,
    pub(super) owner: VolumeOwner,
    /// Digest of the image that it is a clone of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) base: Option<String>,
    /// Whether the image was made: if it is missing since then, the disk is lost.
    pub(super) complete: bool,
    /// Its Disk is deleted and the image is retained.
    #[serde(default)]
    pub(super) retained: bool,
    /// It is in the trash since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deleted_at: Option<Timestamp>,
    /// The trash's clock at deletion, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deleted_after: Option<u64>,
    /// Its image is being deleted for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) removing: bool,
    /// Its restores, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) restores: Vec<Restored>,
    /// The last of these, which has begun: its image may have a part of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) restoring: Option<Restoring>,
    /// The snapshot whose data the image has: since the restore from it no machine could write to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unwritten_since: Option<String>,
    /// None: it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) luks: Option<Luks>,
}

/// A restore that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Restoring {
    /// The identity of the snapshot.
    pub(super) snapshot: String,
    /// The least size that the image has afterwards, in bytes.
    pub(super) size: u64,
}

impl Note {
    pub(super) fn new(new: &NewVolume, host: String) -> Self {
        Self {
            volume_id: new.id.clone(),
            host,
            owner: new.owner.clone(),
            base: new.base.clone(),
            complete: false,
            retained: false,
            deleted_at: None,
            deleted_after: None,
            removing: false,
            restores: Vec::new(),
            restoring: None,
            unwritten_since: None,
            luks: None,
        }
    }

    /// The size of the header before its data, in bytes.
    pub(super) fn header(&self) -> u64 {
        header_of(self.luks.as_ref())
    }

    /// Whether it is a volume of the pool now, and not one that is being made or in the trash.
    pub(super) fn is_there(&self) -> bool {
        self.complete && self.deleted_at.is_none()
    }

    /// Whether it is in the trash, and its restore has not ended.
    pub(super) fn restores_in_trash(&self) -> bool {
        self.restoring.is_some() && self.deleted_at.is_some()
    }

    /// Whether a call has begun to make it, and none has finished.
    pub(super) fn is_unfinished(&self) -> bool {
        !self.complete && self.deleted_at.is_none()
    }

    /// The copy for the metadata of the image. Restores are this host's: a disk with snapshots does not go to another one.
    pub(super) fn text(&self) -> String {
        let copy = Self { restores: Vec::new(), restoring: None, unwritten_since: None, ..self.clone() };
        json_of(&copy, copy.luks.as_ref()).to_string()
    }
}
