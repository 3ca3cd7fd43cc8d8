//! Downloads in the background, and other long work: images that are made here, copied from another host or verified after an upload,
//! backups, their verifications and restores, volumes that are copies of images or of snapshots in other pools or are formatted, moves of
//! volumes between pools, and copies of volumes from other hosts. At most one per source, shared by all objects waiting for it.
//!
//! Sources are per namespace: a declaration in one namespace neither delays nor cancels a download that another one
//! waits for. Each namespace has a limited number of concurrent downloads; further ones wait for those.
//!
//! Knows nothing of Images and Disks: callers pass the keys to wake and the sources that are still wanted.

mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{Readiness, Reason};
use berth_host::{
    BackupFacts, Credentials, DownloadLimits, Fill, ImageSource, NewFetch, NewMove, NewVolume, ResolvedImage,
    Retry, SourceHost, System, SystemError, VerifiedBackup,
};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use crate::awaited::Awaited;
use crate::copies::{Copies, VolumeAt};
use crate::credentials::{Repository, Secrets};
use crate::details::Details;
use crate::error::{RETRY_SPACE_EVERY, is_stalled, reason_of};
use crate::key::Key;
use crate::usage::Verifications;
use berth_engine::Queue;

pub(crate) use wanted::{Arriving, SlotGroup, Wanted};

const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// How long the copy of a file that is in use, or not there, waits.
const RETRY_FILE_EVERY: Duration = Duration::from_secs(10);
/// How long a copy of a volume waits for the host that has it, or work on a volume for other work on it.
const RETRY_VOLUME_EVERY: Duration = Duration::from_secs(30);
/// The longest time until a Secret that is missing is read again.
const RETRY_SECRET_EVERY: Duration = Duration::from_secs(30);
/// Minimum interval between two progress reports.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// How often, and how many times, a cancelled download is checked for having ended.
const CHECK_END_EVERY: Duration = Duration::from_millis(10);
const END_CHECKS: u32 = 500;

/// State of a download.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pull {
    Running {
        done: u64,
        total: Option<u64>,
        /// The bytes in a second between the last two reports of progress. None: there were not two yet.
        rate: Option<u64>,
        /// Whether the object that asked is enqueued on its progress.
        followed: bool,
    },
    /// `again`: time until the next attempt; None: not before the source changes.
    Failed { readiness: Readiness, again: Option<Duration> },
    /// The requested checksum.
    Found(ResolvedImage),
    /// The backup is complete.
    Stored(BackupFacts),
    /// The backup is deleted.
    Deleted,
    /// The backup was read back.
    Verified(VerifiedBackup),
}

#[derive(Debug)]
struct Entry {
    task: Option<AbortHandle>,
    wake: BTreeSet<Key>,
    failures: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Running { done: u64, total: Option<u64>, rate: Option<u64>, reported: u64, reported_at: Instant },
    Failed { readiness: Readiness, again: Option<Instant> },
    Done(Outcome),
}

/// A result that is kept until it is not wanted any more.
#[derive(Clone, Debug)]
enum Outcome {
    Found(ResolvedImage),
    Stored(BackupFacts),
    Deleted,
    Verified(VerifiedBackup),
}

#[derive(Debug)]
pub(crate) struct Pulls {
    /// Counts of the verifications.
    pub(crate) verifications: Verifications,
    /// Downloads of other hosts.
    pub(crate) awaited: Awaited,
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    system: Arc<dyn System>,
    queue: Arc<Queue<Key>>,
    entries: Mutex<BTreeMap<Wanted, Entry>>,
    /// Limits each namespace's concurrent work.
    slots: Mutex<BTreeMap<SlotGroup, Arc<Semaphore>>>,
    /// The Secrets with credentials.
    secrets: Secrets,
    /// The images on other hosts.
    copies: Copies,
    verifications: Verifications,
}

impl Shared {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Wanted, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pulls {
    pub(crate) fn new(
        system: Arc<dyn System>,
        queue: Arc<Queue<Key>>,
        secrets: Secrets,
        copies: Copies,
    ) -> Self {
        let (entries, slots) = (Mutex::default(), Mutex::default());
        let verifications = Verifications::default();
        let counts = verifications.clone();
        let shared = Shared { system, queue, entries, slots, secrets, copies, verifications: counts };
        let (awaited, tasks) = (Awaited::default(), Mutex::default());
        Self { verifications, awaited, shared: Arc::new(shared), tasks }
    }

