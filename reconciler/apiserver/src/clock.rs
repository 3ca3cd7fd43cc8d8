//! Time and identity as the server sees them.
//!
//! Both are injected so that a test with a seed gets the same uids, name suffixes and timestamps every run.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Where the server takes the current time from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that moves with tokio's timer, so with paused time it stands still until the runtime advances it.
///
/// Assumptions: made inside the runtime whose time it follows.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeClock {
    base: Timestamp,
    start: tokio::time::Instant,
}

impl RuntimeClock {
    /// A clock that reads `base` now.
    pub fn starting_at(base: Timestamp) -> Self {
        Self { base, start: tokio::time::Instant::now() }
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        let elapsed =
            jiff::SignedDuration::try_from(self.start.elapsed()).unwrap_or(jiff::SignedDuration::MAX);
        self.base.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

/// RFC 3339 with whole seconds, the form of `metav1.Time`.
pub(crate) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Source of uids and generated name suffixes.
#[derive(Debug)]
pub(crate) struct Ids {
    random: Mutex<StdRng>,
}

/// Letters Kubernetes uses for generated names: no vowels and no look-alikes, so no words appear.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

impl Ids {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let random = seed.map_or_else(StdRng::from_os_rng, StdRng::seed_from_u64);
        Self { random: Mutex::new(random) }
    }

    pub(crate) fn uid(&self) -> String {
        let mut bytes = [0_u8; 16];
        self.random.lock().unwrap_or_else(PoisonError::into_inner).fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// Five letters for `generateName`.
    pub(crate) fn suffix(&self) -> String {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        (0..5).map(|_| char::from(SUFFIX_LETTERS[random.random_range(0..SUFFIX_LETTERS.len())])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_ids() {
        let (a, b) = (Ids::new(Some(7)), Ids::new(Some(7)));
        assert_eq!((a.uid(), a.suffix()), (b.uid(), b.suffix()));
        assert_ne!(a.uid(), Ids::new(Some(8)).uid());
    }

    #[test]
    fn times_have_whole_seconds() {
        let at: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        assert_eq!(seconds(at), "2026-01-02T03:04:05Z");
    }
}
