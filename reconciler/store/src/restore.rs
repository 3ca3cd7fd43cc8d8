//! Restore of a backup into a state directory without a running server.
//!
//! ```text
//! check the backup ─▶ lock ─▶ stage berth.db.restoring ─▶ marker ─▶ keep old database ─▶ rename ─▶ credentials ─▶ no marker
//! ```
//! Before the marker exists, the old database is unchanged; after that a server refuses to start until the
//! restore is run again, which completes it.
//!
//! Clients may have seen revisions that are newer than the backup, also those of an earlier restore of the same
//! backup. The restored server continues from a revision that none of them has seen ([`beyond`]) and answers 410
//! to every watch from a lower one: clients list again, and no client receives old events as new.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::backup::{CredentialFiles, MAX_CREDENTIAL, Seen, verify};
use crate::directory::{DATABASE, UNFINISHED, lock_directory};
use crate::error::OpenError;
use crate::keyring::{KEY_FILE, Keyring, kept_keys, retire};
use crate::private_file::write_private;
use crate::tables::{self, Identity};
use crate::{log, seal};

/// The increase of the revision if the clock is of no use: fewer writes than this are made between a backup and its
/// restore.
const MARGIN: i64 = 1_000_000_000;
/// The beginning of 2026 in microseconds since 1970: a clock before it is wrong.
const EARLIEST: i64 = 1_767_225_600_000_000;
/// A backup or a database with a higher revision is damaged, and leaves none to continue from.
const HIGHEST: i64 = i64::MAX / 2;
/// An empty file that a restore leaves beside the database before it replaces that, for the user of the directory, which removes it.
pub const RESTORED: &str = "restored";
/// The maximum number of credential files in a backup.
const MAX_CREDENTIALS: u64 = 64;
const STAGED: &str = "berth.db.restoring";

/// The options of a restore.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// Keeps an existing database under another name and replaces it.
    pub replace: bool,
    /// The key file of Secrets, if the key is neither in the backup nor in the directory.
    pub key: Option<PathBuf>,
}

/// The result of a restore.
#[derive(Debug, Clone)]
pub struct Restored {
    /// The time of the backup in milliseconds since 1970.
    pub made_ms: i64,
    /// The last revision in the backup.
    pub revision: u64,
    /// The revision from which the server continues.
    pub goes_on_from: u64,
    /// The path under which the replaced database is kept.
    pub aside: Option<PathBuf>,
    /// Whether CA, tokens and keys came from the backup.
    pub with_keys: bool,
}

/// Why a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file cannot be used.
    #[error(transparent)]
    File(OpenError),
    /// A database that is not a backup.
    #[error("{0} was not made by `berth backup`")]
    NotABackup(PathBuf),
    /// The directory is in use, or cannot be prepared.
    #[error(transparent)]
    Directory(OpenError),
    /// The directory contains a database already.
    #[error("{0} exists: to replace it, and keep it aside, say --replace")]
    Exists(PathBuf),
    /// The key of Secrets is missing.
    #[error(
        "Secrets in {file} are encrypted with key {id:016x}, which is neither in the backup nor in {directory}: name a \
         copy of its {KEY_FILE} with --key"
    )]
    NoKey {
        /// The backup.
        file: PathBuf,
        /// The state directory.
        directory: PathBuf,
        /// The key's id.
        id: i64,
    },
    /// The given key cannot be read.
    #[error("reading the key {path}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The directory cannot be written.
    #[error("restoring {path}")]
    Write {
        /// The path that was being written.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// SQLite failed.
    #[error("preparing {path}")]
    Prepare {
        /// The staged file.
        path: PathBuf,
        /// The error.
        source: rusqlite::Error,
    },
}

type Credentials = Vec<(String, Vec<u8>)>;

struct Checked {
    made_ms: i64,
    seen: Seen,
    needed: Vec<i64>,
    credentials: Credentials,
}

/// Restores a backup into a state directory.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore(
    file: &Path,
    directory: &Path,
    options: &RestoreOptions,
    files: &CredentialFiles,
) -> Result<Restored, RestoreError> {
    restore_reaching(file, directory, options, files, &mut |_| ())
}