    /// Returns the state of this download as `follower` sees it; None if it has not been requested or is due to be
    /// (re)tried now.
    pub(crate) fn state(&self, wanted: &Wanted, follower: &Key) -> Option<Pull> {
        let entries = self.shared.entries();
        let entry = entries.get(wanted)?;
        match &entry.state {
            State::Running { done, total, rate, .. } => {
                let followed = entry.wake.contains(follower);
                Some(Pull::Running { done: *done, total: *total, rate: *rate, followed })
            }
            State::Done(outcome) => Some(match outcome.clone() {
                Outcome::Found(resolved) => Pull::Found(resolved),
                Outcome::Stored(facts) => Pull::Stored(facts),
                Outcome::Deleted => Pull::Deleted,
                Outcome::Verified(found) => Pull::Verified(found),
            }),
            State::Failed { readiness, again } => {
                let left = again.map(|at| at.saturating_duration_since(Instant::now()));
                let due = left.is_some_and(|left| left.is_zero());
                (!due).then(|| Pull::Failed { readiness: readiness.clone(), again: left })
            }
        }
    }

    /// Ensures that `follower` is enqueued on the progress of a running download; at once if it has ended meanwhile.
    pub(crate) fn follow(&self, wanted: &Wanted, follower: Key) {
        match self.shared.entries().get_mut(wanted) {
            Some(entry) if matches!(entry.state, State::Running { .. }) => {
                entry.wake.insert(follower);
            }
            _ => self.shared.queue.add(follower),
        }
    }

    /// Forgets that this download has failed: its bytes are other ones now.
    pub(crate) fn forget_failure(&self, wanted: &Wanted) {
        let mut entries = self.shared.entries();
        if entries.get(wanted).is_some_and(|entry| matches!(entry.state, State::Failed { .. })) {
            entries.remove(wanted);
        }
    }

    /// Ensures that the download runs and that `wake` is enqueued on its progress.
    pub(crate) fn start(&self, wanted: &Wanted, wake: Key) {
        let mut entries = self.shared.entries();
        if let Some(entry) = entries.get_mut(wanted)
            && matches!(entry.state, State::Running { .. })
        {
            entry.wake.insert(wake);
            return;
        }
        // Recorded anew: the details are those of the work that begins now.
        let former = entries.remove(wanted);
        let (mut woken, failures) = former.map(|entry| (entry.wake, entry.failures)).unwrap_or_default();
        woken.insert(wake);
        let state =
            State::Running { done: 0, total: None, rate: None, reported: 0, reported_at: Instant::now() };
        let (shared, work) = (self.shared.clone(), wanted.clone());
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Finished tasks are removed, so that the set does not grow without bound.
        while tasks.try_join_next().is_some() {}
        let task = Some(tasks.spawn(async move { shared.pull(work).await }));
        entries.insert(wanted.clone(), Entry { task, wake: woken, failures, state });
    }

    /// Cancels and forgets this work, and returns once its task has ended.
    pub(crate) async fn cancel(&self, gone: &Wanted) {
        self.retain(|wanted| wanted != gone).await;
    }

    /// Whether a volume with this identity is being made from a backup or filled, or was to be.
    pub(crate) fn is_restoring(&self, volume: &str) -> bool {
        self.shared.entries().keys().any(|wanted| wanted.makes(volume))
    }

    /// Cancels and forgets the work that makes a volume from a backup or fills it, and returns once its task has ended.
    pub(crate) async fn cancel_restore(&self, volume: &str) {
        self.retain(|wanted| !wanted.makes(volume)).await;
    }

    /// Returns the snapshots that are being copied to another pool, or were to be.
    pub(crate) fn copied_snapshots(&self) -> BTreeSet<String> {
        self.shared.entries().keys().filter_map(Wanted::copied_snapshot).map(str::to_owned).collect()
    }

    /// Whether a volume is being moved, or was to be.
    pub(crate) fn is_moving(&self, volume: &str) -> bool {
        self.shared.entries().keys().any(|wanted| wanted.moves(volume))
    }

    /// Cancels and forgets the moves of a volume, and returns once their tasks have ended.
    pub(crate) async fn cancel_moves(&self, volume: &str) {
        self.retain(|wanted| !wanted.moves(volume)).await;
    }

