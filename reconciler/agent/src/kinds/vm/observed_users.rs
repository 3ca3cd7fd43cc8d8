//! The users of a guest whose SSH keys or passwords are declared, as they were observed.

use std::time::Duration;

use berth_api::Reason;
use berth_api::vm::GuestUserStatus;

use crate::ssh_keys::{KeysFound, KeysPlan, KeysProblem};

/// The users of a guest, and what follows from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuestUsers {
    /// None: the guest does not run, and its users stay as they were last seen.
    pub(super) users: Option<Vec<ObservedUser>>,
    /// The keys to keep, if other ones are kept for now.
    pub(super) watch: Option<Option<Box<KeysPlan>>>,
    /// When to observe them again.
    pub(super) again: Option<Duration>,
}

/// A declared user, or one whose keys of berth are to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedUser {
    pub(super) name: String,
    pub(super) is_declared: bool,
    /// The number of declared keys; or why they are not known, and stay as they are.
    pub(super) keys: Result<usize, (Reason, String)>,
    pub(super) found: Option<KeysFound>,
    pub(super) has_password: bool,
    /// The version of the password that the user was given last.
    pub(super) password_version: Option<String>,
}

impl ObservedUser {
    /// Returns why the user does not have the declared keys.
    pub(super) fn problem(&self) -> Option<(Reason, String)> {
        let problem = match (&self.keys, &self.found) {
            (Err(problem), _) => return Some(problem.clone()),
            (Ok(_), Some(KeysFound::Synced)) => return None,
            (Ok(_), Some(KeysFound::Differ(problem))) => problem.clone(),
            (Ok(_), None) => KeysProblem::NoAgent,
        };
        Some((problem.reason(), problem.to_string()))
    }

    /// Whether nothing of a former user is left to do.
    pub(super) fn is_done(&self) -> bool {
        let ended = [KeysFound::Synced, KeysFound::Differ(KeysProblem::NoUser)];
        !self.is_declared && self.found.as_ref().is_some_and(|found| ended.contains(found))
    }

    /// Names what is declared of the user.
    pub(super) fn subject(&self) -> &'static str {
        if self.has_password { "the keys or the password" } else { "the keys" }
    }

    pub(super) fn status(&self) -> GuestUserStatus {
        let problem = self.problem();
        let count = self.keys.as_ref().ok().filter(|_| problem.is_none());
        GuestUserStatus {
            name: self.name.clone(),
            synced: problem.is_none(),
            keys: count.and_then(|count| i64::try_from(*count).ok()),
            password_version: self.password_version.clone().filter(|_| self.has_password),
            message: problem.map(|(_, text)| text.chars().take(512).collect()),
        }
    }
}
