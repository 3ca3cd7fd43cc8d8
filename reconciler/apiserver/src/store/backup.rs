//! Backups: one file each, taken while the server runs, complete as soon as it has its name.
//!
//! ```text
//! one read transaction ─▶ copy to .NAME.partial ─▶ what it is, keys if wished ─▶ verify ─▶ fsync ─▶ rename ─▶ fsync folder
//! ```
//! Secrets are in it encrypted. The key is not, nor are the other credentials, unless that is wished: a backup usually
//! goes where others can read it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OpenFlags, params_from_iter};

use super::keyring::KEY_FILE;
use super::log::checksum;
use super::tables::{self, Identity};
use super::{DATABASE, OpenError};
use crate::{credentials, service_account};

/// A writer holds the database for no longer than a commit takes.
const BUSY: Duration = Duration::from_secs(10);
/// A partial file nobody has written to for so long was left by a process that ended.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Larger credentials are none.
const MAX_CREDENTIAL: u64 = 4 << 20;

/// What a backup holds.
#[derive(Debug, Clone)]
pub struct Backup {
    /// The file.
    pub file: PathBuf,
    /// The last revision in it.
    pub revision: u64,
    /// Revisions of objects in it.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether the key of Secrets and the other credentials are in it.
    pub with_keys: bool,
}

/// Why there is no backup. Guarantees: no file has the backup's name.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Nothing to back up.
    #[error("there is no database in {0}")]
    NoDatabase(PathBuf),
    /// The target is there already.
    #[error("{0} exists: name another file, or a folder, where each backup gets a name of its own")]
    Exists(PathBuf),
    /// The database is of an older version.
    #[error("{0} was written by an older version: start this one's `berth up` on it once, which upgrades it")]
    Older(PathBuf),
    /// The database cannot be read.
    #[error(transparent)]
    Database(#[from] OpenError),
    /// The target cannot be written.
    #[error("writing {path}")]
    Target {
        /// What could not be written.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// SQLite failed while copying.
    #[error("copying to {path}")]
    Copy {
        /// The file that was being written.
        path: PathBuf,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// What was written is not what was read.
    #[error("the copy {path} is not sound: {detail}")]
    Unsound {
        /// The file that was being written.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

/// Backs up the database of a state directory to a file that is not there yet, or into a folder under a name of its own.
///
/// Assumptions: a server may be running on the directory. Blocks until the file is durable.
///
/// # Errors
/// See [`BackupError`].
pub fn backup(directory: &Path, target: &Path, with_keys: bool) -> Result<Backup, BackupError> {
    backup_reaching(directory, target, with_keys, &mut |_| ())
}

/// Tells `reached` of every step, for tests that end there.
pub(super) fn backup_reaching(
    directory: &Path,
    target: &Path,
    with_keys: bool,
    reached: &mut dyn FnMut(&str),
) -> Result<Backup, BackupError> {
    let database = directory.join(DATABASE);
    if fs::metadata(&database).map_or(0, |found| found.len()) == 0 {
        return Err(BackupError::NoDatabase(directory.into()));
    }
    let source = open_source(&database)?;
    let seen = Seen::of(&source).map_err(|e| OpenError::from_sqlite(&database, e))?;
    let now = jiff::Timestamp::now();
    let (folder, file) = match target.is_dir() {
        true => (target.to_owned(), target.join(name_of(now, seen.revision))),
        false => (parent(target), target.to_owned()),
    };
    if file.exists() {
        return Err(BackupError::Exists(file));
    }
    sweep(&folder);
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let partial = folder.join(format!(".{name}.{}.partial", std::process::id()));
    let made = write(directory, &source, &seen, &partial, now, with_keys, reached).and_then(|()| {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| BackupError::Target { path, source }
        };
        File::open(&partial).and_then(|written| written.sync_all()).map_err(failed(&partial))?;
        reached("synced");
        fs::rename(&partial, &file).map_err(failed(&file))?;
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed(&folder))?;
        fs::metadata(&file).map_err(failed(&file))
    });
    match made {
        Ok(found) => {
            let (revision, rows) = (seen.revision.unsigned_abs(), seen.rows.unsigned_abs());
            Ok(Backup { file, revision, rows, bytes: found.len(), with_keys })
        }
        Err(error) => {
            // What is left of it is swept up by a later one at the latest.
            let _ = fs::remove_file(&partial);
            Err(error)
        }
    }
}

fn parent(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn open_source(database: &Path) -> Result<Connection, BackupError> {
    let failed = |source| BackupError::Database(OpenError::from_sqlite(database, source));
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(database, flags).map_err(failed)?;
    source.busy_timeout(BUSY).map_err(failed)?;
    source.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -512; BEGIN").map_err(failed)?;
    let identity = Identity::of(&source).map_err(failed)?;
    if identity.application == tables::APPLICATION_ID && identity.format < tables::FORMAT {
        return Err(BackupError::Older(database.into()));
    }
    super::log::check_identity(database, identity)?;
    Ok(source)
}

/// What a database holds, to compare a copy with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) revision: i64,
    pub(super) rows: i64,
}

impl Seen {
    pub(super) fn of(db: &Connection) -> rusqlite::Result<Self> {
        let (rows, last) = db.query_row("SELECT count(*), coalesce(max(id), 0) FROM log", [], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)?))
        })?;
        Ok(Self { revision: last.max(tables::number(db, tables::FLOOR)?), rows })
    }
}

