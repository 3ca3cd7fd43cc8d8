//! The queue of requests: a limited number is processed at once, of which no user takes all.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::shares::{Caller, Permits, Shares};

/// The queue in front of the verbs. Each user and each tenant has a share of its capacity.
#[derive(Debug)]
pub(super) struct FairQueue {
    sizes: [usize; 2],
    all: Semaphore,
    waiting: Semaphore,
    shares: Shares,
    waiting_shares: Shares,
}

/// A permit to be processed, held until the request is answered.
#[derive(Debug)]
pub(super) struct Admitted<'a> {
    _all: SemaphorePermit<'a>,
    _own: Permits,
}

/// Too many requests wait: in total, or of this user.
#[derive(Debug)]
pub(super) struct QueueFull;

impl FairQueue {
    /// A queue that lets `at_once` requests be processed, and as many as `waiting` wait.
    pub(super) fn new(at_once: usize, waiting: usize) -> Self {
        Self {
            sizes: [at_once, waiting],
            all: Semaphore::new(at_once),
            waiting: Semaphore::new(waiting),
            shares: Shares::of(at_once),
            waiting_shares: Shares::of(waiting),
        }
    }

    /// Waits until the request may be processed.
    ///
    /// # Errors
    /// Returns [`QueueFull`] immediately.
    pub(super) async fn take(&self, caller: &Caller) -> Result<Admitted<'_>, QueueFull> {
        if let (Ok(_own), Ok(_all)) = (self.shares.try_take(caller), self.all.try_acquire()) {
            return Ok(Admitted { _all, _own });
        }
        let _waiting = (
            self.waiting_shares.try_take(caller).map_err(|_| QueueFull)?,
            self.waiting.try_acquire().map_err(|_| QueueFull)?,
        );
        // The user's own share first: requests beyond it must not block others in the common queue.
        let _own = self.shares.take(caller).await.map_err(|_| QueueFull)?;
        let _all = self.all.acquire().await.map_err(|_| QueueFull)?;
        Ok(Admitted { _all, _own })
    }

    /// Returns the number of requests being processed, and of those that wait.
    pub(super) fn load(&self) -> [usize; 2] {
        [self.sizes[0] - self.all.available_permits(), self.sizes[1] - self.waiting.available_permits()]
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::join_all};

    use super::*;

    #[tokio::test]
    async fn a_user_who_requests_everything_gets_a_share_and_the_rest_is_for_others() {
        let queue = FairQueue::new(400, 4_000);
        let [a, b, c] = ["a", "b", "c"].map(Caller::named);
        let held = join_all((0..300).map(|_| queue.take(&a))).await;
        assert!(held.iter().all(Result::is_ok));
        let mut waiting: Vec<_> = (0..3_000).map(|_| Box::pin(queue.take(&a))).collect();
        assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()), "beyond the share one waits");
        assert!(matches!(queue.take(&a).now_or_never(), Some(Err(QueueFull))), "and not without end");
        assert_eq!(queue.load(), [300, 3_000]);
        let others = join_all((0..100).map(|_| queue.take(&b))).await;
        assert!(others.iter().all(Result::is_ok), "others do not wait for them");
        let mut next = Box::pin(queue.take(&c));
        assert!(next.as_mut().now_or_never().is_none(), "there is no more capacity");
        drop(others);
        assert!(next.await.is_ok(), "a request beyond a share is not before others");
        drop(held);
        assert!(join_all(waiting.drain(..300)).await.iter().all(Result::is_ok));
    }
}
