//! What a watcher has not taken yet: bounded in number and in bytes, and given up as a whole when it is too much.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::state::Event;

/// Events a watcher may lag behind before it is cut off with 410.
pub(super) const WATCH_BUFFER: usize = 2048;
/// And bytes of them.
const WATCH_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    closed: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    news: Notify,
}

impl Queue {
    fn hold(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store's end. Dropping it ends the watch after what is queued.
#[derive(Debug)]
pub(super) struct Feed(Arc<Queue>);

/// The watcher's end.
#[derive(Debug)]
pub(crate) struct Events(Arc<Queue>);

pub(super) fn queue() -> (Feed, Events) {
    let queue = Arc::new(Queue::default());
    (Feed(Arc::clone(&queue)), Events(queue))
}

impl Feed {
    /// Queues an event; false if the watcher is gone or too slow, and then nothing is kept for it any more: whether it
    /// ever reads again is not known.
    pub(super) fn send(&self, event: &Arc<Event>) -> bool {
        let mut waiting = self.0.hold();
        if waiting.closed {
            return false;
        }
        waiting.bytes += event.entry.bytes.len();
        waiting.events.push_back(Arc::clone(event));
        let fits = waiting.events.len() <= WATCH_BUFFER && waiting.bytes <= WATCH_BYTES;
        // One event always fits, however large.
        if !fits && waiting.events.len() > 1 {
            *waiting = Waiting { closed: true, ..Waiting::default() };
        }
        let open = !waiting.closed;
        drop(waiting);
        self.0.news.notify_one();
        open
    }

    /// Events and bytes that wait.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let waiting = self.0.hold();
        (waiting.events.len(), waiting.bytes)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.hold().closed = true;
        self.0.news.notify_one();
    }
}

impl Events {
    /// The next event; `None` once the watch has ended.
    pub(crate) async fn recv(&mut self) -> Option<Arc<Event>> {
        loop {
            if let Some(event) = self.try_recv() {
                return Some(event);
            }
            if self.0.hold().closed {
                // What was queued between the two looks.
                return self.try_recv();
            }
            self.0.news.notified().await;
        }
    }

    /// The next event, if one waits.
    pub(crate) fn try_recv(&mut self) -> Option<Arc<Event>> {
        let mut waiting = self.0.hold();
        let event = waiting.events.pop_front()?;
        waiting.bytes -= event.entry.bytes.len();
        Some(event)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        *self.0.hold() = Waiting { closed: true, ..Waiting::default() };
    }
}
