//! Work queue: each key is queued at most once, processed by at most one worker at a time, and has its own back-off.
//!
//! ```text
//!         add, add_after            next              succeeded, failed, deferred
//!  (idle) ──────────────▶ queued ─────────▶ running ─────────────────────────────▶ (idle)
//!                            ▲                 │ failed: after its back-off
//!                            └─────────────────┘ added while it was running: at once
//! ```
//!
//! Keys are taken in order of their due times, and those due at the same time in the order in which they were added.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{RngExt, rngs::StdRng};
use tokio::{sync::Notify, time::Instant};

/// The longest back-off of a key that fails again and again.
pub const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);

/// The queue that the module describes.
///
/// *Assumptions:* each key that is taken is given back by exactly one of `succeeded`, `failed` and `deferred`.
#[derive(Debug)]
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

/// When a key is due, and the number of its addition.
type Position = (Instant, u64);

#[derive(Debug)]
struct State<K> {
    queued: BTreeMap<Position, K>,
    positions: BTreeMap<K, Position>,
    additions: u64,
    running: BTreeSet<K>,
    /// The running keys that are due again.
    due_again: BTreeSet<K>,
    failures: BTreeMap<K, u32>,
    first_back_off: Duration,
    jitter: StdRng,
}

impl<K: Ord + Clone> State<K> {
    /// Queues a key no later than for this time.
    fn enqueue(&mut self, key: K, at: Instant) {
        match self.positions.get(&key) {
            Some((due, _)) if *due <= at => return,
            Some(later) => self.queued.remove(later),
            None => None,
        };
        self.additions += 1;
        let position = (at, self.additions);
        self.queued.insert(position, key.clone());
        self.positions.insert(key, position);
    }

    fn take(&mut self, now: Instant) -> Option<K> {
        loop {
            let first = self.queued.first_entry().filter(|first| first.key().0 <= now)?;
            let key = first.remove();
            self.positions.remove(&key);
            if self.running.contains(&key) {
                self.due_again.insert(key);
                continue;
            }
            self.running.insert(key.clone());
            return Some(key);
        }
    }

