//! Images from files on the host, in the directories that its administrator allows.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use reqwest::Url;
use tokio::sync::watch;

use super::super::files::{blocking, failed};
use super::job::Job;
use super::partial::Partial;
use super::{Result, Seen};

/// The same message for every path outside the directories, whether or not the file exists.
const NOT_ALLOWED: &str =
    "files of the host are images only below the folders that its administrator names with --image-dir";

/// Copies the file from its start, without a copy of its data where the file system can do that: copying is fast, and a partial copy does not identify the version it was made from.
pub(super) async fn copy(job: &Job<'_>, url: &Url, partial: Partial) -> Result<Partial> {
    let path = url.to_file_path().map_err(|()| job.failed("not the path of a file on this host"))?;
    let file = opened(job, path.clone()).await?;
    let total = file.metadata().map_err(failed("read", &path))?.len();
    job.check_size(total, 0)?;
    let stop = StopOnDrop::default();
    let (stopped, report) = (Arc::clone(&stop.0), job.report.clone());
    // Reads at most the initial size: a file that grows will not have the declared checksum.
    blocking(move || transfer(file.take(total), &path, partial, &stopped, &report)).await
}

async fn opened(job: &Job<'_>, path: PathBuf) -> Result<File> {
    let below = job.rules.given.folders.iter().find_map(|folder| {
        let rest = path.strip_prefix(folder).ok()?;
        Some((folder.clone(), rest.to_owned()))
    });
    let (folder, rest) = below.ok_or_else(|| job.not_allowed(NOT_ALLOWED))?;
    let opened = blocking(move || open_beneath(&folder, &rest)).await;
    opened.map_err(|error| match error {
        Errno::ENOENT | Errno::ENOTDIR => job.not_found("no such file on this host"),
        // The path leaves the directory: by `..`, a symbolic link or a magic link.
        Errno::EXDEV | Errno::ELOOP => job.not_allowed(NOT_ALLOWED),
        Errno::EINVAL | Errno::ENXIO => job.failed("not a regular file"),
        error => failed("read", &path)(io::Error::from(error)),
    })
}

/// Opens a regular file in a directory. Links may lead elsewhere within it, never out of it.
fn open_beneath(folder: &Path, rest: &Path) -> nix::Result<File> {
    let folder: OwnedFd = open(folder, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let how = OpenHow::new()
        // Opening a FIFO must not wait for its writer.
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = File::from(openat2(&folder, rest, how)?);
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        _ => Err(Errno::EINVAL),
    }
}

fn transfer(
    mut file: io::Take<File>,
    path: &Path,
    mut partial: Partial,
    stopped: &AtomicBool,
    report: &watch::Sender<Seen>,
) -> Result<Partial> {
    partial.restart()?;
    let total = file.limit();
    let mut block = vec![0; 1 << 20];
    let is_clone = partial.take_clone(file.get_ref(), total)?;
    while !stopped.load(Ordering::Relaxed) {
        let n = if is_clone {
            partial.take_up_next(&mut block)?
        } else {
            let n = file.read(&mut block).map_err(failed("read", path))?;
            partial.append(&block[..n])?;
            n
        };
        if n == 0 {
            break;
        }
        report.send_replace((partial.len(), Some(total)));
    }
    Ok(partial)
}

/// Stops the copying thread soon after its future is dropped.
#[derive(Debug, Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
