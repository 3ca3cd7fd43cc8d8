//! ext2, ext3 and ext4, by the crate `ext4-view`. The journal of a file system that was not unmounted is taken into account.

use std::error::Error;
use std::io::Read;

use ext4_view::{Ext4, Ext4Error, Ext4Read, FileType};

use crate::disk::{Window, number};
use crate::error::{FsError, Result};
use crate::volume::{Node, NodeKind, Volume, shown, time};

const WHAT: &str = "ext4 file system";
/// The offset of the superblock, and its length.
const SUPERBLOCK: u64 = 1024;
const SUPERBLOCK_LENGTH: usize = 1024;
/// The limit of groups of blocks: 64 TiB in blocks of 4 KiB have so many. Each takes some 100 bytes of memory.
const MOST_GROUPS: u64 = 512 << 10;
const INODE_SIZES: std::ops::RangeInclusive<u64> = 128..=4096;
/// The longest target of a link, as Linux has it.
const LONGEST_LINK: u64 = 4096;

pub(crate) struct Ext {
    fs: Ext4,
    part: Window,
}

/// The file system as the crate reads it.
struct Reader(Window);

impl Ext4Read for Reader {
    fn read(
        &mut self,
        start_byte: u64,
        dst: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        Ok(self.0.read_at(start_byte, dst)?)
    }
}

impl Ext {
    pub(crate) fn open(part: &Window) -> Result<Self> {
        check(part)?;
        let fs = Ext4::load(Box::new(Reader(part.clone())));
        let fs = fs.map_err(|error| explained(part, error, b"/"))?;
        part.found();
        Ok(Self { fs, part: part.clone() })
    }

    fn failed(&self, error: Ext4Error, path: &[u8]) -> FsError {
        explained(&self.part, error, path)
    }
}

/// Refuses numbers for which the crate would take memory, or that lead beyond the partition.
fn check(part: &Window) -> Result<()> {
    let sector = part.look(SUPERBLOCK, SUPERBLOCK_LENGTH).map_err(|source| FsError::Read { source })?;
    let damaged = |detail: String| FsError::Damaged { what: WHAT, detail };
    let wide = number(&sector, 0x60, 4) & 0x80 != 0;
    let high = if wide { number(&sector, 0x150, 4) } else { 0 };
    let blocks = number(&sector, 4, 4) | high << 32;
    let size = number(&sector, 24, 4);
    let block =
        if size <= 6 { 1024_u64 << size } else { return Err(damaged(format!("a block has 2^{size} KiB"))) };
    let there = part.length();
    if blocks.checked_mul(block).is_none_or(|bytes| bytes > there) {
        return Err(damaged(format!(
            "it has {blocks} blocks of {block} bytes, and its place has {there} bytes"
        )));
    }
    let (group, inode) = (number(&sector, 32, 4), number(&sector, 0x58, 2));
    if group == 0 || blocks / group > MOST_GROUPS {
        return Err(damaged(format!("a group has {group} of {blocks} blocks")));
    }
    if !INODE_SIZES.contains(&inode) || !inode.is_power_of_two() {
        return Err(damaged(format!("an inode has {inode} bytes")));
    }
    Ok(())
}

fn explained(part: &Window, error: Ext4Error, path: &[u8]) -> FsError {
    let path = shown(path);
    match error {
        _ if part.is_endless() => FsError::Endless,
        Ext4Error::NotFound => FsError::NotFound { path },
        Ext4Error::NotADirectory => FsError::NotAFolder { path },
        Ext4Error::IsADirectory | Ext4Error::IsASpecialFile => FsError::NotAFile { path },
        Ext4Error::Encrypted => FsError::Encrypted { path },
        Ext4Error::Incompatible(what) => FsError::Features { detail: what.to_string() },
        Ext4Error::Io(source) => FsError::Read { source: std::io::Error::other(source) },
        other => FsError::Damaged { what: WHAT, detail: format!("{path}: {other}") },
    }
}

impl Volume for Ext {
    fn node(&self, path: &[u8]) -> Result<Node> {
        let found = self.fs.symlink_metadata(path).map_err(|error| self.failed(error, path))?;
        let kind = match found.file_type() {
            FileType::Regular => NodeKind::File,
            FileType::Directory => NodeKind::Folder,
            FileType::Symlink => NodeKind::Link,
            FileType::BlockDevice | FileType::CharacterDevice | FileType::Fifo | FileType::Socket => {
                NodeKind::Special
            }
        };
        let modified = found.modified();
        Ok(Node {
            kind,
            size: found.len(),
            mode: Some(u32::from(found.mode())),
            owner: Some((found.uid(), found.gid())),
            modified: time(modified.seconds(), modified.nanoseconds()),
        })
    }

    fn names(&self, path: &[u8], visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        for entry in self.fs.read_dir(path).map_err(|error| self.failed(error, path))? {
            let entry = entry.map_err(|error| self.failed(error, path))?;
            self.part.found();
            visit(entry.file_name().as_ref())?;
        }
        Ok(())
    }

    fn link(&self, path: &[u8]) -> Result<Vec<u8>> {
        // The crate takes memory for a target of any length.
        let length = self.node(path)?.size;
        if length > LONGEST_LINK {
            let detail = format!("the link {} has a target of {length} bytes", shown(path));
            return Err(FsError::Damaged { what: WHAT, detail });
        }
        let target = self.fs.read_link(path).map_err(|error| self.failed(error, path))?;
        let target: &[u8] = target.as_ref();
        Ok(target.to_vec())
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>> {
        let file = self.fs.open(path).map_err(|error| self.failed(error, path))?;
        Ok(Box::new(file))
    }
}
