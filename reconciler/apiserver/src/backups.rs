//! Scheduled backups. A target that fails or hangs is reported and retried; the server continues to serve.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use berth_engine::ErrorChain;
use berth_store::{
    Backup, BackupError, CredentialFiles, RestoreError, RestoreOptions, Restored, backups_in, until_due,
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
    let all = backups_in(&schedule.folder).map_err(target)?;
    for old in surplus(&all, schedule.keep, jiff::Timestamp::now()) {
        std::fs::remove_file(old).map_err(|source| BackupError::Target { path: old.into(), source })?;
    }
    Ok(Some(made))
}

/// Returns the oldest of these backups, which are in order of age, beyond the number that is kept.
///
/// Those that are dated in the future were made while the clock was ahead. They are counted for themselves: as the
/// newest ones they would have each new backup removed.
fn surplus<'a>(all: &'a [(PathBuf, jiff::Timestamp)], keep: usize, now: jiff::Timestamp) -> Vec<&'a Path> {
    let (past, future): (Vec<_>, Vec<_>) = all.iter().partition(|(_, at)| *at <= now);
    let oldest = |group: Vec<&'a (PathBuf, jiff::Timestamp)>| {
        let beyond = group.len().saturating_sub(keep.max(1));
        group.into_iter().take(beyond).map(|(path, _)| path.as_path())
    };
    [past, future].into_iter().flat_map(oldest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(text: &str) -> jiff::Timestamp {
        text.parse().unwrap()
    }

    fn name(time: &str) -> String {
        format!("berth-{time}-r42.db")
    }

    #[test]
    fn backups_of_the_future_neither_delay_a_backup_nor_have_one_removed() {
        let folder = tempfile::tempdir().unwrap();
        let put = |time: &str| std::fs::write(folder.path().join(name(time)), "").unwrap();
        let due = |now: &str| until_due(folder.path(), HOUR, at(now));
        for time in ["20360101T000000Z", "20360102T000000Z", "20360103T000000Z"] {
            put(time);
        }
        assert_eq!(due("2026-12-01T10:00:00Z"), Duration::ZERO);
        for time in ["20261201T080000Z", "20261201T090000Z", "20261201T100000Z"] {
            put(time);
        }
        assert_eq!(due("2026-12-01T10:15:00Z"), 3 * HOUR / 4);
        let all = backups_in(folder.path()).unwrap();
        let removed = |keep, now| -> Vec<String> {
            let old = surplus(&all, keep, at(now)).into_iter();
            old.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(removed(3, "2026-12-01T10:00:00Z"), Vec::<String>::new());
        let oldest = [name("20261201T080000Z"), name("20360101T000000Z")];
        assert_eq!(removed(2, "2026-12-01T10:00:00Z"), oldest);
        // A clock at its beginning, or one that was never wrong.
        assert_eq!(due("1970-01-01T00:00:10Z"), Duration::ZERO);
        assert_eq!(removed(6, "1970-01-01T00:00:10Z"), Vec::<String>::new());
        assert_eq!(removed(5, "2036-02-01T00:00:00Z"), [name("20261201T080000Z")]);
    }
}
