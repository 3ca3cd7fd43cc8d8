//! The patch types: JSON, merge, strategic merge (built-in kinds only) and server-side apply.

use berth_apimachinery::fields::{self, ApplyError};
use berth_apimachinery::meta;
use berth_apimachinery::schema::ErrorKind;
use serde_json::{Map, Value};

use super::patch_kind::{PatchKind, operations, patch_value};
use super::source::Source;
use super::{Answer, ApiError, BodyError, Call, Result, Subject};
use crate::request::Sub;

/// The patch types of custom resources.
pub(crate) const CUSTOM_PATCHES: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

impl Call {
    pub(crate) async fn patch(&mut self, kind: PatchKind, patch: Value) -> Result<Answer> {
        if kind == PatchKind::Strategic && self.resource().is_custom() {
            return Err(ApiError::unsupported_media_type(CUSTOM_PATCHES));
        }
        if berth_apimachinery::schema::too_deep(&patch) {
            return Err(ApiError::bad_request("the patch is nested too deeply"));
        }
        if kind == PatchKind::Apply {
            return self.apply(patch).await;
        }
        if self.options.force {
            let why = "may not be specified for non-apply patch";
            return Err(self.options.refused(&[meta::forbidden("force", why)]));
        }
        let operations = operations(kind, &patch)?;
        self.change(Source::Patch, move |call, live| {
            let mut object = live.clone();
            patch_value(kind, &mut object, &patch, &operations)?;
            call.accept_patched(&mut object)?;
            Ok(object)
        })
        .await
    }

    /// The error of a patch whose result cannot be read.
    pub(super) fn unfit_result(&self, why: &str) -> ApiError {
        let resource = self.resource();
        let subject = Subject { group: &resource.group, kind: &resource.kind, name: &self.target.name };
        let message = format!("Invalid value: {why}");
        ApiError::invalid(subject, &[meta::field_error(ErrorKind::Invalid, "patch", message)])
    }

    /// Like [`Self::accept`] for a patched object.
    fn accept_patched(&mut self, object: &mut Value) -> Result<()> {
        match self.decode(object) {
            Ok(None) => Ok(()),
            Ok(Some(strict)) => Err(self.unfit_result(&strict)),
            Err(BodyError::Decoding(why)) => Err(self.unfit_result(&why)),
            // If the patch changed its kind or version, a custom resource is validated as the kind it
            // declares.
            Err(BodyError::Kind(sent)) if self.resource().is_custom() => {
                Err(self.other_type("kind", &sent, object))
            }
            Err(BodyError::Version(sent)) if self.resource().is_custom() => {
                Err(self.other_type("apiVersion", &sent, object))
            }
            Err(refused) => Err(self.refused(refused)),
        }
    }

    async fn apply(&mut self, mut applied: Value) -> Result<Answer> {
        if self.options.field_manager.is_empty() {
            return Err(self
                .options
                .refused(&[meta::required("fieldManager", "is required for apply patch")]));
        }
        if applied.is_null() {
            applied = Value::Object(Map::new());
        }
        meta::well_formed(&mut applied).map_err(ApiError::bad_request)?;
        self.applies_to(&applied)?;
        self.refuse_unknown(&applied)?;
        self.accept(&mut applied)?;
        self.name_applied(&applied)?;
        for _ in 0..super::ATTEMPTS {
            if self.core.store.get(&self.key()).is_none() {
                let created = self.create_applied(applied.clone()).await;
                match created {
                    // Another client created it in the meantime: apply to that object.
                    Err(error) if error.reason == "AlreadyExists" => continue,
                    other => return other,
                }
            }
            let changed = self.change(Source::Apply, |call, live| call.merge(Some(live), &applied)).await;
            match changed {
                // Another client deleted it in the meantime: create it.
                Err(error) if error.reason == "NotFound" && self.target.sub == Sub::None => {}
                other => return other,
            }
        }
        Err(ApiError::modified(self.subject(&self.target.name)))
    }

    /// Checks that the applied configuration declares this kind.
    fn applies_to(&self, applied: &Value) -> Result<()> {
        let text = |member: &str| applied[member].as_str().unwrap_or_default();
        let (sent, kind) = (text("apiVersion"), text("kind"));
        let (group, version) = sent.split_once('/').unwrap_or(("", sent));
        let resource = self.resource();
        if version.is_empty() || group != resource.group || kind != resource.kind {
            return Err(ApiError::bad_request(format!(
                "invalid object type: {group}/{version}, Kind={kind}"
            )));
        }
        Ok(())
    }

    /// Refuses unknown fields, which cannot be owned. As in Kubernetes, `fieldValidation` does not change
    /// that.
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
        Err(self.invalid(applied, &[meta::field_error(ErrorKind::Invalid, "", message)]))
    }

    /// Checks the name of the applied configuration, which is optional and must match the URL.
    fn name_applied(&self, applied: &Value) -> Result<()> {
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
        if applied["metadata"]["name"].as_str().is_none_or(str::is_empty) {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                self.target.name
            )));
        }
        let merged = self.merge(None, &applied)?;
        let object = self.prepare_new(merged, Source::Apply)?;
        self.finish_create(object).await
    }

    fn merge(&self, live: Option<&Value>, applied: &Value) -> Result<Value> {
        let merged = fields::apply(live, applied, &self.write_options(), &self.version().schema);
        merged.map_err(|error| match error {
            ApplyError::Conflicts(_) => {
                let causes = error.causes().into_iter().map(|(reason, message, field)| {
                    serde_json::json!({"reason": reason, "message": message, "field": field})
                });
                ApiError::apply_conflict(error.to_string(), causes.collect())
            }
            ApplyError::BadRequest(message) => ApiError::bad_request(message),
            ApplyError::Unmergeable(message) => {
                let error = meta::field_error(ErrorKind::Invalid, "", message);
                self.invalid(applied, &[error])
            }
        })
    }
}
