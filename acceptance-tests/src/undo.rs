//! What must be undone whatever happens: on drop, on a panic, on Ctrl-C.
//!
//! A fixture registers how to undo itself and keeps the [`Undo`]. Dropping it undoes now; a signal undoes everything still
//! registered, newest first, and ends the process. It must not know what is being undone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{SigSet, Signal};

type Action = Box<dyn FnOnce() + Send>;

static ACTIONS: Mutex<BTreeMap<u64, Action>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn actions() -> MutexGuard<'static, BTreeMap<u64, Action>> {
    // A panic while holding the lock leaves a map that is still whole: every mutation is one insert or one remove.
    ACTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that will be undone once: when this is dropped, or when the process is interrupted.
#[derive(Debug)]
#[must_use = "dropping it undoes at once"]
pub struct Undo(u64);

impl Undo {
    /// Registers `action` to be run once.
    pub fn later(action: impl FnOnce() + Send + 'static) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        actions().insert(id, Box::new(action));
        Self(id)
    }

    /// Forgets the action: there is nothing to undo any more.
    pub fn forget(self) {
        actions().remove(&self.0);
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // The lock must not be held while the action runs: an action may itself drop other guards.
        let action = actions().remove(&self.0);
        if let Some(action) = action {
            action();
        }
    }
}

/// Undoes all that is registered, newest first.
pub fn everything() {
    loop {
        let newest = actions().pop_last();
        match newest {
            Some((_, action)) => action(),
            None => return,
        }
    }
}

/// Whether a signal asked this process to end: nothing new may be started then.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Stops the calling thread for good once a signal asked the process to end: the thread that cleans up will end it, and must
/// not race with one that still makes things.
pub fn halt_if_interrupted() {
    while interrupted() {
        std::thread::park();
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP undo everything and end the process. To be called first thing in `main`, before any
/// thread starts, because the signals are blocked in every later thread.
pub fn on_signals() -> nix::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    std::thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        INTERRUPTED.store(true, Ordering::SeqCst);
        crate::report::note(&format!("\n{signal}: cleaning up"));
        everything();
        std::process::exit(128 + signal as i32);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

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
