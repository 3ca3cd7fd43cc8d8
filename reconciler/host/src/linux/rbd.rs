//! Storage pools in Ceph: each disk is an image (RBD), which QEMU opens by its own driver.
//!
//! ```text
//!  <state>/rbd/<pool>/ceph.conf, keyring     copies of the administrator's files
//!                     volumes/<id>.json      a note for each volume of this host
//!                     snapshots/<id>.json    a note for each snapshot of these
//!  <state>/rbd/.import-<pool>/socket         of the program that reads an Image which is imported
//!  <state>/rbd/.work-<number>/               of one that reads or writes the data of an image
//!  in the pool of Ceph:
//!      berth-pool                            the marker, with the identity of the storage pool
//!      berth-<id>                            the image of a volume, with a copy of its note in its metadata
//!      berth-<id>@<snapshot>                 a snapshot of it: s-… of an object, c-… for a copy, i-… for an Image
//!      berth-image-<digest>@base             the content of an Image, of which volumes are clones
//!      berth-import-<host>-<digest>          one that is being written
//!      berth-firmware-<instance>.…           a copy of the firmware variables and of the TPM of a VM
//! ```
//!
//! All programs have time limits, so that a cluster that does not answer holds up nothing but its own pools: see `client`. Must not
//! know why a volume should exist.

mod changes;
mod client;
mod data;
mod diff;
mod fence;
mod filled;
mod firmware;
mod images;
mod luks;
mod note;
mod replies;
mod restored;
mod restores;
mod snapshots;
mod unfinished;
mod usage;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_qemu::machine::{DiskSpec, RbdImage};
use berth_qemu::process::RunAs;

use super::files::{Space, blocking};
use super::layout::Layout;
use super::program::Output;
use super::qemu_img::QEMU_IMG;
use crate::{
    CephAccess, NewSnapshot, PoolFolderFacts, PoolFolderMapping, RbdPoolMapping, SharedPool, SystemError,
};
pub(super) use changes::Changes;
pub(super) use client::lend;
use client::{Client, PATIENCE, is_absent};
use data::options_of;
pub(super) use filled::Data;
pub(super) use restored::Begun;

type Result<T> = std::result::Result<T, SystemError>;
/// The result of a look. The error is why the pool is away, for people.
type Found = std::result::Result<(), String>;

/// The image that marks a pool of Ceph, and the names of berth's entries in the metadata of images: the note, and the clients of the machine
/// that was started last with the disk.
const MARKER: &str = "berth-pool";
const META: &str = "berth";
const CLIENTS: &str = "berth-clients";
/// How long a look that found the pool, or did not, is true.
const THERE_FOR: Duration = Duration::from_secs(60);
const AWAY_FOR: Duration = Duration::from_secs(5);
/// How old a look and the space may be that the host reports.
const REPORTED_FOR: Duration = Duration::from_secs(15);
/// When the clients of a running machine that is given a disk are noted: after the first pause, and once more after the second.
const PLUGGED_WITHIN: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];

/// Snapshots in Ceph, by their pools.
type InCeph<'a> = Vec<(&'a Arc<RbdPool>, Vec<NewSnapshot>)>;

/// The storage pools that are in Ceph.
#[derive(Clone, Debug, Default)]
pub(super) struct RbdPools(Arc<BTreeMap<String, Arc<RbdPool>>>);

/// A storage pool in Ceph.
#[derive(Debug)]
pub(super) struct RbdPool {
    mapping: RbdPoolMapping,
    client: Arc<Client>,
    notes: PathBuf,
    /// The folder for the socket of the program that reads an image.
    sockets: PathBuf,
    /// The user of programs that read images.
    tools_user: Option<RunAs>,
    /// How it is declared. None: not known yet, or not as a pool that hosts share.
    declared: Mutex<Option<SharedPool>>,
    /// When it was looked at last, and why it is away.
    seen: Mutex<Option<(Instant, Found)>>,
    /// The space that was reported last, and when.
    space: Mutex<Option<(Instant, Space)>>,
    /// The space of its images, and the lock that is held while it is measured.
    usage: Mutex<usage::Usage>,
    measuring: Arc<tokio::sync::Mutex<()>>,
    /// Held during a look.
    looking: tokio::sync::Mutex<()>,
    /// Whether QEMU's programs have opened an image in it.
    is_opened: AtomicBool,
    /// The volumes whose images say that this host has them.
    own: Mutex<BTreeSet<String>>,
    /// Held while the content of an Image is imported.
    importing: Arc<tokio::sync::Mutex<()>>,
    /// The volumes that a call is making, or removing unfinished.
    making: Mutex<BTreeSet<String>>,
    /// Held while the note of a volume that is there, or of a snapshot, changes: it goes to the trash, comes back, gets an owner, is restored,
    /// or its key is wrapped again.
    trashing: tokio::sync::Mutex<()>,
    /// Held while images of volumes, or snapshots of which volumes were clones, are deleted.
    removing: Arc<tokio::sync::Mutex<()>>,
    /// When it was looked last whether such snapshots can be deleted.
    collected: Mutex<Option<Instant>>,
    /// The snapshots that something is still to be made from. None: not known yet.
    kept: Mutex<Option<BTreeSet<String>>>,
}

