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
    /// The snapshots that something is still to be made from, as they were said last: a merge may take days, and the next one follows it.
    kept: BTreeSet<String>,
    /// Consecutive failures, and the end of the wait after the last one.
    failures: u32,
    again: Option<Instant>,
}

impl Merges {
    pub(crate) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>) -> Self {
        let shared = Shared { system, queue, state: Mutex::default() };
        Self { shared: Arc::new(shared), task: Mutex::default() }
    }

    /// Takes over which snapshots something is still to be made from. The merges that follow the present one leave them alone.
    pub(crate) fn keep(&self, kept: BTreeSet<String>) {
        self.shared.state().kept = kept;
    }

    /// Merges the files of deleted snapshots one after the other, if that is not done already. Leaves alone those of `kept`, and
    /// waits after a failure.
    pub(crate) fn start(&self, kept: BTreeSet<String>) {
        self.keep(kept);
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        while task.try_join_next().is_some() {}
        let waits = self.shared.state().again.is_some_and(|again| again > Instant::now());
        if task.is_empty() && !waits {
            let shared = self.shared.clone();
            task.spawn(async move { shared.merge_all().await });
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

    async fn merge_all(&self) {
        loop {
            let kept = self.state().kept.clone();
            match self.system.merge_snapshots(&kept).await {
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use berth_engine::RuntimeClock;
    use berth_host::fake::{FakeSystem, FaultAction, Faults, When};
    use berth_host::{NewSnapshot, NewVolume, Taken, VolumeOwner, Volumes as _};
    use jiff::Timestamp;
    use rand::{SeedableRng, rngs::StdRng};
    use tokio::sync::Semaphore;

    use super::*;

    const POOL: &str = "default";

    /// Holds the end of each merge back.
    #[derive(Debug)]
    struct LongMerges(Semaphore);

    #[async_trait]
    impl Faults for LongMerges {
        async fn fault(&self, call: &'static str, when: When) -> FaultAction {
            if call == "merge_snapshots" && when == When::After {
                self.0.acquire().await.expect("it is open").forget();
            }
            FaultAction::Continue
        }
    }

    /// Makes a volume with two snapshots, the first of which is deleted.
    async fn with_snapshots(system: &FakeSystem, volume: &str, snapshots: [&str; 2]) {
        let (namespace, name) = ("ns".to_owned(), volume.to_owned());
        let owner = VolumeOwner { namespace, name, uid: None, image: None, source: None };
        let new = NewVolume {
            encryption: None,
            pool: POOL.to_owned(),
            id: volume.to_owned(),
            size: Some(1 << 20),
            base: None,
            snapshot: None,
            file: None,
            thick: false,
            shared: false,
            owner: owner.clone(),
        };
        system.create_volume(&new).await.expect("made");
        for id in snapshots {
            let new = NewSnapshot {
                pool: POOL.to_owned(),
                id: id.to_owned(),
                volume: volume.to_owned(),
                owner: Some(owner.clone()),
            };
            system.begin_snapshots(&[new]).await.expect("begun");
            let taken = Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false };
            system.finish_snapshot(POOL, id, &taken).await.expect("taken");
        }
        system.delete_snapshot(POOL, snapshots[0]).await.expect("deleted");
    }

    #[tokio::test(start_paused = true)]
    async fn a_backup_that_begins_during_a_merge_keeps_its_snapshot_from_the_next_one() {
        let clock = Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH));
        let system = Arc::new(FakeSystem::new(clock));
        with_snapshots(&system, "v-a", ["s-1", "s-2"]).await;
        with_snapshots(&system, "v-b", ["s-3", "s-4"]).await;
        let faults = Arc::new(LongMerges(Semaphore::new(0)));
        system.set_faults(faults.clone());
        let queue = Arc::new(Queue::new(Duration::from_millis(250), StdRng::seed_from_u64(1)));
        let merges = Merges::new(system.clone(), queue);
        let there = || system.snapshots_now().into_iter().map(|facts| facts.id).collect::<BTreeSet<_>>();
        let all = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<String>>();
        merges.start(BTreeSet::new());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(there(), all(&["s-2", "s-3", "s-4"]), "the first merge goes on");
        merges.keep(all(&["s-3"]));
        faults.0.add_permits(9);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(there(), all(&["s-2", "s-3", "s-4"]), "it is read for a backup");
        merges.start(BTreeSet::new());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(there(), all(&["s-2", "s-4"]), "the backup is complete");
    }
}
