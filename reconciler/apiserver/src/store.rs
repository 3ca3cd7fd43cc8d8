//! Objects in one append-only SQLite table, read from memory.
//!
//! Knows keys, revisions, labels and owners; knows no Kubernetes verb and no HTTP.
//! A write is answered only after it is durable, and is seen by readers and watchers only then. Lists and
//! subscriptions are taken under one lock, so a watch misses nothing and repeats nothing.

mod backup;
mod entry;
mod floor;
mod key;
mod keyring;
mod log;
mod look_back;
mod queue;
mod restore;
mod rotate;
mod seal;
mod state;
mod tables;
mod writer;

#[cfg(test)]
mod tests;

use std::fs::{File, TryLockError};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

pub use backup::{Backup, BackupError, backup};
pub(crate) use backup::{backups_in, is_due};
pub(crate) use entry::{Encoded, Entry, FieldPath, with_revision};
use floor::Floor;
pub(crate) use key::Key;
use log::Log;
pub(crate) use look_back::Revision;
pub(crate) use queue::Events;
pub use restore::{RestoreError, RestoreOptions, Restored, restore};
pub use rotate::{Rotated, rotate_key};
pub(crate) use state::{Change, Event, Interest, State};
pub(crate) use writer::{Action, Counters, Expect, LATENCIES, Origin, Write, WriteError};
use writer::{Job, Writer};

use crate::config::{Storage, WriterMode};

/// The database's file, in the state directory.
pub(crate) const DATABASE: &str = "berth.db";
/// Writes that may wait for the writer; further ones wait to be queued.
const QUEUE: usize = 1024;

/// Why a database could not be opened. Guarantees: the file has not been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory could not be made or the lock file not be opened.
    #[error("preparing {path}")]
    Directory {
        /// What was being prepared.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error(
        "{path} is in use by another process: only one server may have it open, stop the other one first"
    )]
    Locked {
        /// The database.
        path: PathBuf,
    },
    /// It was written by a newer version.
    #[error(
        "{path} has format {found}, this version reads up to {supported}: it was written by a newer version, use that one"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format this version reads.
        supported: i64,
    },
    /// It is some other SQLite database.
    #[error("{path} is not a database of this server")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Its content is broken.
    #[error("{path} is damaged ({detail}); nothing was changed, restore it from a backup")]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The key of the encrypted rows is missing, wrong or unreadable.
    #[error("the key file {path}: {detail}; the database was not changed")]
    Key {
        /// The key file.
        path: PathBuf,
        /// What is wrong, and what to do.
        detail: String,
    },
    /// A restore was interrupted.
    #[error("a restore into {path} was interrupted: run the same `berth restore` again, which completes it")]
    HalfRestored {
        /// The state directory.
        path: PathBuf,
    },
    /// SQLite failed otherwise.
    #[error("opening {path}")]
    Database {
        /// The database.
        path: PathBuf,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// Keys, certificates or tokens beside the database could not be read or made.
    #[error("credentials: {0}")]
    Credentials(String),
    /// A stored definition cannot be served.
    #[error("stored objects: {0}")]
    Content(String),
}

/// Why a read that looks back failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The revision is no longer in the history.
    #[error("revision {requested} has been compacted")]
    Compacted { requested: u64 },
    /// The revision has not happened yet.
    #[error("revision {requested} is in the future, the current one is {current}")]
    Future { requested: u64, current: u64 },
    #[error("reading the database: {0}")]
    Database(String),
}

#[derive(Debug)]
enum Hands {
    Thread {
        jobs: Mutex<Option<mpsc::Sender<Job>>>,
        thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    },
    /// Taken away when the store is closed.
    Inline(Mutex<Option<Writer>>),
}

/// The store; shared by reference.
pub(crate) struct Store {
    state: Arc<RwLock<State>>,
    hands: Hands,
    /// Looks back; `None` where the writer's own connection does (in memory), and once closed.
    reader: Arc<Mutex<Option<Log>>>,
    pub(crate) counters: Arc<Counters>,
    /// The database and its log; none in memory.
    files: Vec<PathBuf>,
    /// Held for as long as the database is open.
    lock: Mutex<Option<DirectoryLock>>,
}

/// The directory's lock, let go when dropped.
#[derive(Debug)]
struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Said aloud: a child that is being started elsewhere in this process still shares the descriptor.
        let _ = self.0.unlock();
    }
}

