//! The parts of a request: path, query, patch type. No I/O.

mod path;
mod query;

use berth_apimachinery::builtin::builtin_schema;
use berth_apimachinery::error::{ApiError, Result, Subject};
use berth_apimachinery::meta::{field_error, invalid};
use berth_apimachinery::schema::{ErrorKind, FieldError, quote};
use http::Method;
use serde_json::Value;

pub(crate) use path::{ResourcePath, Sub, Target};
pub(crate) use query::Query;

use query::{flag, number};

/// The maximum length of a field manager's name in bytes.
const MAX_MANAGER: usize = 128;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

impl FieldValidation {
    /// Reports the fields that a lenient decoder ignores, duplicate and unknown ones: as warnings, or, for a
    /// strict request, as the text of the error.
    pub(crate) fn tell(
        self,
        twice: &[String],
        unknown: &[String],
        warnings: &mut Vec<String>,
    ) -> Option<String> {
        let unknown = unknown.iter().map(|path| format!("unknown field \"{path}\""));
        let reported: Vec<String> = twice.iter().cloned().chain(unknown).collect();
        match self {
            _ if reported.is_empty() => None,
            Self::Ignore => None,
            Self::Warn => {
                warnings.extend(reported);
                None
            }
            Self::Strict => Some(format!("strict decoding error: {}", reported.join(", "))),
        }
    }
}

/// The query of a request, and for deletions the `DeleteOptions` in the body.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// The name of the options in Kubernetes: `ListOptions` and so on.
    kind: &'static str,
    pub(crate) label_selector: String,
    pub(crate) field_selector: String,
    pub(crate) limit: usize,
    pub(crate) continue_token: String,
    pub(crate) resource_version: String,
    pub(crate) resource_version_match: String,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) dry_run: bool,
    pub(crate) field_manager: String,
    pub(crate) field_validation: FieldValidation,
    pub(crate) force: bool,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) precondition_uid: Option<String>,
    pub(crate) precondition_revision: Option<String>,
    /// `includeObject` of a Table.
    pub(crate) include_object: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Options {
    pub(crate) fn parse(method: &Method, query: &Query) -> Result<Self> {
        let mut options = Self { kind: options_of(method), ..Self::default() };
        for (name, value) in query.firsts() {
            options.set(name, value)?;
        }
        Ok(options)
    }

    /// Returns the refusal of a request with invalid options.
    pub(crate) fn refused(&self, errors: &[FieldError]) -> ApiError {
        ApiError::invalid(Subject { group: "meta.k8s.io", kind: self.kind, name: "" }, errors)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let text = || value.to_owned();
        match name {
            "labelSelector" => self.label_selector = text(),
            "fieldSelector" => self.field_selector = text(),
            // A negative limit counts as none.
            "limit" => self.limit = usize::try_from(number(value)?).unwrap_or_default(),
            "continue" => self.continue_token = text(),
            "resourceVersion" => self.resource_version = text(),
            "resourceVersionMatch" => self.resource_version_match = text(),
            "watch" => self.watch = flag(value),
            "allowWatchBookmarks" => self.bookmarks = flag(value),
            "sendInitialEvents" => self.send_initial_events = Some(flag(value)),
            "timeoutSeconds" => self.timeout_seconds = u64::try_from(number(value)?).ok(),
            "dryRun" => self.set_dry_run(value)?,
            "fieldManager" => self.field_manager = manager(value).map_err(|error| self.refused(&[error]))?,
            "fieldValidation" => {
                self.field_validation = validation(value).map_err(|error| self.refused(&[error]))?;
            }
            "force" => self.force = flag(value),
            "propagationPolicy" => self.set_propagation(value)?,
            "orphanDependents" if flag(value) => self.propagation = Some(Propagation::Orphan),
            // Deletion here has no grace period; a value that is not a number is refused nevertheless.
            "gracePeriodSeconds" if self.kind == "DeleteOptions" => _ = number(value)?,
            "includeObject" => self.include_object = text(),
            // Unknown parameters are ignored, as in kube-apiserver.
            _ => {}
        }
        Ok(())
    }

    /// Whether the query of a list requests a watch instead.
    pub(crate) fn is_watch(query: &Query) -> bool {
        query.first("watch").is_some_and(flag)
    }

    fn set_dry_run(&mut self, value: &str) -> Result<()> {
        match value {
            // It takes back no other value.
            "" => Ok(()),
            "All" => {
                self.dry_run = true;
                Ok(())
            }
            other => {
                let value = format!("[{}]", quote(other));
                Err(self.refused(&[unsupported("dryRun", &value, "\"All\"")]))
            }
        }
    }

    fn set_propagation(&mut self, value: &str) -> Result<()> {
        let policy = propagation(value).map_err(|error| self.refused(&[error]))?;
        self.propagation = Some(policy);
        Ok(())
    }

    /// Applies the `DeleteOptions` of a body.
    pub(crate) fn take_delete_options(&mut self, body: &Value) -> Result<()> {
        let kind = body["kind"].as_str().unwrap_or_default();
        if !kind.is_empty() && kind != "DeleteOptions" {
            return Err(ApiError::bad_request(format!(
                "the body of a deletion must be DeleteOptions, not {kind}"
            )));
        }
        // A field of another type would be left out, and the object deleted without the condition or as more than a trial.
        if let Some(schema) = builtin_schema("", "DeleteOptions") {
            let unfit = |why: String| {
                ApiError::bad_request(format!("the body of a deletion is no DeleteOptions: {}", why.trim()))
            };
            schema.check_types("", body).map_err(unfit)?;
        }
        if let Some(policy) = body["propagationPolicy"].as_str() {
            if body["orphanDependents"].is_boolean() {
                let why = "orphanDependents and deletionPropagation cannot be both set";
                return Err(self.refused(&[invalid("propagationPolicy", &policy.into(), why)]));
            }
            self.set_propagation(policy)?;
        } else if body["orphanDependents"] == true {
            self.propagation = Some(Propagation::Orphan);
        }
        for value in body["dryRun"].as_array().into_iter().flatten() {
            self.set_dry_run(value.as_str().unwrap_or_default())?;
        }
        let precondition = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        self.precondition_uid = precondition("uid");
        self.precondition_revision = precondition("resourceVersion");
        Ok(())
    }
}

