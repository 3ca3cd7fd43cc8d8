//! Writes that a later one replaces are held back: statuses that only show progress, and frequent reports of the host.
//!
//! Knows uids and times, nothing of what is held back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Entries older than this belong to objects that were deleted meanwhile.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Since when the status of an object, by its uid, is held back.
#[derive(Debug, Default)]
pub(crate) struct HeldStatuses {
    since: Mutex<BTreeMap<String, Instant>>,
}

impl HeldStatuses {
    fn since(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long the status is still held back; None once it has been for this time.
    pub(crate) fn hold(&self, uid: &str, time: Duration) -> Option<Duration> {
        let now = Instant::now();
        let mut all = self.since();
        all.retain(|_, since| now.duration_since(*since) < FORGET_AFTER);
        let since = *all.entry(uid.to_owned()).or_insert(now);
        let left = time.saturating_sub(now.duration_since(since));
        if left.is_zero() {
            all.remove(uid);
            return None;
        }
        Some(left)
    }

    /// Forgets that a status is held back: another one was written, or it is the stored one again.
    pub(crate) fn release(&self, uid: &str) {
        self.since().remove(uid);
    }
}

/// Whether guests of this host are seen soon after their start, as the last one was: the start of the next one then waits for that, and both
/// are reported together. In memory only: after a start of the agent the first one is reported at once.
#[derive(Debug, Default)]
pub(crate) struct QuickGuests {
    was_last: AtomicBool,
}

impl QuickGuests {
    /// Records whether a guest was seen soon after its start.
    pub(crate) fn record(&self, soon: bool) {
        self.was_last.store(soon, Ordering::Relaxed);
    }

    /// Whether the next guest is expected to be seen soon.
    pub(crate) fn are_expected(&self) -> bool {
        self.was_last.load(Ordering::Relaxed)
    }
}

/// When the host was last reported.
#[derive(Debug, Default)]
pub(crate) struct LastReport {
    at: Mutex<Option<Instant>>,
}

impl LastReport {
    fn at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a report.
    pub(crate) fn record(&self) {
        *self.at() = Some(Instant::now());
    }

    /// Returns how long the next report has to wait, so that there is at most one in this time.
    pub(crate) fn left(&self, every: Duration) -> Option<Duration> {
        let left = every.saturating_sub((*self.at())?.elapsed());
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_status_is_held_back_once_and_for_the_time_since_the_first() {
        let (held, second) = (HeldStatuses::default(), Duration::from_secs(1));
        assert_eq!(held.hold("a", second), Some(second));
        tokio::time::advance(Duration::from_millis(400)).await;
        assert_eq!(held.hold("a", second), Some(Duration::from_millis(600)));
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!(held.hold("a", second), None);
        assert_eq!(held.hold("a", second), Some(second), "the next one is held back again");
        tokio::time::advance(Duration::from_millis(900)).await;
        held.release("a");
        assert_eq!(held.hold("a", second), Some(second));
    }
}
