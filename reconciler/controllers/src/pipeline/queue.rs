//! The work queue, and the blocked keys, indexed by what they wait for: a change of that queues them.
//!
//! VMs that wait for capacity stand in line, one line per distinct request. When capacity is freed, only the first
//! VM of each line is tried, and the next one once that one is placed. So the cost of a VM that goes away is one
//! decision per line, not one per waiting VM. The other VMs are reconciled in rotation, a few at a time, so that
//! their conditions stay current.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Bound,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use rand::rngs::StdRng;
use tokio::time::Instant;

use crate::{
    key::{Key, ObjectKind},
    plan::{Dependency, Outcome, QueuePosition},
    scheduler::Request,
};

/// The first delay after a failure; doubled each time.
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
/// How long changes to an aggregating object are coalesced.
const COALESCING_DELAY: Duration = Duration::from_secs(1);
/// For each so many names in a Network's status, the delay is longer by itself: at each change every host receives all of them.
const NAMES_PER_DELAY: usize = 500;

/// How long the first report of an object is delayed whose first user, created together with it, reports it better.
const FIRST_REPORT_DELAY: Duration = Duration::from_millis(250);

/// Which keys to reconcile, and when. Each key that is taken is given back by one of `succeeded`, `failed` and `defer`.
#[derive(Debug)]
pub(crate) struct Queue {
    queue: berth_engine::Queue<Key>,
    waiting: HashMap<Dependency, BTreeSet<Key>>,
    dependencies: HashMap<Key, Vec<Dependency>>,
    /// The keys waiting for capacity, by request, oldest first.
    lines: HashMap<Request, BTreeSet<(Option<Timestamp>, Key)>>,
    in_line: BTreeSet<Key>,
    /// The keys that wait for a moment.
    moments: BTreeSet<(Timestamp, Key)>,
    /// The last reading of the wall clock.
    clock: Option<Timestamp>,
    /// The last key of `in_line` that the rotation enqueued.
    turn: Option<Key>,
    /// The line that the key being worked on stood in.
    left: Option<Request>,
}

impl Queue {
    pub(crate) fn new(jitter: StdRng) -> Self {
        Self {
            queue: berth_engine::Queue::new(FIRST_BACK_OFF, jitter),
            waiting: HashMap::new(),
            dependencies: HashMap::new(),
            lines: HashMap::new(),
            in_line: BTreeSet::new(),
            moments: BTreeSet::new(),
            clock: None,
            turn: None,
            left: None,
        }
    }

    /// Returns the number of keys that are queued, those that are not due yet included.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Enqueues a key.
    pub(crate) fn add(&mut self, key: Key) {
        if key.kind != ObjectKind::Lease {
            self.queue.add(key);
        }
    }

    /// Enqueues a changed object and the keys that wait for it.
    pub(crate) fn changed(&mut self, key: Key) {
        self.wake_dependents(&key);
        self.add(key);
    }

    /// Enqueues the keys that wait for a new object, and that object after a short delay.
    pub(crate) fn created(&mut self, key: Key) {
        self.wake_dependents(&key);
        self.queue.add_after(key, FIRST_REPORT_DELAY);
    }

    /// Enqueues the keys that wait for a changed object.
    pub(crate) fn wake_dependents(&mut self, key: &Key) {
        self.wake(&Dependency::Object(key.clone()));
        if matches!(key.kind, ObjectKind::PublicIP | ObjectKind::IPPool) {
            self.wake(&Dependency::Address);
        }
        if key.kind == ObjectKind::Network {
            self.wake(&Dependency::NetworkRange);
        }
        if key.kind == ObjectKind::StoragePool {
            self.wake(&Dependency::StoragePools);
        }
    }

