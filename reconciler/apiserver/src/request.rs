//! What a request asks: the path, the query, the patch type. No I/O.

use std::sync::Arc;

use http::{Method, Uri};
use serde_json::Value;

use crate::catalog::Served;
use crate::error::{ApiError, Result, Subject};
use crate::meta::{field_error, invalid};
use crate::resource::Resource;
use crate::schema::{ErrorKind, FieldError, quote};

/// Text a query may have.
const MAX_QUERY: usize = 64 * 1024;
/// Bytes a field manager's name may have.
const MAX_MANAGER: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sub {
    None,
    Status,
    Scale,
    /// Namespaces only: the last step of their deletion.
    Finalize,
    /// ServiceAccounts only: asking for a token.
    Token,
}

impl Sub {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Finalize => "finalize",
            Self::Token => "token",
        }
    }
}

/// A resource, or one object of it, or one side of that object.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    pub(crate) version: usize,
    /// Empty: cluster-scoped, or all namespaces.
    pub(crate) namespace: String,
    /// Empty: the collection.
    pub(crate) name: String,
    pub(crate) sub: Sub,
}

/// A path below `/api/v1` or `/apis/GROUP/VERSION`, not yet looked up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) sub: String,
}

impl ResourcePath {
    /// `None` if the path is not one of a resource.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let decoded: Vec<String> = path.trim_matches('/').split('/').map(decode).collect::<Option<_>>()?;
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", "v1", rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        // `namespaces/x/status` is a side of the namespace, not a resource in it.
        let of_namespace = group.is_empty() && matches!(rest, ["namespaces", _, "status" | "finalize"]);
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !of_namespace => (*namespace, rest),
            _ => ("", rest),
        };
        let (plural, name, sub) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, sub] => (*plural, *name, *sub),
            _ => return None,
        };
        let own = |s: &str| s.to_owned();
        let path = Self {
            group: own(group),
            version: own(version),
            plural: own(plural),
            namespace: own(namespace),
            name: own(name),
            sub: own(sub),
        };
        (!path.plural.is_empty()).then_some(path)
    }

    pub(crate) fn resolve(self, served: &Served) -> Result<Target> {
        let resource = served.find(&self.group, &self.plural).ok_or_else(ApiError::no_such_path)?;
        let version = resource.version(&self.version).ok_or_else(ApiError::no_such_path)?;
        let definition = &resource.versions[version];
        let sub = match self.sub.as_str() {
            "" => Sub::None,
            "status" if definition.has_status => Sub::Status,
            "scale" if definition.scale.is_some() => Sub::Scale,
            "finalize" if resource.is("", "namespaces") => Sub::Finalize,
            "token" if resource.is("", "serviceaccounts") => Sub::Token,
            _ => return Err(ApiError::no_such_path()),
        };
        let misplaced = if resource.namespaced {
            self.namespace.is_empty() && !self.name.is_empty()
        } else {
            !self.namespace.is_empty()
        };
        if misplaced {
            return Err(ApiError::no_such_path());
        }
        let resource = Arc::clone(resource);
        Ok(Target { resource, version, namespace: self.namespace, name: self.name, sub })
    }
}

/// Percent-decoding of one path segment; a decoded slash would address something else.
pub(crate) fn decode(segment: &str) -> Option<String> {
    let mut out = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let hex = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok().filter(|text| !text.contains(['/', '\0']))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The query of a request, and for deletions the body's `DeleteOptions`.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// What Kubernetes calls the options of such a request: `ListOptions` and so on.
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
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Result<Self> {
        if uri.query().is_some_and(|query| query.len() > MAX_QUERY) {
            return Err(ApiError::bad_request("query is too long"));
        }
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| ApiError::bad_request(error.body_text()))?
            .0;
        let mut options = Self { kind: options_of(method), ..Self::default() };
        for (name, value) in pairs {
            options.set(&name, value)?;
        }
        Ok(options)
    }

    /// The refusal of a request whose options are wrong.
    pub(crate) fn refused(&self, errors: &[FieldError]) -> ApiError {
        ApiError::invalid(Subject { group: "meta.k8s.io", kind: self.kind, name: "" }, errors)
    }

    fn set(&mut self, name: &str, value: String) -> Result<()> {
        match name {
            "labelSelector" => self.label_selector = value,
            "fieldSelector" => self.field_selector = value,
            "limit" => self.limit = number(name, &value)?,
            "continue" => self.continue_token = value,
            "resourceVersion" => self.resource_version = value,
            "resourceVersionMatch" => self.resource_version_match = value,
            "watch" => self.watch = flag(name, &value)?,
            "allowWatchBookmarks" => self.bookmarks = flag(name, &value)?,
            "sendInitialEvents" => self.send_initial_events = Some(flag(name, &value)?),
            "timeoutSeconds" => self.timeout_seconds = Some(number(name, &value)? as u64),
            "dryRun" => self.set_dry_run(&value)?,
            "fieldManager" => self.field_manager = manager(value).map_err(|error| self.refused(&[error]))?,
            "fieldValidation" => {
                self.field_validation = validation(&value).map_err(|error| self.refused(&[error]))?;
            }
            "force" => self.force = flag(name, &value)?,
            "propagationPolicy" => self.set_propagation(&value)?,
            "orphanDependents" if flag(name, &value)? => self.propagation = Some(Propagation::Orphan),
            "includeObject" => self.include_object = value,
            // Unknown parameters are ignored, as kube-apiserver does.
            _ => {}
        }
        Ok(())
    }

    fn set_dry_run(&mut self, value: &str) -> Result<()> {
        self.dry_run = match value {
            "" => false,
            "All" => true,
            other => {
                let value = format!("[{}]", quote(other));
                return Err(self.refused(&[unsupported("dryRun", &value, "\"All\"")]));
            }
        };
        Ok(())
    }

    fn set_propagation(&mut self, value: &str) -> Result<()> {
        let policy = propagation(value).map_err(|error| self.refused(&[error]))?;
        self.propagation = Some(policy);
        Ok(())
    }

    /// Takes over a `DeleteOptions` body.
    pub(crate) fn take_delete_options(&mut self, body: &Value) -> Result<()> {
        let kind = body["kind"].as_str().unwrap_or_default();
        if !kind.is_empty() && kind != "DeleteOptions" {
            return Err(ApiError::bad_request(format!(
                "the body of a deletion must be DeleteOptions, not {kind}"
            )));
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

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: "GetOptions",
            label_selector: String::new(),
            field_selector: String::new(),
            limit: 0,
            continue_token: String::new(),
            resource_version: String::new(),
            resource_version_match: String::new(),
            watch: false,
            bookmarks: false,
            send_initial_events: None,
            timeout_seconds: None,
            dry_run: false,
            field_manager: String::new(),
            field_validation: FieldValidation::Warn,
            force: false,
            propagation: None,
            precondition_uid: None,
            precondition_revision: None,
            include_object: String::new(),
        }
    }
}

