//! Conflicts with other managers of an object's fields.

use std::collections::BTreeSet;

use serde_json::Value as Json;
use tfplugin6::Diagnostic;

use super::{diagnose::attribute_path, text};
use crate::{
    api::{Address, Api, ApiError, RetryLimit},
    field::Field,
};

/// Fields that other managers own, too.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conflict {
    /// `(manager, field)`, as the control plane names them.
    pub(super) fields: Vec<(String, String)>,
    /// The current object.
    pub(super) object: Json,
}

impl Conflict {
    /// Whether a refusal is about field managers, not about versions or names.
    pub(super) fn is_cause_of(error: &ApiError) -> bool {
        error.code() == 409 && error.causes().iter().any(|cause| cause.reason == "FieldManagerConflict")
    }

    /// Reads the object: its managed fields show whether a manager is a program.
    pub(super) async fn read(
        api: &Api,
        at: &Address,
        error: &ApiError,
        retry_limit: &RetryLimit,
    ) -> Result<Self, ApiError> {
        let quoted = |message: &str| message.split('"').nth(1).unwrap_or(message).to_owned();
        let fields =
            error.causes().iter().map(|cause| (quoted(&cause.message), cause.field.clone())).collect();
        let object = api.get(at, retry_limit).await?.unwrap_or_default();
        Ok(Self { fields, object })
    }

    /// Whether these fields are only edited by hand, and no program declares them.
    pub(super) fn is_manual_only(&self) -> bool {
        let programs = appliers(&self.object);
        self.fields.iter().all(|(manager, _)| !programs.contains(manager.as_str()))
    }

    /// The top-level attributes in conflict.
    pub(super) fn attributes(&self, fields: &[Field]) -> BTreeSet<String> {
        let paths = self.fields.iter().filter_map(|(_, field)| attribute_path(fields, field));
        paths.filter_map(|path| crate::planning::root(&path).map(str::to_owned)).collect()
    }

    /// The error that names the managers and fields.
    pub(super) fn diagnostic(&self, title: &str, fields: &[Field]) -> Diagnostic {
        let programs = appliers(&self.object);
        let theirs: Vec<_> =
            self.fields.iter().filter(|(manager, _)| programs.contains(manager.as_str())).collect();
        let named: Vec<String> =
            theirs.iter().map(|(manager, field)| format!("{field} by {manager:?}")).collect();
        let detail = format!(
            "Another field manager declares these fields too: {}. Remove them from one of the two declarations, or set \
             force_conflicts = true to take them over.",
            named.join(", ")
        );
        let diagnostic = Diagnostic::error(summary(title), detail);
        match theirs.first().and_then(|(_, field)| attribute_path(fields, field)) {
            Some(path) => diagnostic.at(path),
            None => diagnostic,
        }
    }
}

/// The summary of a conflict with another declaration.
pub(super) fn summary(title: &str) -> String {
    format!("{title} is also declared by another field manager")
}

/// The managers that declare fields of the object (server-side apply), such as GitOps programs and other owners.
pub(crate) fn appliers(object: &Json) -> BTreeSet<&str> {
    entries(object)
        .filter(|entry| text(entry, "/operation") == "Apply")
        .map(|entry| text(entry, "/manager"))
        .collect()
}

/// Another manager that declares a field of `spec`.
pub(crate) fn other_applier<'a>(object: &'a Json, ours: &str, key: &str) -> Option<&'a str> {
    let declares = |entry: &&Json| {
        let spec = entry.pointer("/fieldsV1/f:spec");
        text(entry, "/operation") == "Apply"
            && spec.is_some_and(|spec| spec.get(format!("f:{key}")).is_some())
    };
    entries(object).filter(declares).map(|entry| text(entry, "/manager")).find(|&manager| manager != ours)
}

/// Whether another manager declares a label or an annotation. `map`: the part of the metadata that it is in.
pub(super) fn is_metadata_declared(object: &Json, ours: &str, map: &str, name: &str) -> bool {
    let declares = |entry: &Json| {
        let metadata = entry.pointer("/fieldsV1/f:metadata");
        let of_map = metadata.and_then(|metadata| metadata.get(format!("f:{map}")));
        of_map.is_some_and(|of_map| of_map.get(format!("f:{name}")).is_some())
    };
    entries(object).any(|entry| {
        text(entry, "/operation") == "Apply" && text(entry, "/manager") != ours && declares(entry)
    })
}

fn entries(object: &Json) -> impl Iterator<Item = &Json> {
    object.pointer("/metadata/managedFields").and_then(Json::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_label_is_declared_by_managers_that_apply_it_and_not_by_edits() {
        let entry = |manager: &str, operation: &str, labels: Json| {
            let fields = json!({"f:metadata": {"f:labels": labels}});
            json!({"manager": manager, "operation": operation, "fieldsV1": fields})
        };
        let object = json!({"metadata": {"managedFields": [
            entry("terraform:default", "Apply", json!({"f:ours": {}})),
            entry("flux", "Apply", json!({"f:example.org/theirs": {}})),
            entry("kubectl-edit", "Update", json!({"f:edited": {}})),
        ]}});
        let is_declared = |name: &str| is_metadata_declared(&object, "terraform:default", "labels", name);
        assert!(is_declared("example.org/theirs"));
        assert!(!is_declared("ours") && !is_declared("edited"));
        assert!(!is_metadata_declared(&object, "terraform:default", "annotations", "example.org/theirs"));
    }
}
