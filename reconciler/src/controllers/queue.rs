//! The queue of keys: each at most once, blocked ones indexed by what they wait for, failed ones backed off.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{Key, Kind, plan::Need};

/// The first delay after a failure; doubled each time.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// Which keys to reconcile, and when.
#[derive(Debug, Default)]
pub(super) struct Queue {
    ready: VecDeque<Key>,
    is_ready: HashSet<Key>,
    later: BTreeMap<Instant, Vec<Key>>,
    failures: HashMap<Key, u32>,
    waiting: HashMap<Need, BTreeSet<Key>>,
    needs: HashMap<Key, Vec<Need>>,
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
        match key.kind {
            Kind::Host | Kind::VM => self.wake(&Need::Capacity),
            Kind::PublicIP | Kind::IPPool => self.wake(&Need::Address),
            _ => {}
        }
        self.add(key);
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

    /// The key's object is as it should be.
    pub(super) fn settled(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    /// The key waits for these.
    pub(super) fn blocked(&mut self, key: &Key, needs: Vec<Need>) {
        self.failures.remove(key);
        for need in &needs {
            self.waiting.entry(need.clone()).or_default().insert(key.clone());
        }
        self.needs.insert(key.clone(), needs);
    }

    /// The key's reconcile failed: again after a delay that doubles up to five minutes, spread by `jitter` (0 to 1).
    pub(super) fn retry(&mut self, key: &Key, jitter: f64) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = FIRST_DELAY.saturating_mul(1 << (*failures).min(12)).min(LONGEST_DELAY);
        *failures += 1;
        let delay = delay.mul_f64(0.75 + jitter.clamp(0.0, 1.0) * 0.5).min(LONGEST_DELAY);
        self.later.entry(Instant::now() + delay).or_default().push(key.clone());
        delay
    }

    fn forget_needs(&mut self, key: &Key) {
        for need in self.needs.remove(key).unwrap_or_default() {
            if let Some(waiting) = self.waiting.get_mut(&need) {
                waiting.remove(key);
                if waiting.is_empty() {
                    self.waiting.remove(&need);
                }
            }
        }
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
        queue.blocked(&vm("a"), vec![Need::Object(class.clone()), Need::Capacity]);
        queue.changed(Key::namespaced(Kind::VMClass, "default", "large"));
        assert_eq!(drain(&mut queue), [Key::namespaced(Kind::VMClass, "default", "large")]);
        queue.changed(class.clone());
        assert_eq!(drain(&mut queue), [vm("a"), class]);
        assert!(queue.waiting.is_empty(), "a woken key waits for nothing any more");
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
        queue.settled(&vm("a"));
        assert_eq!(queue.retry(&vm("a"), 0.5), FIRST_DELAY, "a success forgets the failures");
    }
}
