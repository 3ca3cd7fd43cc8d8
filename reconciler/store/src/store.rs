//! The store: opens the database, passes writes to the writer, serves current reads from memory and past
//! revisions from disk.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::counters::Counters;
use crate::deferred::{self, Deferred};
use crate::directory::{DATABASE, DirectoryLock, lock_directory, refuse_unfinished};
use crate::entry::{Entry, FieldPath};
use crate::error::{OpenError, ReadError};
use crate::event::Event;
use crate::floor::Floor;
use crate::key::Key;
use crate::log::Log;
use crate::look_back::{ListPart, PastObjects, Revision};
use crate::queue::{self, Events};
use crate::state::{Interest, State, read, write};
use crate::text::SharedTexts;
use crate::write::{Answer, Keep, Write, WriteError};
use crate::writer::{Job, Writer};

/// The location of the objects.
#[derive(Debug, Clone)]
pub enum Storage {
    /// In this directory on disk (created with mode 0700 if missing); survives restarts.
    Directory(PathBuf),
    /// In memory, lost with the server; no thread is started.
    Memory,
}

/// The execution of the SQLite writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterMode {
    /// On a thread of its own that commits all queued writes in one transaction.
    Thread,
    /// In the task that writes. For runtimes with paused time, which would advance while a thread works.
    Inline,
}

/// The capacity of the write queue; further writes wait to be queued.
const QUEUE: usize = 1024;

#[derive(Debug)]
enum Hands {
    Thread {
        jobs: Mutex<Option<mpsc::Sender<Job>>>,
        thread: Mutex<Option<std::thread::JoinHandle<()>>>,
        deferred: Arc<Deferred>,
    },
    /// Taken when the store is closed.
    Inline(Box<Mutex<Option<Writer>>>),
}

/// The store; shared by reference.
pub struct Store {
    state: Arc<RwLock<State>>,
    hands: Hands,
    /// The connection for past revisions; `None` if the writer's own connection is used (in memory), and once
    /// closed.
    reader: Arc<Mutex<Option<Log>>>,
    pub counters: Arc<Counters>,
    /// The database and its write-ahead log; empty in memory.
    files: Vec<PathBuf>,
    /// Held while the database is open.
    lock: Mutex<Option<DirectoryLock>>,
}

/// The events of one resource from a revision on.
#[derive(Debug)]
pub struct Subscription {
    store: Arc<Store>,
    resource: Arc<str>,
    interest: Interest,
    id: u64,
    /// The events between the requested revision and the subscription, or the first of them.
    pub backlog: Vec<Arc<Event>>,
    rest: Option<Rest>,
    pub events: Events,
}

/// The events of a subscription between its backlog and its live events.
#[derive(Debug)]
struct Rest {
    /// Those on disk are after this revision.
    after: u64,
    /// The last one on disk.
    until: u64,
    recent: Vec<Arc<Event>>,
}

