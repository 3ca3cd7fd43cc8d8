//! Errors of opening or reading a database.

use std::path::PathBuf;

/// Why a database could not be opened. Guarantees: the file has not been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory could not be created or the lock file could not be opened.
    #[error("preparing {path}")]
    Directory {
        /// The path that was being prepared.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// Another process has the database open.
    #[error(
        "{path} is in use by another process: only one server may have it open, stop the other one first"
    )]
    Locked {
        /// The database.
        path: PathBuf,
    },
    /// The database was written by a version that uses another format.
    #[error("{path} has format {found}, this version reads {supported}: use the version that wrote it")]
    Format {
        /// The database.
        path: PathBuf,
        /// The format of the database.
        found: i64,
        /// The format this version reads.
        supported: i64,
    },
    /// The file is another kind of SQLite database.
    #[error("{path} is not a database of this server")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The content is damaged.
    #[error("{path} is damaged ({detail}); nothing was changed, restore it from a backup")]
    Damaged {
        /// The database.
        path: PathBuf,
        /// The defect.
        detail: String,
    },
    /// The key of the encrypted rows is missing, wrong or unreadable.
    #[error("the key file {path}: {detail}; the database was not changed")]
    Key {
        /// The key file.
        path: PathBuf,
        /// The problem, and its remedy.
        detail: String,
    },
    /// A restore was interrupted.
    #[error("a restore into {path} was interrupted: run the same `berth restore` again, which completes it")]
    HalfRestored {
        /// The state directory.
        path: PathBuf,
    },
    /// Another error of SQLite.
    #[error("opening {path}")]
    Database {
        /// The database.
        path: PathBuf,
        /// The error.
        source: rusqlite::Error,
    },
}

/// Why a read of a past revision failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The revision is no longer in the history.
    #[error("revision {requested} has been compacted")]
    Compacted { requested: u64 },
    /// The revision is in the future.
    #[error("revision {requested} is in the future, the current one is {current}")]
    Future { requested: u64, current: u64 },
    #[error("reading the database: {0}")]
    Database(String),
}
