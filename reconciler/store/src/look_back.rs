//! Reads of the log: the revisions of one object, and the revision at a time.

use std::ops::ControlFlow;
use std::sync::Arc;

use rusqlite::params;

use crate::entry::Entry;
use crate::key::Key;
use crate::log::Log;
use crate::tables;

/// One kept revision of an object, as it was written.
#[derive(Debug)]
pub struct Revision {
    pub entry: Entry,
    /// The preceding revision; 0 for the first of an object.
    pub previous: u64,
    pub deleted: bool,
    pub user: String,
    pub manager: String,
    pub verb: String,
}

impl Log {
    /// Passes the kept revisions of an object, newest first, to `each` until it breaks.
    pub(crate) fn revisions(
        &self,
        key: &Key,
        mut each: impl FnMut(Revision) -> ControlFlow<()>,
    ) -> rusqlite::Result<()> {
        let mut statement = self.db.prepare_cached(
            "SELECT id, resource, namespace, name, deleted, written_ms, sum, value, sealed, prev, user, manager, verb \
             FROM log INDEXED BY log_follows WHERE resource = ?1 AND namespace = ?2 AND name = ?3 ORDER BY prev DESC",
        )?;
        let mut rows = statement.query(params![&*key.resource, &*key.namespace, &*key.name])?;
        let resource = Arc::clone(&key.resource);
        while let Some(row) = rows.next()? {
            let one = Revision {
                entry: self.entry_of(row, 0, &resource, &[])?,
                previous: row.get::<_, i64>(9)?.unsigned_abs(),
                deleted: row.get(4)?,
                user: row.get(10)?,
                manager: row.get(11)?,
                verb: row.get(12)?,
            };
            if each(one).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the last revision at a time; `None` if nothing that old is kept.
    pub(crate) fn revision_at(&self, at_ms: i64) -> rusqlite::Result<Option<u64>> {
        let sql = "SELECT max(id) FROM log WHERE written_ms <= ?1";
        let found: Option<i64> = self.db.query_row(sql, [at_ms], |row| row.get(0))?;
        let later = "SELECT EXISTS (SELECT 1 FROM log WHERE written_ms > ?1)";
        let newest = !self.db.query_row(later, [at_ms], |row| row.get::<_, bool>(0))?;
        // After a restore the last revision can be higher than that of any row.
        let floor = tables::number(&self.db, tables::FLOOR)?;
        Ok(found.map(|found| if newest { found.max(floor) } else { found }.unsigned_abs()))
    }
}
