//! Decisions are made one at a time on one cache; their writes are concurrent.
//!
//! ```text
//! queue ─▶ decide ─▶ into the cache ─▶ write ─▶ responses into the cache ─▶ dependents are enqueued
//!   ▲     (pure, on all decisions so far)    └─ failed ─▶ the server's state into the cache ─▶ requeue with back-off
//!   └── deferred: keys that are being written, or that depend on such a key
//! ```
//!
//! A decision takes resources (capacity, an address, a disk) at once; it releases resources when the server has confirmed
//! the write. So nothing is allocated twice, whatever the result of the writes in flight.

pub(crate) mod queue;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use berth_engine::{ErrorChain, queue::LONGEST_BACK_OFF};
use rand::{SeedableRng, rngs::StdRng};
use tokio::time::Instant;
use tracing::{info, info_span, warn};

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    config::Config,
    events::Transition,
    key::{Key, ObjectKind},
    kinds::reconcile,
    metrics::Reconciled,
    object::Object,
    watch::Change,
    writer::{Response, WriteResult},
};

use queue::Queue;

/// The maximum back-off of a write that failed because the control plane's disk is full.
const FULL_DISK_DELAY: Duration = Duration::from_secs(10);
/// The number of keys waiting for capacity that are enqueued at each host check.
const WAITING_BURST: usize = 64;

/// A watch event received for an object while it was being written.
#[derive(Debug)]
enum PendingEvent {
    Applied(Object),
    Deleted,
}

/// A decision that is being written.
#[derive(Debug)]
pub(crate) struct Job {
    /// The key that was reconciled.
    key: Key,
    pub(crate) writes: Vec<Write>,
    /// The cached objects before the decision.
    before: Vec<Object>,
    /// The keys to enqueue once it is written.
    enqueued: Vec<Key>,
    /// When the decision began.
    began: Instant,
}

impl Job {
    /// Returns the reconciled key and the keys of the writes.
    fn keys(&self) -> BTreeSet<Key> {
        self.writes.iter().map(Write::key).chain([self.key.clone()]).collect()
    }

    /// Returns the transitions, among the statuses it writes, that have an event.
    pub(crate) fn transitions(&self) -> impl Iterator<Item = Transition> {
        self.writes.iter().filter_map(|write| {
            let Write::Status(object) = write else { return None };
            let key = object.key();
            Transition::between(self.before.iter().find(|before| before.key() == key), object)
        })
    }
}

/// The result of one turn.
#[derive(Debug)]
pub(crate) enum Progress {
    /// No key is due.
    Idle,
    /// A key was processed; there is nothing to write for it now.
    Settled,
    /// To be written, and handed back to [`Pipeline::finish`].
    Write(Job),
}

/// The pipeline that the module describes.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) cache: Cache,
    pub(crate) queue: Queue,
    config: Config,
    /// The objects being written, each with the last watch event received for it since.
    in_flight: HashMap<Key, Option<PendingEvent>>,
    /// The deferred keys by the object that is being written.
    deferred: HashMap<Key, BTreeSet<Key>>,
}

impl Pipeline {
    pub(crate) fn new(config: Config) -> Self {
        let seed = u64::from_str_radix(&config.identities.hex(16), 16).unwrap_or_default();
        Self {
            cache: Cache::new(config.host_silence),
            queue: Queue::new(StdRng::seed_from_u64(seed)),
            config,
            in_flight: HashMap::new(),
            deferred: HashMap::new(),
        }
    }

