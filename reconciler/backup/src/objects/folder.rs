//! Objects as files in a folder, which may be of a file server.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use nix::fcntl::{AT_FDCWD, PosixFadviseAdvice, RenameFlags, posix_fadvise, renameat2};
use nix::libc;
use tokio::sync::Semaphore;

use super::{Objects, Visit};
use crate::error::{Error, Result};
use crate::repository_file;

/// The time limit of one operation: that of a file server that is busy.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of operations at a time. Threads that wait for a file server that is gone cannot be stopped.
const CONCURRENCY: usize = 8;
/// The number of files after which a page ends with its folder.
const PAGE: usize = 1000;
/// The number of times that a file is read that its medium does not give, the pause between them, and the time after which it is not
/// read again: a drive may try for minutes.
const READS: u32 = 3;
const READ_PAUSE: Duration = Duration::from_millis(500);
const MOST_READING: Duration = Duration::from_secs(10);
/// The number of times that a file is written that goes away before it has its name.
const WRITES: u32 = 3;
/// Files that are being written.
const PARTIAL: &str = ".partial";

/// The permits of the folders in use: one thread each.
static IN_USE: LazyLock<Mutex<HashMap<PathBuf, Arc<Semaphore>>>> = LazyLock::new(Mutex::default);

/// A folder.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    permits: Arc<Semaphore>,
    timeout: Duration,
}

impl Folder {
    pub(super) fn new(root: &Path) -> Result<Self> {
        if !root.is_absolute() {
            return Err(Error::Location { detail: format!("{} is not an absolute path", root.display()) });
        }
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|_, permits| Arc::strong_count(permits) > 1);
        let permits = in_use.entry(root.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(CONCURRENCY)));
        Ok(Self { root: root.to_owned(), permits: Arc::clone(permits), timeout: TIMEOUT })
    }

    /// Waits until no operation runs, also none whose caller stopped waiting.
    async fn wait_for_all(&self) -> Result<()> {
        let all = self.permits.acquire_many(CONCURRENCY as u32);
        let stalled = |_| Error::FolderStalled { path: self.root.clone(), seconds: self.timeout.as_secs() };
        let all = tokio::time::timeout(self.timeout, all).await.map_err(stalled)?;
        drop(all.expect("it is never closed"));
        Ok(())
    }

    /// Runs operations on files in a thread.
    async fn run<T: Send + 'static>(
        &self,
        name: &str,
        f: impl FnOnce(&Path, &Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (root, path) = (self.root.clone(), self.path(name));
        let permits = Arc::clone(&self.permits);
        let run = async {
            let permit = permits.acquire_owned().await.expect("it is never closed");
            let task = tokio::task::spawn_blocking(move || {
                // With the thread, which may outlive the timeout.
                let _permit = permit;
                f(&root, &path)
            });
            task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
        };
        let stalled = |_| Error::FolderStalled { path: self.path(name), seconds: self.timeout.as_secs() };
        tokio::time::timeout(self.timeout, run).await.map_err(stalled)?
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }
}

#[async_trait]
impl Objects for Folder {
    fn place(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    async fn get(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        self.run(name, move |root, path| read(root, path, limit)).await
    }

    async fn put(&self, name: &str, body: Bytes) -> Result<()> {
        self.run(name, move |root, path| replace(root, path, |file| file.write_all(&body))).await
    }

    async fn create(&self, name: &str, body: Bytes) -> Result<bool> {
        self.run(name, move |root, path| write(root, path, Existing::Keep, |file| file.write_all(&body)))
            .await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.run(name, |root, path| {
            check_mounted(root)?;
            delete(root, path)
        })
        .await
    }

    async fn list(&self, folder: &str, visit: Visit<'_>) -> Result<()> {
        let mut walk = Some(Walk::new(self.path(folder), false));
        while let Some(page) = walk.take() {
            let (names, rest) = self.run(folder, |root, _| page.page(root)).await?;
            for (name, length) in names {
                visit(&name, length)?;
            }
            walk = rest;
        }
        Ok(())
    }

    async fn folders(&self, folder: &str, limit: usize) -> Result<Vec<String>> {
        let place = self.place(folder);
        self.run(folder, move |root, path| {
            check_mounted(root)?;
            let mut found = Vec::new();
            for entry in entries(path)? {
                if entry.file_type().map_err(|source| failed("list", path, source))?.is_dir() {
                    found.extend(entry.file_name().into_string());
                }
                if found.len() > limit {
                    return Err(Error::TooMany { place, what: "folders", limit });
                }
            }
            Ok(found)
        })
        .await
    }

    async fn first(&self) -> Result<Option<String>> {
        self.run("", |_, path| {
            let names =
                entries(path)?.into_iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
            // The root of a file system is empty with these.
            Ok(names.filter(|name| name != "lost+found" && !name.ends_with(PARTIAL)).min())
        })
        .await
    }

    async fn remove_partial(&self, folder: &str) -> Result<()> {
        // A late delete must not remove a block that the next backup relies on.
        self.wait_for_all().await?;
        let mut walk = Some(Walk::new(self.path(folder), true));
        while let Some(page) = walk.take() {
            let (names, rest) = self.run(folder, |root, _| page.page(root)).await?;
            for (name, _) in names {
                self.run(&format!("{folder}/{name}"), delete).await?;
            }
            walk = rest;
        }
        Ok(())
    }
}

/// The names of files, and their lengths.
type Names = Vec<(String, u64)>;

/// The files below a folder, listed in pages: one of them may take as long as the time limit.
struct Walk {
    top: PathBuf,
    folders: Vec<PathBuf>,
    /// Lists the files that are being written, and no others.
    is_of_partial: bool,
}

impl Walk {
    fn new(top: PathBuf, is_of_partial: bool) -> Self {
        Self { folders: vec![top.clone()], top, is_of_partial }
    }

