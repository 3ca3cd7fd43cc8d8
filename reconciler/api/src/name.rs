//! Names of objects that one object refers to.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The name of another object: a DNS label (RFC 1123), 1 to 63 characters of `a-z`, `0-9` and `-`, not at either end.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceName(pub String);

impl ResourceName {
    /// Whether the text is a DNS label.
    pub fn is_dns_label(text: &str) -> bool {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (1..=63).contains(&text.len())
            && text.bytes().all(inner)
            && !text.starts_with('-')
            && !text.ends_with('-')
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ResourceName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for ResourceName {
    fn schema_name() -> Cow<'static, str> {
        "ResourceName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": 63,
            "x-kubernetes-validations": [{
                "rule": "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
                "message": "must be a DNS label: lower-case letters, digits and '-', at most 63 characters",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_labels_are_names() {
        for good in ["a", "web-1", "0", &"x".repeat(63)] {
            assert!(ResourceName::is_dns_label(good), "{good}");
        }
        for bad in ["", "Web", "a.b", "-a", "a-", "a_b", "ä", &"x".repeat(64)] {
            assert!(!ResourceName::is_dns_label(bad), "{bad}");
        }
    }
}
