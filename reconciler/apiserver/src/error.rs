//! Failures as Kubernetes tells them: a `Status` object with code, reason, details and causes.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::admission::Denied;
use crate::schema::FieldError;
use crate::store::{ReadError, WriteError};

/// Causes listed in one answer; further ones help nobody.
const MAX_CAUSES: usize = 64;

/// A failed request.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) code: StatusCode,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Of some refusals Kubernetes tells that there is nothing more to tell.
    details: Option<Map<String, Value>>,
}

pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// What an error names: group, resource or kind, and object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) group: &'a str,
    /// The plural, or for invalid objects the kind.
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
}

impl Subject<'_> {
    fn qualified(&self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.kind, self.group) }
    }

    fn details(&self) -> Map<String, Value> {
        let members = [("name", self.name), ("group", self.group), ("kind", self.kind)];
        members.into_iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.to_owned(), v.into())).collect()
    }
}

impl ApiError {
    pub(crate) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    fn about(self, subject: Subject<'_>) -> Self {
        Self { details: Some(subject.details()), ..self }
    }

    fn with_causes(mut self, causes: Vec<Value>) -> Self {
        let causes = causes.into_iter().take(MAX_CAUSES).collect();
        self.details.get_or_insert_default().insert("causes".into(), causes);
        self
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().insert("retryAfterSeconds".into(), seconds.into());
        self
    }

    /// About no object, and saying so.
    fn about_nothing(self) -> Self {
        Self { details: Some(Map::new()), ..self }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(subject: Subject<'_>, why: &str) -> Self {
        let name = if subject.name.is_empty() { String::new() } else { format!(" {:?}", subject.name) };
        let message = format!("{}{name} is forbidden: {why}", subject.qualified());
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(subject)
    }

    /// A write into a namespace that is being deleted.
    pub(crate) fn namespace_terminating(subject: Subject<'_>, namespace: &str) -> Self {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = json!({
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        });
        Self::forbidden(subject, &why).with_causes(vec![cause])
    }

    /// What no path of the server answers.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about_nothing()
    }

    pub(crate) fn not_found(subject: Subject<'_>) -> Self {
        let message = format!("{} {:?} not found", subject.qualified(), subject.name);
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(subject)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).about_nothing()
    }

    /// What nobody gave this user, of what is no resource.
    pub(crate) fn forbidden_path(user: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about_nothing()
    }

    /// A JSON patch that does not fit what is there; Kubernetes does not tell clients why.
    pub(crate) fn unfit_patch() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about_nothing()
    }

    /// A verb that custom resources, or a side of them, are not served with.
    pub(crate) fn method_not_supported(subject: Subject<'_>, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {:?}", subject.qualified());
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).about(subject)
    }

    pub(crate) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub(crate) fn already_exists(subject: Subject<'_>) -> Self {
        let message = format!("{} {:?} already exists", subject.qualified(), subject.name);
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(subject)
    }

    /// Like [`Self::already_exists`], but not for long.
    pub(crate) fn still_exists(subject: Subject<'_>) -> Self {
        let error = Self::already_exists(subject);
        Self { message: format!("object is being deleted: {}", error.message), ..error }
    }

    pub(crate) fn conflict(subject: Subject<'_>, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {:?}: {why}", subject.qualified(), subject.name);
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(subject)
    }

    pub(crate) fn modified(subject: Subject<'_>) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(subject, why)
    }

    /// Server-side apply met fields of other managers.
    pub(crate) fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_causes(causes)
    }

    /// An object that breaks its rules. `subject.kind` is the kind.
    pub(crate) fn invalid(subject: Subject<'_>, errors: &[FieldError]) -> Self {
        let mut texts: Vec<String> = Vec::new();
        for text in errors.iter().take(MAX_CAUSES).map(field_text) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let what = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let message = format!("{} {:?} is invalid: {what}", subject.qualified(), subject.name);
        let causes = errors
            .iter()
            .map(|e| json!({"reason": e.kind.as_str(), "message": cause_text(e), "field": e.field}))
            .collect();
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(subject).with_causes(causes)
    }

    /// An admission policy said no; code, reason and words are the policy's.
    pub(crate) fn denied(subject: Subject<'_>, denied: &Denied) -> Self {
        let reason = match denied.reason.as_str() {
            "Unauthorized" => "Unauthorized",
            "Forbidden" => "Forbidden",
            "RequestEntityTooLarge" => "RequestEntityTooLarge",
            _ => "Invalid",
        };
        let code = StatusCode::from_u16(denied.code).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
        Self::new(code, reason, &denied.status_message)
            .about(subject)
            .with_causes(vec![json!({"message": denied.message})])
    }

    pub(crate) fn too_large(what: &str, limit: usize) -> Self {
        let message = format!("Request entity too large: {what}, limit is {limit}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).retry_after(1)
    }

    pub(crate) fn too_many_requests(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(1)
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// A write the store did not make, other than for a conflict, which only the caller can name.
    pub(crate) fn of_write(error: &WriteError) -> Self {
        match error {
            WriteError::Full | WriteError::OverQuota => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage", error.to_string())
            }
            WriteError::Closed => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", error.to_string())
                    .retry_after(1)
            }
            WriteError::Conflict | WriteError::Refused(_) => Self::internal(error),
        }
    }

    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        });
        if let Some(details) = &self.details {
            status["details"] = Value::Object(details.clone());
        }
        status["code"] = self.code.as_u16().into();
        status
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Compacted { .. } => Self::expired(
                "The provided resource version is too old: the requested history has been compacted",
            ),
            ReadError::Future { requested, current } => {
                let message = format!("Too large resource version: {requested}, current: {current}");
                let cause =
                    json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
                Self::timeout(message).with_causes(vec![cause])
            }
            ReadError::Database(_) => Self::internal(error),
        }
    }
}

fn cause_text(error: &FieldError) -> String {
    error.message.clone()
}

fn field_text(error: &FieldError) -> String {
    if error.field.is_empty() { error.message.clone() } else { format!("{}: {}", error.field, error.message) }
}
