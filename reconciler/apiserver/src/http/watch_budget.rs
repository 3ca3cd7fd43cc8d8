//! The capacity for open watches: no user and no tenant takes all.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shares::{Caller, Permits, Shares};

#[derive(Debug)]
pub(super) struct WatchBudget {
    all: Arc<Semaphore>,
    shares: Shares,
}

/// A permit held while a watch is open.
#[derive(Debug)]
pub(super) struct WatchPermit {
    _own: Permits,
    _all: OwnedSemaphorePermit,
}

impl WatchBudget {
    pub(super) fn of(size: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(size)), shares: Shares::of(size) }
    }

    /// Returns `None` if too many watches are open: in total, or of this user or tenant.
    pub(super) fn try_take(&self, caller: &Caller) -> Option<WatchPermit> {
        let _own = self.shares.try_take(caller).ok()?;
        let _all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(WatchPermit { _own, _all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_watches_everything_leaves_watches_for_others() {
        let budget = WatchBudget::of(8);
        let [greedy, modest] = ["greedy", "modest"].map(Caller::named);
        let held: Vec<_> = (0..8).filter_map(|_| budget.try_take(&greedy)).collect();
        assert_eq!(held.len(), 6);
        let others: Vec<_> = (0..8).filter_map(|_| budget.try_take(&modest)).collect();
        assert_eq!(others.len(), 2, "there is no more");
        drop(held);
        assert!(budget.try_take(&greedy).is_some());
    }
}
