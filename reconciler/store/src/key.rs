//! The name of a stored object.

use std::fmt;
use std::sync::Arc;

/// Identifies one object: storage resource (`group/plural`, the core group being empty), namespace, name.
/// Cheap to clone: the data of an object in memory contains its name several times.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub resource: Arc<str>,
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(resource: &Arc<str>, namespace: &str, name: &str) -> Self {
        Self { resource: Arc::clone(resource), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.resource, self.namespace, self.name)
    }
}
