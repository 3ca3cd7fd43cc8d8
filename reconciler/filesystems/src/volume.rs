//! What the file systems have in common.

use std::io::Read;
use std::time::{Duration, SystemTime};

use crate::error::Result;

/// The limit of entries of a folder.
pub(crate) const MOST_NAMES: usize = 1 << 20;

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// With content.
    File,
    /// With entries.
    Folder,
    /// A symbolic link.
    Link,
    /// A device, a pipe or a socket.
    Special,
}

/// A file, a folder, or something else with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kind.
    pub kind: NodeKind,
    /// The length of a file in bytes.
    pub size: u64,
    /// The permissions, with set-user-ID and the like; `None`: the file system has none.
    pub mode: Option<u32>,
    /// The user and the group; `None`: the file system has none.
    pub owner: Option<(u32, u32)>,
    /// The time of the last change. FAT has a local time, which is taken for UTC.
    pub modified: Option<SystemTime>,
}

/// A file system. Paths are absolute, and no part of them is a link, `.` or `..`.
pub(crate) trait Volume {
    /// Whether its journal has changes that are not applied.
    fn has_unapplied_changes(&self) -> bool {
        false
    }

    fn node(&self, path: &[u8]) -> Result<Node>;

    /// Calls `visit` with the name of each entry of a folder, as it is stored, until that fails.
    fn names(&self, path: &[u8], visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// Returns the target of a link.
    fn link(&self, path: &[u8]) -> Result<Vec<u8>>;

    /// Opens a file.
    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>>;
}

/// Returns the time so many seconds after the beginning of 1970.
pub(crate) fn time(seconds: i64, nanoseconds: u32) -> Option<SystemTime> {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let second = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    };
    second?.checked_add(Duration::from_nanos(u64::from(nanoseconds)))
}

/// Whether a terminal shows this character as it is: neither a control character nor one that reorders or hides others.
pub fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a name or a path for people: a terminal does not interpret anything in it.
pub fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().map(|c| if is_plain(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}
