//! Which object: kind, namespace and name.

use berth_api::{
    Disk, Host, HotswapDiskAttachment, IPPool, Image, Network, PlacementGroup, PublicIP, StoragePool, VM,
    VMClass,
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ServiceAccount, rbac::v1::Role};
use kube::{Resource, ResourceExt};

/// The kinds the controllers watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Host,
    Lease,
    StoragePool,
    IPPool,
    Network,
    VMClass,
    PlacementGroup,
    Image,
    Disk,
    PublicIP,
    VM,
    HotswapDiskAttachment,
    /// Hosts' accounts only.
    ServiceAccount,
    /// Hosts' roles only.
    Role,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 14] = [
        Kind::Host,
        Kind::Lease,
        Kind::StoragePool,
        Kind::IPPool,
        Kind::Network,
        Kind::VMClass,
        Kind::PlacementGroup,
        Kind::Image,
        Kind::Disk,
        Kind::PublicIP,
        Kind::VM,
        Kind::HotswapDiskAttachment,
        Kind::ServiceAccount,
        Kind::Role,
    ];

    /// The kind's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Host => "Host",
            Kind::Lease => "Lease",
            Kind::StoragePool => "StoragePool",
            Kind::IPPool => "IPPool",
            Kind::Network => "Network",
            Kind::VMClass => "VMClass",
            Kind::PlacementGroup => "PlacementGroup",
            Kind::Image => "Image",
            Kind::Disk => "Disk",
            Kind::PublicIP => "PublicIP",
            Kind::VM => "VM",
            Kind::HotswapDiskAttachment => "HotswapDiskAttachment",
            Kind::ServiceAccount => "ServiceAccount",
            Kind::Role => "Role",
        }
    }
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The kind.
    pub kind: Kind,
    /// The namespace; none for kinds without.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl Key {
    /// The key of an object.
    pub fn of<K: Watched>(object: &K) -> Self {
        Self { kind: K::KIND, namespace: object.namespace(), name: object.name_any() }
    }

    /// The key of an object of a kind with namespaces.
    pub fn namespaced(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// The key of an object of a kind without namespaces.
    pub fn cluster(kind: Kind, name: &str) -> Self {
        Self { kind, namespace: None, name: name.to_owned() }
    }

    /// The namespace, empty for kinds without.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }
}

/// A kind the controllers watch.
pub trait Watched: Resource<DynamicType = ()> + Clone {
    /// Which one.
    const KIND: Kind;
}

macro_rules! watched {
    ($($kind:ident),+) => { $(impl Watched for $kind { const KIND: Kind = Kind::$kind; })+ };
}

watched!(
    Host,
    Lease,
    StoragePool,
    IPPool,
    Network,
    VMClass,
    PlacementGroup,
    Image,
    Disk,
    PublicIP,
    VM,
    HotswapDiskAttachment,
    ServiceAccount,
    Role
);
