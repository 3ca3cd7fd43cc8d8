//! What is to be looked at next: every object at most once at a time, each with its own back-off.
//!
//! ```text
//!            add            next              done(again)
//!  (idle) ─────────▶ due ─────────▶ running ─────────────▶ (idle) or due
//!                                     │ add: runs once more afterwards
//! ```
//!
//! Knows keys and times, nothing about what is done with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A namespaced object's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ObjectName {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Another object in the same namespace.
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
    /// Bridges, leases, forwards of the whole host.
    Network,
    Disk(ObjectName),
    Vm(ObjectName),
    Attachment(ObjectName),
    Image(ObjectName),
    /// The Host object and the host's housekeeping.
    Host,
}

/// When to look again after a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// When something changes.
    OnChange,
    /// After this time, or when something changes.
    After(Duration),
    /// It failed: after the object's back-off.
    BackOff,
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
    /// Asked for while running.
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
            dice: seed.map_or_else(StdRng::from_os_rng, StdRng::seed_from_u64),
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be looked at now. A back-off does not delay it: something changed.
    pub(crate) fn add(&self, key: Key) {
        self.add_after(key, Duration::ZERO);
    }

    /// To be looked at within this time.
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

    /// The next object to look at, marked as running. One caller at a time. Cancel safe.
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

    /// The object is no longer being worked on.
    pub(crate) fn done(&self, key: &Key, again: Again) {
        let mut state = self.state();
        state.running.remove(key);
        let asked = state.again.remove(key);
        let delay = match again {
            Again::OnChange => {
                state.failures.remove(key);
                None
            }
            Again::After(delay) => {
                state.failures.remove(key);
                Some(delay)
            }
            Again::BackOff => {
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

    /// Nothing is due now and nothing runs.
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
        queue.done(&disk("a"), Again::OnChange);
        assert_eq!(queue.next().await, disk("a"));
        queue.done(&disk("a"), Again::OnChange);
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
            queue.done(&key, Again::BackOff);
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
        // The timer of paused time is a millisecond coarse.
        assert!(start.elapsed() <= Duration::from_millis(5_001), "{:?}", start.elapsed());
    }
}
