//! Restoring a backup into a state directory, while no server runs there.
//!
//! ```text
//! check the backup ─▶ lock ─▶ stage berth.db.restoring ─▶ marker ─▶ old one aside ─▶ rename ─▶ credentials ─▶ no marker
//! ```
//! Before the marker is there nothing has happened to the old database; after it a server refuses to start until the
//! restore has been run again, which completes it.
//!
//! Clients may have seen revisions that are newer than the backup. The restored server goes on from a revision far beyond
//! ([`MARGIN`]) and answers 410 to every watch from below: clients list again, and none is told of old events as new.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::backup::{Seen, credential_files, verify};
use super::keyring::{KEY_FILE, Keyring, retired};
use super::tables::{self, Identity};
use super::{DATABASE, OpenError, lock_directory, log, seal};
use crate::credentials::{DERIVED, write_private};

/// How far revisions jump: more writes than this are not made between a backup and its restore.
const MARGIN: i64 = 1_000_000_000;
/// There while a restore is under way; holds the name the old files are kept under.
pub(super) const UNFINISHED: &str = "restore.unfinished";
const STAGED: &str = "berth.db.restoring";

/// How to restore.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// An existing database is kept aside and replaced.
    pub replace: bool,
    /// The key of Secrets, if it is neither in the backup nor in the directory.
    pub key: Option<PathBuf>,
}

/// What a restore did.
#[derive(Debug, Clone)]
pub struct Restored {
    /// Milliseconds since 1970 of the backup.
    pub made_ms: i64,
    /// The last revision in the backup.
    pub revision: u64,
    /// The revision the server goes on from.
    pub goes_on_from: u64,
    /// Where the replaced database is.
    pub aside: Option<PathBuf>,
    /// Whether CA, tokens and keys came from the backup.
    pub with_keys: bool,
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file cannot be used.
    #[error(transparent)]
    File(OpenError),
    /// A database, but no backup.
    #[error("{0} was not made by `berth backup`")]
    NotABackup(PathBuf),
    /// The directory is in use, or cannot be prepared.
    #[error(transparent)]
    Directory(OpenError),
    /// There is a database.
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
        /// Why.
        source: io::Error,
    },
    /// The directory cannot be written.
    #[error("restoring {path}")]
    Write {
        /// What was being written.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// SQLite failed.
    #[error("preparing {path}")]
    Prepare {
        /// The staged file.
        path: PathBuf,
        /// Why it failed.
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

/// Puts a backup into a state directory.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore(file: &Path, directory: &Path, options: &RestoreOptions) -> Result<Restored, RestoreError> {
    restore_reaching(file, directory, options, &mut |_| ())
}

/// Tells `reached` of every step, for tests that end there.
pub(super) fn restore_reaching(
    file: &Path,
    directory: &Path,
    options: &RestoreOptions,
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
    let floor = checked.seen.revision.max(last).saturating_add(MARGIN);
    let staged = directory.join(STAGED);
    stage(file, &staged, floor)?;
    reached("staged");
    let suffix = began
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| format!("before-restore-{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ")));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| RestoreError::Write { path, source }
    };
    let sync = || File::open(directory).and_then(|open| open.sync_all()).map_err(failed(directory));
    write_private(&marker, suffix.as_bytes()).map_err(failed(&marker))?;
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
    place_credentials(directory, &suffix, &checked.credentials, key.as_ref())?;
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

/// Reads all of a backup before anything is done with it.
fn check(file: &Path) -> Result<Checked, RestoreError> {
    let failed = |source| RestoreError::File(OpenError::from_sqlite(file, source));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags_and_vfs(file, flags, "unix-none").map_err(failed)?;
    let identity = Identity::of(&db).map_err(failed)?;
    log::check_identity(file, identity).map_err(RestoreError::File)?;
    let tables: i64 = db
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name IN ('backup', 'credentials')", [], |row| {
            row.get(0)
        })
        .map_err(failed)?;
    if tables != 2 {
        return Err(RestoreError::NotABackup(file.into()));
    }
    let fact = |name: &str| {
        db.query_row("SELECT value FROM backup WHERE name = ?1", [name], |row| row.get::<_, i64>(0))
            .map_err(failed)
    };
    let seen = Seen { revision: fact("revision")?, rows: fact("rows")? };
    verify(&db, &seen)
        .map_err(|detail| RestoreError::File(OpenError::Damaged { path: file.into(), detail }))?;
    let mut kept = db.prepare("SELECT name, content FROM credentials").map_err(failed)?;
    let credentials: Credentials = kept
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .map_err(failed)?;
    let needed = seal::keys_in_use(&db, identity).map_err(failed)?;
    Ok(Checked { made_ms: fact("made_ms")?, seen, needed, credentials })
}