    /// Cancels and forgets every download that is no longer wanted. Returns once their tasks have ended, so that none
    /// of them writes any more.
    pub(crate) async fn keep_only(&self, wanted: &BTreeSet<Wanted>) {
        self.retain(|source| wanted.contains(source)).await;
        self.awaited.keep_only(wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Image(source) => Some(source),
            _ => None,
        }));
        let groups: BTreeSet<SlotGroup> = wanted.iter().map(Wanted::slot_group).collect();
        let mut slots = self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot_group, _| groups.contains(slot_group));
    }
}

impl Pulls {
    async fn retain(&self, is_kept: impl Fn(&Wanted) -> bool) {
        let mut ended = Vec::new();
        self.shared.entries().retain(|source, entry| {
            let kept = is_kept(source);
            if !kept && let Some(task) = entry.task.take() {
                task.abort();
                ended.push(task);
            }
            kept
        });
        for _ in 0..END_CHECKS {
            if ended.iter().all(AbortHandle::is_finished) {
                break;
            }
            tokio::time::sleep(CHECK_END_EVERY).await;
        }
    }
}

/// Returns the progress in percent, in steps of 5, so that it changes only when that is worth a write.
pub(crate) fn percent(done: u64, total: Option<u64>) -> Option<i64> {
    let total = total.filter(|total| *total > 0)?;
    i64::try_from(done.min(total).saturating_mul(20) / total * 5).ok()
}

/// Returns a number of bytes in a second. The time is not zero.
fn per_second(bytes: u64, time: Duration) -> u64 {
    let milliseconds = time.as_millis().max(1);
    u64::try_from(u128::from(bytes) * 1000 / milliseconds).unwrap_or(u64::MAX)
}

