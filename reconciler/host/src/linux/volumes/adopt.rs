//! Adoption: a file of the host becomes a volume. It is moved, not copied.
//!
//! ```text
//!               checked, locked        note (intent)        renamed             note (complete)
//!    its file ─────────────────▶ ○ ─────────────────▶ ○ ──────────────▶ ○ ────────────────────▶ volume
//! ```
//!
//! The data of a raw file is copied instead: see `copies`. The file is checked and locked in the same way, and stays.
//!
//! A crash before the renaming leaves the file where it is, and one after it leaves a volume that the next call finishes.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use berth_qemu::machine::{Backing, Format};
use berth_qemu::qcow2::{self, ImageLock, InspectError};
use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, AtFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, open, openat, openat2, renameat2,
};
use nix::sys::stat::Mode;
use nix::unistd::linkat;

use super::super::files::{self, failed};
use super::super::qemu_img::{DiskNode, block_node};
use super::note::Note;
use super::space::most_adopted;
use super::{LinuxVolumes, Place, Result, exists};
use crate::{NewVolume, SystemError, VolumeFacts};

/// The same text for every path outside the folders, whether or not the file exists.
const NOT_ALLOWED: &str =
    "disks are made of files only below the folders that the host's administrator names with --disk-dir";

const OTHER_FILE_SYSTEM: &str = "it is on another file system than the pool: move it into a folder of --disk-dir on that one, or make an Image of it";

/// A raw file whose data is copied, with QEMU's lock on it.
#[derive(Debug)]
pub(in super::super) struct RawSource {
    /// The size of the disk in it.
    pub(in super::super) size: u64,
    /// The space that it takes.
    pub(in super::super) bytes: u64,
    link: PathBuf,
    _lock: ImageLock,
}

impl RawSource {
    /// The file as a program opens it, which leaves the lock to the agent.
    pub(in super::super) fn disk(&self) -> DiskNode {
        let file = Backing { file: self.link.clone(), format: Format::Raw, backing: None };
        DiskNode { node: block_node(&file, "off"), files: vec![self.link.clone()] }
    }
}

impl Drop for RawSource {
    /// The second name goes before the lock: the next call that gets the lock finds one name.
    fn drop(&mut self) {
        // One that stays is removed by the next attempt, or when the next agent starts.
        let _ = files::remove_if_there(&self.link);
    }
}

/// A file that can become a volume, with QEMU's lock on it.
struct Adoptable {
    folder: OwnedFd,
    name: PathBuf,
    lock: ImageLock,
    size: u64,
}

impl LinuxVolumes {
    /// Makes a volume of the file at this path. When the volume exists, the path is not looked at.
    pub(super) fn adopt(&self, new: &NewVolume, path: &Path) -> Result<VolumeFacts> {
        let place = self.place(&new.pool, &new.id)?;
        if self.volume(&new.pool, &new.id)?.is_none() {
            if exists(&place.trashed_file)? {
                return Err(place.damaged("it is in the trash: it has to be restored, not made again"));
            }
            self.take(&place, new, path)?;
        }
        self.finish(&place)?;
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        let found = self.volume(&new.pool, &new.id)?.ok_or_else(lost)?;
        match new.size.map(|size| size.next_multiple_of(qcow2::SECTOR)) {
            Some(size) if size > found.size => self.grow_file(&new.pool, &new.id, size),
            _ => Ok(found),
        }
    }

    fn take(&self, place: &Place, new: &NewVolume, path: &Path) -> Result<()> {
        let found = self.adoptable(path, Format::Qcow2)?;
        if let Some(size) = new.size.filter(|size| *size < found.size) {
            return Err(SystemError::SmallerThanImage { size, image: found.size });
        }
        let length = found.lock.file().metadata().map_err(failed("read", path))?.len();
        let size = new.size.unwrap_or_default().clamp(found.size, qcow2::MAX_VIRTUAL_SIZE);
        if length > most_adopted(size) {
            // No other host would copy it, after its VM has left this one.
            let file = path.display();
            let why = format!(
                "it has {length} bytes, more than three times its disk of {size} bytes: qemu-img convert -O qcow2 {file} {file}.qcow2 makes a file \
                 without what nothing refers to, while no program has it open"
            );
            return Err(SystemError::FileRefused { path: path.to_owned(), why });
        }
        files::ensure_folder(&self.layout.volumes(&new.pool))?;
        Note::new(new, None).write(&place.note)?;
        found.move_to(path, &place.file).inspect_err(|_| {
            // Leaves no intent; what cannot be removed is overwritten by the next attempt.
            let _ = fs::remove_file(&place.note);
        })?;
        tracing::info!(volume = place.id, file = %path.display(), size = found.size, "file taken over");
        Ok(())
    }

    /// Returns a raw file whose data is to be copied. `folder`: where a program finds it meanwhile, whatever has its name by then.
    pub(in super::super) fn raw_source(&self, path: &Path, folder: &Path) -> Result<RawSource> {
        // The link of an interrupted call would be a second name.
        let link = folder.join("file.raw");
        files::remove_if_there(&link).map_err(failed("remove", &link))?;
        let Adoptable { lock, size, .. } = self.adoptable(path, Format::Raw)?;
        let about = lock.file().metadata().map_err(failed("read", path))?;
        let bytes = about.blocks().saturating_mul(512).min(size);
        files::ensure_folder(folder)?;
        let opened = format!("/proc/self/fd/{}", lock.file().as_raw_fd());
        let linked = linkat(AT_FDCWD, opened.as_str(), AT_FDCWD, &link, AtFlags::AT_SYMLINK_FOLLOW);
        linked.map_err(|errno| match errno {
            Errno::EXDEV => {
                SystemError::FileRefused { path: path.to_owned(), why: OTHER_FILE_SYSTEM.to_owned() }
            }
            errno => failed("link", path)(errno.into()),
        })?;
        Ok(RawSource { size, bytes, link, _lock: lock })
    }

