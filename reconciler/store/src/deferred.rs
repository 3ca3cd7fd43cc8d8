//! Writes that wait for others, to be stored in one transaction with them: a transaction costs more than a write in it.
//!
//! ```text
//! add ─▶ waiting ─▶ after 250 ms, or with the next other write ─▶ one transaction ─▶ answer
//! ```
//!
//! A write that waits is not acknowledged. If the process ends meanwhile, its client gets no answer, as for every write that is not yet
//! durable.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::write::{Answer, Write};

/// How long a write waits for others at most.
pub(crate) const WAIT: Duration = Duration::from_millis(250);
/// The maximum number of writes that wait. A further one does not wait, and takes the others along.
pub(crate) const MOST: usize = 32;

/// A write, and the receiver of its result.
pub(crate) type Pending = (Write, oneshot::Sender<Answer>);

/// The writes that wait.
#[derive(Debug, Default)]
pub(crate) struct Deferred(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    writes: Vec<Pending>,
    /// Set when the writer ends.
    is_closed: bool,
}

impl Deferred {
    fn hold(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a write; returns it if it is not to wait.
    pub(crate) fn add(&self, one: Box<Write>) -> Result<oneshot::Receiver<Answer>, Box<Write>> {
        let mut waiting = self.hold();
        if waiting.is_closed || waiting.writes.len() >= MOST {
            return Err(one);
        }
        let (answer, answered) = oneshot::channel();
        waiting.writes.push((*one, answer));
        Ok(answered)
    }

    /// Returns the writes that wait, in the order in which they arrived.
    pub(crate) fn take(&self) -> Vec<Pending> {
        std::mem::take(&mut self.hold().writes)
    }

    /// Returns them and refuses further ones.
    pub(crate) fn close(&self) -> Vec<Pending> {
        let mut waiting = self.hold();
        waiting.is_closed = true;
        std::mem::take(&mut waiting.writes)
    }

    /// Returns the number of writes that wait.
    pub(crate) fn count(&self) -> usize {
        self.hold().writes.len()
    }
}
