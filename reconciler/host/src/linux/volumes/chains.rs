//! The pools in which it is being decided and changed what is based on what. Each is locked alone: nothing in one pool is based on a file
//! of another, and a pool whose file system does not answer holds up no other.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Result;
use crate::{NewSnapshot, SystemError};

/// How long work waits for other work in a pool. A disk's move has two pools, and holds up both if one stops answering meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

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
    ///
    /// *Errors*: if that takes too long.
    pub(super) fn lock(&self, pools: &[&str]) -> Result<ChainsLock> {
        let pools: BTreeSet<String> = pools.iter().map(|pool| (*pool).to_owned()).collect();
        let waited =
            self.0.freed.wait_timeout_while(self.0.pools(), PATIENCE, |locked| !locked.is_disjoint(&pools));
        let (mut locked, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let path = pools.into_iter().collect::<Vec<_>>().join(", ").into();
            let source = io::Error::new(io::ErrorKind::TimedOut, "other work in the pool has not ended");
            return Err(SystemError::File { attempt: "work in", path, source });
        }
        locked.extend(pools.iter().cloned());
        drop(locked);
        Ok(ChainsLock { locked: Arc::clone(&self.0), pools })
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
        let fast = chains.lock(&["fast"]).expect("locked");
        drop(chains.lock(&["slow"]).expect("locked"));
        let (done, both) = channel();
        let others = chains.clone();
        let waits = std::thread::spawn(move || {
            let locked = others.lock(&["slow", "fast"]).expect("locked");
            done.send(()).expect("it is awaited");
            drop(locked);
        });
        assert!(both.recv_timeout(Duration::from_millis(50)).is_err(), "one of them is locked");
        drop(chains.lock(&["slow"]).expect("locked"));
        drop(fast);
        both.recv_timeout(Duration::from_secs(30)).expect("both are free");
        waits.join().expect("it ends");
    }
}
