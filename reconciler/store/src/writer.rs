//! The single writer: checks the expectation of each write, assigns a revision, commits, and only then makes
//! the write visible.
//!
//! ```text
//! submit ─▶ queue ─▶ batch: check ▸ append ▸ … ▸ COMMIT ─▶ apply to state, wake watchers ─▶ answer
//!                                      └─ failure: roll back the whole batch, answer each with it
//! ```

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};

use tokio::sync::{mpsc, oneshot};

use crate::counters::Counters;
use crate::deferred::{Deferred, Pending};
use crate::entry::{Entry, with_revision};
use crate::event::{Change, Event};
use crate::floor::Floor;
use crate::key::Key;
use crate::log::{Append, Log, NoRoom, tombstone};
use crate::state::{State, read, write};
use crate::text::SharedTexts;
use crate::write::{Action, Answer, Expect, Keep, Write, WriteError};

/// The maximum number of writes per commit; more would only delay the first of them.
const BATCH: usize = 128;
/// The number of bytes by which an object may grow on a full disk: enough for a status or a finalizer.
const SMALL: usize = 16 << 10;

/// The result of one write of a batch.
type Appended = Result<Arc<Event>, WriteError>;

#[derive(Debug)]
pub(crate) enum Job {
    Write(Box<Write>, oneshot::Sender<Answer>),
    Compact {
        keep: Keep,
        done: oneshot::Sender<Result<u64, WriteError>>,
    },
    /// Store the writes that wait for others.
    Deferred,
}

#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) log: Log,
    pub(crate) state: Arc<RwLock<State>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) floor: Floor,
    pub(crate) texts: SharedTexts,
    pub(crate) deferred: Arc<Deferred>,
}

/// Fails the writes that wait if the writer panicked.
impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.deferred.close());
    }
}

