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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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

/// Waits until a guest can be sent. None: the task is cancelled, and ends at once.
async fn slot(slots: Arc<Semaphore>, task: &Task) -> Option<OwnedSemaphorePermit> {
    tokio::select! {
        // It is never closed.
        slot = slots.acquire_owned() => slot.ok(),
        () = task.until_cancelled() => None,
    }
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
            // A question waits for no other guest.
            let _slot = if sends { slot(slots, &task).await } else { None };
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

#[cfg(test)]
mod tests {
    use berth_api::VM;
    use berth_engine::RuntimeClock;
    use berth_host::Machines as _;
    use berth_host::fake::FakeSystem;
    use jiff::Timestamp;
    use kube::Client;
    use rand::{SeedableRng, rngs::StdRng};
    use serde_json::{Value, json};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::journal::{DeparturePhase, Journal};
    use crate::key::ObjectName;

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_waits_for_others_to_be_sent_goes_on_at_once_when_its_move_is_cancelled() {
        let clock = Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH));
        let system = Arc::new(FakeSystem::new(clock));
        let departure = Departure {
            id: "m1-7".to_owned(),
            migration: "m1".to_owned(),
            to: "h2".to_owned(),
            epoch: 1,
            phase: DeparturePhase::Sending,
            since: Timestamp::UNIX_EPOCH,
        };
        let vm: VM = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1"}, "spec": {"class": "s", "disks": []},
        }))
        .expect("a VM");
        let journal = Journal::new(&vm).with_departure(Some(departure.clone()));
        system.write_journal("i-1", &journal.to_value()).await.expect("written");
        // No control plane answers.
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let copies = Copies::new(Client::new(silent, "default"), "h1");
        let queue = Arc::new(Queue::new(Duration::from_millis(250), StdRng::seed_from_u64(1)));
        let departures = Departures::new(system.clone(), copies, queue);
        let _others = departures.slots.clone().try_acquire_many_owned(2).expect("two guests are sent");
        let moved =
            MovedMachine { journal: Value::Null, machine: Value::Null, cpus: 1, bootstrap: Vec::new() };
        let new = NewDeparture {
            departure,
            key: Key::new::<VM>(ObjectName::new("ns", "web")),
            instance: "i-1".to_owned(),
            machine: Some(Box::new(moved)),
            at_most: 1,
        };
        departures.start(new, Some(Machine::unconnected()));
        sleep(Duration::from_secs(60)).await;
        assert!(departures.state("i-1").is_active, "it waits");
        departures.cancel("i-1");
        let ended = async {
            while departures.state("i-1").is_active {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(Duration::from_secs(10), ended).await.expect("it does not wait for the others");
        let journal = system.read_journal("i-1").await.expect("read").map(Journal::parse);
        assert!(journal.is_some_and(|journal| journal.is_ok_and(|journal| journal.departure.is_none())));
    }
}