impl Subscription {
    /// Whether events that are older than those of `events` are still to be read.
    pub fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Reads the next of these events.
    ///
    /// *Errors:* the history was compacted meanwhile. The subscription cannot be continued.
    pub async fn read_rest(&mut self) -> Result<Vec<Arc<Event>>, ReadError> {
        let Some(Rest { after, until, recent }) = self.rest.take() else { return Ok(Vec::new()) };
        let (mut events, next) = self.store.past_events(&self.resource, after, until).await?;
        match next {
            Some(after) => self.rest = Some(Rest { after, until, recent }),
            None => events.extend(recent),
        }
        Ok(events)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        write(&self.store.state).unwatch(&self.resource, &self.interest, self.id);
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("counters", &self.counters).finish_non_exhaustive()
    }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the database and reads every live object into memory.
    pub fn open(storage: &Storage, mode: WriterMode) -> Result<Arc<Self>, OpenError> {
        let (log, directory, lock) = match storage {
            Storage::Memory => (Log::in_memory()?, None, None),
            Storage::Directory(directory) => {
                let lock = lock_directory(directory)?;
                refuse_unfinished(directory)?;
                (Log::open(directory)?, Some(directory), Some(lock))
            }
        };
        let shown = directory.map_or_else(|| ":memory:".into(), |directory| directory.join(DATABASE));
        let (revision, compacted) = log.bounds().map_err(|source| OpenError::from_load(&shown, source))?;
        let mut state = State::new(revision, compacted);
        let (mut live, texts) = (0, SharedTexts::default());
        let load = |mut entry: Entry| {
            live += entry.text.size() as u64;
            entry.key = state.shared(&entry.key);
            if let Some(text) = texts.divide(&entry.text.to_bytes()) {
                entry.text = text;
            }
            state.load(Arc::new(entry));
        };
        log.load(load).map_err(|source| OpenError::from_load(&shown, source))?;
        let stored = log.stored_bytes().map_err(|source| OpenError::from_load(&shown, source))?;
        let state = Arc::new(RwLock::new(state));
        let reader = match directory {
            Some(directory) => Some(Log::open_reader(directory, log.keys())?),
            None => None,
        };
        let reader = Arc::new(Mutex::new(reader));
        let counters = Arc::new(Counters::new(stored, live));
        let floor = Floor::of(directory.map(Into::into));
        let writer = Writer {
            log,
            state: Arc::clone(&state),
            counters: Arc::clone(&counters),
            floor,
            texts,
            deferred: Arc::default(),
        };
        let hands = match mode {
            WriterMode::Thread if directory.is_some() => Self::start_thread(writer, &shown)?,
            WriterMode::Thread | WriterMode::Inline => Hands::Inline(Box::new(Mutex::new(Some(writer)))),
        };
        let files = directory.map(|directory| {
            [DATABASE.to_owned(), format!("{DATABASE}-wal")].map(|name| directory.join(name)).into()
        });
        let (files, lock) = (files.unwrap_or_default(), Mutex::new(lock));
        Ok(Arc::new(Self { state, hands, reader, counters, files, lock }))
    }

