//! What a body should be, and what is told of one that is something else or cannot be read: why, in the words of
//! kube-apiserver, and the beginning of the body.

use serde_json::Value;

use super::go_json;
use crate::error::{ApiError, Result};
use crate::request::{Sub, Target};
use crate::schema::message::{json_type, shorten};
use crate::schema::quote;

/// Bytes of a body that are shown.
const SHOWN: usize = 30;
/// What Go looks for first in any body.
const VERSION_AND_KIND: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The kind of object that a request is to bring.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    /// Custom resources must say what they are; of others it goes without saying.
    custom: bool,
}

impl<'a> Expected<'a> {
    pub(super) fn builtin(group: &'a str, version: &'a str, kind: &'a str) -> Self {
        Self { group, version, kind, custom: false }
    }

    /// What is written at a target.
    pub(super) fn at(target: &'a Target) -> Self {
        match target.sub {
            Sub::Token => Self::builtin("authentication.k8s.io", "v1", "TokenRequest"),
            Sub::Scale => Self::builtin("autoscaling", "v1", "Scale"),
            Sub::None | Sub::Status | Sub::Finalize => {
                let resource = &target.resource;
                let version = resource.versions[target.version].name.as_str();
                Self { group: &resource.group, version, kind: &resource.kind, custom: resource.is_custom() }
            }
        }
    }

    /// The refusal of a body that does not even say what it is.
    pub(super) fn unrecognized(&self, why: &str, body: &[u8]) -> ApiError {
        let (kind, summary) = (self.kind, summary(body));
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why} ({summary})"
        ))
    }

    /// The refusal of a body that is no JSON.
    pub(super) fn no_json(&self, body: &[u8], error: &serde_json::Error) -> ApiError {
        self.no_version_and_kind(&no_json(body, error), body)
    }

    fn no_version_and_kind(&self, why: &str, body: &[u8]) -> ApiError {
        self.unrecognized(&format!("couldn't get version/kind; json parse error: {why}"), body)
    }

    /// Whether a body says that it is what it should be, or leaves that open where it may. Other members are not looked at.
    pub(super) fn check(&self, value: &Value, body: &[u8]) -> Result<()> {
        if !value.is_object() && !value.is_null() {
            let why = format!(
                "json: cannot unmarshal {} into Go value of type {VERSION_AND_KIND}",
                json_type(value)
            );
            return Err(self.no_version_and_kind(&why, body));
        }
        let (api_version, kind) = (self.text(value, "apiVersion", body)?, self.text(value, "kind", body)?);
        if api_version.matches('/').count() > 1 {
            return Err(self.unrecognized(&format!("unexpected GroupVersion string: {api_version}"), body));
        }
        if self.custom { self.check_custom(kind, body) } else { self.check_builtin(kind, api_version) }
    }

    fn text<'v>(&self, value: &'v Value, member: &str, body: &[u8]) -> Result<&'v str> {
        match &value[member] {
            Value::Null => Ok(""),
            Value::String(text) => Ok(text),
            other => {
                let found = json_type(other);
                let why =
                    format!("json: cannot unmarshal {found} into Go struct field .{member} of type string");
                Err(self.no_version_and_kind(&why, body))
            }
        }
    }

    /// One of another kind is looked at as what it should be, and is told all that is wrong with it then.
    fn check_custom(&self, kind: &str, body: &[u8]) -> Result<()> {
        if kind.is_empty() {
            let why = format!("Object 'Kind' is missing in '{}'", shorten(&String::from_utf8_lossy(body)));
            return Err(self.unrecognized(&why, body));
        }
        Ok(())
    }

    fn check_builtin(&self, kind: &str, api_version: &str) -> Result<()> {
        let own = crate::resource::group_version(self.group, self.version);
        let (kind, api_version) = (or(kind, self.kind), or(api_version, &own));
        if kind == self.kind && api_version == own {
            return Ok(());
        }
        let (version, own_kind) = (api_version.rsplit('/').next().unwrap_or_default(), self.kind);
        Err(ApiError::bad_request(format!(
            "{kind} in version {} cannot be handled as a {own_kind}: {api_version}, Kind={kind} is not {own}, Kind={own_kind}",
            quote(version)
        )))
    }
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

/// Why a text is no JSON. Numbers and depths that Go reads may still be too much here.
pub(super) fn no_json(text: &[u8], error: &serde_json::Error) -> String {
    go_json::problem(text).unwrap_or_else(|| error.to_string())
}

fn summary(body: &[u8]) -> String {
    let start = &body[..body.len().min(SHOWN)];
    let more = if body.len() > SHOWN { " ..." } else { "" };
    match start {
        [] => "<empty>".to_owned(),
        [b'{', ..] => format!("{}{more}", String::from_utf8_lossy(start)),
        _ => format!("{}{more}", super::respond::hex(start)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOAT: Expected<'static> =
        Expected { group: "toys.example", version: "v1", kind: "Boat", custom: true };

    fn refusal(expected: &Expected<'_>, body: &str) -> Option<String> {
        let value = serde_json::from_str(body).expect("JSON");
        let error = expected.check(&value, body.as_bytes()).err()?;
        assert_eq!(error.code.as_u16(), 400);
        Some(error.message)
    }

    #[test]
    fn the_beginning_of_a_body_is_shown() {
        let shown = |body: &str| BOAT.unrecognized("why", body.as_bytes()).message;
        assert_eq!(shown(""), "the object provided is unrecognized (must be of type Boat): why (<empty>)");
        assert!(shown("{}").ends_with("(must be of type Boat): why ({})"));
        assert!(shown("[]").ends_with(" (5b5d)"));
        assert!(shown(&format!("{{{}", "a".repeat(40))).ends_with(&format!("({{{} ...)", "a".repeat(29))));
    }

    #[test]
    fn a_custom_resource_says_what_it_is() {
        assert_eq!(refusal(&BOAT, r#"{"kind":"Boat","apiVersion":"toys.example/v1"}"#), None);
        let start = "the object provided is unrecognized (must be of type Boat): ";
        for (body, why) in [
            ("{}", "Object 'Kind' is missing in '{}' ({})"),
            ("null", "Object 'Kind' is missing in 'null' (6e756c6c)"),
            (
                r#"{"kind":1}"#,
                "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of \
                 type string ({\"kind\":1})",
            ),
        ] {
            assert_eq!(refusal(&BOAT, body), Some(format!("{start}{why}")));
        }
        let array = refusal(&BOAT, "[]").expect("it is refused");
        assert!(array.contains("json: cannot unmarshal array into Go value of type struct {"), "{array}");
    }

    #[test]
    fn of_what_is_built_in_it_goes_without_saying() {
        let map = Expected::builtin("", "v1", "ConfigMap");
        for body in ["{}", "null", r#"{"kind":"ConfigMap"}"#, r#"{"apiVersion":"v1"}"#] {
            assert_eq!(refusal(&map, body), None, "{body}");
        }
        let told = "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: v2, Kind=ConfigMap is not v1, Kind=ConfigMap";
        assert_eq!(refusal(&map, r#"{"apiVersion":"v2"}"#), Some(told.to_owned()));
        assert!(refusal(&map, r#"{"kind":"Secret"}"#).is_some());
        let slashes = refusal(&map, r#"{"apiVersion":"a/b/c"}"#).expect("it is refused");
        assert!(slashes.contains("unexpected GroupVersion string: a/b/c"), "{slashes}");
    }
}
