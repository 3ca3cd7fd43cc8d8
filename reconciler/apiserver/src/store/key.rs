//! The name of a stored object.

use std::fmt;
use std::sync::Arc;

/// Identifies one object: storage resource (`group/plural`, the core group being empty), namespace, name. Cheap to clone:
/// what is held of an object in memory has its name several times.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) resource: Arc<str>,
    /// Empty for cluster-scoped objects.
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl Key {
    pub(crate) fn new(resource: &Arc<str>, namespace: &str, name: &str) -> Self {
        Self { resource: Arc::clone(resource), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.resource, self.namespace, self.name)
    }
}
