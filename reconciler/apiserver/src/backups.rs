//! Scheduled backups. A target that fails or hangs is reported and retried; the server continues to serve.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use berth_engine::ErrorChain;
use berth_store::{
    Backup, BackupError, BackupFile, CredentialFiles, RestoreError, RestoreOptions, Restored, backups_in,
    until_due,
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

/// The backup that was made, if one was due, and whether all succeeded.
type Outcome = (Option<Backup>, Result<(), BackupError>);

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
        let (made, error) = match outcome {
            Ok((made, ended)) => (made, ended.err().map(|error| ErrorChain(&error).to_string())),
            Err(_) => (None, Some("the backup ended unexpectedly".to_owned())),
        };
        if let Some(made) = made {
            counters.made.fetch_add(1, Ordering::Relaxed);
            counters.last_success.store(jiff::Timestamp::now().as_second(), Ordering::Relaxed);
            let (file, revision, bytes) = (made.file.display(), made.revision, made.bytes);
            tracing::info!(%file, revision, bytes, with_keys = made.with_keys, "backup made");
        }
        counters.failing.store(u64::from(error.is_some()), Ordering::Relaxed);
        wait = match error {
            // The folder is checked again no later than this: its newest backup determines when the next is
            // due.
            None => next(&schedule),
            Some(error) => {
                counters.failed.fetch_add(1, Ordering::Relaxed);
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

/// Makes a backup if one is due, and removes the oldest ones beyond the retention count. One that cannot be removed is
/// an error each time.
fn once(directory: &Path, schedule: &BackupSchedule) -> Outcome {
    match make_if_due(directory, schedule) {
        Ok(made) => (made, remove_surplus(schedule)),
        Err(error) => (None, Err(error)),
    }
}

fn make_if_due(directory: &Path, schedule: &BackupSchedule) -> Result<Option<Backup>, BackupError> {
    if !until_due(&schedule.folder, schedule.every, jiff::Timestamp::now()).is_zero() {
        return Ok(None);
    }
    if !schedule.folder.is_dir() {
        let source = std::io::Error::other("it is not a folder (is it mounted?)");
        return Err(BackupError::Target { path: schedule.folder.clone(), source });
    }
    backup(directory, &schedule.folder, schedule.with_keys).map(Some)
}

fn remove_surplus(schedule: &BackupSchedule) -> Result<(), BackupError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| BackupError::Target { path, source }
    };
    let all = backups_in(&schedule.folder).map_err(failed(&schedule.folder))?;
    let mut ended = Ok(());
    for old in surplus(&all, schedule.keep) {
        ended = ended.and(std::fs::remove_file(old).map_err(failed(old)));
    }
    ended
}

/// Returns the backups that at least as many others as are kept follow.
///
/// One follows another if neither its time nor its revision is lower. Times are those of clocks that may have been
/// wrong, and another control plane has other revisions: such backups do not displace each other.
fn surplus(all: &[BackupFile], keep: usize) -> Vec<&Path> {
    let follows =
        |a: &BackupFile, b: &BackupFile| a.path != b.path && a.at >= b.at && a.revision >= b.revision;
    let is_surplus =
        |one: &&BackupFile| all.iter().filter(|other| follows(other, one)).count() >= keep.max(1);
    all.iter().filter(is_surplus).map(|backup| backup.path.as_path()).collect()
}

#[cfg(test)]
mod tests {
    use berth_store::{Storage, Store, WriterMode};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(text: &str) -> jiff::Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_backup_counts_although_older_ones_cannot_be_removed_and_that_is_reported_until_they_are() {
        let place = tempfile::tempdir().unwrap();
        let (state, folder) = (place.path().join("state"), place.path().join("backups"));
        drop(Store::open(&Storage::Directory(state.clone()), WriterMode::Inline).unwrap());
        let old = folder.join(name("20200101T000000Z", 0));
        std::fs::create_dir_all(&old).unwrap();
        let schedule = BackupSchedule { folder, every: HOUR, keep: 1, with_keys: false };
        let (made, ended) = once(&state, &schedule);
        assert!(made.is_some() && ended.is_err(), "{ended:?}");
        let (made, ended) = once(&state, &schedule);
        assert!(made.is_none() && ended.is_err(), "{ended:?}");
        std::fs::remove_dir(&old).unwrap();
        assert!(once(&state, &schedule).1.is_ok());
    }

    fn name(time: &str, revision: u64) -> String {
        format!("berth-{time}-r{revision}.db")
    }

    #[test]
    fn backups_of_the_future_neither_delay_a_backup_nor_have_one_removed() {
        let folder = tempfile::tempdir().unwrap();
        let put = |time: &str, revision| {
            std::fs::write(folder.path().join(name(time, revision)), "").unwrap();
        };
        let due = |now: &str| until_due(folder.path(), HOUR, at(now));
        let removed = |keep| -> Vec<String> {
            let all = backups_in(folder.path()).unwrap();
            let old = surplus(&all, keep).into_iter();
            old.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        for (time, revision) in [("20360101T000000Z", 8), ("20360102T000000Z", 9), ("20360103T000000Z", 9)] {
            put(time, revision);
        }
        assert_eq!(due("2026-12-01T10:00:00Z"), Duration::ZERO);
        for (time, revision) in
            [("20261201T080000Z", 12), ("20261201T090000Z", 12), ("20261201T100000Z", 100)]
        {
            put(time, revision);
        }
        assert_eq!(due("2026-12-01T10:15:00Z"), 3 * HOUR / 4);
        assert_eq!(removed(3), Vec::<String>::new());
        assert_eq!(removed(2), [name("20261201T080000Z", 12), name("20360101T000000Z", 8)]);
        // A clock at its beginning.
        assert_eq!(due("1970-01-01T00:00:10Z"), Duration::ZERO);
        put("19700101T000010Z", 101);
        assert_eq!(removed(3), Vec::<String>::new());
        // Once the time has come, the backups of it go as all others.
        for (time, revision) in
            [("20360201T000000Z", 200), ("20360202T000000Z", 201), ("20360203T000000Z", 202)]
        {
            put(time, revision);
        }
        assert_eq!(removed(3).len(), 7);
    }
}
