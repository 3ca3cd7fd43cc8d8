//! Field ownership: server-side apply, and the tracking of all other writes.
//!
//! A port of the semantics (not the code) of Kubernetes' structured-merge-diff and of the field manager chain
//! of its apiserver. Values, schemas and options are inputs, values are outputs: no I/O, no clock (the time
//! is an argument).

mod compare;
mod element;
mod in_place;
mod last_applied;
mod managed;
mod merge;
mod remove;
mod set;
mod take_over;
mod typed;
mod typed_set;
mod update;
mod v1;

use std::fmt;

use serde_json::Value;

use crate::schema::{StructuralSchema, too_deep};

/// The fields that the strategy of a request resets: values that a client sends there are ignored and never
/// owned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// Nothing: the kind has no status subresource.
    #[default]
    Nothing,
    /// `status`: writes to the main resource of a kind with a status subresource.
    Status,
    /// `spec`: writes to the status subresource, as far as ownership is concerned. As in Kubernetes, metadata
    /// sent there is owned although it is not stored.
    Spec,
    /// Everything but `status`: apply to the status subresource.
    AllButStatus,
}

/// The options of a write.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub manager: String,
    /// Whether an apply takes fields from other managers; other writes always do.
    pub force: bool,
    /// `status` or `None`.
    pub subresource: Option<String>,
    /// The request's version, `group/version`.
    pub api_version: String,
    /// RFC 3339, whole seconds: written to `managedFields[].time` of the changed entries.
    pub now: String,
    pub reset: Reset,
}

/// A field that another manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The manager as Kubernetes prints it: `"kubectl-client-side-apply" using berth.dev/v1alpha1`.
    pub manager: String,
    /// `.spec.size`, `.spec.disks[name="root"].size`.
    pub field: String,
}

/// Why an apply failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 409 Conflict; each conflict is a cause with reason `FieldManagerConflict`.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// 400 BadRequest.
    #[error("{0}")]
    BadRequest(String),
    /// The applied configuration does not fit the schema (duplicate keys, items without key): 422 or 400,
    /// decided by the caller.
    #[error("{0}")]
    Unmergeable(String),
}

impl ApplyError {
    /// Returns `(reason, message, field)` of each cause of the Status.
    pub fn causes(&self) -> Vec<(&'static str, String, String)> {
        match self {
            Self::Conflicts(conflicts) => conflicts
                .iter()
                .map(|c| ("FieldManagerConflict", format!("conflict with {}", c.manager), c.field.clone()))
                .collect(),
            Self::BadRequest(_) | Self::Unmergeable(_) => Vec::new(),
        }
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", only.manager, only.field);
    }
    let mut lines = Vec::new();
    let mut last: Option<&str> = None;
    for conflict in conflicts {
        if last != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", conflict.manager));
            last = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conflict with {}: {}", self.manager, self.field)
    }
}

/// Server-side apply of `applied` onto `live` (`None`: the object does not exist yet).
///
/// Guarantees: the result equals `live`, times included, if the apply changes neither values nor owners.
/// Fields that the request may not write (see [`Reset`]) are as in `live`. The caller then sets defaults and
/// validates.
///
/// # Errors
/// [`ApplyError::Conflicts`] unless forced; [`ApplyError::BadRequest`] for `managedFields` in the request or
/// another version; [`ApplyError::Unmergeable`] for lists that cannot be keyed.
pub fn apply(
    live: Option<&Value>,
    applied: &Value,
    options: &WriteOptions,
    schema: &StructuralSchema,
) -> Result<Value, ApplyError> {
    if too_deep(applied) || live.is_some_and(too_deep) {
        return Err(ApplyError::BadRequest("the object nests too deeply".to_owned()));
    }
    take_over::apply(live, applied, options, schema)
}

/// Records the owners of fields in `after.metadata.managedFields` after a create (`before` is `None`),
/// replace or patch.
///
/// `managedFields` sent by the client are honoured as in Kubernetes: a single empty entry resets them, an
/// empty list or an invalid value is ignored. Ownership never makes a write fail.
pub fn track_update(
    before: Option<&Value>,
    after: &mut Value,
    options: &WriteOptions,
    schema: &StructuralSchema,
) {
    if too_deep(after) || before.is_some_and(too_deep) {
        return;
    }
    update::track(before, after, options, schema);
}

#[cfg(test)]
mod tests;
