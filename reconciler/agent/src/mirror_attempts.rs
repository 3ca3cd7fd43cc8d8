//! The mirrors of disks that this agent has begun, and the pauses after those that failed. Knows nothing of Disks and machines.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The mirrors that this agent has begun, and those that failed.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    /// Held while one begins, so that no more do than may.
    pub(crate) beginning: tokio::sync::Mutex<()>,
    begun: Mutex<BTreeMap<String, Attempts>>,
}

#[derive(Debug, Default)]
struct Attempts {
    failures: u32,
    failed: Option<(String, Instant)>,
}

impl Mirrors {
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