    /// Lists whole folders until a page is full. Returns it, and the rest of the walk.
    fn page(mut self, root: &Path) -> Result<(Names, Option<Self>)> {
        check_mounted(root)?;
        let (mut names, mut seen) = (Vec::new(), 0);
        while let Some(folder) = self.folders.pop() {
            for entry in entries(&folder)? {
                let path = entry.path();
                let (kind, length) = match entry.metadata() {
                    Ok(metadata) => (metadata.file_type(), metadata.len()),
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    // One damaged file does not hold up the others. It is listed: its name has to be known, and a read reports the damage.
                    Err(error) if is_of_medium(&error) => match entry.file_type() {
                        Ok(kind) => (kind, 0),
                        Err(_) => return Err(failed("list", &path, error)),
                    },
                    Err(source) => return Err(failed("list", &path, source)),
                };
                if kind.is_dir() {
                    self.folders.push(path);
                } else if kind.is_file() && is_partial(&path) == self.is_of_partial {
                    let name = path.strip_prefix(&self.top).ok().and_then(Path::to_str);
                    names.extend(name.map(|name| (name.to_owned(), length)));
                }
                seen += 1;
            }
            if seen >= PAGE {
                return Ok((names, Some(self)));
            }
        }
        Ok((names, None))
    }
}

/// The choice of [`write`] if there is a file with the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existing {
    Replace,
    Keep,
}

/// Fails if the folder is not mounted: nothing may be written to the empty mount point, nor missed in it.
fn check_mounted(root: &Path) -> Result<()> {
    match fs::metadata(root.join(repository_file::NAME)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Error::NoRepository { place: root.display().to_string() })
        }
        Err(source) => Err(failed("read", root, source)),
    }
}

fn read(root: &Path, path: &Path, limit: usize) -> Result<Option<Vec<u8>>> {
    let own = root.join(repository_file::NAME);
    let (begun, mut attempt) = (Instant::now(), 1);
    let body = loop {
        match read_file(path, limit) {
            Ok(body) => break body,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if path != own {
                    check_mounted(root)?;
                }
                return Ok(None);
            }
            Err(error) if is_of_medium(&error) && attempt < READS && begun.elapsed() < MOST_READING => {
                attempt += 1;
                thread::sleep(READ_PAUSE);
            }
            // A medium that went away altogether fails in the same way.
            Err(error) if is_of_medium(&error) && path != own && is_on_medium(&own) => {
                let (place, detail) = (path.display().to_string(), format!("it cannot be read: {error}"));
                return Err(Error::Damaged { place, detail });
            }
            Err(source) => return Err(failed("read", path, source)),
        }
    };
    match body.len() <= limit {
        true => Ok(Some(body)),
        false => Err(Error::Damaged {
            place: path.display().to_string(),
            detail: format!("it has more than {limit} bytes"),
        }),
    }
}

/// Reads at most one byte more than the limit.
fn read_file(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    // The open of a pipe would wait for a writer, and its thread with it.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut body = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut body)?;
    Ok(body)
}