/// Events of one resource from a point on.
#[derive(Debug)]
pub(crate) struct Subscription {
    store: Arc<Store>,
    resource: Arc<str>,
    interest: Interest,
    id: u64,
    /// What happened between the point asked for and the subscription.
    pub(crate) backlog: Vec<Arc<Event>>,
    pub(crate) events: Events,
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

fn read(state: &RwLock<State>) -> RwLockReadGuard<'_, State> {
    state.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(state: &RwLock<State>) -> RwLockWriteGuard<'_, State> {
    state.write().unwrap_or_else(PoisonError::into_inner)
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the database and reads every live object into memory.
    pub(crate) fn open(storage: &Storage, mode: WriterMode) -> Result<Arc<Self>, OpenError> {
        let (log, directory, lock) = match storage {
            Storage::Memory => (Log::in_memory()?, None, None),
            Storage::Directory(directory) => {
                let lock = lock_directory(directory)?;
                if directory.join(restore::UNFINISHED).exists() {
                    return Err(OpenError::HalfRestored { path: directory.clone() });
                }
                (Log::open(directory)?, Some(directory), Some(lock))
            }
        };
        let shown = directory.map_or_else(|| ":memory:".into(), |directory| directory.join(DATABASE));
        let (revision, compacted) = log.bounds().map_err(|source| OpenError::from_load(&shown, source))?;
        let mut state = State::new(revision, compacted);
        log.load(|entry| state.load(Arc::new(entry)))
            .map_err(|source| OpenError::from_load(&shown, source))?;
        let state = Arc::new(RwLock::new(state));
        let reader = match directory {
            Some(directory) => Some(Log::open_reader(directory, log.keys())?),
            None => None,
        };
        let reader = Arc::new(Mutex::new(reader));
        let counters = Arc::new(Counters::default());
        let floor = Floor::of(directory.map(Into::into));
        let writer = Writer { log, state: Arc::clone(&state), counters: Arc::clone(&counters), floor };
        let hands = match mode {
            WriterMode::Thread if directory.is_some() => Self::start_thread(writer, &shown)?,
            WriterMode::Thread | WriterMode::Inline => Hands::Inline(Mutex::new(Some(writer))),
        };
        let files = directory.map(|directory| {
            [DATABASE.to_owned(), format!("{DATABASE}-wal")].map(|name| directory.join(name)).into()
        });
        let (files, lock) = (files.unwrap_or_default(), Mutex::new(lock));
        Ok(Arc::new(Self { state, hands, reader, counters, files, lock }))
    }

