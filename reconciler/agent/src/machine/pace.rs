//! A limit on how often something is done that a guest, or a QEMU that it has taken over, can cause.

use std::time::Duration;

use tokio::time::Instant;

/// Lets some be done at once, and then one after each interval.
#[derive(Debug)]
pub(super) struct Pace {
    every: Duration,
    /// The time ahead of the interval that those done at once may be.
    ahead: Duration,
    /// When as many may be done at once as at first.
    rested_at: Option<Instant>,
}

impl Pace {
    pub(super) fn new(every: Duration, at_once: u32) -> Self {
        Self { every, ahead: every * at_once.saturating_sub(1), rested_at: None }
    }

    /// Returns how long the next one has to wait. If that is no time, it counts as done now.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        let rested_at = self.rested_at.map_or(now, |at| at.max(now));
        let wait = rested_at.duration_since(now).saturating_sub(self.ahead);
        if wait.is_zero() {
            self.rested_at = Some(rested_at + self.every);
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_done_at_once_and_then_one_after_each_interval() {
        let second = Duration::from_secs(1);
        let (mut pace, start) = (Pace::new(second, 3), Instant::now());
        let mut wait = |after: f64| pace.wait(start + second.mul_f64(after)).as_secs_f64();
        assert_eq!([wait(0.0), wait(0.0), wait(0.0)], [0.0; 3]);
        assert_eq!((wait(0.0), wait(0.25)), (1.0, 0.75));
        assert_eq!((wait(1.0), wait(1.0)), (0.0, 1.0));
        assert_eq!([wait(9.0), wait(9.0), wait(9.0)], [0.0; 3], "it has rested");
        assert_eq!(wait(9.0), 1.0);
    }
}
