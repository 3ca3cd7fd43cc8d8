//! What a host has without an object: files of deleted disks, and processes and files that no object owns.

use std::net::IpAddr;

use ipnet::IpNet;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::vm::InterfaceStatus;
use crate::{CloneMode, DiskFilesystem, SourceFormat};

/// The file of a deleted disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrashedVolume {
    /// Its identity.
    #[serde(rename = "volumeID")]
    #[schemars(length(max = 253))]
    pub volume_id: String,
    /// The StoragePool its file is in.
    #[serde(default = "default_pool")]
    #[schemars(length(max = 253))]
    pub pool: String,
    /// The Disk's namespace.
    #[schemars(length(max = 253))]
    pub namespace: String,
    /// The Disk's name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its size, as a quantity.
    #[schemars(length(max = 32))]
    pub size: String,
    /// The space that the file takes, as a quantity. Absent before it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub used: Option<String>,
    /// The Image it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub image: Option<String>,
    /// The `source`, `cloneMode` or `filesystem` that its Disk declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<TrashedSource>,
    /// Whether space is reserved for its whole size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thick: bool,
    /// Whether several VMs can write to it at a time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The KeyClass that protects the key of its encrypted file, as `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 127))]
    pub key_class: Option<String>,
    /// When it was deleted, RFC 3339.
    #[schemars(length(max = 64))]
    pub deleted_at: String,
}

/// The file of a disk that was deleted with `deletionPolicy: Retain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetainedVolume {
    /// Its identity.
    #[serde(rename = "volumeID")]
    #[schemars(length(max = 253))]
    pub volume_id: String,
    /// The StoragePool its file is in.
    #[schemars(length(max = 253))]
    pub pool: String,
    /// The Disk's namespace.
    #[schemars(length(max = 253))]
    pub namespace: String,
    /// The Disk's name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its size, as a quantity.
    #[schemars(length(max = 32))]
    pub size: String,
    /// The space that the file takes, as a quantity. Absent before it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub used: Option<String>,
    /// The Image it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub image: Option<String>,
    /// The `source`, `cloneMode` or `filesystem` that its Disk declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<TrashedSource>,
    /// Whether space is reserved for its whole size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thick: bool,
    /// Whether several VMs can write to it at a time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The KeyClass that protects the key of its encrypted file, as `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 127))]
    pub key_class: Option<String>,
}

/// The `source`, `cloneMode` or `filesystem` of a deleted disk: one of these. The disk made again declares it too; its data does not come from there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrashedSource {
    /// Name of a Disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub disk: Option<String>,
    /// Name of a DiskSnapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub snapshot: Option<String>,
    /// The namespace of that Disk or DiskSnapshot, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,
    /// Path of a file of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub file: Option<String>,
    /// The declared format of that file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<SourceFormat>,
    /// Name of a Backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub backup: Option<String>,
    /// `Full`: it is a copy of its image. Absent: it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_mode: Option<CloneMode>,
    /// The file system that was made on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<Box<DiskFilesystem>>,
}

/// The pool of a file whose agent does not report one.
fn default_pool() -> String {
    crate::DEFAULT_NAME.to_owned()
}

/// Something on a host that no object owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// `Process`, `Volume` or `Instance`.
    #[schemars(length(max = 64))]
    pub kind: String,
    /// A pid with its name, or a file's name.
    #[schemars(length(max = 512))]
    pub name: String,
    /// A description for people.
    #[schemars(length(max = 512))]
    pub detail: String,
    /// A file's size, as a quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub size: Option<String>,
    /// The StoragePool a file lies in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pool: Option<String>,
    /// The Image a file was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub image: Option<String>,
    /// The KeyClass that protects the key of an encrypted file, as `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 127))]
    pub key_class: Option<String>,
    /// The object it was made for, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OrphanOwner>,
}

/// The object that something on a host was made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanOwner {
    /// `VM` or `Disk`.
    #[schemars(length(max = 64))]
    pub kind: String,
    /// Its namespace.
    #[schemars(length(max = 253))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its uid, if it is known: another object of the same name is not the owner, and without one nothing is given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub uid: Option<String>,
    /// The epoch of the binding it was made under; 0 if that is not known.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000_000i64))]
    pub epoch: i64,
    /// A VM's network interfaces as it was started with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub interfaces: Vec<InterfaceStatus>,
    /// The public addresses that led to it, and lead to it while it runs: they are given to no other VM.
    #[serde(default, rename = "publicIPs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub public_ips: Vec<HeldPublicIP>,
}

/// A public address that leads to a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldPublicIP {
    /// The PublicIP, in the VM's namespace.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The address; of a prefix the first one.
    #[schemars(length(max = 39))]
    pub address: String,
    /// The length of a prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64, max = 127))]
    pub prefix_length: Option<i64>,
}

impl HeldPublicIP {
    /// Returns the addresses that lead to the VM.
    #[must_use]
    pub fn range(&self) -> Option<IpNet> {
        let first: IpAddr = self.address.parse().ok()?;
        let Some(length) = self.prefix_length else { return Some(first.into()) };
        IpNet::new(first, u8::try_from(length).ok()?).ok().filter(|range| range.addr() == range.network())
    }
}