fn options_of(method: &Method) -> &'static str {
    match *method {
        Method::POST => "CreateOptions",
        Method::PUT => "UpdateOptions",
        Method::PATCH => "PatchOptions",
        Method::DELETE => "DeleteOptions",
        _ => "ListOptions",
    }
}

fn unsupported(field: &str, value: &str, supported: &str) -> FieldError {
    let message = format!("Unsupported value: {value}: supported values: {supported}");
    field_error(ErrorKind::NotSupported, field, message)
}

/// The refusal of a `resourceVersionMatch` of a list or watch.
pub(crate) fn unsupported_match(value: &str, supported: &str) -> FieldError {
    unsupported("resourceVersionMatch", &quote(value), supported)
}

fn manager(value: &str) -> Result<String, FieldError> {
    if value.len() > MAX_MANAGER {
        let message = format!("Too long: may not be more than {MAX_MANAGER} bytes");
        return Err(field_error(ErrorKind::TooLong, "fieldManager", message));
    }
    if let Some((at, letter)) = value.chars().enumerate().find(|(_, letter)| letter.is_control()) {
        let message = format!(
            "Invalid value: {}: invalid character U+{:04X} (at position {at})",
            quote(value),
            u32::from(letter)
        );
        return Err(field_error(ErrorKind::Invalid, "fieldManager", message));
    }
    Ok(value.to_owned())
}

fn validation(value: &str) -> Result<FieldValidation, FieldError> {
    match value {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        other => {
            let supported = "\"\", \"Ignore\", \"Strict\", \"Warn\"";
            Err(unsupported("fieldValidation", &quote(other), supported))
        }
    }
}

fn propagation(value: &str) -> Result<Propagation, FieldError> {
    match value {
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => {
            let supported = "\"Foreground\", \"Background\", \"Orphan\", \"nil\"";
            Err(unsupported("propagationPolicy", &quote(other), supported))
        }
    }
}

#[cfg(test)]
mod tests;
