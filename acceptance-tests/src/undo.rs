//! Cleanup that must run in every case: on drop, on a panic, on Ctrl-C.
//!
//! A fixture registers its cleanup and keeps the [`Undo`]. Dropping it cleans up at once; a signal runs every registered
//! cleanup, newest first, and ends the process. This module must not know any fixture.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

type Action = Box<dyn FnOnce() + Send>;

/// The registered actions, in the order of registration.
#[derive(Default)]
struct Registry {
    state: Mutex<Registered>,
    returned: Condvar,
}

#[derive(Default)]
struct Registered {
    actions: BTreeMap<u64, Action>,
    next: u64,
    /// The number of actions that were taken out of the map and have not returned yet.
    running: usize,
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Held shared while a resource is created and registered, and exclusively by the signal thread to forbid that.
static GATE: RwLock<()> = RwLock::new(());
/// The time for which the end of the process waits for actions that another thread has begun.
const BEGUN: Duration = Duration::from_secs(60);

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Registered> {
        // A panic while the lock is held leaves a consistent state: every mutation is one insert or one remove.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, action: Action) -> u64 {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.actions.insert(id, action);
        id
    }

    fn forget(&self, id: u64) {
        self.lock().actions.remove(&id);
    }

    fn undo(&self, id: u64) {
        let mut state = self.lock();
        if let Some(action) = state.actions.remove(&id) {
            self.run(state, action);
        }
    }

    /// The lock must not be held while the action runs: an action may itself drop other guards.
    fn run(&self, mut state: MutexGuard<'_, Registered>, action: Action) {
        state.running += 1;
        drop(state);
        action();
        self.lock().running -= 1;
        self.returned.notify_all();
    }

    fn undo_everything(&self) {
        // Counted from the end of this thread's own actions, which may take long.
        let mut end = None;
        loop {
            let mut state = self.lock();
            if let Some((_, action)) = state.actions.pop_last() {
                self.run(state, action);
                continue;
            }
            let end: Instant = *end.get_or_insert_with(|| Instant::now() + BEGUN);
            let left = end.saturating_duration_since(Instant::now());
            if state.running == 0 || left.is_zero() {
                return;
            }
            drop(self.returned.wait_timeout(state, left));
        }
    }
}

/// Creates a resource and registers its cleanup, with no signal between the two.
///
/// *Assumptions*: `make` is short, creates nothing before it starts, and does not call this function.
///
/// *Errors*: those of `make`, and a specific one when the process is ending.
pub fn making<T>(make: impl FnOnce() -> Result<T>) -> Result<T> {
    let _open = GATE.read().unwrap_or_else(PoisonError::into_inner);
    ensure!(!interrupted(), "interrupted");
    make()
}

/// A cleanup that runs once: on drop, or when the process is interrupted.
#[derive(Debug)]
#[must_use = "dropping it undoes at once"]
pub struct Undo(u64);

impl Undo {
    /// Registers `action` to be run once.
    pub fn later(action: impl FnOnce() + Send + 'static) -> Self {
        Self(REGISTRY.add(Box::new(action)))
    }

    /// Drops the action without running it: there is nothing to clean up any more.
    pub fn forget(self) {
        REGISTRY.forget(self.0);
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        REGISTRY.undo(self.0);
    }
}

/// Runs all registered actions, newest first, and waits for those that other threads are running.
pub fn everything() {
    REGISTRY.undo_everything();
}

/// Whether a signal has requested the end of this process: nothing new may be started then.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Blocks the calling thread forever once a signal has requested the end of the process: the cleanup thread ends it, and must
/// not race with a thread that still creates resources.
pub fn halt_if_interrupted() {
    while interrupted() {
        std::thread::park();
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP run all cleanups and end the process with 128 + the signal's number. Must be called first
/// in `main`. Further signals only print a line.
///
/// Uses handlers and never blocks the signals: every child would inherit the blocked signals, and berth, Terraform and the
/// rest could not be ended by SIGTERM any more.
pub fn on_signals() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    std::thread::spawn(move || {
        let mut next = || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => ("SIGINT", 2),
                    _ = terminate.recv() => ("SIGTERM", 15),
                    _ = hangup.recv() => ("SIGHUP", 1),
                }
            })
        };
        let (name, number) = next();
        forbid_making();
        crate::progress::note(&format!("\n{name}: cleaning up"));
        std::thread::spawn(move || {
            everything();
            std::process::exit(128 + number);
        });
        loop {
            let (name, _) = next();
            crate::progress::note(&format!("{name}: still cleaning up"));
        }
    });
    Ok(())
}

/// From here on nothing is created, and everything created is registered.
fn forbid_making() {
    let _closed = GATE.write().unwrap_or_else(PoisonError::into_inner);
    INTERRUPTED.store(true, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn children_can_be_ended_by_the_signals_that_we_handle() {
        on_signals().expect("handlers can be installed");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid fits"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
        let status = child.wait().expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    }

    #[test]
    fn the_end_waits_for_an_action_that_another_thread_has_begun() {
        let registry = Registry::default();
        let (begun, wait_for_begun) = std::sync::mpsc::channel();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let id = registry.add(Box::new(move || {
            begun.send(()).expect("the test waits");
            std::thread::sleep(Duration::from_millis(300));
            seen.store(true, Ordering::SeqCst);
        }));
        std::thread::scope(|scope| {
            scope.spawn(|| registry.undo(id));
            wait_for_begun.recv().expect("it begins");
            registry.undo_everything();
            assert!(ended.load(Ordering::SeqCst), "the process would have ended in the middle of it");
        });
    }

    #[test]
    fn what_was_made_last_is_undone_first() {
        let registry = Registry::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in 0..3 {
            let order = Arc::clone(&order);
            registry.add(Box::new(move || order.lock().expect("it is whole").push(number)));
        }
        registry.undo_everything();
        assert_eq!(*order.lock().expect("it is whole"), [2, 1, 0]);
    }

    #[test]
    fn an_action_runs_once_on_drop_and_never_when_forgotten() {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = |runs: &Arc<AtomicUsize>| {
            let runs = Arc::clone(runs);
            move || {
                runs.fetch_add(1, Ordering::SeqCst);
            }
        };
        drop(Undo::later(count(&runs)));
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        Undo::later(count(&runs)).forget();
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
}
