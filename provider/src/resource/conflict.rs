//! Who else writes the fields of an object.

use std::collections::BTreeSet;

use serde_json::Value as Json;
use tfplugin6::Diagnostic;

use super::{diagnose::attribute_path, text};
use crate::{
    api::{Address, Api, ApiError, Patience},
    field::Field,
};

/// Fields that others have too.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conflict {
    /// `(manager, field)`, as the control plane names them.
    pub(super) fields: Vec<(String, String)>,
    /// The object as it is.
    pub(super) object: Json,
}

impl Conflict {
    /// Whether a refusal is one about field managers, and not about versions or names.
    pub(super) fn is_one(error: &ApiError) -> bool {
        error.code() == 409 && error.causes().iter().any(|cause| cause.reason == "FieldManagerConflict")
    }

    /// Reads the object, to know what kind of managers these are.
    pub(super) async fn of(
        api: &Api,
        at: &Address,
        error: &ApiError,
        patience: &Patience,
    ) -> Result<Self, ApiError> {
        let quoted = |message: &str| message.split('"').nth(1).unwrap_or(message).to_owned();
        let fields =
            error.causes().iter().map(|cause| (quoted(&cause.message), cause.field.clone())).collect();
        let object = api.get(at, patience).await?.unwrap_or_default();
        Ok(Self { fields, object })
    }

    /// Whether only people edited these fields: no program declares them.
    pub(super) fn is_with_people_only(&self) -> bool {
        let programs = appliers(&self.object);
        self.fields.iter().all(|(manager, _)| !programs.contains(manager.as_str()))
    }

    /// The top-level attributes in conflict.
    pub(super) fn attributes(&self, fields: &[Field]) -> BTreeSet<String> {
        let paths = self.fields.iter().filter_map(|(_, field)| attribute_path(fields, field));
        paths.filter_map(|path| crate::planning::root(&path).map(str::to_owned)).collect()
    }

    /// The error that names who and what.
    pub(super) fn diagnostic(&self, title: &str, fields: &[Field]) -> Diagnostic {
        let programs = appliers(&self.object);
        let theirs: Vec<_> =
            self.fields.iter().filter(|(manager, _)| programs.contains(manager.as_str())).collect();
        let named: Vec<String> =
            theirs.iter().map(|(manager, field)| format!("{field} by {manager:?}")).collect();
        let detail = format!(
            "These fields are declared by somebody else too: {}. Take them out of one of the two declarations, or set \
             force_conflicts = true to take them over.",
            named.join(", ")
        );
        let diagnostic = Diagnostic::error(format!("{title} is also declared by somebody else"), detail);
        match theirs.first().and_then(|(_, field)| attribute_path(fields, field)) {
            Some(path) => diagnostic.at(path),
            None => diagnostic,
        }
    }
}

/// The managers that declare fields of the object (server-side apply), as GitOps programs and other owners do.
pub(super) fn appliers(object: &Json) -> BTreeSet<&str> {
    entries(object)
        .filter(|entry| text(entry, "/operation") == "Apply")
        .map(|entry| text(entry, "/manager"))
        .collect()
}

/// Another manager that declares a field of `spec`.
pub(super) fn other_applier<'a>(object: &'a Json, ours: &str, key: &str) -> Option<&'a str> {
    let declares = |entry: &&Json| {
        let spec = entry.pointer("/fieldsV1/f:spec");
        text(entry, "/operation") == "Apply"
            && spec.is_some_and(|spec| spec.get(format!("f:{key}")).is_some())
    };
    entries(object).filter(declares).map(|entry| text(entry, "/manager")).find(|&manager| manager != ours)
}

fn entries(object: &Json) -> impl Iterator<Item = &Json> {
    object.pointer("/metadata/managedFields").and_then(Json::as_array).into_iter().flatten()
}