/// Whether a file can be read from its medium, not only from memory.
fn is_on_medium(path: &Path) -> bool {
    File::open(path).is_ok_and(|mut file| {
        // Without it, the read may be from memory, and the answer less sure.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        io::copy(&mut file, &mut io::sink()).is_ok()
    })
}

/// Whether a medium, or its file system, does not give what was written: a bad sector, or a wrong checksum.
fn is_of_medium(error: &io::Error) -> bool {
    let errors = [libc::EIO, libc::EBADMSG, libc::EUCLEAN, libc::ENODATA, libc::EILSEQ];
    error.raw_os_error().is_some_and(|number| errors.contains(&number))
}

/// Writes a file of a mounted folder, a few times if it goes away: another site may take it for one that an interrupted write left, or remove
/// the folder with its last file.
fn replace(root: &Path, path: &Path, mut fill: impl FnMut(&mut File) -> io::Result<()>) -> Result<()> {
    let mut attempt = 1;
    loop {
        check_mounted(root)?;
        match write(root, path, Existing::Replace, &mut fill) {
            Err(Error::Folder { source, .. }) if source.kind() == ErrorKind::NotFound && attempt < WRITES => {
                attempt += 1;
            }
            written => return written.map(drop),
        }
    }
}

/// Writes a file so that it is whole on the medium, or as before. Returns whether it was written.
fn write(
    root: &Path,
    path: &Path,
    existing: Existing,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<bool> {
    let folder = path.parent().unwrap_or(root);
    create_folders(root, folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = folder.join(format!(".{name}.{:016x}{PARTIAL}", rand::random::<u64>()));
    let written =
        write_partial(&partial, fill).map_err(|source| failed("write", path, source)).and_then(|()| {
            let done = match existing {
                Existing::Replace => fs::rename(&partial, path).map(|()| true),
                Existing::Keep => rename_new(&partial, path),
            };
            done.map_err(|source| failed("write", path, source))
        });
    if !matches!(written, Ok(true)) {
        // The original error is returned; the next backup removes the file too.
        let _ = fs::remove_file(&partial);
    }
    sync(folder)?;
    written
}

fn write_partial(partial: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial)?;
    fill(&mut file)?;
    file.sync_all()
}

/// Renames a file, unless there is one with the new name. Returns whether it did.
fn rename_new(from: &Path, to: &Path) -> io::Result<bool> {
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => return Ok(true),
        Err(nix::Error::EEXIST) => return Ok(false),
        // NFS does not have it, but links.
        Err(nix::Error::EINVAL | nix::Error::ENOSYS | nix::Error::EOPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from).map(|()| true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        // FAT, and some file servers, have neither. Of two that write at once, the first finds on its next use that it was replaced.
        Err(error) if is_without_links(&error) => match to.try_exists()? {
            true => Ok(false),
            false => fs::rename(from, to).map(|()| true),
        },
        Err(error) => Err(error),
    }
}

/// Whether a file system has no links between files.
fn is_without_links(error: &io::Error) -> bool {
    error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(libc::EPERM)
}

/// Creates the folders down to this one that are missing; the parent of the root has to exist.
fn create_folders(root: &Path, folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().unwrap_or(root);
    if folder != root {
        create_folders(root, parent)?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => sync(parent),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(failed("create the folder", folder, source)),
    }
}

/// Deletes a file, and the folders of its disk that are then empty.
fn delete(root: &Path, path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed("delete", path, source)),
    }
    let folders =
        path.ancestors().skip(1).take_while(|folder| *folder != root && folder.parent() != Some(root));
    for (at, folder) in folders.enumerate() {
        // The order of deletions matters: a manifest before its blocks.
        if at == 0 {
            sync(folder)?;
        }
        // It fails if the folder is not empty.
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
    Ok(())
}

/// The entries of a folder; none if there is no such folder.
fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>> {
    let list = |source| failed("list", folder, source);
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect::<io::Result<_>>().map_err(list),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(list(source)),
    }
}

/// Makes the entries of a folder durable.
fn sync(folder: &Path) -> Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Ok(()) => Ok(()),
        // The last file of it was deleted at the same time.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // Some file servers cannot.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        Err(source) => Err(failed("write the folder", folder, source)),
    }
}

/// Whether a file is one that [`write`] has not ended: `.NAME.NUMBER.partial`. Another program, which copies objects here, may use the same end.
fn is_partial(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let middle = name.and_then(|name| name.strip_prefix('.')?.strip_suffix(PARTIAL)?.rsplit_once('.'));
    middle.is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|c| c.is_ascii_hexdigit()))
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Folder { action, path: path.to_owned(), source }
}
