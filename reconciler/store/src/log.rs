//! The append-only table in SQLite, with kine's layout: the row id is the resourceVersion, and (key, previous
//! revision) is unique, so that two writers can never both follow the same revision.

mod room;

pub(crate) use room::NoRoom;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use crate::directory::DATABASE;
use crate::entry::{Encoded, Entry, Facts, FieldPath, with_revision};
use crate::error::OpenError;
use crate::event::{Change, Event};
use crate::key::Key;
use crate::keyring::{Keyring, SEALED};
use crate::row::{checksum, damaged};
use crate::seal;
use crate::tables::{self, Identity};
use crate::write::Origin;

/// The maximum number of past events that are read at once.
pub(crate) const EVENTS_AT_ONCE: usize = 500;
/// The size of past events in bytes at which no further ones are read.
const BYTES_AT_ONCE: usize = 2 << 20;

/// Removes the rows that a compaction from revision ?1 to ?2 makes superfluous: superseded ones and tombstones.
/// Only rows after ?1 are read, so that the number of objects does not make a compaction slower. The tombstone at
/// ?1 stayed if it was the last row.
pub(crate) const SUPERSEDED: &str = "DELETE FROM log WHERE id IN \
     (SELECT prev FROM log WHERE id > ?1 AND id <= ?2) RETURNING length(value)";
pub(crate) const TOMBSTONES: &str = "DELETE FROM log WHERE id >= ?1 AND id <= ?2 AND deleted = 1 \
     AND id < (SELECT max(id) FROM log) AND NOT EXISTS (SELECT 1 FROM log n WHERE n.resource = log.resource \
     AND n.namespace = log.namespace AND n.name = log.name AND n.prev = log.id) RETURNING length(value)";

/// One connection to the log.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) db: Connection,
    keys: Arc<Keyring>,
}

/// A write with an assigned revision.
pub(crate) struct Append<'a> {
    pub(crate) revision: u64,
    pub(crate) key: &'a Key,
    /// The revision that this write follows; `None` makes it follow the key's last row, if any, including a
    /// tombstone.
    pub(crate) previous: Option<u64>,
    pub(crate) deleted: bool,
    pub(crate) written_ms: i64,
    pub(crate) by: &'a Origin,
    pub(crate) text: &'a [u8],
}

impl Log {
    pub(crate) fn in_memory() -> Result<Self, OpenError> {
        let path = || ":memory:".into();
        let failed = |source| OpenError::Database { path: path(), source };
        let db = Connection::open_in_memory().map_err(failed)?;
        let keys = Keyring::ephemeral().map_err(|source| OpenError::Directory { path: path(), source })?;
        tables::create(&db).map_err(failed)?;
        Ok(Self { db, keys: Arc::new(keys) })
    }

    /// Opens or creates `berth.db` in a directory. Guarantees: a file that is refused has not been changed.
    pub(crate) fn open(directory: &Path) -> Result<Self, OpenError> {
        let path = &directory.join(DATABASE);
        let failed = |source: rusqlite::Error| OpenError::from_sqlite(path, source);
        let db = Connection::open(path).map_err(failed)?;
        let identity = Identity::of(&db).map_err(failed)?;
        if !identity.is_empty() {
            check_identity(path, identity)?;
            check_pages(&db).map_err(|source| OpenError::from_load(path, source))?;
        }
        let needed = if identity.is_empty() { Vec::new() } else { seal::keys_in_use(&db).map_err(failed)? };
        let keys = Arc::new(Keyring::open(directory, &needed)?);
        let log = Self { db, keys };
        log.durable().map_err(failed)?;
        if identity.is_empty() {
            tables::create(&log.db).map_err(failed)?;
        }
        seal::seal_all(&log.db, &log.keys).map_err(|source| OpenError::from_load(path, source))?;
        Ok(log)
    }

    /// Opens a second connection for past revisions, which never writes.
    pub(crate) fn open_reader(directory: &Path, keys: Arc<Keyring>) -> Result<Self, OpenError> {
        let path = &directory.join(DATABASE);
        let failed = |source: rusqlite::Error| OpenError::from_sqlite(path, source);
        let db = Connection::open(path).map_err(failed)?;
        db.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -512;").map_err(failed)?;
        Ok(Self { db, keys })
    }

    pub(crate) fn keys(&self) -> Arc<Keyring> {
        Arc::clone(&self.keys)
    }