fn number(name: &str, value: &str) -> Result<usize> {
    value
        .parse()
        .map_err(|_| ApiError::bad_request(format!("{name}: Invalid value: {value:?}: must be a number")))
}

fn flag(name: &str, value: &str) -> Result<bool> {
    match value {
        "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ApiError::bad_request(format!("{name}: Invalid value: {value:?}: must be a boolean"))),
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

/// `resourceVersionMatch` of a list or watch.
pub(crate) fn unsupported_match(value: &str, supported: &str) -> FieldError {
    unsupported("resourceVersionMatch", &quote(value), supported)
}

fn manager(value: String) -> Result<String, FieldError> {
    if value.len() > MAX_MANAGER {
        let message = format!("Too long: may not be more than {MAX_MANAGER} bytes");
        return Err(field_error(ErrorKind::TooLong, "fieldManager", message));
    }
    if let Some((at, letter)) = value.chars().enumerate().find(|(_, letter)| letter.is_control()) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(letter));
        return Err(invalid("fieldManager", &value.into(), &why));
    }
    Ok(value)
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
mod tests {
    use super::*;

    fn path(text: &str) -> Option<[String; 6]> {
        ResourcePath::parse(text).map(|p| [p.group, p.version, p.plural, p.namespace, p.name, p.sub])
    }

    #[test]
    fn paths_name_group_version_plural_namespace_name_and_subresource() {
        let expect = |text: &str, wanted: [&str; 6]| assert_eq!(path(text).unwrap(), wanted, "{text}");
        expect("/api/v1/secrets", ["", "v1", "secrets", "", "", ""]);
        expect("/api/v1/namespaces", ["", "v1", "namespaces", "", "", ""]);
        expect("/api/v1/namespaces/a", ["", "v1", "namespaces", "", "a", ""]);
        expect("/api/v1/namespaces/a/finalize", ["", "v1", "namespaces", "", "a", "finalize"]);
        expect("/api/v1/namespaces/a/secrets", ["", "v1", "secrets", "a", "", ""]);
        expect("/apis/x.y/v1/namespaces/a/vms/b/status", ["x.y", "v1", "vms", "a", "b", "status"]);
        expect("/apis/r/v1/clusterroles/a%3Ab", ["r", "v1", "clusterroles", "", "a:b", ""]);
        assert!(
            path("/api/v2/pods").is_none() && path("/apis/x.y").is_none() && path("/apis/x.y/v1").is_none()
        );
        assert!(path("/api/v1/secrets/a%2Fb").is_none() && path("/api/v1/a/b/c/d").is_none());
    }

    #[test]
    fn unknown_query_parameters_are_ignored_and_bad_values_refused() {
        let parse = |query: &str| Options::parse(&Method::POST, &format!("/x?{query}").parse().unwrap());
        assert!(parse("pretty=true&labelSelector=a%3Db").is_ok_and(|o| o.label_selector == "a=b"));
        for bad in
            ["limit=many", "watch=perhaps", "dryRun=Some", "fieldValidation=Loose", "propagationPolicy=x"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_that_are_wrong_are_told_by_kind_and_field() {
        let told = |method: Method, query: &str| {
            let error = Options::parse(&method, &format!("/x?{query}").parse().unwrap()).unwrap_err();
            (error.code.as_u16(), error.message)
        };
        for (method, query, message) in [
            (
                Method::POST,
                "dryRun=x",
                "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"x\"]: supported values: \"All\"",
            ),
            (
                Method::PATCH,
                "fieldValidation=x",
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"x\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
            ),
            (
                Method::DELETE,
                "propagationPolicy=x",
                "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"x\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
            ),
        ] {
            assert_eq!(told(method, query), (422, message.to_owned()));
        }
        let long = format!("fieldManager={}", "a".repeat(129));
        assert!(
            told(Method::PUT, &long).1.ends_with("fieldManager: Too long: may not be more than 128 bytes")
        );
        let both = serde_json::json!({"propagationPolicy": "Orphan", "orphanDependents": true});
        assert!(Options::default().take_delete_options(&both).is_err());
        assert!(Options::default().take_delete_options(&serde_json::json!({"kind": "Boat"})).is_err());
    }
}
