//! What must be undone whatever happens: on drop, on a panic, on Ctrl-C.
//!
//! A fixture registers how to undo itself and keeps the [`Undo`]. Dropping it undoes now; a signal undoes everything still
//! registered, newest first, and ends the process. It must not know what is being undone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Makes SIGINT, SIGTERM and SIGHUP undo everything and end the process. To be called first thing in `main`.
///
/// By handlers, never by blocking them: every child would inherit the blocked signals, and berth, Terraform and the
/// rest could not be ended by SIGTERM any more.
pub fn on_signals() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    std::thread::spawn(move || {
        let (name, number) = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => ("SIGINT", 2),
                _ = terminate.recv() => ("SIGTERM", 15),
                _ = hangup.recv() => ("SIGHUP", 1),
            }
        });
        INTERRUPTED.store(true, Ordering::SeqCst);
        crate::report::note(&format!("\n{name}: cleaning up"));
        everything();
        std::process::exit(128 + number);
    });
    Ok(())
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