    /// Enqueues a key after a short delay, once for all changes within it: the object aggregates others. Every host
    /// reads a network's status about its hosts, and VMs come to many hosts at once. `names`: the number of names in it.
    pub(crate) fn coalesce(&mut self, key: Key, names: usize) {
        let longer = u32::try_from(names / NAMES_PER_DELAY).unwrap_or(u32::MAX);
        self.queue.add_after(key, COALESCING_DELAY.saturating_mul(longer.saturating_add(1)));
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

    /// Enqueues the keys whose moment has come by the wall clock: all of them, if the clock went back.
    pub(crate) fn time_is(&mut self, now: Timestamp) {
        let went_back = self.clock.replace(now).is_some_and(|before| now < before);
        while let Some((moment, key)) = self.moments.pop_first() {
            if moment > now && !went_back {
                self.moments.insert((moment, key));
                return;
            }
            self.add(key);
        }
    }

    fn wake(&mut self, dependency: &Dependency) {
        for key in self.waiting.remove(dependency).unwrap_or_default() {
            self.add(key);
        }
    }

    /// Takes the next key that is due.
    pub(crate) fn try_next(&mut self) -> Option<Key> {
        let key = self.queue.try_next()?;
        self.forget_needs(&key);
        Some(key)
    }

    /// Returns when the next key is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.queue.next_deadline()
    }

    /// Records the outcome of the key being worked on; its writes may still fail.
    pub(crate) fn decided(&mut self, key: &Key, outcome: Outcome) {
        match outcome {
            Outcome::Settled => self.advance_line(),
            Outcome::Blocked(dependencies) => self.blocked(key, dependencies),
        }
    }

    /// Defers the key being worked on: it cannot be decided yet.
    pub(crate) fn defer(&mut self, key: &Key) {
        self.advance_line();
        self.queue.deferred(key);
    }

