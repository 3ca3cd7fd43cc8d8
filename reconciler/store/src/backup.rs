//! Backups: one file each, made while the server runs, complete as soon as it has its final name.
//!
//! ```text
//! .NAME.partial ─▶ copy in one read transaction ─▶ metadata, keys on request ─▶ verify ─▶ fsync ─▶ rename ─▶ fsync folder
//! ```
//! A backup contains Secrets encrypted. It contains the key and the other credentials only on request: a
//! backup is usually stored where others can read it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OpenFlags, params_from_iter};

use crate::directory::{DATABASE, refuse_unfinished};
use crate::error::OpenError;
use crate::keyring::{KEY_FILE, Keyring};
use crate::row::checksum;
use crate::seal;
use crate::tables::{self, Identity};

/// The busy timeout: a writer locks the database for no longer than a commit takes.
const BUSY: Duration = Duration::from_secs(10);
/// A partial file that has not been written to for this long was left by a process that ended.
const ABANDONED: Duration = Duration::from_secs(3600);
/// The maximum size of a credential file in bytes.
pub(crate) const MAX_CREDENTIAL: u64 = 4 << 20;

/// The files beside the database that identify a restored server to its hosts and users, besides the key file
/// of the store itself.
#[derive(Debug, Clone, Copy)]
pub struct CredentialFiles {
    /// Names of the files that a backup may contain.
    pub kept: &'static [&'static str],
    /// Names of the files that are regenerated from them.
    pub derived: &'static [&'static str],
}

/// A finished backup.
#[derive(Debug, Clone)]
pub struct Backup {
    /// The file.
    pub file: PathBuf,
    /// The last revision in it.
    pub revision: u64,
    /// The number of object revisions in it.
    pub rows: u64,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Whether the key of Secrets and the other credentials are in it.
    pub with_keys: bool,
}

/// Why a backup failed. Guarantees: no file has the backup's name.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// There is no database.
    #[error("there is no database in {0}")]
    NoDatabase(PathBuf),
    /// The target exists already.
    #[error("{0} exists: name another file, or a folder, where each backup gets a name of its own")]
    Exists(PathBuf),
    /// The database cannot be read.
    #[error(transparent)]
    Database(#[from] OpenError),
    /// The target cannot be written.
    #[error("writing {path}")]
    Target {
        /// The path that could not be written.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// SQLite failed while copying.
    #[error("copying to {path}")]
    Copy {
        /// The path of the copy.
        path: PathBuf,
        /// The error.
        source: rusqlite::Error,
    },
    /// The copy differs from the source.
    #[error("the copy {path} is not sound: {detail}")]
    Unsound {
        /// The path of the copy.
        path: PathBuf,
        /// The difference or defect.
        detail: String,
    },
}

/// Backs up the database of a state directory to a new file, or into a folder under a generated name.
///
/// With `credentials` the backup contains the key file and these files.
///
/// Assumptions: a server may be running on the directory. Blocks until the file is durable.
///
/// # Errors
/// See [`BackupError`].
pub fn backup(
    directory: &Path,
    target: &Path,
    credentials: Option<&CredentialFiles>,
) -> Result<Backup, BackupError> {
    backup_reaching(directory, target, credentials, &mut |_| ())
}

/// Reports every step to `reached`, for tests that abort there.
pub(crate) fn backup_reaching(
    directory: &Path,
    target: &Path,
    credentials: Option<&CredentialFiles>,
    reached: &mut dyn FnMut(&str),
) -> Result<Backup, BackupError> {
    let database = directory.join(DATABASE);
    if fs::metadata(&database).map_or(0, |found| found.len()) == 0 {
        return Err(BackupError::NoDatabase(directory.into()));
    }
    refuse_unfinished(directory)?;
    let source = open_source(&database)?;
    let now = jiff::Timestamp::now();
    let is_folder = target.is_dir();
    if !is_folder && target.exists() {
        return Err(BackupError::Exists(target.into()));
    }
    let folder = if is_folder { target.to_owned() } else { parent(target) };
    sweep(&folder);
    let name = match is_folder {
        true => format!("{PREFIX}{}{SUFFIX}", time_of(now)),
        false => target.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let partial = folder.join(format!(".{name}.{}.partial", unique()));
    let copy = Copying { directory, source: &source, partial: &partial, now, credentials };
    let made = copy.write(reached).and_then(|seen| {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| BackupError::Target { path, source }
        };
        let file = if is_folder { folder.join(name_of(now, seen.revision)) } else { target.to_owned() };
        if file.exists() {
            return Err(BackupError::Exists(file));
        }
        File::open(&partial).and_then(|written| written.sync_all()).map_err(failed(&partial))?;
        reached("synced");
        fs::rename(&partial, &file).map_err(failed(&file))?;
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed(&folder))?;
        let bytes = fs::metadata(&file).map_err(failed(&file))?.len();
        let (revision, rows) = (seen.revision.unsigned_abs(), seen.rows.unsigned_abs());
        Ok(Backup { file, revision, rows, bytes, with_keys: credentials.is_some() })
    });
    if made.is_err() {
        // A later backup removes what remains of it at the latest.
        let _ = fs::remove_file(&partial);
    }
    made
}

