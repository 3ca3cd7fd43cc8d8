//! What a server is opened with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};

/// Where objects are kept.
#[derive(Debug, Clone)]
pub enum Storage {
    /// In this directory (made 0700 if missing), on disk, surviving restarts.
    Directory(PathBuf),
    /// In memory, gone with the server; no thread is started.
    Memory,
}

/// Who runs the SQLite writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterMode {
    /// A thread of its own that commits what has queued up in one transaction.
    Thread,
    /// The task that writes. For runtimes with paused time, which a thread would make jump.
    Inline,
}

/// How much history is kept for watches that resume, for consistent pages and for looking back.
#[derive(Debug, Clone, Copy)]
pub struct HistoryWindow {
    /// Superseded revisions younger than this stay.
    pub keep_for: Duration,
    /// At most this many revisions are looked back on.
    pub keep_revisions: u64,
    /// How often the window is applied.
    pub every: Duration,
}

impl Default for HistoryWindow {
    fn default() -> Self {
        Self {
            keep_for: Duration::from_secs(24 * 3600),
            keep_revisions: 200_000,
            every: Duration::from_secs(300),
        }
    }
}

/// Backups a running server makes of itself.
#[derive(Debug, Clone)]
pub struct BackupSchedule {
    /// Where they go: a folder of their own, which may be another machine's.
    pub folder: PathBuf,
    /// How old the newest may become before the next is made.
    pub every: Duration,
    /// How many stay; older ones are removed. At least 1.
    pub keep: usize,
    /// Whether the key of Secrets and the other credentials go with them.
    pub with_keys: bool,
}

/// Everything a [`Server`](crate::Server) is opened with.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where objects are kept.
    pub storage: Storage,
    /// Who runs the SQLite writer.
    pub writer: WriterMode,
    /// The clock for timestamps, time to live and history.
    pub clock: Arc<dyn Clock>,
    /// Seed of uids and generated names; `None` takes the operating system's randomness.
    pub seed: Option<u64>,
    /// What history is kept.
    pub history: HistoryWindow,
    /// How long an Event lives after its last write.
    pub event_ttl: Duration,
    /// A line for every request that would change something goes into this file.
    pub audit_log: Option<PathBuf>,
    /// Backups of a server on disk.
    pub backups: Option<BackupSchedule>,
    /// More names and addresses the server certificate is valid for, besides loopback and the host name.
    pub subject_alt_names: Vec<String>,
}

impl ServerConfig {
    /// A server that keeps its state in `directory`.
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

    /// A server in memory with no thread of its own, for tests and simulations.
    pub fn in_memory() -> Self {
        Self { storage: Storage::Memory, writer: WriterMode::Inline, ..Self::in_directory("") }
    }
}
