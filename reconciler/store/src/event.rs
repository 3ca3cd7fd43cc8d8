//! A committed write, as watchers receive it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::entry::Entry;
use crate::text::SharedTexts;

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
    /// The state before the write, if there was one. In a new event it is `entry` if both have the same facts: nothing can be selected by
    /// the difference, and the text before, which no watcher is sent then, is not kept for as long as the event.
    pub previous: Option<Arc<Entry>>,
    /// The size of the state before the write in bytes; 0 in an event of the past.
    pub(crate) superseded: usize,
    /// The watch frame that most watchers send, created once for all of them.
    pub frame: OnceLock<Bytes>,
}

impl Event {
    /// Returns the event of a write. `entry` shares equal parts of its text with other objects. Without such parts it shares the text with
    /// the frame, and it is kept once.
    pub(crate) fn written(
        change: Change,
        mut entry: Entry,
        previous: Option<Arc<Entry>>,
        texts: &SharedTexts,
    ) -> Arc<Self> {
        let text = entry.text.to_bytes();
        let line = OnceLock::new();
        entry.text = texts.divide(&text).unwrap_or_else(|| {
            let frame = line.get_or_init(|| frame(change.name(), &text));
            let end = frame.len() - FRAME_END.len();
            frame.slice(end - text.len()..end).into()
        });
        let entry = Arc::new(entry);
        let superseded = previous.as_ref().map_or(0, |previous| previous.text.size());
        let is_alike = |previous: &Arc<Entry>| Arc::ptr_eq(&previous.facts, &entry.facts);
        let previous =
            previous.map(|previous| if is_alike(&previous) { Arc::clone(&entry) } else { previous });
        Arc::new(Self { change, entry, previous, superseded, frame: line })
    }

    /// Returns an event of the past.
    pub(crate) fn read(change: Change, entry: Arc<Entry>, previous: Option<Arc<Entry>>) -> Arc<Self> {
        Arc::new(Self { change, entry, previous, superseded: 0, frame: OnceLock::new() })
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
            text: bytes.clone().into(),
            facts: Arc::new(Facts::default()),
        };
        let event = Event::written(Change::Modified, entry, None, &SharedTexts::default());
        let frame = event.frame.get().unwrap();
        assert_eq!(&frame[..], b"{\"type\":\"MODIFIED\",\"object\":{\"a\":1}}\n");
        let text = event.entry.text.to_bytes();
        assert_eq!(text, bytes);
        assert!(frame.as_ptr_range().contains(&text.as_ptr()), "the text is kept once");
    }

    #[test]
    fn an_event_keeps_the_text_before_only_if_a_selector_may_tell_the_states_apart() {
        let key = Key::new(&"x/things".into(), "n", "t");
        let state = |revision, text: &'static [u8], facts: &Arc<Facts>| Entry {
            key: key.clone(),
            revision,
            written_ms: 0,
            text: Bytes::from_static(text).into(),
            facts: Arc::clone(facts),
        };
        let (facts, texts) = (Arc::new(Facts::default()), SharedTexts::default());
        let before = Arc::new(state(7, b"{\"a\":1}", &facts));
        let event =
            Event::written(Change::Modified, state(8, b"{}", &facts), Some(Arc::clone(&before)), &texts);
        assert_eq!((event.superseded, Arc::strong_count(&before)), (7, 1));
        let previous = event.previous.as_ref().unwrap();
        assert!(previous.key == before.key && Arc::ptr_eq(&previous.facts, &before.facts));
        let other = Arc::new(Facts { deleting: true, ..Facts::default() });
        let event =
            Event::written(Change::Modified, state(9, b"{}", &other), Some(Arc::clone(&before)), &texts);
        assert!(Arc::ptr_eq(event.previous.as_ref().unwrap(), &before));
    }
}
