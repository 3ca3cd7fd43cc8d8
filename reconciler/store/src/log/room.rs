//! Space reserved inside the database's own files, so that the database stays writable when other processes
//! fill the disk.
//!
//! SQLite writes into free pages of the file, and into a write-ahead log that had this length before, without
//! allocating from the file system. A reserve file beside the database would not work: the process that
//! filled the disk would also take the reserve as soon as it is released.

use nix::errno::Errno;
use rusqlite::{ErrorCode, ffi};

use super::Log;

/// The reason for the lack of space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    Disk,
    Quota,
}

/// The free space kept, in bytes: enough for some hundred status writes, until compaction frees the
/// superseded ones.
const ROOM: i64 = 4 << 20;

impl Log {
    /// Enlarges the file until it has enough free space. Does nothing if it has.
    ///
    /// *Errors:* the disk has no space for it either, which is harmless.
    pub(crate) fn keep_room(&self) -> rusqlite::Result<()> {
        if self.db.path().is_none_or(str::is_empty) {
            return Ok(());
        }
        let number = |sql| self.db.query_row(sql, [], |row| row.get::<_, i64>(0));
        let free = number("PRAGMA freelist_count")? * number("PRAGMA page_size")?;
        if free >= ROOM {
            return Ok(());
        }
        let made = self.db.execute_batch(&format!(
            "DROP TABLE IF EXISTS room; BEGIN IMMEDIATE; CREATE TABLE room (filling BLOB); \
             INSERT INTO room VALUES (zeroblob({})); COMMIT; PRAGMA wal_checkpoint(PASSIVE);",
            ROOM - free
        ));
        if made.is_err() {
            self.roll_back();
        }
        self.db.execute_batch("DROP TABLE IF EXISTS room")?;
        made
    }

    /// Returns whether the last operation, which failed with this error, lacked space. SQLite reports an
    /// exhausted quota as an ordinary write error.
    pub(crate) fn found_no_room(&self, error: &rusqlite::Error) -> Option<NoRoom> {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Some(NoRoom::Disk),
            Some(ErrorCode::SystemIoFailure) if self.errno() == Errno::EDQUOT => Some(NoRoom::Quota),
            _ => None,
        }
    }

    /// Returns the operating system's error of SQLite's last failure.
    #[allow(unsafe_code, reason = "there is no safe wrapper of this call")]
    fn errno(&self) -> Errno {
        // SAFETY: the handle is of an open connection, which no other thread uses: `Log` is not `Sync`.
        Errno::from_raw(unsafe { ffi::sqlite3_system_errno(self.db.handle()) })
    }

    /// Restarts the write-ahead log from its beginning, in existing space, after a write that lacked space.
    pub(crate) fn begin_anew(&self) {
        // This fails while a reader uses the log; the next write then fails as the last one did.
        if let Err(error) = self.db.execute_batch("PRAGMA wal_checkpoint(RESTART)") {
            tracing::debug!(%error, "the write-ahead log goes on where it is");
        }
    }

    #[cfg(test)]
    pub(crate) fn pages(&self) -> (u32, u32) {
        let number = |sql| self.db.query_row(sql, [], |row| row.get(0)).expect("a healthy database");
        (number("PRAGMA page_count"), number("PRAGMA freelist_count"))
    }
}
