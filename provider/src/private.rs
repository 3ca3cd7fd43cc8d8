//! The private data that the provider stores beside a state.

use berth_console_client::MeasuredFile;
use serde::{Deserialize, Serialize};

use crate::mapping::PinnedFields;

/// Data that Terraform stores with the state and never shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Private {
    /// See [`PinnedFields`].
    #[serde(rename = "held", skip_serializing_if = "PinnedFields::is_empty")]
    pub pinned: PinnedFields,
    /// The checksum of the bootstrap data last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// The restart token that the provider itself has set. It stays for ever, because removing it would be a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_token: Option<String>,
    /// [`Self::restart_token`] before the planned change. Not in a state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_token_before: Option<String>,
    /// The local file of an image, with the checksum that was computed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<MeasuredFile>,
    /// The uid of the object of the same name that the planned create replaces. Not in a state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// The resource of another provider whose state a moved block has brought, until the second read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<String>,
    /// Whether the placement of a VM is not from its configuration: it has that of the provider's `host_selector`, or was imported. It
    /// is kept for as long as the configuration declares none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keeps_placement: bool,
    /// [`Self::keeps_placement`] before the planned change. Not in a state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keeps_placement_before: bool,
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

    /// The data beside the state that an update leaves when it fails: Terraform would store those of its plan.
    #[must_use]
    pub fn before_change(self) -> Self {
        Self {
            keeps_placement: self.keeps_placement_before,
            keeps_placement_before: false,
            restart_token: self.restart_token_before,
            restart_token_before: None,
            ..self
        }
    }

    /// The data beside the state after a change: without those before it.
    #[must_use]
    pub fn after_change(self) -> Self {
        Self { keeps_placement_before: false, restart_token_before: None, ..self }
    }

    /// The bytes for Terraform to store: none if there is nothing to store, since Terraform writes them after each resource.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        if *self == Self::default() {
            return Vec::new();
        }
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_takes_no_bytes_and_what_earlier_versions_stored_is_read() {
        assert!(Private::default().to_bytes().is_empty());
        assert_eq!(Private::from_bytes(b""), Private::default());
        let pinned = PinnedFields::from(["address".to_owned()]);
        let private = Private { pinned, ..Private::default() };
        assert_eq!(private.to_bytes(), br#"{"held":["address"]}"#);
        assert_eq!(Private::from_bytes(br#"{"uid":"u","held":["address"]}"#), private);
    }

    #[test]
    fn a_failed_update_leaves_what_was_before_it() {
        let kept = Private { keeps_placement: true, ..Private::default() };
        let planned = Private { keeps_placement: false, keeps_placement_before: true, ..Private::default() };
        assert_eq!(planned.before_change(), kept);
        let planned = Private { keeps_placement: true, keeps_placement_before: false, ..Private::default() };
        assert_eq!(planned.before_change(), Private::default());
        let token = |token: &str| Some(token.to_owned());
        let kept = Private { restart_token: token("terraform-0"), ..Private::default() };
        let planned = Private {
            restart_token: token("terraform-1"),
            restart_token_before: token("terraform-0"),
            ..Private::default()
        };
        assert_eq!(planned.before_change(), kept, "another change would restart the VM");
        let planned = Private { restart_token: token("terraform-1"), ..Private::default() };
        assert_eq!(planned.before_change(), Private::default());
    }
}
