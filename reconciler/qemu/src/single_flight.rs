//! Coalesces concurrent requests for the same work: one pass serves all requests made before it began.
//!
//! ```text
//!  requests   a      b c d
//!  passes     [--1--][--2--]      1 serves a, and 2 serves b, c and d: 1 may have read the state before their requests
//! ```

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// Runs one pass at a time, and keeps the result of the last successful one.
#[derive(Debug)]
pub struct SingleFlight<T> {
    begun: AtomicU64,
    last: Mutex<Option<Done<T>>>,
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self { begun: AtomicU64::new(0), last: Mutex::new(None) }
    }
}

#[derive(Debug)]
struct Done<T> {
    number: u64,
    came_to: T,
}

impl<T: Clone> SingleFlight<T> {
    /// Runs a pass, or returns the result of another caller's pass that began after this request.
    ///
    /// *Errors:* those of the pass; each waiting caller then runs a pass of its own.
    pub async fn share<E>(&self, pass: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.share_after(std::future::ready(()), pass).await
    }

    /// Does the same, with a wait before a pass of its own: the pass also serves the requests made meanwhile.
    ///
    /// *Errors:* as [`Self::share`].
    pub async fn share_after<E>(
        &self,
        wait: impl Future<Output = ()>,
        pass: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some(done) = last.as_ref().filter(|done| done.number > begun_before) {
            return Ok(done.came_to.clone());
        }
        wait.await;
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let came_to = pass.await?;
        *last = Some(Done { number, came_to: came_to.clone() });
        Ok(came_to)
    }

    /// Runs a future while no pass is running.
    pub async fn beside<R>(&self, other: impl Future<Output = R>) -> R {
        let _last = self.last.lock().await;
        other.await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns the number of the pass, after yielding so that others can make requests.
    async fn pass(made: &Cell<u32>) -> u32 {
        made.set(made.get() + 1);
        let number = made.get();
        tokio::task::yield_now().await;
        number
    }

    #[tokio::test]
    async fn all_who_asked_before_a_pass_began_are_served_by_it() {
        let (flight, made) = (SingleFlight::<u32>::default(), Cell::new(0));
        let ask = || flight.share(async { Ok::<_, ()>(pass(&made).await) });
        // The first caller's pass had begun before the other requests.
        assert_eq!(tokio::join!(ask(), ask(), ask(), ask()), (Ok(1), Ok(2), Ok(2), Ok(2)));
        assert_eq!(ask().await, Ok(3), "an old look is nobody's who asks later");
    }

    #[tokio::test]
    async fn requests_made_during_the_wait_before_a_pass_are_served_by_it() {
        let (flight, made) = (SingleFlight::<u32>::default(), Cell::new(0));
        let gather =
            || flight.share_after(tokio::task::yield_now(), async { Ok::<_, ()>(pass(&made).await) });
        assert_eq!(tokio::join!(gather(), gather(), gather()), (Ok(1), Ok(1), Ok(1)));
        assert_eq!(gather().await, Ok(2));
    }

    #[tokio::test]
    async fn a_pass_that_fails_serves_nobody() {
        let (flight, made) = (SingleFlight::<()>::default(), Cell::new(0));
        let ask = || flight.share(async { Err(pass(&made).await) });
        assert_eq!(tokio::join!(ask(), ask(), ask()), (Err(1), Err(2), Err(3)));
    }

    #[tokio::test]
    async fn one_that_is_given_up_leaves_the_turn_to_the_next() {
        let (flight, made) = (SingleFlight::<u32>::default(), Cell::new(0));
        let given_up = flight.share(async {
            std::future::pending::<()>().await;
            Ok::<_, ()>(0)
        });
        tokio::select! {
            biased;
            _ = given_up => unreachable!(),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(flight.share(async { Ok::<_, ()>(pass(&made).await) }).await, Ok(1));
    }
}
