//! The identity that makes a request.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// An authenticated user, as `SelfSubjectReview` shows it and as access rules and admission policies see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user name.
    pub user: String,
    /// The groups, `system:authenticated` among them.
    pub groups: Vec<String>,
    /// Distinguishes users of the same name, empty if there is nothing to distinguish them; for a
    /// ServiceAccount its uid.
    pub uid: String,
    /// The credential that identified the user, as audit logs name it (`JTI=…` for a token); empty if it has
    /// no name.
    pub credential: String,
}

/// The key of the credential in reviews and policies.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// Members of this group may do everything.
pub(crate) const MASTERS: &str = "system:masters";

impl Identity {
    /// Returns a user in the given groups and in `system:authenticated`.
    pub fn new(user: impl Into<String>, groups: impl IntoIterator<Item = String>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().collect();
        if !groups.iter().any(|group| group == "system:authenticated") {
            groups.push("system:authenticated".into());
        }
        Self { user: user.into(), groups, uid: String::new(), credential: String::new() }
    }

    /// Returns the administrator: a member of `system:masters`, which access rules do not restrict.
    pub fn admin() -> Self {
        Self::new("admin", [MASTERS.to_owned()])
    }

    /// Returns the extra information about the user: lists of strings by name, or null.
    pub(crate) fn extra(&self) -> Value {
        if self.credential.is_empty() { Value::Null } else { json!({CREDENTIAL: [self.credential]}) }
    }

    pub(crate) fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}

/// A bearer token.
pub(crate) struct Token {
    text: Box<str>,
    /// Its SHA-256, calculated once: tokens are compared and remembered by it, so that the time tells nothing about them.
    hash: [u8; 32],
}

impl Token {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.into(), hash: Sha256::digest(text.as_bytes()).into() }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

/// The holder of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) identity: Identity,
    /// The requested audiences that the token is valid for: at least one.
    pub(crate) audiences: Vec<String>,
}

/// Why a token is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("invalid bearer token")]
    Unknown,
    #[error("the token is for the audiences {of:?}, not for any of {wanted:?}")]
    Audience { of: Vec<String>, wanted: Vec<String> },
    #[error("service account token has expired")]
    Expired,
    #[error("service account token has been invalidated: the account or Secret it was issued for is gone")]
    Invalidated,
}
