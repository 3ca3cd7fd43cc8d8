//! The queue of keys: each at most once, blocked ones indexed by what they wait for, failed ones backed off.
//!
//! VMs that wait for capacity stand in line, one line per distinct request. When capacity is freed, only the first
//! VM of each line is tried, and the next one once that one is placed. So the cost of a VM that goes away is one
//! decision per line, not one per waiting VM. The other VMs are reconciled in rotation, a few at a time, so that
//! their conditions stay current.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    ops::Bound,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    key::{Key, ObjectKind},
    plan::{Dependency, Outcome, QueuePosition},
    scheduler::Request,
};

/// The first delay after a failure; doubled each time.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// How long changes to an aggregating object are coalesced.
const COALESCING_DELAY: Duration = Duration::from_secs(1);

/// Which keys to reconcile, and when.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    ready: VecDeque<Key>,
    is_ready: HashSet<Key>,
    later: BTreeMap<Instant, Vec<Key>>,
    /// The keys in `later` that coalesce changes.
    coalescing: HashSet<Key>,
    failures: HashMap<Key, u32>,
    waiting: HashMap<Dependency, BTreeSet<Key>>,
    dependencies: HashMap<Key, Vec<Dependency>>,
    /// The keys waiting for capacity, by request, oldest first.
    lines: HashMap<Request, BTreeSet<(Option<Timestamp>, Key)>>,
    in_line: BTreeSet<Key>,
    /// The last key of `in_line` that the rotation enqueued.
    turn: Option<Key>,
    /// The line that the key being worked on stood in.
    left: Option<Request>,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Enqueues a key.
    pub(crate) fn add(&mut self, key: Key) {
        if key.kind != ObjectKind::Lease && self.is_ready.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    /// Enqueues a changed object and the keys that wait for it.
    pub(crate) fn changed(&mut self, key: Key) {
        self.wake(&Dependency::Object(key.clone()));
        if matches!(key.kind, ObjectKind::PublicIP | ObjectKind::IPPool) {
            self.wake(&Dependency::Address);
        }
        if key.kind == ObjectKind::Network {
            self.wake(&Dependency::NetworkRange);
        }
        self.add(key);
    }

    /// Enqueues a key after a short delay, once for all changes within it: the object aggregates others. Every host
    /// reads a network's status about its hosts, and VMs come to many hosts at once.
    pub(crate) fn coalesce(&mut self, key: Key) {
        if self.coalescing.insert(key.clone()) {
            self.later.entry(Instant::now() + COALESCING_DELAY).or_default().push(key);
        }
    }

    /// Wakes the keys that wait for a host to be added, removed or changed.
    pub(crate) fn hosts_changed(&mut self) {
        self.wake(&Dependency::Hosts);
    }

    /// Capacity or a private address may have become free: enqueues the first key of each line, the oldest of them
    /// first.
    pub(crate) fn capacity_freed(&mut self) {
        self.wake(&Dependency::PrivateAddress);
        let mut first: Vec<_> = self.lines.values().filter_map(|line| line.first().cloned()).collect();
        first.sort();
        for (_, key) in first {
            self.add(key);
        }
    }

    /// Enqueues the next few keys that wait for capacity.
    pub(crate) fn rotate_waiting(&mut self, count: usize) {
        let after = self.turn.take().map_or(Bound::Unbounded, Bound::Excluded);
        let keys: Vec<Key> = self.in_line.range((after, Bound::Unbounded)).take(count).cloned().collect();
        // At the end of the line the rotation restarts at its beginning.
        self.turn = keys.last().filter(|_| keys.len() == count).cloned();
        for key in keys {
            self.add(key);
        }
    }

    fn wake(&mut self, dependency: &Dependency) {
        for key in self.waiting.remove(dependency).unwrap_or_default() {
            self.add(key);
        }
    }

    /// Returns the next key that is due.
    pub(crate) fn next_ready(&mut self, now: Instant) -> Option<Key> {
        while let Some(entry) = self.later.first_entry() {
            if *entry.key() > now {
                break;
            }
            for key in entry.remove() {
                self.coalescing.remove(&key);
                self.add(key);
            }
        }
        let key = self.ready.pop_front()?;
        self.is_ready.remove(&key);
        self.forget_needs(&key);
        Some(key)
    }

    /// Returns when the next delayed key is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.later.first_key_value().map(|(at, _)| *at)
    }

    /// Records the outcome of the key being worked on; its writes may still fail.
    pub(crate) fn decided(&mut self, key: &Key, outcome: Outcome) {
        match outcome {
            Outcome::Settled => self.advance_line(),
            Outcome::Blocked(dependencies) => self.blocked(key, dependencies),
        }
    }

    /// Defers the key being worked on: it cannot be decided yet.
    pub(crate) fn defer(&mut self) {
        self.advance_line();
    }

    /// Records that the decision about the key is written.
    pub(crate) fn succeeded(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    /// The key being worked on leaves its line: the resource it was tried for may serve the next one.
    fn advance_line(&mut self) {
        let next = self.left.take().and_then(|line| self.lines.get(&line)?.first().cloned());
        if let Some((_, key)) = next {
            self.add(key);
        }
    }

    /// Records that the key waits for these needs.
    fn blocked(&mut self, key: &Key, dependencies: Vec<Dependency>) {
        for dependency in &dependencies {
            if let Dependency::Capacity(place) = dependency {
                let line = self.lines.entry(place.line.clone()).or_default();
                line.insert((place.since, key.clone()));
                self.in_line.insert(key.clone());
                // If this key does not fit, no key behind it does.
                self.left.take_if(|left| *left == place.line);
            } else {
                self.waiting.entry(dependency.clone()).or_default().insert(key.clone());
            }
        }
        self.dependencies.insert(key.clone(), dependencies);
        self.advance_line();
    }

    /// Requeues a failed key after a delay that doubles up to five minutes, spread by `jitter` (0 to 1).
    pub(crate) fn retry(&mut self, key: &Key, jitter: f64) -> Duration {
        self.retry_within(key, jitter, LONGEST_DELAY)
    }

    /// Like `retry`, with another longest delay.
    pub(crate) fn retry_within(&mut self, key: &Key, jitter: f64, longest: Duration) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = FIRST_DELAY.saturating_mul(1 << (*failures).min(12)).min(longest);
        *failures += 1;
        let delay = delay.mul_f64(0.75 + jitter.clamp(0.0, 1.0) * 0.5).min(longest);
        self.later.entry(Instant::now() + delay).or_default().push(key.clone());
        self.advance_line();
        delay
    }

    fn forget_needs(&mut self, key: &Key) {
        self.left = None;
        for dependency in self.dependencies.remove(key).unwrap_or_default() {
            if let Dependency::Capacity(place) = &dependency {
                self.leave(place, key);
            } else if let Some(waiting) = self.waiting.get_mut(&dependency) {
                waiting.remove(key);
                if waiting.is_empty() {
                    self.waiting.remove(&dependency);
                }
            }
        }
    }
}

