//! Disk: a persistent disk that outlives any VM.

mod block_device;
mod filesystem;
mod host_loss;
mod import;
mod pools;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Binding, Conditions, DiskEncryption, EncryptionStatus, ObjectUse, Quantity, ResourceName,
    sharing::is_shared,
};
pub use filesystem::{CloneMode, DiskFilesystem, FilesystemType};
pub use host_loss::LeaveFacts;
pub use import::DiskImport;

/// A persistent disk that outlives any VM: blank, made from an Image, copied from another Disk or a DiskSnapshot, restored from a
/// Backup, a file of a host that is taken over, or a block device of a host.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Disk",
    plural = "disks",
    singular = "disk",
    shortname = "dsk",
    namespaced,
    status = "DiskStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "A persistent disk that outlives any VM.",
    selectable = ".status.binding.host",
    selectable = ".spec.image",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.size"),
    printcolumn(name = "Used", type_ = "string", json_path = ".status.used"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Used-By", type_ = "string", json_path = ".status.usedBy[*].vm"),
    printcolumn(name = "Host", type_ = "string", json_path = ".status.binding.host"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Pool", type_ = "string", priority = 1, json_path = ".status.pool"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters"),
    validation = Rule::new("self.spec.pool == oldSelf.spec.pool || !has(self.status) || !has(self.status.binding) || has(self.status.pool)").message("pool cannot change before the host of the disk has reported where its file is (status.pool): make the disk first, or upgrade berth on an older host").field_path(".spec.pool"),
    validation = Rule::new("(!has(self.spec.pools) && !has(self.spec.poolSelector)) || has(oldSelf.spec.pools) || has(oldSelf.spec.poolSelector) || !has(self.status) || !has(self.status.binding) || has(self.status.pool)").message("pools and poolSelector cannot be added before the host of the disk has reported where its file is (status.pool): its pool is pool")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.size) || has(self.image) || has(self.source)").message("size is required for a disk without an image or a source").field_path(".size"),
    validation = Rule::new("!has(self.source) || !has(self.image)").message("a disk is made from an image or from a source, not from both").field_path(".source"),
    validation = Rule::new("(has(self.source) && has(self.source.disk) ? self.source.disk : '') == (has(oldSelf.source) && has(oldSelf.source.disk) ? oldSelf.source.disk : '') && (has(self.source) && has(self.source.snapshot) ? self.source.snapshot : '') == (has(oldSelf.source) && has(oldSelf.source.snapshot) ? oldSelf.source.snapshot : '') && (has(self.source) && has(self.source.file) ? self.source.file : '') == (has(oldSelf.source) && has(oldSelf.source.file) ? oldSelf.source.file : '') && (has(self.source) && has(self.source.backup) ? self.source.backup : '') == (has(oldSelf.source) && has(oldSelf.source.backup) ? oldSelf.source.backup : '') && (has(self.source) && has(self.source.device) ? self.source.device : '') == (has(oldSelf.source) && has(oldSelf.source.device) ? oldSelf.source.device : '')").message("source cannot change: create another Disk").field_path(".source"),
    validation = Rule::new("(has(self.source) && has(self.source.diskNamespace) ? self.source.diskNamespace : '') == (has(oldSelf.source) && has(oldSelf.source.diskNamespace) ? oldSelf.source.diskNamespace : '') && (has(self.source) && has(self.source.snapshotNamespace) ? self.source.snapshotNamespace : '') == (has(oldSelf.source) && has(oldSelf.source.snapshotNamespace) ? oldSelf.source.snapshotNamespace : '')").message("the namespace of the source cannot change: create another Disk").field_path(".source"),
    validation = Rule::new("(has(self.source) && has(self.source.format) ? self.source.format : '') == (has(oldSelf.source) && has(oldSelf.source.format) ? oldSelf.source.format : '')").message("the format of the source cannot change: create another Disk").field_path(".source"),
    validation = Rule::new("!has(self.source) || !has(self.source.file) || !has(self.provisioning) || self.provisioning == 'Thin'").message("a file that is taken over stays as it is: provisioning Thick is for new files").field_path(".provisioning"),
    validation = Rule::new("!has(self.restore) || !has(self.source) || !has(self.source.snapshot) || has(self.source.snapshotNamespace) || self.source.snapshot != self.restore.snapshot").message("a disk is restored from a snapshot of itself, and its source is one of another disk").field_path(".restore"),
    validation = Rule::new("!has(oldSelf.size) || (has(self.size) && quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0)").message("size can only grow: shrinking would lose data").field_path(".size"),
    validation = Rule::new("(has(self.image) ? self.image : '') == (has(oldSelf.image) ? oldSelf.image : '')").message("image cannot change: create another Disk").field_path(".image"),
    validation = Rule::new("has(self.encryption) == has(oldSelf.encryption)").message("encryption cannot be added or removed: create another Disk").field_path(".encryption"),
    validation = Rule::new("!has(self.encryption) || !has(self.source) || !has(self.source.file)").message("a file that is taken over stays as it is: encryption is for new files").field_path(".encryption"),
    validation = Rule::new("(has(self.access) ? self.access : 'ReadWriteOnce') == (has(oldSelf.access) ? oldSelf.access : 'ReadWriteOnce')").message("access cannot change: create another Disk, with this one as its source").field_path(".access"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadOnlyMany' || has(self.image) || has(self.source)").message("a ReadOnlyMany disk is never written to: set the image or the source of its data").field_path(".access"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadOnlyMany' || !has(self.restore)").message("a ReadOnlyMany disk is not restored: create another Disk from the snapshot").field_path(".restore"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadOnlyMany' || !has(self.encryption)").message("a ReadOnlyMany disk cannot be encrypted").field_path(".encryption"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadWriteMany' || (!has(self.image) && !has(self.source))").message("a ReadWriteMany disk is blank at first: take the image and the source out, and write its data from a VM").field_path(".access"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadWriteMany' || !has(self.restore)").message("a ReadWriteMany disk has no snapshots, and is not restored").field_path(".restore"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadWriteMany' || !has(self.encryption)").message("a ReadWriteMany disk cannot be encrypted").field_path(".encryption"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadWriteMany' || (!has(self.pools) && !has(self.poolSelector))").message("the pool of a ReadWriteMany disk is declared: set pool, and take pools and poolSelector out").field_path(".pool"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadWriteMany' || (has(self.pool) ? self.pool : 'default') == (has(oldSelf.pool) ? oldSelf.pool : 'default')").message("a ReadWriteMany disk is not moved to another pool: create another Disk").field_path(".pool"),
    validation = Rule::new("!has(self.access) || self.access != 'ReadWriteMany' || !has(self.sharedWith) || self.sharedWith.size() == 0").message("a ReadWriteMany disk is the source of no other Disk and no Image: take sharedWith out").field_path(".sharedWith"),
    validation = Rule::new("(has(self.provisioning) ? self.provisioning : 'Thin') == (has(oldSelf.provisioning) ? oldSelf.provisioning : 'Thin')").message("provisioning cannot change: create another Disk").field_path(".provisioning"),
    validation = Rule::new("!has(self.filesystem) || (!has(self.image) && !has(self.source))").message("filesystem is that of a blank disk: an image and a source have file systems of their own").field_path(".filesystem"),
    validation = Rule::new("has(self.filesystem) == has(oldSelf.filesystem) && (!has(self.filesystem) || !has(oldSelf.filesystem) || (self.filesystem.type == oldSelf.filesystem.type && (has(self.filesystem.label) ? self.filesystem.label : '') == (has(oldSelf.filesystem.label) ? oldSelf.filesystem.label : '')))").message("filesystem cannot change: a disk is formatted once. Create another Disk").field_path(".filesystem"),
    validation = Rule::new("!has(self.filesystem) || !has(self.encryption)").message("an encrypted disk is formatted in its VM: take filesystem out").field_path(".filesystem"),
    validation = Rule::new("!has(self.filesystem) || !has(self.access) || self.access != 'ReadWriteMany'").message("several VMs that mount ext4 or xfs destroy it: take filesystem out of a ReadWriteMany disk").field_path(".filesystem"),
    validation = Rule::new("!has(self.filesystem) || !has(self.size) || !isQuantity(self.size) || quantity(self.size).compareTo(quantity(self.filesystem.type == 'xfs' ? '300Mi' : '16Mi')) >= 0").message("the size of a disk with a file system is at least 16Mi, for xfs 300Mi").field_path(".size"),
    validation = Rule::new("!has(self.cloneMode) || self.cloneMode == 'Linked' || has(self.image)").message("cloneMode Full is for a disk that is made from an image").field_path(".cloneMode"),
    validation = Rule::new("!has(self.cloneMode) || self.cloneMode == 'Linked' || !has(self.encryption)").message("an encrypted disk is a linked clone of its image: take cloneMode out").field_path(".cloneMode"),
    validation = Rule::new("(has(self.cloneMode) ? self.cloneMode : 'Linked') == (has(oldSelf.cloneMode) ? oldSelf.cloneMode : 'Linked')").message("cloneMode cannot change: create another Disk").field_path(".cloneMode"),
    validation = Rule::new("!has(self.pools) || !has(self.poolSelector)").message("set either pools or poolSelector").field_path(".poolSelector"),
    validation = Rule::new("(!has(self.pools) && !has(self.poolSelector)) || !has(self.pool) || self.pool == 'default'").message("pools and poolSelector leave the choice of the pool to the scheduler: take pool out, or them").field_path(".pool"),
    validation = Rule::new("(!has(self.pools) && !has(self.poolSelector)) || !has(self.source) || !has(self.source.file)").message("a file that is taken over goes into a pool on its own file system: set pool, and take pools and poolSelector out").field_path(".source"),
    validation = Rule::new("!has(self.source) || !has(self.source.device) || !has(self.access) || self.access == 'ReadWriteOnce'").message("a block device of a host is for one VM at a time: take access out").field_path(".access"),
    validation = Rule::new("!has(self.source) || !has(self.source.device) || !has(self.provisioning) || self.provisioning == 'Thin'").message("a block device of a host has its space: take provisioning out").field_path(".provisioning"),
    validation = Rule::new("!has(self.source) || !has(self.source.device) || !has(self.encryption)").message("a block device of a host is not encrypted by berth: take encryption out, and encrypt it on the host or in the VM").field_path(".encryption"),
    validation = Rule::new("!has(self.source) || !has(self.source.device) || !has(self.restore)").message("a block device of a host has no snapshots, and is not restored").field_path(".restore"),
    validation = Rule::new("!has(self.source) || !has(self.source.device) || !has(self.sharedWith) || self.sharedWith.size() == 0").message("a block device of a host is the source of no other Disk and no Image: take sharedWith out").field_path(".sharedWith"),
    validation = Rule::new("!has(self.source) || !has(self.source.device) || (!has(self.pools) && !has(self.poolSelector))").message("a block device of a host is in no pool: take pools and poolSelector out").field_path(".source"),
    validation = Rule::new("!has(self.source) || !has(self.source.device) || (has(self.pool) ? self.pool : 'default') == (has(oldSelf.pool) ? oldSelf.pool : 'default')").message("a block device of a host is not moved to another pool: restore the former pool").field_path(".pool")
)]
pub struct DiskSpec {
    /// The size, for example `4Gi`. Grow only; `expandPolicy` decides when it takes effect on a running VM. Default: the
    /// image's virtual size, or the size of its `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Name of the Image it is made from, in the Disk's namespace or in `berth-shared`. Default: a blank disk. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ResourceName>,
    /// How it has the data of its image: `Linked` (default), as an overlay on the image in the host's cache, which takes no space at first;
    /// `Full`, as a copy of its own, which does not depend on the cache. Only with `image`. Cannot change.
    #[serde(default, skip_serializing_if = "is_linked")]
    pub clone_mode: CloneMode,
    /// The file system of a blank disk. The host makes it once, before a VM sees the disk, and never again. Not with `image`, `source` or
    /// `encryption`. Default: none, the disk is empty. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<Box<DiskFilesystem>>,
    /// The source of its data: another Disk or a DiskSnapshot, of which a copy is made, a Backup, a file of the host, which becomes
    /// the disk, or a block device of the host, which is the disk. Default: none. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DiskSource>,
    /// A snapshot of this disk whose data it is to have again. It is restored once for each value, while no VM has the disk open: a
    /// running VM has the data after its next power cycle. The data from before goes to the pool's trash. Removing it changes
    /// nothing. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<DiskRestore>,
    /// Name of the StoragePool. Default `default`: the default pool of the namespace when the disk gets its host, if there is one
    /// (`defaultForNamespaces`). After a change, the file is moved on its host, also while its guest runs. A disk that is
    /// encrypted, has snapshots or is used by several VMs is moved while no VM has it open: a running VM keeps the former file until its
    /// next power cycle. Setting it back before then moves nothing.
    #[serde(default = "default_pool")]
    pub pool: ResourceName,
    /// The names of up to 16 StoragePools. The scheduler chooses one of them together with the host of the first VM: the one with the most
    /// room on that host. `status.pool` is the chosen pool. Leave `pool` out. The pool is chosen once: a later change of the list moves no
    /// file. If both the list and `poolSelector` are removed, the disk moves to `pool`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    pub pools: Vec<ResourceName>,
    /// Labels of StoragePools: the scheduler chooses among the pools that have all of them. Not together with `pools`. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = crate::labels::some_labels)]
    pub pool_selector: BTreeMap<String, String>,
    /// The handling of the file when the Disk is deleted: `Delete` (default) moves it to the pool's trash, from which
    /// `berth undelete` restores it for 24 hours; `Retain` keeps it permanently. Applied live.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Whether deleting it is refused. Set it to false before deleting. Default false. Applied live.
    #[serde(default)]
    pub deletion_protection: bool,
    /// Where its file may be. Read when it gets its host: a change moves no file. Default: on any host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Box<DiskPlacement>>,
    /// How VMs use it: `ReadWriteOnce` (default), one VM at a time; `ReadOnlyMany`, up to 16 VMs at a time, all on its host, each with
    /// `readOnly`; `ReadWriteMany`, a blank disk that up to 16 VMs at a time, all on its host, read and write: only for guests with a
    /// cluster file system (GFS2, OCFS2) or an application made for it. Cannot change.
    #[serde(default)]
    pub access: DiskAccess,
    /// When a larger `size` takes effect: `Online` (default) grows the disk of the running VM at once; `Offline` grows the
    /// file while no VM has it open, for guests that do not expect another size: a running VM has it after its next power
    /// cycle. Applied live.
    #[serde(default)]
    pub expand_policy: ExpandPolicy,
    /// `Thin` (default): the file takes the space of the data in it, and space that the guest discards is given back. `Thick`:
    /// the space for the whole size is reserved on the host when the file is created or grown, and stays reserved: the guest
    /// never finds the host full. Cannot change.
    #[serde(default)]
    pub provisioning: Provisioning,
    /// Whether its data is encrypted on its host, and the KeyClass that protects its key. A copy of an encrypted disk or snapshot is
    /// encrypted too, and one of another disk is not. Default: it is not encrypted. Cannot be added or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Box<DiskEncryption>>,
    /// Ceilings for the disk's operations and bandwidth. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<DiskLimits>>,
    /// The disk of another system that its data comes from, for people; `berth import` writes it. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_from: Option<Box<DiskImport>>,
    /// The namespaces in which Disks and Images can be made from this Disk (`source.disk` with `source.diskNamespace`), at most 64; `*` is
    /// every namespace. Disks and Images that exist stay when a namespace is removed from the list. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(n, n == '*' || n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))").message("each of sharedWith must be the name of a namespace, or *"))]
    pub shared_with: Vec<String>,
}

