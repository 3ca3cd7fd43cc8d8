//! ext2, ext3 and ext4, read by code of this crate.
//!
//! ```text
//!  Ext          paths: one folder after the other from the root
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
mod checksum;
mod file;
mod folder;
mod inode;
mod journal;
mod map;
mod superblock;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::rc::Rc;

use crate::disk::Window;
use crate::error::{FsError, Result};
use crate::volume::{MOST_NAMES, Node, NodeKind, Volume, shown};
use blocks::Blocks;
use file::Content;
use inode::{Inode, ROOT};
use superblock::Superblock;

/// The longest target of a link, as Linux has it.
const LONGEST_LINK: u64 = 4096;

pub(crate) struct Ext {
    blocks: Blocks,
    superblock: Superblock,
    /// The folder that was read last, whose entries are usually looked up one after the other.
    last: RefCell<Option<Listing>>,
}

/// The inodes of the entries of a folder.
struct Listing {
    path: Vec<u8>,
    inodes: Rc<BTreeMap<Vec<u8>, u64>>,
}

fn damaged(detail: impl Into<String>) -> FsError {
    FsError::Damaged { what: "ext4 file system", detail: detail.into() }
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
        Ok(Self { blocks, superblock, last: RefCell::default() })
    }

    fn inode(&self, number: u64) -> Result<Inode> {
        Inode::read(&self.blocks, &self.superblock, number)
    }

    /// Returns the inode of a path.
    fn inode_of(&self, path: &[u8]) -> Result<Inode> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (folder, name) = match slash {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&path[..0], path),
        };
        if name.is_empty() {
            return self.inode(ROOT);
        }
        let found = self.inodes_in(folder)?.get(name).copied();
        self.inode(found.ok_or_else(|| FsError::NotFound { path: shown(path) })?)
    }

    /// Returns the inodes of the entries of a folder. The path has no slash at its end.
    fn inodes_in(&self, path: &[u8]) -> Result<Rc<BTreeMap<Vec<u8>, u64>>> {
        if let Some(last) = self.last.borrow().as_ref()
            && last.path == path
        {
            return Ok(last.inodes.clone());
        }
        let mut at = self.inode(ROOT)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let mut found = None;
            self.entries(&at, path, &mut |entry: &[u8], inode| {
                if entry == name {
                    found = Some(inode);
                }
                Ok(())
            })?;
            at = self.inode(found.ok_or_else(|| FsError::NotFound { path: shown(path) })?)?;
        }
        let mut inodes = BTreeMap::new();
        self.entries(&at, path, &mut |entry: &[u8], inode| {
            inodes.insert(entry.to_vec(), inode);
            Ok(())
        })?;
        let inodes = Rc::new(inodes);
        *self.last.borrow_mut() = Some(Listing { path: path.to_vec(), inodes: inodes.clone() });
        Ok(inodes)
    }

    /// Calls `visit` with the name and the inode of each entry of a folder.
    fn entries(
        &self,
        folder: &Inode,
        path: &[u8],
        visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        if folder.node.kind != NodeKind::Folder {
            return Err(FsError::NotAFolder { path: shown(path) });
        }
        readable(folder, path)?;
        let mut count = 0;
        folder::entries(&self.blocks, folder, &mut |name: &[u8], inode| {
            count += 1;
            if count > MOST_NAMES {
                return Err(damaged(format!("{} has more than {MOST_NAMES} entries", shown(path))));
            }
            self.blocks.found();
            visit(name, inode)
        })
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
        let folder = self.inode_of(path)?;
        self.entries(&folder, path, &mut |name: &[u8], _| visit(name))
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
