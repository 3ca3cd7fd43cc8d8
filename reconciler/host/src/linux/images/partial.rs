//! An incomplete download, and the version that its bytes belong to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256, Sha512};

use super::super::files::{self, failed};
use super::super::layout::is_digest;
use super::super::reflink;
use crate::{ImageSource, SystemError};

/// The age at which abandoned partial downloads are removed.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often the lock of a download is tried before the download counts as in progress.
const LOCK_CHECKS: u32 = 20;
const CHECK_LOCK_EVERY: Duration = Duration::from_millis(50);
const SUFFIX: &str = ".partial";

/// The path of a download's bytes until they are verified. Each source has its own.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    origin: PathBuf,
    /// The bytes out of their compression and archive.
    pub(super) unpacked: PathBuf,
    /// The bytes in another format.
    pub(super) converted: PathBuf,
}

/// The beginnings of the last parts of these two names.
const MADE: [&str; 2] = ["unpacked", "converted"];

/// `<digest>-<source>`, with a hash of the source: the URL itself may contain secrets.
pub(super) fn name(source: &ImageSource) -> String {
    let mut hasher = Sha256::new();
    for part in [&source.namespace, &source.url] {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    format!("{}-{}", source.digest, &hex(&hasher.finalize())[..16])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Place {
    pub(super) fn of(folder: &Path, source: &ImageSource) -> Self {
        Self::named(folder, &name(source))
    }

    fn named(folder: &Path, name: &str) -> Self {
        let file = folder.join(format!("{name}{SUFFIX}"));
        // A program that an agent started which was killed may still write: it never has a file of this process.
        let [unpacked, converted] =
            MADE.map(|made| file.with_added_extension(format!("{made}-{}", std::process::id())));
        Self { origin: file.with_added_extension("json"), unpacked, converted, file }
    }

    /// Removes what was made from the bytes, also by other processes. The caller holds the file's lock.
    pub(super) fn discard_made(&self) -> Result<(), SystemError> {
        let folder = self.file.parent().unwrap_or(Path::new("/"));
        let own = self.file.file_name().unwrap_or_default().to_string_lossy();
        let is_made = |name: &String| {
            let rest = name.strip_prefix(&*own).and_then(|rest| rest.strip_prefix('.'));
            rest.is_some_and(|rest| MADE.iter().any(|made| rest.starts_with(made)))
        };
        for name in files::names(folder)?.iter().filter(|name| is_made(name)) {
            let path = folder.join(name);
            files::remove_if_there(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    /// The caller holds the file's lock.
    fn discard(&self) -> Result<(), SystemError> {
        // The file last: a crash leaves it, and with it the next attempt to remove the others.
        self.discard_made()?;
        for path in [&self.origin, &self.file] {
            files::remove_if_there(path).map_err(failed("remove", path))?;
        }
        Ok(())
    }

    /// Removes the files, unless the download is in progress. Waits for one that has just ended: its last block may still be
    /// written, and a process that another thread forks holds its lock until its `exec`.
    pub(super) fn discard_unused(&self) -> Result<(), SystemError> {
        for _ in 0..LOCK_CHECKS {
            let Ok(file) = File::open(&self.file) else { return Ok(()) };
            // A running download holds its lock. This lock is held until the file is removed.
            if file.try_lock().is_ok() && is_named(&file, &self.file) {
                return self.discard();
            }
            std::thread::sleep(CHECK_LOCK_EVERY);
        }
        Ok(())
    }
}

/// Whether the path still refers to this open file.
pub(super) fn is_named(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let named = fs::symlink_metadata(path).map(identity);
    named.is_ok_and(|named| file.metadata().map(identity).is_ok_and(|own| own == named))
}

/// Gives a download the bytes that its checksum was computed of, or removes them if they are not stored again. Blocking.
pub(super) fn take_computed(folder: &Path, source: &ImageSource, stored: bool) -> Result<(), SystemError> {
    let (from, to) = (Place::of(folder, &source.with_no_digest()), Place::of(folder, source));
    let Ok(file) = File::open(&from.file) else { return Ok(()) };
    if file.try_lock().is_err() || !is_named(&file, &from.file) {
        // They are being downloaded for another computation.
        return Ok(());
    }
    if !stored || to.file.exists() {
        return from.discard();
    }
    // Its note is of no use: the bytes are complete.
    files::remove_if_there(&from.origin).map_err(failed("remove", &from.origin))?;
    fs::rename(&from.file, &to.file).map_err(failed("name", &to.file))
}

/// Removes the partial downloads with matching names, except those in progress. Blocking.
pub(super) fn forget(folder: &Path, is_forgotten: impl Fn(&str, &Path) -> bool) -> Result<(), SystemError> {
    for file in files::names(folder)? {
        let Some(name) = file.strip_suffix(SUFFIX) else { continue };
        // Older builds had no source in the name.
        let ours = is_digest(name.split_once('-').map_or(name, |(digest, _)| digest));
        let place = Place::named(folder, name);
        if ours && is_forgotten(name, &place.file) {
            place.discard_unused()?;
        }
    }
    Ok(())
}

/// Removes partial downloads that have not been modified for `FORGOTTEN`. Blocking.
pub(super) fn forget_old(folder: &Path) -> Result<(), SystemError> {
    forget(folder, |_, file| {
        let modified = fs::metadata(file).and_then(|m| m.modified());
        let age = modified.ok().and_then(|m| SystemTime::now().duration_since(m).ok());
        age.is_some_and(|a| a > FORGOTTEN)
    })
}

/// The server's identification of the version that the downloaded bytes belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    /// A strong ETag or a modification date, for `If-Range`.
    pub(super) validator: Option<String>,
}

impl Origin {
    pub(super) fn read(place: &Place) -> Option<Self> {
        // A damaged note only costs a download from the start.
        files::read_json(&place.origin).ok().flatten()?.ok()
    }

    pub(super) fn write(&self, place: &Place) -> Result<(), SystemError> {
        files::write_json(&place.origin, self, 0o600)
    }
}

/// The checksum so far.
#[derive(Clone, Debug)]
enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    /// Selects the algorithm by the number of digits of its digests.
    fn like(digest: &str) -> Self {
        if digest.len() == 128 { Self::Sha512(Sha512::new()) } else { Self::Sha256(Sha256::new()) }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn digest(&self) -> String {
        match self.clone() {
            Self::Sha256(hasher) => hex(&hasher.finalize()),
            Self::Sha512(hasher) => hex(&hasher.finalize()),
        }
    }
}

/// Opens or creates the file at this path, and waits for its lock.
fn locked(path: &Path) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.lock()?;
        // The previous holder of the lock may have removed the file or renamed it to an image.
        if is_named(&file, path) {
            return Ok(file);
        }
    }
}

/// The bytes so far, with their checksum.
///
/// Holds the file's lock from before the first byte is read until the file is dropped or renamed into the cache. So
/// neither a cancelled writer that still finishes its last block nor another process ever writes to the same file, and
/// the file that gets the name is the one that was verified.
#[derive(Debug)]
pub(super) struct Partial {
    place: Place,
    /// None: the bytes are only counted and hashed.
    file: Option<File>,
    declared: String,
    hasher: Hasher,
    len: u64,
}

impl Partial {
    /// Opens the existing file and computes its checksum. Blocking.
    pub(super) fn open(place: &Place, digest: &str) -> Result<Self, SystemError> {
        let open = || -> io::Result<Self> {
            let mut partial = Self { file: Some(locked(&place.file)?), ..Self::unstored(place, digest) };
            partial.take_up()?;
            Ok(partial)
        };
        open().map_err(failed("open", &place.file))
    }

    /// Creates a download that does not keep its bytes.
    pub(super) fn unstored(place: &Place, digest: &str) -> Self {
        let (place, hasher) = (place.clone(), Hasher::like(digest));
        Self { place, file: None, declared: digest.to_owned(), hasher, len: 0 }
    }

    /// Whether the bytes are kept, and not only counted and hashed.
    pub(super) fn is_stored(&self) -> bool {
        self.file.is_some()
    }

    pub(super) fn path(&self) -> &Path {
        &self.place.file
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Discards the bytes.
    pub(super) fn discard(self) -> Result<(), SystemError> {
        match &self.file {
            Some(_) => self.place.discard(),
            None => self.place.discard_unused(),
        }
    }

    /// Renames the file to an image. No other file of the download remains.
    pub(super) fn name(self, image: &Path) -> Result<(), SystemError> {
        // The note first: once the file is renamed, the next download of the same source may write its own note.
        let origin = &self.place.origin;
        files::remove_if_there(origin).map_err(failed("remove", origin))?;
        fs::rename(&self.place.file, image).map_err(failed("name", image))
    }

    fn take_up(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut block = vec![0; 1 << 20];
        loop {
            let n = file.read(&mut block)?;
            if n == 0 {
                return Ok(());
            }
            self.hasher.update(&block[..n]);
            self.len += n as u64;
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn restart(&mut self) -> Result<(), SystemError> {
        if let Some(file) = &mut self.file {
            let emptied = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0)));
            emptied.map_err(failed("empty", &self.place.file))?;
        }
        self.hasher = Hasher::like(&self.declared);
        self.len = 0;
        Ok(())
    }

    /// Gives a restarted download this many bytes of a file without a copy of them, if the file system can do that. They are then
    /// [taken up](Self::take_up_next).
    pub(super) fn take_clone(&self, from: &File, total: u64) -> Result<bool, SystemError> {
        let Some(file) = &self.file else { return Ok(false) };
        let cloned = || -> io::Result<bool> {
            let is_cloned = reflink::clone_file(from, file)?;
            if is_cloned {
                file.set_len(total)?;
            }
            Ok(is_cloned)
        };
        cloned().map_err(failed("write", &self.place.file))
    }

    /// Counts and hashes the next bytes that the file has already. Returns their number; none: it was the last.
    pub(super) fn take_up_next(&mut self, block: &mut [u8]) -> Result<usize, SystemError> {
        let Some(file) = &mut self.file else { return Ok(0) };
        let n = file.read(block).map_err(failed("read", &self.place.file))?;
        self.hasher.update(&block[..n]);
        self.len += n as u64;
        Ok(n)
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), SystemError> {
        if let Some(file) = &mut self.file {
            file.write_all(bytes).map_err(failed("write", &self.place.file))?;
        }
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Returns the digest of the bytes.
    pub(super) fn digest(&self) -> String {
        self.hasher.digest()
    }

    /// Whether the bytes match the declared digest.
    pub(super) fn is_right(&self) -> bool {
        self.hasher.digest() == self.declared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts this process's open descriptors of a file.
    fn opened(path: &Path) -> usize {
        let descriptors = fs::read_dir("/proc/self/fd").expect("own descriptors").flatten();
        descriptors.filter(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == path)).count()
    }

    #[test]
    fn who_waited_for_a_download_never_writes_into_what_it_became() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let place = Place::named(folder.path(), "download");
        let image = folder.path().join("image");
        let mut first = Partial::open(&place, "ab").expect("opened");
        first.append(b"image").expect("written");
        let waiting = place.clone();
        let second = std::thread::spawn(move || Partial::open(&waiting, "ab"));
        while opened(&place.file) < 2 {
            std::thread::yield_now();
        }
        fs::rename(&place.file, &image).expect("named");
        drop(first);
        let mut second = second.join().expect("no panic").expect("opened");
        assert_eq!(second.len(), 0, "a file of its own");
        second.append(b"other").expect("written");
        assert_eq!(fs::read(&image).expect("there"), b"image");
        assert_eq!(fs::read(&place.file).expect("there"), b"other");
    }

    #[test]
    fn what_a_killed_process_has_made_goes_with_the_download_and_is_never_written_again() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let place = Place::named(folder.path(), "ab-1");
        let left = ["ab-1.partial.unpacked-7", "ab-1.partial.converted-7"];
        let other = ["ab-12.partial.unpacked-7", "ab-1.partial.json", "ab-1.partial"];
        for name in left.into_iter().chain(other) {
            fs::write(folder.path().join(name), b"x").expect("written");
        }
        assert!(left.iter().all(|name| !place.unpacked.ends_with(name) && !place.converted.ends_with(name)));
        place.discard_made().expect("discarded");
        assert!(left.iter().all(|name| !folder.path().join(name).exists()));
        assert!(other.iter().all(|name| folder.path().join(name).exists()));
    }

    #[test]
    fn a_download_that_has_just_ended_is_waited_for_and_one_in_progress_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::named(folder.path(), "ab-1");
        fs::write(&place.file, "bytes").expect("a file");
        let lock = File::open(&place.file).expect("open");
        lock.lock().expect("locked");
        place.discard_unused().expect("looked at");
        assert!(place.file.exists(), "it is in progress");
        let ends = std::thread::spawn(move || {
            std::thread::sleep(CHECK_LOCK_EVERY * 3);
            drop(lock);
        });
        place.discard_unused().expect("removed");
        assert!(!place.file.exists(), "it has ended");
        ends.join().expect("ended");
    }
}