impl Default for DiskSpec {
    fn default() -> Self {
        Self {
            size: None,
            image: None,
            clone_mode: CloneMode::Linked,
            filesystem: None,
            source: None,
            restore: None,
            pool: default_pool(),
            pools: Vec::new(),
            pool_selector: BTreeMap::new(),
            deletion_policy: DeletionPolicy::Delete,
            deletion_protection: false,
            placement: None,
            access: DiskAccess::ReadWriteOnce,
            expand_policy: ExpandPolicy::Online,
            provisioning: Provisioning::Thin,
            encryption: None,
            limits: None,
            imported_from: None,
            shared_with: Vec::new(),
        }
    }
}

/// The source of a Disk. A copy has the data of that moment. It is made on the host and in the pool of the other object, takes no
/// space at first, and does not depend on the other object afterwards. The data of a Backup is written to a new file, on any host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.disk), has(self.snapshot), has(self.file), has(self.backup), has(self.device)].filter(is, is).size() == 1").message("a source is either a disk, a snapshot, a backup, a file or a device"),
    validation = Rule::new("!has(self.diskNamespace) || has(self.disk)").message("diskNamespace is the namespace of the Disk in disk").field_path(".diskNamespace"),
    validation = Rule::new("!has(self.snapshotNamespace) || has(self.snapshot)").message("snapshotNamespace is the namespace of the DiskSnapshot in snapshot").field_path(".snapshotNamespace"),
    validation = Rule::new("!has(self.format) || has(self.file)").message("format is that of the file in file").field_path(".format"),
    validation = Rule::new("!has(self.file) || self.file.matches('^/[^[:cntrl:]]+$')").message("file is the absolute path of a file on the host").field_path(".file")
)]
pub struct DiskSource {
    /// Name of a Disk, of the same namespace or of `diskNamespace`, whose data is copied when this Disk is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<ResourceName>,
    /// The namespace of the Disk in `disk`, which has to be shared with the namespace of this one (`sharedWith`). Default: the same
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_namespace: Option<ResourceName>,
    /// Name of a DiskSnapshot, of the same namespace or of `snapshotNamespace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ResourceName>,
    /// The namespace of the DiskSnapshot in `snapshot`, which has to be shared with the namespace of the Disk (`sharedWith`). Default: the
    /// same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_namespace: Option<ResourceName>,
    /// Name of a Backup of the same namespace. The disk is made once the Backup is complete, and its data is verified while it is
    /// written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<ResourceName>,
    /// The absolute path of a file on the host of the first VM that uses the disk, in a folder that the host's administrator allows
    /// (`--disk-dir`) and on the file system of the pool. A qcow2 file is moved into the pool as it is and is the disk from then on. While
    /// another program has it open as a disk, it is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 1024))]
    pub file: Option<String>,
    /// The name under which administrators offer a block device with `--block-device` of their hosts, for example `scratch-nvme`: an LVM
    /// volume or a whole disk. The disk goes to a host that offers it, and no other Disk has it there. It is the device itself, with its
    /// present data and size: berth neither formats nor grows nor erases it, and gives it up when the Disk is deleted, whatever
    /// `deletionPolicy` is. It has no snapshots, copies, backups and encryption, and stays on its host. `size` is left out, or at most that
    /// of the device; the guest has all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<ResourceName>,
    /// The format of `file`, `qcow2` or `raw`; it is never guessed from the data. A raw file stays where it is: the disk is a qcow2 file in
    /// the pool with a copy of its data. Default: `qcow2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<SourceFormat>,
}

