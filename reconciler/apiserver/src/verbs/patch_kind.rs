//! The patch types, and their application to a value.

use berth_apimachinery::patch::json::{self, PatchError};
use berth_apimachinery::patch::{merge, strategic};
use serde_json::Value;

use super::{ApiError, Result};

/// The type of a patch, from the request's content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    pub(crate) fn of(content_type: &str) -> Option<Self> {
        match content_type {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+json" => Some(Self::Apply),
            _ => None,
        }
    }
}

/// Parses the patch, for types that are parsed before they are applied.
pub(super) fn operations(kind: PatchKind, patch: &Value) -> Result<json::Patch> {
    if kind == PatchKind::Json {
        return json::Patch::parse(patch).map_err(|error| match error {
            PatchError::TooLong(_) => ApiError::new(
                http::StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                format!("Request entity too large: {error}"),
            ),
            _ => ApiError::bad_request(format!("error decoding patch: {error}")),
        });
    }
    if patch.is_object() {
        return match strategic::unknown_directive(patch) {
            Some(directive) if kind == PatchKind::Strategic => {
                Err(ApiError::bad_request(format!("unknown patch type: {directive}")))
            }
            _ => Ok(json::Patch::default()),
        };
    }
    Err(ApiError::bad_request("the patch must be an object"))
}

pub(super) fn patch_value(
    kind: PatchKind,
    object: &mut Value,
    patch: &Value,
    operations: &json::Patch,
) -> Result<()> {
    match kind {
        PatchKind::Json => operations.apply(object).map_err(|error| {
            tracing::debug!(%error, "a JSON patch cannot be applied");
            ApiError::unfit_patch()
        })?,
        PatchKind::Merge => merge::merge(object, patch),
        PatchKind::Strategic => strategic::merge(object, patch),
        PatchKind::Apply => return Err(ApiError::internal("an apply is not patched")),
    }
    // `copy` operations can double a document with each step.
    let size = serde_json::to_vec(object).map_or(0, |text| text.len());
    if size > 2 * crate::core::MAX_OBJECT {
        return Err(ApiError::too_large("the patched object", crate::core::MAX_OBJECT));
    }
    Ok(())
}
