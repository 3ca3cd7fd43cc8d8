//! The kind of object that a body must contain.

use berth_apimachinery::error::{ApiError, Result};
use serde_json::Value;

use crate::builtin::decode::unreadable;
use crate::request::{Sub, Target};
use crate::resource::group_version;

/// The kind of object that a request must contain.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    /// Custom resources must declare their kind; for others it is optional.
    custom: bool,
}

impl<'a> Expected<'a> {
    pub(super) fn builtin(group: &'a str, version: &'a str, kind: &'a str) -> Self {
        Self { group, version, kind, custom: false }
    }

    /// Returns the kind that is written at a target.
    pub(super) fn at(target: &'a Target) -> Self {
        match target.sub {
            Sub::Token => Self::builtin("authentication.k8s.io", "v1", "TokenRequest"),
            Sub::None | Sub::Status | Sub::Finalize => {
                let resource = &target.resource;
                let version = resource.versions[target.version].name.as_str();
                Self { group: &resource.group, version, kind: &resource.kind, custom: resource.is_custom() }
            }
        }
    }

    pub(super) fn unreadable(&self, why: &str) -> ApiError {
        unreadable(self.kind, self.version, why)
    }

    /// Checks that a body declares the expected kind, or omits it where it may. A custom resource of another
    /// kind passes: it is validated as the expected kind, and all its errors are reported then.
    pub(super) fn check(&self, value: &Value) -> Result<()> {
        if !value.is_object() && !value.is_null() {
            return Err(self.unreadable("it must be an object"));
        }
        let (api_version, kind) = (self.text(value, "apiVersion")?, self.text(value, "kind")?);
        if self.custom {
            return if kind.is_empty() { Err(self.unreadable("kind is missing")) } else { Ok(()) };
        }
        let own = group_version(self.group, self.version);
        if !kind.is_empty() && kind != self.kind {
            return Err(self.unreadable(&format!("kind is {kind}")));
        }
        if !api_version.is_empty() && api_version != own {
            return Err(self.unreadable(&format!("apiVersion is {api_version}, not {own}")));
        }
        Ok(())
    }

    fn text<'v>(&self, value: &'v Value, member: &str) -> Result<&'v str> {
        match &value[member] {
            Value::Null => Ok(""),
            Value::String(text) => Ok(text),
            _ => Err(self.unreadable(&format!("{member} must be a string"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOAT: Expected<'static> =
        Expected { group: "toys.example", version: "v1", kind: "Boat", custom: true };

    fn refusal(expected: &Expected<'_>, body: &str) -> Option<String> {
        let error = expected.check(&serde_json::from_str(body).expect("JSON")).err()?;
        assert_eq!(error.code.as_u16(), 400);
        error.message.rsplit_once(": ").map(|(_, why)| why.to_owned())
    }

    #[test]
    fn a_custom_resource_declares_its_kind() {
        for (body, why) in [
            (r#"{"kind":"Boat","apiVersion":"toys.example/v1"}"#, None),
            ("{}", Some("kind is missing")),
            ("null", Some("kind is missing")),
            (r#"{"kind":1}"#, Some("kind must be a string")),
            ("[]", Some("it must be an object")),
        ] {
            assert_eq!(refusal(&BOAT, body).as_deref(), why, "{body}");
        }
    }

    #[test]
    fn a_built_in_object_may_omit_its_kind() {
        let map = Expected::builtin("", "v1", "ConfigMap");
        for (body, why) in [
            ("{}", None),
            ("null", None),
            (r#"{"kind":"ConfigMap"}"#, None),
            (r#"{"apiVersion":"v1"}"#, None),
            (r#"{"apiVersion":"v2"}"#, Some("apiVersion is v2, not v1")),
            (r#"{"kind":"Secret"}"#, Some("kind is Secret")),
        ] {
            assert_eq!(refusal(&map, body).as_deref(), why, "{body}");
        }
    }
}
