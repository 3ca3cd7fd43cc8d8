//! Small files that an option names: a password, a join string, a kubeconfig.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read},
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::{
    libc::O_NONBLOCK,
    poll::{PollFd, PollFlags, poll},
};

/// How long the program at the other end of a pipe may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one wait for it takes, in milliseconds.
const LOOK_EVERY: u16 = 500;

/// Returns the text of a file of at most this many bytes. It may be a pipe, as `<(command)` of a shell is one.
///
/// *Errors:* the file cannot be read, is longer or is no text; no program writes to the pipe.
pub(super) fn read(path: &Path, limit: u64) -> anyhow::Result<String> {
    let reading = || format!("reading {}", path.display());
    let bytes = if fs::metadata(path).with_context(reading)?.file_type().is_fifo() {
        of_pipe(path, limit, PATIENCE).with_context(reading)?
    } else {
        let mut bytes = Vec::new();
        // A device may have no end.
        File::open(path)
            .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
            .with_context(reading)?;
        bytes
    };
    ensure!(
        u64::try_from(bytes.len()).is_ok_and(|length| length <= limit),
        "{} has more than {limit} bytes: name the file with the text alone",
        path.display()
    );
    String::from_utf8(bytes).ok().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Reads a pipe to its end, or past the limit. Opening and reading one that no program writes to would never end.
fn of_pipe(path: &Path, limit: u64, patience: Duration) -> anyhow::Result<Vec<u8>> {
    let mut pipe = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let end = Instant::now() + patience;
    let mut found = Vec::new();
    let mut part = [0; 4096];
    while Instant::now() < end {
        let mut ends = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        // A signal interrupts the wait.
        if !poll(&mut ends, LOOK_EVERY).is_ok_and(|ready| ready > 0) {
            continue;
        }
        match pipe.read(&mut part) {
            Ok(0) => return Ok(found),
            Ok(length) => found.extend_from_slice(&part[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        if u64::try_from(found.len()).is_ok_and(|length| length > limit) {
            return Ok(found);
        }
    }
    bail!("it is a pipe, and the program that writes to it did not end within {} seconds", patience.as_secs())
}

#[cfg(test)]
mod tests {
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_file_is_read_up_to_a_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("password");
        fs::write(&path, "secret\n").expect("written");
        assert_eq!(read(&path, 7).expect("it fits"), "secret\n");
        let refused = |path: &Path, limit| format!("{:#}", read(path, limit).expect_err("refused"));
        assert!(refused(&path, 6).contains("has more than 6 bytes"));
        let endless = refused(Path::new("/dev/zero"), 4096);
        assert!(endless.starts_with("/dev/zero has more than 4096 bytes"), "{endless}");
        fs::write(&path, [0xff]).expect("written");
        assert!(refused(&path, 7).contains("is not UTF-8"));
        assert!(refused(&folder.path().join("none"), 7).starts_with("reading "));
    }

    #[test]
    fn a_pipe_that_no_program_writes_to_is_waited_for_only_for_a_while() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
        let silent = of_pipe(&path, 7, Duration::from_millis(10)).expect_err("silent").to_string();
        assert!(silent.contains("did not end within"), "{silent}");
    }
}
