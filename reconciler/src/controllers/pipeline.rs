//! Decisions one at a time on one world; their writes beside each other.
//!
//! ```text
//! queue ─▶ decide ─▶ the world foresees it ─▶ written ─▶ the world has the answers ─▶ whom it concerns is looked at
//!   ▲     (pure, on everything decided so far)    └─ failed ─▶ the world has what the server has ─▶ again, later
//!   └── held back: who is being written, or rests on what is
//! ```
//!
//! What a decision takes (room, an address, a disk) is taken at once; what it gives back is given back when the server
//! has said so. So whatever becomes of the writes under way, nothing is given out twice.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::Instant;
use tracing::{info, info_span, warn};

use super::{
    Config, ErrorChain, Key, Kind, World,
    apply::{Answer, Written},
    decide,
    draft::{Draft, Write},
    queue::{LONGEST_DELAY, Queue},
    watches::{Change, Object},
};

/// The longest a write waits that found the control plane's disk full.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(10);
/// How many of those who wait for room are looked at each time hosts are.
const WAITING_BURST: usize = 64;

/// What a watch told of an object while it was written.
#[derive(Debug)]
enum Told {
    Is(Object),
    Gone,
}

/// A decision that is being written.
#[derive(Debug)]
pub(super) struct Job {
    /// Whose decision it is.
    key: Key,
    pub(super) writes: Vec<Write>,
    /// What was known of the objects before the decision.
    before: Vec<Object>,
    /// Whom it concerns once it is written.
    touched: Vec<Key>,
}

impl Job {
    /// Whose decision it is, and what it writes.
    fn keys(&self) -> BTreeSet<Key> {
        self.writes.iter().map(Write::key).chain([self.key.clone()]).collect()
    }
}

/// What there was to decide.
#[derive(Debug)]
pub(super) enum Turn {
    /// Nothing is due.
    Idle,
    /// A key was looked at; nothing is to be written for it now.
    Settled,
    /// This is to be written, and handed back to [`Pipeline::finish`].
    Write(Job),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) world: World,
    pub(super) queue: Queue,
    config: Config,
    jitter: StdRng,
    /// Each object that is being written, and the last that a watch told of it since.
    under_way: HashMap<Key, Option<Told>>,
    /// Who is looked at once an object is written.
    held_back: HashMap<Key, BTreeSet<Key>>,
}

impl Pipeline {
    pub(super) fn new(config: Config) -> Self {
        let seed = u64::from_str_radix(&config.identities.hex(16), 16).unwrap_or_default();
        Self {
            world: World::new(config.host_silence),
            queue: Queue::new(),
            config,
            jitter: StdRng::seed_from_u64(seed),
            under_way: HashMap::new(),
            held_back: HashMap::new(),
        }
    }

    /// Takes a change from a watch; of an object that is being written it is kept until that is answered.
    pub(super) fn take(&mut self, change: Change, now: Instant) {
        let own = change.key();
        let keys = match change {
            Change::ListBegins(kind) => {
                self.world.begin_list(kind);
                Vec::new()
            }
            Change::Listed(kind) => {
                let gone = self.world.end_list(kind);
                gone.into_iter().flat_map(|key| self.forget(&key)).collect()
            }
            Change::Deleted(object) => self.forget(&object.key()),
            Change::Applied(object) => {
                let key = object.key();
                match self.under_way.get_mut(&key) {
                    Some(told) => {
                        self.world.list(&key);
                        *told = Some(Told::Is(object));
                        Vec::new()
                    }
                    None => self.world.put(object, now),
                }
            }
        };
        self.concern(keys, own.as_ref());
    }

    fn forget(&mut self, key: &Key) -> Vec<Key> {
        match self.under_way.get_mut(key) {
            Some(told) => {
                *told = Some(Told::Gone);
                Vec::new()
            }
            None => self.world.remove(key),
        }
    }

    /// Has keys looked at that a change concerns.
    fn concern(&mut self, keys: Vec<Key>, own: Option<&Key>) {
        for key in keys {
            match key.kind {
                Kind::Network if own != Some(&key) => self.queue.gather(key),
                _ => self.queue.changed(key),
            }
        }
    }