    /// Takes a change from a watch; a change of an object that is being written is kept until the response arrives.
    pub(crate) fn take(&mut self, change: Change, now: Instant) {
        let own = change.key();
        let keys = match change {
            Change::ListBegins(kind) => {
                self.cache.begin_list(kind);
                Vec::new()
            }
            Change::Listed(kind) => {
                let gone = self.cache.end_list(kind);
                let mut keys: Vec<Key> = gone.into_iter().flat_map(|key| self.forget(&key)).collect();
                if kind == ObjectKind::ConfigMap {
                    // Hosts wait for the list: a missing one is created, even without any host.
                    keys.push(Key::host_addresses());
                }
                keys
            }
            Change::Deleted(object) => self.forget(&object.key()),
            Change::Applied(object) => {
                let key = object.key();
                match self.in_flight.get_mut(&key) {
                    Some(pending) => {
                        self.cache.list(&key);
                        *pending = Some(PendingEvent::Applied(object));
                        Vec::new()
                    }
                    None => self.cache.put(object, now),
                }
            }
        };
        self.enqueue(keys, own.as_ref());
    }

    fn forget(&mut self, key: &Key) -> Vec<Key> {
        match self.in_flight.get_mut(key) {
            Some(pending) => {
                *pending = Some(PendingEvent::Deleted);
                Vec::new()
            }
            None => self.cache.remove(key),
        }
    }

    /// Enqueues the keys that a change concerns.
    fn enqueue(&mut self, keys: Vec<Key>, own: Option<&Key>) {
        for key in keys {
            match key.kind {
                ObjectKind::Network
                | ObjectKind::ConfigMap
                | ObjectKind::SnapshotSchedule
                | ObjectKind::Quota
                | ObjectKind::VMGroup
                // Many hosts report their space.
                | ObjectKind::StoragePool
                    if own != Some(&key) =>
                {
                    self.coalesce(key)
                }
                // A VM that is created together with its disks binds them in their first status.
                ObjectKind::Disk if self.cache.may_be_bound_by_its_vm(&key) => self.queue.created(key),
                _ => self.queue.changed(key),
            }
        }
    }

    fn coalesce(&mut self, key: Key) {
        let status = self.cache.tables.networks.get(&key).and_then(|network| network.status.as_ref());
        let names = status.map_or(0, |status| status.names.len());
        self.queue.coalesce(key, names);
    }

    /// Reconciles the next key that is due.
    pub(crate) fn decide(&mut self, now: Instant) -> Progress {
        let news = self.cache.index.capacity.take_changes();
        if news.hosts {
            self.queue.hosts_changed();
        }
        if news.freed {
            self.queue.capacity_freed();
        }
        for (used, at_once) in self.cache.users.take_changes() {
            if at_once { self.queue.add(used) } else { self.coalesce(used) }
        }
        let Some(key) = self.queue.try_next() else { return Progress::Idle };
        if let Some(busy) = self.busy(self.cache.depends_on(&key)) {
            self.defer(key, busy);
            return Progress::Settled;
        }
        let mut batch = WriteBatch::default();
        let outcome = reconcile(&self.cache, &self.config, &key, &mut batch);
        if let Some(busy) = self.busy(batch.keys()) {
            self.defer(key, busy);
            return Progress::Settled;
        }
        self.queue.decided(&key, outcome);
        if key.kind == ObjectKind::Quota {
            // Once for all changes that it counts, whether its status changes or not.
            self.queue.wake_dependents(&key);
        }
        let (writes, enqueued) = batch.into_parts();
        if writes.is_empty() {
            self.queue.succeeded(&key);
            self.config.metrics.reconciled(key.kind.as_str(), Reconciled::Success, now.elapsed());
            self.enqueue(enqueued, Some(&key));
            return Progress::Settled;
        }
        Progress::Write(self.begin(key, writes, enqueued, now))
    }

    /// Enqueues hosts that fell silent or came back, a few of the keys that wait for capacity, and those whose moment has come.
    pub(crate) fn check_hosts(&mut self, now: Instant) {
        for key in self.cache.silence_changes(now) {
            self.queue.changed(key);
        }
        self.queue.rotate_waiting(WAITING_BURST);
        self.queue.time_is(self.config.clock.now());
    }

    fn busy(&self, keys: impl IntoIterator<Item = Key>) -> Option<Key> {
        keys.into_iter().find(|key| self.in_flight.contains_key(key))
    }

