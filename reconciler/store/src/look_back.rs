//! Reads of the log: the objects at a past revision, the revisions of one object, and the revision at a time.

use std::ops::ControlFlow;
use std::sync::Arc;

use rusqlite::{Transaction, TransactionBehavior, params};

use crate::entry::{Entry, FieldPath};
use crate::key::Key;
use crate::log::Log;
use crate::tables;

/// The part of a past list that is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPart {
    /// Empty: all namespaces.
    pub namespace: String,
    /// The namespace and the name of the object before the part.
    pub after: Option<(String, String)>,
    /// The number of selected objects at which the part ends.
    pub limit: Option<usize>,
}

/// A part of a past list, in key order.
#[derive(Debug, Default)]
pub struct PastObjects {
    pub entries: Vec<Arc<Entry>>,
    /// The number of objects that follow the last one that was read, selected or not.
    pub unread: usize,
}

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
    /// Returns a part of the objects of `resource` at `revision`, of those that `is_selected` accepts. Objects after the part are only
    /// counted: each page of a long list would otherwise read and parse the whole list.
    pub(crate) fn list_at(
        &self,
        resource: &Arc<str>,
        revision: u64,
        fields: &[FieldPath],
        part: &ListPart,
        is_selected: impl Fn(&Entry) -> bool,
    ) -> rusqlite::Result<PastObjects> {
        // A compaction by the writer's connection must not remove rows between the two statements.
        let _snapshot = Transaction::new_unchecked(&self.db, TransactionBehavior::Deferred)?;
        let ids = self.live_at(resource, revision, part)?;
        let mut statement = self.db.prepare_cached(
            "SELECT id, resource, namespace, name, deleted, written_ms, sum, value, sealed FROM log WHERE id = ?1",
        )?;
        let (mut entries, mut unread) = (Vec::new(), ids.len());
        for id in ids {
            if part.limit.is_some_and(|limit| entries.len() >= limit) {
                break;
            }
            let entry = statement.query_row([id], |row| self.entry_of(row, 0, resource, fields))?;
            unread -= 1;
            if is_selected(&entry) {
                entries.push(Arc::new(entry));
            }
        }
        Ok(PastObjects { entries, unread })
    }

    /// Returns the ids of the rows that hold the objects at `revision`, in key order.
    fn live_at(&self, resource: &str, revision: u64, part: &ListPart) -> rusqlite::Result<Vec<i64>> {
        // `deleted` is that of the row with the highest id: SQLite takes it from the row that max() selects.
        let mut statement = self.db.prepare_cached(
            "SELECT max(id), deleted FROM log INDEXED BY log_follows \
             WHERE resource = ?1 AND id <= ?2 AND (namespace, name) > (?3, ?4) AND (?5 = '' OR namespace = ?5) \
             GROUP BY namespace, name ORDER BY namespace, name",
        )?;
        // No object has an empty name.
        let start = (part.namespace.as_str(), "");
        let after =
            part.after.as_ref().map_or(start, |(namespace, name)| (namespace.as_str(), name.as_str()));
        let (namespace, name) = after.max(start);
        let revision = i64::try_from(revision).unwrap_or(i64::MAX);
        let rows = statement
            .query_map(params![resource, revision, namespace, name, part.namespace], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?))
            })?;
        rows.filter_map(|row| match row {
            Ok((_, true)) => None,
            Ok((id, false)) => Some(Ok(id)),
            Err(error) => Some(Err(error)),
        })
        .collect()
    }

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