    fn start_thread(writer: Writer, path: &Path) -> Result<Hands, OpenError> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let deferred = Arc::clone(&writer.deferred);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run(queue))
            .map_err(|source| OpenError::Directory { path: path.into(), source })?;
        Ok(Hands::Thread { jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)), deferred })
    }

    /// Returns the current state, for reads that must see a single revision. Never held across an await.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        read(&self.state)
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.state().get(key).cloned()
    }

    pub fn select_by(&self, resource: &Arc<str>, fields: Arc<[FieldPath]>) {
        write(&self.state).select_by(resource, fields);
    }

    /// Makes one write durable and returns the stored entry; a deletion returns the last state under the
    /// deletion's revision.
    pub async fn submit(&self, one: Write) -> Result<Arc<Entry>, WriteError> {
        let (begun, waits) = (Instant::now(), one.deferrable);
        let answer = self.write(one).await;
        if !waits {
            self.counters.latency.observe(begun.elapsed().as_secs_f64());
        }
        answer
    }

    async fn write(&self, one: Write) -> Result<Arc<Entry>, WriteError> {
        match &self.hands {
            Hands::Inline(writer) => {
                let mut writer = hold(writer);
                let writer = writer.as_mut().ok_or(WriteError::Closed)?;
                writer.commit(std::slice::from_ref(&one)).pop().unwrap_or(Err(WriteError::Closed))
            }
            Hands::Thread { jobs, deferred, .. } => {
                let mut one = Box::new(one);
                if one.deferrable {
                    match deferred.add(one) {
                        Ok(answered) => return wait_for_others(jobs, answered).await,
                        Err(refused) => one = refused,
                    }
                }
                let jobs = hold(jobs).clone().ok_or(WriteError::Closed)?;
                let (answer, answered) = oneshot::channel();
                jobs.send(Job::Write(one, answer)).await.map_err(|_| WriteError::Closed)?;
                // `close` waits until there is no sender, and this future may not be polled meanwhile.
                drop(jobs);
                answered.await.unwrap_or(Err(WriteError::Closed))
            }
        }
    }

    /// Applies the history window; returns the revision after which history now starts.
    pub async fn compact(&self, keep: Keep) -> Result<u64, WriteError> {
        match &self.hands {
            Hands::Inline(writer) => {
                let mut writer = hold(writer);
                writer.as_mut().ok_or(WriteError::Closed)?.compact(keep)
            }
            Hands::Thread { jobs, .. } => {
                let jobs = hold(jobs).clone().ok_or(WriteError::Closed)?;
                let (done, answered) = oneshot::channel();
                let job = Job::Compact { keep, done };
                jobs.send(job).await.map_err(|_| WriteError::Closed)?;
                drop(jobs);
                answered.await.unwrap_or(Err(WriteError::Closed))
            }
        }
    }

    /// Subscribes to a resource after `after`, or from now on, and calls `first` under the same lock.
    pub async fn subscribe<T>(
        self: &Arc<Self>,
        resource: &Arc<str>,
        interest: Interest,
        after: Option<u64>,
        first: impl FnOnce(&State) -> T,
    ) -> Result<(T, Subscription), ReadError> {
        let (subscription, taken, missing) = {
            let mut state = write(&self.state);
            if let Some(after) = after {
                check_range(&state, after)?;
            }
            let (events, receiver) = queue::queue();
            let id = state.watch(resource, &interest, events);
            let backlog = after.map(|after| state.recent(resource, after)).unwrap_or_default();
            let missing =
                after.filter(|after| *after < state.recent_after).map(|after| (after, state.recent_after));
            let taken = first(&state);
            let store = Arc::clone(self);
            let resource = Arc::clone(resource);
            let subscription =
                Subscription { store, resource, interest, id, backlog, rest: None, events: receiver };
            (subscription, taken, missing)
        };
        let mut subscription = subscription;
        if let Some((after, until)) = missing {
            let recent = std::mem::take(&mut subscription.backlog);
            subscription.rest = Some(Rest { after, until, recent });
            subscription.backlog = subscription.read_rest().await?;
        }
        Ok((taken, subscription))
    }

    /// Returns the first events of a resource after a revision that are on disk, and the revision after which more follow.
    async fn past_events(
        &self,
        resource: &Arc<str>,
        after: u64,
        until: u64,
    ) -> Result<(Vec<Arc<Event>>, Option<u64>), ReadError> {
        let fields = self.state().fields(resource);
        let name = Arc::clone(resource);
        let events = self.look_back(move |log| log.events(&name, after, until, &fields)).await?;
        // A compaction may have passed the revision while the disk was read, or since the events before were.
        check_range(&self.state(), after)?;
        Ok(events)
    }

    /// Subscribes to all resources, for the server's own controllers.
    pub fn subscribe_all(&self) -> Events {
        let (events, receiver) = queue::queue();
        write(&self.state).watch_everything(events);
        receiver
    }

    /// Returns a part of the objects of a resource at `revision`, in key order, of those that `is_selected` accepts.
    pub async fn list_at(
        &self,
        resource: &Arc<str>,
        revision: u64,
        part: ListPart,
        is_selected: impl Fn(&Entry) -> bool + Send + 'static,
    ) -> Result<PastObjects, ReadError> {
        let fields = {
            let state = self.state();
            check_range(&state, revision)?;
            state.fields(resource)
        };
        let name = Arc::clone(resource);
        let read = move |log: &Log| log.list_at(&name, revision, &fields, &part, is_selected);
        let objects = self.look_back(read).await?;
        check_range(&self.state(), revision)?;
        Ok(objects)
    }

    /// Passes the kept revisions of an object, newest first, to `step` until it breaks.
    pub async fn revisions<S: Send + 'static>(
        &self,
        key: Key,
        mut folded: S,
        step: fn(&mut S, Revision) -> ControlFlow<()>,
    ) -> Result<S, ReadError> {
        let query = move |log: &Log| {
            log.revisions(&key, |one| step(&mut folded, one))?;
            Ok(folded)
        };
        self.look_back(query).await
    }

    /// Returns the last revision at a time.
    pub async fn revision_at(&self, at_ms: i64) -> Result<u64, ReadError> {
        let found = self.look_back(move |log| log.revision_at(at_ms)).await?;
        let found = found.ok_or(ReadError::Compacted { requested: 0 })?;
        check_range(&self.state(), found)?;
        Ok(found)
    }

    async fn look_back<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Log) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ReadError> {
        let closed = || ReadError::Database("the server is shutting down".into());
        let result = match &self.hands {
            Hands::Thread { .. } => {
                let reader = Arc::clone(&self.reader);
                let answer = tokio::task::spawn_blocking(move || hold(&reader).as_ref().map(query));
                answer.await.map_err(|_| closed())?.ok_or_else(closed)?
            }
            Hands::Inline(writer) => match hold(&self.reader).as_ref() {
                Some(reader) => query(reader),
                None => query(&hold(writer).as_ref().ok_or_else(closed)?.log),
            },
        };
        result.map_err(|source| ReadError::Database(source.to_string()))
    }

    /// Whether a writer accepts writes.
    pub fn is_writable(&self) -> bool {
        match &self.hands {
            Hands::Thread { jobs, thread, .. } => {
                let runs = hold(thread).as_ref().is_some_and(|thread| !thread.is_finished());
                runs && hold(jobs).is_some()
            }
            Hands::Inline(writer) => hold(writer).is_some(),
        }
    }

    /// Returns the number of writes in the queue.
    pub fn queued(&self) -> usize {
        match &self.hands {
            Hands::Thread { jobs, deferred, .. } => {
                deferred.count() + hold(jobs).as_ref().map_or(0, |jobs| QUEUE - jobs.capacity())
            }
            Hands::Inline(_) => 0,
        }
    }

    /// Returns the size of the database and its write-ahead log in bytes; 0 in memory.
    pub fn size(&self) -> u64 {
        let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
        self.files.iter().map(size).sum()
    }

    /// Ends every watch.
    pub(crate) fn close_watches(&self) {
        write(&self.state).close_watches();
    }

    /// Refuses further writes, waits for queued ones, and closes the file: another process may open it even
    /// while this store is still referenced.
    pub fn close(&self) {
        self.close_watches();
        match &self.hands {
            Hands::Inline(writer) => drop(hold(writer).take()),
            Hands::Thread { jobs, thread, .. } => {
                hold(jobs).take();
                if let Some(thread) = hold(thread).take() {
                    // A writer that panicked has already failed its pending writes.
                    let _ = thread.join();
                }
            }
        }
        drop(hold(&self.reader).take());
        drop(hold(&self.lock).take());
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits until a deferred write is durable; has it stored once it has waited for long enough.
///
/// Assumptions: no sender of jobs is held while it waits, or else [`Store::close`], which ends all waiting, could wait for it.
async fn wait_for_others(
    jobs: &Mutex<Option<mpsc::Sender<Job>>>,
    mut answered: oneshot::Receiver<Answer>,
) -> Answer {
    if let Ok(answer) = tokio::time::timeout(deferred::WAIT, &mut answered).await {
        return answer.unwrap_or(Err(WriteError::Closed));
    }
    let jobs = hold(jobs).clone();
    if let Some(jobs) = jobs {
        // A writer that has ended answers all writes that waited.
        let _ = jobs.send(Job::Deferred).await;
    }
    answered.await.unwrap_or(Err(WriteError::Closed))
}

fn check_range(state: &State, revision: u64) -> Result<(), ReadError> {
    if revision > state.revision {
        return Err(ReadError::Future { requested: revision, current: state.revision });
    }
    if revision < state.compacted {
        return Err(ReadError::Compacted { requested: revision });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
