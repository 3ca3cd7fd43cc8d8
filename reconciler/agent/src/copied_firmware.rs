//! The copies of firmware state in shared pools that this agent has written.

use std::collections::BTreeMap;

use tokio::sync::Mutex;

/// The last copies, by instance. Locked while one is written, so that none replaces a newer one.
#[derive(Debug, Default)]
pub(crate) struct CopiedFirmware(pub(crate) Mutex<BTreeMap<String, Copied>>);

/// A copy that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Of the pool, the stay of the VM and the archive.
    pub(crate) digest: Vec<u8>,
    pub(crate) is_final: bool,
}