/// The format of a file that a Disk is made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceFormat {
    #[default]
    Qcow2,
    Raw,
}

/// A restore of a Disk from a snapshot of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskRestore {
    /// Name of a DiskSnapshot of this Disk, in the same namespace.
    pub snapshot: ResourceName,
    /// Any text of 1 to 64 characters. Another text restores the same snapshot once more. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub token: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_linked(mode: &CloneMode) -> bool {
    *mode == CloneMode::Linked
}

fn default_pool() -> ResourceName {
    crate::DEFAULT_NAME.into()
}

/// Where the file of a Disk may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskPlacement {
    /// Labels the Host of the file must have, in addition to those that its first VM asks for. A copy is made on the host of
    /// its source, which must have them too. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = crate::labels::bounded_labels)]
    pub host_selector: BTreeMap<String, String>,
}

/// The treatment of a disk's file when the Disk is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    #[default]
    Delete,
    Retain,
}

/// The number of VMs that can use a `ReadOnlyMany` or `ReadWriteMany` disk at a time.
pub const MOST_DISK_READERS: usize = 16;

/// How VMs use a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DiskAccess {
    #[default]
    ReadWriteOnce,
    ReadOnlyMany,
    ReadWriteMany,
}

/// The kind of source that the data of a new disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DataOrigin {
    Blank,
    Image,
    Disk,
    Snapshot,
    Backup,
    File,
    Device,
}