/// Returns a random number: another host that shares the folder, or a process that was killed, may have the id of this process.
fn unique() -> u64 {
    let mut bytes = [0; 8];
    match aws_lc_rs::rand::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => std::process::id().into(),
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
    source.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -512").map_err(failed)?;
    crate::log::check_identity(database, Identity::of(&source).map_err(failed)?)?;
    Ok(source)
}

/// A summary of a database's content, to compare a copy with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) revision: i64,
    pub(crate) rows: i64,
}

impl Seen {
    pub(crate) fn of(db: &Connection) -> rusqlite::Result<Self> {
        let (rows, last) = db.query_row("SELECT count(*), coalesce(max(id), 0) FROM log", [], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)?))
        })?;
        Ok(Self { revision: last.max(tables::number(db, tables::FLOOR)?), rows })
    }
}

/// A backup that is being written.
struct Copying<'a> {
    directory: &'a Path,
    source: &'a Connection,
    /// The file before it has its final name.
    partial: &'a Path,
    now: jiff::Timestamp,
    credentials: Option<&'a CredentialFiles>,
}

impl Copying<'_> {
    fn write(&self, reached: &mut dyn FnMut(&str)) -> Result<Seen, BackupError> {
        let Self { directory, partial, now, credentials, .. } = *self;
        let target = |source| BackupError::Target { path: partial.into(), source };
        let copy = |source| BackupError::Copy { path: partial.into(), source };
        // Inaccessible to other users from the first byte on.
        File::options().create_new(true).write(true).mode(0o600).open(partial).map_err(target)?;
        let to = open_private(partial, true).map_err(copy)?;
        tables::create(&to).map_err(copy)?;
        reached("made");
        let seen = self.copy_one_revision(&to)?;
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
        if let Some(files) = credentials {
            let found = credentials_of(directory, files)?;
            let needed = seal::keys_in_use(&to).map_err(copy)?;
            // The key may be rotated meanwhile.
            if let Some(id) = missing_key(&found, &needed) {
                let detail =
                    format!("Secrets in it are encrypted with key {id:016x}, which {KEY_FILE} lacks");
                return Err(BackupError::Unsound { path: partial.into(), detail });
            }
            for (name, content) in found {
                to.execute("INSERT INTO credentials VALUES (?1, ?2)", (name, content)).map_err(copy)?;
            }
        }
        to.close().map_err(|(_, source)| copy(source))?;
        reached("described");
        let written = open_private(partial, false).map_err(copy)?;
        verify(&written, &seen).map_err(|detail| BackupError::Unsound { path: partial.into(), detail })?;
        reached("verified");
        Ok(seen)
    }

    /// Copies everything at one revision. The transaction begins after the target was opened and ends before it is
    /// synced: a target may hang, and the server's write-ahead log grows for as long as the transaction lasts.
    fn copy_one_revision(&self, to: &Connection) -> Result<Seen, BackupError> {
        let read = |source| OpenError::from_sqlite(&self.directory.join(DATABASE), source);
        self.source.execute_batch("BEGIN").map_err(read)?;
        let seen = Seen::of(self.source).map_err(read)?;
        copy_rows(self.source, to)
            .map_err(|source| BackupError::Copy { path: self.partial.into(), source })?;
        self.source.execute_batch("COMMIT").map_err(read)?;
        Ok(seen)
    }
}

/// Copies the rows, not the free pages that the server keeps in reserve (`log/room.rs`).
fn copy_rows(source: &Connection, to: &Connection) -> rusqlite::Result<()> {
    to.execute_batch("BEGIN; DELETE FROM state;")?;
    for table in ["state", "log"] {
        let mut rows = source.prepare(&format!("SELECT * FROM {table} ORDER BY 1"))?;
        let count = rows.column_count();
        let mut insert =
            to.prepare(&format!("INSERT INTO {table} VALUES ({})", vec!["?"; count].join(", ")))?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..count).map(|at| row.get_ref(at).map(ToSqlOutput::Borrowed));
            insert.execute(params_from_iter(values.collect::<rusqlite::Result<Vec<_>>>()?))?;
        }
    }
    to.execute_batch("COMMIT")
}

/// Opens a file that no other process has open, without locks, which a mounted folder may not support.
fn open_private(path: &Path, writes: bool) -> rusqlite::Result<Connection> {
    let access = if writes { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags_and_vfs(path, flags, "unix-none")?;
    // A lost partial file is harmless, and the file is synced as a whole.
    db.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF; PRAGMA cache_size = -2048;",
    )?;
    Ok(db)
}

