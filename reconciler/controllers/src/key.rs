//! The watched kinds, and the key of an object: kind, namespace and name.

use std::sync::Arc;

use berth_api::{JsonKind, SYSTEM_NAMESPACE, host_addresses::HOST_ADDRESSES, manifests::access};

/// Calls a macro with every watched kind: its name, the name of its table in the cache, its Rust type.
macro_rules! with_kinds {
    ($define:ident) => {
        $define! {
            Host, hosts, berth_api::Host;
            Lease, leases, k8s_openapi::api::coordination::v1::Lease;
            StoragePool, storage_pools, berth_api::StoragePool;
            IPPool, ip_pools, berth_api::IPPool;
            Network, networks, berth_api::Network;
            SecurityGroup, security_groups, berth_api::SecurityGroup;
            VMClass, vm_classes, berth_api::VMClass;
            KeyClass, key_classes, berth_api::KeyClass;
            PlacementGroup, placement_groups, berth_api::PlacementGroup;
            Image, images, berth_api::Image;
            Disk, disks, berth_api::Disk;
            DiskSnapshot, disk_snapshots, berth_api::DiskSnapshot;
            BackupRepository, backup_repositories, berth_api::BackupRepository;
            Backup, backups, berth_api::Backup;
            PublicIP, public_ips, berth_api::PublicIP;
            VM, vms, berth_api::VM;
            VMGroup, vm_groups, berth_api::VMGroup;
            HotswapDiskAttachment, attachments, berth_api::HotswapDiskAttachment;
            VMSnapshot, vm_snapshots, berth_api::VMSnapshot;
            SnapshotSchedule, snapshot_schedules, berth_api::SnapshotSchedule;
            Quota, quotas, berth_api::Quota;
            ServiceAccount, accounts, k8s_openapi::api::core::v1::ServiceAccount;
            Role, roles, k8s_openapi::api::rbac::v1::Role;
            ConfigMap, config_maps, k8s_openapi::api::core::v1::ConfigMap;
        }
    };
}
pub(crate) use with_kinds;

macro_rules! define_kinds {
    ($($kind:ident, $table:ident, $type:ty;)+) => {
        /// The watched kinds. Of service accounts and roles only those of hosts, of config maps only the list of the
        /// hosts' addresses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum ObjectKind {
            $($kind),+
        }

        impl ObjectKind {
            /// All kinds.
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),+];

            /// The kind's name.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind)),+
                }
            }
        }

        $(impl Watched for $type {
            const KIND: ObjectKind = ObjectKind::$kind;
        })+
    };
}

with_kinds!(define_kinds);

/// A kind the controllers watch.
pub(crate) trait Watched: JsonKind {
    /// The kind's key part.
    const KIND: ObjectKind;
}

/// The key of an object. Copies share their texts: the cache, its indices and the queue have a dozen copies of each key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    /// The kind.
    pub(crate) kind: ObjectKind,
    /// The namespace; none for cluster-scoped kinds.
    pub(crate) namespace: Option<Arc<str>>,
    /// The name.
    pub(crate) name: Arc<str>,
}

impl Key {
    /// The key of an object.
    pub(crate) fn of<K: Watched>(object: &K) -> Self {
        let meta = object.meta();
        let name = meta.name.as_deref().or(meta.generate_name.as_deref()).unwrap_or_default();
        Self { kind: K::KIND, namespace: meta.namespace.as_deref().map(Into::into), name: name.into() }
    }

    /// The key of an object of a namespaced kind.
    pub(crate) fn namespaced(kind: ObjectKind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: Some(namespace.into()), name: name.into() }
    }

    /// The key of an object of a cluster-scoped kind.
    pub(crate) fn cluster(kind: ObjectKind, name: &str) -> Self {
        Self { kind, namespace: None, name: name.into() }
    }

    /// The key of the ConfigMap with the addresses of all hosts.
    pub(crate) fn host_addresses() -> Self {
        Self::namespaced(ObjectKind::ConfigMap, SYSTEM_NAMESPACE, HOST_ADDRESSES)
    }

    /// The key of a host's Role for the Secrets of a namespace.
    pub(crate) fn secrets_role(host: &str, namespace: &str) -> Self {
        Self::namespaced(ObjectKind::Role, namespace, &access::secrets_role_name(host))
    }

    /// The key of a namespace's ServiceAccount for tickets, see [`berth_api::console`].
    pub(crate) fn ticket_account(namespace: &str, account: &str) -> Self {
        Self::namespaced(ObjectKind::ServiceAccount, namespace, account)
    }

    /// The namespace, empty for cluster-scoped kinds.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }
}
