//! Folders of this host for storage pools: whether each is there now.
//!
//! ```text
//!  <state>/pools/<pool>.json     the record: the identity of the folder, and whether it was marked
//!  <folder>/berth-pool.json      the marker, with the same identity
//!
//!             record        marker        record (marked)
//!    new ───────────▶ ○ ───────────▶ ○ ───────────────────▶ there ◀──── the marker is back ──── away
//!                                                              └───── no marker, or another one ──▲
//! ```
//!
//! A folder whose file system is not mounted looks like an empty one. So nothing is created in a folder that was marked once and has
//! no marker now, and its disks count as out of reach, not as lost. Folders of pools that several hosts share: see `shared`. Those that do
//! not answer: see `patience`.

mod patience;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_engine::Identities;
use berth_qemu::process::RunAs;
use serde::{Deserialize, Serialize};

use super::files;
use super::layout::{Layout, PoolPlaces, is_name};
use crate::{PoolFolderFacts, PoolFolderMapping, SharedPool, SystemError};
use patience::{Looking, PATIENCE};

type Result<T> = std::result::Result<T, SystemError>;

const MARKER: &str = "berth-pool.json";
const RECORD: &str = ".json";
const VOLUMES: &str = "volumes";
/// The folder of a shared pool with copies of the firmware state of VMs.
const FIRMWARE: &str = "firmware";
/// The bits of a mode: all users can write; only its owner renames or removes a file.
const WRITABLE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The identity of a folder, which it keeps wherever its file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marker {
    pool: String,
    id: String,
    /// Whether several hosts use the folder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
}

/// The folder of a pool as this host has known it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    id: String,
    folder: PathBuf,
    /// Whether the marker was written: from then on a folder without it is not this one.
    is_marked: bool,
    /// The name under which this host has its files in a folder that is shared. None: the whole folder is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<String>,
}

/// The type of a pool, as the site declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Declared {
    Local,
    Shared(SharedPool),
}

/// The consequence of a record and a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    There,
    /// It is to be marked, or to be recorded as marked.
    New,
    NoMarker,
    OtherMarker,
}

fn judge(record: Option<&Record>, marker: Option<&Marker>) -> Judgement {
    match (record, marker) {
        (None, None) => Judgement::New,
        (None, Some(_)) => Judgement::OtherMarker,
        (Some(record), Some(marker)) if record.id != marker.id => Judgement::OtherMarker,
        (Some(record), None) if record.is_marked => Judgement::NoMarker,
        (Some(record), Some(_)) if record.is_marked => Judgement::There,
        (Some(_), _) => Judgement::New,
    }
}

/// The folders of the pools that have one of their own.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolFolders {
    folders: Arc<BTreeMap<String, Arc<PoolFolder>>>,
    /// The folders with this host's files.
    places: PoolPlaces,
    /// The pools that several hosts share, also those without a folder here.
    shared: Arc<Mutex<BTreeSet<String>>>,
    /// The pools that were there at the last report.
    reported: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Debug)]
struct PoolFolder {
    pool: String,
    path: PathBuf,
    /// Whether the administrator still names it.
    is_named: bool,
    /// The user that has to pass through it.
    user: Option<RunAs>,
    record_path: PathBuf,
    record: Mutex<Option<Record>>,
    /// None: not known yet.
    declared: Mutex<Option<Declared>>,
    looking: Looking,
    /// How long a look may take.
    patience: Duration,
}

