//! The keys of the objects that are reconciled.

use std::fmt;

/// Name of a namespaced object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ObjectName {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
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

/// Something that is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// Bridges, leases and forwards of the whole host.
    Network,
    Disk(ObjectName),
    Vm(ObjectName),
    Attachment(ObjectName),
    Image(ObjectName),
    /// The Host object and the host's housekeeping.
    Host,
}
