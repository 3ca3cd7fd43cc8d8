//! Clients that start as informers of client-go and kube-rs do: with one watch that first sends all existing objects.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::STACK;
use crate::access::Access;

/// The read timeout of each informer while the others receive their data.
const PATIENCE: Duration = Duration::from_secs(120);
const QUERY: &str =
    "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";

/// The data that each informer received, and the time until the last had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Synced {
    pub(super) objects: usize,
    pub(super) bytes: usize,
    pub(super) took: Duration,
}

/// Starts `count` informers at once, only on `core` if given, until each has received the final bookmark.
pub(super) fn sync(access: &Access, path: &str, count: usize, core: Option<usize>) -> Result<Synced> {
    let begun = Instant::now();
    let seen = std::thread::scope(|scope| {
        let one = |_| {
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, || {
                core.map_or(Ok(()), stay_on)?;
                sent(access, path)
            })
        };
        let threads = (0..count).map(one).collect::<std::io::Result<Vec<_>>>()?;
        let ended = threads.into_iter().map(|one| one.join().map_err(|_| anyhow!("an informer panicked"))?);
        ended.collect::<Result<Vec<(usize, usize)>>>()
    })?;
    let first = *seen.first().context("there are no informers")?;
    ensure!(seen.iter().all(|one| *one == first), "they were not sent the same: {seen:?}");
    let (objects, bytes) = first;
    Ok(Synced { objects, bytes, took: begun.elapsed() })
}

/// Pins this thread to one core.
fn stay_on(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &cores).with_context(|| format!("staying on core {core}"))
}

/// The number of objects before the bookmark that ends the list, and the number of bytes. Lines are counted, not parsed: the
/// server is being measured.
fn sent(access: &Access, path: &str) -> Result<(usize, usize)> {
    let mut stream = access.stream(PATIENCE)?;
    let (host, token) = (&access.address, access.token());
    let head =
        format!("GET {path}?{QUERY} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.get_mut().write_all(head.as_bytes())?;
    stream.get_mut().flush()?;
    let (mut count, mut bytes, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        ensure!(stream.read_until(b'\n', &mut line)? > 0, "the watch ended after {count} objects");
        bytes += line.len();
        if line.starts_with(b"{\"type\":\"ADDED\"") {
            count += 1;
        } else if line.starts_with(b"{\"type\":\"BOOKMARK\"") {
            ensure!(String::from_utf8_lossy(&line).contains("k8s.io/initial-events-end"), "another bookmark");
            return Ok((count, bytes));
        }
    }
}