    /// Records that the decision about the key is written.
    pub(crate) fn succeeded(&mut self, key: &Key) {
        self.queue.succeeded(key);
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
            if let Dependency::Time(moment) = dependency {
                self.moments.insert((*moment, key.clone()));
            } else if let Dependency::Capacity(place) = dependency {
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

    /// Requeues a failed key after its back-off, which is at most `longest`; returns the delay.
    pub(crate) fn failed(&mut self, key: &Key, longest: Duration) -> Duration {
        self.advance_line();
        self.queue.failed(key, longest)
    }

    fn forget_needs(&mut self, key: &Key) {
        self.left = None;
        for dependency in self.dependencies.remove(key).unwrap_or_default() {
            if let Dependency::Time(moment) = dependency {
                self.moments.remove(&(moment, key.clone()));
            } else if let Dependency::Capacity(place) = &dependency {
                self.leave(place, key);
            } else if let Some(waiting) = self.waiting.get_mut(&dependency) {
                waiting.remove(key);
                if waiting.is_empty() {
                    self.waiting.remove(&dependency);
                }
            }
        }
    }

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
    use berth_engine::queue::LONGEST_BACK_OFF;
    use rand::SeedableRng;

    use super::*;

    fn vm(name: &str) -> Key {
        Key::namespaced(ObjectKind::VM, "default", name)
    }

    fn queue() -> Queue {
        Queue::new(StdRng::seed_from_u64(1))
    }

    fn block(queue: &mut Queue, key: &Key, dependencies: Vec<Dependency>) {
        queue.decided(key, Outcome::Blocked(dependencies));
        queue.succeeded(key);
    }

    fn settle(queue: &mut Queue, key: &Key) {
        queue.decided(key, Outcome::Settled);
        queue.succeeded(key);
    }

    fn drain(queue: &mut Queue) -> Vec<Key> {
        let keys: Vec<Key> = std::iter::from_fn(|| queue.try_next()).collect();
        keys.iter().for_each(|key| queue.succeeded(key));
        keys
    }

    #[test]
    fn a_blocked_key_wakes_when_what_it_needs_changes_and_only_then() {
        let mut queue = queue();
        let class = Key::namespaced(ObjectKind::VMClass, "default", "small");
        block(&mut queue, &vm("a"), vec![Dependency::Object(class.clone()), Dependency::Address]);
        queue.changed(Key::namespaced(ObjectKind::VMClass, "default", "large"));
        assert_eq!(drain(&mut queue), [Key::namespaced(ObjectKind::VMClass, "default", "large")]);
        queue.changed(class.clone());
        assert_eq!(drain(&mut queue), [vm("a"), class]);
        assert!(queue.waiting.is_empty(), "a woken key waits for nothing any more");
    }

    #[test]
    fn a_key_that_waits_for_a_moment_wakes_then_and_when_the_clock_goes_back() {
        let at = |second: i64| Timestamp::from_second(second).expect("a small number");
        let mut queue = queue();
        for (name, second) in [("a", 100), ("b", 200)] {
            block(&mut queue, &vm(name), vec![Dependency::Time(at(second)), Dependency::Address]);
        }
        queue.time_is(at(99));
        assert!(drain(&mut queue).is_empty());
        queue.time_is(at(100));
        assert_eq!(drain(&mut queue), [vm("a")]);
        queue.time_is(at(50));
        assert_eq!(drain(&mut queue), [vm("b")], "what it waits for may be another moment now");
        assert!(queue.moments.is_empty() && queue.waiting.is_empty());
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
        let mut queue = queue();
        for (name, since) in [("a", 3), ("b", 1), ("c", 2)] {
            block(&mut queue, &vm(name), room(100, since));
        }
        block(&mut queue, &vm("large"), room(900, 0));
        queue.capacity_freed();
        assert_eq!(queue.try_next(), Some(vm("large")));
        block(&mut queue, &vm("large"), room(900, 0));
        assert_eq!(queue.try_next(), Some(vm("b")));
        settle(&mut queue, &vm("b"));
        assert_eq!(queue.try_next(), Some(vm("c")));
        block(&mut queue, &vm("c"), room(100, 2));
        assert_eq!(queue.try_next(), None, "where one does not fit the others are not tried");
        queue.capacity_freed();
        assert_eq!(drain(&mut queue).len(), 2, "one a line");
    }

    #[test]
    fn a_vm_that_fails_or_waits_for_something_else_gives_the_next_its_turn() {
        let mut queue = queue();
        for (name, since) in [("a", 1), ("b", 2), ("c", 3)] {
            block(&mut queue, &vm(name), room(100, since));
        }
        queue.capacity_freed();
        assert_eq!(queue.try_next(), Some(vm("a")));
        queue.failed(&vm("a"), LONGEST_BACK_OFF);
        assert_eq!(queue.try_next(), Some(vm("b")));
        block(&mut queue, &vm("b"), vec![Dependency::Address]);
        assert_eq!(queue.try_next(), Some(vm("c")));
        settle(&mut queue, &vm("c"));
        assert!(queue.lines.is_empty() && queue.in_line.is_empty());
    }

    #[test]
    fn everybody_in_line_is_looked_at_in_turn() {
        let mut queue = queue();
        for name in ["a", "b", "c"] {
            block(&mut queue, &vm(name), room(100, 1));
        }
        let mut seen = Vec::new();
        for _ in 0..4 {
            queue.rotate_waiting(2);
            for key in drain(&mut queue) {
                block(&mut queue, &key, room(100, 1));
                seen.push(key.name.to_string());
            }
        }
        assert_eq!(seen, ["a", "b", "c", "a", "b", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_sums_up_others_is_looked_at_once_for_many_changes() {
        let mut queue = queue();
        let network = Key::namespaced(ObjectKind::Network, "default", "net");
        for _ in 0..500 {
            queue.coalesce(network.clone(), 0);
        }
        assert!(drain(&mut queue).is_empty());
        tokio::time::advance(COALESCING_DELAY).await;
        assert_eq!(drain(&mut queue), std::slice::from_ref(&network));
        queue.coalesce(network.clone(), 499);
        tokio::time::advance(COALESCING_DELAY).await;
        assert_eq!(drain(&mut queue), std::slice::from_ref(&network));
        queue.coalesce(network.clone(), 4096);
        tokio::time::advance(8 * COALESCING_DELAY).await;
        assert!(drain(&mut queue).is_empty(), "many names are written less often");
        tokio::time::advance(COALESCING_DELAY).await;
        assert_eq!(drain(&mut queue), [network]);
    }
}