impl RbdPools {
    /// Reads nothing of the cluster.
    ///
    /// *Errors*: two pools of Ceph, or a folder too, are named for one pool; the user has an impossible name.
    pub(super) fn open(
        layout: &Layout,
        mappings: &[RbdPoolMapping],
        folders: &[PoolFolderMapping],
        access: &CephAccess,
        tools_user: Option<RunAs>,
    ) -> Result<Self> {
        let invalid =
            |value: &str, why| SystemError::Invalid { what: "RBD pool", value: value.to_owned(), why };
        if !(mappings.is_empty() || RbdImage::is_name(&access.user) && access.conf.is_absolute()) {
            return Err(invalid(
                &access.user,
                "--ceph-user is a name without client., and --ceph-conf an absolute path",
            ));
        }
        let mut pools = BTreeMap::new();
        for mapping in mappings {
            if folders.iter().any(|folder| folder.pool == mapping.pool) {
                return Err(invalid(
                    &mapping.pool,
                    "it has a folder (--pool-folder) and a pool of Ceph (--rbd-pool)",
                ));
            }
            let pool = Arc::new(RbdPool::new(layout, mapping.clone(), access.clone(), tools_user));
            if pools.insert(mapping.pool.clone(), pool).is_some() {
                return Err(invalid(&mapping.pool, "it is named twice (--rbd-pool)"));
            }
        }
        data::forget_work(layout)?;
        Ok(Self(Arc::new(pools)))
    }

