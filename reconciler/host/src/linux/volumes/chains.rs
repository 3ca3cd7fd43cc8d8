//! The pools in which it is being decided and changed what is based on what. Each is locked alone: nothing in one pool is based on a file
//! of another, and a pool whose file system does not answer holds up no other.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::NewSnapshot;

#[derive(Clone, Debug, Default)]
pub(super) struct Chains(Arc<Locked>);

#[derive(Debug, Default)]
struct Locked {
    pools: Mutex<BTreeSet<String>>,
    freed: Condvar,
}

impl Locked {
    fn pools(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pools that are locked until this is dropped.
#[derive(Debug)]
pub(super) struct ChainsLock {
    locked: Arc<Locked>,
    pools: BTreeSet<String>,
}

/// The pools in which snapshots are taken.
pub(super) fn pools_of(new: &[NewSnapshot]) -> Vec<&str> {
    new.iter().map(|new| new.pool.as_str()).collect()
}

impl Chains {
    /// Waits until none of these pools is locked, and locks all of them at once. Blocking.
    pub(super) fn lock(&self, pools: &[&str]) -> ChainsLock {
        let pools: BTreeSet<String> = pools.iter().map(|pool| (*pool).to_owned()).collect();
        let mut locked = self.0.pools();
        while !locked.is_disjoint(&pools) {
            locked = self.0.freed.wait(locked).unwrap_or_else(PoisonError::into_inner);
        }
        locked.extend(pools.iter().cloned());
        drop(locked);
        ChainsLock { locked: Arc::clone(&self.0), pools }
    }
}

impl Drop for ChainsLock {
    fn drop(&mut self) {
        self.locked.pools().retain(|pool| !self.pools.contains(pool));
        self.locked.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pool_is_locked_once_and_without_any_other() {
        let chains = Chains::default();
        let fast = chains.lock(&["fast"]);
        drop(chains.lock(&["slow"]));
        let (done, both) = channel();
        let others = chains.clone();
        let waits = std::thread::spawn(move || {
            let locked = others.lock(&["slow", "fast"]);
            done.send(()).expect("it is awaited");
            drop(locked);
        });
        assert!(both.recv_timeout(Duration::from_millis(50)).is_err(), "one of them is locked");
        drop(chains.lock(&["slow"]));
        drop(fast);
        both.recv_timeout(Duration::from_secs(30)).expect("both are free");
        waits.join().expect("it ends");
    }
}
