//! The verbs on resources: the steps of a request between authorization and response.
//!
//! ```text
//! decode ─▶ prune, default ─▶ system metadata ─▶ validate ─▶ field ownership ─▶ admission ─▶ store
//! ```
//! Knows no HTTP: bodies arrive decoded, and results leave as objects with a status code.

mod admit;
mod create;
mod delete;
mod list;
mod patch;
mod patch_kind;
mod source;
mod token;
mod update;
mod watch;

use std::sync::Arc;

use berth_apimachinery::error::{ApiError, Result, Subject};
use berth_apimachinery::schema::FieldError;
use berth_store::{Action, Entry, Expect, Key, Origin, Write, WriteError};
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

pub(crate) use delete::{FOREGROUND, ORPHAN};
pub(crate) use list::Page;
pub(crate) use patch::CUSTOM_PATCHES;
pub(crate) use patch_kind::PatchKind;
pub(crate) use watch::{WatchFormat, WatchStream};

use crate::builtin::decode;
use crate::catalog::definition;
use crate::core::Core;
use crate::identity::Identity;
use crate::request::{Options, Sub, Target};
use crate::resource::{Resource, Version};

/// How many times a patch or a deletion is attempted when another client writes in between.
const ATTEMPTS: usize = 8;

/// One authorized request.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) core: Arc<Core>,
    pub(crate) who: Identity,
    pub(crate) target: Target,
    pub(crate) options: Options,
    /// The field manager if the request names none: the first word of the user agent.
    pub(crate) default_manager: String,
    /// Sent as `Warning` headers.
    pub(crate) warnings: Vec<String>,
    /// The duplicate fields of the body, each worded as in an error.
    pub(crate) twice: Vec<String>,
    /// The verb as access rules name it, or `apply`; recorded in the history.
    pub(crate) verb: &'static str,
    /// The revision of the last write of this request.
    pub(crate) written: Option<u64>,
}

/// Why a body is not an object of the target.
#[derive(Debug)]
enum BodyError {
    /// The body is a different object than the request names.
    Request(String),
    /// The body declares another kind, or another version.
    Kind(String),
    Version(String),
    /// The fields of the body have wrong types.
    Decoding(String),
}

/// A single object, or a `Status`.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: StatusCode,
    pub(crate) body: Bytes,
    /// Whether the body is an object of the target's resource, which can be requested as a Table.
    pub(crate) is_object: bool,
}

impl Answer {
    fn of_value(code: StatusCode, value: &Value) -> Self {
        let body = serde_json::to_vec(value).expect("a JSON value always serializes into memory").into();
        Self { code, body, is_object: true }
    }
}

impl Call {
    fn resource(&self) -> &Resource {
        &self.target.resource
    }

    fn version(&self) -> &Version {
        &self.target.resource.versions[self.target.version]
    }

    fn key(&self) -> Key {
        self.target.resource.key(&self.target.namespace, &self.target.name)
    }