/// Reports every step to `reached`, for tests that abort there.
pub(crate) fn restore_reaching(
    file: &Path,
    directory: &Path,
    options: &RestoreOptions,
    files: &CredentialFiles,
    reached: &mut dyn FnMut(&str),
) -> Result<Restored, RestoreError> {
    let checked = check(file)?;
    let _lock = lock_directory(directory).map_err(RestoreError::Directory)?;
    let database = directory.join(DATABASE);
    let marker = directory.join(UNFINISHED);
    let began = fs::read_to_string(&marker).ok();
    let exists = fs::metadata(&database).is_ok_and(|found| found.len() > 0);
    if exists && !options.replace && began.is_none() {
        return Err(RestoreError::Exists(database));
    }
    let key = key_for(file, directory, options, &checked)?;
    reached("checked");
    let last = if exists { last_of(&database) } else { 0 };
    let floor = beyond(checked.seen.revision.max(last), jiff::Timestamp::now());
    let staged = directory.join(STAGED);
    if let Err(error) = stage(file, &staged, &checked.seen, floor) {
        // It may have filled the disk. The next restore removes it at the latest.
        let _ = remove(&staged);
        return Err(error);
    }
    reached("staged");
    let suffix = began.filter(|name| !name.is_empty()).unwrap_or_else(|| unused_suffix(directory));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| RestoreError::Write { path, source }
    };
    let sync = || File::open(directory).and_then(|open| open.sync_all()).map_err(failed(directory));
    write_private(&marker, suffix.as_bytes()).map_err(failed(&marker))?;
    let note = directory.join(RESTORED);
    write_private(&note, b"").map_err(failed(&note))?;
    sync()?;
    reached("marked");
    let aside = if exists { Some(keep_aside(directory, &suffix)?) } else { None };
    reached("kept");
    for companion in ["-wal", "-shm"] {
        remove(&beside(&database, companion)).map_err(failed(&database))?;
    }
    reached("cleared");
    fs::rename(&staged, &database).map_err(failed(&database))?;
    reached("renamed");
    place_credentials(directory, &suffix, (files, &checked.credentials), key.as_ref())?;
    sync()?;
    reached("placed");
    remove(&marker).map_err(failed(&marker))?;
    sync()?;
    Ok(Restored {
        made_ms: checked.made_ms,
        revision: checked.seen.revision.unsigned_abs(),
        goes_on_from: floor.unsigned_abs(),
        aside,
        with_keys: !checked.credentials.is_empty(),
    })
}

/// Returns a revision above all that were given out, of which `last` is the highest known one.
///
/// It is the time in microseconds: a server makes fewer writes than that, so that its revisions stay behind the
/// clock, and each later restore continues above those of the earlier ones, whichever backup it is of and whatever
/// became of the database. If the clock is behind the revisions it was set back; the time is then added to them, so
/// that two restores of one backup still differ.
fn beyond(last: i64, now: jiff::Timestamp) -> i64 {
    let clock = now.as_microsecond();
    if clock >= EARLIEST && clock > last {
        return clock;
    }
    last.saturating_add(MARGIN).saturating_add(clock.max(0))
}

/// Reads the whole backup before anything is changed.
fn check(file: &Path) -> Result<Checked, RestoreError> {
    let failed = |source| RestoreError::File(OpenError::from_sqlite(file, source));
    // Opening a pipe would wait, and a device may have no end. The error of a missing file is SQLite's.
    if fs::metadata(file).is_ok_and(|facts| !facts.is_file()) {
        return Err(RestoreError::NotABackup(file.into()));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags_and_vfs(file, flags, "unix-none").map_err(failed)?;
    log::check_identity(file, Identity::of(&db).map_err(failed)?).map_err(RestoreError::File)?;
    let tables: i64 = db
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name IN ('backup', 'credentials')", [], |row| {
            row.get(0)
        })
        .map_err(failed)?;
    // Triggers and views of a file that is not ours would act in the restored database.
    let others: i64 = db
        .query_row(
            "SELECT count(*) FROM sqlite_schema WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'",
            [],
            |row| row.get(0),
        )
        .map_err(failed)?;
    if tables != 2 || others != 0 {
        return Err(RestoreError::NotABackup(file.into()));
    }
    let fact = |name: &str| {
        db.query_row("SELECT value FROM backup WHERE name = ?1", [name], |row| row.get::<_, i64>(0))
            .map_err(failed)
    };
    let seen = Seen { revision: fact("revision")?, rows: fact("rows")? };
    if !(0..=HIGHEST).contains(&seen.revision) {
        let detail = format!("no server has the revision {}", seen.revision);
        return Err(RestoreError::File(OpenError::Damaged { path: file.into(), detail }));
    }
    verify(&db, &seen)
        .map_err(|detail| RestoreError::File(OpenError::Damaged { path: file.into(), detail }))?;
    let credentials = credentials_in(&db, file)?;
    let needed = seal::keys_in_use(&db).map_err(failed)?;
    Ok(Checked { made_ms: fact("made_ms")?, seen, needed, credentials })
}

