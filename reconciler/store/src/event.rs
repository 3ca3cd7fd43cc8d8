//! A committed write, as watchers receive it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::entry::Entry;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// One committed write. For a deletion `entry` is the last state under the deletion's revision.
#[derive(Debug)]
pub struct Event {
    pub change: Change,
    pub entry: Arc<Entry>,
    pub previous: Option<Arc<Entry>>,
    /// The watch frame that most watchers send, created once for all of them.
    pub frame: OnceLock<Bytes>,
}

impl Event {
    pub fn new(change: Change, entry: Arc<Entry>, previous: Option<Arc<Entry>>) -> Arc<Self> {
        Arc::new(Self { change, entry, previous, frame: OnceLock::new() })
    }
}