impl Writer {
    /// Runs until all senders are dropped; queued writes are still committed.
    pub(crate) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut writes = Vec::with_capacity(BATCH);
        while let Some(job) = jobs.blocking_recv() {
            // They arrived before this job, and are fewer than a batch.
            writes.append(&mut self.deferred.take());
            let mut next = Some(job);
            while let Some(job) = next.take() {
                match job {
                    Job::Write(write, answer) => writes.push((*write, answer)),
                    Job::Compact { keep, done } => {
                        // The client may have stopped waiting, which is harmless.
                        let _ = done.send(self.compact(keep));
                    }
                    Job::Deferred => {}
                }
                if writes.len() < BATCH {
                    next = jobs.try_recv().ok();
                }
            }
            self.store_all(&mut writes);
        }
        self.store_all(&mut self.deferred.close());
    }

    /// Commits writes and answers each.
    fn store_all(&mut self, writes: &mut Vec<Pending>) {
        if writes.is_empty() {
            return;
        }
        let (batch, answers): (Vec<_>, Vec<_>) = writes.drain(..).unzip();
        for (result, answer) in self.commit(&batch).into_iter().zip(answers) {
            let _ = answer.send(result);
        }
    }

    /// Commits a batch as one transaction; returns the results in the order of the batch.
    pub(crate) fn commit(&mut self, batch: &[Write]) -> Vec<Answer> {
        let grows = batch.iter().any(|one| one.is_new() || one.size() > SMALL);
        let floor = grows && self.floor.check();
        let mut prepared = self.append_all(batch, floor);
        if prepared.as_ref().is_err_and(|error| self.log.found_no_room(error).is_some()) {
            self.log.roll_back();
            self.log.begin_anew();
            self.floor.looked = None;
            let floor = self.floor.check();
            prepared = self.append_all(batch, floor);
        }
        let (prepared, stored) = match prepared {
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
        self.counters.applied(prepared.iter().flatten(), stored);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.writes.fetch_add(prepared.iter().flatten().count() as u64, Ordering::Relaxed);
        prepared.into_iter().map(|event| event.map(|event| Arc::clone(&event.entry))).collect()
    }

    /// Appends a batch; returns the result of each write, and their size in bytes. With `floor`, new objects
    /// and growth by more than `SMALL` are refused.
    fn append_all(&self, batch: &[Write], floor: bool) -> rusqlite::Result<(Vec<Appended>, u64)> {
        let state = read(&self.state);
        let mut pending: HashMap<&Key, Option<Arc<Entry>>> = HashMap::new();
        let mut revision = state.revision;
        let (mut events, mut stored) = (Vec::with_capacity(batch.len()), 0);
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
                && (before.is_none() || one.size() > before.as_ref().map_or(0, |b| b.text.size()) + SMALL)
            {
                events.push(Err(WriteError::Full));
                continue;
            }
            revision += 1;
            let (event, bytes) = self.append_one(one, revision, before, &state)?;
            stored += bytes;
            let now = (event.change != Change::Deleted).then(|| Arc::clone(&event.entry));
            pending.insert(&one.key, now);
            events.push(Ok(event));
        }
        // Only this writer changes objects: readers and new watches need not wait until the batch is durable.
        drop(state);
        self.log.commit()?;
        Ok((events, stored))
    }

    fn append_one(
        &self,
        one: &Write,
        revision: u64,
        before: Option<Arc<Entry>>,
        state: &State,
    ) -> rusqlite::Result<(Arc<Event>, u64)> {
        let last_state;
        let (encoded, change) = match (&one.action, &before) {
            (Action::Put(encoded), None) => (encoded, Change::Added),
            (Action::Put(encoded), Some(_)) => (encoded, Change::Modified),
            (Action::Delete, Some(entry)) => {
                last_state = tombstone(entry);
                (&last_state, Change::Deleted)
            }
            (Action::Delete, None) => return Err(rusqlite::Error::QueryReturnedNoRows),
        };
        let bytes = with_revision(&encoded.text, revision).ok_or(rusqlite::Error::InvalidQuery)?;
        let stored = self.log.append(&Append {
            revision,
            key: &one.key,
            previous: before.as_ref().map(|entry| entry.revision),
            deleted: change == Change::Deleted,
            written_ms: one.at_ms,
            by: &one.by,
            text: &encoded.text,
        })?;
        // The names of the stored object, not those of each request: they are kept for as long as the object.
        let key = before.as_ref().map_or_else(|| state.shared(&one.key), |before| before.key.clone());
        // Most writes change nothing that is indexed.
        let known = before.as_ref().map(|before| &before.facts).filter(|known| **known == encoded.facts);
        let facts = Arc::clone(known.unwrap_or(&encoded.facts));
        let entry = Entry { key, revision, written_ms: one.at_ms, text: bytes.into(), facts };
        Ok((Event::written(change, entry, before, &self.texts), stored))
    }

    pub(crate) fn compact(&mut self, keep: Keep) -> Result<u64, WriteError> {
        if let Err(error) = self.log.keep_room() {
            tracing::debug!(%error, "the database has no room to spare");
        }
        let target = self.compactable(keep).map_err(|e| self.refusal(&e))?;
        let compacted = read(&self.state).compacted;
        // After a restore the rows of earlier revisions are still there.
        let is_swept = self.log.swept().map_err(|e| self.refusal(&e))? >= target;
        if target < compacted || is_swept {
            return Ok(compacted);
        }
        // Readers are informed first: a watch must not start from history that is being removed.
        write(&self.state).compacted = target;
        let (removed, bytes) = self.log.compact(target).map_err(|e| self.refusal(&e))?;
        self.counters.stored.fetch_sub(bytes, Ordering::Relaxed);
        tracing::debug!(revision = target, removed, bytes, "history compacted");
        Ok(target)
    }

    fn compactable(&self, keep: Keep) -> rusqlite::Result<u64> {
        let target = self.log.compactable(keep.written_since_ms, keep.revisions)?;
        let history = self.counters.history();
        if history <= keep.bytes {
            return Ok(target);
        }
        // A quarter less than the limit, so that not every write compacts.
        let beyond_bytes = self.log.beyond_bytes(history - keep.bytes / 4 * 3)?;
        Ok(target.max(beyond_bytes).max(read(&self.state).compacted))
    }

    /// Converts an error for the caller of the write. Must be called before any other database operation.
    fn refusal(&self, source: &rusqlite::Error) -> WriteError {
        match self.log.found_no_room(source) {
            Some(NoRoom::Disk) => WriteError::Full,
            Some(NoRoom::Quota) => WriteError::OverQuota,
            None => WriteError::Refused(source.to_string()),
        }
    }
}