impl PoolFolders {
    /// Opens the folders that the administrator names, and those of former times, whose records are in `records`.
    ///
    /// *Errors*: two folders are of one pool, or one is in the other; a folder is in one of `own` or contains it; the pool has files in
    /// the state directory; a record cannot be read.
    pub(super) fn open(
        mappings: &[PoolFolderMapping],
        records: &Path,
        own: &[&Path],
        user: Option<RunAs>,
    ) -> Result<Self> {
        check(mappings, own)?;
        let mut folders = BTreeMap::new();
        for mapping in mappings {
            // Those of an agent without folders, perhaps: they would be out of sight.
            if has_entries(&records.join(&mapping.pool))? {
                let why = "the pool has files in the state directory: stop this agent and move the folders in pools/NAME there into it, \
                           or leave --pool-folder out";
                return Err(invalid(mapping, why));
            }
            let folder = PoolFolder::open(records, &mapping.pool, user)?;
            let folder = PoolFolder { path: mapping.path.clone(), is_named: true, ..folder };
            folders.insert(mapping.pool.clone(), Arc::new(folder));
        }
        for name in files::names(records)? {
            let Some(pool) = name.strip_suffix(RECORD).filter(|pool| is_name(pool)) else { continue };
            if !folders.contains_key(pool) {
                folders.insert(pool.to_owned(), Arc::new(PoolFolder::open(records, pool, user)?));
            }
        }
        let places = folders.values().map(|folder| (folder.pool.clone(), folder.place())).collect();
        Ok(Self { folders: Arc::new(folders), places: PoolPlaces::new(places), ..Self::default() })
    }

    /// Takes over which pools are shared. A pool that is not among these stays as it was declared last.
    pub(super) fn declare(&self, pools: &BTreeMap<String, Option<SharedPool>>) {
        for (pool, shared) in pools {
            let mut known = locked(&self.shared);
            match shared {
                Some(_) => known.insert(pool.clone()),
                None => known.remove(pool),
            };
            drop(known);
            let Some(folder) = self.folders.get(pool) else { continue };
            let declared = shared.clone().map_or(Declared::Local, Declared::Shared);
            *locked(&folder.declared) = Some(declared);
            // Not by its record, which is held while the folder does not answer.
            let place = shared.as_ref().map(|shared| folder.folder_of(&shared.host));
            self.places.set(pool, place.unwrap_or_else(|| folder.path.clone()));
        }
    }

    /// The folders with this host's files, which follow what is declared.
    pub(super) fn places(&self) -> PoolPlaces {
        self.places.clone()
    }

    /// The folders, without symbolic links. Blocking, but not for ever.
    pub(super) fn real_paths(&self) -> Vec<PathBuf> {
        self.folders.values().map(|folder| patience::real_path(&folder.path)).collect()
    }

    /// Whether a file, given by its path without symbolic links, is in one of the folders. Blocking.
    pub(super) fn contain(&self, file: &Path) -> bool {
        let real = |folder: &Arc<PoolFolder>| {
            let real = folder.look(|folder| folder.path.canonicalize().map_err(|error| error.to_string()));
            real.unwrap_or_else(|_| folder.path.clone())
        };
        self.folders.values().map(real).any(|folder| file.starts_with(folder))
    }

    /// Checks that a pool is there; marks its folder at the first use. A pool without a folder of its own always is. Blocking, but not
    /// for ever.
    ///
    /// *Errors*: [`SystemError::PoolAway`].
    pub(super) fn ensure_there(&self, pool: &str) -> Result<()> {
        let there = match self.folders.get(pool) {
            Some(folder) => folder.look(PoolFolder::ensure_answers),
            // The state directory is no place for its files: no other host has it.
            None if locked(&self.shared).contains(pool) => Err(format!(
                "hosts share it, and this host names no place for it (--pool-folder {pool}=FOLDER, or --rbd-pool {pool}=CEPHPOOL)"
            )),
            None => Ok(()),
        };
        there.map_err(|detail| SystemError::PoolAway { pool: pool.to_owned(), detail })
    }

    /// Returns the folder with the volumes of another host in a shared pool. Blocking.
    ///
    /// *Errors*: [`SystemError::PoolAway`], also if this host does not know the pool as a shared one.
    pub(super) fn volumes_of_host(&self, pool: &str, host: &str) -> Result<PathBuf> {
        self.ensure_there(pool)?;
        let away = |detail: String| SystemError::PoolAway { pool: pool.to_owned(), detail };
        if host.is_empty() || host.starts_with('.') || host.contains('/') {
            return Err(away(format!("{host:?} cannot be the name of a folder")));
        }
        let folder = self.folders.get(pool).filter(|_| locked(&self.shared).contains(pool));
        let folder = folder.ok_or_else(|| away("it is not known as one of type Shared (yet)".to_owned()))?;
        Ok(folder.folder_of(host).join(VOLUMES))
    }

