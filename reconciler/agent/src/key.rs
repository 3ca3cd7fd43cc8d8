//! The keys of the objects that are reconciled.

use std::borrow::Cow;
use std::fmt;

use berth_api::{Host, Network, SecurityGroup};
use kube::{Resource, ResourceExt};

/// Name of a namespaced object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ObjectName {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub(crate) fn of(object: &impl ResourceExt) -> Self {
        Self::new(object.namespace().unwrap_or_default(), object.name_any())
    }

    /// Returns the name of another object in the same namespace.
    pub(crate) fn beside(&self, name: &str) -> Self {
        Self::new(self.namespace.clone(), name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns the name of a kind, as in its manifests.
pub(crate) fn kind<K: Resource<DynamicType = ()>>() -> Cow<'static, str> {
    K::kind(&())
}

/// Something that is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Cow<'static, str>,
    /// Empty for what a host has only one of, see [`Key::host`], [`Key::networks`] and [`Key::filters`].
    pub(crate) name: ObjectName,
}

impl Key {
    /// Returns the key of the object of this kind with this name.
    pub(crate) fn new<K: Resource<DynamicType = ()>>(name: ObjectName) -> Self {
        Self { kind: kind::<K>(), name }
    }

    pub(crate) fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self::new::<K>(ObjectName::of(object))
    }

    /// Returns the key of the Host object and the host's housekeeping.
    pub(crate) fn host() -> Self {
        Self::new::<Host>(ObjectName::default())
    }

    /// Returns the key of the bridges, leases and forwards of the whole host.
    pub(crate) fn networks() -> Self {
        Self::new::<Network>(ObjectName::default())
    }

    /// Returns the key of the rules and members of the security groups in the packet filters of the whole host.
    pub(crate) fn filters() -> Self {
        Self::new::<SecurityGroup>(ObjectName::default())
    }
}
