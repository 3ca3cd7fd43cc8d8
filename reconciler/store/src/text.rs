//! The text of an object in memory. Most objects of a kind have the same managers of the same fields: these parts of
//! `metadata.managedFields` are kept once for all texts that contain them.
//!
//! ```text
//! {"apiVersion":…,"metadata":{…,"managedFields":[{…,"fieldsV1":{…},…,"time":"2026-01-02T03:04:05Z"},{…}],…},…}
//!  ── own ──────────────────── ── shared ──────────────────────────── ── own ───────────── ── shared …
//! ```
//!
//! Where a text is divided is only a guess at equal parts: joined, they are the text again, byte by byte, whatever it contains.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// The size of a shared part in bytes: of a smaller one the bookkeeping would take as much as it saves, and a larger one is seldom equal to
/// another.
const SIZES: Range<usize> = 128..16 << 10;
/// The maximum number of shared parts of one text.
const MOST_PARTS: usize = 16;
/// The size in bytes of new parts after which those that are no longer used are looked for, at least.
const SWEEP_AFTER: usize = 1 << 20;

const MANAGERS: &[u8] = b"\"managedFields\":[";
const FIELDS: &[u8] = b"\"fieldsV1\":";
/// The last member of a manager; every write has another value.
const TIME: &[u8] = b"\"time\":\"";
/// The length of that value.
const TIME_LENGTH: usize = "2026-01-02T03:04:05Z".len();
/// Between the value and the next manager.
const NEXT: &[u8] = b"\"},{";

/// The text of an object. Cheap to clone.
#[derive(Clone)]
pub struct Text {
    /// All that is not shared.
    own: Bytes,
    shared: Arc<[Shared]>,
}

struct Shared {
    /// The position in `own` before which this part belongs.
    at: usize,
    part: Arc<[u8]>,
}

impl Text {
    /// Returns the length of the whole text in bytes.
    pub fn size(&self) -> usize {
        self.own.len() + self.shared.iter().map(|shared| shared.part.len()).sum::<usize>()
    }

    /// Returns the whole text; a copy if parts of it are shared.
    pub fn to_bytes(&self) -> Bytes {
        if self.shared.is_empty() { self.own.clone() } else { self.to_vec().into() }
    }

    /// Returns the pieces that are the whole text one after the other.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut done = 0;
        let with_parts = self.shared.iter().flat_map(move |Shared { at, part }| {
            let own = &self.own[done..*at];
            done = *at;
            [own, &part[..]]
        });
        let rest = self.shared.last().map_or(0, |shared| shared.at);
        with_parts.chain([&self.own[rest..]])
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.size());
        self.pieces().for_each(|piece| whole.extend_from_slice(piece));
        whole
    }
}

impl From<Bytes> for Text {
    fn from(own: Bytes) -> Self {
        Self { own, shared: Arc::default() }
    }
}

/// Omits the content, which may be secret.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {} shared parts", self.size(), self.shared.len())
    }
}

/// The parts that texts share. Those that no text uses any more are released after new ones of a quarter of the size of all, or of 1 MiB:
/// no more than that is unused, and the sweeps cost a small part of the writes between them.
#[derive(Debug, Default)]
pub(crate) struct SharedTexts(Mutex<Known>);

#[derive(Default)]
struct Known {
    parts: HashSet<Arc<[u8]>>,
    bytes: usize,
    /// The size of the parts that were in use at the last sweep.
    used: usize,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} parts, {} bytes", self.parts.len(), self.bytes)
    }
}

impl SharedTexts {
    /// Returns the text with the parts that other texts may have kept once; `None` if it has none.
    pub(crate) fn divide(&self, whole: &[u8]) -> Option<Text> {
        let parts = parts(whole);
        if parts.is_empty() {
            return None;
        }
        // Sized exactly: the text is kept for as long as the object.
        let mut own =
            Vec::with_capacity(whole.len() - parts.iter().map(ExactSizeIterator::len).sum::<usize>());
        let mut shared = Vec::with_capacity(parts.len());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        for part in parts {
            own.extend_from_slice(&whole[done..part.start]);
            done = part.end;
            shared.push(Shared { at: own.len(), part: known.share(&whole[part]) });
        }
        own.extend_from_slice(&whole[done..]);
        Some(Text { own: own.into(), shared: shared.into() })
    }
}

impl Known {
    fn share(&mut self, text: &[u8]) -> Arc<[u8]> {
        if let Some(part) = self.parts.get(text) {
            return Arc::clone(part);
        }
        let part: Arc<[u8]> = text.into();
        self.parts.insert(Arc::clone(&part));
        self.bytes += part.len();
        if self.bytes > self.used + (self.used / 4).max(SWEEP_AFTER) {
            self.sweep();
        }
        part
    }

    /// Releases the parts that only this table holds. Another holder cannot appear meanwhile: parts are copied from texts, or here.
    fn sweep(&mut self) {
        self.parts.retain(|part| Arc::strong_count(part) > 1);
        self.parts.shrink_to(2 * self.parts.len());
        self.bytes = self.parts.iter().map(|part| part.len()).sum();
        self.used = self.bytes;
    }
}

