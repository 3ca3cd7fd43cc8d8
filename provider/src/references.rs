//! References: fields that name another object.
//!
//! Pure: the kinds of objects that are named, and their places.

use tfplugin6::AttributePath;

use crate::api::Address;

/// A kind of object that a field names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// `VMClass`
    pub kind: &'static str,
    plural: &'static str,
    scope: Scope,
    /// The data source that lists the objects, if there is one.
    pub list: Option<&'static str>,
    /// Whether the object `default` need not exist.
    pub has_default: bool,
}

/// Where the object is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Cluster,
    Namespace,
    NamespaceOrShared,
}

const fn reference(
    kind: &'static str,
    plural: &'static str,
    scope: Scope,
    list: Option<&'static str>,
) -> Reference {
    Reference { kind, plural, scope, list, has_default: false }
}

/// A VMClass.
pub const CLASS: Reference =
    reference("VMClass", "vmclasses", Scope::NamespaceOrShared, Some("berth_vm_classes"));
/// A KeyClass.
pub const KEY_CLASS: Reference =
    reference("KeyClass", "keyclasses", Scope::NamespaceOrShared, Some("berth_key_classes"));
/// An Image.
pub const IMAGE: Reference = reference("Image", "images", Scope::NamespaceOrShared, Some("berth_images"));
/// An Image that another one is a copy of.
pub const ORIGINAL_IMAGE: Reference = reference("Image", "images", Scope::Namespace, Some("berth_images"));
/// A Network. The network `default` is created when it is needed.
pub const NETWORK: Reference = Reference {
    has_default: true,
    ..reference("Network", "networks", Scope::NamespaceOrShared, Some("berth_networks"))
};
/// A VM.
pub const VM: Reference = reference("VM", "vms", Scope::Namespace, Some("berth_vms"));
/// A Disk.
pub const DISK: Reference = reference("Disk", "disks", Scope::Namespace, Some("berth_disks"));
/// A DiskSnapshot.
pub const DISK_SNAPSHOT: Reference =
    reference("DiskSnapshot", "disksnapshots", Scope::Namespace, Some("berth_disk_snapshots"));
/// A Backup.
pub const BACKUP: Reference = reference("Backup", "backups", Scope::Namespace, Some("berth_backups"));
/// A BackupRepository.
pub const BACKUP_REPOSITORY: Reference =
    reference("BackupRepository", "backuprepositories", Scope::Namespace, Some("berth_backup_repositories"));
/// A PublicIP.
pub const PUBLIC_IP: Reference =
    reference("PublicIP", "publicips", Scope::Namespace, Some("berth_public_ips"));
/// A SecurityGroup.
pub const SECURITY_GROUP: Reference =
    reference("SecurityGroup", "securitygroups", Scope::Namespace, Some("berth_security_groups"));
/// A PlacementGroup.
pub const GROUP: Reference =
    reference("PlacementGroup", "placementgroups", Scope::Namespace, Some("berth_placement_groups"));
/// A VMGroup.
pub const VM_GROUP: Reference = reference("VMGroup", "vmgroups", Scope::Namespace, Some("berth_vm_groups"));
/// A Secret.
pub const SECRET: Reference = reference("Secret", "secrets", Scope::Namespace, None);
/// A Host.
pub const HOST: Reference = reference("Host", "hosts", Scope::Cluster, Some("berth_hosts"));
/// A StoragePool. The pool `default` is every host's own folder and needs no object.
pub const STORAGE_POOL: Reference = Reference {
    has_default: true,
    ..reference("StoragePool", "storagepools", Scope::Cluster, Some("berth_storage_pools"))
};
/// An IPPool. A control plane has the pool `default`, unless its administrator has left it out.
pub const IP_POOL: Reference =
    Reference { has_default: true, ..reference("IPPool", "ippools", Scope::Cluster, Some("berth_ip_pools")) };

impl Reference {
    /// The places at which the object may be, the first one first.
    #[must_use]
    pub fn places(&self, namespace: &str, name: &str) -> Vec<Address> {
        let at = |namespace: &str| match self.kind {
            "Secret" => Address::secret(namespace, name),
            _ => Address::berth(self.plural, namespace, name),
        };
        match self.scope {
            Scope::Cluster => vec![at("")],
            Scope::Namespace => vec![at(namespace)],
            Scope::NamespaceOrShared => vec![at(namespace), at(berth_api::SHARED_NAMESPACE)],
        }
    }

    /// The place of a missing object, in words.
    #[must_use]
    pub fn place(&self, namespace: &str) -> String {
        match self.scope {
            Scope::Cluster => "on this control plane".to_owned(),
            Scope::Namespace => format!("in namespace {namespace}"),
            Scope::NamespaceOrShared => {
                format!("in namespace {namespace} or {}", berth_api::SHARED_NAMESPACE)
            }
        }
    }

    /// Whether objects of the kind are in namespaces.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.scope != Scope::Cluster
    }
}

/// A name in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The path of the attribute.
    pub path: AttributePath,
    /// The kind of object.
    pub reference: Reference,
    /// The name.
    pub name: String,
}
