//! The queue of keys: each at most once, blocked ones indexed by what they wait for, failed ones backed off.
//!
//! VMs that wait for room stand in line, one line for each request: when room is freed only the first of each line is
//! tried, and the next when that one found a place. So a VM that goes costs as many decisions as there are lines, not
//! as there are VMs waiting. The others are looked at in turn, a few at a time, so that what they say stays true.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    ops::Bound,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Key, Kind,
    plan::{Need, Outcome, Place},
    scheduler::Request,
};

/// The first delay after a failure; doubled each time.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// How long changes of what an object sums up are gathered.
const GATHER: Duration = Duration::from_secs(1);

/// Which keys to reconcile, and when.
#[derive(Debug, Default)]
pub(super) struct Queue {
    ready: VecDeque<Key>,
    is_ready: HashSet<Key>,
    later: BTreeMap<Instant, Vec<Key>>,
    /// Those in `later` that gather changes.
    gathering: HashSet<Key>,
    failures: HashMap<Key, u32>,
    waiting: HashMap<Need, BTreeSet<Key>>,
    needs: HashMap<Key, Vec<Need>>,
    /// Those who wait for room, by what they ask for, the oldest first.
    lines: HashMap<Request, BTreeSet<(Option<Timestamp>, Key)>>,
    in_line: BTreeSet<Key>,
    /// The last of `in_line` that was looked at in turn.
    turn: Option<Key>,
    /// The line that the key being worked on stood in.
    left: Option<Request>,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds a key that is to be looked at.
    pub(super) fn add(&mut self, key: Key) {
        if key.kind != Kind::Lease && self.is_ready.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    /// An object changed: it is to be looked at, and so is whatever waits for it.
    pub(super) fn changed(&mut self, key: Key) {
        self.wake(&Need::Object(key.clone()));
        if matches!(key.kind, Kind::PublicIP | Kind::IPPool) {
            self.wake(&Need::Address);
        }
        self.add(key);
    }

    /// Something changed that this object sums up: it is looked at a moment later, once for all that changes
    /// meanwhile. Every host reads what a network says of its hosts, and VMs come to many hosts at once.
    pub(super) fn gather(&mut self, key: Key) {
        if self.gathering.insert(key.clone()) {
            self.later.entry(Instant::now() + GATHER).or_default().push(key);
        }
    }

    /// A host came, went or is another than it was.
    pub(super) fn hosts_changed(&mut self) {
        self.wake(&Need::Hosts);
    }

    /// There may be room, or a private address, where there was none: the first of each line is tried, the oldest
    /// of them first.
    pub(super) fn room_freed(&mut self) {
        self.wake(&Need::PrivateAddress);
        let mut first: Vec<_> = self.lines.values().filter_map(|line| line.first().cloned()).collect();
        first.sort();
        for (_, key) in first {
            self.add(key);
        }
    }

    /// Looks at the next few of those who wait for room.
    pub(super) fn look_at_waiting(&mut self, count: usize) {
        let after = self.turn.take().map_or(Bound::Unbounded, Bound::Excluded);
        let keys: Vec<Key> = self.in_line.range((after, Bound::Unbounded)).take(count).cloned().collect();
        // At the end of the line the next turn begins at its start.
        self.turn = keys.last().filter(|_| keys.len() == count).cloned();
        for key in keys {
            self.add(key);
        }
    }

    fn wake(&mut self, need: &Need) {
        for key in self.waiting.remove(need).unwrap_or_default() {
            self.add(key);
        }
    }

    /// The next key that is due.
    pub(super) fn next_ready(&mut self, now: Instant) -> Option<Key> {
        while let Some(entry) = self.later.first_entry() {
            if *entry.key() > now {
                break;
            }
            for key in entry.remove() {
                self.gathering.remove(&key);
                self.add(key);
            }
        }
        let key = self.ready.pop_front()?;
        self.is_ready.remove(&key);
        self.forget_needs(&key);
        Some(key)
    }

    /// When the next delayed key is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.later.first_key_value().map(|(at, _)| *at)
    }

    /// What is to become of the key being worked on is decided; what it has to write may still fail.
    pub(super) fn decided(&mut self, key: &Key, outcome: Outcome) {
        match outcome {
            Outcome::Settled => self.left_line(),
            Outcome::Blocked(needs) => self.blocked(key, needs),
        }
    }

    /// The key being worked on cannot be decided yet.
    pub(super) fn put_off(&mut self) {
        self.left_line();
    }

