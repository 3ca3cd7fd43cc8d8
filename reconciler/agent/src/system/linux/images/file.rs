//! Images that are files on the host.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::Url;
use tokio::sync::watch;

use super::super::files::{blocking, failed};
use super::download::Job;
use super::partial::Partial;
use super::{Result, Seen};

/// Copies the file, from its start: it is fast, and half a copy says nothing about which version it was.
pub(super) async fn copy(job: &Job<'_>, url: &Url, partial: Partial) -> Result<Partial> {
    let path = url.to_file_path().map_err(|()| job.failed("not the path of a file on this host"))?;
    let file = open(job, path.clone()).await?;
    let total = file.metadata().map_err(failed("read", &path))?.len();
    job.check_size(total, 0)?;
    let stop = StopOnDrop::default();
    let (stopped, report) = (Arc::clone(&stop.0), job.report.clone());
    blocking(move || transfer(file, &path, total, partial, &stopped, &report)).await
}

async fn open(job: &Job<'_>, path: PathBuf) -> Result<File> {
    let opened = {
        let path = path.clone();
        // Looked at before it is opened: opening a pipe would wait for its writer.
        blocking(move || match std::fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => Err(io::Error::from(io::ErrorKind::InvalidInput)),
            Ok(_) => File::open(&path),
            Err(error) => Err(error),
        })
        .await
    };
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => job.not_found("no such file on this host"),
        io::ErrorKind::InvalidInput => job.failed("not a regular file"),
        _ => failed("read", &path)(error),
    })
}

fn transfer(
    file: File,
    path: &Path,
    total: u64,
    mut partial: Partial,
    stopped: &AtomicBool,
    report: &watch::Sender<Seen>,
) -> Result<Partial> {
    partial.restart()?;
    // No more than was there at the start: a file that grows is not going to have the declared checksum.
    let mut file = file.take(total);
    let mut block = vec![0; 1 << 20];
    while !stopped.load(Ordering::Relaxed) {
        let n = file.read(&mut block).map_err(failed("read", path))?;
        if n == 0 {
            break;
        }
        partial.append(&block[..n])?;
        report.send_replace((partial.len(), Some(total)));
    }
    Ok(partial)
}

/// The copying thread ends soon after nobody waits for it any more.
#[derive(Debug, Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
