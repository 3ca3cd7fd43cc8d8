//! The mirrors of disks that this agent has begun, and the pauses after those that failed. Knows nothing of Disks and machines.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The mirrors that this agent has begun, and those that failed.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    /// The number of those that begin at this moment.
    beginning: AtomicUsize,
    begun: Mutex<BTreeMap<String, Attempts>>,
}

#[derive(Debug, Default)]
struct Attempts {
    failures: u32,
    failed: Option<(String, Instant)>,
}

/// A mirror that begins counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Beginning<'a>(&'a Mirrors);

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        self.0.beginning.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Mirrors {
    /// Counts a mirror that begins, so that no more do than may: none waits for another, whose pool may not answer. Returns how many others
    /// begin at this moment.
    pub(crate) fn beginning(&self) -> (Beginning<'_>, usize) {
        let others = self.beginning.fetch_add(1, Ordering::SeqCst);
        (Beginning(self), others)
    }

    fn begun(&self) -> MutexGuard<'_, BTreeMap<String, Attempts>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one was begun for this volume, and it is not known that nothing of it is left.
    pub(crate) fn is_begun(&self, volume: &str) -> bool {
        self.begun().contains_key(volume)
    }

    pub(crate) fn begin(&self, volume: &str) {
        self.begun().entry(volume.to_owned()).or_default();
    }

    pub(crate) fn forget(&self, volume: &str) {
        self.begun().remove(volume);
    }

    pub(crate) fn fail(&self, volume: &str, text: String) {
        let mut begun = self.begun();
        let attempts = begun.entry(volume.to_owned()).or_default();
        let wait = FIRST_WAIT.saturating_mul(1 << attempts.failures.min(10)).min(LONGEST_WAIT);
        attempts.failures = attempts.failures.saturating_add(1);
        attempts.failed = Some((text, Instant::now() + wait));
    }

    /// Returns why the last attempt failed, and the time until the next one. None: it is due.
    pub(crate) fn failure(&self, volume: &str) -> Option<(String, Duration)> {
        let begun = self.begun();
        let (text, again) = begun.get(volume)?.failed.as_ref()?;
        let left = again.saturating_duration_since(Instant::now());
        (!left.is_zero()).then(|| (text.clone(), left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_that_begin_at_one_moment_count_each_other() {
        let mirrors = Mirrors::default();
        let (first, others) = mirrors.beginning();
        assert_eq!(others, 0);
        let (_second, others) = mirrors.beginning();
        assert_eq!(others, 1);
        drop(first);
        assert_eq!(mirrors.beginning().1, 1, "one has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_of_a_mirror_doubles_the_pause_before_the_next_attempt() {
        let mirrors = Mirrors::default();
        mirrors.begin("v-1");
        assert!(mirrors.is_begun("v-1") && mirrors.failure("v-1").is_none());
        for wait in [FIRST_WAIT, FIRST_WAIT * 2, FIRST_WAIT * 4] {
            mirrors.fail("v-1", "full".to_owned());
            assert_eq!(mirrors.failure("v-1"), Some(("full".to_owned(), wait)));
            tokio::time::advance(wait).await;
            assert_eq!(mirrors.failure("v-1"), None, "it is due");
        }
        for _ in 0..20 {
            mirrors.fail("v-1", "full".to_owned());
        }
        assert_eq!(mirrors.failure("v-1"), Some(("full".to_owned(), LONGEST_WAIT)));
        mirrors.forget("v-1");
        assert!(!mirrors.is_begun("v-1"));
    }
}
