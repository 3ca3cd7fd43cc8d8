//! Records of the master file table, and blocks of indexes: the last bytes of each sector are stored elsewhere in it.

use super::attribute::{Attribute, attributes};
use super::{NUMBER, damaged};
use crate::disk::number;
use crate::error::Result;

/// The unit of fixups, whatever the size of a sector is.
const SECTOR: usize = 512;
const IN_USE: u64 = 0x1;
const FOLDER: u64 = 0x2;

/// A record, with its fixups.
pub(super) struct Record {
    pub(super) number: u64,
    bytes: Vec<u8>,
}

impl Record {
    pub(super) fn new(bytes: Vec<u8>, number: u64) -> Result<Self> {
        let bytes = fixed(bytes, b"FILE");
        let bytes =
            bytes.ok_or_else(|| damaged(format!("record {number} is none, or was not written whole")))?;
        Ok(Self { number, bytes })
    }

    pub(super) fn is_in_use(&self) -> bool {
        number(&self.bytes, 22, 2) & IN_USE != 0
    }

    pub(super) fn is_folder(&self) -> bool {
        number(&self.bytes, 22, 2) & FOLDER != 0
    }

    /// Returns the record of the file that this one has more attributes of; zero: it is that of a file itself, or of the table.
    pub(super) fn base(&self) -> u64 {
        number(&self.bytes, 32, 8) & NUMBER
    }

    /// Returns the attributes in this record.
    pub(super) fn attributes(&self) -> Result<Vec<Attribute>> {
        let start = usize::try_from(number(&self.bytes, 20, 2)).unwrap_or(usize::MAX);
        let found = self.bytes.get(start..).and_then(attributes);
        found.ok_or_else(|| damaged(format!("the attributes of record {} are damaged", self.number)))
    }
}

/// Verifies the mark at the end of each sector, and puts the bytes in its place that belong there; `None`: they do not match.
pub(super) fn fixed(mut bytes: Vec<u8>, magic: &[u8]) -> Option<Vec<u8>> {
    if !bytes.starts_with(magic) || !bytes.len().is_multiple_of(SECTOR) {
        return None;
    }
    let start = usize::try_from(number(&bytes, 4, 2)).ok()?;
    let count = bytes.len() / SECTOR;
    if number(&bytes, 6, 2) != count as u64 + 1 {
        return None;
    }
    let marks = bytes.get(start..start + 2 * (count + 1))?.to_vec();
    let (mark, stored) = marks.split_at(2);
    for (sector, stored) in bytes.chunks_exact_mut(SECTOR).zip(stored.chunks_exact(2)) {
        let end = &mut sector[SECTOR - 2..];
        if *end != *mark {
            return None;
        }
        end.copy_from_slice(stored);
    }
    Some(bytes)
}

#[test]
fn the_ends_of_sectors_are_put_back_and_a_torn_record_is_refused() {
    let mut bytes = vec![0; 1024];
    bytes[..8].copy_from_slice(b"FILE\x30\0\x03\0");
    bytes[0x30..0x36].copy_from_slice(&[7, 7, 1, 2, 3, 4]);
    for end in [510, 1022] {
        bytes[end..end + 2].copy_from_slice(&[7, 7]);
    }
    let found = fixed(bytes.clone(), b"FILE").expect("whole");
    assert_eq!((&found[510..512], &found[1022..]), ([1, 2].as_slice(), [3, 4].as_slice()));
    assert!(fixed(bytes.clone(), b"INDX").is_none());
    bytes[1022] = 8;
    assert!(fixed(bytes, b"FILE").is_none());
}
