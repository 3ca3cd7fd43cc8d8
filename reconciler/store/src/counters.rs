//! Counters for `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::histogram::Histogram;

use crate::entry::Entry;
use crate::event::{Change, Event};

/// Upper bounds of the buckets of the latency, in seconds.
const LATENCIES: [f64; 7] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0];

/// Counters for `/metrics`.
#[derive(Debug)]
pub struct Counters {
    pub writes: AtomicU64,
    pub commits: AtomicU64,
    pub failed: AtomicU64,
    /// The size of all kept revisions, and of the newest revisions of existing objects, in bytes.
    pub(crate) stored: AtomicU64,
    pub(crate) live: AtomicU64,
    /// Seconds from submission until a write that waits for no others is durable or refused.
    pub latency: Histogram,
}

impl Counters {
    pub(crate) fn new(stored: u64, live: u64) -> Self {
        Self {
            writes: AtomicU64::default(),
            commits: AtomicU64::default(),
            failed: AtomicU64::default(),
            stored: stored.into(),
            live: live.into(),
            latency: Histogram::new(LATENCIES),
        }
    }

    /// Returns the size of superseded revisions in bytes.
    pub fn history(&self) -> u64 {
        self.stored.load(Ordering::Relaxed).saturating_sub(self.live.load(Ordering::Relaxed))
    }

    /// Counts the bytes that a batch of writes stored, and those that it superseded.
    pub(crate) fn applied<'a>(&self, events: impl Iterator<Item = &'a Arc<Event>> + Clone, stored: u64) {
        let events = || events.clone();
        let bytes = |entry: &Arc<Entry>| entry.text.size() as u64;
        let gone: u64 = events().map(|event| event.superseded as u64).sum();
        let come: u64 =
            events().filter(|event| event.change != Change::Deleted).map(|event| bytes(&event.entry)).sum();
        self.stored.fetch_add(stored, Ordering::Relaxed);
        self.live.fetch_add(come, Ordering::Relaxed);
        self.live.fetch_sub(gone, Ordering::Relaxed);
    }
}
