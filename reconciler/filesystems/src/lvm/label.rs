//! The label of a physical volume, and the texts in its metadata areas.

use super::damaged;
use crate::checksum::crc32;
use crate::disk::{Window, number};
use crate::error::{FsError, Result};

/// The offset of the label, in the second sector, as tools write it.
const LABEL: u64 = 512;
/// The start value of checksums.
const START: u32 = 0xf597_a6cf;
const AREA_MAGIC: &[u8] = b" LVM2 x[5A%r0N*>";
/// The length of the header of a metadata area, after which texts are written in a ring.
const HEADER: usize = 512;
/// The offset of the places of texts in that header.
const PLACES: usize = 40;
/// The limit of metadata areas; LVM makes at most two.
const MOST_AREAS: usize = 4;
/// The longest text that is read.
const LONGEST_TEXT: u64 = 8 << 20;
/// The flag of an area that is not kept up to date.
const IGNORED: u64 = 1;

/// A physical volume, as its label describes it.
pub(super) struct Label {
    /// Without hyphens.
    pub(super) id: String,
    /// The texts of its metadata areas. One without any belongs to a group that others describe.
    pub(super) texts: Vec<Result<Vec<u8>>>,
}

/// Reads the label, and the texts. A damaged one is an error in the list: others can describe the same group.
pub(super) fn read(part: &Window) -> Result<Label> {
    let look = |offset, length| part.look(offset, length).map_err(|source| FsError::Read { source });
    let sector = look(LABEL, HEADER)?;
    let is_label = sector.len() == HEADER
        && sector.starts_with(b"LABELONE")
        && number(&sector, 8, 8) == 1
        && u64::from(crc32(START, &sector[20..])) == number(&sector, 16, 4);
    if !is_label {
        return Err(damaged("a physical volume has no label, or one with a wrong checksum"));
    }
    let start = usize::try_from(number(&sector, 20, 4)).unwrap_or(usize::MAX);
    let header = sector.get(start..).filter(|header| header.len() > 40);
    let header = header.ok_or_else(|| damaged("the header of a physical volume is not in its label"))?;
    let id = String::from_utf8_lossy(&header[..32]).into_owned();
    // Two lists of places, each with an end: those of data, and those of metadata.
    let mut places = header[40..].chunks_exact(16).map(|place| (number(place, 0, 8), number(place, 8, 8)));
    let data = places.by_ref().take_while(|place| *place != (0, 0)).count();
    if data > MOST_AREAS {
        return Err(damaged(format!("a physical volume has {data} areas of data")));
    }
    let mut texts = Vec::new();
    for (start, size) in places.take_while(|place| *place != (0, 0)).take(MOST_AREAS) {
        texts.extend(text(start, size, &look).transpose());
    }
    Ok(Label { id, texts })
}

/// Reads the text of a metadata area; `None`: it has none.
fn text(start: u64, size: u64, look: &impl Fn(u64, usize) -> Result<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    let header = look(start, HEADER)?;
    let is_area = header.len() == HEADER
        && header[4..].starts_with(AREA_MAGIC)
        && u64::from(crc32(START, &header[4..])) == number(&header, 0, 4)
        && number(&header, 24, 8) == start;
    if !is_area {
        return Err(damaged("a metadata area has no header, or one with a wrong checksum"));
    }
    let place = &header[PLACES..PLACES + 24];
    let (offset, length, flags) = (number(place, 0, 8), number(place, 8, 8), number(place, 20, 4));
    if offset == 0 || flags & IGNORED != 0 {
        return Ok(None);
    }
    let is_text =
        length > 0 && length <= LONGEST_TEXT && offset >= HEADER as u64 && offset < size && length < size;
    if !is_text {
        return Err(damaged(format!("the text of a metadata area has {length} bytes at byte {offset}")));
    }
    let whole = usize::try_from(length).unwrap_or_default();
    let first = length.min(size - offset);
    let mut bytes = look(start.saturating_add(offset), usize::try_from(first).unwrap_or_default())?;
    // It continues after the header.
    let rest = usize::try_from(length - first).unwrap_or_default();
    bytes.extend(look(start.saturating_add(HEADER as u64), rest)?);
    if bytes.len() != whole || u64::from(crc32(START, &bytes)) != number(place, 16, 4) {
        return Err(damaged("the checksum of the text of a volume group is wrong"));
    }
    Ok(Some(bytes))
}
