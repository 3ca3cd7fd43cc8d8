//! The queue of a watcher: bounded in number and in bytes, and dropped as a whole when it overflows.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::event::Event;

/// The maximum number of events a watcher may lag behind before it is cut off with 410.
pub(crate) const WATCH_BUFFER: usize = 2048;
/// The maximum size of those events in bytes.
const WATCH_BYTES: usize = 16 << 20;
/// The number of events for which a queue without events keeps space. There are tens of thousands of watchers, and a burst of events
/// makes all of their queues grow.
const KEPT: usize = 4;

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

/// The store's end. Dropping it ends the watch after the queued events.
#[derive(Debug)]
pub(crate) struct Feed(Arc<Queue>);

/// The watcher's end.
#[derive(Debug)]
pub struct Events(Arc<Queue>);

pub(crate) fn queue() -> (Feed, Events) {
    let queue = Arc::new(Queue::default());
    (Feed(Arc::clone(&queue)), Events(queue))
}

impl Feed {
    /// Queues an event. Returns false if the watcher is gone or too slow; its queue is then cleared, because
    /// it may never read again.
    pub(crate) fn send(&self, event: &Arc<Event>) -> bool {
        let mut waiting = self.0.hold();
        if waiting.closed {
            return false;
        }
        waiting.bytes += event.entry.text.size();
        waiting.events.push_back(Arc::clone(event));
        let fits = waiting.events.len() <= WATCH_BUFFER && waiting.bytes <= WATCH_BYTES;
        // A single event always fits, regardless of its size.
        if !fits && waiting.events.len() > 1 {
            *waiting = Waiting { closed: true, ..Waiting::default() };
        }
        let open = !waiting.closed;
        drop(waiting);
        self.0.news.notify_one();
        open
    }

    /// Returns the number of queued events and their bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
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
    /// Receives the next event; `None` once the watch has ended.
    pub async fn recv(&mut self) -> Option<Arc<Event>> {
        loop {
            if let Some(event) = self.try_recv() {
                return Some(event);
            }
            if self.0.hold().closed {
                // Events that were queued between the two checks.
                return self.try_recv();
            }
            self.0.news.notified().await;
        }
    }

    /// Whether the watch has ended: there may have been further events after those that are queued.
    pub fn has_ended(&self) -> bool {
        self.0.hold().closed
    }

    /// Returns the next event, if one is queued.
    pub fn try_recv(&mut self) -> Option<Arc<Event>> {
        let mut waiting = self.0.hold();
        let event = waiting.events.pop_front()?;
        waiting.bytes -= event.entry.text.size();
        if waiting.events.is_empty() {
            waiting.events.shrink_to(KEPT);
        }
        Some(event)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        *self.0.hold() = Waiting { closed: true, ..Waiting::default() };
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::entry::{Entry, Facts};
    use crate::event::Change;
    use crate::key::Key;
    use crate::text::SharedTexts;

    fn entry(revision: u64) -> Entry {
        Entry {
            key: Key::new(&"x/things".into(), "n", "t"),
            revision,
            written_ms: 0,
            text: Bytes::from_static(b"{}").into(),
            facts: Arc::new(Facts::default()),
        }
    }

    #[test]
    fn a_queue_without_events_tells_whether_some_were_dropped() {
        let (feed, mut events) = queue();
        let texts = SharedTexts::default();
        for revision in 0..=2048 {
            assert!(!events.has_ended());
            let is_open = feed.send(&Event::written(Change::Modified, entry(revision), None, &texts));
            assert_eq!(is_open, revision < 2048);
        }
        assert!(events.try_recv().is_none() && events.has_ended());
        let (feed, events) = queue();
        drop(feed);
        assert!(events.has_ended());
    }

    #[test]
    fn a_queue_that_was_long_keeps_little_space() {
        let (feed, mut events) = queue();
        let texts = SharedTexts::default();
        for revision in 0..500 {
            assert!(feed.send(&Event::written(Change::Modified, entry(revision), None, &texts)));
        }
        assert_eq!(feed.waiting(), (500, 1000));
        let received: Vec<u64> =
            std::iter::from_fn(|| events.try_recv()).map(|event| event.entry.revision).collect();
        assert_eq!(received, (0..500).collect::<Vec<_>>());
        assert_eq!(feed.waiting(), (0, 0));
        assert!(feed.0.hold().events.capacity() <= 2 * KEPT);
    }
}
