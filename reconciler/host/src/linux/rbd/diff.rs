//! The output of `rbd diff`, which is read as it arrives: of a disk of many TiB it has gigabytes.
//!
//! ```text
//!  [{"offset":0,"length":4194304,"exists":"true"},{"offset":8388608,"length":4194304,"exists":"false"},…]
//! ```

use std::ops::Range;

use serde::Deserialize;

type Result<T> = std::result::Result<T, String>;

/// The maximum length of an element, in bytes.
const MOST_ELEMENT: usize = 1 << 10;
/// The size of the objects of an image.
const OBJECT: u64 = 4 << 20;
/// How many separate ranges are held at most: 16 MiB.
const MOST_RANGES: usize = 1 << 20;

/// A part of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) range: Range<u64>,
    /// False: it reads as zeros.
    pub(super) has_data: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    First,
    Element,
    AfterElement,
    AfterComma,
    End,
}

/// Finds the parts that have data, or that differ from an earlier snapshot. It holds one element at most.
#[derive(Debug)]
pub(super) struct DiffReader {
    place: Place,
    /// The beginning of an element that has not arrived whole.
    element: Vec<u8>,
    /// Why the rest is not read.
    problem: Option<String>,
}

impl DiffReader {
    pub(super) fn new() -> Self {
        Self { place: Place::Start, element: Vec::new(), problem: None }
    }

    /// Reads more of the output. An error is that of [`Self::finish`].
    pub(super) fn read(&mut self, bytes: &[u8], each: &mut impl FnMut(Part)) {
        if self.problem.is_none() {
            self.problem = self.try_read(bytes, each).err();
        }
    }

    /// *Errors*: the output is not understood, or has no end.
    pub(super) fn finish(self) -> Result<()> {
        match (self.problem, self.place) {
            (Some(problem), _) => Err(problem),
            (None, Place::End) => Ok(()),
            (None, _) => Err(unknown("it ends too early")),
        }
    }

    fn try_read(&mut self, mut bytes: &[u8], each: &mut impl FnMut(Part)) -> Result<()> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.place == Place::Element {
                let end = bytes.iter().position(|byte| *byte == b'}');
                let (more, others) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
                if self.element.len() + more.len() > MOST_ELEMENT {
                    return Err(unknown("an element is too long"));
                }
                self.element.extend_from_slice(more);
                bytes = others;
                if end.is_some() {
                    each(part(&self.element)?);
                    self.element.clear();
                    self.place = Place::AfterElement;
                }
                continue;
            }
            self.place = match (self.place, first) {
                (place, byte) if byte.is_ascii_whitespace() => place,
                (Place::Start, b'[') => Place::First,
                (Place::First | Place::AfterComma, b'{') => {
                    self.element.push(b'{');
                    Place::Element
                }
                (Place::First | Place::AfterElement, b']') => Place::End,
                (Place::AfterElement, b',') => Place::AfterComma,
                _ => return Err(unknown("it is no array of objects")),
            };
            bytes = rest;
        }
        Ok(())
    }
}

fn part(element: &[u8]) -> Result<Part> {
    #[derive(Deserialize)]
    struct Extent {
        offset: u64,
        length: u64,
        exists: serde_json::Value,
    }
    let of: Extent = serde_json::from_slice(element).map_err(|error| unknown(&error.to_string()))?;
    let end = of.offset.checked_add(of.length).ok_or_else(|| unknown("a part has no end"))?;
    Ok(Part { range: of.offset..end, has_data: of.exists == "true" || of.exists == true })
}

fn unknown(detail: &str) -> String {
    format!("a reply that is not understood: {detail}")
}

/// Ranges of a disk, of which a limited number is held: beyond it, small gaps between them are part of them.
#[derive(Debug)]
pub(super) struct Ranges {
    held: Vec<Range<u64>>,
    most: usize,
}