fn credentials_in(db: &Connection, file: &Path) -> Result<Credentials, RestoreError> {
    let failed = |source| RestoreError::File(OpenError::from_sqlite(file, source));
    let sizes = "SELECT count(*), coalesce(max(length(content)), 0) FROM credentials";
    let (count, longest): (i64, i64) =
        db.query_row(sizes, [], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
    if count.unsigned_abs() > MAX_CREDENTIALS || longest.unsigned_abs() > MAX_CREDENTIAL {
        let detail = format!("its {count} credentials have up to {longest} bytes");
        return Err(RestoreError::File(OpenError::Damaged { path: file.into(), detail }));
    }
    let mut kept = db.prepare("SELECT name, content FROM credentials").map_err(failed)?;
    let rows = kept.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.and_then(Iterator::collect).map_err(failed)
}

/// Returns the keyring that decrypts the backup's Secrets, if it is not the directory's own: the one in the
/// options, the backup's, or one that was replaced since.
fn key_for(
    file: &Path,
    directory: &Path,
    options: &RestoreOptions,
    checked: &Checked,
) -> Result<Option<Keyring>, RestoreError> {
    let fits = |ring: &Keyring| checked.needed.iter().all(|id| ring.has(*id));
    if let Some(path) = &options.key {
        let ring = Keyring::read(path).map_err(|source| RestoreError::Key { path: path.clone(), source })?;
        if fits(&ring) {
            return Ok(Some(ring));
        }
    } else if Keyring::read(&directory.join(KEY_FILE)).is_ok_and(|ring| fits(&ring)) {
        return Ok(None);
    }
    let carried = checked.credentials.iter().find(|(name, _)| name == KEY_FILE);
    let carried = carried.and_then(|(_, text)| Keyring::parse(std::str::from_utf8(text).ok()?).ok());
    if let Some(ring) = carried.into_iter().chain(kept_keys(directory)).find(fits) {
        return Ok(Some(ring));
    }
    match checked.needed.first() {
        None => Ok(None),
        Some(id) => Err(RestoreError::NoKey { file: file.into(), directory: directory.into(), id: *id }),
    }
}

/// Returns the last revision of a database that is about to be replaced, as far as it can be read;
/// checkpoints its write-ahead log.
fn last_of(database: &Path) -> i64 {
    let last = || -> rusqlite::Result<i64> {
        let db = Connection::open(database)?;
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(Seen::of(&db)?.revision)
    };
    // Damage is one of the reasons to replace a database, and not an error here.
    last().ok().filter(|last| *last <= HIGHEST).unwrap_or(0)
}

/// Prepares the restored database beside the existing one.
fn stage(file: &Path, staged: &Path, seen: &Seen, floor: i64) -> Result<(), RestoreError> {
    let written = |source| RestoreError::Write { path: staged.into(), source };
    let prepared = |source| RestoreError::Prepare { path: staged.into(), source };
    for leftover in [staged.to_owned(), beside(staged, "-journal"), beside(staged, "-wal")] {
        remove(&leftover).map_err(written)?;
    }
    write_private(staged, b"").map_err(written)?;
    copy_into(file, staged).map_err(written)?;
    let db = Connection::open(staged).map_err(prepared)?;
    // The file may have changed since it was checked.
    verify(&db, seen)
        .map_err(|detail| RestoreError::File(OpenError::Damaged { path: file.into(), detail }))?;
    let prepare = || -> rusqlite::Result<()> {
        db.execute_batch("PRAGMA secure_delete = ON; DROP TABLE credentials; DROP TABLE backup;")?;
        tables::set_number(&db, tables::FLOOR, floor)?;
        tables::set_number(&db, tables::COMPACTED, floor)
    };
    prepare().map_err(prepared)?;
    db.close().map_err(|(_, source)| prepared(source))?;
    File::open(staged).and_then(|open| open.sync_all()).map_err(written)
}

/// Copies into an existing file, whose permissions stay: `fs::copy` would give it those of the backup, which has keys.
pub(crate) fn copy_into(file: &Path, existing: &Path) -> io::Result<()> {
    let mut to = File::options().write(true).open(existing)?;
    io::copy(&mut File::open(file)?, &mut to).map(drop)
}

/// Returns a suffix that no replaced database has: clocks are set back, and a second has room for two restores.
fn unused_suffix(directory: &Path) -> String {
    let time = format!("before-restore-{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ"));
    let mut suffix = time.clone();
    let mut number = 1_u32;
    while directory.join(format!("{DATABASE}.{suffix}")).exists() {
        number += 1;
        suffix = format!("{time}-{number}");
    }
    suffix
}

