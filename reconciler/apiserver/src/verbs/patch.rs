//! The patch types: JSON, merge, strategic merge (built-in kinds only) and server-side apply.

use serde_json::{Map, Value};

use super::json_patch::{self, Malformed};
use super::update::Source;
use super::{Answer, ApiError, Call, Reader, Refused, Result, Subject, strategic};
use crate::fields::{self, ApplyError};
use crate::meta;
use crate::request::Sub;
use crate::schema::message::{go_json, go_json_patched, go_value};

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
        if kind == PatchKind::Json {
            let unknown = operations.unknown().into_iter().map(|path| format!("unknown field \"{path}\""));
            let told = std::mem::take(&mut self.twice).into_iter().chain(unknown);
            self.twice = told.map(|told| format!("json patch {told}")).collect();
        }
        self.change(Source::Patch, move |call, live| {
            let mut object = live.clone();
            patch_value(kind, &mut object, &patch, &operations)?;
            let is_custom = call.resource().is_custom();
            // What the patch made is told, for strategic patches the patch. It is made anew: what is refused is half read.
            let shown = || {
                let mut made = live.clone();
                patch_value(kind, &mut made, &patch, &operations)?;
                Ok(match kind {
                    PatchKind::Strategic => go_value(&patch),
                    _ if is_custom => go_json(&made),
                    _ => go_json_patched(&made, touches_metadata(kind, &patch)),
                })
            };
            let reader = if kind == PatchKind::Strategic { Reader::Converter } else { Reader::Json };
            call.accept_patched(&mut object, shown, reader)?;
            Ok(object)
        })
        .await
    }

    /// Like [`Self::accept`] for what a patch made, told by `shown`.
    fn accept_patched(
        &mut self,
        object: &mut Value,
        shown: impl Fn() -> Result<String>,
        reader: Reader,
    ) -> Result<()> {
        let invalid = |why: &str| match shown() {
            Ok(shown) => {
                let error = meta::invalid("patch", &shown.into(), why);
                ApiError::invalid(Subject { group: "", kind: "", name: "" }, &[error])
            }
            Err(error) => error,
        };
        match self.decode(object, reader) {
            Ok(None) => Ok(()),
            Ok(Some(strict)) => Err(invalid(&strict)),
            Err(Refused::Decoding(why)) => Err(invalid(&why)),
            // What custom resources have become is looked at as what it says it is.
            Err(Refused::Kind(sent)) if self.resource().is_custom() => {
                Err(self.no_longer("kind", &sent, object))
            }
            Err(Refused::Version(sent)) if self.resource().is_custom() => {
                Err(self.no_longer("apiVersion", &sent, object))
            }
            Err(refused) => Err(self.refused(refused)),
        }
    }

    fn no_longer(&self, member: &str, sent: &str, object: &Value) -> ApiError {
        let resource = self.resource();
        let expected = match member {
            "kind" => resource.kind.clone(),
            _ => resource.api_version(self.target.version),
        };
        let error = meta::invalid(member, &sent.into(), &format!("must be {expected}"));
        let kind = object["kind"].as_str().unwrap_or_default();
        ApiError::invalid(Subject { group: &resource.group, kind, name: &self.target.name }, &[error])
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
        meta::well_formed(&mut applied, None).map_err(ApiError::bad_request)?;
        self.applies_to(&applied)?;
        self.refuse_unknown(&applied)?;
        self.accept(&mut applied)?;
        self.name_applied(&applied)?;
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

    /// What is applied says what it is, and is of this kind.
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

fn touches_metadata(kind: PatchKind, patch: &Value) -> bool {
    let operations = patch.as_array().into_iter().flatten();
    match kind {
        PatchKind::Json => operations
            .flat_map(|operation| [&operation["path"], &operation["from"]])
            .any(|path| path.as_str().is_some_and(|path| path.starts_with("/metadata"))),
        _ => patch.get("metadata").is_some(),
    }
}

fn operations(kind: PatchKind, patch: &Value) -> Result<json_patch::Patch> {
    if kind == PatchKind::Json {
        return json_patch::Patch::parse(patch).map_err(|malformed| match malformed {
            Malformed::Decoding(why) => ApiError::bad_request(format!("error decoding patch: {why}")),
            Malformed::TooMany(why) => ApiError::new(
                http::StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                format!("Request entity too large: {why}"),
            ),
        });
    }
    if patch.is_object() {
        return match strategic::unknown_directive(patch) {
            Some(directive) if kind == PatchKind::Strategic => {
                Err(ApiError::bad_request(format!("unknown patch type: {}", go_value(directive))))
            }
            _ => Ok(json_patch::Patch::default()),
        };
    }
    let before = if kind == PatchKind::Merge { "error decoding patch: " } else { "" };
    let found = crate::schema::message::json_type(patch);
    let why =
        format!("{before}json: cannot unmarshal {found} into Go value of type map[string]interface {{}}");
    Err(ApiError::bad_request(why))
}

fn patch_value(
    kind: PatchKind,
    object: &mut Value,
    patch: &Value,
    operations: &json_patch::Patch,
) -> Result<()> {
    match kind {
        PatchKind::Json => operations.apply(object).map_err(|why| {
            tracing::debug!(why, "a JSON patch cannot be applied");
            ApiError::unfit_patch()
        })?,
        PatchKind::Merge => merge(object, patch),
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

/// RFC 7386. Assumptions: neither nests too deeply.
fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(members) = object.as_object_mut() else { return };
    remove(members, patch, Value::is_null);
    for (name, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
        merge(members.entry(name).or_insert(Value::Null), value);
    }
}

/// Removes the members that a patch wants gone: all at once, since those behind one that is taken out move up.
pub(super) fn remove(
    members: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    gone: impl Fn(&Value) -> bool,
) {
    if patch.values().any(&gone) {
        members.retain(|name, _| !patch.get(name).is_some_and(&gone));
    }
}

/// Applies a patch to a value that is not stored as such, a Scale; the text is how it is shown should it be wrong.
pub(super) fn patch_plain(kind: PatchKind, object: &mut Value, patch: &Value) -> Result<String> {
    let operations = operations(kind, patch)?;
    patch_value(kind, object, patch, &operations)?;
    Ok(go_json_patched(object, touches_metadata(kind, patch)))
}
