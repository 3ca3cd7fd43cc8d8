//! Scheduled backups. A target that fails or hangs is reported and retried; the server continues to serve.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use berth_engine::ErrorChain;
use berth_store::{
    Backup, BackupError, CredentialFiles, RestoreError, RestoreOptions, Restored, surplus_in, until_due,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config::BackupSchedule;
use crate::credentials::{DERIVED, FILES};
use crate::service_account;

/// The key of service account tokens comes first.
const CREDENTIALS: CredentialFiles =
    CredentialFiles { kept: &[service_account::KEY_FILE, FILES[0], FILES[1], FILES[2]], derived: &DERIVED };

/// Backs up the database of a state directory to a new file, or into a folder under a generated name.
///
/// Assumptions: a server may be running on the directory. Blocks until the file is durable.
///
/// # Errors
/// See [`BackupError`].
pub fn backup(directory: &Path, target: &Path, with_keys: bool) -> Result<Backup, BackupError> {
    berth_store::backup(directory, target, with_keys.then_some(&CREDENTIALS))
}

/// Restores a backup into a state directory.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore(file: &Path, directory: &Path, options: &RestoreOptions) -> Result<Restored, RestoreError> {
    berth_store::restore(file, directory, options, &CREDENTIALS)
}

/// The delay before a retry after a failure, unless the schedule is due sooner.
const RETRY: Duration = Duration::from_secs(300);
/// A backup that takes longer is reported: a mounted folder may hang forever.
const LATE: Duration = Duration::from_secs(900);

/// The backup counters in `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) made: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// 1 from a failure until the next success.
    pub(crate) failing: AtomicU64,
    /// Seconds since 1970 of the last success of this process; 0 before the first.
    pub(crate) last_success: AtomicI64,
}

type Outcome = Result<Option<Backup>, BackupError>;

/// Runs until the server stops. A backup in progress is then abandoned; a later backup removes its remains.
pub(crate) async fn run(
    counters: Arc<Counters>,
    stopping: CancellationToken,
    directory: PathBuf,
    schedule: BackupSchedule,
) {
    let mut wait = Duration::ZERO;
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let mut answer = start(&directory, &schedule);
        let outcome = tokio::select! {
            () = stopping.cancelled() => return,
            outcome = &mut answer => outcome,
            () = tokio::time::sleep(LATE) => {
                counters.failing.store(1, Ordering::Relaxed);
                tracing::error!(folder = %schedule.folder.display(), "a backup hangs; the server goes on without");
                tokio::select! {
                    () = stopping.cancelled() => return,
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
                // The folder is checked again no later than this: its newest backup determines when the next
                // is due.
                next(&schedule)
            }
            failed => {
                counters.failing.store(1, Ordering::Relaxed);
                counters.failed.fetch_add(1, Ordering::Relaxed);
                let error = match failed {
                    Ok(Err(error)) => ErrorChain(&error).to_string(),
                    _ => "the backup ended unexpectedly".into(),
                };
                tracing::error!(folder = %schedule.folder.display(), error, "backup failed; the server goes on");
                RETRY.min(schedule.every)
            }
        };
    }
}

fn next(schedule: &BackupSchedule) -> Duration {
    // Short enough to notice a changed clock, long enough to stay idle.
    schedule.every.min(Duration::from_secs(60)).max(Duration::from_secs(1))
}

/// Starts a backup on a thread of its own: the runtime does not wait for one that hangs.
fn start(directory: &Path, schedule: &BackupSchedule) -> oneshot::Receiver<Outcome> {
    let (answer, answered) = oneshot::channel();
    let (directory, schedule) = (directory.to_owned(), schedule.clone());
    let spawned = std::thread::Builder::new().name("backup".into()).spawn(move || {
        // The server may have stopped in the meantime.
        let _ = answer.send(once(&directory, &schedule));
    });
    if let Err(error) = spawned {
        // The sender was dropped with the closure, so the receiver returns an error.
        tracing::error!(%error, "starting a thread failed");
    }
    answered
}

/// Makes a backup if one is due, and removes the oldest ones beyond the retention count.
fn once(directory: &Path, schedule: &BackupSchedule) -> Outcome {
    let target = |source| BackupError::Target { path: schedule.folder.clone(), source };
    if !until_due(&schedule.folder, schedule.every, jiff::Timestamp::now()).is_zero() {
        return Ok(None);
    }
    if !schedule.folder.is_dir() {
        return Err(target(std::io::Error::other("it is not a folder (is it mounted?)")));
    }
    let made = backup(directory, &schedule.folder, schedule.with_keys)?;
    let surplus = surplus_in(&schedule.folder, schedule.keep, jiff::Timestamp::now()).map_err(target)?;
    for old in surplus {
        std::fs::remove_file(&old).map_err(|source| BackupError::Target { path: old.clone(), source })?;
    }
    Ok(Some(made))
}