    /// Decides about the next key that is due.
    pub(super) fn decide(&mut self, now: Instant) -> Turn {
        let news = self.world.index.fleet.take_news();
        if news.hosts {
            self.queue.hosts_changed();
        }
        if news.freed {
            self.queue.room_freed();
        }
        for (used, at_once) in self.world.users.take_news() {
            if at_once { self.queue.add(used) } else { self.queue.gather(used) }
        }
        let Some(key) = self.queue.next_ready(now) else { return Turn::Idle };
        if let Some(busy) = self.busy(self.world.rests_on(&key)) {
            self.hold_back(key, busy);
            return Turn::Settled;
        }
        let mut draft = Draft::default();
        let outcome = decide(&self.world, &self.config, &key, &mut draft);
        if let Some(busy) = self.busy(draft.keys()) {
            self.hold_back(key, busy);
            return Turn::Settled;
        }
        self.queue.decided(&key, outcome);
        let (writes, touched) = draft.into_parts();
        if writes.is_empty() {
            self.queue.succeeded(&key);
            self.concern(touched, Some(&key));
            return Turn::Settled;
        }
        Turn::Write(self.begin(key, writes, touched, now))
    }

    /// Looks for hosts that fell silent or spoke again, and at a few of those who wait for room.
    pub(super) fn check_hosts(&mut self, now: Instant) {
        for key in self.world.silence_changes(now) {
            self.queue.changed(key);
        }
        self.queue.look_at_waiting(WAITING_BURST);
    }

    fn busy(&self, keys: impl IntoIterator<Item = Key>) -> Option<Key> {
        keys.into_iter().find(|key| self.under_way.contains_key(key))
    }

    fn hold_back(&mut self, key: Key, busy: Key) {
        self.queue.put_off();
        self.held_back.entry(busy).or_default().insert(key);
    }

    /// Notes in the world what was decided.
    fn begin(&mut self, key: Key, writes: Vec<Write>, touched: Vec<Key>, now: Instant) -> Job {
        let mut job = Job { key, writes, before: Vec::new(), touched };
        for write in &job.writes {
            if let Write::Status(object) = write
                && !self.world.gives_back(object)
            {
                job.before.extend(self.world.known(&object.key()));
                job.touched.extend(self.world.replace(object.clone(), now));
            }
        }
        self.under_way.extend(job.keys().into_iter().map(|key| (key, None)));
        job
    }

    /// Takes what became of a decision's writes.
    pub(super) fn finish(&mut self, mut job: Job, written: Written, now: Instant) {
        let mut concerned = std::mem::take(&mut job.touched);
        if written.error.is_some() {
            // What nobody could be asked about is as it was before, until a watch tells.
            for object in job.before.drain(..) {
                concerned.extend(self.world.replace(object, now));
            }
        }
        for answer in written.answers {
            concerned.extend(match answer {
                Answer::Is(object) if written.error.is_some() => self.world.replace(object, now),
                Answer::Is(object) => self.world.put(object, now),
                Answer::Gone(key) => self.world.remove(&key),
                Answer::Lease(host, lease) => self.world.read_lease(&host, lease, now),
            });
        }
        if written.error.is_some() {
            // It is tried again after its back-off, unless somebody else changed it meanwhile.
            concerned.retain(|key| *key != job.key);
        }
        let mut waiting = BTreeSet::new();
        for key in job.keys() {
            match self.under_way.remove(&key).flatten() {
                Some(Told::Is(object)) => concerned.extend(self.world.put(object, now)),
                Some(Told::Gone) => concerned.extend(self.world.remove(&key)),
                None => {}
            }
            waiting.extend(self.held_back.remove(&key).unwrap_or_default());
        }
        self.settle(&job, written.error);
        self.concern(concerned, Some(&job.key));
        for key in waiting {
            self.queue.add(key);
        }
    }

    fn settle(&mut self, job: &Job, error: Option<super::apply::WriteError>) {
        let key = &job.key;
        let span =
            info_span!("reconcile", kind = key.kind.as_str(), namespace = key.namespace(), name = key.name);
        let _entered = span.enter();
        match error {
            None => {
                self.queue.succeeded(key);
                info!(writes = job.writes.len(), "reconciled");
            }
            // Somebody wrote between our read and our write: what it is now is known by now.
            Some(error) if error.is_conflict() => {
                self.queue.retry(key, self.jitter.random());
            }
            Some(error) => {
                // Whoever makes room on a full disk tells nobody.
                let longest = if error.is_full() { LOOK_FOR_ROOM } else { LONGEST_DELAY };
                let delay = self.queue.retry_within(key, self.jitter.random(), longest);
                warn!(error = %ErrorChain(&error), retry_in = ?delay, "reconcile failed");
            }
        }
    }
}