impl DiskSource {
    /// Returns the raw file whose data is copied. None: it has another source, or a file that becomes the disk.
    pub fn raw_file(&self) -> Option<&str> {
        self.file.as_deref().filter(|_| self.format == Some(SourceFormat::Raw))
    }

    /// Returns the namespace of the Disk, the DiskSnapshot or the Backup that a Disk of this namespace is made from.
    pub fn namespace<'a>(&'a self, own: &'a str) -> &'a str {
        let declared = self.disk_namespace.as_ref().or(self.snapshot_namespace.as_ref());
        declared.map_or(own, ResourceName::as_str)
    }
}

impl Disk {
    /// Whether Disks and Images of this namespace may have its data.
    pub fn is_shared_with(&self, namespace: &str) -> bool {
        is_shared(&self.metadata, &self.spec.shared_with, namespace)
    }

    /// Whether it is declared as a copy of the Disk of this name.
    pub fn is_copy_of_disk(&self, namespace: &str, name: &str) -> bool {
        let named = self.spec.source.as_ref().and_then(|source| source.disk.as_ref());
        named.is_some_and(|disk| disk.as_str() == name) && self.is_made_from(namespace)
    }

    /// Whether it is declared as a copy of the DiskSnapshot of this name.
    pub fn is_copy_of_snapshot(&self, namespace: &str, name: &str) -> bool {
        let named = self.spec.source.as_ref().and_then(|source| source.snapshot.as_ref());
        named.is_some_and(|snapshot| snapshot.as_str() == name) && self.is_made_from(namespace)
    }

