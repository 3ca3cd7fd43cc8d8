//! Bursts of the same work, in which the next piece waits for what else it can serve.
//!
//! A write of the firewall replaces all rules, and a pass over the networks looks at all of them: both take longer with each guest. Where a
//! hundred VMs start at once, each piece of work serves several.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two pieces of work in a burst.
const APART: Duration = Duration::from_millis(150);
/// A burst goes on while the piece of work before the last one is more recent than this: a VM that starts by itself waits for nothing.
const RECENT: Duration = Duration::from_millis(300);

/// The times of the last two pieces of work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Burst {
    last: Option<Instant>,
    before: Option<Instant>,
}

impl Burst {
    /// Records that a piece of work was done.
    pub(crate) fn record(&mut self) {
        *self = Self { last: Some(Instant::now()), before: self.last };
    }

    /// Returns how long the next piece of work waits. None: it does not.
    pub(crate) fn left_to_gather(&self) -> Option<Duration> {
        let is_burst = self.before.is_some_and(|at| at.elapsed() < RECENT);
        let left = APART.saturating_sub(self.last.filter(|_| is_burst)?.elapsed());
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_work_that_follows_two_other_pieces_waits_and_never_for_long() {
        let pass = |millis| tokio::time::advance(Duration::from_millis(millis));
        let mut burst = Burst::default();
        assert_eq!(burst.left_to_gather(), None);
        burst.record();
        assert_eq!(burst.left_to_gather(), None, "that of the first VM");
        pass(50).await;
        burst.record();
        assert_eq!(burst.left_to_gather(), Some(APART));
        pass(100).await;
        assert_eq!(burst.left_to_gather(), Some(Duration::from_millis(50)));
        pass(50).await;
        assert_eq!(burst.left_to_gather(), None);
        burst.record();
        pass(10).await;
        assert!(burst.left_to_gather().is_some(), "the burst goes on");
        pass(500).await;
        burst.record();
        assert_eq!(burst.left_to_gather(), None, "it has ended");
    }
}