    fn defer(&mut self, key: Key, busy: Key) {
        self.queue.defer(&key);
        self.deferred.entry(busy).or_default().insert(key);
    }

    /// Enters a decision into the cache.
    fn begin(&mut self, key: Key, writes: Vec<Write>, enqueued: Vec<Key>, now: Instant) -> Job {
        let mut job = Job { key, writes, before: Vec::new(), enqueued, began: now };
        for write in &job.writes {
            if let Write::Status(object) = write
                && !self.cache.releases(object)
            {
                job.before.extend(self.cache.object(&object.key()));
                job.enqueued.extend(self.cache.replace(object.clone(), now));
            }
        }
        self.in_flight.extend(job.keys().into_iter().map(|key| (key, None)));
        job
    }

    /// Takes the result of a decision's writes.
    pub(crate) fn finish(&mut self, mut job: Job, written: WriteResult, now: Instant) {
        let mut keys_to_enqueue = std::mem::take(&mut job.enqueued);
        if written.error.is_some() {
            // An object without a response is assumed unchanged until a watch event arrives.
            for object in job.before.drain(..) {
                keys_to_enqueue.extend(self.cache.replace(object, now));
            }
        }
        for response in written.responses {
            keys_to_enqueue.extend(match response {
                Response::Is(object) if written.error.is_some() => self.cache.replace(object, now),
                Response::Is(object) => self.cache.put(object, now),
                Response::Gone(key) => self.cache.remove(&key),
                Response::Lease(host, lease) => self.cache.read_lease(&host, lease, now),
            });
        }
        if written.error.is_some() {
            // The failed key is retried after its back-off, unless a foreign write has changed it since.
            keys_to_enqueue.retain(|key| *key != job.key);
        }
        let mut of_others = Vec::new();
        for key in job.keys() {
            match self.in_flight.remove(&key).flatten() {
                Some(PendingEvent::Applied(object)) => of_others.extend(self.cache.put(object, now)),
                Some(PendingEvent::Deleted) => of_others.extend(self.cache.remove(&key)),
                None => {}
            }
            // Before the key itself: an object that changes all the time does not hold up those that depend on it.
            for deferred in self.deferred.remove(&key).unwrap_or_default() {
                self.queue.add(deferred);
            }
        }
        self.settle(&job, written.error);
        // A Network's own writes count as changes of what it aggregates: only those of others are followed at once.
        let is_network = job.key.kind == ObjectKind::Network;
        if is_network && keys_to_enqueue.contains(&job.key) {
            self.queue.wake_dependents(&job.key);
        }
        self.enqueue(keys_to_enqueue, Some(&job.key).filter(|_| !is_network));
        self.enqueue(of_others, Some(&job.key));
    }

    fn settle(&mut self, job: &Job, error: Option<crate::writer::WriteError>) {
        let key = &job.key;
        let span =
            info_span!("reconcile", kind = key.kind.as_str(), namespace = key.namespace(), name = &*key.name);
        let _entered = span.enter();
        let result = match &error {
            None => Reconciled::Success,
            Some(error) if error.is_conflict() => Reconciled::Conflict,
            Some(_) => Reconciled::Error,
        };
        self.config.metrics.reconciled(key.kind.as_str(), result, job.began.elapsed());
        match error {
            None => {
                self.queue.succeeded(key);
                info!(writes = job.writes.len(), "reconciled");
            }
            // Another write came between our read and our write: the cache has its result by now.
            Some(error) if error.is_conflict() => {
                self.queue.failed(key, LONGEST_BACK_OFF);
            }
            Some(error) => {
                // Nothing announces that a full disk has space again.
                let longest = if error.is_full() { FULL_DISK_DELAY } else { LONGEST_BACK_OFF };
                let delay = self.queue.failed(key, longest);
                warn!(error = %ErrorChain(&error), retry_in = ?delay, "reconcile failed");
            }
        }
    }
}
