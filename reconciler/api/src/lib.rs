//! The custom resources of berth (API group `berth.dev`, version `v1alpha1`): the objects that a user declares and their
//! status, which the reconciler reports.
//!
//! ```text
//!                                 manifests ─▶ YAML for any control plane
//!                    (definitions, policies, roles: access, deletion_protection,
//!                                 host_policies, former_uid, gates, quotas)
//!                                     │
//!                                     ▼
//!   kinds, one file each:  vm  vm_class  vm_group  vm_snapshot  disk  disk_snapshot  key_class  backup  backup_repository
//!                          hotswap_disk_attachment  image  storage_pool
//!                          network  security_group  public_ip  ip_pool  placement_group  quota  host
//!                                     │
//!                                     ▼
//!   shared types:          condition ─▶ reason    quantity   cpu_amount   name   binding   object_user   hardware   route
//!   of several kinds:      size, cpu_controls, profile (of a VM and its class)   power (of a VM, and its refused changes)
//!                          guest (of a VM's status)   probe (of a VM)   interface_network (an interface of a VM on its Network)
//!
//!   on their own:          gates (annotations of a VM)   site (terms of control planes)   host_addresses   join (of a host)   user_data (cloud-init syntax)
//!                          password, sysprep (of a guest)   wireguard (of a host and a Network)
//!                          console, guest_access (ways into a guest), packet_trace, image_upload
//!                          image_download ─▶ image_copy      disk_read, firmware_copy, volume_copy ─▶ console
//!                          unparsed (objects of any kind as text) ─▶ json_kind (the JSON of each kind, compiled once)
//!                          exact (lists without spare room)
//! ```
//!
//! Pure data. This crate must not know a client, a runtime or a clock: times are arguments. The types and doc comments here
//! generate the schemas, the admission rules, and the descriptions in the CRDs, in `kubectl explain` and in the provider's
//! documentation.

#![allow(unreachable_pub, reason = "KubeSchema expands to a copy of each struct inside a function")]
#![allow(clippy::duplicated_attributes, reason = "each printer column names its own type and path")]

pub mod architecture;
pub mod backup;
pub mod backup_repository;
pub mod binding;
pub mod bridge;
pub mod condition;
pub mod console;
pub mod cpu_amount;
pub mod cpu_controls;
pub mod cron;
pub mod disk;
pub mod disk_read;
pub mod disk_snapshot;
mod exact;
pub mod firmware_copy;
pub mod gates;
pub mod guest;
pub mod guest_access;
pub mod hardware;
pub mod host;
pub mod host_addresses;
pub mod hotswap_disk_attachment;
pub mod image;
pub mod image_copy;
pub mod image_download;
pub mod image_upload;
mod interface_network;
pub mod ip_pool;
pub mod join;
mod json_kind;
pub mod key_class;
mod labels;
pub mod live_move;
pub mod manifests;
pub mod name;
pub mod network;
pub mod numa;
pub mod object_user;
pub mod packet_trace;
pub mod passthrough;
pub mod password;
pub mod placement_group;
pub mod power;
pub mod probe;
pub mod profile;
pub mod public_ip;
pub mod qemu_options;
pub mod quantity;
pub mod quota;
pub mod reason;
pub mod restart_token;
pub mod restrictions;
mod route;
pub mod scratch_disk;
pub mod security_group;
pub mod shares;
mod sharing;
pub mod site;
pub mod size;
pub mod snapshot_schedule;
pub mod storage_pool;
pub mod sysprep;
mod taken;
mod unparsed;
mod unsupported;
pub mod user_data;
pub mod vgpus;
pub mod vm;
pub mod vm_class;
pub mod vm_group;
pub mod vm_snapshot;
pub mod volume_copy;
pub mod wireguard;

