//! API errors in Kubernetes' form: a `Status` object with code, reason, details and causes.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::schema::FieldError;

/// The maximum number of causes listed in one response; further ones are of no use.
const MAX_CAUSES: usize = 64;

/// A failed request.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub code: StatusCode,
    pub reason: &'static str,
    pub message: String,
    /// For some errors Kubernetes includes empty details.
    details: Option<Map<String, Value>>,
}

pub type Result<T, E = ApiError> = std::result::Result<T, E>;

/// The subject of an error: group, resource or kind, and object.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub group: &'a str,
    /// The plural, or for invalid objects the kind.
    pub kind: &'a str,
    pub name: &'a str,
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
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    fn about(self, subject: Subject<'_>) -> Self {
        Self { details: Some(subject.details()), ..self }
    }

    pub fn with_causes(mut self, causes: Vec<Value>) -> Self {
        let causes = causes.into_iter().take(MAX_CAUSES).collect();
        self.details.get_or_insert_default().insert("causes".into(), causes);
        self
    }

    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().insert("retryAfterSeconds".into(), seconds.into());
        self
    }

    /// Adds empty details.
    fn about_nothing(self) -> Self {
        Self { details: Some(Map::new()), ..self }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(subject: Subject<'_>, why: &str) -> Self {
        let name = if subject.name.is_empty() { String::new() } else { format!(" {:?}", subject.name) };
        let message = format!("{}{name} is forbidden: {why}", subject.qualified());
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(subject)
    }

    /// A write into a namespace that is being deleted.
    pub fn namespace_terminating(subject: Subject<'_>, namespace: &str) -> Self {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = json!({
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        });
        Self::forbidden(subject, &why).with_causes(vec![cause])
    }

    /// The error of a path that the server does not serve.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about_nothing()
    }

    pub fn not_found(subject: Subject<'_>) -> Self {
        let message = format!("{} {:?} not found", subject.qualified(), subject.name);
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(subject)
    }

    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).about_nothing()
    }

    /// The error of a user without permission on a non-resource path.
    pub fn forbidden_path(user: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about_nothing()
    }

    /// The error of a JSON patch that does not apply to the object; Kubernetes does not report why.
    pub fn unfit_patch() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about_nothing()
    }

    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub fn already_exists(subject: Subject<'_>) -> Self {
        let message = format!("{} {:?} already exists", subject.qualified(), subject.name);
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(subject)
    }

    /// Like [`Self::already_exists`], for an object that is being deleted.
    pub fn still_exists(subject: Subject<'_>) -> Self {
        let error = Self::already_exists(subject);
        Self { message: format!("object is being deleted: {}", error.message), ..error }
    }

    pub fn conflict(subject: Subject<'_>, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {:?}: {why}", subject.qualified(), subject.name);
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(subject)
    }

    pub fn modified(subject: Subject<'_>) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(subject, why)
    }

    /// The error of a server-side apply that conflicts with other managers.
    pub fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message).with_causes(causes)
    }

    /// The error of an invalid object. `subject.kind` is the kind.
    pub fn invalid(subject: Subject<'_>, errors: &[FieldError]) -> Self {
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
            .take(MAX_CAUSES)
            .map(|e| json!({"reason": e.kind.as_str(), "message": e.message, "field": e.field}))
            .collect();
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(subject).with_causes(causes)
    }

    /// The error of a request that an admission policy denied; code, reason and message are the policy's.
    pub fn denied(subject: Subject<'_>, (code, reason): (u16, &str), message: &str, cause: &str) -> Self {
        let reason = match reason {
            "Unauthorized" => "Unauthorized",
            "Forbidden" => "Forbidden",
            "RequestEntityTooLarge" => "RequestEntityTooLarge",
            _ => "Invalid",
        };
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
        Self::new(code, reason, message).about(subject).with_causes(vec![json!({"message": cause})])
    }

    pub fn too_large(what: &str, limit: usize) -> Self {
        let message = format!("Request entity too large: {what}, limit is {limit}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).retry_after(1)
    }

    pub fn too_many_requests(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(1)
    }

    pub fn internal(message: impl std::fmt::Display) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub fn status(&self) -> Value {
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

fn field_text(error: &FieldError) -> String {
    if error.field.is_empty() { error.message.clone() } else { format!("{}: {}", error.field, error.message) }
}
