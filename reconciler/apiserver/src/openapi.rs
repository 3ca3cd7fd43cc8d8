//! `/openapi/v3`: the source of `kubectl explain`, and of the clients' check whether a PATCH accepts
//! `fieldValidation`; and the little of `/openapi/v2` that some clients still read.
//!
//! Documents are built from a plain list of the served resources. Pure: no HTTP, no catalog, no cache; the
//! index carries a hash of each document, so that clients can cache a document until it changes.

mod models;
mod paths;
mod v2;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// One version of one resource.
#[derive(Clone, Debug)]
pub(crate) struct Served<'a> {
    /// Empty for the core group.
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) list_kind: &'a str,
    pub(crate) plural: &'a str,
    pub(crate) namespaced: bool,
    pub(crate) verbs: &'a [&'a str],
    pub(crate) status: bool,
    /// The text of the `openAPIV3Schema` of a custom resource; `None` for a built-in kind, which has its schema in
    /// this program.
    pub(crate) schema: Option<&'a [u8]>,
    /// Selectable fields besides those of every object.
    pub(crate) selectable: Vec<&'a str>,
}

impl Served<'_> {
    fn is_builtin(&self) -> bool {
        self.schema.is_none()
    }

    /// `api/v1` or `apis/<group>/<version>`.
    fn path(&self) -> String {
        if self.group.is_empty() {
            format!("api/{}", self.version)
        } else {
            format!("apis/{}/{}", self.group, self.version)
        }
    }

    /// The schema of a custom resource.
    fn custom_schema(&self) -> Option<Value> {
        let read = |text| serde_json::from_slice(text).expect("this server wrote the text of a schema");
        self.schema.map(read)
    }

    fn gvk(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// The index at `/openapi/v3`.
pub(crate) fn v3_index(resources: &[Served<'_>]) -> Value {
    let mut paths = Map::new();
    for (path, served) in by_path(resources) {
        let url = format!("/openapi/v3/{path}?hash={}", hash(&served));
        paths.insert(path, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// The document at `/openapi/v3/<path>`, such as `apis/example.dev/v1`; `None` if nothing is served there.
pub(crate) fn v3_document(resources: &[Served<'_>], path: &str) -> Option<Value> {
    let served = by_path(resources).remove(path.trim_matches('/'))?;
    Some(document(&served))
}

/// The document at `/openapi/v2`: the built-in kinds.
pub(crate) fn v2_document(resources: &[Served<'_>]) -> Value {
    let builtin: Vec<&Served<'_>> = resources.iter().filter(|served| served.is_builtin()).collect();
    v2::document(&document(&builtin))
}

/// The media type in which Kubernetes clients request `/openapi/v2`.
pub(crate) const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Returns the document at `/openapi/v2` in protobuf: valid, and without definitions.
pub(crate) fn v2_protobuf() -> Vec<u8> {
    v2::protobuf("berth")
}

fn by_path<'r, 'a>(resources: &'r [Served<'a>]) -> BTreeMap<String, Vec<&'r Served<'a>>> {
    let mut out: BTreeMap<String, Vec<&Served<'a>>> = BTreeMap::new();
    for served in resources {
        out.entry(served.path()).or_default().push(served);
    }
    out
}

fn document(served: &[&Served<'_>]) -> Value {
    let mut all_paths = BTreeMap::new();
    let mut schemas = models::shared();
    for resource in served {
        all_paths.extend(paths::of(resource));
        schemas.extend(models::of(resource));
    }
    let paths: Map<String, Value> = all_paths.into_iter().collect();
    let schemas: Map<String, Value> = schemas.into_iter().collect();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// Hashes the inputs of a document, which are smaller than the document.
fn hash(served: &[&Served<'_>]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(env!("CARGO_PKG_VERSION"));
    for s in served {
        let head =
            json!([s.group, s.version, s.kind, s.list_kind, s.plural, s.namespaced, s.verbs, s.status]);
        hasher.update(head.to_string());
        hasher.update(s.schema.unwrap_or(b"null"));
    }
    hasher.finalize().iter().fold(String::new(), |mut out, byte| {
        // Writing into a String cannot fail.
        let _ = write!(out, "{byte:02X}");
        out
    })
}

#[cfg(test)]
mod tests;
