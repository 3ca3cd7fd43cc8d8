//! Downloads in the background, and other long work: images that are made here, copied from another host or verified after an upload,
//! backups and restores. At most one per source, shared by all objects waiting for it.
//!
//! Sources are per namespace: a declaration in one namespace neither delays nor cancels a download that another one
//! waits for. Each namespace has a limited number of concurrent downloads; further ones wait for those.
//!
//! Knows nothing of Images and Disks: callers pass the keys to wake and the sources that are still wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{Readiness, Reason};
use berth_host::{
    BackupFacts, BackupId, ChecksumSource, Credentials, ImageSource, NewBackup, NewImage, NewVolume,
    ResolvedImage, Retry, SourceHost, System, SystemError,
};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::copies::Copies;
use crate::credentials::{Repository, Secrets};
use crate::details::Details;
use crate::error::{RETRY_SPACE_EVERY, is_stalled, reason_of};
use crate::key::Key;
use berth_engine::Queue;

const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The longest time until a Secret that is missing is read again.
const RETRY_SECRET_EVERY: Duration = Duration::from_secs(30);
/// Minimum interval between two progress reports.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// How often, and how many times, a cancelled download is checked for having ended.
const CHECK_END_EVERY: Duration = Duration::from_millis(10);
const END_CHECKS: u32 = 500;

/// Maximum number of concurrent downloads per namespace, and of backups beside them.
const MAX_CONCURRENT: usize = 4;

/// A download, or other work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanted {
    Image(ImageSource),
    /// The checksum of an image, which is needed before the image.
    Checksum(ChecksumSource),
    /// An image that is made from a snapshot of this host. Its checksum is the result.
    Made(NewImage),
    /// A backup of a snapshot of this host.
    Backup(Repository, BackupId, Details<NewBackup>),
    /// The facts of a backup that is in the repository already.
    Existing(Repository, BackupId),
    /// A volume, by its identity, that is made from a backup.
    Restore(Repository, BackupId, String, Details<Box<NewVolume>>),
    /// The deletion of a backup.
    Deletion(Repository, BackupId),
}

impl Wanted {
    /// Whether it makes this volume from a backup.
    fn makes(&self, volume: &str) -> bool {
        matches!(self, Self::Restore(_, _, id, _) if id == volume)
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Image(source) => &source.namespace,
            Self::Checksum(source) => &source.namespace,
            Self::Made(new) => &new.namespace,
            Self::Backup(repository, ..)
            | Self::Existing(repository, _)
            | Self::Restore(repository, ..)
            | Self::Deletion(repository, _) => &repository.namespace,
        }
    }

    /// Returns what limits it. Backups take long, and hold up nothing that a VM waits for.
    pub(crate) fn slot_group(&self) -> SlotGroup {
        SlotGroup { namespace: self.namespace().to_owned(), backs_up: matches!(self, Self::Backup(..)) }
    }
}

/// The work that shares a number of slots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotGroup {
    namespace: String,
    backs_up: bool,
}

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
}