pub use architecture::Architecture;
pub use backup::{Backup, BackupSpec, BackupStatus, BackupVerification, RequestedVerification};
pub use backup_repository::{
    BackupRepository, BackupRepositorySpec, BackupRepositoryStatus, HostBackupFolder, S3Location,
    VerificationPolicy,
};
pub use binding::{Binding, ObjectUse, UseKind};
pub use bridge::BridgeSpec;
pub use condition::{ConditionType, ConditionUpdate, Conditions, Readiness};
pub use cpu_amount::{CpuAmount, ParseCpuAmountError};
pub use cpu_controls::CpuControls;
pub use disk::{
    CloneMode, DataOrigin, DeletionPolicy, Disk, DiskAccess, DiskFilesystem, DiskImport, DiskLimits,
    DiskPlacement, DiskRestore, DiskRestored, DiskSource, DiskSpec, DiskState, DiskStatus, ExpandPolicy,
    FilesystemType, LeaveFacts, MOST_DISK_READERS, Provisioning, SourceFormat,
};
pub use disk_snapshot::{Consistency, DiskSnapshot, DiskSnapshotSpec, DiskSnapshotStatus};
pub use hardware::{
    BootSource, CpuTopology, Firmware, Graphics, GuestOS, HugePages, IoThreadsPolicy, Watchdog,
};
pub use host::{Host, HostSpec, HostStatus};
pub use hotswap_disk_attachment::{
    AttachmentState, HotswapDiskAttachment, HotswapDiskAttachmentSpec, HotswapDiskAttachmentStatus,
};
pub use image::{
    Image, ImageCompression, ImageFormat, ImageOs, ImageSource, ImageSpec, ImageState, ImageStatus,
    redacted_url,
};
pub use ip_pool::{AddressRange, IPPool, IPPoolMode, IPPoolSpec, IPPoolStatus};
pub use json_kind::JsonKind;
pub use key_class::{
    DiskEncryption, EncryptionStatus, KeyClass, KeyClassSpec, KeyClassStatus, KeySecret, VaultAppRole,
    VaultKey, VaultSecret,
};
pub use name::ResourceName;
pub use network::{
    Allocation, Egress, Encryption, Ipv4Spec, Ipv6Spec, Network, NetworkHost, NetworkName, NetworkSpec,
    NetworkStatus, NetworkType,
};
pub use object_user::{LISTED_USERS, ObjectUser, in_use, listed_users};
pub use passthrough::{DeviceBus, DeviceCounts, DeviceName, OfferedDevices, PciDevices, UsbDevices};
pub use placement_group::{Enforcement, PlacementGroup, PlacementGroupSpec, PlacementGroupStatus, Strategy};
pub use power::{Power, SuspendMode, VMState};
pub use probe::{Hook, HookFailurePolicy, Hooks, PreStopHook, Probe, SnapshotHook};
pub use profile::Profile;
pub use public_ip::{PortProtocol, PublicIP, PublicIPPort, PublicIPSpec, PublicIPState, PublicIPStatus};
pub use qemu_options::QemuOption;
pub use quantity::{ParseQuantityError, Quantity};
pub use quota::{Quota, QuotaAmounts, QuotaLimits, QuotaSpec, QuotaStatus, QuotaUsage};
pub use reason::Reason;
pub use scratch_disk::ScratchDisk;
pub use security_group::{RuleProtocol, SecurityGroup, SecurityGroupSpec, SecurityGroupStatus, SecurityRule};
pub use shares::{HostShare, Share};
pub use size::{Size, SizeError};
pub use snapshot_schedule::{
    Keep, ScheduledBackups, SnapshotSchedule, SnapshotScheduleSpec, SnapshotScheduleStatus,
};
pub use storage_pool::{
    HostPool, SharedFolder, StoragePool, StoragePoolSpec, StoragePoolStatus, StoragePoolType,
};
pub use taken::{HugeMemory, SizeTaken, size_taken};
pub use unparsed::Unparsed;
pub use vgpus::Vgpus;
pub use vm::{RestartPolicy, StopMode, VM, VMSpec, VMStatus};
pub use vm_class::{VMClass, VMClassSpec, VMClassStatus};
pub use vm_group::{
    BootStep, GroupPower, MemberKind, MemberPower, VMGroup, VMGroupMember, VMGroupSpec, VMGroupStatus,
};
pub use vm_snapshot::{SnapshotOfDisk, VMSnapshot, VMSnapshotSpec, VMSnapshotStatus};
pub use wireguard::{HostWireguard, WireguardPeer};

/// The API group of every kind.
pub const GROUP: &str = "berth.dev";
/// The version of every kind. Changes within it are additive.
pub const VERSION: &str = "v1alpha1";
/// The namespace in which an Image, KeyClass, VMClass or Network is looked up when the referring object's namespace has none.
pub const SHARED_NAMESPACE: &str = "berth-shared";
/// The namespace of berth's own objects: host Leases and the controllers' leader Lease.
pub const SYSTEM_NAMESPACE: &str = "berth-system";
/// The finalizer of an object that a host has made real, until that host has removed it. It is there before the object is bound:
/// whoever creates the object may set it, otherwise the controllers add it. The controllers remove it from an object that was
/// never bound.
pub const HOST_FINALIZER: &str = "berth.dev/host";
/// The finalizer of a PublicIP until the controllers have returned its address to the pool.
pub const ADDRESS_FINALIZER: &str = "berth.dev/address";
/// The finalizer of an object that others name (BackupRepository, Host, Image, IPPool, KeyClass, Network, PlacementGroup, SecurityGroup, StoragePool, VMClass, VMGroup) until nothing
/// uses it. Added by the controllers before its first use, and kept from then on.
pub const USED_FINALIZER: &str = "berth.dev/in-use";
/// On a Disk made by `berth undelete`: `<host>/<volumeID>` of the file in that host's trash to bring back.
pub const RESTORE_ANNOTATION: &str = "berth.dev/restore-volume";
/// On a VM, Disk, DiskSnapshot or Backup: the uid it had in another control plane, or before it was created again from a copy. Guests and files
/// that a host made for that uid, under the same name, belong to this object. Set by administrators only.
pub const FORMER_UID_ANNOTATION: &str = "berth.dev/former-uid";
/// On an object that `berth graduate` copied: its uids on earlier control planes, the last one first, separated by commas.
pub const MOVED_FROM_ANNOTATION: &str = "berth.dev/moved-from";
/// On a Disk of a template: the keys of the labels that it has from its VM, separated by commas.
pub const INHERITED_LABELS_ANNOTATION: &str = "berth.dev/inherited-labels";
/// On a Disk of a template: the keys of the annotations that it has from its VM, separated by commas.
pub const INHERITED_ANNOTATIONS_ANNOTATION: &str = "berth.dev/inherited-annotations";
/// The name of the Network, IPPool and StoragePool that exist after `berth up`.
pub const DEFAULT_NAME: &str = "default";
/// On each definition: the version of berth that it belongs to.
pub const VERSION_LABEL: &str = "berth.dev/version";
/// The field manager of the scheduler and the other controllers.
pub const CONTROLLER_MANAGER: &str = "berth-controllers";
/// The field manager of a host agent.
pub const AGENT_MANAGER: &str = "berth-agent";

/// The uid an object had before, if it is annotated: see [`FORMER_UID_ANNOTATION`].
pub fn former_uid(object: &impl kube::ResourceExt) -> Option<&str> {
    object.annotations().get(FORMER_UID_ANNOTATION).map(String::as_str)
}