    /// Returns the folder with copies of the firmware state of VMs in a shared pool, which all hosts have in common. Blocking.
    ///
    /// *Errors*: [`SystemError::PoolAway`], also if this host does not know the pool as a shared one.
    pub(super) fn firmware_folder(&self, pool: &str) -> Result<PathBuf> {
        self.ensure_there(pool)?;
        let folder = self.folders.get(pool).filter(|_| locked(&self.shared).contains(pool));
        let folder = folder.ok_or_else(|| SystemError::PoolAway {
            pool: pool.to_owned(),
            detail: "it is not known as one of type Shared (yet)".to_owned(),
        })?;
        Ok(folder.path.join(FIRMWARE))
    }

    /// Lists the pools that are there. In the folders of others nothing is changed: they may be those of another host. Blocking.
    pub(super) fn there(&self, layout: &Layout) -> Result<Vec<String>> {
        let mut pools = layout.pool_names()?;
        pools.retain(|pool| match self.ensure_there(pool) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(pool, %error, "pool left out");
                false
            }
        });
        Ok(pools)
    }

    /// Returns the first pool that is away. Blocking.
    pub(super) fn first_away(&self) -> Option<&str> {
        self.folders.keys().map(String::as_str).find(|pool| self.ensure_there(pool).is_err())
    }

    /// Returns the folders of all pools that have one of their own, as they are now. They are looked at beside each other.
    pub(super) async fn facts(&self) -> Vec<PoolFolderFacts> {
        let look = |folder: &Arc<PoolFolder>| {
            let folder = Arc::clone(folder);
            tokio::spawn(files::blocking(move || folder.facts()))
        };
        let looks: Vec<_> = self.folders.values().map(look).collect();
        let mut facts = Vec::new();
        for look in looks {
            facts.push(look.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
        }
        facts
    }

    /// Returns the pools that are there, and were not at the last report. At the first one these are all.
    pub(super) fn returned(&self, facts: &[PoolFolderFacts]) -> Vec<String> {
        let there = facts.iter().filter(|of| of.problem.is_none()).map(|of| of.pool.clone());
        let there: BTreeSet<String> = there.collect();
        let mut reported = locked(&self.reported);
        let returned = there.difference(&reported).cloned().collect();
        *reported = there;
        returned
    }

    /// Lets a pool count as returned at the next report too.
    pub(super) fn look_again(&self, pool: &str) {
        locked(&self.reported).remove(pool);
    }
}

impl PoolFolder {
    /// The folder as its record has it.
    fn open(records: &Path, pool: &str, user: Option<RunAs>) -> Result<Self> {
        let record_path = records.join(format!("{pool}{RECORD}"));
        let record = files::read_json::<Record>(&record_path)?.transpose().map_err(|detail| {
            let source = io::Error::new(io::ErrorKind::InvalidData, detail);
            SystemError::File { attempt: "understand", path: record_path.clone(), source }
        })?;
        let path = record.as_ref().map(|record| record.folder.clone()).unwrap_or_default();
        let (record, declared) = (Mutex::new(record), Mutex::new(None));
        let (pool, looking) = (pool.to_owned(), Looking::default());
        let patience = PATIENCE;
        Ok(Self { pool, path, is_named: false, user, record_path, record, declared, looking, patience })
    }

    /// The folder with this host's files: one in the folder, if that is shared.
    fn place(&self) -> PathBuf {
        let shared = self.shared(locked(&self.record).as_ref());
        let shared = shared.ok().flatten();
        shared.map_or_else(|| self.path.clone(), |shared| self.folder_of(&shared.host))
    }

    fn is_marked(&self) -> bool {
        locked(&self.record).as_ref().is_some_and(|record| record.is_marked)
    }

