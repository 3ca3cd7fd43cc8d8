//! A write: the request to the store, and the reasons for which it fails.

use std::sync::Arc;

use crate::entry::{Encoded, Entry};
use crate::key::Key;

/// The expected current revision of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    Revision(u64),
}

#[derive(Debug, Clone)]
pub enum Action {
    Put(Encoded),
    Delete,
}

/// The author of a write and its verb, stored with the revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    pub user: String,
    /// The field manager.
    pub manager: String,
    /// The verb as access rules name it, or `apply`.
    pub verb: &'static str,
}

/// One write, conditional on its key's revision and on other objects being unchanged.
#[derive(Debug, Clone)]
pub struct Write {
    pub key: Key,
    pub expect: Expect,
    pub action: Action,
    /// Other objects that must still be at these revisions, such as a namespace that must not be terminating.
    pub guards: Vec<(Key, u64)>,
    pub at_ms: i64,
    pub by: Origin,
    /// Whether the write may wait up to 250 ms for others, to be stored in one transaction with them. As every write, it is answered
    /// when it is durable.
    pub deferrable: bool,
}

impl Write {
    pub(crate) fn is_new(&self) -> bool {
        matches!((&self.action, self.expect), (Action::Put(_), Expect::Absent))
    }

    /// Returns the size of the stored text in bytes.
    pub(crate) fn size(&self) -> usize {
        match &self.action {
            Action::Put(encoded) => encoded.text.len(),
            Action::Delete => 0,
        }
    }
}

/// The result of a write.
pub(crate) type Answer = Result<Arc<Entry>, WriteError>;

/// Why a write failed. Guarantees: nothing of it was stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriteError {
    #[error("the object or one it depends on has changed")]
    Conflict,
    #[error(
        "the host's disk is full: there is no room for anything new; make some, for example by deleting disks"
    )]
    Full,
    #[error("the disk quota of the database's owner is used up: there is no room for anything new")]
    OverQuota,
    #[error("the database refused the write: {0}")]
    Refused(String),
    #[error("the server is shutting down")]
    Closed,
}

/// The history to keep.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    pub written_since_ms: i64,
    pub revisions: u64,
    pub bytes: u64,
}
