//! One writer at a time for each disk, in this process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use crate::ids::DiskId;

type Locks = HashMap<(Uuid, DiskId), Arc<tokio::sync::Mutex<()>>>;

static LOCKS: LazyLock<Mutex<Locks>> = LazyLock::new(Mutex::default);

/// Waits until no other writes or deletes backups of this disk. A backup relies on blocks that no manifest names yet, and
/// a delete removes those.
pub(super) async fn lock(repository: Uuid, disk: &DiskId) -> OwnedMutexGuard<()> {
    let lock = {
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        // Only those in use are kept.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry((repository, disk.clone())).or_default())
    };
    lock.lock_owned().await
}
