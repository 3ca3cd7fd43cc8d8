//! ext2, ext3 and ext4, read by code of this crate.
//!
//! ```text
//!  Ext          nodes by their inodes
//!    │
//!    ├── folder, file    entries and content, by the map of the blocks of an inode
//!    ├── map             extents, or lists of blocks
//!    ├── inode           by number, in the table of its group
//!    ├── journal         the newer content of blocks, if the file system was not unmounted
//!    ├── superblock      geometry and features
//!    ▼
//!  blocks       a block as it is once the journal is applied
//! ```
//!
//! *Guarantees*: a feature that changes how data is read and is not known refuses the whole file system. The checksums of a file system that
//! has them (`metadata_csum`) are verified, except those of the indexes of folders, which are not used.

mod blocks;
mod file;
mod folder;
mod inode;
mod journal;
mod map;
mod superblock;

use std::io::Read;

use crate::disk::Window;
use crate::error::{FsError, Result};
use crate::lookup::{self, Lookup, Numbered};
use crate::volume::{Node, NodeKind, Volume, shown};
use blocks::Blocks;
use file::Content;
use inode::{Inode, ROOT};
use superblock::Superblock;

const WHAT: &str = "ext4 file system";
/// The longest target of a link, as Linux has it.
const LONGEST_LINK: u64 = 4096;

pub(crate) struct Ext {
    blocks: Blocks,
    superblock: Superblock,
    lookup: Lookup,
}

fn damaged(detail: impl Into<String>) -> FsError {
    FsError::Damaged { what: WHAT, detail: detail.into() }
}

impl Ext {
    pub(crate) fn open(part: &Window) -> Result<Self> {
        let bytes = part.look(superblock::OFFSET, superblock::LENGTH);
        let found = Superblock::new(&bytes.map_err(|source| FsError::Read { source })?, part.length())?;
        let blocks = Blocks::new(part, found.block_size, found.blocks);
        let (blocks, superblock) = if found.needs_recovery() {
            journal::applied(blocks, found, part.length())?
        } else {
            (blocks, found)
        };
        part.found();
        Ok(Self { blocks, superblock, lookup: Lookup::default() })
    }

    fn inode(&self, number: u64) -> Result<Inode> {
        Inode::read(&self.blocks, &self.superblock, number)
    }

    /// Returns the inode of a path.
    fn inode_of(&self, path: &[u8]) -> Result<Inode> {
        self.inode(self.lookup.number(self, path)?)
    }
}

impl Numbered for Ext {
    fn root(&self) -> u64 {
        ROOT
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
        readable(&folder, path)?;
        folder::entries(&self.blocks, &folder, visit)
    }

    fn found(&self) {
        self.blocks.found();
    }
}

/// Refuses an inode whose content is not in blocks, or encrypted.
fn readable(inode: &Inode, path: &[u8]) -> Result<()> {
    if inode.is_encrypted() {
        return Err(FsError::Encrypted { path: shown(path) });
    }
    if inode.is_inline() {
        return Err(damaged(format!("{} has inline data, without the feature", shown(path))));
    }
    Ok(())
}

impl Volume for Ext {
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
        readable(&inode, path)?;
        let length = usize::try_from(inode.size).unwrap_or(usize::MAX);
        if !inode.has_extents() && length < inode.map.len() {
            return Ok(inode.map[..length].to_vec());
        }
        if inode.size > LONGEST_LINK {
            return Err(damaged(format!("the link {} has a target of {length} bytes", shown(path))));
        }
        let mut target = Vec::new();
        let mut content = Content::open(&self.blocks, &inode)?;
        content.read_to_end(&mut target).map_err(|source| FsError::Read { source })?;
        Ok(target)
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>> {
        let inode = self.inode_of(path)?;
        if inode.node.kind != NodeKind::File {
            return Err(FsError::NotAFile { path: shown(path) });
        }
        readable(&inode, path)?;
        Ok(Box::new(Content::open(&self.blocks, &inode)?))
    }
}
