//! Inodes: the nodes of a file system by their numbers, which are places.

use std::time::SystemTime;

use super::superblock::{Superblock, field};
use super::{damaged, failed, has_checksum};
use crate::disk::Window;
use crate::error::Result;
use crate::volume::{Node, NodeKind, time};

/// The lengths of an inode without its forks: before format 5, and in it.
const SMALL: usize = 100;
const LARGE: usize = 176;
const CHECKSUM: usize = 100;
const REALTIME: u64 = 0x1;
/// Flags of format 5: times of 64 bits, and counts of extents of 64 bits.
const BIG_TIMES: u64 = 0x8;
const BIG_COUNTS: u64 = 0x10;
const NANOSECONDS: u64 = 1_000_000_000;

/// Where the content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// In the inode.
    Local,
    /// In extents that the inode names.
    Extents,
    /// In extents of a tree.
    Tree,
    /// It has none.
    Nothing,
}

/// The content of an inode.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) number: u64,
    pub(super) node: Node,
    pub(super) format: Format,
    /// The number of extents.
    pub(super) extents: u64,
    pub(super) is_realtime: bool,
    /// The content, its extents, or the root of their tree.
    pub(super) fork: Vec<u8>,
}

impl Inode {
    /// Reads an inode.
    pub(super) fn read(part: &Window, superblock: &Superblock, number: u64) -> Result<Self> {
        let place = superblock.inode_place(number);
        let place = place.ok_or_else(|| damaged(format!("there is no inode {number}")))?;
        let mut bytes = vec![0; usize::try_from(superblock.inode_size).unwrap_or_default()];
        part.read_at(place, &mut bytes).map_err(|source| failed(part, source))?;
        Self::new(&bytes, superblock, number)
    }

    fn new(bytes: &[u8], superblock: &Superblock, number: u64) -> Result<Self> {
        let at = |offset, length| field(bytes, offset, length);
        let wrong = |detail: &str| damaged(format!("inode {number} {detail}"));
        let version = at(4, 1);
        let is_checked = superblock.is_checked();
        let is_version = if is_checked { version == 3 } else { matches!(version, 1 | 2) };
        if !bytes.starts_with(b"IN") || !is_version {
            return Err(wrong("is none"));
        }
        if is_checked {
            let is_right =
                has_checksum(bytes, CHECKSUM) && at(152, 8) == number && bytes[160..176] == superblock.id;
            if !is_right {
                return Err(wrong("has a wrong checksum, or is another one"));
            }
        }
        let kind = match at(2, 2) >> 12 {
            0x8 => NodeKind::File,
            0x4 => NodeKind::Folder,
            0xa => NodeKind::Link,
            0x1 | 0x2 | 0x6 | 0xc => NodeKind::Special,
            _ => return Err(wrong("is not in use, or of no kind")),
        };
        let format = match at(5, 1) {
            1 => Format::Local,
            2 => Format::Extents,
            3 => Format::Tree,
            _ if kind == NodeKind::Special => Format::Nothing,
            _ => return Err(wrong("has content in a form that is not known")),
        };
        let flags = if is_checked { at(120, 8) } else { 0 };
        let start = if is_checked { LARGE } else { SMALL };
        // Attributes follow, from this offset on in units of 8 bytes.
        let length = usize::try_from(at(82, 1) * 8).unwrap_or_default();
        let end = if length == 0 { bytes.len() } else { start + length };
        let fork = bytes.get(start..end).ok_or_else(|| wrong("has attributes beyond its end"))?.to_vec();
        let id = |offset| u32::try_from(at(offset, 4)).unwrap_or_default();
        let node = Node {
            kind,
            size: at(56, 8),
            mode: Some(u32::try_from(at(2, 2) & 0o7777).unwrap_or_default()),
            owner: Some((id(8), id(12))),
            modified: modified(at(40, 8), flags & BIG_TIMES != 0),
        };
        if i64::try_from(node.size).is_err() {
            return Err(wrong("has a size that none has"));
        }
        let extents = if flags & BIG_COUNTS == 0 { at(76, 4) } else { at(24, 8) };
        Ok(Self { number, node, format, extents, is_realtime: at(90, 2) & REALTIME != 0, fork })
    }
}

/// Returns a time: seconds and nanoseconds of 32 bits each, or nanoseconds since 1901.
fn modified(stored: u64, is_big: bool) -> Option<SystemTime> {
    if is_big {
        let seconds = i64::try_from(stored / NANOSECONDS).ok()? + i64::from(i32::MIN);
        return time(seconds, u32::try_from(stored % NANOSECONDS).ok()?);
    }
    let [a, b, c, d, e, f, g, h] = stored.to_be_bytes();
    let nanoseconds = u32::from_be_bytes([e, f, g, h]);
    let seconds = i64::from(i32::from_be_bytes([a, b, c, d]));
    time(seconds, if u64::from(nanoseconds) < NANOSECONDS { nanoseconds } else { 0 })
}

#[test]
fn times_have_two_forms() {
    use std::time::Duration;

    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    assert_eq!(modified(1_000_000_000 << 32, false), at(1_000_000_000));
    assert_eq!(modified((1_000_000_000 + (1 << 31)) * NANOSECONDS, true), at(1_000_000_000));
    assert_eq!(modified(0xffff_ffff << 32, false), Some(SystemTime::UNIX_EPOCH - Duration::from_secs(1)));
}
