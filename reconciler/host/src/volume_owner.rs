//! The owner of a volume, as the note beside its file has it.

use serde::{Deserialize, Serialize};

/// The owner of a volume, for people and for `berth undelete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeOwner {
    pub namespace: String,
    pub name: String,
    /// The Disk's uid; unknown for volumes created before it was recorded.
    #[serde(default)]
    pub uid: Option<String>,
    /// The name of the Image it was created from.
    pub image: Option<String>,
    /// The declared source of its data, if that is not an Image alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DeclaredSource>,
}

/// The source of a volume's data as its Disk declares it: one of these. For people and for `berth undelete`: the file does not depend
/// on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeclaredSource {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The declared namespace of that disk or snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether that file is raw.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raw: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Whether it is a full copy of its image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full_clone: bool,
    /// The file system that was made on it, as it is declared: `ext4` or `xfs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem_label: Option<String>,
}