impl Ranges {
    pub(super) fn new() -> Self {
        Self { held: Vec::new(), most: MOST_RANGES }
    }

    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // They come in order, and most of them lie side by side.
        match self.held.last_mut().filter(|last| (last.start..=last.end).contains(&range.start)) {
            Some(last) => last.end = last.end.max(range.end),
            None => self.held.push(range),
        }
        if self.held.len() > self.most {
            self.join(0);
            let mut gap = OBJECT;
            while self.held.len() > self.most / 2 {
                self.join(gap);
                gap = gap.saturating_mul(2);
            }
        }
    }

    /// Returns them in order, without overlaps.
    pub(super) fn finish(mut self) -> Vec<Range<u64>> {
        self.join(0);
        self.held
    }

    /// Sorts them, and joins those between which the gap is not larger.
    fn join(&mut self, gap: u64) {
        self.held.sort_by_key(|range| range.start);
        self.held.dedup_by(|next, last| {
            let is_near = next.start <= last.end.saturating_add(gap);
            if is_near {
                last.end = last.end.max(next.end);
            }
            is_near
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Reads an output that arrives in pieces of this size.
    fn parts(output: &[u8], piece: usize) -> Result<Vec<Part>> {
        let (mut reader, mut found) = (DiffReader::new(), Vec::new());
        for bytes in output.chunks(piece) {
            reader.read(bytes, &mut |part| found.push(part));
        }
        reader.finish().map(|()| found)
    }

    fn part(from: u64, has_data: bool) -> Part {
        Part { range: from * MIB..(from + 4) * MIB, has_data }
    }

    #[test]
    fn the_parts_of_an_image_are_read_however_the_output_is_divided() {
        let diff = br#"[{"offset":0,"length":4194304,"exists":"true"}, {"offset":8388608,"length":4194304,"exists":"false"}]
"#;
        for piece in [1, 2, 7, 46, 1000] {
            assert_eq!(parts(diff, piece), Ok(vec![part(0, true), part(8, false)]), "{piece}");
        }
        assert_eq!(parts(b"[]", 1), Ok(Vec::new()));
        assert_eq!(parts(br#"[{"offset":0,"length":4194304,"exists":true}]"#, 9), Ok(vec![part(0, true)]));
    }

    #[test]
    fn an_output_that_is_cut_off_or_no_list_of_parts_is_an_error() {
        let endless = r#"[{"offset":18446744073709551615,"length":1,"exists":"true"}]"#;
        let long = format!(r#"[{{"offset":0,"length":1,"exists":"{}"}}]"#, "x".repeat(MOST_ELEMENT));
        let cut = r#"[{"offset":0,"length":1,"exists":"true"}"#;
        for other in
            ["", "[", "{}", "[1]", "[{}]", "[,]", "[]]", "no", &cut[..20], cut, endless, long.as_str()]
        {
            for piece in [1, 4096] {
                assert!(parts(other.as_bytes(), piece).is_err(), "{other:?}");
            }
        }
        assert!(parts(format!("{cut},]").as_bytes(), 5).is_err());
    }

    #[test]
    fn of_a_huge_output_little_is_held_and_each_changed_part_is_found() {
        let count: u64 = 100_000;
        let (mut reader, mut ranges) = (DiffReader::new(), Ranges { held: Vec::new(), most: 1000 });
        let (mut read, mut most_held) = (0_u64, 0);
        for number in 0..count {
            let mut each = |part: Part| {
                read += 1;
                ranges.add(part.range);
            };
            let opening = if number == 0 { "[" } else { "," };
            let offset = number * 12 * MIB;
            let element = format!(r#"{opening}{{"offset":{offset},"length":4194304,"exists":"true"}}"#);
            reader.read(element.as_bytes(), &mut each);
            most_held = most_held.max(ranges.held.len());
            assert!(reader.element.capacity() <= 2 * MOST_ELEMENT);
        }
        reader.read(b"]", &mut |_| {});
        reader.finish().expect("understood");
        assert_eq!(read, count);
        let found = ranges.finish();
        assert!(most_held <= 1000 && found.len() <= 1000, "{most_held} {}", found.len());
        assert!(found.is_sorted_by(|former, next| former.end < next.start));
        for number in 0..count {
            let changed = number * 12 * MIB..number * 12 * MIB + 4 * MIB;
            let at = found.partition_point(|range| range.end <= changed.start);
            assert!(found[at].start <= changed.start && changed.end <= found[at].end, "{changed:?}");
        }
    }

    #[test]
    fn ranges_are_exact_below_the_limit_in_any_order() {
        let mut ranges = Ranges::new();
        for range in [8..12, 0..4, 4..8, 20..20, 30..31, 1..2] {
            ranges.add(range);
        }
        assert_eq!(ranges.finish(), [0..12, 30..31]);
    }
}