/// The ring that opens the backup's Secrets, if it is not the directory's own: the one named, or the backup's.
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
    if let Some(ring) = carried.filter(fits) {
        return Ok(Some(ring));
    }
    match checked.needed.first() {
        None => Ok(None),
        Some(id) => Err(RestoreError::NoKey { file: file.into(), directory: directory.into(), id: *id }),
    }
}

/// The last revision of a database that is about to be replaced, as far as it can be read; empties its log into it.
fn last_of(database: &Path) -> i64 {
    let last = || -> rusqlite::Result<i64> {
        let db = Connection::open(database)?;
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(Seen::of(&db)?.revision)
    };
    // Being damaged is a reason to replace it.
    last().unwrap_or(0)
}

/// The database as it will be, beside the one that is.
fn stage(file: &Path, staged: &Path, floor: i64) -> Result<(), RestoreError> {
    let written = |source| RestoreError::Write { path: staged.into(), source };
    let prepared = |source| RestoreError::Prepare { path: staged.into(), source };
    for leftover in [staged.to_owned(), beside(staged, "-journal"), beside(staged, "-wal")] {
        remove(&leftover).map_err(written)?;
    }
    write_private(staged, b"").map_err(written)?;
    fs::copy(file, staged).map_err(written)?;
    // A copy takes the permissions of what it was made from.
    let closed = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
    fs::set_permissions(staged, closed).map_err(written)?;
    let db = Connection::open(staged).map_err(prepared)?;
    let prepare = || -> rusqlite::Result<()> {
        let format = Identity::of(&db)?.format;
        db.execute_batch("PRAGMA secure_delete = ON; DROP TABLE credentials; DROP TABLE backup;")?;
        tables::upgrade(&db, format)?;
        tables::set_number(&db, tables::FLOOR, floor)?;
        tables::set_number(&db, tables::COMPACTED, floor)
    };
    prepare().map_err(prepared)?;
    db.close().map_err(|(_, source)| prepared(source))?;
    File::open(staged).and_then(|open| open.sync_all()).map_err(written)
}

/// A second name for the old files: the first goes to the new ones in one step.
fn keep_aside(directory: &Path, suffix: &str) -> Result<PathBuf, RestoreError> {
    let aside = directory.join(format!("{DATABASE}.{suffix}"));
    for companion in ["", "-wal"] {
        let (from, to) = (beside(&directory.join(DATABASE), companion), beside(&aside, companion));
        match fs::hard_link(&from, &to) {
            Err(error) if companion == "-wal" && error.kind() == io::ErrorKind::NotFound => {}
            // The attempt that was interrupted did it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(RestoreError::Write { path: to, source }),
            Ok(()) => {}
        }
    }
    Ok(aside)
}

/// Puts the credentials a backup carries in place; others that were there are kept aside.
fn place_credentials(
    directory: &Path,
    suffix: &str,
    carried: &Credentials,
    key: Option<&Keyring>,
) -> Result<(), RestoreError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| RestoreError::Write { path, source }
    };
    let key_path = directory.join(KEY_FILE);
    if let Some(ring) = key {
        if let Ok(old) = Keyring::read(&key_path).as_ref()
            && old.id() != ring.id()
        {
            let kept = retired(directory, old.id());
            old.write(&kept).map_err(failed(&kept))?;
        }
        ring.write(&key_path).map_err(failed(&key_path))?;
    }
    let mut changed = false;
    for name in credential_files().filter(|name| *name != KEY_FILE) {
        let Some((_, content)) = carried.iter().find(|(carried, _)| carried == name) else { continue };
        let path = directory.join(name);
        match fs::read(&path) {
            Ok(there) if there == *content => continue,
            Ok(there) => {
                let kept = directory.join(format!("{name}.{suffix}"));
                write_private(&kept, &there).map_err(failed(&kept))?;
            }
            Err(_) => {}
        }
        write_private(&path, content).map_err(failed(&path))?;
        changed = true;
    }
    if changed {
        for name in DERIVED {
            remove(&directory.join(name)).map_err(failed(directory))?;
        }
    }
    Ok(())
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