    fn is_made_from(&self, namespace: &str) -> bool {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        self.spec.source.as_ref().is_some_and(|source| source.namespace(own) == namespace)
    }

    /// Returns the source of the data that it was created with. A later restore does not change it.
    pub fn origin(&self) -> DataOrigin {
        let Some(source) = &self.spec.source else {
            return if self.spec.image.is_some() { DataOrigin::Image } else { DataOrigin::Blank };
        };
        let named = [
            (source.disk.is_some(), DataOrigin::Disk),
            (source.snapshot.is_some(), DataOrigin::Snapshot),
            (source.backup.is_some(), DataOrigin::Backup),
            (source.file.is_some(), DataOrigin::File),
            (source.device.is_some(), DataOrigin::Device),
        ];
        named.into_iter().find(|(is_named, _)| *is_named).map_or(DataOrigin::Blank, |(_, origin)| origin)
    }

    /// Whether it has a copy of its image, and does not depend on the image once it is made.
    pub fn is_full_clone(&self) -> bool {
        self.spec.clone_mode == CloneMode::Full && self.spec.image.is_some()
    }

    /// Whether several VMs can use it at a time, all on its host.
    pub fn is_for_many(&self) -> bool {
        self.spec.access != DiskAccess::ReadWriteOnce
    }

