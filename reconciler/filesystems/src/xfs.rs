//! XFS with the formats 4 and 5, read by code of this crate.
//!
//! ```text
//!  Xfs          nodes by their inodes, links
//!    │
//!    ├── folder         entries: in the inode, in one block, in many
//!    ├── extents        where a file is: in the inode, or in a tree
//!    ├── inode          by number, which is a place
//!    ├── log            whether it has changes
//!    ▼
//!  superblock   geometry and features; blocks
//! ```
//!
//! *Guarantees*: a feature that changes how data is read and is not known refuses the whole file system. Checksums, owners and identities of
//! blocks are verified, which format 5 has. Indexes of folders are not used.
//!
//! The log is not applied. It is empty after a freeze and an unmount; otherwise callers can see that it is not.

mod extents;
mod folder;
mod inode;
mod log;
mod superblock;

use std::io::Read;

use crate::checksum::{START, crc32c_without};
use crate::content::{Content, Piece};
use crate::disk::{Window, number};
use crate::error::{FsError, Result};
use crate::lookup::{self, Lookup, Numbered};
use crate::volume::{Node, NodeKind, Volume, shown};
use extents::Extent;
use inode::{Format, Inode};
use superblock::{Superblock, field};

const WHAT: &str = "XFS file system";
/// The longest target of a link.
const LONGEST_LINK: u64 = 1024;
/// The limit of blocks that follow each other of a target.
const MOST_LINK_BLOCKS: u64 = 8;
/// The header of such blocks in format 5.
const LINK_HEADER: usize = 56;

pub(crate) struct Xfs {
    part: Window,
    superblock: Superblock,
    has_changes: bool,
    lookup: Lookup,
}

fn damaged(detail: impl Into<String>) -> FsError {
    FsError::Damaged { what: WHAT, detail: detail.into() }
}

fn failed(part: &Window, source: std::io::Error) -> FsError {
    if part.is_endless() { FsError::Endless } else { FsError::Read { source } }
}

/// Whether the checksum at this offset is right. It is the only number that is little-endian.
fn has_checksum(bytes: &[u8], offset: usize) -> bool {
    let sum = !crc32c_without(START, bytes, offset..offset + 4);
    u64::from(sum) == number(bytes, offset, 4)
}

impl Xfs {
    pub(crate) fn open(part: &Window) -> Result<Self> {
        let bytes = part.look(0, superblock::MOST).map_err(|source| FsError::Read { source })?;
        let superblock = Superblock::new(&bytes, part.length())?;
        let has_changes = log::unapplied(part, &superblock)?;
        part.found();
        Ok(Self { part: part.clone(), superblock, has_changes, lookup: Lookup::default() })
    }

    fn inode(&self, number: u64) -> Result<Inode> {
        Inode::read(&self.part, &self.superblock, number)
    }

    fn inode_of(&self, path: &[u8]) -> Result<Inode> {
        self.inode(self.lookup.number(self, path)?)
    }

    fn extents(&self, inode: &Inode) -> Result<Vec<Extent>> {
        extents::of(&self.part, &self.superblock, inode)
    }

    /// Returns the target of a link that is in blocks.
    fn remote_target(&self, inode: &Inode) -> Result<Vec<u8>> {
        let wrong = || damaged(format!("the target of link {} is damaged", inode.number));
        let size = usize::try_from(inode.node.size).unwrap_or_default();
        let mut target = Vec::new();
        for extent in self.extents(inode)? {
            let left = size - target.len();
            if left == 0 || extent.count > MOST_LINK_BLOCKS {
                break;
            }
            let mut bytes: Vec<u8> = Vec::new();
            for block in extent.block..extent.block + extent.count {
                bytes.extend(self.superblock.block(&self.part, block)?);
            }
            let part = match self.superblock.is_checked() {
                false => bytes.as_slice(),
                true => {
                    let length = usize::try_from(field(&bytes, 8, 4)).unwrap_or(usize::MAX);
                    let is_part = bytes.starts_with(b"XSLM")
                        && has_checksum(&bytes, 12)
                        && field(&bytes, 4, 4) == target.len() as u64
                        && field(&bytes, 32, 8) == inode.number;
                    let part = bytes.get(LINK_HEADER..).and_then(|part| part.get(..length));
                    part.filter(|_| is_part).ok_or_else(wrong)?
                }
            };
            target.extend_from_slice(&part[..part.len().min(left)]);
        }
        if target.len() == size { Ok(target) } else { Err(wrong()) }
    }
}

impl Numbered for Xfs {
    fn root(&self) -> u64 {
        self.superblock.root
    }

    fn entries(
        &self,
        folder: u64,
        path: &[u8],
        visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let folder = self.inode(folder)?;
        if folder.node.kind != NodeKind::Folder {
            return Err(FsError::NotAFolder { path: shown(path) });
        }
        folder::entries(&self.part, &self.superblock, &folder, visit)
    }

    fn found(&self) {
        self.part.found();
    }
}

impl Volume for Xfs {
    fn has_unapplied_changes(&self) -> bool {
        self.has_changes
    }

    fn node(&self, path: &[u8]) -> Result<Node> {
        Ok(self.inode_of(path)?.node)
    }

    fn names(&self, path: &[u8], visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let folder = self.lookup.number(self, path)?;
        lookup::entries(self, folder, path, &mut |name: &[u8], _| visit(name))
    }

    fn link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode_of(path)?;
        if inode.node.kind != NodeKind::Link {
            return Err(FsError::NotALink { path: shown(path) });
        }
        let size = inode.node.size;
        if size == 0 || size > LONGEST_LINK {
            return Err(damaged(format!("the link {} has a target of {size} bytes", shown(path))));
        }
        if inode.format != Format::Local {
            return self.remote_target(&inode);
        }
        let target = inode.fork.get(..usize::try_from(size).unwrap_or(usize::MAX));
        let target = target.ok_or_else(|| damaged(format!("the target of {} is damaged", shown(path))))?;
        Ok(target.to_vec())
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>> {
        let inode = self.inode_of(path)?;
        if inode.node.kind != NodeKind::File {
            return Err(FsError::NotAFile { path: shown(path) });
        }
        if inode.is_realtime {
            let detail = "its content is on a realtime device, which another disk has";
            return Err(FsError::Content { path: shown(path), detail });
        }
        let size = self.superblock.block_size;
        let written = self.extents(&inode)?.into_iter().filter(|extent| !extent.is_unwritten);
        let piece = |extent: Extent| Piece {
            at: extent.first * size,
            length: extent.count * size,
            place: self.superblock.place(extent.block),
        };
        let (pieces, size) = (written.map(piece).collect(), inode.node.size);
        Ok(Box::new(Content::new(&self.part, pieces, size, size)))
    }
}
