//! Work that is done for everybody at once: one pass serves all who asked before it began.
//!
//! ```text
//!  asked by   a      b c d
//!  passes     [--1--][--2--]      a is served by 1, and b, c, d by 2: 1 may have looked before they asked
//! ```

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// One pass at a time, and what the last that ended well came to.
#[derive(Debug)]
pub struct Passes<T> {
    begun: AtomicU64,
    last: Mutex<Option<Done<T>>>,
}

impl<T> Default for Passes<T> {
    fn default() -> Self {
        Self { begun: AtomicU64::new(0), last: Mutex::new(None) }
    }
}

#[derive(Debug)]
struct Done<T> {
    number: u64,
    came_to: T,
}

impl<T: Clone> Passes<T> {
    /// Makes a pass, or takes what another came to that began after this was asked for.
    ///
    /// *Errors:* those of the pass; who waits beside then makes one of his own.
    pub async fn share<E>(&self, pass: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some(done) = last.as_ref().filter(|done| done.number > begun_before) {
            return Ok(done.came_to.clone());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let came_to = pass.await?;
        *last = Some(Done { number, came_to: came_to.clone() });
        Ok(came_to)
    }

    /// Does something else while no pass is made.
    pub async fn beside<R>(&self, other: impl Future<Output = R>) -> R {
        let _last = self.last.lock().await;
        other.await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Its number, after others have had time to ask.
    async fn pass(made: &Cell<u32>) -> u32 {
        made.set(made.get() + 1);
        let number = made.get();
        tokio::task::yield_now().await;
        number
    }

    #[tokio::test]
    async fn all_who_asked_before_a_pass_began_are_served_by_it() {
        let (passes, made) = (Passes::<u32>::default(), Cell::new(0));
        let ask = || passes.share(async { Ok::<_, ()>(pass(&made).await) });
        // The first one's had begun when the others asked.
        assert_eq!(tokio::join!(ask(), ask(), ask(), ask()), (Ok(1), Ok(2), Ok(2), Ok(2)));
        assert_eq!(ask().await, Ok(3), "an old look is nobody's who asks later");
    }

    #[tokio::test]
    async fn a_pass_that_fails_serves_nobody() {
        let (passes, made) = (Passes::<()>::default(), Cell::new(0));
        let ask = || passes.share(async { Err(pass(&made).await) });
        assert_eq!(tokio::join!(ask(), ask(), ask()), (Err(1), Err(2), Err(3)));
    }

    #[tokio::test]
    async fn one_that_is_given_up_leaves_the_turn_to_the_next() {
        let (passes, made) = (Passes::<u32>::default(), Cell::new(0));
        let given_up = passes.share(async {
            std::future::pending::<()>().await;
            Ok::<_, ()>(0)
        });
        tokio::select! {
            biased;
            _ = given_up => unreachable!(),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(passes.share(async { Ok::<_, ()>(pass(&made).await) }).await, Ok(1));
    }
}
