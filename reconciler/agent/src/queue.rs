//! Work queue: each object is reconciled by at most one worker at a time and has its own back-off.
//!
//! ```text
//!            add            next              done(again)
//!  (idle) ─────────▶ due ─────────▶ running ─────────────▶ (idle) or due
//!                                     │ add: runs once more afterwards
//! ```
//!
//! Knows keys and times, nothing of what is done with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Name of a namespaced object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ObjectName {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the name of another object in the same namespace.
    pub(crate) fn beside(&self, name: &str) -> Self {
        Self::new(self.namespace.clone(), name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Something that is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// Bridges, leases and forwards of the whole host.
    Network,
    Disk(ObjectName),
    Vm(ObjectName),
    Attachment(ObjectName),
    Image(ObjectName),
    /// The Host object and the host's housekeeping.
    Host,
}

/// When to requeue a key after a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requeue {
    /// When something changes.
    OnChange,
    /// After this time, or when something changes.
    After(Duration),
    /// The reconcile failed: requeue with the object's back-off.
    BackOff,
}

impl Requeue {
    /// Returns the earlier of the two; a failure takes precedence over both.
    pub(crate) fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::BackOff, _) | (_, Self::BackOff) => Self::BackOff,
            (Self::After(a), Self::After(b)) => Self::After(a.min(b)),
            (Self::After(after), Self::OnChange) | (Self::OnChange, Self::After(after)) => Self::After(after),
            (Self::OnChange, Self::OnChange) => Self::OnChange,
        }
    }
}

const FIRST_BACK_OFF: Duration = Duration::from_millis(250);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    due: BTreeMap<Key, Instant>,
    running: BTreeSet<Key>,
    /// Added while running.
    again: BTreeSet<Key>,
    failures: BTreeMap<Key, u32>,
    dice: StdRng,
}

impl Queue {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let state = State {
            due: BTreeMap::new(),
            running: BTreeSet::new(),
            again: BTreeSet::new(),
            failures: BTreeMap::new(),
            dice: seed.map_or_else(rand::make_rng, StdRng::seed_from_u64),
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key to be processed now. A back-off does not delay it, as something has changed.
    pub(crate) fn add(&self, key: Key) {
        self.add_after(key, Duration::ZERO);
    }

    /// Adds a key to be processed no later than after this delay.
    pub(crate) fn add_after(&self, key: Key, delay: Duration) {
        let mut state = self.state();
        if state.running.contains(&key) && delay.is_zero() {
            state.again.insert(key);
            return;
        }
        let at = Instant::now() + delay;
        let due = state.due.entry(key).or_insert(at);
        *due = at.min(*due);
        drop(state);
        self.changed.notify_one();
    }

    /// Returns the next due key and marks it as running. One caller at a time. Cancel safe.
    pub(crate) async fn next(&self) -> Key {
        loop {
            let wait = {
                let mut state = self.state();
                let now = Instant::now();
                let first = state
                    .due
                    .iter()
                    .filter(|(key, _)| !state.running.contains(key))
                    .min_by_key(|(_, at)| **at)
                    .map(|(key, at)| (key.clone(), *at));
                match first {
                    Some((key, at)) if at <= now => {
                        state.due.remove(&key);
                        state.running.insert(key.clone());
                        return key;
                    }
                    other => other.map(|(_, at)| at),
                }
            };
            match wait {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// Marks a key as no longer running and requeues it as requested.
    pub(crate) fn done(&self, key: &Key, again: Requeue) {
        let mut state = self.state();
        state.running.remove(key);
        let asked = state.again.remove(key);
        let delay = match again {
            Requeue::OnChange => {
                state.failures.remove(key);
                None
            }
            Requeue::After(delay) => {
                state.failures.remove(key);
                Some(delay)
            }
            Requeue::BackOff => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                *failures = failures.saturating_add(1);
                let base = back_off(*failures);
                Some(base.mul_f64(state.dice.random_range(0.75..1.0)))
            }
        };
        drop(state);
        if asked {
            self.add(key.clone());
        }
        if let Some(delay) = delay {
            self.add_after(key.clone(), delay);
        }
        self.changed.notify_one();
    }

    /// Whether no key is queued and none is running.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        let state = self.state();
        state.running.is_empty() && state.due.is_empty()
    }
}

fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST_BACK_OFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str) -> Key {
        Key::Disk(ObjectName::new("ns", name))
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_never_worked_on_twice_at_the_same_time() {
        let queue = Queue::new(Some(1));
        queue.add(disk("a"));
        queue.add(disk("a"));
        assert_eq!(queue.next().await, disk("a"));
        queue.add(disk("a"));
        let early = tokio::time::timeout(Duration::from_secs(9), queue.next()).await;
        assert!(early.is_err(), "it runs already");
        queue.done(&disk("a"), Requeue::OnChange);
        assert_eq!(queue.next().await, disk("a"));
        queue.done(&disk("a"), Requeue::OnChange);
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_up_to_five_minutes_and_a_change_does_not_wait() {
        let queue = Queue::new(Some(1));
        queue.add(disk("a"));
        let mut waits = Vec::new();
        for _ in 0..16 {
            let start = Instant::now();
            let key = queue.next().await;
            waits.push(start.elapsed());
            queue.done(&key, Requeue::BackOff);
        }
        assert!(waits[1] < waits[3] && waits[3] < waits[6], "{waits:?}");
        assert!(waits.iter().all(|w| *w <= LONGEST_BACK_OFF), "{waits:?}");
        assert!(waits[15] > Duration::from_secs(200), "{waits:?}");
        let start = Instant::now();
        queue.add(disk("a"));
        queue.next().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_wishes_counts() {
        let queue = Queue::new(Some(1));
        queue.add_after(disk("a"), Duration::from_secs(50));
        queue.add_after(disk("a"), Duration::from_secs(5));
        queue.add_after(disk("a"), Duration::from_secs(500));
        let start = Instant::now();
        queue.next().await;
        // The timer of paused time has a resolution of one millisecond.
        assert!(start.elapsed() <= Duration::from_millis(5_001), "{:?}", start.elapsed());
    }
}
