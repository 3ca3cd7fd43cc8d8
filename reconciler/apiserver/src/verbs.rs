//! The verbs on resources: what a request does between being authorized and being answered.
//!
//! ```text
//! decode ─▶ prune, default ─▶ system metadata ─▶ validate ─▶ field ownership ─▶ admission ─▶ store
//! ```
//! Knows no HTTP: bodies come decoded, answers leave as objects with a status code.

mod admit;
mod create;
mod delete;
mod json_patch;
mod list;
mod patch;
mod scale;
mod strategic;
mod token;
mod update;
mod watch;

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

pub(crate) use delete::{FOREGROUND, ORPHAN};
pub(crate) use list::Page;
pub(crate) use patch::{CUSTOM_PATCHES, PatchKind};
pub(crate) use watch::{WatchFormat, WatchStream};

use crate::builtin::decode::{self, Reader, well_typed};
use crate::core::Core;
use crate::error::{ApiError, Result, Subject};
use crate::identity::Identity;
use crate::request::{Options, Sub, Target};
use crate::resource::{Resource, Version};
use crate::schema::{ErrorKind, FieldError};
use crate::store::{Action, Entry, Expect, Key, Origin, Write, WriteError};

/// How often a patch or a deletion starts over when somebody else wrote in between.
const ATTEMPTS: usize = 8;

/// One authorized request.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) core: Arc<Core>,
    pub(crate) who: Identity,
    pub(crate) target: Target,
    pub(crate) options: Options,
    /// Field manager if the request names none: the user agent's first word.
    pub(crate) default_manager: String,
    /// Sent as `Warning` headers.
    pub(crate) warnings: Vec<String>,
    /// What the body says twice, each as an error would tell it.
    pub(crate) twice: Vec<String>,
    /// As access rules name it, and `apply`: for the history.
    pub(crate) verb: &'static str,
    /// The revision of the last write this made.
    pub(crate) written: Option<u64>,
}

/// Why a body is no object of the target.
#[derive(Debug)]
enum Refused {
    /// It is another object than the request is about.
    Request(String),
    /// It says that it is of another kind, or of another version.
    Kind(String),
    Version(String),
    /// Its members have wrong types.
    Decoding(String),
}