    fn marker_path(&self) -> PathBuf {
        self.path.join(MARKER)
    }

    /// The error is why the pool is away, for people.
    fn ensure_there(&self) -> std::result::Result<(), String> {
        let path = self.path.display();
        if !self.is_named {
            return Err(format!(
                "its disks are in {path}, and the agent was started without --pool-folder {}={path}",
                self.pool
            ));
        }
        let mut record = locked(&self.record);
        if let Some(shared) = self.shared(record.as_ref())? {
            return self.ensure_shared(&mut record, &shared);
        }
        let marker = self.read_marker()?;
        match judge(record.as_ref(), marker.as_ref()) {
            Judgement::There => {
                self.note_path(&mut record);
                Ok(())
            }
            Judgement::NoMarker => Err(self.no_marker()),
            Judgement::OtherMarker => Err(self.other_marker()),
            Judgement::New => self.mark(&mut record, marker.is_some()),
        }
    }

    fn no_marker(&self) -> String {
        let (marker, path) = (self.marker_path(), self.path.display());
        format!("{} is not there: is its file system mounted at {path}?", marker.display())
    }

    fn other_marker(&self) -> String {
        format!(
            "{} is of another pool or another host: mount the file system of this pool at {}; if the files in it do belong here, remove \
             that file",
            self.marker_path().display(),
            self.path.display()
        )
    }

    /// Records the path of a folder that is mounted elsewhere since: an agent that is started without the option reports it.
    fn note_path(&self, record: &mut Option<Record>) {
        let Some(known) = record.as_mut().filter(|known| known.folder != self.path) else { return };
        known.folder.clone_from(&self.path);
        if let Err(error) = files::write_json(&self.record_path, known, 0o600) {
            tracing::warn!(
                pool = self.pool,
                error = error.chain(),
                "the path of a pool's folder is not recorded"
            );
        }
    }

    fn write_record(&self, known: &mut Option<Record>, now: Record) -> std::result::Result<(), String> {
        files::write_json(&self.record_path, &now, 0o600).map_err(|error| error.chain())?;
        *known = Some(now);
        Ok(())
    }

    fn read_marker(&self) -> std::result::Result<Option<Marker>, String> {
        let path = self.marker_path();
        let unreadable = |detail: String| format!("{} cannot be read: {detail}", path.display());
        match files::read_json::<Marker>(&path) {
            Ok(Some(Ok(marker))) => Ok(Some(marker)),
            Ok(Some(Err(detail))) => Err(unreadable(detail)),
            Ok(None) => Ok(None),
            Err(error) => Err(unreadable(error.chain())),
        }
    }

    /// Marks the folder, or records that it was marked before a crash.
    fn mark(&self, record: &mut Option<Record>, has_marker: bool) -> std::result::Result<(), String> {
        self.ensure_usable()?;
        if !has_marker {
            // First the record: a marker without one would be that of another host. With an identity that no folder has: the one that
            // was marked before a crash may be unmounted now.
            let id = Identities::random().hex(16);
            let fresh = Record { id: id.clone(), folder: self.path.clone(), is_marked: false, host: None };
            self.write_record(record, fresh)?;
            let marker = Marker { pool: self.pool.clone(), id, shared: false };
            let write = || -> Result<()> {
                files::ensure_folder(&self.path.join(VOLUMES))?;
                files::write_json(&self.marker_path(), &marker, 0o644)
            };
            write().map_err(|error| error.chain())?;
        }
        let Some(begun) = record.clone() else { return Ok(()) };
        self.write_record(record, Record { is_marked: true, folder: self.path.clone(), ..begun })?;
        tracing::info!(pool = self.pool, folder = %self.path.display(), "folder of a pool marked");
        Ok(())
    }

