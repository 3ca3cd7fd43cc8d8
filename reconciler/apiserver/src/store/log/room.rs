//! Room inside the database's own files, so that a disk that somebody else has filled does not stop its writes.
//!
//! SQLite writes into pages that are free in the file, and into a write-ahead log that has been this long before,
//! without asking the file system for more. A file laid beside the database would not do: whoever filled the disk
//! would take the room too in the moment it is given up.

use nix::errno::Errno;
use rusqlite::{ErrorCode, ffi};

use super::Log;

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum NoRoom {
    Disk,
    Quota,
}

/// Free pages kept, in bytes: some hundred status writes, until compaction frees what they superseded.
const ROOM: i64 = 4 << 20;

impl Log {
    /// Makes the file larger until so much of it is free. Does nothing while enough is.
    ///
    /// *Errors:* there is no room on the disk either; nothing is lost by that.
    pub(in crate::store) fn keep_room(&self) -> rusqlite::Result<()> {
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

    /// Whether the last operation, which failed with this, found no room. To SQLite a used up quota is a write that failed
    /// as any other does.
    pub(in crate::store) fn found_no_room(&self, error: &rusqlite::Error) -> Option<NoRoom> {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Some(NoRoom::Disk),
            Some(ErrorCode::SystemIoFailure) if self.errno() == Errno::EDQUOT => Some(NoRoom::Quota),
            _ => None,
        }
    }

    /// What the operating system told SQLite when it last failed.
    #[allow(unsafe_code, reason = "there is no safe wrapper of this call")]
    fn errno(&self) -> Errno {
        // SAFETY: the handle is of a connection that is open, and nobody else uses it: `Log` is not `Sync`.
        Errno::from_raw(unsafe { ffi::sqlite3_system_errno(self.db.handle()) })
    }

    /// After a write found no room: has the write-ahead log begin anew, where it has been before.
    pub(in crate::store) fn begin_anew(&self) {
        // While somebody reads from it this does not work, and the write that is tried next fails as the last did.
        if let Err(error) = self.db.execute_batch("PRAGMA wal_checkpoint(RESTART)") {
            tracing::debug!(%error, "the write-ahead log goes on where it is");
        }
    }

    #[cfg(test)]
    pub(in crate::store) fn pages(&self) -> (u32, u32) {
        let number = |sql| self.db.query_row(sql, [], |row| row.get(0)).expect("a healthy database");
        (number("PRAGMA page_count"), number("PRAGMA freelist_count"))
    }
}
