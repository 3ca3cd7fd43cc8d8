//! Field ownership: server-side apply and the tracking of every other write.
//!
//! A port of the semantics (not the code) of Kubernetes' structured-merge-diff and of the field manager chain
//! of its apiserver. Values, schemas and options go in, values come out: no I/O, no clock (the time is an
//! argument).

pub(crate) mod builtin;
mod compare;
mod element;
mod last_applied;
mod managed;
mod merge;
mod remove;
mod set;
mod typed;
mod update;
mod v1;

use std::fmt;

use serde_json::Value;

pub(crate) use builtin::builtin_schema;
#[cfg(test)]
use set::FieldSet;

use crate::schema::{StructuralSchema, too_deep};

/// Fields the strategy of a request resets: whatever a client sends there is ignored and never owned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reset {
    /// Nothing: the kind has no status subresource.
    #[default]
    Nothing,
    /// `status`: writes to the main resource of a kind with a status subresource.
    Status,
    /// `spec`: writes to the status subresource, as far as ownership is concerned. As in Kubernetes what is sent there of
    /// metadata is owned though it is not stored.
    Spec,
    /// Everything but `status`: what is applied to the status subresource.
    AllButStatus,
}

/// Who applies, and how.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApplyOptions {
    pub(crate) manager: String,
    pub(crate) force: bool,
    /// `status`, `scale` or nothing.
    pub(crate) subresource: Option<String>,
    /// Of the request, `group/version`.
    pub(crate) api_version: String,
    /// RFC 3339, whole seconds: written to `managedFields[].time` of what changed.
    pub(crate) now: String,
    pub(crate) reset: Reset,
}

/// Who creates, replaces or patches.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpdateOptions {
    /// What every object of the kind has before anybody writes to it; null: nothing.
    pub(crate) blank: Value,
    pub(crate) manager: String,
    pub(crate) subresource: Option<String>,
    pub(crate) api_version: String,
    /// Empty: no time is told.
    pub(crate) now: String,
    pub(crate) reset: Reset,
}

/// One field that somebody else owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// As Kubernetes prints it: `"kubectl-client-side-apply" using berth.dev/v1alpha1`.
    pub(crate) manager: String,
    /// `.spec.size`, `.spec.disks[name="root"].size`.
    pub(crate) field: String,
}

/// Why an apply did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ApplyError {
    /// 409 Conflict; each conflict is a cause with reason `FieldManagerConflict`.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// 400 BadRequest.
    #[error("{0}")]
    BadRequest(String),
    /// What was applied does not fit the schema (duplicate keys, items without key): 422 or 400 for the
    /// caller.
    #[error("{0}")]
    Unmergeable(String),
}

impl ApplyError {
    /// `(reason, message, field)` of each cause of the Status.
    pub(crate) fn causes(&self) -> Vec<(&'static str, String, String)> {
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
/// Guarantees: the result equals `live`, times included, if the apply changes neither values nor owners. What
/// the request may not write (see [`Reset`]) is as in `live`. Defaults and validation are the caller's next
/// steps.
///
/// # Errors
/// [`ApplyError::Conflicts`] unless forced; [`ApplyError::BadRequest`] for `managedFields` in the request or
/// another version; [`ApplyError::Unmergeable`] for lists that cannot be keyed.
pub(crate) fn apply(
    live: Option<&Value>,
    applied: &Value,
    options: &ApplyOptions,
    schema: &StructuralSchema,
) -> Result<Value, ApplyError> {
    if too_deep(applied) || live.is_some_and(too_deep) {
        return Err(ApplyError::BadRequest("the object nests too deeply".to_owned()));
    }
    update::apply(live, applied, options, schema)
}

/// Records in `after.metadata.managedFields` who owns what after a create (`before` is `None`), replace or
/// patch.
///
/// `managedFields` that the client sent are honoured as in Kubernetes: a single empty entry resets them, an
/// empty list or nonsense is as if they had not been sent. Ownership never makes a write fail.
pub(crate) fn track_update(
    before: Option<&Value>,
    after: &mut Value,
    options: &UpdateOptions,
    schema: &StructuralSchema,
) {
    if too_deep(after) || before.is_some_and(too_deep) {
        return;
    }
    update::track(before, after, options, schema);
}

/// The fields a value sets: its leaves, and the items and map keys that are members of something granular.
#[cfg(test)]
pub(crate) fn field_set(value: &Value, schema: &StructuralSchema) -> FieldSet {
    if too_deep(value) { FieldSet::default() } else { typed::field_set(value, typed::Ty::root(schema)) }
}

#[cfg(test)]
mod tests;
