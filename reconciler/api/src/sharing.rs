//! Objects whose data other namespaces may have.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Whether an object with these metadata and this list of namespaces is shared with a namespace: its own is, too.
pub(crate) fn is_shared(metadata: &ObjectMeta, shared_with: &[String], namespace: &str) -> bool {
    let names = |shared: &String| shared == "*" || shared == namespace;
    metadata.namespace.as_deref().unwrap_or_default() == namespace || shared_with.iter().any(names)
}
