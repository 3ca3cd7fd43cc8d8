//! Merges of the files of deleted snapshots, in the background: one at a time.
//!
//! Knows nothing of Disks and VMs: callers ask which volumes have fewer files below them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_engine::Queue;
use berth_host::System;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::key::Key;

const FIRST_WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_secs(1800);

/// The volumes that may have fewer files below them than before.
#[derive(Debug)]
pub(crate) enum MergedVolumes {
    These(BTreeSet<String>),
    Any,
}

impl MergedVolumes {
    pub(crate) fn contains(&self, volume: &str) -> bool {
        match self {
            Self::These(volumes) => volumes.contains(volume),
            Self::Any => true,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::These(volumes) if volumes.is_empty())
    }
}

#[derive(Debug)]
pub(crate) struct Merges {
    shared: Arc<Shared>,
    task: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    system: Arc<dyn System>,
    queue: Arc<Queue<Key>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The volumes with fewer files below them since they were last asked for.
    merged: BTreeSet<String>,
    /// A merge failed since then: it may have been finished before.
    is_unsure: bool,
    /// Consecutive failures, and the end of the wait after the last one.
    failures: u32,
    again: Option<Instant>,
}

impl Merges {
    pub(crate) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>) -> Self {
        let shared = Shared { system, queue, state: Mutex::default() };
        Self { shared: Arc::new(shared), task: Mutex::default() }
    }

    /// Merges the files of deleted snapshots one after the other, if that is not done already. Leaves alone those of `kept`, and
    /// waits after a failure.
    pub(crate) fn start(&self, kept: BTreeSet<String>) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        while task.try_join_next().is_some() {}
        let waits = self.shared.state().again.is_some_and(|again| again > Instant::now());
        if task.is_empty() && !waits {
            let shared = self.shared.clone();
            task.spawn(async move { shared.merge_all(&kept).await });
        }
    }

    /// Returns which volumes may have fewer files below them since the last call.
    pub(crate) fn take_merged(&self) -> MergedVolumes {
        let mut state = self.shared.state();
        let merged = std::mem::take(&mut state.merged);
        match std::mem::take(&mut state.is_unsure) {
            true => MergedVolumes::Any,
            false => MergedVolumes::These(merged),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn merge_all(&self, kept: &BTreeSet<String>) {
        loop {
            match self.system.merge_snapshots(kept).await {
                Ok(None) => return,
                Ok(Some(merged)) => {
                    let mut state = self.state();
                    (state.failures, state.again) = (0, None);
                    state.merged.extend(merged.volumes);
                    drop(state);
                    self.queue.add(Key::host());
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "the file of a deleted snapshot is not merged");
                    let mut state = self.state();
                    let wait = FIRST_WAIT.saturating_mul(1 << state.failures.min(10)).min(LONGEST_WAIT);
                    state.failures = state.failures.saturating_add(1);
                    (state.again, state.is_unsure) = (Some(Instant::now() + wait), true);
                    drop(state);
                    self.queue.add(Key::host());
                    return;
                }
            }
        }
    }
}