    fn durable(&self) -> rusqlite::Result<()> {
        self.db.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -2048; \
             PRAGMA journal_size_limit = 16777216;",
        )
    }

    /// Returns the last assigned revision and the revision to which history was compacted.
    pub(crate) fn bounds(&self) -> rusqlite::Result<(u64, u64)> {
        Ok((self.last()?.unsigned_abs(), tables::number(&self.db, tables::COMPACTED)?.unsigned_abs()))
    }

    /// Returns the revision to which superseded rows were removed.
    pub(crate) fn swept(&self) -> rusqlite::Result<u64> {
        tables::number(&self.db, tables::SWEPT).map(i64::unsigned_abs)
    }

    fn last(&self) -> rusqlite::Result<i64> {
        let last: i64 = self.db.query_row("SELECT coalesce(max(id), 0) FROM log", [], |row| row.get(0))?;
        Ok(last.max(tables::number(&self.db, tables::FLOOR)?))
    }

    /// Passes every live object to `each`.
    pub(crate) fn load(&self, mut each: impl FnMut(Entry)) -> rusqlite::Result<()> {
        let mut statement = self.db.prepare(
            "SELECT id, resource, namespace, name, deleted, written_ms, sum, value, sealed FROM log WHERE id IN \
             (SELECT max(id) FROM log GROUP BY resource, namespace, name) AND deleted = 0 ORDER BY id",
        )?;
        let mut rows = statement.query([])?;
        let mut resource: Arc<str> = "".into();
        while let Some(row) = rows.next()? {
            let name: String = row.get(1)?;
            if *resource != *name {
                resource = name.into();
            }
            each(self.entry_of(row, 0, &resource, &[])?);
        }
        Ok(())
    }

    pub(crate) fn begin(&self) -> rusqlite::Result<()> {
        self.db.execute_batch("BEGIN IMMEDIATE")
    }

    pub(crate) fn commit(&self) -> rusqlite::Result<()> {
        self.db.execute_batch("COMMIT")
    }

    pub(crate) fn roll_back(&self) {
        // After some errors SQLite has already rolled back and this statement fails, which is harmless.
        let _ = self.db.execute_batch("ROLLBACK");
    }

    /// Appends a row; returns the size of its value in bytes.
    pub(crate) fn append(&self, row: &Append<'_>) -> rusqlite::Result<u64> {
        let previous = match row.previous {
            Some(previous) => i64::try_from(previous).unwrap_or(i64::MAX),
            None => self.last_row(row.key)?,
        };
        let sealed = match &*row.key.resource {
            SEALED => {
                let sealed = self.keys.seal(row.key, row.revision, row.text);
                Some(sealed.ok_or(rusqlite::Error::InvalidQuery)?)
            }
            _ => None,
        };
        let (value, key) = sealed.as_deref().map_or((row.text, 0), |sealed| (sealed, self.keys.id()));
        let mut statement = self.db.prepare_cached(
            "INSERT INTO log (id, resource, namespace, name, prev, deleted, written_ms, user, manager, verb, sealed, \
             sum, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?;
        let id = i64::try_from(row.revision).unwrap_or(i64::MAX);
        let (namespace, name) = (&*row.key.namespace, &*row.key.name);
        statement.execute(params![
            id,
            &*row.key.resource,
            namespace,
            name,
            previous,
            row.deleted,
            row.written_ms,
            row.by.user,
            row.by.manager,
            row.by.verb,
            key,
            checksum(value),
            value
        ])?;
        Ok(value.len() as u64)
    }

    /// Returns the id of the key's last row: the one with the highest predecessor. The index is named because
    /// SQLite would otherwise scan the whole resource backwards for a new key.
    fn last_row(&self, key: &Key) -> rusqlite::Result<i64> {
        self.db
            .prepare_cached(
                "SELECT id FROM log INDEXED BY log_follows \
                 WHERE resource = ?1 AND namespace = ?2 AND name = ?3 ORDER BY prev DESC LIMIT 1",
            )?
            .query_row(params![&*key.resource, &*key.namespace, &*key.name], |row| row.get::<_, i64>(0))
            .optional()
            .map(|last| last.unwrap_or(0))
    }

    /// Returns the first events of `resource` with `after < revision <= until`, oldest first, and the revision after which the others
    /// follow: a watch from far back must not hold the whole history in memory.
    pub(crate) fn events(
        &self,
        resource: &Arc<str>,
        after: u64,
        until: u64,
        fields: &[FieldPath],
    ) -> rusqlite::Result<(Vec<Arc<Event>>, Option<u64>)> {
        let mut statement = self.db.prepare_cached(
            "SELECT l.id, l.resource, l.namespace, l.name, l.deleted, l.written_ms, l.sum, l.value, l.sealed, \
             p.id, p.resource, p.namespace, p.name, p.deleted, p.written_ms, p.sum, p.value, p.sealed \
             FROM log l LEFT JOIN log p ON p.id = l.prev AND p.deleted = 0 \
             WHERE l.resource = ?1 AND l.id > ?2 AND l.id <= ?3 ORDER BY l.id",
        )?;
        let (from, to) = (i64::try_from(after).unwrap_or(i64::MAX), i64::try_from(until).unwrap_or(i64::MAX));
        let mut rows = statement.query(params![&**resource, from, to])?;
        let (mut events, mut bytes) = (Vec::new(), 0);
        // The states of the events so far: most are the previous state of a later event.
        let mut states: HashMap<u64, Arc<Entry>> = HashMap::new();
        while let Some(row) = rows.next()? {
            let previous = match row.get::<_, Option<i64>>(9)?.map(i64::unsigned_abs) {
                Some(revision) => match states.remove(&revision) {
                    Some(state) => Some(state),
                    None => Some(Arc::new(self.entry_of(row, 9, resource, fields)?)),
                },
                None => None,
            };
            let entry = Arc::new(self.entry_of(row, 0, resource, fields)?);
            let change = match (row.get::<_, bool>(4)?, &previous) {
                (true, _) => Change::Deleted,
                (false, Some(_)) => Change::Modified,
                (false, None) => Change::Added,
            };
            let revision = entry.revision;
            bytes += entry.text.size();
            states.insert(revision, Arc::clone(&entry));
            events.push(Event::read(change, entry, previous));
            if events.len() >= EVENTS_AT_ONCE || bytes >= BYTES_AT_ONCE {
                return Ok((events, Some(revision).filter(|revision| *revision < until)));
            }
        }
        Ok((events, None))
    }

    /// Returns the total size of all values in bytes.
    pub(crate) fn stored_bytes(&self) -> rusqlite::Result<u64> {
        let sql = "SELECT coalesce(sum(length(value)), 0) FROM log";
        self.db.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
    }

    /// Returns the lowest revision to compact to so that `excess` bytes of history go.
    pub(crate) fn beyond_bytes(&self, excess: u64) -> rusqlite::Result<u64> {
        // The bytes that a revision adds to the history: its predecessor, and itself if it is a deletion.
        let mut statement = self.db.prepare(
            "SELECT n.id, coalesce(length(p.value), 0) + n.deleted * length(n.value) \
             FROM log n LEFT JOIN log p ON p.id = n.prev WHERE n.id > ?1 ORDER BY n.id",
        )?;
        let swept = tables::number(&self.db, tables::SWEPT)?;
        let (mut rows, mut gone, mut target) = (statement.query([swept])?, 0, 0);
        while gone < excess
            && let Some(row) = rows.next()?
        {
            target = row.get::<_, i64>(0)?.unsigned_abs();
            gone += row.get::<_, i64>(1)?.unsigned_abs();
        }
        Ok(target)
    }

    /// Returns the highest revision to which the time and count limits of the window allow compaction.
    pub(crate) fn compactable(&self, written_before_ms: i64, keep_revisions: u64) -> rusqlite::Result<u64> {
        let compacted = tables::number(&self.db, tables::COMPACTED)?;
        let (old, _) = self.written_before(compacted, written_before_ms)?;
        let last = self.last()?;
        let beyond_count = last.unsigned_abs().saturating_sub(keep_revisions);
        Ok(old.max(beyond_count).min(last.unsigned_abs()))
    }

    /// Returns the last of the rows after a revision that were all written before a time, 0 for none, and the number of rows that were read.
    /// The oldest are read first: most of the history is younger, and is not read.
    pub(crate) fn written_before(&self, after: i64, before_ms: i64) -> rusqlite::Result<(u64, usize)> {
        let mut statement =
            self.db.prepare_cached("SELECT id, written_ms FROM log WHERE id > ?1 ORDER BY id")?;
        let (mut rows, mut last, mut read) = (statement.query([after])?, 0, 0);
        while let Some(row) = rows.next()? {
            read += 1;
            if row.get::<_, i64>(1)? >= before_ms {
                break;
            }
            last = row.get::<_, i64>(0)?.unsigned_abs();
        }
        Ok((last, read))
    }

    /// Removes the rows that neither `revision` nor later ones need. The last row always stays, so that
    /// revisions never start over. Returns the number of removed revisions, and the total size of their
    /// values in bytes.
    pub(crate) fn compact(&self, revision: u64) -> rusqlite::Result<(usize, u64)> {
        let revision = i64::try_from(revision).unwrap_or(i64::MAX);
        let transaction = Transaction::new_unchecked(&self.db, TransactionBehavior::Immediate)?;
        let swept = tables::number(&self.db, tables::SWEPT)?;
        let superseded = self.delete(SUPERSEDED, (swept, revision))?;
        let tombstones = self.delete(TOMBSTONES, (swept, revision))?;
        tables::set_number(&self.db, tables::SWEPT, revision)?;
        tables::set_number(&self.db, tables::COMPACTED, revision)?;
        transaction.commit()?;
        Ok((superseded.0 + tombstones.0, superseded.1 + tombstones.1))
    }

    fn delete(&self, sql: &str, revisions: (i64, i64)) -> rusqlite::Result<(usize, u64)> {
        let mut statement = self.db.prepare(sql)?;
        let (mut rows, mut deleted) = (statement.query(revisions)?, (0, 0));
        while let Some(row) = rows.next()? {
            deleted = (deleted.0 + 1, deleted.1 + row.get::<_, i64>(0)?.unsigned_abs());
        }
        Ok(deleted)
    }

    /// Reads the entry with its nine columns starting at `at`: id, resource, namespace, name, deleted,
    /// written_ms, sum, value, sealed.
    pub(crate) fn entry_of(
        &self,
        row: &Row<'_>,
        at: usize,
        resource: &Arc<str>,
        fields: &[FieldPath],
    ) -> rusqlite::Result<Entry> {
        let revision = row.get::<_, i64>(at)?.unsigned_abs();
        let key = Key::new(resource, row.get_ref(at + 2)?.as_str()?, row.get_ref(at + 3)?.as_str()?);
        let value = row.get_ref(at + 7)?.as_blob()?;
        if row.get::<_, i64>(at + 6)? != checksum(value) {
            return Err(damaged(revision, "checksum does not match"));
        }
        let text = match row.get(at + 8)? {
            0 => Cow::Borrowed(value),
            sealed => Cow::Owned(
                self.keys
                    .open_sealed(sealed, &key, revision, value)
                    .ok_or_else(|| damaged(revision, "it cannot be decrypted"))?,
            ),
        };
        let object: serde_json::Value =
            serde_json::from_slice(&text).map_err(|_| damaged(revision, "not JSON"))?;
        let bytes = with_revision(&text, revision).ok_or_else(|| damaged(revision, "not an object"))?;
        let facts = Arc::new(Facts::of(&object, fields));
        Ok(Entry { key, revision, written_ms: row.get(at + 5)?, text: bytes.into(), facts })
    }

    /// Limits the file to `pages` pages, which SQLite treats as a full disk.
    #[cfg(test)]
    pub(crate) fn limit_pages(&self, pages: u32) {
        self.db
            .execute_batch(&format!("PRAGMA max_page_count = {pages}"))
            .expect("a pragma of a healthy database");
    }
}

