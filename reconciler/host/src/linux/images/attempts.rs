//! The missing part of a file, received in attempts: from a server (`http`), or from another host (`copy`). Interrupted ones are
//! resumed; stalled and too slow ones fail.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::files::blocking;
use super::Result;
use super::job::Job;
use super::partial::Partial;
use super::rules::Rules;
use crate::SystemError;

/// The timeout for a source that sends nothing.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of consecutive attempts without progress.
const MAX_FRUITLESS: u32 = 4;
/// The maximum number of attempts: a source that disconnects every few bytes is left to the caller's back-off.
const MAX_ATTEMPTS: u32 = 64;
/// The capacity of the queue between the network and the disk, in blocks.
const QUEUE: usize = 16;

/// How the bytes of a source come.
#[async_trait]
pub(super) trait Transport: Sync {
    /// Requests the bytes after those of the file. Empties the file if they belong to other bytes.
    async fn begin(&self, job: &Job<'_>, partial: &mut Partial) -> std::result::Result<Begun, Stop>;
}

/// The answer to a request.
pub(super) enum Begun {
    /// The missing bytes; the error of a block is for people. `total`: the size of the whole file, if it is known.
    Stream { total: Option<u64>, blocks: BoxStream<'static, std::result::Result<Bytes, String>> },
    /// No byte is missing.
    Complete,
}

/// The rate of a download.
#[derive(Debug)]
struct Pace {
    least: u64,
    window: Duration,
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new(rules: &Rules) -> Self {
        let (least, window) = (rules.given.least_rate, rules.given.rate_window);
        Self { least, window, since: Instant::now(), bytes: 0 }
    }

    /// Counts bytes; returns false after a whole window below the minimum rate.
    fn keeps_up(&mut self, bytes: u64) -> bool {
        self.bytes += bytes;
        if self.since.elapsed() < self.window {
            return true;
        }
        let needed = self.least as f64 * self.since.elapsed().as_secs_f64();
        let enough = self.bytes as f64 >= needed;
        (self.since, self.bytes) = (Instant::now(), 0);
        enough
    }

    fn too_slow(&self, job: &Job<'_>) -> SystemError {
        job.failed(format!(
            "the source is too slow: fewer than {} KiB a second over {} seconds",
            self.least >> 10,
            self.window.as_secs()
        ))
    }
}

/// Why an attempt ended early.
pub(super) enum Stop {
    /// Retry at once.
    Cut(String),
    Final(SystemError),
}

impl From<SystemError> for Stop {
    fn from(error: SystemError) -> Self {
        Self::Final(error)
    }
}

/// Downloads the missing part of the file.
pub(super) async fn download(job: &Job<'_>, from: &dyn Transport, mut partial: Partial) -> Result<Partial> {
    let mut pace = Pace::new(job.rules);
    let (mut fruitless, mut attempts) = (0, 0);
    loop {
        let before = partial.len();
        let (kept, outcome) = attempt(job, from, partial, &mut pace).await;
        let stopped = match (kept, outcome) {
            (Some(complete), Ok(())) => return Ok(complete),
            (_, Err(Stop::Final(error))) => return Err(error),
            (Some(rest), Err(Stop::Cut(detail))) => {
                partial = rest;
                detail
            }
            (None, _) => unreachable!("only a failed write keeps nothing, and that is final"),
        };
        fruitless = if partial.len() > before { 0 } else { fruitless + 1 };
        attempts += 1;
        if !pace.keeps_up(0) {
            return Err(pace.too_slow(job));
        }
        if fruitless >= MAX_FRUITLESS || attempts >= MAX_ATTEMPTS {
            return Err(job.failed(stopped));
        }
        tracing::debug!(bytes = partial.len(), stopped, "download cut off; resuming");
        tokio::time::sleep(Duration::from_millis(200) * (1 << fruitless)).await;
    }
}

type Attempt = (Option<Partial>, std::result::Result<(), Stop>);

async fn attempt(job: &Job<'_>, from: &dyn Transport, mut partial: Partial, pace: &mut Pace) -> Attempt {
    match from.begin(job, &mut partial).await {
        Ok(Begun::Stream { total, blocks }) => receive(job, blocks, partial, total, pace).await,
        Ok(Begun::Complete) => (Some(partial), Ok(())),
        Err(stop) => (Some(partial), Err(stop)),
    }
}

/// Moves the blocks to the file. A separate thread writes and hashes, behind a short queue.
async fn receive(
    job: &Job<'_>,
    mut incoming: BoxStream<'static, std::result::Result<Bytes, String>>,
    mut partial: Partial,
    total: Option<u64>,
    pace: &mut Pace,
) -> Attempt {
    let mut len = partial.len();
    let (blocks, mut queue) = mpsc::channel::<Bytes>(QUEUE);
    let writer = tokio::spawn(blocking(move || {
        while let Some(block) = queue.blocking_recv() {
            if let Err(error) = partial.append(&block) {
                return (None, Err(error));
            }
        }
        (Some(partial), Ok(()))
    }));
    let outcome = loop {
        match incoming.next().await {
            None => break Ok(()),
            Some(Err(detail)) => break Err(Stop::Cut(detail)),
            Some(Ok(block)) => {
                len += block.len() as u64;
                if !pace.keeps_up(block.len() as u64) {
                    break Err(Stop::Final(pace.too_slow(job)));
                }
                if let Err(error) = job.check_limit(len) {
                    break Err(Stop::Final(error));
                }
                if blocks.send(block).await.is_err() {
                    break Ok(()); // The writer has failed and returns its error below.
                }
                job.report.send_replace((len, total));
            }
        }
    };
    drop(blocks);
    let (partial, written) = writer.await.expect("the writer neither panics nor is cancelled");
    if let Err(error) = written {
        return (None, Err(Stop::Final(error)));
    }
    let short = total.is_some_and(|t| len < t);
    let outcome = match outcome {
        Ok(()) if short => Err(Stop::Cut("the connection was closed in the middle".to_owned())),
        other => other,
    };
    (partial, outcome)
}
