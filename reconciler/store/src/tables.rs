//! The tables and their format.

use rusqlite::Connection;

/// Incremented with every change of the tables; a file with another format is refused.
pub(crate) const FORMAT: i64 = 2;
/// `BRTH`: distinguishes our files from other SQLite databases.
pub(crate) const APPLICATION_ID: i64 = 0x4252_5448;

/// Rows of `state`: the revision to which history was compacted; the revision to which superseded rows were
/// removed, which is lower after a restore; the revision to continue from if it is higher than that of all
/// rows; the key with which every Secret is encrypted.
pub(crate) const COMPACTED: &str = "compacted";
pub(crate) const SWEPT: &str = "swept";
pub(crate) const FLOOR: &str = "floor";
pub(crate) const SEALED_WITH: &str = "sealed_with";

/// `prev`: the revision that a row follows, 0 for the first of an object. `sealed`: the key with which the value
/// is encrypted, 0 if it is not.
const TABLES: &str = "
CREATE TABLE log (
    id INTEGER PRIMARY KEY,
    resource TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    prev INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    written_ms INTEGER NOT NULL,
    user TEXT NOT NULL,
    manager TEXT NOT NULL,
    verb TEXT NOT NULL,
    sealed INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    value BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX log_follows ON log (resource, namespace, name, prev);
CREATE INDEX log_resource ON log (resource, id);
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO state VALUES ('compacted', 0);
";

/// The identification in a file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) application: i64,
    pub(crate) format: i64,
    pub(crate) tables: i64,
}

impl Identity {
    pub(crate) fn of(db: &Connection) -> rusqlite::Result<Self> {
        let number = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0));
        Ok(Self {
            application: number("PRAGMA application_id")?,
            format: number("PRAGMA user_version")?,
            tables: number("SELECT count(*) FROM sqlite_schema")?,
        })
    }

    /// Whether nothing was written to the file yet.
    pub(crate) fn is_empty(self) -> bool {
        (self.application, self.format, self.tables) == (0, 0, 0)
    }
}

pub(crate) fn create(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch(&format!(
        "BEGIN; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; COMMIT;"
    ))
}

/// Returns a number stored in `state`; 0 if it is absent.
pub(crate) fn number(db: &Connection, name: &str) -> rusqlite::Result<i64> {
    db.query_row("SELECT coalesce((SELECT value FROM state WHERE name = ?1), 0)", [name], |row| row.get(0))
}

pub(crate) fn set_number(db: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    db.execute("INSERT OR REPLACE INTO state VALUES (?1, ?2)", (name, value)).map(drop)
}
