//! Copies of files and folders to this machine.
//!
//! *Guarantees:* only the target is written, which did not exist or is replaced as a whole: a copy is made beside it (`part`), and gets its
//! name once it is complete. Each file, folder and link in it is made anew with a name of its own, so that no link in the data is followed
//! here. Set-user-ID and the like are not copied, nor owners, nor the right of others to write.

mod part;

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    vec,
};

use anyhow::{Context, bail, ensure};
use berth_filesystems::{Node, NodeKind, Tree, shown};

use super::list::below;
use super::remote_disk::Alive;
pub(in crate::commands) use part::Part;

/// The limits of one copy.
const MOST_ENTRIES: u64 = 1 << 20;
const MOST_BYTES: u64 = 256 << 30;
const MOST_DEPTH: usize = 128;
/// The limit of notes about what is left out.
const MOST_NOTES: usize = 20;
/// The permissions that a copy keeps, as the usual umask has it.
const KEPT: u32 = 0o755;
/// The bytes that are written at a time, or left as a hole.
const BLOCK: usize = 64 << 10;

/// Where a copy goes.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    recursive: bool,
    force: bool,
}

/// The result of a copy.
#[derive(Debug, Default)]
pub(super) struct Copied {
    pub(super) to: PathBuf,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// What was left out, for people.
    pub(super) notes: Vec<String>,
}

impl Target {
    /// Refuses a target that exists, before anything is requested.
    pub(super) fn new(from: &str, to: &Path, recursive: bool, force: bool) -> anyhow::Result<Self> {
        let path = if to.is_dir() {
            // A path that ends with `..` has the name of another folder there.
            let name = from.split('/').rfind(|name| !matches!(*name, "" | ".")).filter(|name| *name != "..");
            let name = name.with_context(|| format!("{} is a folder: name the copy in it", to.display()))?;
            to.join(name)
        } else {
            // Without a slash at its end.
            to.components().collect()
        };
        ensure!(path.file_name().is_some(), "{} ends with ..: give the name of the copy", path.display());
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        ensure!(
            parent.is_none_or(Path::is_dir),
            "there is no folder {}",
            parent.unwrap_or(Path::new("/")).display()
        );
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => bail!("{} is a folder: name another copy", path.display()),
            Ok(_) if !force => {
                bail!("{} exists: name another file, or replace it with --force", path.display())
            }
            _ => Ok(Self { path, recursive, force }),
        }
    }
}

/// Copies a file, or a folder with everything in it.
pub(super) fn run(tree: &Tree, from: &[u8], target: &Target, alive: &Alive) -> anyhow::Result<Copied> {
    let path = tree.resolve(from, true)?;
    let node = tree.node(&path)?;
    let mut copying =
        Copying { tree, alive, entries: 0, copied: Copied { to: target.path.clone(), ..Copied::default() } };
    match node.kind {
        NodeKind::File => copying.whole_file(&path, &node, target)?,
        NodeKind::Folder if target.recursive => copying.folder(path, node, target)?,
        NodeKind::Folder => bail!("{} is a folder: copy it with -r", shown(&path)),
        NodeKind::Link | NodeKind::Special => bail!("{} is neither a file nor a folder", shown(&path)),
    }
    Ok(copying.copied)
}

struct Copying<'a> {
    tree: &'a Tree,
    alive: &'a Alive,
    entries: u64,
    copied: Copied,
}

/// A folder that is being copied.
struct Folder {
    from: Vec<u8>,
    to: PathBuf,
    node: Node,
    left: vec::IntoIter<Vec<u8>>,
}