    /// Whether several VMs can use it at a time. They only read it.
    pub fn is_read_only_many(&self) -> bool {
        self.spec.access == DiskAccess::ReadOnlyMany
    }

    /// Whether several VMs can use it at a time, and write to it.
    pub fn is_read_write_many(&self) -> bool {
        self.spec.access == DiskAccess::ReadWriteMany
    }

    /// Returns the labels that the host of its file must have.
    pub fn host_selector(&self) -> impl Iterator<Item = (&String, &String)> {
        self.spec.placement.iter().flat_map(|placement| &placement.host_selector)
    }
}

/// When a disk that is in use grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExpandPolicy {
    #[default]
    Online,
    Offline,
}

/// Whether the space of a disk is reserved on its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Provisioning {
    #[default]
    Thin,
    Thick,
}

/// Ceilings for the operations and the bandwidth of a disk. With a burst, the disk may exceed its ceiling after a time in which it
/// did not use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.iops) || has(self.readIops) || has(self.writeIops) || has(self.bandwidth) || has(self.readBandwidth) || has(self.writeBandwidth)").message("limits need at least one of iops, readIops, writeIops, bandwidth, readBandwidth, writeBandwidth"),
    validation = Rule::new("!has(self.iops) || (!has(self.readIops) && !has(self.writeIops))").message("iops limits reads and writes together: set either iops, or readIops and writeIops").field_path(".iops"),
    validation = Rule::new("!has(self.bandwidth) || (!has(self.readBandwidth) && !has(self.writeBandwidth))").message("bandwidth limits reads and writes together: set either bandwidth, or readBandwidth and writeBandwidth").field_path(".bandwidth"),
    validation = Rule::new("!has(self.burstIops) || (has(self.iops) && self.burstIops >= self.iops)").message("burstIops needs iops, and is at least as large").field_path(".burstIops"),
    validation = Rule::new("!has(self.burstBandwidth) || (has(self.bandwidth) && quantity(self.burstBandwidth).compareTo(quantity(self.bandwidth)) >= 0)").message("burstBandwidth needs bandwidth, and is at least as large").field_path(".burstBandwidth"),
    validation = Rule::new("!has(self.burstSeconds) || has(self.burstIops) || has(self.burstBandwidth)").message("burstSeconds needs burstIops or burstBandwidth").field_path(".burstSeconds"),
    validation = Rule::new("[has(self.bandwidth) ? self.bandwidth : '1', has(self.readBandwidth) ? self.readBandwidth : '1', has(self.writeBandwidth) ? self.writeBandwidth : '1', has(self.burstBandwidth) ? self.burstBandwidth : '1'].all(b, quantity(b).compareTo(quantity('100Gi')) <= 0)").message("a bandwidth is at most 100Gi a second")
)]
pub struct DiskLimits {
    /// Operations a second, reads and writes together, 1 to 100,000,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub iops: Option<i64>,
    /// Read operations a second. Not together with `iops`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub read_iops: Option<i64>,
    /// Write operations a second. Not together with `iops`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub write_iops: Option<i64>,
    /// Bytes a second, reads and writes together, for example `50Mi`, at most `100Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
    /// Bytes a second that are read. Not together with `bandwidth`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bandwidth: Option<Quantity>,
    /// Bytes a second that are written. Not together with `bandwidth`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bandwidth: Option<Quantity>,
    /// Operations a second during a burst; at least `iops`. Default: no burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub burst_iops: Option<i64>,
    /// Bytes a second during a burst; at least `bandwidth`. Default: no burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bandwidth: Option<Quantity>,
    /// The length of a burst at its full rate, in seconds. Default 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub burst_seconds: Option<i64>,
}

