//! The file of a kubeconfig that a user names: whatever it is, it is read within limits or refused.

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
use kube::config::Kubeconfig;
use nix::{
    libc::O_NONBLOCK,
    poll::{PollFd, PollFlags, poll},
};

/// The greatest length in bytes. One of a hundred clusters with their certificates has less than a tenth of it.
const LIMIT: u64 = 16 << 20;
/// How long the program at the other end of a pipe may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one wait for it takes, in milliseconds.
const LOOK_EVERY: u16 = 500;

/// Reads a kubeconfig from a file, or from a pipe as `<(command)` of a shell is one.
///
/// *Errors:* it cannot be read, is too long, or has no end; it is no kubeconfig.
pub(super) fn read(path: &Path) -> anyhow::Result<Kubeconfig> {
    let reading = || format!("reading kubeconfig {}", path.display());
    if is_pipe(path).with_context(reading)? {
        let text = of_pipe(path, PATIENCE).with_context(reading)?;
        return Kubeconfig::from_yaml(&text).with_context(reading);
    }
    Kubeconfig::read_from(path).with_context(reading)
}

/// Whether the file is a pipe.
///
/// *Errors:* it is neither a pipe nor a file of a kubeconfig's length: kube would read a device without an end.
pub(super) fn is_pipe(path: &Path) -> anyhow::Result<bool> {
    let found = fs::metadata(path)?;
    let kind = found.file_type();
    ensure!(!kind.is_dir(), "it is a directory: name the file in it");
    ensure!(kind.is_file() || kind.is_fifo(), "it is neither a file nor a pipe");
    ensure!(found.len() <= LIMIT, "it has more than {} MiB, and is no kubeconfig", LIMIT >> 20);
    Ok(kind.is_fifo())
}

/// Reads a pipe to its end. Opening and reading one that no program writes to would never end.
fn of_pipe(path: &Path, patience: Duration) -> anyhow::Result<String> {
    let mut pipe: File = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
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
            Ok(0) => return String::from_utf8(found).ok().context("it is not UTF-8"),
            Ok(length) => found.extend_from_slice(&part[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        ensure!(
            u64::try_from(found.len()).is_ok_and(|length| length <= LIMIT),
            "it has more than {} MiB, and is no kubeconfig",
            LIMIT >> 20
        );
    }
    bail!("it is a pipe, and the program that writes to it did not end within {} seconds", patience.as_secs())
}

#[cfg(test)]
mod tests {
    use std::{io::Write, thread};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    const TEXT: &str = "apiVersion: v1\nkind: Config\ncurrent-context: here\n";

    fn refused(path: &Path) -> String {
        format!("{:#}", read(path).expect_err("refused"))
    }

    #[test]
    fn a_file_without_an_end_or_of_another_kind_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(refused(Path::new("/dev/zero")).ends_with("it is neither a file nor a pipe"));
        let of_folder = refused(folder.path());
        assert!(of_folder.contains("it is a directory"), "{of_folder}");
        let path = folder.path().join("config");
        File::create(&path).and_then(|file| file.set_len(LIMIT + 1)).expect("a file");
        assert!(refused(&path).contains("more than 16 MiB"));
        assert!(refused(&folder.path().join("none")).starts_with("reading kubeconfig "));
        fs::write(&path, TEXT).expect("written");
        assert_eq!(read(&path).expect("a kubeconfig").current_context.as_deref(), Some("here"));
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_waited_for_only_for_a_while() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
        let silent = of_pipe(&path, Duration::from_millis(10)).expect_err("silent").to_string();
        assert!(silent.contains("did not end within"), "{silent}");
        let writer = {
            let path = path.clone();
            thread::spawn(move || {
                let mut pipe = OpenOptions::new().write(true).open(path)?;
                pipe.write_all(TEXT.as_bytes())
            })
        };
        assert_eq!(read(&path).expect("a kubeconfig").current_context.as_deref(), Some("here"));
        writer.join().expect("it ends").expect("it is read");
    }
}