impl Copying<'_> {
    /// Copies one file.
    fn whole_file(&mut self, path: &[u8], node: &Node, target: &Target) -> anyhow::Result<()> {
        let part = Part::beside(&target.path)?;
        self.file(path, node, part.path())?;
        part.becomes(&target.path, target.force).inspect_err(|_| remove(part.path()))
    }

    /// Copies a folder. When that fails, the part that was copied stays, without the name of the target.
    fn folder(&mut self, from: Vec<u8>, node: Node, target: &Target) -> anyhow::Result<()> {
        let part = Part::beside(&target.path)?;
        let copied = self.whole_tree(from, part.path().to_owned(), node);
        // A folder is never replaced.
        copied.and_then(|()| part.becomes(&target.path, false)).with_context(|| match part.path().exists() {
            true => format!("the copy is not complete; its part is in {}", shown_path(part.path())),
            false => "nothing was copied".to_owned(),
        })
    }

    fn whole_tree(&mut self, from: Vec<u8>, to: PathBuf, node: Node) -> anyhow::Result<()> {
        let mut open = vec![self.enter(from, to, node)?];
        while let Some(folder) = open.last_mut() {
            let Some(name) = folder.left.next() else {
                finish_folder(folder)?;
                open.pop();
                continue;
            };
            let (from, to) = (below(&folder.from, &name), folder.to.join(OsStr::from_bytes(&name)));
            self.entries += 1;
            self.alive.progress();
            ensure!(self.entries <= MOST_ENTRIES, "it has more than {MOST_ENTRIES} entries");
            let node = self.tree.node(&from)?;
            match node.kind {
                NodeKind::File => self.file(&from, &node, &to)?,
                NodeKind::Link => {
                    let link = self.tree.link(&from)?;
                    symlink(OsStr::from_bytes(&link), &to)
                        .with_context(|| format!("making {}", shown_path(&to)))?;
                }
                NodeKind::Special => self.leave_out(&from),
                NodeKind::Folder => {
                    ensure!(open.len() < MOST_DEPTH, "it has folders in more than {MOST_DEPTH} folders");
                    let inner = self.enter(from, to, node)?;
                    open.push(inner);
                }
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, path: &[u8]) {
        if self.copied.notes.len() < MOST_NOTES {
            self.copied.notes.push(format!("{} is a device, a pipe or a socket, and left out", shown(path)));
        }
    }

    /// Makes a folder, to which only its owner has access until it is complete.
    fn enter(&self, from: Vec<u8>, to: PathBuf, node: Node) -> anyhow::Result<Folder> {
        let left = self.tree.names(&from)?.into_iter();
        let made = DirBuilder::new().mode(0o700).create(&to);
        made.with_context(|| format!("making {}", shown_path(&to)))?;
        Ok(Folder { from, to, node, left })
    }

    /// Writes a file that does not exist. One that is cut off is removed.
    fn file(&mut self, path: &[u8], node: &Node, to: &Path) -> anyhow::Result<()> {
        let left = MOST_BYTES.saturating_sub(self.copied.bytes);
        ensure!(
            node.size <= left,
            "{} has {} bytes, and this copy can have only {left} more: copy the file by itself",
            shown(path),
            node.size
        );
        let mut content = self.tree.open(path)?.take(left);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to);
        let file = file.with_context(|| format!("writing {}", shown_path(to)))?;
        let length = self.write(&mut content, (path, node), &file, to).inspect_err(|_| remove(to))?;
        self.copied.files += 1;
        self.copied.bytes += length;
        Ok(())
    }

    fn write(
        &self,
        content: &mut impl Read,
        (path, node): (&[u8], &Node),
        file: &File,
        to: &Path,
    ) -> anyhow::Result<u64> {
        let what = || format!("writing {}", shown_path(to));
        let length = self.fill(content, path, file, to)?;
        ensure!(
            length == node.size,
            "{} is damaged: {length} of its {} bytes are there",
            shown(path),
            node.size
        );
        file.set_len(length).with_context(what)?;
        finish(file, node).with_context(what)?;
        Ok(length)
    }

    /// Copies content, with holes for zeros; returns its length.
    fn fill(&self, content: &mut impl Read, path: &[u8], mut file: &File, to: &Path) -> anyhow::Result<u64> {
        let (mut block, mut length) = (vec![0; BLOCK], 0);
        loop {
            let mut count = 0;
            while count < BLOCK {
                let read = content.read(&mut block[count..]);
                match read.with_context(|| format!("reading {}", shown(path)))? {
                    0 => break,
                    more => count += more,
                }
            }
            if count == 0 {
                return Ok(length);
            }
            self.alive.progress();
            let is_zero = block[..count].iter().all(|byte| *byte == 0);
            let written = match is_zero {
                true => file.seek(SeekFrom::Start(length + count as u64)).map(drop),
                false => file.write_all(&block[..count]),
            };
            written.with_context(|| format!("writing {}", shown_path(to)))?;
            length += count as u64;
        }
    }
}

/// Removes a file that is not complete. The error before is the one to report.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

fn finish_folder(folder: &Folder) -> anyhow::Result<()> {
    let opened = File::open(&folder.to);
    let done = opened.and_then(|opened| finish(&opened, &folder.node));
    done.with_context(|| format!("finishing {}", shown_path(&folder.to)))
}

/// Gives a file or a folder its permissions and its time.
fn finish(file: &File, node: &Node) -> io::Result<()> {
    if let Some(mode) = node.mode {
        file.set_permissions(Permissions::from_mode(mode & KEPT))?;
    }
    match node.modified {
        Some(time) => file.set_modified(time),
        None => Ok(()),
    }
}

fn shown_path(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests;
