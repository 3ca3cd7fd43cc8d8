//! Wall-clock time. Injected, so that in a test with paused time it advances with the runtime.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// The source of wall-clock time. Timeouts and sleeps use the runtime's timer instead.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The operating system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock driven by the runtime's timer: with paused time it stands still until the runtime advances.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeClock {
    base: Timestamp,
    start: tokio::time::Instant,
}

impl RuntimeClock {
    /// Returns a clock that reads `base` now. *Assumptions:* called inside the runtime that drives it.
    pub fn starting_at(base: Timestamp) -> Self {
        Self { base, start: tokio::time::Instant::now() }
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::ZERO);
        self.base.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}
