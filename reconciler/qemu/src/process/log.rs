//! Log files that QEMU and guests write: read and kept within bounds.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The last lines of a file, without control characters; empty if there is no such file.
///
/// The directory belongs to the user QEMU runs as: a symbolic link in it is not followed.
pub fn last_lines(path: &Path, lines: usize, max_bytes: u64) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let mut file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        other => other?,
    };
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(max_bytes)))?;
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let clean: String = text.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect();
    let all: Vec<&str> = clean.lines().filter(|l| !l.trim().is_empty()).collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}

/// Empties a log that has grown past `max_bytes`. Its writer appends, so it goes on at the new end.
pub fn truncate_log(path: &Path, max_bytes: u64) -> io::Result<bool> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    let too_long = metadata.is_file() && metadata.len() > max_bytes;
    if too_long {
        file.set_len(0)?;
    }
    Ok(too_long)
}
