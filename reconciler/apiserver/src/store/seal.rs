//! Encrypting rows that are there already: those of an older format, and all of them when the key is rotated.

use std::sync::Arc;

use rusqlite::Connection;

use super::key::Key;
use super::keyring::{Keyring, SEALED};
use super::log::{checksum, damaged};
use super::tables::{self, Identity};

/// The ids of the keys a file cannot be read without.
pub(super) fn keys_in_use(db: &Connection, identity: Identity) -> rusqlite::Result<Vec<i64>> {
    if identity.is_empty() || identity.format < 2 {
        return Ok(Vec::new());
    }
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

/// Makes every row that is to be encrypted so, under the ring's newest key. Revisions stay as they are.
///
/// Guarantees: afterwards no byte of the file holds what was replaced; it is as it was when this fails.
pub(super) fn seal_all(db: &Connection, keys: &Keyring) -> rusqlite::Result<()> {
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
            // The error is told; SQLite may have rolled back already.
            let _ = db.execute_batch("ROLLBACK");
            return Err(error);
        }
    }
    if rows > 0 {
        // What was replaced, now or by an earlier version, lies in free space until the file is made anew.
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