impl Shared {
    /// Returns the semaphore of a group.
    fn slots(&self, slot_group: SlotGroup) -> Arc<Semaphore> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let count = slot_group.slots();
        slots.entry(slot_group).or_insert_with(|| Arc::new(Semaphore::new(count))).clone()
    }

    async fn pull(&self, wanted: Wanted) {
        let slots = self.slots(wanted.slot_group());
        let _slot = slots.acquire().await;
        let outcome = self.attempt(&wanted).await;
        let mut entries = self.entries();
        let Some(mut entry) = entries.remove(&wanted) else { return };
        for key in &entry.wake {
            self.queue.add(key.clone());
        }
        self.queue.add(Key::host());
        match outcome {
            Ok(None) => return,
            Ok(Some(outcome)) => entry.state = State::Done(outcome),
            Err(failure) => {
                entry.failures = entry.failures.saturating_add(1);
                entry.state = failed(failure, entry.failures, wanted.limits().0.retries);
            }
        }
        entry.wake.clear();
        entry.task = None;
        entries.insert(wanted, entry);
    }

    /// Downloads it once, in no more than its time. The bytes that have come stay, for the next attempt.
    async fn attempt(&self, wanted: &Wanted) -> Result<Option<Outcome>, Failure> {
        let (limits, shown) = wanted.limits();
        let Some(seconds) = limits.timeout_seconds else { return self.download(wanted).await };
        match timeout(Duration::from_secs(seconds.into()), self.download(wanted)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let detail = format!("it took longer than {seconds} s (source.timeoutSeconds)");
                Err(Failure::Download(SystemError::Download { url: shown.to_owned(), detail }, false))
            }
        }
    }

    async fn download(&self, wanted: &Wanted) -> Result<Option<Outcome>, Failure> {
        match wanted {
            Wanted::Backup(repository, ..)
            | Wanted::Existing(repository, _)
            | Wanted::Restore(repository, ..)
            | Wanted::Deletion(repository, _)
            | Wanted::Verification(repository, ..) => self.with_repository(wanted, repository).await,
            Wanted::Image(_) | Wanted::Checksum(_) | Wanted::Made(_) => self.image(wanted).await,
            Wanted::Move(_, new) => self.relocate(wanted, new).await,
            Wanted::Fill(_, _, Details(of)) => self.fill(wanted, &of.0, &of.1).await,
            Wanted::Fetch(arriving, Details(new)) => self.fetch(wanted, arriving, new).await,
        }
    }

    async fn with_repository(
        &self,
        wanted: &Wanted,
        repository: &Repository,
    ) -> Result<Option<Outcome>, Failure> {
        // Read anew for each attempt, and kept no longer than it.
        let access = self.secrets.repository(repository).await.map_err(Failure::Secret)?;
        let progress = |done, total| self.progress(wanted, done, total);
        let outcome = match wanted {
            Wanted::Backup(_, _, Details(new)) => {
                self.system.back_up(&access, new, &progress).await.map(|facts| Some(Outcome::Stored(facts)))
            }
            Wanted::Existing(_, id) => {
                self.system.backup(&access, id).await.map(|facts| Some(Outcome::Stored(facts)))
            }
            Wanted::Restore(_, backup, _, Details(volume)) => {
                self.system.create_from_backup(&access, backup, volume, &progress).await.map(|_| None)
            }
            Wanted::Deletion(_, id) => {
                self.system.delete_backup(&access, id).await.map(|()| Some(Outcome::Deleted))
            }
            Wanted::Verification(_, _, _, Details(backup)) => {
                let verified = self.system.verify_backup(&access, backup, &progress).await;
                self.verifications.count(verified.as_ref().ok());
                verified.map(|found| Some(Outcome::Verified(found)))
            }
            Wanted::Image(_)
            | Wanted::Checksum(_)
            | Wanted::Made(_)
            | Wanted::Move(..)
            | Wanted::Fill(..)
            | Wanted::Fetch(..) => Ok(None),
        };
        outcome.map_err(|error| {
            tracing::info!(?wanted, error = %error.chain(), "work on a repository failed");
            Failure::Download(error, true)
        })
    }

    async fn relocate(&self, wanted: &Wanted, new: &NewMove) -> Result<Option<Outcome>, Failure> {
        let progress = |done, total| self.progress(wanted, done, total);
        self.system.move_volume(new, &progress).await.map(|_| None).map_err(|error| {
            tracing::info!(?wanted, error = %error.chain(), "a move failed");
            Failure::Download(error, true)
        })
    }

    async fn fill(&self, wanted: &Wanted, new: &NewVolume, fill: &Fill) -> Result<Option<Outcome>, Failure> {
        let progress = |done, total| self.progress(wanted, done, total);
        self.system.create_filled_volume(new, fill, &progress).await.map(|_| None).map_err(|error| {
            tracing::info!(?wanted, error = %error.chain(), "a volume was not filled");
            Failure::Download(error, true)
        })
    }

    async fn fetch(
        &self,
        wanted: &Wanted,
        arriving: &Arriving,
        new: &NewFetch,
    ) -> Result<Option<Outcome>, Failure> {
        let progress = |done, total| self.progress(wanted, done, total);
        let at = VolumeAt {
            host: arriving.from.clone(),
            namespace: arriving.namespace.clone(),
            disk: arriving.disk.clone(),
            volume: arriving.volume.clone(),
        };
        let copied = self.system.fetch_volume(new, Arc::new(self.copies.volume(&at)), &progress).await;
        copied.map(|_| None).map_err(|error| {
            tracing::info!(?wanted, error = %error.chain(), "a copy of a volume failed");
            Failure::Volume(error)
        })
    }

    async fn image(&self, wanted: &Wanted) -> Result<Option<Outcome>, Failure> {
        if let Wanted::Image(source) = wanted
            && let Some(host) = &source.host
        {
            match self.copy(wanted, source, host).await {
                Ok(()) => return Ok(None),
                Err(error) if source.is_downloadable() && is_of_a_copy(&error) => {
                    tracing::info!(?wanted, error = %error.chain(), "a copy failed: the image is downloaded");
                }
                Err(error) => {
                    tracing::info!(?wanted, error = %error.chain(), "a copy failed");
                    return Err(Failure::Download(error, false));
                }
            }
        }
        self.download_from_source(wanted).await
    }

    /// Copies an image from the host that has it.
    async fn copy(
        &self,
        wanted: &Wanted,
        source: &ImageSource,
        host: &SourceHost,
    ) -> Result<(), SystemError> {
        let progress = |done, total| self.progress(wanted, done, total);
        self.system.copy_image(source, Arc::new(self.copies.file(host)), &progress).await.map(drop)
    }

    async fn download_from_source(&self, wanted: &Wanted) -> Result<Option<Outcome>, Failure> {
        let with_secret = match wanted {
            Wanted::Image(source) => source.secret.as_ref().map(|secret| (secret, &source.url)),
            Wanted::Checksum(source) => source.secret.as_ref().map(|secret| (secret, &source.image_url)),
            _ => None,
        };
        let credentials = match with_secret {
            // Read anew for each download, and kept no longer than it.
            Some((name, url)) => {
                let read = self.secrets.credentials(wanted.namespace(), name, url).await;
                read.map_err(Failure::Secret)?
            }
            None => Credentials::default(),
        };
        let outcome = match wanted {
            Wanted::Image(source) => {
                let progress = |done, total| self.progress(wanted, done, total);
                let source = ImageSource { host: None, limits: DownloadLimits::default(), ..source.clone() };
                self.system.pull(&source, &credentials, &progress).await.map(|_| None)
            }
            Wanted::Checksum(source) if source.is_computed => {
                let progress = |done, total| self.progress(wanted, done, total);
                let computed = self.system.compute_checksum(source, &credentials, &progress).await;
                computed.map(|digest| Some(ResolvedImage { digest, media_type: None }))
            }
            Wanted::Checksum(source) => self.system.resolve(source, &credentials).await.map(Some),
            Wanted::Made(new) => {
                let made = self.system.make_image(new).await;
                made.map(|facts| Some(ResolvedImage { digest: facts.digest, media_type: None }))
            }
            _ => Ok(None),
        };
        let outcome = outcome.map(|found| found.map(Outcome::Found));
        outcome.map_err(|error| {
            tracing::info!(?wanted, error = %error.chain(), "a download failed");
            Failure::Download(error, with_secret.is_some())
        })
    }

    /// Enqueues the waiting objects at every twentieth of the download (every 64 MiB if its size is unknown), but no
    /// more often than they can write their status.
    fn progress(&self, wanted: &Wanted, now_done: u64, now_total: Option<u64>) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(wanted) else { return };
        let State::Running { done, total, rate, reported, reported_at } = &mut entry.state else { return };
        (*done, *total) = (now_done, now_total);
        let step = now_total.map_or(64 << 20, |total| total / 20).max(1);
        if now_done.saturating_sub(*reported) >= step && reported_at.elapsed() >= REPORT_EVERY {
            // The first bytes of a download that is continued were here before.
            *rate = (*reported > 0).then(|| per_second(now_done - *reported, reported_at.elapsed()));
            (*reported, *reported_at) = (now_done, Instant::now());
            for key in &entry.wake {
                self.queue.add(key.clone());
            }
        }
    }
}

