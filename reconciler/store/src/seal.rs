//! Encryption of existing rows when the key is rotated.

use std::sync::Arc;

use rusqlite::Connection;

use crate::key::Key;
use crate::keyring::{Keyring, SEALED};
use crate::row::{checksum, damaged};
use crate::tables;

/// Returns the ids of the keys that a file needs.
pub(crate) fn keys_in_use(db: &Connection) -> rusqlite::Result<Vec<i64>> {
    let mut ids: Vec<i64> = db
        .prepare("SELECT DISTINCT sealed FROM log WHERE resource = ?1 AND sealed != 0")?
        .query_map([SEALED], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let registered = tables::number(db, tables::SEALED_WITH)?;
    if registered != 0 && !ids.contains(&registered) {
        ids.push(registered);
    }
    Ok(ids)
}

/// Encrypts every row of a Secret with the newest key. Revisions stay unchanged.
///
/// Guarantees: afterwards no byte of the file contains the replaced data; on failure the data is unchanged.
pub(crate) fn seal_all(db: &Connection, keys: &Keyring) -> rusqlite::Result<()> {
    if tables::number(db, tables::SEALED_WITH)? == keys.id() {
        return Ok(());
    }
    let others = |db: &Connection| -> rusqlite::Result<i64> {
        let sql = "SELECT count(*) FROM log WHERE resource = ?1 AND sealed != ?2";
        db.query_row(sql, (SEALED, keys.id()), |row| row.get(0))
    };
    let rows: i64 = db.query_row("SELECT count(*) FROM log", [], |row| row.get(0))?;
    if others(db)? > 0 {
        db.execute_batch("BEGIN IMMEDIATE")?;
        if let Err(error) = reseal(db, keys).and_then(|()| db.execute_batch("COMMIT")) {
            // The original error is returned; SQLite may have rolled back already.
            let _ = db.execute_batch("ROLLBACK");
            return Err(error);
        }
    }
    if rows > 0 {
        // Replaced data stays in free space until the file is rebuilt.
        db.execute_batch("VACUUM")?;
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    tables::set_number(db, tables::SEALED_WITH, keys.id())
}

fn reseal(db: &Connection, keys: &Keyring) -> rusqlite::Result<()> {
    let mut next = db.prepare(
        "SELECT id, namespace, name, sealed, sum, value FROM log WHERE resource = ?1 AND id > ?2 AND sealed != ?3 \
         ORDER BY id LIMIT 1",
    )?;
    let mut update = db.prepare("UPDATE log SET sealed = ?1, sum = ?2, value = ?3 WHERE id = ?4")?;
    let resource: Arc<str> = SEALED.into();
    let mut after = 0_i64;
    loop {
        let mut found = next.query((SEALED, after, keys.id()))?;
        let Some(row) = found.next()? else { return Ok(()) };
        after = row.get(0)?;
        let revision = after.unsigned_abs();
        let key = Key::new(&resource, row.get_ref(1)?.as_str()?, row.get_ref(2)?.as_str()?);
        let value: Vec<u8> = row.get(5)?;
        if row.get::<_, i64>(4)? != checksum(&value) {
            return Err(damaged(revision, "checksum does not match"));
        }
        let text = match row.get(3)? {
            0 => value,
            sealed => keys
                .open_sealed(sealed, &key, revision, &value)
                .ok_or_else(|| damaged(revision, "it cannot be decrypted"))?,
        };
        drop(found);
        let sealed = keys.seal(&key, revision, &text).ok_or(rusqlite::Error::InvalidQuery)?;
        update.execute((keys.id(), checksum(&sealed), &sealed, after))?;
    }
}
