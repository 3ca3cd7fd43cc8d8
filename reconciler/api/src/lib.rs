//! The custom resources of berth (API group `berth.dev`, version `v1alpha1`): what a user declares and what the
//! reconciler reports.
//!
//! Pure data. This crate must not know a client, a runtime or a clock: times come in as arguments. The schemas, the
//! admission rules and the descriptions in the CRDs, in `kubectl explain` and in the provider's documentation are all
//! generated from the types and doc comments here.
//!
//! One file a kind, named after the kind. What several kinds share stands in [`quantity`], [`name`], [`condition`],
//! [`reason`] and [`binding`]; [`manifests`] renders everything a control plane needs to serve them.

#![allow(unreachable_pub, reason = "KubeSchema expands to a copy of each struct inside a function")]
#![allow(clippy::duplicated_attributes, reason = "each printer column names its own type and path")]

pub mod binding;
pub mod condition;
pub mod disk;
pub mod host;
pub mod hotswap_disk_attachment;
pub mod image;
pub mod ip_pool;
pub mod manifests;
pub mod name;
pub mod network;
pub mod object_user;
pub mod placement_group;
pub mod public_ip;
pub mod quantity;
pub mod reason;
pub mod site;
pub mod storage_pool;
pub mod user_data;
pub mod vm;
pub mod vm_class;

pub use binding::{Binding, ObjectUse, UseKind};
pub use condition::{ConditionType, Conditions, Readiness};
pub use disk::{DeletionPolicy, Disk, DiskSpec, DiskState, DiskStatus};
pub use host::{Host, HostSpec, HostStatus};
pub use hotswap_disk_attachment::{
    AttachmentState, HotswapDiskAttachment, HotswapDiskAttachmentSpec, HotswapDiskAttachmentStatus,
};
pub use image::{Image, ImageFormat, ImageSpec, ImageState, ImageStatus};
pub use ip_pool::{IPPool, IPPoolMode, IPPoolSpec, IPPoolStatus};
pub use name::ResourceName;
pub use network::{Network, NetworkHost, NetworkSpec, NetworkStatus};
pub use object_user::{LISTED_USERS, ObjectUser, listed_users};
pub use placement_group::{Enforcement, PlacementGroup, PlacementGroupSpec, PlacementGroupStatus, Strategy};
pub use public_ip::{PublicIP, PublicIPSpec, PublicIPState, PublicIPStatus};
pub use quantity::{ParseQuantityError, Quantity};
pub use reason::Reason;
pub use storage_pool::{StoragePool, StoragePoolSpec, StoragePoolStatus, StoragePoolType};
pub use vm::{Power, RestartPolicy, StopMode, VM, VMSpec, VMState, VMStatus};
pub use vm_class::{Firmware, VMClass, VMClassSpec, VMClassStatus};

/// The API group of every kind.
pub const GROUP: &str = "berth.dev";
/// The version of every kind. Changes within it are additive.
pub const VERSION: &str = "v1alpha1";
/// Where an Image, VMClass or Network is looked for when the user's own namespace has none of that name.
pub const SHARED_NAMESPACE: &str = "berth-shared";
/// Where berth keeps what is its own: host Leases and the controllers' leader Lease.
pub const SYSTEM_NAMESPACE: &str = "berth-system";
/// Held by objects a host made something real for, until that host has let go of it.
pub const HOST_FINALIZER: &str = "berth.dev/host";
/// Held by a PublicIP until the controllers have returned its address to the pool.
pub const ADDRESS_FINALIZER: &str = "berth.dev/address";
/// On a Disk made by `berth undelete`: `<host>/<volumeID>` of the file in that host's trash to bring back.
pub const RESTORE_ANNOTATION: &str = "berth.dev/restore-volume";
/// On a VM or Disk: the uid it had in another control plane, or before it was made anew from a copy. What a host made for
/// that uid, under the same name, is this object's. Set by administrators only.
pub const FORMER_UID_ANNOTATION: &str = "berth.dev/former-uid";
/// On what `berth graduate` copied: the uids it had on the control planes it came from, the last one first, with commas.
pub const MOVED_FROM_ANNOTATION: &str = "berth.dev/moved-from";
/// The name of the Network, IPPool and StoragePool that exist after `berth up`.
pub const DEFAULT_NAME: &str = "default";
/// On each definition: the version of berth it is of.
pub const VERSION_LABEL: &str = "berth.dev/version";
/// Field manager of what the scheduler and the other controllers write.
pub const CONTROLLER_MANAGER: &str = "berth-controllers";
/// Field manager of what a host agent writes.
pub const AGENT_MANAGER: &str = "berth-agent";

/// The uid an object had before, if somebody said so: see [`FORMER_UID_ANNOTATION`].
pub fn former_uid(object: &impl kube::ResourceExt) -> Option<&str> {
    object.annotations().get(FORMER_UID_ANNOTATION).map(String::as_str)
}
