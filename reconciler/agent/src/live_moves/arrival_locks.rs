//! One session at a time for each instance that comes: a question about it is answered after the session before has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// A lock for each instance.
#[derive(Debug, Default)]
pub(crate) struct ArrivalLocks(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl ArrivalLocks {
    /// Waits until no other session is about this instance.
    pub(crate) async fn lock(&self, instance: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that no session has or waits for.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(instance.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }
}
