//! The private data that the provider stores beside a state.

use serde::{Deserialize, Serialize};

use crate::mapping::PinnedFields;

/// Data that Terraform stores with the state and never shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Private {
    /// The object's uid.
    pub uid: String,
    /// See [`PinnedFields`].
    #[serde(rename = "held")]
    pub pinned: PinnedFields,
    /// The checksum of the bootstrap data last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// The restart token that the provider itself has set. It stays for ever, because removing it would be a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_token: Option<String>,
    /// The uid of the object of the same name that the planned create replaces. Not in a state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// The resource of another provider whose state a moved block has brought, until the second read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<String>,
    /// Whether the planned destroy leaves the object, because the same plan creates it at another address. Not in a state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub leaves_object: bool,
}

impl Private {
    /// Reads the stored data; missing or unreadable data is empty.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// The bytes for Terraform to store.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