fn write(
    directory: &Path,
    source: &Connection,
    seen: &Seen,
    partial: &Path,
    now: jiff::Timestamp,
    with_keys: bool,
    reached: &mut dyn FnMut(&str),
) -> Result<(), BackupError> {
    let target = |source| BackupError::Target { path: partial.into(), source };
    let copy = |source| BackupError::Copy { path: partial.into(), source };
    // Closed to others from its first byte on.
    File::options().create_new(true).write(true).mode(0o600).open(partial).map_err(target)?;
    let to = open_private(partial, true).map_err(copy)?;
    reached("made");
    copy_rows(source, &to).map_err(copy)?;
    reached("copied");
    to.execute_batch(
        "CREATE TABLE backup (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT; \
         CREATE TABLE credentials (name TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT;",
    )
    .map_err(copy)?;
    let facts = [("made_ms", now.as_millisecond()), ("revision", seen.revision), ("rows", seen.rows)];
    for (name, value) in facts {
        to.execute("INSERT INTO backup VALUES (?1, ?2)", (name, value)).map_err(copy)?;
    }
    if with_keys {
        for (name, content) in credentials_of(directory)? {
            to.execute("INSERT INTO credentials VALUES (?1, ?2)", (name, content)).map_err(copy)?;
        }
    }
    to.close().map_err(|(_, source)| copy(source))?;
    reached("described");
    let written = open_private(partial, false).map_err(copy)?;
    verify(&written, seen).map_err(|detail| BackupError::Unsound { path: partial.into(), detail })?;
    reached("verified");
    Ok(())
}

/// Copies what there is and not the pages that are free: they are room that the server keeps (`log/room.rs`).
fn copy_rows(source: &Connection, to: &Connection) -> rusqlite::Result<()> {
    tables::create(to)?;
    to.execute_batch("BEGIN; DELETE FROM state;")?;
    for table in ["state", "log"] {
        let mut rows = source.prepare(&format!("SELECT * FROM {table} ORDER BY 1"))?;
        // By name: a table that was upgraded has its columns in another order.
        let columns = rows.column_names().collect::<Vec<_>>().join(", ");
        let places = vec!["?"; rows.column_count()].join(", ");
        let mut insert = to.prepare(&format!("INSERT INTO {table} ({columns}) VALUES ({places})"))?;
        let count = rows.column_count();
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..count).map(|at| row.get_ref(at).map(ToSqlOutput::Borrowed));
            insert.execute(params_from_iter(values.collect::<rusqlite::Result<Vec<_>>>()?))?;
        }
    }
    to.execute_batch("COMMIT")
}

