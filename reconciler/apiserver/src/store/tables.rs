//! The tables, their format, and how a file of an older format becomes one of today's.
//!
//! | format | what it added |
//! |---|---|
//! | 1 | `log`, `state` |
//! | 2 | who made a write and how (`user`, `manager`, `verb`), and the key a value is encrypted with (`sealed`, 0 = none) |

use rusqlite::Connection;

/// Raised with every change of the tables; a file with a higher one is refused.
pub(super) const FORMAT: i64 = 2;
/// `BRTH`: tells our files from other SQLite databases.
pub(super) const APPLICATION_ID: i64 = 0x4252_5448;

/// Rows of `state`: the revision history was compacted to; the revision to go on from when the rows do not say so;
/// the key every Secret is encrypted with.
pub(super) const COMPACTED: &str = "compacted";
pub(super) const FLOOR: &str = "floor";
pub(super) const SEALED_WITH: &str = "sealed_with";

const TABLES: &str = "
CREATE TABLE log (
    id INTEGER PRIMARY KEY,
    resource TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    prev INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    written_ms INTEGER NOT NULL,
    user TEXT NOT NULL DEFAULT '',
    manager TEXT NOT NULL DEFAULT '',
    verb TEXT NOT NULL DEFAULT '',
    sealed INTEGER NOT NULL DEFAULT 0,
    sum INTEGER NOT NULL,
    value BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX log_follows ON log (resource, namespace, name, prev);
CREATE INDEX log_resource ON log (resource, id);
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO state VALUES ('compacted', 0);
";

const TO_2: &str = "
ALTER TABLE log ADD COLUMN user TEXT NOT NULL DEFAULT '';
ALTER TABLE log ADD COLUMN manager TEXT NOT NULL DEFAULT '';
ALTER TABLE log ADD COLUMN verb TEXT NOT NULL DEFAULT '';
ALTER TABLE log ADD COLUMN sealed INTEGER NOT NULL DEFAULT 0;
";

/// What a file says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) application: i64,
    pub(super) format: i64,
    pub(super) tables: i64,
}

impl Identity {
    pub(super) fn of(db: &Connection) -> rusqlite::Result<Self> {
        let number = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0));
        Ok(Self {
            application: number("PRAGMA application_id")?,
            format: number("PRAGMA user_version")?,
            tables: number("SELECT count(*) FROM sqlite_schema")?,
        })
    }

    /// A file nothing was written to yet.
    pub(super) fn is_empty(self) -> bool {
        (self.application, self.format, self.tables) == (0, 0, 0)
    }
}

pub(super) fn create(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch(&format!(
        "BEGIN; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; COMMIT;"
    ))
}

/// Brings an older file to today's format, in one transaction.
pub(super) fn upgrade(db: &Connection, from: i64) -> rusqlite::Result<()> {
    if from >= FORMAT {
        return Ok(());
    }
    let done = db.execute_batch(&format!("BEGIN IMMEDIATE; {TO_2} PRAGMA user_version = {FORMAT}; COMMIT;"));
    if done.is_err() {
        // What failed is told; that there may be nothing to roll back is not.
        let _ = db.execute_batch("ROLLBACK");
    }
    done
}

/// A number kept in `state`; 0 if it is not there.
pub(super) fn number(db: &Connection, name: &str) -> rusqlite::Result<i64> {
    db.query_row("SELECT coalesce((SELECT value FROM state WHERE name = ?1), 0)", [name], |row| row.get(0))
}

pub(super) fn set_number(db: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    db.execute("INSERT OR REPLACE INTO state VALUES (?1, ?2)", (name, value)).map(drop)
}