/// Whether a copy may fail so although the source has the image: the other host is away, refuses, has other bytes, or names another size.
fn is_of_a_copy(error: &SystemError) -> bool {
    use SystemError::{ChecksumMismatch, Download, ImageTooLarge, NoSpace};
    matches!(error, Download { .. } | ChecksumMismatch { .. } | ImageTooLarge { .. } | NoSpace { .. })
}

/// Why a download has no result.
enum Failure {
    /// Its credentials cannot be read, or not be used.
    Secret(Readiness),
    /// With the error, whether it may pass although the source is unchanged: it has credentials.
    Download(SystemError, bool),
    /// The volume is not copied here from another host, where it is.
    Volume(SystemError),
}

/// Returns the state after so many attempts, of which `retries` are repetitions at most, if they are limited.
fn failed(failure: Failure, failures: u32, retries: Option<u32>) -> State {
    let wait = |longest| FIRST_WAIT.saturating_mul(1 << (failures - 1).min(10)).min(longest);
    let is_of_volume =
        matches!(failure, Failure::Volume(_) | Failure::Download(SystemError::VolumeBusy { .. }, _));
    let (error, may_pass) = match failure {
        // No watch announces that a Secret is there, or another one.
        Failure::Secret(readiness) => {
            return State::Failed { readiness, again: Some(Instant::now() + wait(RETRY_SECRET_EVERY)) };
        }
        Failure::Download(error, may_pass) => (error, may_pass),
        Failure::Volume(error) => (error, true),
    };
    let error = &error;
    if reason_of(error) == Reason::Retrying && retries.is_some_and(|retries| failures > retries) {
        let text = format!("{} (attempts: {failures})", error.chain());
        return State::Failed { readiness: Readiness::Stalled(Reason::DownloadFailed, text), again: None };
    }
    let readiness = if is_stalled(error) {
        Readiness::Stalled(reason_of(error), error.chain())
    } else {
        Readiness::Reconciling(reason_of(error), error.chain())
    };
    let longest = match reason_of(error) {
        Reason::NoSpace => RETRY_SPACE_EVERY,
        // Another program has it open until then.
        Reason::WaitingForFile => RETRY_FILE_EVERY,
        // A VM waits for it, and nothing announces that the other host, or the other work, is ready.
        _ if is_of_volume => RETRY_VOLUME_EVERY,
        _ => LONGEST_WAIT,
    };
    // Other credentials may be accepted.
    let again = (error.retry() == Retry::Backoff || may_pass).then(|| Instant::now() + wait(longest));
    State::Failed { readiness, again }
}

#[cfg(test)]
mod tests;