/// A single object, or a `Status`.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: StatusCode,
    pub(crate) body: Bytes,
    /// Whether it is an object of the target's resource, which may be asked for as a Table.
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

    /// For errors that name the resource.
    fn subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject { group: &self.target.resource.group, kind: &self.target.resource.plural, name }
    }

    fn manager(&self) -> String {
        let given = &self.options.field_manager;
        if given.is_empty() { self.default_manager.clone() } else { given.clone() }
    }

    /// Writes the target, and keeps with it who did.
    async fn commit(
        &mut self,
        expect: Expect,
        action: Action,
        guards: Vec<(Key, u64)>,
    ) -> Result<Arc<Entry>, WriteError> {
        let by = Origin { user: self.who.user.clone(), manager: self.manager(), verb: self.verb };
        let write = Write { key: self.key(), expect, action, guards, at_ms: self.core.now_ms(), by };
        let entry = self.core.commit(write).await?;
        self.written = Some(entry.revision);
        Ok(entry)
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
        // A revision asked for must have happened; the newest state satisfies every one that has.
        list::check_not_future(&self.core.store, &self.options.resource_version)?;
        let entry = self.existing()?;
        if self.target.sub == Sub::Scale {
            return scale::read(self, &self.view(&entry))
                .map(|scale| Answer::of_value(StatusCode::OK, &scale));
        }
        Ok(self.answer(StatusCode::OK, &entry))
    }

    /// Reads a body as an object of the target: checks kind and version, removes what the schema does not know and tells of that
    /// as the request wants it told.
    fn accept(&mut self, object: &mut Value) -> Result<()> {
        let strict = match self.decode(object, Reader::Json) {
            Ok(strict) => strict,
            // What says that it is another custom resource is looked at as what it should be.
            Err(Refused::Kind(sent)) if self.resource().is_custom() => {
                return Err(self.other_kind(&sent, object));
            }
            Err(refused) => return Err(self.refused(refused)),
        };
        match strict {
            Some(strict) => Err(self.unreadable(&strict)),
            None => Ok(()),
        }
    }

    fn refused(&self, refused: Refused) -> ApiError {
        let resource = self.resource();
        let mismatch = |what: &str, sent: &str, expected: &str| {
            ApiError::bad_request(format!(
                "the {what} in the data ({sent}) does not match the expected {what} ({expected})"
            ))
        };
        match refused {
            Refused::Request(why) => ApiError::bad_request(why),
            Refused::Kind(sent) => mismatch("kind", &sent, &resource.kind),
            Refused::Version(sent) => {
                mismatch("API version", &sent, &resource.api_version(self.target.version))
            }
            Refused::Decoding(why) => self.unreadable(&why),
        }
    }

    fn unreadable(&self, why: &str) -> ApiError {
        let (kind, version) = (&self.resource().kind, &self.version().name);
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    }

    fn other_kind(&self, sent: &str, object: &Value) -> ApiError {
        let resource = self.resource();
        let why = format!("must be {}", resource.kind);
        let mut errors = vec![crate::meta::invalid("kind", &sent.into(), &why)];
        errors.extend(self.problems(object, None));
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        ApiError::invalid(Subject { group: &resource.group, kind: sent, name }, &errors)
    }

    /// What [`Self::accept`] does; what a strict reader objects to is returned.
    fn decode(&mut self, object: &mut Value, reader: Reader) -> Result<Option<String>, Refused> {
        let whole = (!self.resource().is_custom()).then_some(self.resource().kind.as_str());
        // What is applied need not be a whole object: what is wrong in it is told by field.
        let typed = |object: &Value| match whole.filter(|_| self.verb != "apply") {
            Some(kind) => well_typed(kind, &self.version().schema.root, object, reader),
            None => Ok(()),
        };
        if reader == Reader::Converter {
            typed(object).map_err(Refused::Decoding)?;
        }
        crate::meta::well_formed(object, whole).map_err(Refused::Decoding)?;
        if crate::schema::too_deep(object) {
            return Err(Refused::Request("the object is nested too deeply".into()));
        }
        let (expected, kind) =
            (self.resource().api_version(self.target.version), self.resource().kind.clone());
        let given = |member: &str| object[member].as_str().unwrap_or_default().to_owned();
        let (sent_version, sent_kind) = (given("apiVersion"), given("kind"));
        if sent_version != expected && (!sent_version.is_empty() || self.resource().is_custom()) {
            return Err(Refused::Version(sent_version));
        }
        if !sent_kind.is_empty() && sent_kind != kind {
            return Err(Refused::Kind(sent_kind));
        }
        typed(object).map_err(Refused::Decoding)?;
        object["apiVersion"] = expected.into();
        object["kind"] = kind.into();
        crate::meta::of(object);
        let unknown = self.version().schema.prune(object);
        if self.verb != "apply" {
            crate::builtin::default(self.resource(), object);
        }
        Ok(self.options.field_validation.tell(&self.twice, &unknown, &mut self.warnings))
    }

    /// Like [`Self::accept`] for what is sent to a side and is no object of the resource; why it cannot be.
    fn accept_side(&mut self, group: &str, kind: &str, sent: &mut Value) -> Result<(), String> {
        let unknown = decode::accept(group, kind, sent)?;
        self.options.field_validation.tell(&self.twice, &unknown, &mut self.warnings).map_or(Ok(()), Err)
    }

    /// Everything that can be wrong with an object that is otherwise ready to be stored.
    fn validate(&self, object: &Value, old: Option<&Value>) -> Result<()> {
        let errors = self.problems(object, old);
        if errors.is_empty() { Ok(()) } else { Err(self.invalid(object, &errors)) }
    }

    fn problems(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let resource = self.resource();
        let mut errors =
            crate::meta::validate(&object["metadata"], resource.name_rule, old.map(|old| &old["metadata"]));
        if resource.is_custom() {
            // Kubernetes finds a finalizer that comes too late in a custom resource and in an object.
            let late = errors.iter().filter(|error| error.kind == ErrorKind::Forbidden).cloned();
            errors.extend(late.collect::<Vec<_>>());
            let version = self.version();
            errors.extend(match self.target.sub {
                Sub::Status => version.schema.validate_status(object, old),
                _ => version.schema.validate(object, old),
            });
            if let Some(scale) = &version.scale {
                errors.extend(crate::replicas::validate(scale, object, self.target.sub != Sub::Status));
            }
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
        // Events of either group are judged as those of the core group.
        let group = if resource.group == crate::builtin::EVENTS { "" } else { &resource.group };
        ApiError::invalid(Subject { group, kind: &resource.kind, name }, errors)
    }
}
