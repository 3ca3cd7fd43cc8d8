//! The kinds whose JSON is read and written by functions of this crate.
//!
//! serde's code is generic: a crate that reads a `VM` has its own copy of the code for all that a VM consists of. The users of this
//! trait share one copy, compiled here. A call of serde for one of these kinds elsewhere adds another.

use std::fmt::Debug;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::Role;
use kube::Resource;
use serde_json::value::{RawValue, to_raw_value};

use crate::{
    Backup, BackupRepository, Disk, DiskSnapshot, Host, HotswapDiskAttachment, IPPool, Image, KeyClass,
    Network, PlacementGroup, PublicIP, Quota, SecurityGroup, SnapshotSchedule, StoragePool, VM, VMClass,
    VMGroup, VMSnapshot,
};

/// A kind whose objects are read and written as JSON.
pub trait JsonKind: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// Reads an object.
    ///
    /// *Errors:* the text is not JSON, or not of an object of this kind.
    fn from_json(text: &str) -> Result<Self, serde_json::Error>;

    /// Writes the object.
    ///
    /// *Errors:* a map of the object has keys that are not texts.
    fn to_json(&self) -> Result<Box<RawValue>, serde_json::Error>;
}

macro_rules! json_kinds {
    ($($kind:ty),+ $(,)?) => {
        $(impl JsonKind for $kind {
            // Inlined, it would be compiled again where it is called.
            #[inline(never)]
            fn from_json(text: &str) -> Result<Self, serde_json::Error> {
                serde_json::from_str(text)
            }

            #[inline(never)]
            fn to_json(&self) -> Result<Box<RawValue>, serde_json::Error> {
                to_raw_value(self)
            }
        })+
    };
}

json_kinds! {
    Backup,
    BackupRepository,
    Disk,
    DiskSnapshot,
    Host,
    HotswapDiskAttachment,
    Image,
    IPPool,
    KeyClass,
    Network,
    PlacementGroup,
    PublicIP,
    Quota,
    SecurityGroup,
    SnapshotSchedule,
    StoragePool,
    VM,
    VMClass,
    VMGroup,
    VMSnapshot,
    ConfigMap,
    Lease,
    Role,
    Secret,
    ServiceAccount,
}