    /// The subject of errors that name the resource.
    fn subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject { group: &self.target.resource.group, kind: &self.target.resource.plural, name }
    }

    fn manager(&self) -> String {
        let given = &self.options.field_manager;
        if given.is_empty() { self.default_manager.clone() } else { given.clone() }
    }

    /// Writes the target and records the user with the write.
    async fn commit(
        &mut self,
        expect: Expect,
        action: Action,
        guards: Vec<(Key, u64)>,
    ) -> Result<Arc<Entry>, WriteError> {
        self.commit_write(self.write_of(expect, action, guards)).await
    }

    fn write_of(&self, expect: Expect, action: Action, guards: Vec<(Key, u64)>) -> Write {
        let by = Origin { user: self.who.user.clone(), manager: self.manager(), verb: self.verb };
        Write { key: self.key(), expect, action, guards, at_ms: self.core.now_ms(), by, deferrable: false }
    }

    async fn commit_write(&mut self, write: Write) -> Result<Arc<Entry>, WriteError> {
        let entry = self.core.commit(write).await?;
        self.written = Some(entry.revision);
        Ok(entry)
    }

    /// Returns the target's definition and its revision, which a write of the target guards: it has the form of the definition that was
    /// in force when the request began.
    fn definition(&self) -> Vec<(Key, u64)> {
        definition(self.resource()).map(|(crd, revision, _)| (crd.clone(), revision)).into_iter().collect()
    }

    /// Checks, after a conflict, that the target's definition, which its writes guard, still defines the same: the request was read in
    /// the form that was in force when it began, and another attempt would end in the same conflict.
    fn check_definition(&self) -> Result<()> {
        let Some((crd, revision, _)) = definition(self.resource()) else { return Ok(()) };
        if self.core.store.get(crd).is_some_and(|entry| entry.revision != revision) {
            // A write of a definition is stored before the catalog follows it.
            self.core.catalog.refresh();
        }
        if self.resource().is_retired() {
            return Err(ApiError::too_many_requests("the definition of the resource has changed"));
        }
        Ok(())
    }

    fn existing(&self) -> Result<Arc<Entry>> {
        self.core.store.get(&self.key()).ok_or_else(|| ApiError::not_found(self.subject(&self.target.name)))
    }

    fn view(&self, entry: &Entry) -> Value {
        Core::view(entry, self.resource(), self.target.version)
    }

    fn answer(&self, code: StatusCode, entry: &Entry) -> Answer {
        Answer { code, body: Core::text(entry, self.resource(), self.target.version), is_object: true }
    }

    pub(crate) fn get(&mut self) -> Result<Answer> {
        // A requested revision must exist already; the newest state satisfies every revision that does.
        list::check_not_future(&self.core.store, &self.options.resource_version)?;
        let entry = self.existing()?;
        Ok(self.answer(StatusCode::OK, &entry))
    }

    /// Reads a body as an object of the target: checks kind and version, removes fields unknown to the schema
    /// and reports them according to the request's `fieldValidation`.
    fn accept(&mut self, object: &mut Value) -> Result<()> {
        if self.resource().is_custom() && object["kind"].is_null() {
            return Err(self.unreadable("kind is missing"));
        }
        let strict = match self.decode(object) {
            Ok(strict) => strict,
            Err(BodyError::Kind(sent)) if self.resource().is_custom() => {
                return Err(self.other_type("kind", &sent, object));
            }
            Err(refused) => return Err(self.refused(refused)),
        };
        match strict {
            Some(strict) => Err(self.unreadable(&strict)),
            None => Ok(()),
        }
    }

    fn refused(&self, refused: BodyError) -> ApiError {
        let resource = self.resource();
        let mismatch = |what: &str, sent: &str, expected: &str| {
            ApiError::bad_request(format!(
                "the {what} in the data ({sent}) does not match the expected {what} ({expected})"
            ))
        };
        match refused {
            BodyError::Request(why) => ApiError::bad_request(why),
            BodyError::Kind(sent) => mismatch("kind", &sent, &resource.kind),
            BodyError::Version(sent) => {
                mismatch("API version", &sent, &resource.api_version(self.target.version))
            }
            BodyError::Decoding(why) => self.unreadable(&why),
        }
    }

    fn unreadable(&self, why: &str) -> ApiError {
        decode::unreadable(&self.resource().kind, &self.version().name, why)
    }

    /// The error of a custom resource that declares another kind or version.
    fn other_type(&self, member: &str, sent: &str, object: &Value) -> ApiError {
        let resource = self.resource();
        let expected = match member {
            "kind" => resource.kind.clone(),
            _ => resource.api_version(self.target.version),
        };
        let error = berth_apimachinery::meta::invalid(member, &sent.into(), &format!("must be {expected}"));
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        ApiError::invalid(Subject { group: &resource.group, kind, name }, &[error])
    }

    /// Decodes the body for [`Self::accept`]; returns the objections of a strict reader.
    fn decode(&mut self, object: &mut Value) -> Result<Option<String>, BodyError> {
        berth_apimachinery::meta::well_formed(object).map_err(BodyError::Decoding)?;
        if berth_apimachinery::schema::too_deep(object) {
            return Err(BodyError::Request("the object is nested too deeply".into()));
        }
        let (expected, kind) =
            (self.resource().api_version(self.target.version), self.resource().kind.clone());
        let given = |member: &str| object[member].as_str().unwrap_or_default().to_owned();
        let (sent_version, sent_kind) = (given("apiVersion"), given("kind"));
        if sent_version != expected && (!sent_version.is_empty() || self.resource().is_custom()) {
            return Err(BodyError::Version(sent_version));
        }
        if !sent_kind.is_empty() && sent_kind != kind {
            return Err(BodyError::Kind(sent_kind));
        }
        // An applied configuration need not be a whole object: errors in it are reported by field.
        if !self.resource().is_custom() && self.verb != "apply" {
            self.version().schema.check_types("", object).map_err(BodyError::Decoding)?;
        }
        object["apiVersion"] = expected.into();
        object["kind"] = kind.into();
        berth_apimachinery::meta::of(object);
        let unknown = self.version().schema.prune(object);
        if self.verb != "apply" {
            crate::builtin::default(self.resource(), object);
        }
        Ok(self.options.field_validation.tell(&self.twice, &unknown, &mut self.warnings))
    }

    /// Like [`Self::accept`] for a body that is sent to a subresource and is not an object of the resource;
    /// returns why it is refused.
    fn accept_side(&mut self, group: &str, kind: &str, sent: &mut Value) -> Result<(), String> {
        let unknown = decode::accept(group, kind, sent)?;
        self.options.field_validation.tell(&self.twice, &unknown, &mut self.warnings).map_or(Ok(()), Err)
    }

    /// Validates an object that is otherwise ready to be stored.
    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<()> {
        let errors = self.problems(object, old);
        if errors.is_empty() { Ok(()) } else { Err(self.invalid(object, &errors)) }
    }

    fn problems(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let resource = self.resource();
        let mut errors = berth_apimachinery::meta::validate(
            &object["metadata"],
            resource.name_rule,
            old.map(|old| &old["metadata"]),
        );
        if resource.is_custom() {
            let version = self.version();
            errors.extend(match self.target.sub {
                Sub::Status => version.schema.validate_status(object, old),
                _ => version.schema.validate(object, old),
            });
            let of_rules = version.schema.check_rules(&errors, object, old);
            errors.extend(of_rules);
        } else {
            errors.extend(self.version().schema.validate(object, old));
            errors.extend(crate::builtin::validate(resource, object, old));
        }
        errors
    }

    fn invalid(&self, object: &Value, errors: &[FieldError]) -> ApiError {
        let resource = self.resource();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        // Events of either group are validated as those of the core group.
        let group = if resource.group == crate::builtin::EVENTS { "" } else { &resource.group };
        ApiError::invalid(Subject { group, kind: &resource.kind, name }, errors)
    }
}
