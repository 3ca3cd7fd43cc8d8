//! A file system with its paths. Links are followed here, within the file system.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::rc::Rc;

use crate::detect::{Content, FileSystem, Layout, Place, layout};
use crate::disk::{Disk, Window};
use crate::error::{FsError, Result};
use crate::ext::Ext;
use crate::fat::Fat;
use crate::ntfs::Ntfs;
use crate::volume::{MOST_NAMES, Node, NodeKind, Volume, shown};
use crate::xfs::Xfs;

/// The limit of links on a path, as Linux has it.
const MOST_LINKS: usize = 40;
/// The longest path, with the targets of its links.
const LONGEST_PATH: usize = 64 << 10;
const LONGEST_NAME: usize = 255 * 4;

/// A file system that is open.
pub struct Tree {
    volume: Box<dyn Volume>,
    content: Content,
    part: Window,
    there: String,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("content", &self.content).finish_non_exhaustive()
    }
}

/// Which of the file systems of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The largest one that can be read.
    #[default]
    Largest,
    /// The one in the partition with this number, as Linux counts them.
    Partition(u32),
    /// The one in this logical volume: the volume group, a slash, and the logical volume.
    Volume(String),
}

/// Opens a file system of a disk.
///
/// # Errors
/// There is no such partition or logical volume; its content cannot be read, or is damaged.
pub fn open(disk: &Rc<dyn Disk>, choice: &Choice) -> Result<Tree, FsError> {
    let Layout { places, damage } = layout(disk)?;
    let there = list_of(&places);
    let place = match (chosen(&places, choice, &there), damage) {
        (Ok(place), _) => place,
        // It may be in what is damaged.
        (Err(FsError::NothingToRead { .. } | FsError::NoVolume { .. }), Some(damage)) => return Err(damage),
        (Err(error), _) => return Err(error),
    };
    let Place { content, part } = place;
    let volume: Box<dyn Volume> = match content.file_system {
        FileSystem::Ext => Box::new(Ext::open(part)?),
        FileSystem::Fat => Box::new(Fat::open(part)?),
        FileSystem::Xfs => Box::new(Xfs::open(part)?),
        FileSystem::Ntfs => Box::new(Ntfs::open(part)?),
        FileSystem::PhysicalVolume => {
            return Err(FsError::PhysicalVolume { place: content.place(), there });
        }
        other @ (FileSystem::Other(_) | FileSystem::Unknown) => {
            let (place, content) = (content.place(), other.name().to_owned());
            return Err(FsError::Unsupported { place, content });
        }
    };
    Ok(Tree { volume, content: content.clone(), part: part.clone(), there })
}

/// Names all contents, for people.
fn list_of(places: &[Place]) -> String {
    let named = |Place { content, .. }: &Place| {
        let name = content.file_system.name();
        let is_disk = content.partition.is_none() && content.volume.is_none();
        if is_disk { name.to_owned() } else { format!("{} ({name})", content.place()) }
    };
    match places {
        [] => "no partition".to_owned(),
        places => places.iter().map(named).collect::<Vec<_>>().join(", "),
    }
}

fn chosen<'a>(places: &'a [Place], choice: &Choice, there: &str) -> Result<&'a Place> {
    let there = || there.to_owned();
    match choice {
        Choice::Partition(number) => {
            let found = places.iter().find(|place| place.content.partition == Some(*number));
            found.ok_or_else(|| FsError::NoPartition { number: *number, there: there() })
        }
        Choice::Volume(name) => {
            let found = places.iter().find(|place| place.content.volume.as_ref() == Some(name));
            found.ok_or_else(|| FsError::NoVolume { name: shown(name.as_bytes()), there: there() })
        }
        Choice::Largest => {
            let readable = places.iter().filter(|place| place.content.file_system.is_read());
            let largest = readable.max_by_key(|place| place.content.length);
            largest.ok_or_else(|| FsError::NothingToRead { there: there() })
        }
    }
}