    fn give_back(&mut self, key: &K) {
        self.running.remove(key);
        if let Some(key) = self.due_again.take(key) {
            self.enqueue(key, Instant::now());
        }
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// Returns an empty queue. The back-off of a key is doubled with each failure, up to [`LONGEST_BACK_OFF`].
    pub fn new(first_back_off: Duration, jitter: StdRng) -> Self {
        let state = State {
            queued: BTreeMap::new(),
            positions: BTreeMap::new(),
            additions: 0,
            running: BTreeSet::new(),
            due_again: BTreeSet::new(),
            failures: BTreeMap::new(),
            first_back_off,
            jitter,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a key to be processed now. A back-off does not delay it, as something has changed.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Queues a key to be processed no later than after this delay.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.state().enqueue(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Takes the next due key; waits until there is one. One caller at a time. Cancel safe.
    pub async fn next(&self) -> K {
        loop {
            if let Some(key) = self.try_next() {
                return key;
            }
            match self.next_deadline() {
                Some(at) => drop(tokio::time::timeout_at(at, self.changed.notified()).await),
                None => self.changed.notified().await,
            }
        }
    }

    /// Takes the next due key, if there is one.
    pub fn try_next(&self) -> Option<K> {
        self.state().take(Instant::now())
    }

    /// Returns when the next queued key is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.state().queued.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the number of keys that are queued, those that are not due yet included.
    pub fn len(&self) -> usize {
        self.state().queued.len()
    }

    /// Whether no key is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives a key back that was processed, and forgets its failures.
    pub fn succeeded(&self, key: &K) {
        let mut state = self.state();
        state.failures.remove(key);
        state.give_back(key);
        drop(state);
        self.changed.notify_one();
    }

    /// Gives a key back that failed, and queues it after its back-off, which is at most `longest`; returns the delay.
    pub fn failed(&self, key: &K, longest: Duration) -> Duration {
        let mut state = self.state();
        let failures = state.failures.get(key).copied().unwrap_or_default();
        state.failures.insert(key.clone(), failures.saturating_add(1));
        let doubled = state.first_back_off.saturating_mul(1 << failures.min(16));
        let delay = doubled.min(longest).min(LONGEST_BACK_OFF).mul_f64(state.jitter.random_range(0.75..1.0));
        state.give_back(key);
        state.enqueue(key.clone(), Instant::now() + delay);
        drop(state);
        self.changed.notify_one();
        delay
    }

    /// Gives a key back that was not processed. Its failures are kept.
    pub fn deferred(&self, key: &K) {
        self.state().give_back(key);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const FIRST: Duration = Duration::from_millis(100);

    fn queue() -> Queue<&'static str> {
        Queue::new(FIRST, StdRng::seed_from_u64(1))
    }

    /// Takes all due keys and gives them back.
    fn drain(queue: &Queue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.try_next().inspect(|key| queue.succeeded(key))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_queued_once_and_keys_are_taken_in_the_order_of_their_addition() {
        let queue = queue();
        for key in ["b", "a", "b", "c"] {
            queue.add(key);
        }
        assert_eq!(drain(&queue), ["b", "a", "c"]);
        assert_eq!((queue.try_next(), queue.next_deadline()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_never_worked_on_twice_at_the_same_time() {
        let queue = queue();
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.add("a");
        let early = tokio::time::timeout(Duration::from_secs(9), queue.next()).await;
        assert!(early.is_err(), "it is running");
        queue.succeeded(&"a");
        assert_eq!(queue.next().await, "a");
        queue.succeeded(&"a");
        assert_eq!((queue.try_next(), queue.next_deadline()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_key_does_not_delay_the_keys_behind_it() {
        let queue = queue();
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.try_next(), Some("b"));
        queue.deferred(&"a");
        assert_eq!(queue.try_next(), Some("a"), "it was added while it was running");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_up_to_five_minutes_and_a_change_does_not_wait() {
        let queue = queue();
        queue.add("a");
        let mut waits = Vec::new();
        for _ in 0..16 {
            let start = Instant::now();
            let key = queue.next().await;
            waits.push(start.elapsed());
            queue.failed(&key, LONGEST_BACK_OFF);
        }
        assert!(waits[1] < waits[3] && waits[3] < waits[6], "{waits:?}");
        assert!(waits.iter().all(|w| *w <= LONGEST_BACK_OFF), "{waits:?}");
        assert!(waits[15] > Duration::from_secs(200), "{waits:?}");
        let start = Instant::now();
        queue.add("a");
        queue.next().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(queue.failed(&"a", FIRST) <= FIRST, "a shorter limit applies");
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_forgets_the_failures_and_a_deferral_does_not() {
        let queue = queue();
        for _ in 0..4 {
            queue.failed(&"a", LONGEST_BACK_OFF);
        }
        queue.deferred(&"a");
        assert!(queue.failed(&"a", LONGEST_BACK_OFF) > FIRST * 8);
        queue.succeeded(&"a");
        assert!(queue.failed(&"a", LONGEST_BACK_OFF) <= FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_a_failed_attempt_does_not_wait_for_the_back_off() {
        let queue = queue();
        queue.add("a");
        assert_eq!(queue.try_next(), Some("a"));
        queue.add("a");
        assert_eq!(queue.try_next(), None);
        queue.failed(&"a", LONGEST_BACK_OFF);
        assert_eq!(queue.try_next(), Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_wishes_counts() {
        let queue = queue();
        queue.add_after("a", Duration::from_secs(50));
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("a", Duration::from_secs(500));
        let start = Instant::now();
        assert_eq!(queue.next_deadline(), Some(start + Duration::from_secs(5)));
        queue.next().await;
        // The timer of paused time has a resolution of one millisecond.
        assert!(start.elapsed() <= Duration::from_millis(5_001), "{:?}", start.elapsed());
        queue.succeeded(&"a");
        assert_eq!(queue.next_deadline(), None, "a key is queued for one time only");
    }
}
