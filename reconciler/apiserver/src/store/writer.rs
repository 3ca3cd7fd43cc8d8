//! The one writer: checks what each write expects, gives it a revision, commits, and only then makes it visible.
//!
//! ```text
//! submit ─▶ queue ─▶ batch: check ▸ append ▸ … ▸ COMMIT ─▶ apply to state, wake watchers ─▶ answer
//!                                      └─ failure: roll back the whole batch, answer each with it
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::entry::{Encoded, Entry, with_revision};
use super::floor::Floor;
use super::key::Key;
use super::log::{Append, Log, NoRoom, tombstone};
use super::state::{Change, Event, State};
use super::{read, write};

/// Writes committed at once; more would only make the first of them wait.
const BATCH: usize = 128;
/// By how many bytes an object may grow on a full disk: a status may, and a finalizer.
const SMALL: usize = 16 << 10;

/// What a write asks of the key's current revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Absent,
    Revision(u64),
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    Put(Encoded),
    Delete,
}

/// Who makes a write and how: kept with the revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) user: String,
    /// The field manager.
    pub(crate) manager: String,
    /// As access rules name it, and `apply`.
    pub(crate) verb: &'static str,
}

/// One write, conditional on its key's revision and on other objects not having changed.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) key: Key,
    pub(crate) expect: Expect,
    pub(crate) action: Action,
    /// Other objects that must still be at these revisions: a namespace that must not be terminating.
    pub(crate) guards: Vec<(Key, u64)>,
    pub(crate) at_ms: i64,
    pub(crate) by: Origin,
}

impl Write {
    fn is_new(&self) -> bool {
        matches!((&self.action, self.expect), (Action::Put(_), Expect::Absent))
    }

    /// Bytes of what is to be stored.
    fn size(&self) -> usize {
        match &self.action {
            Action::Put(encoded) => encoded.text.len(),
            Action::Delete => 0,
        }
    }
}

/// Why a write was not made. Guarantees: nothing of it was stored.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("the object or one it depends on has changed")]
    Conflict,
    #[error(
        "the host's disk is full: there is no room for anything new; make some, for example by deleting disks"
    )]
    Full,
    #[error("the disk quota of the database's owner is used up: there is no room for anything new")]
    OverQuota,
    #[error("the database refused the write: {0}")]
    Refused(String),
    #[error("the server is shutting down")]
    Closed,
}

pub(super) type Answer = Result<Arc<Entry>, WriteError>;

#[derive(Debug)]
pub(super) enum Job {
    Write(Box<Write>, oneshot::Sender<Answer>),
    Compact { written_before_ms: i64, keep_revisions: u64, done: oneshot::Sender<Result<u64, WriteError>> },
}

/// Counters for `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) writes: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// From being submitted to being durable, or refused.
    pub(crate) latency: Latency,
}

/// Upper bounds of the buckets, in milliseconds.
pub(crate) const LATENCIES: [u64; 7] = [1, 5, 20, 100, 500, 2_000, 10_000];

/// How long writes took.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    /// One more than there are bounds; each counts what the ones before do not.
    pub(crate) buckets: [AtomicU64; LATENCIES.len() + 1],
    pub(crate) microseconds: AtomicU64,
}

impl Latency {
    pub(super) fn observe(&self, took: Duration) {
        let at = LATENCIES.iter().position(|bound| took <= Duration::from_millis(*bound));
        self.buckets[at.unwrap_or(LATENCIES.len())].fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) log: Log,
    pub(super) state: Arc<RwLock<State>>,
    pub(super) counters: Arc<Counters>,
    pub(super) floor: Floor,
}

