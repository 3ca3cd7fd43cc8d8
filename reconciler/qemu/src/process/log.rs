//! Log files that QEMU and guests write: opened safely, read, and limited in size.
//!
//! A QEMU that a guest has taken over may have replaced a log by a link, a FIFO or a device. Nothing here follows,
//! waits for, or writes to such an object.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Never blocks, and never follows a symbolic link.
const CAREFUL: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Opens a log for appending. Replaces any object at its path that is not a regular file with a single link.
pub(super) fn open_log(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o640).custom_flags(CAREFUL);
    match options.open(path).and_then(plain) {
        Ok(file) => return Ok(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => std::fs::remove_file(path)?,
    }
    options.create_new(true).open(path)
}

/// Opens an empty file for a machine's state, which only the caller's user can open. Replaces any other object at its path.
pub(super) fn open_state(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(CAREFUL).open(path)
}

/// Opens a machine's state for reading: a regular file of the caller's user, which no QEMU can have put there. It may have another name, as
/// a snapshot's.
pub(super) fn open_saved(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(CAREFUL).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.uid() == nix::unistd::Uid::effective().as_raw() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file of this user"))
}

/// Returns the file if it is a regular file with a single link.
fn plain(file: File) -> io::Result<File> {
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.nlink() == 1 {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file of one name"))
}

/// Returns the last lines of a file, without control characters; empty if there is no such file.
///
/// *Errors:* the path is not a regular file.
pub fn last_lines(path: &Path, lines: usize, max_bytes: u64) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(CAREFUL).open(path);
    let mut file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        other => plain(other?)?,
    };
    let bytes = tail(&mut file, max_bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let clean: String = text.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect();
    let all: Vec<&str> = clean.lines().filter(|l| !l.trim().is_empty()).collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}

/// Returns the last bytes of a file as they are; empty if there is no such file.
///
/// *Errors:* the path is not a regular file.
pub fn last_bytes(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    match OpenOptions::new().read(true).custom_flags(CAREFUL).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => tail(&mut plain(other?)?, max_bytes),
    }
}

fn tail(file: &mut File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(max_bytes)))?;
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Truncates a log that exceeds `max_bytes`, and returns the last `max_bytes` of its content. Its writer appends, so it
/// continues at the new end.
pub fn cut_log(path: &Path, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(CAREFUL).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => plain(other?)?,
    };
    if file.metadata()?.len() <= max_bytes {
        return Ok(None);
    }
    let last = tail(&mut file, max_bytes)?;
    file.set_len(0)?;
    Ok(Some(last))
}