impl DiskLimits {
    /// The length of a burst, in seconds.
    #[must_use]
    pub fn burst_length(&self) -> i64 {
        self.burst_seconds.unwrap_or(60)
    }
}

/// The observed state of a Disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`, `Reconciling`, `Stalled`; with `encryption`, `EncryptionSynced`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// One word for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<DiskState>,
    /// The host that stores the file. Written by the scheduler, with the first VM that uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// berth's own identity of this disk; the file is named by it. Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "volumeID")]
    pub volume_id: Option<String>,
    /// The serial number a guest finds it by (`/dev/disk/by-id/…`). Decided at bind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The size the file has now, as a quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// The StoragePool that has its file. While it differs from `spec.pool`, the file is still to be moved. Of a disk with `pools` or
    /// `poolSelector`, the chosen one, from the decision on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<ResourceName>,
    /// The StoragePool that `default` in `spec.pool` stands for: the default pool of the namespace when the disk got its host. None: that
    /// of the name `default`. Later changes of the default move no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_pool: Option<ResourceName>,
    /// The space that its file takes on its host, as a quantity: measured every ten minutes and rounded up. The image and the snapshots that
    /// it is based on are not part of it. Absent before it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub used: Option<String>,
    /// Its encryption: the KeyClass that protects its key, and the identifiers of both keys. None: it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Box<EncryptionStatus>>,
    /// The last restore of its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<Box<DiskRestored>>,
    /// The lost host, or the host that the VM of the disk has left, while the file is still there (in a `Shared` pool: in the folder of
    /// that host). The next host takes it over, or copies it if the pool is `Local`. As long as it is named, that host has the data of the
    /// disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub former_host: Option<String>,
    /// True: a snapshot, a copy or a backup of the disk was ever made, or the disk was restored. Such a disk does not go to another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues_snapshots: Option<bool>,
    /// Whether the disk goes on with its VM on another host once its own host is declared lost (`berth host forget --lost`). The VM can have
    /// reasons of its own to stay, such as a TPM. Absent before the file is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survives_host_loss: Option<bool>,
    /// Why the disk is lost with its host, for people. Absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub host_loss_reason: Option<String>,
    /// The VM that uses it, or those that read it. A deleted Disk stays until no VM does.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::exact::list")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUse>,
}