    pub(super) fn get(&self, pool: &str) -> Option<&Arc<RbdPool>> {
        self.0.get(pool)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<RbdPool>> {
        self.0.values()
    }

    /// Takes over how the pools are declared. One that is not among these stays as it was declared last.
    pub(super) fn declare(&self, pools: &BTreeMap<String, Option<SharedPool>>) {
        for (name, declared) in pools {
            let Some(pool) = self.get(name) else { continue };
            let mut known = locked(&pool.declared);
            if *known != *declared {
                known.clone_from(declared);
                *locked(&pool.seen) = None;
            }
        }
    }

    /// Returns the pool, of those in Ceph, that has this volume of this host, also while it is away.
    pub(super) async fn pool_of_volume(&self, id: &str) -> Result<Option<String>> {
        for pool in self.all() {
            if pool.has_volume(id).await? {
                return Ok(Some(pool.mapping.pool.clone()));
            }
        }
        Ok(None)
    }

    /// Checks that those of these disks that are in Ceph are this host's still, by the metadata of their images: another host may have taken
    /// them from this one, of which a machine would be a second writer.
    ///
    /// *Errors*: [`SystemError::VolumeLost`], [`SystemError::PoolAway`]; [`SystemError::VolumeBusy`] while one is being restored.
    pub(super) async fn ensure_own(&self, disks: &[DiskSpec]) -> Result<()> {
        for disk in disks {
            if !RbdImage::is_rbd(&disk.file) {
                continue;
            }
            let mut is_own = false;
            for pool in self.all() {
                if pool.restoring(&disk.id).await?.is_some() {
                    let detail = "it is being restored from a snapshot in Ceph";
                    return Err(SystemError::VolumeBusy { id: disk.id.clone(), detail });
                }
                is_own = is_own || pool.is_own(&disk.id).await?;
            }
            if !is_own {
                return Err(SystemError::VolumeLost { id: disk.id.clone() });
            }
        }
        Ok(())
    }

    /// Checks the same before a machine opens the disks, and notes that it may write to them.
    ///
    /// *Errors*: as [`RbdPools::ensure_own`].
    pub(super) async fn begin_use(&self, disks: &[DiskSpec]) -> Result<()> {
        self.ensure_own(disks).await?;
        for disk in disks.iter().filter(|disk| RbdImage::is_rbd(&disk.file) && !disk.read_only) {
            for pool in self.all() {
                pool.note_use(&disk.id).await?;
            }
        }
        Ok(())
    }

    /// Notes by which clients a machine that was just started has those of its disks that are in Ceph, for the host that takes one.
    ///
    /// *Errors*: as [`RbdPools::ensure_own`], which is asked again: one that is taken from now on is taken from these clients too.
    pub(super) async fn note_clients(&self, disks: &[DiskSpec]) -> Result<()> {
        for disk in disks {
            if !RbdImage::is_rbd(&disk.file) || disk.read_only {
                continue;
            }
            for pool in self.all() {
                if pool.has_volume(&disk.id).await? {
                    pool.note_clients(&disk.id).await?;
                }
            }
        }
        self.ensure_own(disks).await
    }

    /// Does the same soon, as far as it can, for a disk that a running machine is about to open.
    pub(super) fn note_clients_later(&self, disk: &DiskSpec) {
        if !RbdImage::is_rbd(&disk.file) {
            return;
        }
        let (pools, disks) = (self.clone(), [disk.clone()]);
        tokio::spawn(async move {
            for pause in PLUGGED_WITHIN {
                tokio::time::sleep(pause).await;
                if let Err(error) = pools.note_clients(&disks).await {
                    tracing::warn!(volume = disks[0].id, error = error.chain(), "client of Ceph not noted");
                }
            }
        });
    }

    /// Takes over which snapshots something is still to be made from: they are not removed meanwhile.
    pub(super) fn keep_snapshots(&self, kept: &BTreeSet<String>) {
        self.all().for_each(|pool| pool.keep_snapshots(kept));
    }

    /// Refuses an operation that no pool in Ceph has.
    pub(super) fn refuse(&self, pool: &str, why: &'static str) -> Result<()> {
        match self.get(pool) {
            Some(_) => Err(SystemError::Invalid { what: "storage pool", value: pool.to_owned(), why }),
            None => Ok(()),
        }
    }

    /// Returns those of these snapshots that are in Ceph, by their pools, and the others.
    pub(super) fn divide(&self, snapshots: &[NewSnapshot]) -> (InCeph<'_>, Vec<NewSnapshot>) {
        let (in_ceph, files): (Vec<_>, Vec<_>) =
            snapshots.iter().cloned().partition(|new| self.get(&new.pool).is_some());
        let of = |pool: &str| in_ceph.iter().filter(|new| new.pool == pool).cloned().collect::<Vec<_>>();
        let pools = self.0.iter().map(|(name, pool)| (pool, of(name)));
        (pools.filter(|(_, of_pool)| !of_pool.is_empty()).collect(), files)
    }

    /// Returns the pools as they are now. They are looked at beside each other.
    pub(super) async fn facts(&self) -> Vec<PoolFolderFacts> {
        let pools: Vec<_> = self.all().cloned().collect();
        let looks = pools.into_iter().map(|pool| async move {
            let facts = pool.facts().await;
            if facts.problem.is_none()
                && let Err(error) = pool.sweep().await
            {
                tracing::warn!(pool = facts.pool, error = error.chain(), "unfinished volumes not removed");
            }
            if facts.problem.is_none() {
                pool.collect_later();
            }
            facts
        });
        futures::future::join_all(looks).await
    }
}

impl RbdPool {
    fn new(layout: &Layout, mapping: RbdPoolMapping, access: CephAccess, tools_user: Option<RunAs>) -> Self {
        let folder = folder_of(layout).join(&mapping.pool);
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        Self {
            client: Arc::new(Client::new(access, mapping.pool.clone(), folder.clone())),
            notes: folder.join("volumes"),
            sockets: Self::import_folder(&folder),
            tools_user,
            mapping,
            declared: Mutex::default(),
            seen: Mutex::default(),
            space: Mutex::default(),
            usage: Mutex::default(),
            measuring: Arc::default(),
            looking: tokio::sync::Mutex::default(),
            is_opened: AtomicBool::default(),
            own: Mutex::default(),
            importing: Arc::default(),
            making: Mutex::default(),
            trashing: tokio::sync::Mutex::default(),
            removing: Arc::default(),
            collected: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// The image of this name, as QEMU opens it.
    fn image(&self, name: &str) -> RbdImage {
        RbdImage {
            pool: self.mapping.ceph_pool.clone(),
            namespace: self.mapping.namespace.clone(),
            image: name.to_owned(),
            user: self.client.user().to_owned(),
            conf: self.client.conf(),
        }
    }

    /// The image of this name, as `rbd` has it.
    fn spec(&self, name: &str) -> String {
        self.image(name).name()
    }

    /// The name of this host.
    fn host(&self) -> String {
        locked(&self.declared).as_ref().map(|shared| shared.host.clone()).unwrap_or_default()
    }

    /// Checks that the pool is there, by a look of the last minute or a new one.
    ///
    /// *Errors*: [`SystemError::PoolAway`].
    pub(super) async fn ensure_there(&self) -> Result<()> {
        self.seen_within(THERE_FOR).await.map_err(|detail| self.client.away(detail))
    }

    /// Returns what a look found that is not older than this, or a new one. One look goes on at a time. Of a pool that is away, only one
    /// caller waits for it: a cluster that does not answer must not hold up all that ask.
    async fn seen_within(&self, there_for: Duration) -> Found {
        if let Some(found) = self.recent(there_for) {
            return found;
        }
        let _alone = match (self.looking.try_lock(), self.known_away()) {
            (Ok(alone), _) => alone,
            (Err(_), Some(away)) => return Err(away),
            (Err(_), None) => self.looking.lock().await,
        };
        match self.recent(there_for) {
            Some(found) => found,
            None => self.look_now().await,
        }
    }

    fn recent(&self, there_for: Duration) -> Option<Found> {
        let (at, found) = locked(&self.seen).clone()?;
        let fresh_for = if found.is_ok() { there_for } else { AWAY_FOR };
        (at.elapsed() < fresh_for).then_some(found)
    }

    /// Returns why the pool was away at the last look, however old it is.
    fn known_away(&self) -> Option<String> {
        locked(&self.seen).as_ref().and_then(|(_, found)| found.clone().err())
    }

    async fn facts(&self) -> PoolFolderFacts {
        let problem = match self.seen_within(REPORTED_FOR).await {
            Ok(()) => self.measure().await.err(),
            Err(problem) => Some(problem),
        };
        let space = locked(&self.space).filter(|_| problem.is_none()).map(|(_, space)| space);
        PoolFolderFacts {
            pool: self.mapping.pool.clone(),
            path: PathBuf::from(format!("rbd:{}", self.spec("").trim_end_matches('/'))),
            total_bytes: space.map_or(0, |space| space.total),
            free_bytes: space.map_or(0, |space| space.free),
            problem,
        }
    }

    /// Looks at the pool, and remembers what was found. The error is why it is away, for people.
    async fn look_now(&self) -> Found {
        let look = tokio::time::timeout(2 * PATIENCE, self.look());
        let found = look
            .await
            .unwrap_or_else(|_| Err(format!("Ceph does not answer for {} s", 2 * PATIENCE.as_secs())));
        self.note_look(found.clone());
        found
    }

    fn note_look(&self, found: Found) {
        *locked(&self.seen) = Some((Instant::now(), found));
    }

    async fn look(&self) -> Found {
        let shared = locked(&self.declared).clone();
        let Some(shared) = shared.filter(|shared| shared.is_rbd) else {
            return Err(
                "it is not declared as one of type RBD, and this host names a pool of Ceph for it".to_owned()
            );
        };
        let id = shared.id.ok_or("it is new, and has no identity yet")?;
        let client = Arc::clone(&self.client);
        blocking(move || client.prepare()).await?;
        match self.marker().await.map_err(|error| text_of(&error))? {
            Some(found) if found == id => {}
            Some(_) => return Err(self.other_marker()),
            None if shared.marks => {
                self.mark(&id).await.map_err(|error| text_of(&error))?;
                if self.marker().await.map_err(|error| text_of(&error))?.as_deref() != Some(&*id) {
                    return Err(self.other_marker());
                }
            }
            None => {
                return Err(format!(
                    "the image {} is not there: the first host of the pool makes it, see status.shared of the StoragePool",
                    self.spec(MARKER)
                ));
            }
        }
        self.try_driver().await
    }

    fn other_marker(&self) -> String {
        format!("the image {} is the marker of another storage pool", self.spec(MARKER))
    }

    /// Returns the identity in the marker.
    async fn marker(&self) -> Result<Option<String>> {
        self.meta(MARKER).await
    }

    /// Makes the marker, unless there is one.
    async fn mark(&self, id: &str) -> Result<()> {
        let spec = self.spec(MARKER);
        let made = self.rbd(&["create", "--size", "1M", &spec]).await?;
        if !made.ok && !made.stderr.contains("(17)") {
            return Err(Client::failed(&made));
        }
        self.set_meta(MARKER, id).await?;
        tracing::info!(pool = self.mapping.pool, image = spec, "pool of Ceph marked");
        Ok(())
    }

    /// Returns berth's note in the metadata of an image. None: there is no such image, or it has none.
    async fn meta(&self, image: &str) -> Result<Option<String>> {
        self.entry(image, META).await
    }

    async fn entry(&self, image: &str, name: &str) -> Result<Option<String>> {
        let found = self.rbd(&["image-meta", "get", &self.spec(image), name]).await?;
        if found.ok {
            return Ok(Some(String::from_utf8_lossy(&found.stdout).trim().to_owned()));
        }
        let has_none = found.stderr.contains("getting metadata failed: (2)");
        if has_none || is_absent(&found) { Ok(None) } else { Err(Client::failed(&found)) }
    }

    async fn set_meta(&self, image: &str, value: &str) -> Result<()> {
        self.set_entry(image, META, value).await
    }

    async fn set_entry(&self, image: &str, name: &str, value: &str) -> Result<()> {
        self.must(&["image-meta", "set", &self.spec(image), name, value], PATIENCE).await.map(drop)
    }

    /// Checks once that QEMU can open images of the pool, with the same files.
    async fn try_driver(&self) -> Found {
        if self.is_opened.load(Ordering::Relaxed) {
            return Ok(());
        }
        let options = options_of(&self.image(MARKER), false);
        let args = ["info", "--output=json", "--image-opts", &options];
        let tried = self.client.within(&QEMU_IMG, &args, PATIENCE).await.map_err(|error| text_of(&error))?;
        if !tried.ok {
            return Err(format!(
                "QEMU cannot open images of Ceph on this host (Debian, Ubuntu: apt install qemu-block-extra): {}",
                tried.stderr.lines().last().unwrap_or_default()
            ));
        }
        self.is_opened.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Asks for the space of the pool. One that was reported once is known also while the cluster does not report it.
    async fn measure(&self) -> Found {
        if locked(&self.space).is_some_and(|(at, _)| at.elapsed() < REPORTED_FOR) {
            return Ok(());
        }
        let reply = self.client.ceph(&["df", "--format", "json"]).await.map_err(|error| text_of(&error))?;
        if !reply.ok {
            return Err(format!("ceph df failed: {}", reply.stderr.lines().last().unwrap_or_default()));
        }
        let found = replies::space(&reply.stdout, &self.mapping.ceph_pool)?;
        let mut known = locked(&self.space);
        *known = found.map(|space| (Instant::now(), space)).or(*known);
        match *known {
            Some(_) => Ok(()),
            None => {
                Err("Ceph does not report the space of its pools: is a manager (ceph-mgr) there?".to_owned())
            }
        }
    }

    /// Runs `rbd` for a question or a small change.
    async fn rbd(&self, args: &[&str]) -> Result<Output> {
        self.rbd_within(args, PATIENCE).await
    }

    async fn rbd_within(&self, args: &[&str], limit: Duration) -> Result<Output> {
        self.noted(self.client.rbd(args, limit).await)
    }

    /// Runs `rbd`, which has to succeed.
    async fn must(&self, args: &[&str], limit: Duration) -> Result<Output> {
        succeeded(self.rbd_within(args, limit).await?)
    }

    /// Does the same, and gives the output to `take` as it arrives.
    async fn must_stream(
        &self,
        args: &[&str],
        limit: Duration,
        take: impl FnMut(&[u8]) + Send,
    ) -> Result<Output> {
        succeeded(self.noted(self.client.stream_rbd(args, limit, take).await)?)
    }

    /// Notes that the pool is away if a program has found that.
    fn noted(&self, done: Result<Output>) -> Result<Output> {
        if let Err(SystemError::PoolAway { detail, .. }) = &done {
            self.note_look(Err(detail.clone()));
        }
        done
    }

    /// The error of a reply that is not understood.
    fn not_understood(detail: String) -> SystemError {
        SystemError::Program { program: "rbd", detail }
    }
}

fn succeeded(done: Output) -> Result<Output> {
    if done.ok { Ok(done) } else { Err(Client::failed(&done)) }
}

/// The folder of all pools.
fn folder_of(layout: &Layout) -> PathBuf {
    layout.root().join("rbd")
}

/// The cause of an error of a look, for people.
fn text_of(error: &SystemError) -> String {
    match error {
        SystemError::PoolAway { detail, .. } => detail.clone(),
        other => other.chain(),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
