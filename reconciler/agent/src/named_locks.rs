//! Locks by name, such as that of an instance or a volume: work on one waits for no work on another, however long that takes. A name that
//! nothing has locked or waits for takes no room.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// A lock for each name.
#[derive(Debug, Default)]
pub(crate) struct NamedLocks(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl NamedLocks {
    /// Waits until nothing else has locked this name.
    pub(crate) async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(name.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// Waits until nothing else has locked any of these names. In their order: two callers never wait for each other.
    pub(crate) async fn lock_all(&self, names: BTreeSet<&str>) -> Vec<OwnedMutexGuard<()>> {
        let mut locked = Vec::with_capacity(names.len());
        for name in names {
            locked.push(self.lock(name).await);
        }
        locked
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const MOMENT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn work_on_one_name_waits_for_no_work_on_another() {
        let locks = NamedLocks::default();
        let held = locks.lock_all(["v-1", "v-2"].into()).await;
        timeout(MOMENT, locks.lock_all(["v-3", "v-4"].into())).await.expect("they are others");
        assert!(timeout(MOMENT, locks.lock_all(["v-2", "v-3"].into())).await.is_err(), "one is locked");
        drop(held);
        timeout(MOMENT, locks.lock_all(["v-2", "v-3"].into())).await.expect("they are free");
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_nothing_has_locked_take_no_room() {
        let locks = NamedLocks::default();
        for number in 0..100 {
            drop(locks.lock(&format!("i-{number}")).await);
        }
        let held = locks.lock("i-7").await;
        let known: Vec<String> = locks.0.lock().expect("not poisoned").keys().cloned().collect();
        assert_eq!(known, ["i-7"]);
        drop(held);
    }
}
