//! When the firewall's rules were changed last. A write replaces all rules, and takes longer with each guest: in a burst of changes, one write
//! serves several.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two writes in a burst.
const APART: Duration = Duration::from_millis(150);
/// A burst goes on while the write before the last one is more recent than this. A VM that starts by itself, for which rules are written
/// twice at most, waits for nothing.
const BURST: Duration = Duration::from_millis(300);

/// The times of the last two writes of other rules.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RuleWrites {
    last: Option<Instant>,
    before: Option<Instant>,
}

impl RuleWrites {
    /// Records that other rules were written.
    pub(crate) fn record(&mut self) {
        *self = Self { last: Some(Instant::now()), before: self.last };
    }

    /// Returns how long the next write waits for further changes. None: it does not.
    pub(crate) fn left_to_gather(&self) -> Option<Duration> {
        let is_burst = self.before.is_some_and(|at| at.elapsed() < BURST);
        let left = APART.saturating_sub(self.last.filter(|_| is_burst)?.elapsed());
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_write_that_follows_two_others_waits_and_never_for_long() {
        let pass = |millis| tokio::time::advance(Duration::from_millis(millis));
        let mut writes = RuleWrites::default();
        assert_eq!(writes.left_to_gather(), None);
        writes.record();
        assert_eq!(writes.left_to_gather(), None, "that of the first VM");
        pass(50).await;
        writes.record();
        assert_eq!(writes.left_to_gather(), Some(APART));
        pass(100).await;
        assert_eq!(writes.left_to_gather(), Some(APART - Duration::from_millis(100)));
        pass(50).await;
        assert_eq!(writes.left_to_gather(), None);
        writes.record();
        pass(10).await;
        assert!(writes.left_to_gather().is_some(), "the burst goes on");
        pass(500).await;
        writes.record();
        assert_eq!(writes.left_to_gather(), None, "it has ended");
    }
}
