//! The data of a new disk: an empty file system, or an image of its own.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The file system of a blank Disk. It takes the whole disk, without a partition table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.type != 'xfs' || !has(self.label) || self.label.size() <= 12").message("the label of an xfs file system has at most 12 characters").field_path(".label")
)]
pub struct DiskFilesystem {
    /// `ext4`, or `xfs`. The host needs the program that makes it: `mkfs.ext4` (package `e2fsprogs`) or `mkfs.xfs` (package `xfsprogs`).
    #[serde(rename = "type")]
    pub filesystem_type: FilesystemType,
    /// Its label, by which the guest finds it (`LABEL=data` in `/etc/fstab`): letters, digits, `-`, `.` and `_`, at most 16 characters, for
    /// `xfs` 12. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9_][-A-Za-z0-9._]*$')").message("a label consists of letters, digits, '-', '.' and '_', and begins with none of '-' and '.'"))]
    pub label: Option<String>,
}

/// A file system that a host makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FilesystemType {
    Ext4,
    Xfs,
}

impl FilesystemType {
    /// Returns the file system of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        [Self::Ext4, Self::Xfs].into_iter().find(|known| known.as_str() == name)
    }

    /// Its name, as `mount` takes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// How a Disk has the data of its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CloneMode {
    #[default]
    Linked,
    Full,
}