/// Refuses a foreign file, or one of another format.
pub(crate) fn check_identity(path: &Path, identity: Identity) -> Result<(), OpenError> {
    if identity.application != tables::APPLICATION_ID {
        return Err(OpenError::Foreign { path: path.into() });
    }
    if identity.format != tables::FORMAT {
        let (found, supported) = (identity.format, tables::FORMAT);
        return Err(OpenError::Format { path: path.into(), found, supported });
    }
    Ok(())
}

fn check_pages(db: &Connection) -> rusqlite::Result<()> {
    let verdict: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" {
        return Ok(());
    }
    Err(rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, verdict.into()))
}

impl OpenError {
    pub(crate) fn from_sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_path_buf();
        match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                Self::Damaged { path, detail: source.to_string() }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked { path },
            _ => Self::Database { path, source },
        }
    }

    pub(crate) fn from_load(path: &Path, source: rusqlite::Error) -> Self {
        match source {
            rusqlite::Error::FromSqlConversionFailure(_, _, detail) => {
                Self::Damaged { path: path.to_path_buf(), detail: detail.to_string() }
            }
            other => Self::from_sqlite(path, other),
        }
    }
}

/// Returns the row text of a deletion: the object's last text, so that watchers that resume receive the
/// deleted object.
pub(crate) fn tombstone(entry: &Entry) -> Encoded {
    Encoded { text: entry.text.to_vec(), facts: Arc::clone(&entry.facts) }
}
