//! Downloads that go on while everything else does: one for each image at a time, shared by all who wait for it.
//!
//! Knows nothing of Images and Disks: it is told whom to wake.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{Readiness, Reason};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::converge::LOOK_FOR_ROOM;
use crate::queue::{Key, Queue};
use crate::system::{ImageSource, Retry, System, SystemError};

const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Between two reports of progress, unless it moved much.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// How a download stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pull {
    Running {
        done: u64,
        total: Option<u64>,
    },
    /// `again`: when it is tried again; None: not before the source changes.
    Failed {
        readiness: Readiness,
        again: Option<Duration>,
    },
}

#[derive(Debug)]
struct Entry {
    url: String,
    wake: BTreeSet<Key>,
    failures: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Running { done: u64, total: Option<u64>, told: u64, told_at: Instant },
    Failed { readiness: Readiness, again: Option<Instant> },
}

#[derive(Debug)]
pub(crate) struct Pulls {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    system: Arc<dyn System>,
    queue: Arc<Queue>,
    entries: Mutex<BTreeMap<String, Entry>>,
}

impl Shared {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pulls {
    pub(crate) fn new(system: Arc<dyn System>, queue: Arc<Queue>) -> Self {
        let shared = Shared { system, queue, entries: Mutex::default() };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// How the download of this image stands; None: nobody has asked for it, or it is to be tried (again) now.
    pub(crate) fn state(&self, source: &ImageSource) -> Option<Pull> {
        let entries = self.shared.entries();
        let entry = entries.get(&source.sha256)?;
        match &entry.state {
            State::Running { done, total, .. } => Some(Pull::Running { done: *done, total: *total }),
            State::Failed { .. } if entry.url != source.url => None,
            State::Failed { readiness, again } => {
                let left = again.map(|at| at.saturating_duration_since(Instant::now()));
                let due = left.is_some_and(|left| left.is_zero());
                (!due).then(|| Pull::Failed { readiness: readiness.clone(), again: left })
            }
        }
    }

    /// Whether a download of this image is going on.
    pub(crate) fn is_running(&self, sha256: &str) -> bool {
        matches!(self.shared.entries().get(sha256), Some(Entry { state: State::Running { .. }, .. }))
    }

    /// Makes sure the download goes on, and that `wake` is told how it goes.
    pub(crate) fn start(&self, source: &ImageSource, wake: Key) {
        {
            let mut entries = self.shared.entries();
            let entry = entries.entry(source.sha256.clone()).or_insert_with(|| Entry {
                url: source.url.clone(),
                wake: BTreeSet::new(),
                failures: 0,
                state: State::Failed { readiness: waiting(), again: None },
            });
            entry.wake.insert(wake);
            if matches!(entry.state, State::Running { .. }) {
                return;
            }
            entry.url.clone_from(&source.url);
            entry.state = State::Running { done: 0, total: None, told: 0, told_at: Instant::now() };
        }
        let (shared, source) = (self.shared.clone(), source.clone());
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // What has ended is taken out, so that the set does not grow for ever.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move { shared.pull(source).await });
    }
}

fn waiting() -> Readiness {
    Readiness::Reconciling(Reason::Pulling, String::new())
}

impl Shared {
    async fn pull(&self, source: ImageSource) {
        let progress = |done, total| self.progress(&source.sha256, done, total);
        let outcome = self.system.pull(&source, &progress).await;
        let mut entries = self.entries();
        let Some(mut entry) = entries.remove(&source.sha256) else { return };
        for key in &entry.wake {
            self.queue.add(key.clone());
        }
        self.queue.add(Key::Host);
        if let Err(error) = outcome {
            tracing::info!(url = source.url, error = %error.chain(), "a download failed");
            entry.failures = entry.failures.saturating_add(1);
            entry.state = failed(&error, entry.failures);
            entry.wake.clear();
            entries.insert(source.sha256.clone(), entry);
        }
    }

    /// Wakes those who wait at every twentieth of the way, and not more often than they can write.
    fn progress(&self, sha256: &str, now_done: u64, now_total: Option<u64>) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(sha256) else { return };
        let State::Running { done, total, told, told_at } = &mut entry.state else { return };
        (*done, *total) = (now_done, now_total);
        let step = now_total.map_or(64 << 20, |total| total / 20).max(1);
        if now_done.saturating_sub(*told) >= step && told_at.elapsed() >= REPORT_EVERY {
            (*told, *told_at) = (now_done, Instant::now());
            for key in &entry.wake {
                self.queue.add(key.clone());
            }
        }
    }
}

fn failed(error: &SystemError, failures: u32) -> State {
    let readiness = if error.is_stalled() {
        Readiness::Stalled(error.reason(), error.chain())
    } else {
        Readiness::Reconciling(error.reason(), error.chain())
    };
    let longest = if error.reason() == Reason::NoSpace { LOOK_FOR_ROOM } else { LONGEST_WAIT };
    let wait = FIRST_WAIT.saturating_mul(1 << (failures - 1).min(10)).min(longest);
    let again = (error.retry() == Retry::Backoff).then(|| Instant::now() + wait);
    State::Failed { readiness, again }
}
