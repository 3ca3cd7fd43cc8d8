//! Who is answered now and who waits: so many at once, of which no user takes all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Requests answered at once; further ones wait. Watches do not count, nor do requests whose body has not come yet.
const MAX_IN_FLIGHT: usize = 400;
/// Requests that may wait for their turn; further ones are told to come again.
const MAX_WAITING: usize = 4_000;
/// Users that are remembered, before those who ask nothing now are forgotten.
const MAX_USERS: usize = 1_000;

/// What one user may have of either: the others always find some left.
const fn share(all: usize) -> usize {
    all / 4 * 3
}

/// Turns to be answered.
#[derive(Debug)]
pub(super) struct Turns {
    all: Semaphore,
    waiting: Semaphore,
    users: Mutex<HashMap<String, Arc<User>>>,
}

#[derive(Debug)]
struct User {
    turns: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Default for User {
    fn default() -> Self {
        let turns = Arc::new(Semaphore::new(share(MAX_IN_FLIGHT)));
        Self { turns, waiting: Semaphore::new(share(MAX_WAITING)) }
    }
}

impl User {
    fn is_quiet(user: &Arc<Self>) -> bool {
        Arc::strong_count(user) == 1 && user.turns.available_permits() == share(MAX_IN_FLIGHT)
    }
}

/// A request's turn, for as long as it is held.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    _all: SemaphorePermit<'a>,
    _own: OwnedSemaphorePermit,
}

/// Too many wait: all together, or of this user.
#[derive(Debug)]
pub(super) struct Busy;

impl Default for Turns {
    fn default() -> Self {
        let users = Mutex::default();
        Self { all: Semaphore::new(MAX_IN_FLIGHT), waiting: Semaphore::new(MAX_WAITING), users }
    }
}

impl Turns {
    /// Waits until the request is one of those that are answered.
    ///
    /// # Errors
    /// [`Busy`], at once.
    pub(super) async fn take(&self, user: &str) -> Result<Turn<'_>, Busy> {
        let user = self.user(user);
        let own = Arc::clone(&user.turns).try_acquire_owned();
        if let (Ok(_own), Ok(_all)) = (own, self.all.try_acquire()) {
            return Ok(Turn { _all, _own });
        }
        let _waiting =
            (user.waiting.try_acquire().map_err(|_| Busy)?, self.waiting.try_acquire().map_err(|_| Busy)?);
        // Their own first: what is beyond a user's share must not stand before others in the common queue.
        let _own = Arc::clone(&user.turns).acquire_owned().await.map_err(|_| Busy)?;
        let _all = self.all.acquire().await.map_err(|_| Busy)?;
        Ok(Turn { _all, _own })
    }

    fn users(&self) -> MutexGuard<'_, HashMap<String, Arc<User>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn user(&self, name: &str) -> Arc<User> {
        let mut users = self.users();
        if let Some(known) = users.get(name) {
            return Arc::clone(known);
        }
        if users.len() >= MAX_USERS {
            users.retain(|_, user| !User::is_quiet(user));
        }
        Arc::clone(users.entry(name.to_owned()).or_default())
    }

    /// Requests that are answered, and that wait for it.
    pub(super) fn load(&self) -> [usize; 2] {
        [MAX_IN_FLIGHT - self.all.available_permits(), MAX_WAITING - self.waiting.available_permits()]
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::join_all};

    use super::*;

    #[tokio::test]
    async fn who_asks_for_everything_gets_a_share_and_the_rest_is_for_others() {
        let turns = Turns::default();
        let held = join_all((0..300).map(|_| turns.take("a"))).await;
        assert!(held.iter().all(Result::is_ok));
        let mut waiting: Vec<_> = (0..3_000).map(|_| Box::pin(turns.take("a"))).collect();
        assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()), "beyond the share one waits");
        assert!(matches!(turns.take("a").now_or_never(), Some(Err(Busy))), "and not without end");
        assert_eq!(turns.load(), [300, 3_000]);
        let others = join_all((0..100).map(|_| turns.take("b"))).await;
        assert!(others.iter().all(Result::is_ok), "others do not wait for them");
        let mut next = Box::pin(turns.take("c"));
        assert!(next.as_mut().now_or_never().is_none(), "there are no more turns");
        drop(others);
        assert!(next.await.is_ok(), "who waits beyond a share is not before others");
        drop(held);
        assert!(join_all(waiting.drain(..300)).await.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn users_who_ask_nothing_are_forgotten_and_the_others_are_not() {
        let turns = Turns::default();
        let held = turns.take("busy").await;
        for number in 0..MAX_USERS * 3 {
            drop(turns.take(&number.to_string()).await);
        }
        assert!(turns.users().len() <= MAX_USERS && turns.users().contains_key("busy"));
        drop(held);
        assert_eq!(turns.load(), [0, 0]);
    }
}