    /// The error is why no guest can have disks in the folder, for people.
    fn ensure_usable(&self) -> std::result::Result<(), String> {
        let path = self.path.display();
        let real =
            self.path.canonicalize().map_err(|error| format!("its folder {path} cannot be used: {error}"))?;
        if !real.is_dir() {
            return Err(format!("{path} is not a folder"));
        }
        let about =
            fs::metadata(&real).map_err(|error| format!("its folder {path} cannot be used: {error}"))?;
        // With the sticky bit only the owner of a file renames or removes it.
        if about.permissions().mode() & (WRITABLE | STICKY) == WRITABLE {
            return Err(format!("every user of this machine can replace the files in {path} (chmod o-w)"));
        }
        let Some(user) = self.user.filter(|user| user.uid != 0) else { return Ok(()) };
        for folder in real.ancestors() {
            if !files::is_passable(folder, &user).map_err(|error| error.chain())? {
                return Err(format!(
                    "the user QEMU runs as cannot pass through {} (chmod o+x, or use another folder)",
                    folder.display()
                ));
            }
        }
        Ok(())
    }

    fn facts(self: &Arc<Self>) -> PoolFolderFacts {
        let looked = self.look(|folder| {
            folder.ensure_answers()?;
            folder.ensure_usable()?;
            files::space(&folder.path).map_err(|error| format!("its space cannot be read: {error}"))
        });
        match looked {
            Ok(space) => PoolFolderFacts {
                pool: self.pool.clone(),
                path: self.path.clone(),
                total_bytes: space.total,
                free_bytes: space.free,
                problem: None,
            },
            Err(problem) => self.away(problem),
        }
    }

    fn away(&self, problem: String) -> PoolFolderFacts {
        PoolFolderFacts {
            pool: self.pool.clone(),
            path: self.path.clone(),
            problem: Some(problem),
            ..PoolFolderFacts::default()
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the space of the pools that this host has used in folders of their own, total and free. Changes nothing. Blocking.
pub(super) fn known(records: &Path) -> BTreeMap<String, std::result::Result<(u64, u64), String>> {
    let names = files::names(records).unwrap_or_default();
    let pools = names.iter().filter_map(|name| name.strip_suffix(RECORD)).filter(|pool| is_name(pool));
    let space = |pool: &str| {
        let folder = PoolFolder::open(records, pool, None).map_err(|error| error.chain())?;
        let folder = Arc::new(PoolFolder { is_named: true, ..folder });
        // One that has not been marked yet is not marked now.
        if !folder.is_marked() {
            return Ok(None);
        }
        let found = folder.facts();
        found.problem.map_or(Ok(Some((found.total_bytes, found.free_bytes))), Err)
    };
    pools.filter_map(|pool| Some((pool.to_owned(), space(pool).transpose()?))).collect()
}

/// Checks the folders that the administrator names against each other and against these folders of berth.
fn check(mappings: &[PoolFolderMapping], own: &[&Path]) -> Result<()> {
    let real: Vec<PathBuf> = mappings.iter().map(|mapping| patience::real_path(&mapping.path)).collect();
    for (place, mapping) in mappings.iter().enumerate() {
        let (before, folder) = (&mappings[..place], &real[place]);
        if before.iter().any(|other| other.pool == mapping.pool) {
            return Err(invalid(mapping, "another --pool-folder is of the same pool"));
        }
        if real[..place].iter().any(|other| files::overlap(other, folder)) {
            return Err(invalid(mapping, "the folder of another pool is the same, in it, or around it"));
        }
        if own.iter().any(|own| files::overlap(&files::real_path(own), folder)) {
            let why = "it contains the state directory or a folder of --image-dir or --disk-dir, or is in one of them";
            return Err(invalid(mapping, why));
        }
    }
    Ok(())
}

fn invalid(mapping: &PoolFolderMapping, why: &'static str) -> SystemError {
    let value = format!("{}={}", mapping.pool, mapping.path.display());
    SystemError::Invalid { what: "--pool-folder", value, why }
}

/// Whether the folder of a pool in the state directory has anything in it.
fn has_entries(pool: &Path) -> Result<bool> {
    for name in files::names(pool)? {
        let path = pool.join(name);
        if !path.is_dir() || fs::read_dir(&path).map_err(files::failed("list", &path))?.next().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