/// Checks that the file is intact and matches `seen`; returns the defect otherwise.
pub(crate) fn verify(db: &Connection, seen: &Seen) -> Result<(), String> {
    let to_text = |error: rusqlite::Error| error.to_string();
    let verdict: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(to_text)?;
    if verdict != "ok" {
        return Err(verdict);
    }
    let found = Seen::of(db).map_err(to_text)?;
    if found != *seen {
        return Err(format!(
            "it has {} rows up to revision {}, not {} up to {}",
            found.rows, found.revision, seen.rows, seen.revision
        ));
    }
    let mut rows = db.prepare("SELECT id, sum, value FROM log").map_err(to_text)?;
    let mut rows = rows.query([]).map_err(to_text)?;
    while let Some(row) = rows.next().map_err(to_text)? {
        let sum: i64 = row.get(1).map_err(to_text)?;
        let value = row.get_ref(2).map_err(to_text)?.as_blob().map_err(|e| e.to_string())?;
        if checksum(value) != sum {
            return Err(format!("revision {} is damaged", row.get::<_, i64>(0).map_err(to_text)?));
        }
    }
    Ok(())
}

/// Returns the id of a key that is needed and not among the credentials.
fn missing_key(credentials: &[(&str, Vec<u8>)], needed: &[i64]) -> Option<i64> {
    let file = credentials.iter().find(|(name, _)| *name == KEY_FILE);
    let keys = file.and_then(|(_, content)| Keyring::parse(std::str::from_utf8(content).ok()?).ok());
    needed.iter().copied().find(|id| !keys.as_ref().is_some_and(|keys| keys.has(*id)))
}

fn credentials_of(
    directory: &Path,
    files: &CredentialFiles,
) -> Result<Vec<(&'static str, Vec<u8>)>, BackupError> {
    let mut found = Vec::new();
    for name in std::iter::once(KEY_FILE).chain(files.kept.iter().copied()) {
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

const PREFIX: &str = "berth-";
const SUFFIX: &str = ".db";

/// Returns the name of a backup, `berth-20260102T030405Z-r42.db`, which sorts by age.
fn name_of(at: jiff::Timestamp, revision: i64) -> String {
    format!("{PREFIX}{}-r{revision}{SUFFIX}", time_of(at))
}

fn time_of(at: jiff::Timestamp) -> String {
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// A file with the generated name of a backup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackupFile {
    /// The file.
    pub path: PathBuf,
    /// When it was made, by the clock of that time.
    pub at: jiff::Timestamp,
    /// The last revision in it.
    pub revision: u64,
}

/// Returns the backups in a folder, recognized by their generated names, in the order of their names.
pub fn backups_in(folder: &Path) -> io::Result<Vec<BackupFile>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let middle = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
        let parts = middle.and_then(|middle| middle.split_once("-r"));
        let Some((at, revision)) = parts else { continue };
        let revision = Some(revision).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let revision = revision.and_then(|text| text.parse::<u64>().ok());
        let at = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", at)
            .and_then(|at| at.to_zoned(jiff::tz::TimeZone::UTC));
        if let (Some(revision), Ok(at)) = (revision, at) {
            found.push(BackupFile { path, at: at.timestamp(), revision });
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the time until the next backup into a folder is due. If the folder cannot be read, a backup is due
/// now and reports the error.
///
/// Backups that are dated in the future were made while the clock was ahead, and do not count: until then no other
/// one would be made.
pub fn until_due(folder: &Path, every: Duration, now: jiff::Timestamp) -> Duration {
    let found = backups_in(folder).unwrap_or_default();
    let last = found.into_iter().map(|backup| backup.at).filter(|at| *at <= now).max();
    let Some(last) = last else { return Duration::ZERO };
    let age = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    every.saturating_sub(age)
}

/// Whether a file is that of an unfinished backup, `.NAME.db.NUMBER.partial`, or one that SQLite has beside it. A folder may have files of
/// others, which stay.
fn is_partial(name: &str) -> bool {
    let stem = ["", "-journal", "-wal", "-shm"]
        .iter()
        .find_map(|end| name.strip_prefix('.')?.strip_suffix(*end)?.strip_suffix(".partial"));
    let Some((backup, process)) = stem.and_then(|stem| stem.rsplit_once('.')) else { return false };
    backup.ends_with(SUFFIX) && !process.is_empty() && process.bytes().all(|digit| digit.is_ascii_digit())
}

/// Removes partial files that earlier backups left behind.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let written = entry.metadata().and_then(|facts| facts.modified()).ok();
        // One of the future was written under a clock that was wrong.
        let untouched =
            written.map(|at| SystemTime::now().duration_since(at).unwrap_or_else(|e| e.duration()));
        if is_partial(&name) && untouched.is_some_and(|age| age > ABANDONED) {
            // A failure only costs disk space.
            let _ = fs::remove_file(entry.path());
        }
    }
}