/// Returns the parts of a text that are likely those of others too: all of each manager but its time.
fn parts(text: &[u8]) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let Some(mut start) = find(text, 0, MANAGERS) else { return parts };
    while parts.len() < MOST_PARTS
        && let Some(fields) = find(text, start, FIELDS)
        && let Some(time) = find(text, fields, TIME)
    {
        let end = time + TIME.len();
        if SIZES.contains(&(end - start)) {
            parts.push(start..end);
        }
        start = end + TIME_LENGTH;
        if text.get(start..).is_none_or(|rest| !rest.starts_with(NEXT)) {
            break;
        }
    }
    parts
}

/// Every text that is looked for begins with a quote, and its second byte is rarer.
fn find(text: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    text[from..].windows(what.len()).position(|at| at[1] == what[1] && at == what).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::entry::Encoded;

    /// Returns the text of an object with a large set of fields of each of these managers.
    fn managed(name: &str, managers: &[&str], time: &str) -> Vec<u8> {
        let fields: Value =
            (0..20).map(|at| (format!("f:field{at}"), json!({}))).collect::<serde_json::Map<_, _>>().into();
        let manager = |name: &&str| {
            json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields.clone()},
                "manager": name, "operation": "Update", "subresource": "status", "time": time})
        };
        let object = json!({"apiVersion": "v1", "kind": "K", "spec": {"time": "\"time\":\""},
            "metadata": {"name": name, "managedFields": managers.iter().map(manager).collect::<Vec<_>>()}});
        Encoded::of(&object, &[]).text
    }

    fn bytes_of_parts(texts: &SharedTexts) -> (usize, usize) {
        let known = texts.0.lock().unwrap();
        (known.parts.len(), known.bytes)
    }

    #[test]
    fn equal_managers_of_two_objects_are_kept_once() {
        let texts = SharedTexts::default();
        let a = managed("a", &["one", "two"], "2026-01-02T03:04:05Z");
        let b = managed("another", &["one", "two"], "2027-11-12T13:14:15Z");
        let [first, second] = [&a, &b].map(|whole| texts.divide(whole).unwrap());
        assert_eq!((&first.to_bytes()[..], &second.to_bytes()[..]), (&a[..], &b[..]));
        assert_eq!((first.size(), second.size()), (a.len(), b.len()));
        assert_eq!((first.shared.len(), second.shared.len()), (2, 2));
        for (of_first, of_second) in first.shared.iter().zip(second.shared.iter()) {
            assert!(Arc::ptr_eq(&of_first.part, &of_second.part));
        }
        assert_eq!(bytes_of_parts(&texts).0, 2);
        assert!(first.own.len() < a.len() / 4, "{} of {} bytes", first.own.len(), a.len());
    }

    #[test]
    fn a_text_without_large_managers_stays_whole() {
        let texts = SharedTexts::default();
        let small = br#"{"metadata":{"managedFields":[{"fieldsV1":{},"time":"2026-01-02T03:04:05Z"}]}}"#;
        for whole in
            [&small[..], b"{}", b"", b"\"managedFields\":[", b"\"managedFields\":[\"fieldsV1\":\"time\":\""]
        {
            assert!(texts.divide(whole).is_none());
        }
        assert_eq!(bytes_of_parts(&texts), (0, 0));
        let whole = Text::from(Bytes::from_static(small));
        assert_eq!(
            (&whole.to_bytes()[..], &whole.to_vec()[..], whole.size()),
            (&small[..], &small[..], small.len())
        );
    }

    #[test]
    fn parts_that_no_text_uses_are_released() {
        let texts = SharedTexts::default();
        let kept = texts.divide(&managed("kept", &["kept"], "2026-01-02T03:04:05Z")).unwrap();
        let size = kept.shared[0].part.len();
        let mut most = 0;
        for at in 0..3 * SWEEP_AFTER / size {
            let manager = format!("manager {at}");
            drop(texts.divide(&managed("a", &[manager.as_str()], "2026-01-02T03:04:05Z")).unwrap());
            most = most.max(bytes_of_parts(&texts).1);
        }
        assert!(most <= SWEEP_AFTER + 3 * size, "{most} bytes");
        let again = texts.divide(&managed("other", &["kept"], "2026-01-02T03:04:05Z")).unwrap();
        assert!(Arc::ptr_eq(&kept.shared[0].part, &again.shared[0].part), "one in use is kept");
    }

    #[test]
    fn the_content_of_a_text_is_not_shown() {
        let text = Text::from(Bytes::from_static(b"secret"));
        assert_eq!(format!("{text:?}"), "6 bytes, 0 shared parts");
        let texts = SharedTexts::default();
        drop(texts.divide(&managed("a", &["secret"], "2026-01-02T03:04:05Z")));
        assert!(!format!("{texts:?}").contains("secret"));
    }

    proptest! {
        #[test]
        fn a_divided_text_is_the_same_byte_by_byte(
            pieces in prop::collection::vec(0..7_usize, 0..40), filler in 0..300_usize,
        ) {
            let filler = "x".repeat(filler);
            let words =
                [MANAGERS, FIELDS, TIME, b"2026-01-02T03:04:05Z", NEXT, filler.as_bytes(), "é\\\"".as_bytes()];
            let whole: Vec<u8> = pieces.iter().flat_map(|piece| words[*piece].iter().copied()).collect();
            if let Some(text) = SharedTexts::default().divide(&whole) {
                prop_assert_eq!(text.size(), whole.len());
                prop_assert_eq!(&text.to_bytes()[..], &whole[..]);
            }
        }
    }
}
