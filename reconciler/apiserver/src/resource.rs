//! The served resources: one [`Resource`] per group and plural, built-in or from a CustomResourceDefinition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use berth_apimachinery::meta::NameRule;
use berth_apimachinery::schema::StructuralSchema;
use berth_apimachinery::table::Columns;
use berth_store::{FieldPath, Key};
use tokio_util::sync::CancellationToken;

/// The source of a resource's definition.
#[derive(Debug)]
pub(crate) enum Origin {
    Builtin,
    /// A CRD: its key, a revision since which it defines this, its current revision, and whether it is being deleted.
    Custom {
        crd: Key,
        revision: u64,
        current: AtomicU64,
        terminating: AtomicBool,
    },
}

/// A schema with its owner.
#[derive(Debug)]
pub(crate) enum Schema {
    Builtin(&'static StructuralSchema),
    Custom(Box<StructuralSchema>),
}

impl std::ops::Deref for Schema {
    type Target = StructuralSchema;

    fn deref(&self) -> &StructuralSchema {
        match self {
            Self::Builtin(schema) => schema,
            Self::Custom(schema) => schema,
        }
    }
}

/// One version of a resource.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) served: bool,
    pub(crate) schema: Schema,
    /// The JSON of the schema, from which the OpenAPI documents are built. As text: the schemas of berth's own kinds as values take
    /// several times as much memory, and are rarely read.
    pub(crate) schema_json: Option<Box<[u8]>>,
    pub(crate) has_status: bool,
    /// The columns of a Table.
    pub(crate) columns: Columns,
    /// Sent as a `Warning` header with every request.
    pub(crate) deprecation: Option<String>,
}

/// Whether the resource is another one since its definition was changed, or is no longer served.
#[derive(Debug, Default)]
pub(crate) struct Retirement {
    /// Read for each event of a watch: cheaper than the token.
    is_retired: AtomicBool,
    ended: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) name_rule: NameRule,
    /// The resource part of storage keys. Core and `events.k8s.io` Events share one.
    pub(crate) storage: Arc<str>,
    /// In order of preference.
    pub(crate) versions: Vec<Version>,
    pub(crate) storage_version: usize,
    pub(crate) fields: Arc<[FieldPath]>,
    pub(crate) origin: Origin,
    /// Whether `metadata.generation` is maintained.
    pub(crate) counts_generation: bool,
    /// Whether an update must name the revision that it replaces.
    pub(crate) needs_revision: bool,
    pub(crate) verbs: &'static [&'static str],
    /// Watches of a retired resource end: they would go on in the form of the old definition.
    pub(crate) retirement: Retirement,
}

impl Retirement {
    /// Watches also end with this token: they wait for one only.
    pub(crate) fn with(stopping: &CancellationToken) -> Self {
        Self { ended: stopping.child_token(), ..Self::default() }
    }
}

pub(crate) const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

impl Resource {
    pub(crate) fn key(&self, namespace: &str, name: &str) -> Key {
        Key::new(&self.storage, if self.namespaced { namespace } else { "" }, name)
    }

    pub(crate) fn api_version(&self, version: usize) -> String {
        group_version(&self.group, &self.versions[version].name)
    }

    pub(crate) fn version(&self, name: &str) -> Option<usize> {
        self.versions.iter().position(|version| version.served && version.name == name)
    }

    pub(crate) fn is_custom(&self) -> bool {
        matches!(self.origin, Origin::Custom { .. })
    }

    /// Returns the revision of the definition. Objects written at or before it may predate the definition and
    /// are read through its schema.
    pub(crate) fn defined_at(&self) -> u64 {
        match &self.origin {
            Origin::Builtin => 0,
            Origin::Custom { revision, .. } => *revision,
        }
    }

    /// Takes over what a write of the definition changed that left what it defines as it was.
    pub(crate) fn follow(&self, revision: u64, is_terminating: bool) {
        if let Origin::Custom { current, terminating, .. } = &self.origin {
            // In this order: a create that guards this revision knows whether the definition is being deleted.
            terminating.store(is_terminating, Ordering::Release);
            current.store(revision, Ordering::Release);
        }
    }

    /// Retires the resource, before the one that replaces it is served.
    pub(crate) fn retire(&self) {
        self.retirement.is_retired.store(true, Ordering::Release);
        self.end();
    }

    /// Ends the watches of a resource that is no longer served, once they have sent its last events.
    pub(crate) fn end(&self) {
        self.retirement.ended.cancel();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retirement.is_retired.load(Ordering::Acquire)
    }

    /// Returns a token that is cancelled when the resource is retired.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.retirement.ended.clone()
    }

    /// Whether this is the built-in resource of that group and plural.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }
}

pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Returns the rank of a version in Kubernetes' order: `v2` before `v1` before `v1beta1` before `v1alpha1`
/// before anything else.
pub(crate) fn version_rank(name: &str) -> (u8, u32, u32) {
    let parse = || -> Option<(u8, u32, u32)> {
        let rest = name.strip_prefix('v')?;
        for (stage, rank) in [("alpha", 1), ("beta", 2)] {
            if let Some((major, minor)) = rest.split_once(stage) {
                return Some((rank, major.parse().ok()?, minor.parse().ok()?));
            }
        }
        Some((3, rest.parse().ok()?, 0))
    };
    parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_come_before_beta_before_alpha() {
        let mut names = ["foo", "v1alpha1", "v1beta2", "v1", "v10", "v2", "v1beta10"];
        names.sort_by_key(|name| std::cmp::Reverse(version_rank(name)));
        assert_eq!(names, ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]);
    }
}
