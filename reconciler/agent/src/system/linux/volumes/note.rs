//! The note beside a volume's file.

use std::path::Path;

use berth_qemu::machine::Format;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::files;
use super::Result;
use crate::system::{NewVolume, VolumeOwner};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Note {
    #[serde(rename = "volumeID")]
    pub(super) volume_id: String,
    pub(super) owner: VolumeOwner,
    pub(super) base: Option<Base>,
    /// Whether the file was there once: if it is not any more, it is lost.
    pub(super) complete: bool,
    pub(super) deleted_at: Option<Timestamp>,
}

/// The image below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Base {
    pub(super) sha256: String,
    pub(super) format: Format,
}

impl Note {
    pub(super) fn new(new: &NewVolume, base: Option<Base>) -> Self {
        Self { volume_id: new.id.clone(), owner: new.owner.clone(), base, complete: false, deleted_at: None }
    }

    /// None: there is none. The inner error: there is one that is not readable.
    pub(super) fn read(path: &Path) -> Result<Option<std::result::Result<Self, String>>> {
        files::read_json(path)
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        files::write_json(path, self, 0o600)
    }
}