/// A restore that was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskRestored {
    /// Name of the DiskSnapshot.
    pub snapshot: ResourceName,
    /// berth's own identity of the snapshot.
    #[serde(rename = "snapshotID")]
    #[schemars(length(max = 253))]
    pub snapshot_id: String,
    /// The token that was declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub token: Option<String>,
    /// When it was done, RFC 3339.
    #[schemars(length(max = 40))]
    pub restored_at: String,
}

/// The state of a Disk, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DiskState {
    Pending,
    Creating,
    Available,
    InUse,
    Failed,
    Terminating,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_origin_of_a_disk_is_the_source_that_it_declares() {
        for (spec, origin) in [
            (json!({"size": "1Gi"}), DataOrigin::Blank),
            (json!({"image": "debian"}), DataOrigin::Image),
            (json!({"source": {"disk": "a"}}), DataOrigin::Disk),
            (json!({"source": {"snapshot": "a"}}), DataOrigin::Snapshot),
            (json!({"source": {"backup": "a"}}), DataOrigin::Backup),
            (json!({"source": {"file": "/srv/a.qcow2"}}), DataOrigin::File),
            (json!({"source": {"device": "nvme"}}), DataOrigin::Device),
        ] {
            let spec = serde_json::from_value(spec).expect("a spec");
            assert_eq!(Disk::new("a", spec).origin(), origin);
        }
    }
}
