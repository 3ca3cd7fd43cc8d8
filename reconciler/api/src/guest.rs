//! A guest as its VM reports it: what it says of itself, and how it ended.

use k8s_openapi::jiff::Timestamp;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Facts that a guest reports about itself. Untrusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestStatus {
    /// Whether a qemu-guest-agent answers.
    pub agent: bool,
    /// The guest's host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The guest's operating system, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// The `ID` of its operating system, for example `debian` or `mswindows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub os_id: Option<String>,
    /// The version of its operating system, for example `12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub os_version: Option<String>,
    /// The release of its kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub kernel: Option<String>,
    /// All addresses the guest reports, loopback and link-local left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    pub addresses: Vec<String>,
    /// The guest's network interfaces that have one of these addresses. At most 16 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 16))]
    pub interfaces: Vec<GuestInterface>,
    /// The guest's file systems on block devices, each device once. At most 16 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 16))]
    pub filesystems: Vec<GuestFilesystem>,
}

/// A network interface as the guest reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestInterface {
    /// The guest's name for it.
    #[schemars(length(max = 256))]
    pub name: String,
    /// The MAC address, lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub mac_address: Option<String>,
    /// Its addresses with their prefix lengths, IPv4 and IPv6, link-local ones included. At most 16 are listed.
    #[serde(deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 16), inner(length(max = 64)))]
    pub addresses: Vec<String>,
}

/// A file system as the guest reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestFilesystem {
    /// Where it is mounted.
    #[schemars(length(max = 256))]
    pub mountpoint: String,
    /// Its type, for example `ext4`.
    #[serde(rename = "type")]
    #[schemars(length(max = 256))]
    pub filesystem_type: String,
    /// The guest's name for its block device, for example `sda1`.
    #[schemars(length(max = 256))]
    pub device: String,
    /// Its size, as a quantity. Absent if the guest's agent does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub size: Option<String>,
    /// The used part in percent, written again when it has changed by at least 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub used_percent: Option<i64>,
}

/// An end of a guest that was not requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestEnd {
    /// When it was seen to have ended.
    #[schemars(with = "k8s_openapi::apimachinery::pkg::apis::meta::v1::Time")]
    pub time: Timestamp,
    /// Whether the guest switched itself off, rather than crashed.
    pub orderly: bool,
    /// Whether the kernel of its host ended it for lack of memory (OOM killer); absent: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_memory: bool,
    /// The cause, for people.
    #[schemars(length(max = 1024))]
    pub message: String,
}
