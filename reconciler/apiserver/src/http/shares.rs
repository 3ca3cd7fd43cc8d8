//! Shares of limited resources: no user takes all, and no tenant, which may have any number of
//! ServiceAccounts.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use http::Request;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::identity::Identity;
use crate::service_account;

/// The number of shares kept; beyond it, unused shares are removed.
const MAX_KNOWN: usize = 1_000;

/// The owner of the shares that a request takes from.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// Names and sizes, in quarters of the whole: the share of the user, and that of a ServiceAccount's
    /// namespace.
    shares: Vec<(String, usize)>,
    /// Whether the request is by an administrator or by the process itself.
    pub(super) is_privileged: bool,
}

impl Caller {
    /// Requests of the process itself have a share of their own: the administrator, whose name they carry,
    /// may send many requests from outside.
    pub(super) fn of(request: &Request<Body>, who: &Identity) -> Self {
        let outside = request.extensions().get::<SocketAddr>().is_some();
        let mut caller = Self::named(if outside { &who.user } else { "" });
        caller.is_privileged = who.is_master();
        caller
    }

    pub(super) fn named(user: &str) -> Self {
        let shares = match service_account::of_user(user) {
            Some((namespace, _)) => {
                let [_, tenant] = service_account::groups(namespace);
                vec![(user.to_owned(), 2), (tenant, 3)]
            }
            None => vec![(user.to_owned(), 3)],
        };
        Self { shares, is_privileged: false }
    }
}

/// The shares of one limited resource.
#[derive(Debug)]
pub(super) struct Shares {
    all: usize,
    known: Mutex<HashMap<String, Share>>,
}

#[derive(Debug)]
struct Share {
    size: usize,
    left: Arc<Semaphore>,
}

impl Share {
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.left) == 1 && self.left.available_permits() == self.size
    }
}

/// One unit of each share of a request.
pub(super) type Permits = Vec<OwnedSemaphorePermit>;

impl Shares {
    pub(super) fn of(all: usize) -> Self {
        Self { all, known: Mutex::default() }
    }

    /// # Errors
    /// No unit is left.
    pub(super) fn try_take(&self, caller: &Caller) -> Result<Permits, TryAcquireError> {
        self.left(caller).into_iter().map(Semaphore::try_acquire_owned).collect()
    }

    /// Takes so many units of each share, of a smaller share all.
    ///
    /// # Errors
    /// They are not left.
    pub(super) fn try_take_many(&self, caller: &Caller, units: u32) -> Result<Permits, TryAcquireError> {
        let take = |(left, (_, quarters)): (Arc<Semaphore>, &(String, usize))| {
            let size = u32::try_from(self.size_of(*quarters)).unwrap_or(u32::MAX);
            left.try_acquire_many_owned(units.min(size))
        };
        self.left(caller).into_iter().zip(&caller.shares).map(take).collect()
    }

    fn size_of(&self, quarters: usize) -> usize {
        (self.all * quarters / 4).max(1)
    }

    /// Waits until a unit is free.
    pub(super) async fn take(&self, caller: &Caller) -> Result<Permits, AcquireError> {
        let mut taken = Permits::new();
        for left in self.left(caller) {
            taken.push(left.acquire_owned().await?);
        }
        Ok(taken)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Share>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self, caller: &Caller) -> Vec<Arc<Semaphore>> {
        let mut known = self.known();
        if known.len() >= MAX_KNOWN {
            known.retain(|_, share| !share.is_unused());
        }
        let mut share = |(name, quarters): &(String, usize)| {
            let size = self.size_of(*quarters);
            let share = known.entry(name.clone());
            Arc::clone(&share.or_insert_with(|| Share { size, left: Arc::new(Semaphore::new(size)) }).left)
        };
        caller.shares.iter().map(&mut share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_requests_are_forgotten_and_others_are_not() {
        let shares = Shares::of(4);
        let held = shares.try_take(&Caller::named("busy"));
        for number in 0..MAX_KNOWN * 3 {
            drop(shares.try_take(&Caller::named(&number.to_string())));
        }
        assert!(shares.known().len() <= MAX_KNOWN && shares.known().contains_key("busy"));
        drop(held);
    }

    #[test]
    fn a_tenant_with_many_accounts_takes_no_more_than_a_tenant_may() {
        let shares = Shares::of(8);
        let account =
            |namespace: &str, number| Caller::named(&format!("system:serviceaccount:{namespace}:a{number}"));
        let held: Vec<_> = (0..8).filter_map(|number| shares.try_take(&account("a", number)).ok()).collect();
        assert_eq!(held.len(), 6);
        assert!(shares.try_take(&account("b", 0)).is_ok());
        drop(held);
        let held: Vec<_> = (0..8).filter_map(|_| shares.try_take(&account("a", 0)).ok()).collect();
        assert_eq!(held.len(), 4, "one account takes less");
    }
}
