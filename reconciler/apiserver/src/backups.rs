//! Backups by schedule. A target that fails, or hangs, is told and tried again; the server goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::config::BackupSchedule;
use crate::core::Core;
use crate::store::{Backup, BackupError, backup, backups_in, is_due};

/// How long after a failure the next attempt is made, if that is sooner than the schedule's.
const RETRY: Duration = Duration::from_secs(300);
/// A backup that takes longer is told of: a mounted folder may hang for good.
const LATE: Duration = Duration::from_secs(900);

/// What `/metrics` says of backups.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) made: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// 1 from a failure until the next success.
    pub(crate) failing: AtomicU64,
    /// Seconds since 1970 of the last success of this process; 0 before it.
    pub(crate) last_success: AtomicI64,
}

type Outcome = Result<Option<Backup>, BackupError>;

/// Runs until the server stops. A backup under way then is left behind; a later one sweeps it up.
pub(crate) async fn run(core: Arc<Core>, directory: PathBuf, schedule: BackupSchedule) {
    let counters = &core.backups;
    let mut wait = Duration::ZERO;
    loop {
        tokio::select! {
            () = core.stopping.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let mut answer = start(&directory, &schedule);
        let outcome = tokio::select! {
            () = core.stopping.cancelled() => return,
            outcome = &mut answer => outcome,
            () = tokio::time::sleep(LATE) => {
                counters.failing.store(1, Ordering::Relaxed);
                tracing::error!(folder = %schedule.folder.display(), "a backup hangs; the server goes on without");
                tokio::select! {
                    () = core.stopping.cancelled() => return,
                    outcome = &mut answer => outcome,
                }
            }
        };
        wait = match outcome {
            Ok(Ok(made)) => {
                counters.failing.store(0, Ordering::Relaxed);
                if let Some(made) = made {
                    counters.made.fetch_add(1, Ordering::Relaxed);
                    counters.last_success.store(jiff::Timestamp::now().as_second(), Ordering::Relaxed);
                    let (file, revision, bytes) = (made.file.display(), made.revision, made.bytes);
                    tracing::info!(%file, revision, bytes, with_keys = made.with_keys, "backup made");
                }
                // The folder is looked at again at the latest then: its newest backup says what is due.
                next(&schedule)
            }
            failed => {
                counters.failing.store(1, Ordering::Relaxed);
                counters.failed.fetch_add(1, Ordering::Relaxed);
                let error = match failed {
                    Ok(Err(error)) => chain(&error),
                    _ => "the backup ended unexpectedly".into(),
                };
                tracing::error!(folder = %schedule.folder.display(), error, "backup failed; the server goes on");
                RETRY.min(schedule.every)
            }
        };
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(source) = at {
        text = format!("{text}: {source}");
        at = source.source();
    }
    text
}

fn next(schedule: &BackupSchedule) -> Duration {
    // Soon enough for a clock that was set, late enough to be idle.
    schedule.every.min(Duration::from_secs(60)).max(Duration::from_secs(1))
}

/// A thread of its own: no runtime waits for one that hangs.
fn start(directory: &Path, schedule: &BackupSchedule) -> oneshot::Receiver<Outcome> {
    let (answer, answered) = oneshot::channel();
    let (directory, schedule) = (directory.to_owned(), schedule.clone());
    let spawned = std::thread::Builder::new().name("backup".into()).spawn(move || {
        // The server may have stopped meanwhile.
        let _ = answer.send(once(&directory, &schedule));
    });
    if let Err(error) = spawned {
        // The sender is gone with the closure: the receiver tells.
        tracing::error!(%error, "starting a thread failed");
    }
    answered
}

/// Makes a backup if one is due, and removes the oldest beyond those to keep.
fn once(directory: &Path, schedule: &BackupSchedule) -> Outcome {
    let target = |source| BackupError::Target { path: schedule.folder.clone(), source };
    if !is_due(&schedule.folder, schedule.every, jiff::Timestamp::now()).is_zero() {
        return Ok(None);
    }
    if !schedule.folder.is_dir() {
        return Err(target(std::io::Error::other("it is not a folder (is it mounted?)")));
    }
    let made = backup(directory, &schedule.folder, schedule.with_keys)?;
    let all = backups_in(&schedule.folder).map_err(target)?;
    let beyond = all.len().saturating_sub(schedule.keep.max(1));
    for (old, _) in all.iter().take(beyond) {
        std::fs::remove_file(old).map_err(|source| BackupError::Target { path: old.clone(), source })?;
    }
    Ok(Some(made))
}