#[derive(Debug)]
pub(crate) struct Pulls {
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
        let shared = Shared { system, queue, entries, slots, secrets, copies };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
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
        let entry = entries.entry(wanted.clone()).or_insert_with(|| Entry {
            task: None,
            wake: BTreeSet::new(),
            failures: 0,
            state: State::Failed { readiness: waiting(), again: None },
        });
        entry.wake.insert(wake);
        if matches!(entry.state, State::Running { .. }) {
            return;
        }
        entry.state =
            State::Running { done: 0, total: None, rate: None, reported: 0, reported_at: Instant::now() };
        let (shared, wanted) = (self.shared.clone(), wanted.clone());
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Finished tasks are removed, so that the set does not grow without bound.
        while tasks.try_join_next().is_some() {}
        entry.task = Some(tasks.spawn(async move { shared.pull(wanted).await }));
    }

    /// Cancels and forgets this work, and returns once its task has ended.
    pub(crate) async fn cancel(&self, gone: &Wanted) {
        self.retain(|wanted| wanted != gone).await;
    }

    /// Whether a volume with this identity is being made from a backup, or was to be.
    pub(crate) fn is_restoring(&self, volume: &str) -> bool {
        self.shared.entries().keys().any(|wanted| wanted.makes(volume))
    }

    /// Cancels and forgets the work that makes a volume from a backup, and returns once its task has ended.
    pub(crate) async fn cancel_restore(&self, volume: &str) {
        self.retain(|wanted| !wanted.makes(volume)).await;
    }

    /// Cancels and forgets every download that is no longer wanted. Returns once their tasks have ended, so that none
    /// of them writes any more.
    pub(crate) async fn keep_only(&self, wanted: &BTreeSet<Wanted>) {
        self.retain(|source| wanted.contains(source)).await;
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

fn waiting() -> Readiness {
    Readiness::Reconciling(Reason::Pulling, String::new())
}

impl Shared {
    /// Returns the semaphore of a group.
    fn slots(&self, slot_group: SlotGroup) -> Arc<Semaphore> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry(slot_group).or_insert_with(|| Arc::new(Semaphore::new(MAX_CONCURRENT))).clone()
    }

    async fn pull(&self, wanted: Wanted) {
        let slots = self.slots(wanted.slot_group());
        let _slot = slots.acquire().await;
        let outcome = self.download(&wanted).await;
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
                entry.state = failed(failure, entry.failures);
            }
        }
        entry.wake.clear();
        entry.task = None;
        entries.insert(wanted, entry);
    }

    async fn download(&self, wanted: &Wanted) -> Result<Option<Outcome>, Failure> {
        match wanted {
            Wanted::Backup(repository, ..)
            | Wanted::Existing(repository, _)
            | Wanted::Restore(repository, ..)
            | Wanted::Deletion(repository, _) => self.with_repository(wanted, repository).await,
            Wanted::Image(_) | Wanted::Checksum(_) | Wanted::Made(_) => self.image(wanted).await,
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
            Wanted::Image(_) | Wanted::Checksum(_) | Wanted::Made(_) => Ok(None),
        };
        outcome.map_err(|error| {
            tracing::info!(?wanted, error = %error.chain(), "work on a repository failed");
            Failure::Download(error, true)
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
        self.from_source(wanted).await
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

    async fn from_source(&self, wanted: &Wanted) -> Result<Option<Outcome>, Failure> {
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
                let source = ImageSource { host: None, ..source.clone() };
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

/// Whether a copy may fail so although the source has the image: the other host is away, refuses, or has other bytes.
fn is_of_a_copy(error: &SystemError) -> bool {
    matches!(error, SystemError::Download { .. } | SystemError::ChecksumMismatch { .. })
}

/// Why a download has no result.
enum Failure {
    /// Its credentials cannot be read, or not be used.
    Secret(Readiness),
    /// With the error, whether it may pass although the source is unchanged: it has credentials.
    Download(SystemError, bool),
}

fn failed(failure: Failure, failures: u32) -> State {
    let wait = |longest| FIRST_WAIT.saturating_mul(1 << (failures - 1).min(10)).min(longest);
    let (error, may_pass) = match failure {
        // No watch announces that a Secret is there, or another one.
        Failure::Secret(readiness) => {
            return State::Failed { readiness, again: Some(Instant::now() + wait(RETRY_SECRET_EVERY)) };
        }
        Failure::Download(error, may_pass) => (error, may_pass),
    };
    let error = &error;
    let readiness = if is_stalled(error) {
        Readiness::Stalled(reason_of(error), error.chain())
    } else {
        Readiness::Reconciling(reason_of(error), error.chain())
    };
    let longest = if reason_of(error) == Reason::NoSpace { RETRY_SPACE_EVERY } else { LONGEST_WAIT };
    // Other credentials may be accepted.
    let again = (error.retry() == Retry::Backoff || may_pass).then(|| Instant::now() + wait(longest));
    State::Failed { readiness, again }
}

#[cfg(test)]
mod tests {
    use berth_api::Image;
    use berth_host::fake::FakeSystem;
    use berth_qemu::machine::Format;

    use super::*;
    use crate::key::ObjectName;
    use berth_engine::RuntimeClock;
    use rand::{SeedableRng, rngs::StdRng};

    const FIRST_BACK_OFF: Duration = Duration::from_millis(250);

    fn wanted(namespace: &str, number: usize) -> Wanted {
        Wanted::Image(ImageSource {
            namespace: namespace.to_owned(),
            shared: false,
            url: format!("http://images.example/{number}"),
            shown: format!("http://images.example/{number}"),
            digest: format!("{number:064}"),
            format: Format::Raw,
            encoding: berth_host::Encoding::default(),
            secret: None,
            host: None,
        })
    }

    /// A control plane that gives this answer to every request.
    fn answering(status: u16, body: &'static str) -> kube::Client {
        let answer = move |_: http::Request<kube::client::Body>| async move {
            let body = kube::client::Body::from(body.as_bytes().to_vec());
            let response = http::Response::builder().status(status).body(body);
            Ok::<_, std::convert::Infallible>(response.expect("a response"))
        };
        kube::Client::new(tower::service_fn(answer), "default")
    }

    /// A control plane without any Secret.
    fn no_secrets() -> kube::Client {
        answering(
            404,
            r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}"#,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_download_without_its_secret_waits_for_it() {
        let (system, pulls) = pulls();
        let Wanted::Image(source) = wanted("a", 1) else { panic!("an image") };
        let wanted = Wanted::Image(ImageSource { secret: Some("login".to_owned()), ..source });
        pulls.start(&wanted, waker());
        tokio::time::sleep(Duration::from_millis(1)).await;
        let Some(Pull::Failed { readiness, again }) = pulls.state(&wanted, &waker()) else {
            panic!("it waits")
        };
        assert_eq!(readiness.reason(), Reason::WaitingForSecret);
        assert!(again.is_some_and(|again| again <= FIRST_WAIT));
        assert_eq!(system.pulls(), 0);
    }

    #[test]
    fn a_copy_with_other_bytes_is_not_repeated_and_one_that_breaks_off_is() {
        let url = || "the image from host h1".to_owned();
        let again = |error: SystemError| match failed(Failure::Download(error, false), 1) {
            State::Failed { again, .. } => again.is_some(),
            state => panic!("{state:?}"),
        };
        assert!(again(SystemError::Download { url: url(), detail: "h1 does not answer".to_owned() }));
        for error in [
            SystemError::ChecksumMismatch { url: url(), declared: "ab".to_owned() },
            SystemError::ImageRefused { url: url(), detail: "not a qcow2 image".to_owned() },
            SystemError::ImageTooLarge { url: url(), detail: "more than 5 bytes".to_owned() },
        ] {
            assert!(!again(error));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_download_gets_what_its_secret_has() {
        // printf 'me' | base64; printf 'canary' | base64
        let secret = r#"{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "login"}, "data": {"username": "bWU=", "password": "Y2FuYXJ5"}}"#;
        let (system, pulls) = pulls_with(answering(200, secret));
        let Wanted::Image(source) = wanted("a", 1) else { panic!("an image") };
        let wanted = Wanted::Image(ImageSource { secret: Some("login".to_owned()), ..source });
        pulls.start(&wanted, waker());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(system.credentials().basic, Some(("me".to_owned(), "canary".to_owned())));
        assert!(!format!("{wanted:?} {pulls:?}").contains("canary"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_with_a_url_that_cannot_be_copied_is_downloaded() {
        let (system, pulls) = pulls();
        let Wanted::Image(source) = wanted("a", 1) else { panic!("an image") };
        let host = Some(SourceHost {
            name: "h2".to_owned(),
            address: "192.0.2.2:7444".to_owned(),
            certificate_sha256: "ab".to_owned(),
            path: "/file".to_owned(),
            audience: "a".to_owned(),
        });
        let copy = Wanted::Image(ImageSource { host: host.clone(), ..source.clone() });
        pulls.start(&copy, waker());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((system.pulls(), system.copies()), (1, 0));
        assert_eq!(pulls.state(&copy, &waker()), None, "it is here");
        let only = Wanted::Image(ImageSource { host, url: "copy:u".to_owned(), ..source });
        pulls.start(&only, waker());
        tokio::time::sleep(Duration::from_millis(1)).await;
        let failed = pulls.state(&only, &waker());
        assert!(matches!(failed, Some(Pull::Failed { again: Some(_), .. })), "{failed:?}");
        assert_eq!(system.pulls(), 1, "there is nowhere to download it from");
    }

    fn pulls() -> (Arc<FakeSystem>, Pulls) {
        pulls_with(no_secrets())
    }

    fn pulls_with(client: kube::Client) -> (Arc<FakeSystem>, Pulls) {
        let clock = Arc::new(RuntimeClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let system = Arc::new(FakeSystem::new(clock));
        system.serve_any_image(1 << 30);
        let pulls = Pulls::new(
            system.clone(),
            Arc::new(Queue::new(FIRST_BACK_OFF, StdRng::seed_from_u64(1))),
            Secrets::new(client.clone()),
            Copies::new(client, "h1"),
        );
        (system, pulls)
    }

    fn waker() -> Key {
        Key::new::<Image>(ObjectName::new("a", "a"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_with_many_downloads_holds_up_no_other() {
        let (system, pulls) = pulls();
        for number in 0..20 {
            pulls.start(&wanted("many", number), waker());
        }
        pulls.start(&wanted("other", 3), waker());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(
            system.pulls(),
            MAX_CONCURRENT as u64 + 1,
            "the other namespace's, of the same digest, too"
        );
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(system.pulls(), 21);
        assert!(
            (0..20).all(|number| pulls.state(&wanted("many", number), &waker()).is_none()),
            "all have come"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn every_object_that_waits_for_a_download_is_woken_at_its_end() {
        let (_, pulls) = pulls();
        let other = Key::new::<Image>(ObjectName::new("a", "b"));
        pulls.start(&wanted("a", 1), waker());
        let state = |follower: &Key| pulls.state(&wanted("a", 1), follower);
        assert!(matches!(state(&waker()), Some(Pull::Running { followed: true, .. })));
        assert!(matches!(state(&other), Some(Pull::Running { followed: false, .. })));
        pulls.follow(&wanted("a", 1), other.clone());
        assert!(matches!(state(&other), Some(Pull::Running { followed: true, .. })));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let mut woken = BTreeSet::new();
        while let Ok(key) = tokio::time::timeout(Duration::from_secs(1), pulls.shared.queue.next()).await {
            woken.insert(key);
        }
        assert!(woken.contains(&waker()) && woken.contains(&other), "{woken:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_download_has_a_rate_once_it_has_reported_twice() {
        let (_, pulls) = pulls();
        let one = wanted("a", 1);
        let state =
            State::Running { done: 0, total: None, rate: None, reported: 0, reported_at: Instant::now() };
        let entry = Entry { task: None, wake: BTreeSet::new(), failures: 0, state };
        pulls.shared.entries().insert(one.clone(), entry);
        let rate_at = async |bytes: u64| {
            tokio::time::sleep(Duration::from_secs(4)).await;
            pulls.shared.progress(&one, bytes, Some(1000 << 20));
            let Some(Pull::Running { rate, .. }) = pulls.state(&one, &waker()) else { panic!("it runs") };
            rate
        };
        assert_eq!(rate_at(500 << 20).await, None, "these bytes may have been here before");
        let rate = rate_at(600 << 20).await;
        assert!(rate.is_some_and(|rate| (24 << 20..=25 << 20).contains(&rate)), "{rate:?}");
        assert_eq!(rate_at(601 << 20).await, rate, "it is no twentieth more");
        assert_eq!(per_second(1, Duration::ZERO), 1000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_download_that_is_not_wanted_any_more_ends() {
        let (system, pulls) = pulls();
        let (kept, gone) = (wanted("a", 1), wanted("a", 2));
        pulls.start(&kept, waker());
        pulls.start(&gone, waker());
        tokio::time::sleep(Duration::from_millis(1)).await;
        pulls.keep_only(&BTreeSet::from([kept.clone()])).await;
        assert_eq!(pulls.state(&gone, &waker()), None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let images = system.leftovers().images;
        assert_eq!(images, [format!("{:064}", 1)], "only the other one has come");
    }
}