impl Writer {
    /// Runs until every sender is gone; what is queued then is still written.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut writes = Vec::with_capacity(BATCH);
        while let Some(job) = jobs.blocking_recv() {
            let mut next = Some(job);
            while let Some(job) = next.take() {
                match job {
                    Job::Write(write, answer) => writes.push((*write, answer)),
                    Job::Compact { written_before_ms, keep_revisions, done } => {
                        // The client may have stopped waiting, which changes nothing.
                        let _ = done.send(self.compact(written_before_ms, keep_revisions));
                    }
                }
                if writes.len() < BATCH {
                    next = jobs.try_recv().ok();
                }
            }
            if !writes.is_empty() {
                let (batch, answers): (Vec<_>, Vec<_>) = writes.drain(..).unzip();
                for (result, answer) in self.commit(&batch).into_iter().zip(answers) {
                    let _ = answer.send(result);
                }
            }
        }
    }

    /// Commits a batch as one transaction; answers in the order of the batch.
    pub(super) fn commit(&mut self, batch: &[Write]) -> Vec<Answer> {
        let grows = batch.iter().any(|one| one.is_new() || one.size() > SMALL);
        let floor = grows && self.floor.is_reached();
        let mut prepared = self.append_all(batch, floor);
        if prepared.as_ref().is_err_and(|error| self.log.found_no_room(error).is_some()) {
            self.log.roll_back();
            self.log.begin_anew();
            self.floor.looked = None;
            let floor = self.floor.is_reached();
            prepared = self.append_all(batch, floor);
        }
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(source) => {
                let error = self.refusal(&source);
                self.log.roll_back();
                self.counters.failed.fetch_add(batch.len() as u64, Ordering::Relaxed);
                tracing::error!(error = %source, writes = batch.len(), "writing to the database failed");
                return batch.iter().map(|_| Err(error.clone())).collect();
            }
        };
        let mut state = write(&self.state);
        for event in prepared.iter().flatten() {
            state.apply(event);
        }
        drop(state);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.writes.fetch_add(prepared.iter().flatten().count() as u64, Ordering::Relaxed);
        prepared.into_iter().map(|event| event.map(|event| Arc::clone(&event.entry))).collect()
    }

    /// What became of each. With `floor` what would make the database larger is refused.
    fn append_all(
        &self,
        batch: &[Write],
        floor: bool,
    ) -> rusqlite::Result<Vec<Result<Arc<Event>, WriteError>>> {
        let state = read(&self.state);
        let mut pending: HashMap<&Key, Option<Arc<Entry>>> = HashMap::new();
        let mut revision = state.revision;
        let mut events = Vec::with_capacity(batch.len());
        self.log.begin()?;
        for one in batch {
            let current = |key: &Key| pending.get(key).cloned().unwrap_or_else(|| state.get(key).cloned());
            let before = current(&one.key);
            let holds = match one.expect {
                Expect::Absent => before.is_none(),
                Expect::Revision(wanted) => before.as_ref().is_some_and(|entry| entry.revision == wanted),
            };
            let guarded =
                one.guards.iter().all(|(key, wanted)| current(key).is_some_and(|e| e.revision == *wanted));
            if !holds || !guarded {
                events.push(Err(WriteError::Conflict));
                continue;
            }
            if floor
                && (before.is_none() || one.size() > before.as_ref().map_or(0, |b| b.bytes.len()) + SMALL)
            {
                events.push(Err(WriteError::Full));
                continue;
            }
            revision += 1;
            let event = self.append_one(one, revision, before)?;
            let now = (event.change != Change::Deleted).then(|| Arc::clone(&event.entry));
            pending.insert(&one.key, now);
            events.push(Ok(event));
        }
        self.log.commit()?;
        Ok(events)
    }

    fn append_one(
        &self,
        one: &Write,
        revision: u64,
        before: Option<Arc<Entry>>,
    ) -> rusqlite::Result<Arc<Event>> {
        let (encoded, change) = match (&one.action, &before) {
            (Action::Put(encoded), None) => (encoded.clone(), Change::Added),
            (Action::Put(encoded), Some(_)) => (encoded.clone(), Change::Modified),
            (Action::Delete, Some(entry)) => (tombstone(entry), Change::Deleted),
            (Action::Delete, None) => return Err(rusqlite::Error::QueryReturnedNoRows),
        };
        let bytes = with_revision(&encoded.text, revision).ok_or(rusqlite::Error::InvalidQuery)?;
        self.log.append(&Append {
            revision,
            key: &one.key,
            previous: before.as_ref().map(|entry| entry.revision),
            deleted: change == Change::Deleted,
            written_ms: one.at_ms,
            by: &one.by,
            text: &encoded.text,
        })?;
        let entry =
            Entry { key: one.key.clone(), revision, written_ms: one.at_ms, bytes, facts: encoded.facts };
        Ok(Event::new(change, Arc::new(entry), before))
    }

    pub(super) fn compact(&mut self, written_before_ms: i64, keep_revisions: u64) -> Result<u64, WriteError> {
        if let Err(error) = self.log.keep_room() {
            tracing::debug!(%error, "the database has no room to spare");
        }
        let target = self.log.compactable(written_before_ms, keep_revisions).map_err(|e| self.refusal(&e))?;
        let compacted = read(&self.state).compacted;
        if target <= compacted {
            return Ok(compacted);
        }
        // Readers are told first: a watch must not start on history that is being removed.
        write(&self.state).compacted = target;
        let removed = self.log.compact(target).map_err(|e| self.refusal(&e))?;
        tracing::debug!(revision = target, removed, "history compacted");
        Ok(target)
    }

    /// What a failure means to whoever wrote. Asked before anything else is done with the database.
    fn refusal(&self, source: &rusqlite::Error) -> WriteError {
        match self.log.found_no_room(source) {
            Some(NoRoom::Disk) => WriteError::Full,
            Some(NoRoom::Quota) => WriteError::OverQuota,
            None => WriteError::Refused(source.to_string()),
        }
    }
}