    /// What was decided of the key is written.
    pub(super) fn succeeded(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    /// The key being worked on is out of its line: what it was tried for may be there for the next.
    fn left_line(&mut self) {
        let next = self.left.take().and_then(|line| self.lines.get(&line)?.first().cloned());
        if let Some((_, key)) = next {
            self.add(key);
        }
    }

    /// The key waits for these.
    fn blocked(&mut self, key: &Key, needs: Vec<Need>) {
        for need in &needs {
            if let Need::Room(place) = need {
                let line = self.lines.entry(place.line.clone()).or_default();
                line.insert((place.since, key.clone()));
                self.in_line.insert(key.clone());
                // Where it does not fit, nobody behind it does.
                self.left.take_if(|left| *left == place.line);
            } else {
                self.waiting.entry(need.clone()).or_default().insert(key.clone());
            }
        }
        self.needs.insert(key.clone(), needs);
        self.left_line();
    }

    /// The key's reconcile failed: again after a delay that doubles up to five minutes, spread by `jitter` (0 to 1).
    pub(super) fn retry(&mut self, key: &Key, jitter: f64) -> Duration {
        self.retry_within(key, jitter, LONGEST_DELAY)
    }

    /// The same, up to another longest delay.
    pub(super) fn retry_within(&mut self, key: &Key, jitter: f64, longest: Duration) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = FIRST_DELAY.saturating_mul(1 << (*failures).min(12)).min(longest);
        *failures += 1;
        let delay = delay.mul_f64(0.75 + jitter.clamp(0.0, 1.0) * 0.5).min(longest);
        self.later.entry(Instant::now() + delay).or_default().push(key.clone());
        self.left_line();
        delay
    }

    fn forget_needs(&mut self, key: &Key) {
        self.left = None;
        for need in self.needs.remove(key).unwrap_or_default() {
            if let Need::Room(place) = &need {
                self.leave(place, key);
            } else if let Some(waiting) = self.waiting.get_mut(&need) {
                waiting.remove(key);
                if waiting.is_empty() {
                    self.waiting.remove(&need);
                }
            }
        }
    }
}

impl Queue {
    fn leave(&mut self, place: &Place, key: &Key) {
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
        Key::namespaced(Kind::VM, "default", name)
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
        let class = Key::namespaced(Kind::VMClass, "default", "small");
        queue.blocked(&vm("a"), vec![Need::Object(class.clone()), Need::Address]);
        queue.changed(Key::namespaced(Kind::VMClass, "default", "large"));
        assert_eq!(drain(&mut queue), [Key::namespaced(Kind::VMClass, "default", "large")]);
        queue.changed(class.clone());
        assert_eq!(drain(&mut queue), [vm("a"), class]);
        assert!(queue.waiting.is_empty(), "a woken key waits for nothing any more");
    }

    fn room(memory: u64, since: i64) -> Vec<Need> {
        let line = Request { memory, ..Request::default() };
        vec![Need::Room(Box::new(Place { line, since: Timestamp::from_second(since).ok() }))]
    }

    #[test]
    fn of_those_who_ask_for_the_same_room_the_oldest_is_tried_and_the_next_only_after_it_found_a_place() {
        let mut queue = Queue::new();
        for (name, since) in [("a", 3), ("b", 1), ("c", 2)] {
            queue.blocked(&vm(name), room(100, since));
        }
        queue.blocked(&vm("large"), room(900, 0));
        queue.room_freed();
        let now = Instant::now();
        assert_eq!(queue.next_ready(now), Some(vm("large")));
        queue.blocked(&vm("large"), room(900, 0));
        assert_eq!(queue.next_ready(now), Some(vm("b")));
        queue.decided(&vm("b"), Outcome::Settled);
        assert_eq!(queue.next_ready(now), Some(vm("c")));
        queue.blocked(&vm("c"), room(100, 2));
        assert_eq!(queue.next_ready(now), None, "where one does not fit the others are not tried");
        queue.room_freed();
        assert_eq!(drain(&mut queue).len(), 2, "one a line");
    }

    #[test]
    fn a_vm_that_fails_or_waits_for_something_else_gives_the_next_its_turn() {
        let mut queue = Queue::new();
        for (name, since) in [("a", 1), ("b", 2), ("c", 3)] {
            queue.blocked(&vm(name), room(100, since));
        }
        queue.room_freed();
        let now = Instant::now();
        assert_eq!(queue.next_ready(now), Some(vm("a")));
        queue.retry(&vm("a"), 0.5);
        assert_eq!(queue.next_ready(now), Some(vm("b")));
        queue.blocked(&vm("b"), vec![Need::Address]);
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
            queue.look_at_waiting(2);
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
        let network = Key::namespaced(Kind::Network, "default", "net");
        for _ in 0..500 {
            queue.gather(network.clone());
        }
        assert!(drain(&mut queue).is_empty());
        tokio::time::advance(GATHER).await;
        assert_eq!(drain(&mut queue), std::slice::from_ref(&network));
        queue.gather(network.clone());
        tokio::time::advance(GATHER).await;
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