/// Opens a file nobody else has, without locks, which a mounted folder may not have.
fn open_private(path: &Path, writes: bool) -> rusqlite::Result<Connection> {
    let access = if writes { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags_and_vfs(path, flags, "unix-none")?;
    // Nothing is lost with a partial file, and it is synced as a whole.
    db.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF; PRAGMA cache_size = -2048;",
    )?;
    Ok(db)
}

/// Whether the file is whole and holds what was `seen`; else what is wrong.
pub(super) fn verify(db: &Connection, seen: &Seen) -> Result<(), String> {
    let told = |error: rusqlite::Error| error.to_string();
    let verdict: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(told)?;
    if verdict != "ok" {
        return Err(verdict);
    }
    let found = Seen::of(db).map_err(told)?;
    if found != *seen {
        return Err(format!(
            "it has {} rows up to revision {}, not {} up to {}",
            found.rows, found.revision, seen.rows, seen.revision
        ));
    }
    let mut rows = db.prepare("SELECT id, sum, value FROM log").map_err(told)?;
    let mut rows = rows.query([]).map_err(told)?;
    while let Some(row) = rows.next().map_err(told)? {
        let sum: i64 = row.get(1).map_err(told)?;
        let value = row.get_ref(2).map_err(told)?.as_blob().map_err(|e| e.to_string())?;
        if checksum(value) != sum {
            return Err(format!("revision {} is damaged", row.get::<_, i64>(0).map_err(told)?));
        }
    }
    Ok(())
}

fn credentials_of(directory: &Path) -> Result<Vec<(&'static str, Vec<u8>)>, BackupError> {
    let mut found = Vec::new();
    for name in credential_files() {
        let path = directory.join(name);
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Ok(facts) if facts.len() <= MAX_CREDENTIAL => {}
            Ok(_) => {
                let source = io::Error::other("too large for a credential");
                return Err(BackupError::Target { path, source });
            }
            Err(source) => return Err(BackupError::Target { path, source }),
        }
        found.push((name, fs::read(&path).map_err(|source| BackupError::Target { path, source })?));
    }
    Ok(found)
}

/// The files that make a restored server the same to its hosts and users, the key of Secrets first.
pub(super) fn credential_files() -> impl Iterator<Item = &'static str> {
    [KEY_FILE, service_account::KEY_FILE].into_iter().chain(credentials::FILES)
}

const PREFIX: &str = "berth-";
const SUFFIX: &str = ".db";

/// `berth-20260102T030405Z-r42.db`: sorts by age.
fn name_of(at: jiff::Timestamp, revision: i64) -> String {
    format!("{PREFIX}{}-r{revision}{SUFFIX}", at.strftime("%Y%m%dT%H%M%SZ"))
}

/// The backups in a folder that were named here, oldest first, with the time each was made.
pub(crate) fn backups_in(folder: &Path) -> io::Result<Vec<(PathBuf, jiff::Timestamp)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let middle = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
        let parts = middle.and_then(|middle| middle.split_once("-r"));
        let Some((at, revision)) = parts else { continue };
        let ours = !revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_digit());
        let at = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", at)
            .and_then(|at| at.to_zoned(jiff::tz::TimeZone::UTC));
        if let (true, Ok(at)) = (ours, at) {
            found.push((path, at.timestamp()));
        }
    }
    found.sort();
    Ok(found)
}

/// How long until the next backup into a folder is due; a folder that cannot be read is due now, and the backup says why.
pub(crate) fn is_due(folder: &Path, every: Duration, now: jiff::Timestamp) -> Duration {
    let last = backups_in(folder).ok().and_then(|found| found.last().map(|last| last.1));
    let Some(last) = last else { return Duration::ZERO };
    let age = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    every.saturating_sub(age)
}

/// Removes what earlier backups left half-made.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let partial = name.starts_with('.') && name.contains(".partial");
        let untouched = entry.metadata().and_then(|facts| facts.modified()).ok();
        let untouched = untouched.and_then(|at| SystemTime::now().duration_since(at).ok());
        if partial && name.contains(SUFFIX) && untouched.is_some_and(|age| age > ABANDONED) {
            // It costs room, nothing else.
            let _ = fs::remove_file(entry.path());
        }
    }
}