impl Queue {
    fn leave(&mut self, place: &QueuePosition, key: &Key) {
        self.in_line.remove(key);
        if let Some(line) = self.lines.get_mut(&place.line) {
            line.remove(&(place.since, key.clone()));
            if line.is_empty() {
                self.lines.remove(&place.line);
            }
        }
        self.left = Some(place.line.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str) -> Key {
        Key::namespaced(ObjectKind::VM, "default", name)
    }

    fn drain(queue: &mut Queue) -> Vec<Key> {
        std::iter::from_fn(|| queue.next_ready(Instant::now())).collect()
    }

    #[test]
    fn a_key_is_queued_once() {
        let mut queue = Queue::new();
        queue.add(vm("a"));
        queue.add(vm("a"));
        assert_eq!(drain(&mut queue), [vm("a")]);
    }

    #[test]
    fn a_blocked_key_wakes_when_what_it_needs_changes_and_only_then() {
        let mut queue = Queue::new();
        let class = Key::namespaced(ObjectKind::VMClass, "default", "small");
        queue.blocked(&vm("a"), vec![Dependency::Object(class.clone()), Dependency::Address]);
        queue.changed(Key::namespaced(ObjectKind::VMClass, "default", "large"));
        assert_eq!(drain(&mut queue), [Key::namespaced(ObjectKind::VMClass, "default", "large")]);
        queue.changed(class.clone());
        assert_eq!(drain(&mut queue), [vm("a"), class]);
        assert!(queue.waiting.is_empty(), "a woken key waits for nothing any more");
    }

    fn room(memory: u64, since: i64) -> Vec<Dependency> {
        let line = Request { memory, ..Request::default() };
        vec![Dependency::Capacity(Box::new(QueuePosition {
            line,
            since: Timestamp::from_second(since).ok(),
        }))]
    }

    #[test]
    fn of_those_who_ask_for_the_same_room_the_oldest_is_tried_and_the_next_only_after_it_found_a_place() {
        let mut queue = Queue::new();
        for (name, since) in [("a", 3), ("b", 1), ("c", 2)] {
            queue.blocked(&vm(name), room(100, since));
        }
        queue.blocked(&vm("large"), room(900, 0));
        queue.capacity_freed();
        let now = Instant::now();
        assert_eq!(queue.next_ready(now), Some(vm("large")));
        queue.blocked(&vm("large"), room(900, 0));
        assert_eq!(queue.next_ready(now), Some(vm("b")));
        queue.decided(&vm("b"), Outcome::Settled);
        assert_eq!(queue.next_ready(now), Some(vm("c")));
        queue.blocked(&vm("c"), room(100, 2));
        assert_eq!(queue.next_ready(now), None, "where one does not fit the others are not tried");
        queue.capacity_freed();
        assert_eq!(drain(&mut queue).len(), 2, "one a line");
    }

    #[test]
    fn a_vm_that_fails_or_waits_for_something_else_gives_the_next_its_turn() {
        let mut queue = Queue::new();
        for (name, since) in [("a", 1), ("b", 2), ("c", 3)] {
            queue.blocked(&vm(name), room(100, since));
        }
        queue.capacity_freed();
        let now = Instant::now();
        assert_eq!(queue.next_ready(now), Some(vm("a")));
        queue.retry(&vm("a"), 0.5);
        assert_eq!(queue.next_ready(now), Some(vm("b")));
        queue.blocked(&vm("b"), vec![Dependency::Address]);
        assert_eq!(queue.next_ready(now), Some(vm("c")));
        queue.decided(&vm("c"), Outcome::Settled);
        assert!(queue.lines.is_empty() && queue.in_line.is_empty());
    }

    #[test]
    fn everybody_in_line_is_looked_at_in_turn() {
        let mut queue = Queue::new();
        for name in ["a", "b", "c"] {
            queue.blocked(&vm(name), room(100, 1));
        }
        let mut seen = Vec::new();
        for _ in 0..4 {
            queue.rotate_waiting(2);
            for key in drain(&mut queue) {
                queue.blocked(&key, room(100, 1));
                seen.push(key.name);
            }
        }
        assert_eq!(seen, ["a", "b", "c", "a", "b", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_sums_up_others_is_looked_at_once_for_many_changes() {
        let mut queue = Queue::new();
        let network = Key::namespaced(ObjectKind::Network, "default", "net");
        for _ in 0..500 {
            queue.coalesce(network.clone());
        }
        assert!(drain(&mut queue).is_empty());
        tokio::time::advance(COALESCING_DELAY).await;
        assert_eq!(drain(&mut queue), std::slice::from_ref(&network));
        queue.coalesce(network.clone());
        tokio::time::advance(COALESCING_DELAY).await;
        assert_eq!(drain(&mut queue), [network]);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_up_to_five_minutes() {
        let mut queue = Queue::new();
        let delays: Vec<_> = (0..20).map(|_| queue.retry(&vm("a"), 0.5)).collect();
        assert_eq!(delays[0], FIRST_DELAY);
        assert_eq!(delays[1], FIRST_DELAY * 2);
        assert_eq!(delays[19], LONGEST_DELAY);
        assert!(drain(&mut queue).is_empty());
        tokio::time::advance(FIRST_DELAY).await;
        assert_eq!(drain(&mut queue), [vm("a")]);
        let short = Duration::from_secs(10);
        assert_eq!(
            queue.retry_within(&vm("a"), 0.5, short),
            short,
            "what waits for room is looked at sooner"
        );
        queue.succeeded(&vm("a"));
        assert_eq!(queue.retry(&vm("a"), 0.5), FIRST_DELAY, "a success forgets the failures");
    }
}