/// Gives the old files a second name; the first name then passes to the new ones atomically.
fn keep_aside(directory: &Path, suffix: &str) -> Result<PathBuf, RestoreError> {
    let aside = directory.join(format!("{DATABASE}.{suffix}"));
    for companion in ["", "-wal"] {
        let (from, to) = (beside(&directory.join(DATABASE), companion), beside(&aside, companion));
        match fs::hard_link(&from, &to) {
            Err(error) if companion == "-wal" && error.kind() == io::ErrorKind::NotFound => {}
            // The interrupted attempt created the link.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(RestoreError::Write { path: to, source }),
            Ok(()) => {}
        }
    }
    Ok(aside)
}

/// Restores the credentials in the backup; other existing ones are kept under another name.
fn place_credentials(
    directory: &Path,
    suffix: &str,
    (files, carried): (&CredentialFiles, &Credentials),
    key: Option<&Keyring>,
) -> Result<(), RestoreError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| RestoreError::Write { path, source }
    };
    if let Some(ring) = key {
        let path = directory.join(KEY_FILE);
        keep_key(directory, suffix, ring).and_then(|()| ring.write(&path)).map_err(failed(&path))?;
    }
    let mut changed = Vec::new();
    for name in files.kept {
        let Some((_, content)) = carried.iter().find(|(carried, _)| carried == name) else { continue };
        let path = directory.join(name);
        match fs::read(&path) {
            Ok(there) if there == *content => {}
            Ok(there) => changed.push((name, path, content, Some(there))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                changed.push((name, path, content, None));
            }
            Err(source) => return Err(RestoreError::Write { path, source }),
        }
    }
    // First: if this is interrupted, the next attempt may find all others as they should be.
    if !changed.is_empty() {
        for name in files.derived {
            remove(&directory.join(name)).map_err(failed(directory))?;
        }
    }
    for (name, path, content, there) in changed {
        if let Some(there) = there {
            let kept = directory.join(format!("{name}.{suffix}"));
            write_private(&kept, &there).map_err(failed(&kept))?;
        }
        write_private(&path, content).map_err(failed(&path))?;
    }
    Ok(())
}

/// Keeps the key file that is about to be replaced, unless all its keys are in the new one.
fn keep_key(directory: &Path, suffix: &str, new: &Keyring) -> io::Result<()> {
    let path = directory.join(KEY_FILE);
    match Keyring::read(&path) {
        Ok(old) if new.has_all(&old) => Ok(()),
        Ok(old) => retire(directory, &old).map(drop),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Nothing can be done with it as it is, and it may be the only copy.
        Err(_) => write_private(&directory.join(format!("{KEY_FILE}.{suffix}")), &fs::read(&path)?),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_restore_of_one_backup_goes_on_beyond_the_revisions_of_the_first() {
        const WRITES: i64 = 100_000;
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let (first, second) = (at("2026-12-01T10:00:00Z"), at("2026-12-01T10:01:00Z"));
        let went_on = beyond(42, first);
        assert!(went_on > 42 + MARGIN);
        // The database of the first was lost.
        assert!(beyond(42, second) > went_on + WRITES);
        // A backup that the first made, and an older one after it.
        let third = at("2026-12-01T10:02:00Z");
        assert!(beyond(went_on + WRITES, second) > went_on + WRITES);
        assert!(beyond(42, third) > beyond(went_on + WRITES, second) + WRITES);
        // The clock was ahead at the first restore, or is at its beginning now.
        let ahead = beyond(42, at("2036-01-01T00:00:00Z"));
        assert!(beyond(ahead, first) > ahead + MARGIN);
        assert!(beyond(ahead, second) > beyond(ahead, first) + WRITES);
        assert!(beyond(42, jiff::Timestamp::UNIX_EPOCH) > 42 + WRITES);
    }
}
