//! The facts about an image that its author declares.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The operating system in an image, as its author declares it. berth does not look into the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageOs {
    /// The kind of system, such as `Linux`, `Windows` or `FreeBSD`. At most 32 characters. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub family: Option<String>,
    /// The name of the system, such as `debian`, `fedora` or `Windows Server`. At most 64 characters. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub distribution: Option<String>,
    /// The version of the system, such as `13` or `24.04`. At most 64 characters. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub version: Option<String>,
    /// The variant of the system, such as `genericcloud` or `Core`. At most 64 characters. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub variant: Option<String>,
    /// The architecture of its processors, such as `x86_64` (also `amd64`) or `aarch64` (also `arm64`). A VM of another one of these is not
    /// placed with this image as its boot disk. At most 16 characters. Default: none, and nothing is checked. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub architecture: Option<String>,
}
