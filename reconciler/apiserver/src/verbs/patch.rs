//! The patch types: JSON, merge, strategic merge (built-in kinds only) and server-side apply.

use serde_json::Value;

use super::update::Source;
use super::{Answer, ApiError, Call, Result, strategic};
use crate::fields::{self, ApplyError};
use crate::meta;
use crate::request::Sub;

/// Operations one JSON patch may have, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;

/// From the request's content type.
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

/// What custom resources take.
pub(crate) const CUSTOM_PATCHES: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

impl Call {
    pub(crate) async fn patch(&mut self, kind: PatchKind, patch: Value) -> Result<Answer> {
        if kind == PatchKind::Strategic && self.resource().is_custom() {
            return Err(ApiError::unsupported_media_type(CUSTOM_PATCHES));
        }
        if crate::schema::too_deep(&patch) {
            return Err(ApiError::bad_request("the patch is nested too deeply"));
        }
        if self.target.sub == Sub::Scale {
            return super::scale::patch(self, kind, patch).await;
        }
        if kind == PatchKind::Apply {
            return self.apply(patch).await;
        }
        if self.options.force {
            let why = "may not be specified for non-apply patch";
            return Err(self.options.refused(&[meta::forbidden("force", why)]));
        }
        let operations = operations(kind, &patch)?;
        self.change(Source::Update, move |call, live| {
            let mut object = live.clone();
            patch_value(kind, &mut object, &patch, &operations)?;
            call.accept(&mut object)?;
            Ok(object)
        })
        .await
    }

    async fn apply(&mut self, mut applied: Value) -> Result<Answer> {
        if self.options.field_manager.is_empty() {
            return Err(self
                .options
                .refused(&[meta::required("fieldManager", "is required for apply patch")]));
        }
        meta::well_formed(&applied).map_err(ApiError::bad_request)?;
        for member in ["apiVersion", "kind"] {
            if applied[member].as_str().is_none_or(str::is_empty) {
                return Err(ApiError::bad_request(format!("{member} must be set")));
            }
        }
        self.refuse_unknown(&applied)?;
        self.accept(&mut applied)?;
        self.name_applied(&mut applied)?;
        for _ in 0..super::ATTEMPTS {
            if self.core.store.get(&self.key()).is_none() {
                let created = self.create_applied(applied.clone()).await;
                match created {
                    // Somebody created it just now: apply to that.
                    Err(error) if error.reason == "AlreadyExists" => continue,
                    other => return other,
                }
            }
            let changed = self.change(Source::Apply, |call, live| call.merge(Some(live), &applied)).await;
            match changed {
                // Somebody deleted it just now: create it.
                Err(error) if error.reason == "NotFound" && self.target.sub == Sub::None => {}
                other => return other,
            }
        }
        Err(ApiError::modified(self.subject(&self.target.name)))
    }

    /// Nobody can own a field there is not. As in Kubernetes no `fieldValidation` changes that.
    fn refuse_unknown(&self, applied: &Value) -> Result<()> {
        let mut pruned = applied.clone();
        let unknown = self.version().schema.prune(&mut pruned);
        let Some(field) = unknown.first() else { return Ok(()) };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &applied["metadata"];
        let message = format!(
            "failed to create typed patch object ({}/{}; {}, Kind={}): .{field}: field not declared in schema",
            text(&metadata["namespace"]),
            text(&metadata["name"]),
            text(&applied["apiVersion"]),
            text(&applied["kind"]),
        );
        Err(self.invalid(applied, &[meta::field_error(crate::schema::ErrorKind::Invalid, "", message)]))
    }

    /// What is applied is named by the URL; it may repeat that.
    fn name_applied(&self, applied: &mut Value) -> Result<()> {
        let sent = |member: &str| applied["metadata"][member].as_str().unwrap_or_default().to_owned();
        let (name, namespace) = (sent("name"), sent("namespace"));
        if !name.is_empty() && name != self.target.name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                self.target.name
            )));
        }
        if !namespace.is_empty() && namespace != self.target.namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        let (name, namespace) = (self.target.name.clone(), self.target.namespace.clone());
        let metadata = meta::of(applied);
        metadata.insert("name".into(), name.into());
        if self.target.resource.namespaced {
            metadata.insert("namespace".into(), namespace.into());
        }
        Ok(())
    }

    async fn create_applied(&mut self, applied: Value) -> Result<Answer> {
        if self.target.sub != Sub::None {
            return Err(ApiError::not_found(self.subject(&self.target.name)));
        }
        let uid = applied["metadata"]["uid"].as_str().unwrap_or_default();
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiError::conflict(self.subject(&self.target.name), &why));
        }
        let merged = self.merge(None, &applied)?;
        let object = self.prepare_new(merged)?;
        self.finish_create(object).await
    }

    fn merge(&self, live: Option<&Value>, applied: &Value) -> Result<Value> {
        let options = fields::ApplyOptions {
            manager: self.options.field_manager.clone(),
            force: self.options.force,
            subresource: self.subresource().map(str::to_owned),
            api_version: self.resource().api_version(self.target.version),
            now: crate::clock::seconds(self.core.clock.now()),
            reset: self.reset(),
        };
        let merged = fields::apply(live, applied, &options, &self.version().schema);
        merged.map_err(|error| match error {
            ApplyError::Conflicts(_) => {
                let causes = error.causes().into_iter().map(|(reason, message, field)| {
                    serde_json::json!({"reason": reason, "message": message, "field": field})
                });
                ApiError::apply_conflict(error.to_string(), causes.collect())
            }
            ApplyError::BadRequest(message) => ApiError::bad_request(message),
            ApplyError::Unmergeable(message) => {
                let error = meta::field_error(crate::schema::ErrorKind::Invalid, "", message);
                self.invalid(applied, &[error])
            }
        })
    }
}

type Operations = Vec<json_patch::PatchOperation>;

fn operations(kind: PatchKind, patch: &Value) -> Result<Operations> {
    if kind != PatchKind::Json {
        return if patch.is_object() {
            Ok(Vec::new())
        } else {
            Err(ApiError::bad_request("the patch is not an object"))
        };
    }
    let operations: Operations = serde_json::from_value(patch.clone())
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(ApiError::too_large("the JSON patch, in operations", MAX_OPERATIONS));
    }
    Ok(operations)
}

fn patch_value(kind: PatchKind, object: &mut Value, patch: &Value, operations: &Operations) -> Result<()> {
    match kind {
        PatchKind::Json => patch_json(object, operations)?,
        PatchKind::Merge => json_patch::merge(object, patch),
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

fn patch_json(object: &mut Value, operations: &Operations) -> Result<()> {
    for operation in operations {
        // What is absent tests equal to null, as in the library kube-apiserver uses; clients rely on it.
        if let json_patch::PatchOperation::Test(test) = operation
            && test.value.is_null()
            && object.pointer(test.path.as_str()).is_none()
        {
            continue;
        }
        json_patch::patch(object, std::slice::from_ref(operation)).map_err(|error| {
            let message = format!("the server rejected our request due to an error in our request: {error}");
            ApiError::new(http::StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
        })?;
    }
    Ok(())
}

/// Applies a patch to a value that is not stored as such, a Scale.
pub(super) fn patch_plain(kind: PatchKind, object: &mut Value, patch: &Value) -> Result<()> {
    let operations = operations(kind, patch)?;
    patch_value(kind, object, patch, &operations)
}
