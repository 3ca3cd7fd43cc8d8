//! Folders of a host that VMs have (virtiofs).

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The maximum number of shares in a Host's status.
pub const MOST_HOST_SHARES: usize = 64;

/// A folder of its host that a VM is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The name under which administrators share a folder with `--share` of their hosts, for example `media`: lower-case letters,
    /// digits and `-`, at most 36 characters. The key of the list.
    #[schemars(length(min = 1, max = 36), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The tag by which the guest mounts it: `mount -t virtiofs TAG /mnt`. 1 to 36 letters, digits, `-`, `.` and `_`. Default: the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"))]
    pub tag: Option<String>,
    /// Whether the guest can only read it, which the host enforces. Required for a folder that its host shares read-only
    /// (`--share NAME=FOLDER:ro`). Default false.
    #[serde(default)]
    pub read_only: bool,
}

impl Share {
    /// The tag in the guest.
    #[must_use]
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(&self.name)
    }
}

/// A folder that a host shares with VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostShare {
    /// The name.
    #[schemars(length(max = 36))]
    pub name: String,
    /// Whether VMs can only read it.
    #[serde(default)]
    pub read_only: bool,
    /// Why no VM can have it, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_its_name_as_its_tag_unless_it_has_one() {
        let share = |name: &str, tag: Option<&str>, read_only| Share {
            name: name.into(),
            tag: tag.map(str::to_owned),
            read_only,
        };
        let (media, data) = (share("media", Some("films"), true), share("data", None, false));
        assert_eq!((media.tag(), data.tag()), ("films", "data"));
    }
}