    fn start_thread(writer: Writer, path: &Path) -> Result<Hands, OpenError> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run(queue))
            .map_err(|source| OpenError::Directory { path: path.into(), source })?;
        Ok(Hands::Thread { jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)) })
    }

    /// The current state, for reads that must see one revision. Never held across an await.
    pub(crate) fn state(&self) -> RwLockReadGuard<'_, State> {
        read(&self.state)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.state().get(key).cloned()
    }

    pub(crate) fn select_by(&self, resource: &Arc<str>, fields: Arc<[FieldPath]>) {
        write(&self.state).select_by(resource, fields);
    }

    /// Makes one write durable and answers with what is stored now; a deletion answers with the last state
    /// under the deletion's revision.
    pub(crate) async fn submit(&self, one: Write) -> Result<Arc<Entry>, WriteError> {
        let begun = Instant::now();
        let answer = self.write(one).await;
        self.counters.latency.observe(begun.elapsed());
        answer
    }

    async fn write(&self, one: Write) -> Result<Arc<Entry>, WriteError> {
        match &self.hands {
            Hands::Inline(writer) => {
                let mut writer = hold(writer);
                let writer = writer.as_mut().ok_or(WriteError::Closed)?;
                writer.commit(std::slice::from_ref(&one)).pop().unwrap_or(Err(WriteError::Closed))
            }
            Hands::Thread { jobs, .. } => {
                let jobs = hold(jobs).clone().ok_or(WriteError::Closed)?;
                let (answer, answered) = oneshot::channel();
                jobs.send(Job::Write(Box::new(one), answer)).await.map_err(|_| WriteError::Closed)?;
                answered.await.unwrap_or(Err(WriteError::Closed))
            }
        }
    }

    /// Applies the history window; answers with the revision history now starts after.
    pub(crate) async fn compact(
        &self,
        written_before_ms: i64,
        keep_revisions: u64,
    ) -> Result<u64, WriteError> {
        match &self.hands {
            Hands::Inline(writer) => {
                let mut writer = hold(writer);
                writer.as_mut().ok_or(WriteError::Closed)?.compact(written_before_ms, keep_revisions)
            }
            Hands::Thread { jobs, .. } => {
                let jobs = hold(jobs).clone().ok_or(WriteError::Closed)?;
                let (done, answered) = oneshot::channel();
                let job = Job::Compact { written_before_ms, keep_revisions, done };
                jobs.send(job).await.map_err(|_| WriteError::Closed)?;
                answered.await.unwrap_or(Err(WriteError::Closed))
            }
        }
    }

    /// Subscribes to a resource after `after`, or from now on, taking `first` under the same lock.
    pub(crate) async fn subscribe<T>(
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
            (Subscription { store, resource, interest, id, backlog, events: receiver }, taken, missing)
        };
        let mut subscription = subscription;
        if let Some((after, until)) = missing {
            let fields = self.state().fields(resource);
            let name = Arc::clone(resource);
            let mut older = self.look_back(move |log| log.events(&name, after, until, &fields)).await?;
            // Compaction may have passed the point while the disk was read.
            check_range(&self.state(), after)?;
            older.append(&mut subscription.backlog);
            subscription.backlog = older;
        }
        Ok((taken, subscription))
    }

    /// Subscribes to everything, for the server's own controllers.
    pub(crate) fn subscribe_all(&self) -> Events {
        let (events, receiver) = queue::queue();
        write(&self.state).watch_everything(events);
        receiver
    }

    /// The objects of a resource as they were at `revision`, in key order.
    pub(crate) async fn list_at(
        &self,
        resource: &Arc<str>,
        revision: u64,
    ) -> Result<Vec<Arc<Entry>>, ReadError> {
        let fields = {
            let state = self.state();
            check_range(&state, revision)?;
            state.fields(resource)
        };
        let name = Arc::clone(resource);
        let entries = self.look_back(move |log| log.list_at(&name, revision, &fields)).await?;
        check_range(&self.state(), revision)?;
        Ok(entries)
    }

    /// Hands the kept revisions of an object, newest first, to `step`, for as long as it goes on.
    pub(crate) async fn revisions<S: Send + 'static>(
        &self,
        key: Key,
        mut told: S,
        step: fn(&mut S, Revision) -> ControlFlow<()>,
    ) -> Result<S, ReadError> {
        let query = move |log: &Log| {
            log.revisions(&key, |one| step(&mut told, one))?;
            Ok(told)
        };
        self.look_back(query).await
    }

    /// The last revision that was written by then.
    pub(crate) async fn revision_at(&self, at_ms: i64) -> Result<u64, ReadError> {
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

    /// Writes that wait for the writer.
    pub(crate) fn queued(&self) -> usize {
        match &self.hands {
            Hands::Thread { jobs, .. } => hold(jobs).as_ref().map_or(0, |jobs| QUEUE - jobs.capacity()),
            Hands::Inline(_) => 0,
        }
    }

    /// Bytes of the database and its log; 0 in memory.
    pub(crate) fn size(&self) -> u64 {
        let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
        self.files.iter().map(size).sum()
    }

    /// Ends every watch.
    pub(crate) fn close_watches(&self) {
        write(&self.state).close_watches();
    }

    /// Refuses further writes, waits for those that are queued, and lets go of the file: another process may
    /// open it, although somebody may still hold this store.
    pub(crate) fn close(&self) {
        self.close_watches();
        match &self.hands {
            Hands::Inline(writer) => drop(hold(writer).take()),
            Hands::Thread { jobs, thread } => {
                hold(jobs).take();
                if let Some(thread) = hold(thread).take() {
                    // A writer that panicked has already failed the writes it held.
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

fn check_range(state: &State, revision: u64) -> Result<(), ReadError> {
    if revision > state.revision {
        return Err(ReadError::Future { requested: revision, current: state.revision });
    }
    if revision < state.compacted {
        return Err(ReadError::Compacted { requested: revision });
    }
    Ok(())
}

/// Makes the directory, closed to others, and takes its lock.
fn lock_directory(directory: &Path) -> Result<DirectoryLock, OpenError> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let failed = |source| OpenError::Directory { path: directory.into(), source };
    if !directory.is_dir() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    }
    let path = directory.join("berth.lock");
    let private =
        |path: &Path| File::options().create(true).truncate(false).write(true).mode(0o600).open(path);
    let lock = private(&path).map_err(failed)?;
    // An empty file is a new database to SQLite, which gives its companions the same permissions.
    private(&directory.join(DATABASE)).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(DirectoryLock(lock)),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: directory.join(DATABASE) }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}
