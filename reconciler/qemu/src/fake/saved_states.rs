//! Saved states of fake machines. Plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::io::DuplexStream;

/// The contents of the files. Shared by all machines of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct SavedStates(Arc<Mutex<BTreeMap<PathBuf, SavedState>>>);

impl SavedStates {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, SavedState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the content of a file a second name.
    pub(super) fn link(&self, from: &Path, to: &Path) {
        let mut states = self.lock();
        if let Some(state) = states.get(from).cloned() {
            states.insert(to.to_owned(), state);
        }
    }
}

/// The state of a guest, and the hardware without which QEMU does not load it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedState {
    pub(super) hardware: Hardware,
    pub(super) boot: Option<u64>,
    /// The network cards without a link.
    pub(super) down: BTreeSet<String>,
}

/// CPUs, memory, device id → SCSI target of every disk, if it has one, and device id → bus of every network card.
pub(super) type Hardware = (BTreeSet<u32>, u64, BTreeMap<String, Option<u8>>, BTreeMap<String, String>);

/// The saving or loading of a machine.
#[derive(Debug, Default)]
pub(super) struct Migration {
    /// The file that QEMU was given.
    pub(super) lent: Option<PathBuf>,
    /// The file in use.
    pub(super) file: PathBuf,
    pub(super) status: Option<&'static str>,
    pub(super) error: Option<String>,
    /// The end of the connection to another QEMU that it was given.
    pub(super) channel: Option<DuplexStream>,
    /// The bytes that came over such a connection, once it has ended.
    pub(super) received: Option<Received>,
}

/// The bytes that another QEMU has sent. None: it goes on.
pub(super) type Received = Arc<Mutex<Option<Vec<u8>>>>;
