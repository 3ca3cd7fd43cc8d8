//! The copies of firmware state in shared pools that this agent has written.

use std::collections::BTreeMap;

use tokio::sync::Mutex;

/// The digests of the last copies, by instance. Locked while one is written, so that none replaces a newer one.
#[derive(Debug, Default)]
pub(crate) struct CopiedFirmware(pub(crate) Mutex<BTreeMap<String, Vec<u8>>>);
