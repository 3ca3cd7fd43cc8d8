//! The note beside a volume's file.

use std::path::Path;

use berth_qemu::machine::Format;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::files;
use super::Result;
use crate::{Arrival, NewVolume, Restored, SealedKey, VolumeOwner};

/// The field with the identity of the volume in the notes of an encrypted one, in the place of `volumeID`. An agent without encryption
/// cannot read such a note, so it leaves the volume alone: it would make plain files for it, and drop its key with the next note.
pub(super) const ENCRYPTED_ID: &str = "encryptedVolumeID";

/// The same in the notes of a raw one: an agent that knows only qcow2 would read the header that a guest has written to it.
const RAW_ID: &str = "rawVolumeID";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Note {
    #[serde(rename = "volumeID", alias = "encryptedVolumeID", alias = "rawVolumeID")]
    pub(super) volume_id: String,
    pub(super) owner: VolumeOwner,
    pub(super) base: Option<Base>,
    /// The snapshot that it is based on, instead of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<String>,
    /// The number of snapshots that were taken of it: each time it continues in another file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) generation: u32,
    /// The snapshot that is begun and not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pending_snapshot: Option<String>,
    /// Its restores, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) restores: Vec<Restored>,
    /// The file from before the last restore, until it is in the trash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) former: Option<Former>,
    /// Whether the file was created: if it is missing since then, the disk is lost.
    pub(super) complete: bool,
    pub(super) deleted_at: Option<Timestamp>,
    /// The trash's clock at deletion, in seconds; unknown for volumes deleted before the clock existed.
    #[serde(default)]
    pub(super) deleted_after: Option<u64>,
    /// Its Disk is deleted and the file is retained.
    #[serde(default)]
    pub(super) retained: bool,
    /// The size that space is reserved for. None: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reserved: Option<u64>,
    /// The key of its files. None: they are not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) encryption: Option<SealedKey>,
    /// Whether its file is raw, as machines can share it so, and not qcow2. Never probed: the bytes are those of guests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) raw: bool,
    /// The name of the block device that it is, instead of a file. Such a note has `raw` too: an agent that knows no devices finds no file, and
    /// leaves the volume alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    /// The pool that it was moved to: this note and its file are left over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved_to: Option<String>,
    /// The pool that it is moved from: it is here once the note there names this pool, or is gone and no other pool has the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved_from: Option<String>,
    /// Whether a QEMU copies it here, while its guest runs: it is here only once the note there names this pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) mirrored: bool,
    /// The stay that it was copied here for from another host: written once the copy is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arrived: Option<Arrival>,
    /// The host whose running guest is about to come here with it: until that, it is none of this host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arriving_from: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The file that a volume had before it was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Former {
    pub(super) generation: u32,
    pub(super) base: Option<Base>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reserved: Option<u64>,
}

/// The base image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Base {
    /// The name on disk dates from when SHA-256 was the only algorithm.
    #[serde(rename = "sha256")]
    pub(super) digest: String,
    pub(super) format: Format,
}

impl Note {
    pub(super) fn new(new: &NewVolume, base: Option<Base>) -> Self {
        Self {
            volume_id: new.id.clone(),
            owner: new.owner.clone(),
            base,
            snapshot: new.snapshot.clone(),
            generation: 0,
            pending_snapshot: None,
            restores: Vec::new(),
            former: None,
            complete: false,
            deleted_at: None,
            deleted_after: None,
            retained: false,
            reserved: new.thick.then_some(0),
            encryption: new.encryption.as_deref().cloned(),
            raw: new.shared,
            device: None,
            moved_to: None,
            moved_from: None,
            mirrored: false,
            arrived: None,
            arriving_from: None,
        }
    }

    /// Whether the volume has the very files of the other note.
    pub(super) fn has_files_of(&self, other: &Self) -> bool {
        let files = |note: &Self| {
            (note.generation, note.base.clone(), note.snapshot.clone(), note.pending_snapshot.clone())
        };
        files(self) == files(other) && self.former == other.former && self.reserved == other.reserved
    }

    /// Whether its volume is in its pool and nowhere else, as far as this note says.
    pub(super) fn is_settled(&self) -> bool {
        self.moved_to.is_none() && self.moved_from.is_none() && self.arriving_from.is_none()
    }

    /// The images below its file, and below that from before an interrupted restore, without those below snapshots.
    pub(super) fn bases(&self) -> impl Iterator<Item = &Base> {
        let former = self.former.as_ref().and_then(|former| former.base.as_ref());
        self.base.iter().chain(former)
    }

    /// The snapshots that it keeps.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &String> {
        let former = self.former.as_ref().and_then(|former| former.snapshot.as_ref());
        self.snapshot.iter().chain(&self.pending_snapshot).chain(former)
    }

    /// None: there is no note. The inner error: the note is unreadable.
    pub(super) fn read(path: &Path) -> Result<Option<std::result::Result<Self, String>>> {
        files::read_json(path)
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let id = if self.raw { Some(RAW_ID) } else { self.encryption.as_ref().map(|_| ENCRYPTED_ID) };
        write(path, self, id)
    }
}

/// Writes the note of a volume or a snapshot, with this field in the place of `volumeID`.
pub(super) fn write<T: Serialize>(path: &Path, note: &T, id_field: Option<&str>) -> Result<()> {
    let Some(id_field) = id_field else {
        return files::write_json(path, note, 0o600);
    };
    let mut note = serde_json::to_value(note).expect("our own types are plain JSON");
    if let Some(fields) = note.as_object_mut()
        && let Some(id) = fields.remove("volumeID")
    {
        fields.insert(id_field.to_owned(), id);
    }
    files::write_json(path, &note, 0o600)
}