    /// Opens, locks and checks a file below the administrator's folders.
    fn adoptable(&self, path: &Path, format: Format) -> Result<Adoptable> {
        let refused = |why: &str| SystemError::FileRefused { path: path.to_owned(), why: why.to_owned() };
        let awaited = |why| SystemError::FileAwaited { path: path.to_owned(), why };
        let below = self.adoptable.iter().find_map(|folder| Some((folder, path.strip_prefix(folder).ok()?)));
        let (folder, rest) = below.ok_or_else(|| refused(NOT_ALLOWED))?;
        let (folder, name, file) = open_beneath(folder, rest).map_err(|errno| match errno {
            Errno::ENOENT | Errno::ENOTDIR => awaited("there is no such file on this host"),
            Errno::EXDEV | Errno::ELOOP => refused(NOT_ALLOWED),
            Errno::EISDIR | Errno::EINVAL | Errno::ENXIO => refused("it is no regular file"),
            errno => failed("open", path)(errno.into()),
        })?;
        let about = file.metadata().map_err(failed("read", path))?;
        if !about.is_file() {
            return Err(refused("it is no regular file"));
        }
        let root = fs::canonicalize(self.layout.root()).map_err(failed("read", self.layout.root()))?;
        let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let real = real.map_err(failed("read", path))?;
        if real.starts_with(root) || self.pool_folders.contain(&real) {
            return Err(refused("it is a file of berth's own"));
        }
        let lock = ImageLock::new(file).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => awaited("another program has it open as a disk"),
            _ => failed("lock", path)(error),
        })?;
        // Only now: a copy of its data has a second name for it until its lock ends.
        if lock.file().metadata().map_err(failed("read", path))?.nlink() != 1 {
            return Err(refused("it has other names (hard links), by which other programs may use it"));
        }
        let unfit = |error| match error {
            InspectError::Read(error) => failed("read", path)(error),
            InspectError::WrongFormat { found, .. } => {
                // The format is not guessed from the bytes, which a guest has written.
                let (read, file) = (if found.contains("raw") { "-f raw " } else { "" }, path.display());
                refused(&match format {
                    Format::Raw => format!(
                        "{error}: of a file in another format than raw, declare no format (source.format)"
                    ),
                    _ => format!(
                        "{error}: only qcow2 files are taken over. If it is raw, declare that (source.format), and its data is copied; \
                         qemu-img convert {read}-O qcow2 {file} {file}.qcow2 makes a qcow2 file, while no program has it open"
                    ),
                })
            }
            error => refused(&error.to_string()),
        };
        let info = qcow2::inspect(&mut lock.file(), format).map_err(unfit)?;
        if format == Format::Raw {
            return Ok(Adoptable { folder, name, lock, size: info.virtual_size });
        }
        if qcow2::has_internal_snapshots(&mut lock.file()).map_err(unfit)? {
            return Err(refused("it has snapshots within itself: delete them with qemu-img snapshot -d"));
        }
        Ok(Adoptable { folder, name, lock, size: info.virtual_size })
    }
}

impl Adoptable {
    /// Renames the file. Another file that has taken its name since it was checked is put back.
    fn move_to(&self, path: &Path, to: &Path) -> Result<()> {
        let refused = |why: &str| SystemError::FileRefused { path: path.to_owned(), why: why.to_owned() };
        renameat2(self.folder.as_fd(), &self.name, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE).map_err(
            |errno| match errno {
                Errno::EXDEV => refused(OTHER_FILE_SYSTEM),
                errno => failed("move", path)(errno.into()),
            },
        )?;
        let is_it = |moved: fs::Metadata, opened: fs::Metadata| {
            (moved.dev(), moved.ino()) == (opened.dev(), opened.ino())
        };
        let same = fs::symlink_metadata(to).and_then(|moved| Ok(is_it(moved, self.lock.file().metadata()?)));
        if same.map_err(failed("read", to))? {
            return Ok(());
        }
        let back = renameat2(AT_FDCWD, to, self.folder.as_fd(), &self.name, RenameFlags::RENAME_NOREPLACE);
        back.map_err(|errno| failed("move back", to)(errno.into()))?;
        Err(SystemError::FileAwaited { path: path.to_owned(), why: "it was replaced meanwhile" })
    }
}

/// Opens a file in a directory for reading and writing, and the directory that it is in. No part of the path is a link.
fn open_beneath(folder: &Path, rest: &Path) -> nix::Result<(OwnedFd, PathBuf, File)> {
    let name = rest.file_name().ok_or(Errno::EINVAL)?;
    let path = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let folder: OwnedFd = open(folder, path, Mode::empty())?;
    let parent = match rest.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => {
            let how = OpenHow::new().flags(path).resolve(
                ResolveFlag::RESOLVE_BENEATH
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_NO_MAGICLINKS,
            );
            openat2(&folder, parent, how)?
        }
        None => folder,
    };
    // Opening a FIFO must not wait for its writer.
    let how = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::from(openat(&parent, name, how, Mode::empty())?);
    Ok((parent, PathBuf::from(name), file))
}
