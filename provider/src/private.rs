//! What is kept beside a state, for the provider's eyes only.

use serde::{Deserialize, Serialize};

use crate::mapping::Held;

/// Kept by Terraform with the state, never shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Private {
    /// The object's uid.
    pub uid: String,
    /// See [`Held`].
    pub held: Held,
    /// The checksum of the bootstrap data last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// The restart token the provider itself has set: for ever, because taking it away would be a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_token: Option<String>,
}

impl Private {
    /// Reads what Terraform kept; nothing, or what cannot be read, is empty.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// For Terraform to keep.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
