//! A committed write, as watchers receive it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::entry::Entry;

const FRAME_START: &[u8] = b"{\"type\":\"";
const FRAME_MIDDLE: &[u8] = b"\",\"object\":";
const FRAME_END: &[u8] = b"}\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

impl Change {
    /// Returns the type of a watch frame.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
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
    /// Returns the event of a write. Its frame and `entry` share the text of the object, which is kept once.
    pub(crate) fn written(change: Change, mut entry: Entry, previous: Option<Arc<Entry>>) -> Arc<Self> {
        let frame = frame(change.name(), &entry.bytes);
        let end = frame.len() - FRAME_END.len();
        entry.bytes = frame.slice(end - entry.bytes.len()..end);
        Arc::new(Self { change, entry: Arc::new(entry), previous, frame: frame.into() })
    }

    /// Returns an event of the past.
    pub(crate) fn read(change: Change, entry: Arc<Entry>, previous: Option<Arc<Entry>>) -> Arc<Self> {
        Arc::new(Self { change, entry, previous, frame: OnceLock::new() })
    }
}

/// Returns a watch frame of this type: a line of JSON that ends with the object's text.
pub fn frame(kind: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(
        FRAME_START.len() + kind.len() + FRAME_MIDDLE.len() + object.len() + FRAME_END.len(),
    );
    line.extend_from_slice(FRAME_START);
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(FRAME_MIDDLE);
    line.extend_from_slice(object);
    line.extend_from_slice(FRAME_END);
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Facts;
    use crate::key::Key;

    #[test]
    fn the_object_of_a_write_is_a_part_of_its_frame() {
        let bytes = Bytes::from_static(b"{\"a\":1}");
        let key = Key::new(&"x/things".into(), "n", "t");
        let entry = Entry {
            key,
            revision: 7,
            written_ms: 0,
            bytes: bytes.clone(),
            facts: Arc::new(Facts::default()),
        };
        let event = Event::written(Change::Modified, entry, None);
        let frame = event.frame.get().unwrap();
        assert_eq!(&frame[..], b"{\"type\":\"MODIFIED\",\"object\":{\"a\":1}}\n");
        assert_eq!(event.entry.bytes, bytes);
        assert!(frame.as_ptr_range().contains(&event.entry.bytes.as_ptr()), "the text is kept once");
    }
}
