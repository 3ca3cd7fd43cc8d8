//! Guests that are sent to other hosts: a task for each, which the VM's plan begins, and which alone decides about the guest until it ends.
//!
//! ```text
//!   journal: Sending ─▶ connect ─▶ Begin … Ready ─▶ QEMU sends, and its bytes are passed on ─▶ switch ─▶ End … Loaded ─┐
//!        ▲                    │ an error, a cancellation: QEMU's part is ended, the guest goes on                     │
//!        └── none ◀───────────┴───────────────────────────────────────────────────────────────────────────────────────┤
//!                                                                                                                     ▼
//!   journal: HandedOver ◀── Started ── Go ◀── journal: HandingOver (durable) ◀─────────────────────────────────────────┘
//!   none, the guest goes on ◀── NotStarted    (no answer: it is asked again until there is one)
//! ```

mod task;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::live_move::MovedMachine;
use berth_engine::Queue;
use berth_host::System;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::copies::Copies;
use crate::journal::Departure;
use crate::key::Key;
use crate::machine::Machine;
pub(crate) use task::go_on;
use task::{Ended, Task};

/// The number of guests that a host sends at a time. Others wait.
const AT_A_TIME: usize = 2;
/// The time after a failed attempt until the next, which doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// How a move is, as the plan of its VM sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DepartureState {
    /// Whether a task decides about the guest.
    pub(crate) is_active: bool,
    /// The part of the guest's memory that is sent, in percent.
    pub(crate) percent: Option<i64>,
    /// Whether the task was asked to end.
    pub(crate) is_cancelled: bool,
    /// The last attempt, if it failed.
    pub(crate) failure: Option<FailedDeparture>,
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedDeparture {
    pub(crate) why: String,
    /// The time until the next attempt.
    pub(crate) left: Duration,
    /// The number of attempts that have failed since one succeeded.
    pub(crate) count: u32,
    /// The move, as the control plane knows it.
    pub(crate) migration: String,
}

/// A guest to send.
#[derive(Clone, Debug)]
pub(crate) struct NewDeparture {
    pub(crate) departure: Departure,
    pub(crate) key: Key,
    pub(crate) instance: String,
    /// None: the other host is asked how an earlier attempt has ended.
    pub(crate) machine: Option<Box<MovedMachine>>,
    /// The most bytes of the stream.
    pub(crate) at_most: u64,
}

/// A task, or what is kept of one that has failed.
#[derive(Debug, Default)]
struct Entry {
    is_active: bool,
    percent: Option<i64>,
    cancelled: Arc<AtomicBool>,
    /// Of the move that failed last.
    migration: String,
    failures: u32,
    failure: Option<(String, Instant)>,
}

/// Guests that are being sent, by instance.
pub(crate) struct Departures {
    system: Arc<dyn System>,
    copies: Copies,
    queue: Arc<Queue<Key>>,
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    slots: Arc<Semaphore>,
    tasks: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Departures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Departures").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Departures {
    pub(crate) fn new(system: Arc<dyn System>, copies: Copies, queue: Arc<Queue<Key>>) -> Self {
        let (entries, tasks) = (Arc::default(), Mutex::default());
        Self { system, copies, queue, entries, slots: Arc::new(Semaphore::new(AT_A_TIME)), tasks }
    }

    /// Returns how the move of the guest of this instance is.
    pub(crate) fn state(&self, instance: &str) -> DepartureState {
        let entries = locked(&self.entries);
        let Some(entry) = entries.get(instance) else { return DepartureState::default() };
        let failure = entry.failure.as_ref().map(|(why, again)| FailedDeparture {
            why: why.clone(),
            left: again.saturating_duration_since(Instant::now()),
            count: entry.failures,
            migration: entry.migration.clone(),
        });
        let is_cancelled = entry.cancelled.load(Ordering::Relaxed);
        DepartureState { is_active: entry.is_active, percent: entry.percent, is_cancelled, failure }
    }

    /// Begins to send a guest, or to ask how that has ended, unless a task does. The journal has the departure.
    pub(crate) fn start(&self, new: NewDeparture, machine: Option<Machine>) {
        let instance = new.instance.clone();
        let cancelled = {
            let mut entries = locked(&self.entries);
            let entry = entries.entry(instance.clone()).or_default();
            if entry.is_active {
                return;
            }
            entry.is_active = true;
            entry.percent = None;
            entry.migration.clone_from(&new.departure.migration);
            entry.cancelled = Arc::default();
            entry.cancelled.clone()
        };
        let (entries, of_progress) = (self.entries.clone(), self.entries.clone());
        let (queue, key, slots) = (self.queue.clone(), new.key.clone(), self.slots.clone());
        let (reported, sends) = (instance.clone(), new.machine.is_some());
        let task = Task {
            new,
            machine,
            system: self.system.clone(),
            copies: self.copies.clone(),
            cancelled,
            report: Box::new(move |percent| {
                if let Some(entry) = locked(&of_progress).get_mut(&reported) {
                    entry.percent = percent;
                }
            }),
        };
        let mut tasks = locked(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            // The semaphore is never closed. A question waits for no other guest.
            let _slot = if sends { slots.acquire_owned().await.ok() } else { None };
            let ended = Box::pin(task.run()).await;
            if let Some(entry) = locked(&entries).get_mut(&instance) {
                entry.is_active = false;
                entry.percent = None;
                entry.failure = None;
                if matches!(ended, Ended::HandedOver) {
                    entry.failures = 0;
                }
                if let Ended::Failed(why) = ended {
                    let wait = FIRST_WAIT.saturating_mul(1 << entry.failures.min(6)).min(LONGEST_WAIT);
                    entry.failures = entry.failures.saturating_add(1);
                    entry.failure = Some((why, Instant::now() + wait));
                }
            }
            queue.add(key);
        });
    }

    /// Has the task end before the guest is handed over, if it has not begun with that.
    pub(crate) fn cancel(&self, instance: &str) {
        if let Some(entry) = locked(&self.entries).get(instance) {
            entry.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets an instance whose guest does not move.
    pub(crate) fn forget(&self, instance: &str) {
        locked(&self.entries).retain(|other, entry| other != instance || entry.is_active);
    }
}
