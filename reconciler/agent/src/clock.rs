//! Wall-clock time, handed in so that a test with paused time sees it move with the runtime's.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// Where the agent takes the time of day from. Waits go by the runtime's own timer.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that moves with the runtime's timer: with paused time it stands still until the runtime moves it.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeClock {
    base: Timestamp,
    start: tokio::time::Instant,
}

impl RuntimeClock {
    /// A clock that reads `base` now. *Assumptions:* called inside the runtime whose time it follows.
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
