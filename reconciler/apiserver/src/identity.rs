//! Who makes a request.

use serde_json::{Value, json};

/// An authenticated user, as `SelfSubjectReview` shows it and as access rules and admission policies see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user name.
    pub user: String,
    /// The groups, `system:authenticated` among them.
    pub groups: Vec<String>,
    /// What tells users of one name apart, empty if nothing does; for a ServiceAccount its uid.
    pub uid: String,
    /// The credential by which the user is known, as audit logs name it (`JTI=…` for a token); empty if it has no name.
    pub credential: String,
}

/// Under which a review and a policy find the credential.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// Members may do everything.
pub(crate) const MASTERS: &str = "system:masters";

impl Identity {
    /// A user in the given groups and in `system:authenticated`.
    pub fn new(user: impl Into<String>, groups: impl IntoIterator<Item = String>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().collect();
        if !groups.iter().any(|group| group == "system:authenticated") {
            groups.push("system:authenticated".into());
        }
        Self { user: user.into(), groups, uid: String::new(), credential: String::new() }
    }

    /// The administrator: a member of `system:masters`, to whom no access rule applies.
    pub fn admin() -> Self {
        Self::new("admin", [MASTERS.to_owned()])
    }

    /// What else is known of the user: lists of texts by name, or null.
    pub(crate) fn extra(&self) -> Value {
        if self.credential.is_empty() { Value::Null } else { json!({CREDENTIAL: [self.credential]}) }
    }

    pub(crate) fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}
