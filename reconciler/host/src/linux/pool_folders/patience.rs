//! Folders that may never answer: those of a network file system whose server is gone. Whatever looks at one then waits in the kernel and
//! cannot be ended.
//!
//! ```text
//!  a look     in a thread of its own, one at a time for each folder; those that wait for it give up when it has taken too long
//!  work       is watched by looks: when one has taken too long, its caller gets an error, and its thread is left to itself
//!  back       once a look answers and all work that was given up has ended
//! ```
//!
//! So a folder that does not answer takes one thread for its look and one for each work that it interrupted, and holds up no other. Work that
//! was given up may still write when the server is back: until it has ended the pool is away, so that no other work changes the same files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::super::files::{self, blocking};
use super::{PoolFolder, PoolFolders, Result, locked};
use crate::SystemError;

/// How long a folder may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The look and the work that go on in a folder which may not answer.
#[derive(Debug, Default)]
pub(super) struct Looking {
    /// When the look that goes on was begun.
    begun: Mutex<Option<Instant>>,
    ended: Condvar,
    /// Work that was given up; each is held by the thread that does it.
    given_up: Mutex<Vec<Weak<()>>>,
}

/// A look that goes on.
struct Look(Arc<PoolFolder>);

impl Drop for Look {
    fn drop(&mut self) {
        *locked(&self.0.looking.begun) = None;
        self.0.looking.ended.notify_all();
    }
}

impl PoolFolder {
    /// Looks at the folder once an earlier look has ended. The error is why the pool is away, for people. Blocking, but not for ever.
    pub(super) fn look<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> std::result::Result<T, String> + Send + 'static,
    ) -> std::result::Result<T, String> {
        let mut begun = locked(&self.looking.begun);
        while let Some(since) = *begun {
            let left = self.patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(self.silence());
            }
            let waited = self.looking.ended.wait_timeout(begun, left);
            begun = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *begun = Some(Instant::now());
        drop(begun);
        let look = Look(Arc::clone(self));
        let (answer, answered) = channel();
        let spawned = thread::Builder::new().name("pool-look".to_owned()).spawn(move || {
            let found = work(&look.0);
            drop(look);
            // Nothing waits for it any more if it took too long.
            let _ = answer.send(found);
        });
        match spawned {
            Ok(_) => answered.recv_timeout(self.patience).unwrap_or_else(|_| Err(self.silence())),
            Err(error) => Err(format!("its folder cannot be looked at: {error}")),
        }
    }

    /// Checks that the pool is there, that its file system answers (the marker may be in the page cache), and that no work goes on that
    /// was given up.
    pub(super) fn ensure_answers(&self) -> std::result::Result<(), String> {
        self.ensure_there()?;
        files::space(&self.path).map_err(|error| format!("its space cannot be read: {error}"))?;
        match self.is_interrupted() {
            true => Err(format!(
                "work in its folder {} that was given up while it did not answer has not ended",
                self.path.display()
            )),
            false => Ok(()),
        }
    }

    fn is_interrupted(&self) -> bool {
        let mut given_up = locked(&self.looking.given_up);
        given_up.retain(|work| work.strong_count() > 0);
        !given_up.is_empty()
    }

    /// Without the time that has passed since: a message that changes is written again and again.
    fn silence(&self) -> String {
        format!(
            "its folder {} does not answer for {} s: is it on a network file system, and is the server there?",
            self.path.display(),
            self.patience.as_secs_f64()
        )
    }

    /// Whether a look has taken too long.
    fn is_silent(&self) -> bool {
        locked(&self.looking.begun).is_some_and(|since| since.elapsed() >= self.patience)
    }
}

impl PoolFolders {
    /// Runs blocking work that uses these pools.
    ///
    /// *Errors*: [`SystemError::PoolAway`] if one of them does not answer. The work then goes on if it ever does, and the pool is away
    /// until it has ended.
    pub(in super::super) async fn on_pools<T: Send + 'static>(
        &self,
        pools: &BTreeSet<String>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folders = pools.iter().filter_map(|pool| self.folders.get(pool).cloned()).collect();
        self.watched(folders, work).await
    }

    /// Runs blocking work that uses all pools that are there, and may be repeated: once more without each that does not answer.
    pub(in super::super) async fn on_all<T: Send + 'static>(
        &self,
        work: impl Fn() -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        let mut silent = BTreeSet::new();
        loop {
            let others =
                self.folders.values().filter(|folder| !silent.contains(&folder.pool) && !folder.is_silent());
            match self.watched(others.cloned().collect(), work.clone()).await {
                // Each repetition has one folder less that would interrupt it.
                Err(SystemError::PoolAway { pool, .. })
                    if self.folders.get(&pool).is_some_and(|folder| folder.is_silent())
                        && silent.insert(pool.clone()) => {}
                done => return done,
            }
        }
    }

    #[cfg(test)]
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        let folders = Arc::into_inner(self.folders).expect("it is not shared yet");
        let with = |folder: Arc<PoolFolder>| {
            let folder = Arc::into_inner(folder).expect("it is not shared yet");
            Arc::new(PoolFolder { patience, ..folder })
        };
        let folders = folders.into_iter().map(|(pool, folder)| (pool, with(folder))).collect();
        Self { folders: Arc::new(folders), ..self }
    }

    async fn watched<T: Send + 'static>(
        &self,
        folders: Vec<Arc<PoolFolder>>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if folders.is_empty() {
            return blocking(work).await;
        }
        let goes_on = Arc::new(());
        let noted = Arc::downgrade(&goes_on);
        // Dropped after the result, which may remove files when it is dropped.
        let work = move || (work(), goes_on);
        tokio::select! {
            (done, _) = blocking(work) => done,
            folder = silent_of(folders) => {
                locked(&folder.looking.given_up).push(noted);
                Err(SystemError::PoolAway { pool: folder.pool.clone(), detail: folder.silence() })
            }
        }
    }
}

/// Waits until one of these folders does not answer.
async fn silent_of(folders: Vec<Arc<PoolFolder>>) -> Arc<PoolFolder> {
    let patience = folders.iter().map(|folder| folder.patience).max().unwrap_or(PATIENCE);
    loop {
        tokio::time::sleep(patience).await;
        for folder in folders.iter().filter(|folder| folder.is_named) {
            let folder = Arc::clone(folder);
            let looked = blocking(move || {
                // The answer does not matter.
                let _ = folder.look(PoolFolder::ensure_answers);
                folder
            });
            let folder = looked.await;
            if folder.is_silent() {
                return folder;
            }
        }
    }
}

/// Returns a path without symbolic links, or as it is if it does not answer in time. Blocking, but not for ever.
pub(super) fn real_path(path: &Path) -> PathBuf {
    let (answer, answered) = channel();
    let of = path.to_owned();
    let spawned = thread::Builder::new().name("pool-look".to_owned()).spawn(move || {
        // Nothing waits for it any more if it took too long.
        let _ = answer.send(files::real_path(&of));
    });
    let real = spawned.ok().and_then(|_| answered.recv_timeout(PATIENCE).ok());
    real.unwrap_or_else(|| path.to_owned())
}
