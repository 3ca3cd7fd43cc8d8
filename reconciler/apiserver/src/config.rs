//! The configuration of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_store::{Storage, WriterMode};

use berth_engine::{Clock, SystemClock};

/// How much history is kept for resumed watches, consistent pagination and reads of past revisions.
#[derive(Debug, Clone, Copy)]
pub struct HistoryWindow {
    /// Superseded revisions younger than this are kept.
    pub keep_for: Duration,
    /// The maximum number of past revisions kept.
    pub keep_revisions: u64,
    /// The maximum number of bytes of superseded revisions: writes of large objects shorten the history.
    pub keep_bytes: u64,
    /// How often the window is applied. Bytes are counted with every write.
    pub every: Duration,
}

impl Default for HistoryWindow {
    fn default() -> Self {
        Self {
            keep_for: Duration::from_secs(24 * 3600),
            keep_revisions: 200_000,
            keep_bytes: 128 << 20,
            every: Duration::from_secs(300),
        }
    }
}

/// The schedule of backups that a running server makes of itself.
#[derive(Debug, Clone)]
pub struct BackupSchedule {
    /// A folder used for nothing else; it may be mounted from another machine.
    pub folder: PathBuf,
    /// The age of the newest backup at which the next one is made.
    pub every: Duration,
    /// The number of backups kept; older ones are removed. At least 1.
    pub keep: usize,
    /// Whether backups include the encryption key of Secrets and the other credentials.
    pub with_keys: bool,
}

/// The configuration of a [`Server`](crate::Server).
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where objects are kept.
    pub storage: Storage,
    /// Whether the SQLite writer runs on a thread of its own.
    pub writer: WriterMode,
    /// The clock for timestamps, expiry and history.
    pub clock: Arc<dyn Clock>,
    /// The seed of uids and generated names; `None` uses the operating system's randomness.
    pub seed: Option<u64>,
    /// The history to keep.
    pub history: HistoryWindow,
    /// How long an Event lives after its last write.
    pub event_ttl: Duration,
    /// The audit log: a file with one line per request that would change something.
    pub audit_log: Option<PathBuf>,
    /// The backup schedule of a server on disk.
    pub backups: Option<BackupSchedule>,
    /// More names and addresses the server certificate is valid for, besides loopback and the host name.
    pub subject_alt_names: Vec<String>,
}

impl ServerConfig {
    /// Returns the configuration of a server that keeps its state in `directory`.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self {
            storage: Storage::Directory(directory.into()),
            writer: WriterMode::Thread,
            clock: Arc::new(SystemClock),
            seed: None,
            history: HistoryWindow::default(),
            event_ttl: Duration::from_secs(3600),
            audit_log: None,
            backups: None,
            subject_alt_names: Vec::new(),
        }
    }

    /// Returns the configuration of a server in memory without a writer thread, for tests and simulations.
    pub fn in_memory() -> Self {
        Self { storage: Storage::Memory, writer: WriterMode::Inline, ..Self::in_directory("") }
    }
}