impl Tree {
    /// Begins an operation, whose reads are counted anew.
    fn begin(&self) -> &dyn Volume {
        self.part.found();
        self.volume.as_ref()
    }

    /// Returns the partition or the logical volume, and the file system in it.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// Whether its journal has changes that are not applied: files can be missing, older, or have other content.
    pub fn has_unapplied_changes(&self) -> bool {
        self.volume.has_unapplied_changes()
    }

    /// Returns the partitions and the logical volumes of the disk, for people.
    pub fn there(&self) -> &str {
        &self.there
    }

    /// Returns the path without links, `.` and `..`. A link at its end stays if it is not followed.
    ///
    /// # Errors
    /// There is no such path; it leads through too many links.
    pub fn resolve(&self, path: &[u8], follows_last: bool) -> Result<Vec<u8>, FsError> {
        let too_many =
            || FsError::TooManyLinks { path: shown(path), most: MOST_LINKS, longest: LONGEST_PATH };
        let mut left: VecDeque<Vec<u8>> = names_of(path);
        let (mut found, mut links): (Vec<u8>, usize) = (Vec::new(), 0);
        while let Some(name) = left.pop_front() {
            if name == b".." {
                let parent = found.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                found.truncate(parent);
                continue;
            }
            let above = found.len();
            found.push(b'/');
            found.extend_from_slice(&name);
            if found.len() > LONGEST_PATH {
                return Err(too_many());
            }
            let is_last = left.is_empty();
            if self.node(&found)?.kind != NodeKind::Link || (is_last && !follows_last) {
                continue;
            }
            links += 1;
            let target = self.link(&found)?;
            if links > MOST_LINKS {
                return Err(too_many());
            }
            found.truncate(if target.starts_with(b"/") { 0 } else { above });
            for name in names_of(&target).into_iter().rev() {
                left.push_front(name);
            }
        }
        Ok(if found.is_empty() { b"/".to_vec() } else { found })
    }

    /// Returns the node at a path that [`Tree::resolve`] has returned, or below such a folder.
    ///
    /// # Errors
    /// There is none; the tables are damaged.
    pub fn node(&self, path: &[u8]) -> Result<Node, FsError> {
        self.begin().node(path)
    }

    /// Returns the target of a link, which can be anything.
    ///
    /// # Errors
    /// It is no link; the tables are damaged.
    pub fn link(&self, path: &[u8]) -> Result<Vec<u8>, FsError> {
        self.begin().link(path)
    }

    /// Returns the names in a folder, in order.
    ///
    /// # Errors
    /// It is no folder; a name is not one; there are too many.
    pub fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, FsError> {
        let damaged = |detail: String| FsError::Damaged { what: "folder", detail };
        let (mut names, mut count) = (Vec::new(), 0);
        self.begin().names(path, &mut |name: &[u8]| {
            // Each of them is progress, also one that is not returned.
            count += 1;
            if count > MOST_NAMES {
                return Err(damaged(format!("{} has more than {MOST_NAMES} entries", shown(path))));
            }
            if matches!(name, b"." | b"..") {
                return Ok(());
            }
            let is_name =
                !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(&b'/') && !name.contains(&0);
            if !is_name {
                return Err(damaged(format!("{} has an entry with the name {:?}", shown(path), shown(name))));
            }
            names.push(name.to_vec());
            Ok(())
        })?;
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// It has no content, or an encrypted one.
    pub fn open(&self, path: &[u8]) -> Result<impl Read + '_, FsError> {
        Ok(Guarded { content: self.begin().open(path)?, part: &self.part })
    }
}

/// Returns the names of a path in order.
fn names_of(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(<[u8]>::to_vec).collect()
}

/// The content of a file: what arrives is progress.
struct Guarded<'a> {
    content: Box<dyn Read + 'a>,
    part: &'a Window,
}

impl Read for Guarded<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buf)?;
        self.part.found();
        Ok(count)
    }
}
