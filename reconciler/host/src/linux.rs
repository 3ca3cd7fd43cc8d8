//! The real host: files in one state directory, rtnetlink, nftables, dnsmasq and QEMU.
//!
//! ```text
//!  <state>/images/<digest>                       verified images
//!          pools/<pool>.json                     where the folder of a pool is, if it has one of its own
//!          pools/<pool>/volumes/<id>.qcow2       disks, each with a note beside it
//!          pools/<pool>/trash/…                  deleted ones
//!          pools/<pool>/snapshots/<id>.qcow2     files below disks, which nothing writes
//!          pools/<pool>/readers/<instance>/…     hard links to them, for one machine
//!          rbd/<pool>/…                          the notes of disks in Ceph
//!          instances/<id>/…                      machines
//!          network/<bridge>/…                    DHCP
//!          pci/<address>.json                    PCI devices of machines, and the drivers that they had
//! ```
//!
//! Must not know why a state is desired. The files are the source of truth: nothing that can be read from them is kept
//! in memory.

mod backup_folders;
mod backups;
mod device_records;
mod direct_io;
mod doctor;
mod files;
mod guests;
mod host;
mod huge_pages;
mod images;
mod layout;
pub mod libvirt;
mod machines;
mod network;
mod passthrough;
mod pool_folders;
mod process_details;
mod program;
mod qemu_img;
pub mod qemu_processes;
mod rbd;
pub mod record;
mod resident;
mod seed;
mod shares;
mod units;
mod usage;
mod usb_devices;
mod users;
mod vaults;
mod vgpus;
mod volumes;
mod vsock;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::block;
use berth_qemu::console::ConsoleStream;
use berth_qemu::guest_agent::GuestAgent;
use berth_qemu::hypervisor::{CpuTime, Hypervisor, ProcessIdentity, ProcessState};
use berth_qemu::machine::{DiskKey, DiskSpec, Medium, NicSpec};
use berth_qemu::nics::LentTap;
use berth_qemu::process::RunAs;
use berth_qemu::qmp::{Events, Qmp};
use ipnet::IpNet;
use nix::unistd::{Uid, User};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::RwLock;

use super::{
    BackupFolderMapping, BridgedNetwork, CephAccess, ChecksumSource, Credentials, DeviceSpecs, ExternalLease,
    Firewall, ForeignObject, Forwarding, HostFacts, HostInfo, HostLinks, HostUse, ImageFacts, ImageFile,
    ImageSource, Images, InstanceFacts, LaunchRequest, LeaseTaken, MachineUse, Machines, Merged,
    NetworkConfig, Networks, NewImage, NewMove, NewRestore, NewSnapshot, NewTake, NewVolume, PciMapping,
    PoolFolderMapping, ProcessDetails, ProcessFacts, Progress, RbdPoolMapping, RemoteImage, ResolvedImage,
    Result, SealedKey, ShareMapping, SharedPool, SnapshotFacts, StateAccess, SystemError, Taken, TapConfig,
    TapFacts, Trace, TraceRequest, TrashedVolume, Uplink, UsbMapping, VgpuMapping, VolumeFacts, VolumeOwner,
    Volumes,
};
use backup_folders::BackupFolders;
pub use backups::{EntryFacts, ObjectStore, RepositoryEntry, RepositoryReader};
use direct_io::DirectIo;
pub use doctor::{DoctorFacts, DoctorKvm, DoctorMemory, DoctorQemu, DoctorService, doctor_facts};
use files::blocking;
pub use guests::shut_down_guests;
use host::LinuxInfo;
pub use images::{Archive, ImageRules, unpack};
use images::{LinuxImages, Unpacker};
use layout::Layout;
use machines::LinuxMachines;
use network::{LinuxNetworks, UplinkChoice};
pub use network::{bridge_mac, relay_link};
use passthrough::{HostKernel, Passthrough};
use pool_folders::PoolFolders;
use rbd::RbdPools;
use shares::Shares;
use usb_devices::UsbPassthrough;
use users::Users;
use vaults::LinuxVaults;
use vgpus::Vgpus;
use volumes::LinuxVolumes;

pub use users::UidRange;

/// The configuration of a host.
#[derive(Clone, Debug)]
pub struct LinuxConfig {
    /// The state directory, which contains all files except for those of pools with a folder of their own.
    pub state_dir: PathBuf,
    /// The users that QEMU processes run as, one for each instance. None: QEMU runs as the agent's own user.
    pub qemu_users: Option<UidRange>,
    /// The maximum size of a downloaded image, in bytes. Default 256 GiB.
    pub max_image_bytes: u64,
    /// The allowed sources of images.
    pub images: ImageRules,
    /// The folders whose files may become disks. Default: none.
    pub disk_folders: Vec<PathBuf>,
    /// The address at which other hosts reach this one. None: the source address of the default route.
    pub address: Option<Ipv4Addr>,
    /// The interface on which public addresses are announced. None: the interface of the default route, or else that of
    /// the address.
    pub public_interface: Option<String>,
    /// The PCI devices that guests may have. Default: none.
    pub pci_devices: Vec<PciMapping>,
    /// The USB devices that guests may have. Default: none.
    pub usb_devices: Vec<UsbMapping>,
    /// The vGPUs that guests may have. Default: none.
    pub vgpus: Vec<VgpuMapping>,
    /// The folders that guests may have. Default: none.
    pub shares: Vec<ShareMapping>,
    /// The folders for backups. Default: none.
    pub backup_folders: Vec<BackupFolderMapping>,
    /// The folders of pools that have one of their own. Default: none.
    pub pool_folders: Vec<PoolFolderMapping>,
    /// The pools of Ceph of storage pools. Default: none.
    pub rbd_pools: Vec<RbdPoolMapping>,
    /// How this host reaches Ceph.
    pub ceph: CephAccess,
    /// The CPUs that single machines may have for themselves. Other machines run on the others. Default: none.
    pub dedicated_cpus: BTreeSet<u32>,
}

/// The user of all QEMU processes in versions of berth before each instance had its own, where the distribution created
/// none for QEMU.
const QEMU_ALONE: RunAs = RunAs { uid: 60_927, gid: 60_927 };

impl LinuxConfig {
    /// The defaults. If the agent is not root, QEMU runs as the agent's own user.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            qemu_users: Uid::effective().is_root().then(UidRange::default),
            max_image_bytes: 256 << 30,
            images: ImageRules::default(),
            disk_folders: Vec::new(),
            address: None,
            public_interface: None,
            pci_devices: Vec::new(),
            usb_devices: Vec::new(),
            vgpus: Vec::new(),
            shares: Vec::new(),
            backup_folders: Vec::new(),
            pool_folders: Vec::new(),
            rbd_pools: Vec::new(),
            ceph: CephAccess::default(),
            dedicated_cpus: BTreeSet::new(),
        }
    }
}

/// Returns the CPUs of this machine that this process, and so every machine that it starts, may run on.
pub fn usable_cpus() -> std::io::Result<BTreeSet<u32>> {
    Ok(berth_qemu::process::cpus_of_thread(0)?.into_iter().collect())
}

/// The user of all QEMU processes before each instance had its own; processes from that time still run as it.
fn shared_user() -> Option<RunAs> {
    let nobody = User::from_name("nobody").ok().flatten().map(|u| u.uid.as_raw());
    let distribution = RunAs::default_user().filter(|user| Some(user.uid) != nobody);
    distribution.or_else(|| Uid::effective().is_root().then_some(QEMU_ALONE))
}

/// The machine that the agent runs on.
#[derive(Debug)]
pub struct LinuxSystem {
    layout: Layout,
    images: Arc<LinuxImages>,
    vaults: LinuxVaults,
    volumes: LinuxVolumes,
    networks: LinuxNetworks,
    uplink: UplinkChoice,
    machines: LinuxMachines,
    passthrough: Passthrough,
    usb: UsbPassthrough,
    vgpus: Vgpus,
    shares: Shares,
    backup_folders: BackupFolders,
    pool_folders: PoolFolders,
    rbd: RbdPools,
    host: LinuxInfo,
    direct_io: Arc<DirectIo>,
    /// The user of programs that read or change images.
    tools_user: Option<RunAs>,
    /// Locked for writing while an image is removed, for reading while a volume is created on one.
    bases: RwLock<()>,
}

impl LinuxSystem {
    /// Gives this process three times the CPU time of all machines together, where all want it and no service manager decides it.
    pub fn precede_machines(&self) {
        units::precede_machines();
    }

    /// Creates missing directories. Blocks for a few file operations.
    ///
    /// *Errors*: when QEMU's user cannot traverse the path to the state directory; when the folders of pools contradict each other or
    /// the state directory.
    pub fn open(config: LinuxConfig) -> Result<Self> {
        let layout = Layout::new(&config.state_dir);
        files::ensure_folder(layout.root())?;
        check_passable(layout.root(), config.qemu_users.map(UidRange::example).as_ref())?;
        for folder in [layout.pools(), layout.networks()] {
            files::ensure_folder(&folder)?;
        }
        let pool_folders = open_pool_folders(&layout, &config)?;
        let shared = config.qemu_users.and(shared_user());
        let rbd = RbdPools::open(&layout, &config.rbd_pools, &config.pool_folders, &config.ceph, shared)?;
        let layout = layout.with_pool_places(pool_folders.places());
        let own: Vec<PathBuf> =
            std::iter::once(files::real_path(layout.root())).chain(pool_folders.real_paths()).collect();
        let unpacker = Unpacker { user: shared, max_bytes: config.max_image_bytes };
        let images = LinuxImages::open(layout.clone(), unpacker, config.images)?;
        if config.qemu_users.is_some() {
            // QEMU opens images by hard links of its own; only processes of an older version of berth use this path.
            files::ensure_folder_for(&layout.images(), shared.as_ref())?;
        }
        let users = Users::new(layout.clone(), config.qemu_users, shared);
        let volumes = LinuxVolumes::new(layout.clone(), None)
            .with_adoptable(config.disk_folders)
            .with_pool_folders(pool_folders.clone());
        volumes.forget_partial()?;
        volumes.forget_moves()?;
        let shares = Shares::new(config.shares, own.clone());
        let machines = LinuxMachines::open(layout.clone(), users, config.dedicated_cpus, shares.clone())?;
        Ok(Self {
            images: Arc::new(images),
            vaults: LinuxVaults::default(),
            volumes,
            networks: LinuxNetworks::new(layout.clone()),
            machines: machines.with_pool_folders(pool_folders.clone()),
            shares,
            backup_folders: BackupFolders::new(config.backup_folders, own),
            pool_folders,
            rbd,
            passthrough: Passthrough::new("/", layout.pci(), config.pci_devices, Arc::new(HostKernel)),
            usb: UsbPassthrough::new("/", layout.usb(), config.usb_devices, Arc::new(HostKernel)),
            vgpus: Vgpus::new("/", layout.vgpus(), config.vgpus, Arc::new(HostKernel)),
            host: LinuxInfo::new(config.address),
            direct_io: Arc::default(),
            tools_user: shared,
            uplink: UplinkChoice { named: config.public_interface, address: config.address },
            bases: RwLock::default(),
            layout,
        })
    }

    /// Replaces this machine's QEMU by another hypervisor.
    pub fn with_hypervisor(mut self, hypervisor: Arc<dyn Hypervisor>) -> Self {
        self.machines.set_hypervisor(hypervisor);
        self
    }

    /// Runs work on the volumes of a pool.
    async fn on_pool<T: Send + 'static>(
        &self,
        pool: &str,
        work: impl FnOnce(&LinuxVolumes) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.on_pools(BTreeSet::from([pool.to_owned()]), work).await
    }

    async fn on_pools<T: Send + 'static>(
        &self,
        pools: BTreeSet<String>,
        work: impl FnOnce(&LinuxVolumes) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let volumes = self.volumes.clone();
        self.pool_folders.on_pools(&pools, move || work(&volumes)).await
    }

    /// Runs work on the volumes of all pools that are there, which may be repeated.
    async fn on_all_pools<T: Send + 'static>(
        &self,
        work: impl Fn(&LinuxVolumes) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        let volumes = self.volumes.clone();
        self.pool_folders.on_all(move || work(&volumes)).await
    }

    /// The clock of the trash.
    async fn trash_clock(&self) -> Result<u64> {
        let volumes = self.volumes.clone();
        blocking(move || volumes.trash_clock()).await
    }

    /// Refuses snapshots in pools of Ceph.
    fn refuse_snapshots(&self, pool: &str) -> Result<()> {
        self.rbd.refuse(pool, "a pool of type RBD has no snapshots of disks")
    }

    /// Adds how QEMU opens the volume's file.
    async fn with_cache(&self, volume: VolumeFacts) -> Result<VolumeFacts> {
        let io_uring = self.host.installation().await.is_ok_and(|installation| installation.io_uring);
        let (direct_io, pool) = (Arc::clone(&self.direct_io), volume.pool.clone());
        let tried = move |_: &LinuxVolumes| {
            Ok(VolumeFacts { cache: direct_io.cache_of(&volume.path, io_uring), ..volume })
        };
        self.on_pool(&pool, tried).await
    }
}

/// The pools that a volume goes from and to.
fn pools_of(volume: &NewMove) -> BTreeSet<String> {
    BTreeSet::from([volume.from.clone(), volume.to.clone()])
}

/// Opens the folders of pools, which lie apart from all other folders of berth that tenants can reach.
fn open_pool_folders(layout: &Layout, config: &LinuxConfig) -> Result<PoolFolders> {
    let given = config.images.folders.iter().chain(&config.disk_folders).map(PathBuf::as_path);
    let own: Vec<&Path> = std::iter::once(layout.root()).chain(given).collect();
    let user = config.qemu_users.map(UidRange::example);
    PoolFolders::open(&config.pool_folders, &layout.pools(), &own, user)
}

/// QEMU's user opens files by their full paths, so it needs to traverse every parent directory. Checked here, where the
/// error can contain advice, rather than by QEMU at the first start.
fn check_passable(root: &Path, run_as: Option<&RunAs>) -> Result<()> {
    let Some(user) = run_as.filter(|u| u.uid != 0) else {
        return Ok(());
    };
    let root = std::path::absolute(root).map_err(files::failed("find", root))?;
    // The state directory itself belongs to berth, but may have been created with a narrower mode.
    let own = std::fs::metadata(&root).map_err(files::failed("look at", &root))?;
    let mode = own.permissions().mode();
    if mode & 0o001 == 0 {
        let wider = std::fs::Permissions::from_mode((mode & 0o7777) | 0o011);
        std::fs::set_permissions(&root, wider).map_err(files::failed("change the mode of", &root))?;
    }
    for folder in root.ancestors().skip(1) {
        if !files::is_passable(folder, user)? {
            return Err(SystemError::Invalid {
                what: "state directory",
                value: folder.display().to_string(),
                why: "the user QEMU runs as cannot pass through this folder (chmod o+x, or use another state directory)",
            });
        }
    }
    Ok(())
}

#[async_trait]
impl Images for LinuxSystem {
    async fn image(&self, source: &ImageSource) -> Result<Option<ImageFacts>> {
        self.images.image(source).await
    }

    async fn pull(
        &self,
        source: &ImageSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        self.images.pull(source, credentials, progress).await
    }

    async fn copy_image(
        &self,
        source: &ImageSource,
        from: Arc<dyn RemoteImage>,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        self.images.copy(source, from, progress).await
    }

    async fn open_image(&self, source: &ImageSource, offset: u64) -> Result<Option<ImageFile>> {
        self.images.open_file(source, offset).await
    }

    async fn make_image(&self, new: &NewImage) -> Result<ImageFacts> {
        if let Some(made) = self.images.made(new).await? {
            return Ok(made);
        }
        let (pool, snapshot) = (new.pool.clone(), new.snapshot.clone());
        let chain = self.on_pool(&new.pool, move |v| v.chain_of_snapshot(&pool, &snapshot)).await?;
        self.images.make(new, chain).await
    }

    async fn uploaded(&self, source: &ImageSource, size: u64) -> Result<u64> {
        self.images.uploaded(source, size).await
    }

    async fn append_upload(&self, source: &ImageSource, offset: u64, bytes: Vec<u8>) -> Result<()> {
        self.images.append_upload(source, offset, bytes).await
    }

    async fn resolve(&self, source: &ChecksumSource, credentials: &Credentials) -> Result<ResolvedImage> {
        self.images.resolve(source, credentials).await
    }

    async fn compute_checksum(
        &self,
        source: &ChecksumSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<String> {
        self.images.compute(source, credentials, progress).await
    }

    async fn images(&self) -> Result<Vec<ImageFacts>> {
        self.images.images().await
    }

    async fn remove_image(&self, digest: &str) -> Result<()> {
        let _nobody_makes_a_volume = self.bases.write().await;
        let wanted = digest.to_owned();
        let user = self.on_all_pools(move |v| v.based_on(&wanted)).await?;
        match user {
            Some(volume) => Err(SystemError::ImageInUse { digest: digest.to_owned(), volume }),
            None => self.images.remove(digest).await,
        }
    }

    async fn add_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        self.images.add_reader(digest, namespace).await
    }

    async fn forget_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        self.images.forget_reader(digest, namespace).await
    }

    async fn forget_downloads(&self, but: &BTreeSet<ImageSource>) -> Result<()> {
        self.images.forget_downloads(but).await
    }

    fn refuse_addresses(&self, ranges: BTreeSet<IpNet>) {
        self.images.refuse_addresses(ranges);
    }
}

#[async_trait]
impl Volumes for LinuxSystem {
    fn declare_pools(&self, pools: &BTreeMap<String, Option<SharedPool>>) {
        self.pool_folders.declare(pools);
        self.rbd.declare(pools);
    }

    async fn volume(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.volume(id).await;
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        match self.on_pool(pool, move |v| v.volume(&of_pool, &id)).await? {
            Some(volume) => self.with_cache(volume).await.map(Some),
            None => Ok(None),
        }
    }

    async fn pool_of_volume(&self, id: &str) -> Result<Option<String>> {
        if let Some(pool) = self.rbd.pool_of_volume(id).await? {
            return Ok(Some(pool));
        }
        let id = id.to_owned();
        self.on_all_pools(move |v| v.pool_of_volume(&id)).await
    }

    async fn check_move(&self, volume: &NewMove) -> Result<()> {
        for pool in [&volume.from, &volume.to] {
            self.rbd.refuse(pool, "disks move neither to nor from a pool of type RBD")?;
        }
        let new = volume.clone();
        self.on_pools(pools_of(volume), move |v| v.check_move(&new)).await
    }

    async fn move_volume(&self, volume: &NewMove, progress: Progress<'_>) -> Result<VolumeFacts> {
        for pool in [&volume.from, &volume.to] {
            self.rbd.refuse(pool, "disks move neither to nor from a pool of type RBD")?;
        }
        let new = volume.clone();
        let mut begun = self.on_pools(pools_of(volume), move |v| v.begin_move(&new)).await?;
        while let Some(mut copying) = begun {
            let step = move |_: &LinuxVolumes| {
                let more = copying.step();
                Ok((copying, more))
            };
            let (copying, more) = self.on_pools(pools_of(volume), step).await?;
            let (done, total) = copying.progress();
            progress(done, Some(total));
            begun = match more? {
                true => Some(copying),
                false => {
                    self.on_pools(pools_of(volume), move |v| v.finish_move(&copying)).await?;
                    None
                }
            };
        }
        let found = Volumes::volume(self, &volume.to, &volume.id).await?;
        found.ok_or_else(|| SystemError::VolumeLost { id: volume.id.clone() })
    }

    async fn create_volume(&self, volume: &NewVolume) -> Result<VolumeFacts> {
        let no_image_goes = self.bases.read().await;
        let base = match &volume.base {
            None => None,
            Some(digest) => {
                let missing = || SystemError::ImageNotCached { digest: digest.clone() };
                Some(self.images.cached(digest).await?.ok_or_else(missing)?)
            }
        };
        if let Some(rbd) = self.rbd.get(&volume.pool) {
            // An import takes minutes; it is tried again if the image goes meanwhile.
            drop(no_image_goes);
            return rbd.create(volume, base.as_ref()).await;
        }
        let new = volume.clone();
        self.on_pool(&volume.pool, move |v| v.create(&new, base.as_ref())).await
    }

    async fn take_volume(&self, volume: &NewTake) -> Result<VolumeFacts> {
        if let Some(rbd) = self.rbd.get(&volume.pool) {
            return rbd.take(volume).await;
        }
        let _no_image_goes = self.bases.read().await;
        if let Some(digest) = &volume.base {
            let missing = || SystemError::ImageNotCached { digest: digest.clone() };
            self.images.cached(digest).await?.ok_or_else(missing)?;
        }
        let new = volume.clone();
        self.on_pool(&volume.pool, move |v| v.take_from_host(&new)).await
    }

    async fn grow_volume(&self, pool: &str, id: &str, size: u64) -> Result<VolumeFacts> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.grow(id, size).await;
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.grow(&of_pool, &id, size)).await
    }

    async fn reserve_volume(&self, pool: &str, id: &str, size: u64) -> Result<()> {
        self.rbd.refuse(pool, "a pool of type RBD has no thick disks")?;
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.reserve(&of_pool, &id, size)).await
    }

    async fn trash_volume(&self, pool: &str, id: &str) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.trash(id, self.trash_clock().await?).await;
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.trash(&of_pool, &id)).await
    }

    async fn restore_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.restore(id, owner).await;
        }
        let (of_pool, id, owner) = (pool.to_owned(), id.to_owned(), owner.clone());
        self.on_pool(pool, move |v| v.restore(&of_pool, &id, &owner)).await
    }

    async fn hand_over_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.hand_over(id, owner).await;
        }
        let (of_pool, id, owner) = (pool.to_owned(), id.to_owned(), owner.clone());
        self.on_pool(pool, move |v| v.hand_over(&of_pool, &id, &owner)).await
    }

    fn unlock(&self, id: &str, holder: &str, key: DiskKey) -> bool {
        self.volumes.keys().add(id, holder, key)
    }

    fn lock(&self, id: &str, holder: &str) {
        self.volumes.keys().remove(id, holder);
    }

    fn keep_keys(&self, holders: &BTreeSet<String>) {
        self.volumes.keys().keep(holders);
    }

    fn unlocked(&self, id: &str, holder: &str) -> Option<DiskKey> {
        self.volumes.keys().get(id, holder)
    }

    async fn rewrap_volume(&self, pool: &str, id: &str, sealed: &SealedKey) -> Result<()> {
        self.rbd.refuse(pool, "a pool of type RBD has no encrypted disks")?;
        let (of_pool, id, sealed) = (pool.to_owned(), id.to_owned(), sealed.clone());
        self.on_pool(pool, move |v| v.rewrap(&of_pool, &id, &sealed)).await
    }

    async fn retain_volume(&self, pool: &str, id: &str) -> Result<()> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.retain(id).await;
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.retain(&of_pool, &id)).await
    }

    async fn purge_trash(&self, pool: &str, older_than: Duration) -> Result<Vec<String>> {
        if let Some(rbd) = self.rbd.get(pool) {
            return rbd.purge(older_than, self.trash_clock().await?).await;
        }
        let of_pool = pool.to_owned();
        self.on_pool(pool, move |v| v.purge(&of_pool, older_than)).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeFacts>> {
        let mut volumes = self.on_all_pools(LinuxVolumes::volumes).await?;
        for rbd in self.rbd.all() {
            volumes.extend(rbd.volumes().await?);
        }
        Ok(volumes)
    }

    async fn used_bytes(&self) -> Result<BTreeMap<String, u64>> {
        self.on_all_pools(LinuxVolumes::used_bytes).await
    }

    async fn snapshot_bytes(&self) -> Result<BTreeMap<String, u64>> {
        self.on_all_pools(LinuxVolumes::snapshot_bytes).await
    }

    async fn trash(&self) -> Result<Vec<TrashedVolume>> {
        let mut trashed = self.on_all_pools(LinuxVolumes::trashed).await?;
        for rbd in self.rbd.all() {
            trashed.extend(rbd.trashed(self.trash_clock().await?).await?);
        }
        Ok(trashed)
    }

    async fn snapshot(&self, pool: &str, id: &str) -> Result<Option<SnapshotFacts>> {
        if self.rbd.get(pool).is_some() {
            return Ok(None);
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.snapshot(&of_pool, &id)).await
    }

    async fn check_snapshots(&self, snapshots: &[NewSnapshot]) -> Result<()> {
        snapshots.iter().try_for_each(|new| self.refuse_snapshots(&new.pool))?;
        let (new, pools) = (snapshots.to_vec(), snapshots.iter().map(|new| new.pool.clone()).collect());
        self.on_pools(pools, move |v| v.check_snapshots(&new)).await
    }

    async fn is_as_in_snapshot(&self, pool: &str, volume: &str, snapshot: &str) -> Result<bool> {
        self.refuse_snapshots(pool)?;
        let (of_pool, volume, snapshot) = (pool.to_owned(), volume.to_owned(), snapshot.to_owned());
        self.on_pool(pool, move |v| v.is_as_in_snapshot(&of_pool, &volume, &snapshot)).await
    }

    async fn begin_snapshots(&self, snapshots: &[NewSnapshot]) -> Result<Vec<VolumeFacts>> {
        snapshots.iter().try_for_each(|new| self.refuse_snapshots(&new.pool))?;
        let (new, pools) = (snapshots.to_vec(), snapshots.iter().map(|new| new.pool.clone()).collect());
        let mut begun = Vec::new();
        for volume in self.on_pools(pools, move |v| v.begin_snapshots(&new)).await? {
            begun.push(self.with_cache(volume).await?);
        }
        Ok(begun)
    }

    async fn restore_snapshot(&self, restore: &NewRestore) -> Result<VolumeFacts> {
        self.refuse_snapshots(&restore.pool)?;
        let new = restore.clone();
        let volume = self.on_pool(&restore.pool, move |v| v.restore_snapshot(&new)).await?;
        self.with_cache(volume).await
    }

    async fn finish_restore(&self, pool: &str, id: &str) -> Result<()> {
        if self.rbd.get(pool).is_some() {
            return Ok(());
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.finish_restore(&of_pool, &id)).await
    }

    async fn finish_snapshot(&self, pool: &str, id: &str, taken: &Taken) -> Result<SnapshotFacts> {
        self.refuse_snapshots(pool)?;
        let (of_pool, id, taken) = (pool.to_owned(), id.to_owned(), taken.clone());
        self.on_pool(pool, move |v| v.finish_snapshot(&of_pool, &id, &taken)).await
    }

    async fn hand_over_snapshot(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        self.refuse_snapshots(pool)?;
        let (of_pool, id, owner) = (pool.to_owned(), id.to_owned(), owner.clone());
        self.on_pool(pool, move |v| v.hand_over_snapshot(&of_pool, &id, &owner)).await
    }

    async fn delete_snapshot(&self, pool: &str, id: &str) -> Result<()> {
        if self.rbd.get(pool).is_some() {
            return Ok(());
        }
        let (of_pool, id) = (pool.to_owned(), id.to_owned());
        self.on_pool(pool, move |v| v.delete_snapshot(&of_pool, &id)).await
    }

    async fn merge_snapshots(&self, kept: &BTreeSet<String>) -> Result<Option<Merged>> {
        let kept = kept.clone();
        let Some(merge) = self.on_all_pools(move |v| v.begin_merge(&kept)).await? else { return Ok(None) };
        merge.run(self.tools_user).await?;
        let pool = merge.pool().to_owned();
        self.on_pool(&pool, move |v| v.finish_merge(&merge)).await.map(Some)
    }
}

#[async_trait]
impl Networks for LinuxSystem {
    async fn ensure_network(&self, network: &NetworkConfig) -> Result<()> {
        self.networks.ensure(network).await
    }

    async fn ensure_bridged_network(&self, network: &BridgedNetwork) -> Result<()> {
        self.networks.ensure_bridged(network).await
    }

    async fn host_links(&self) -> Result<HostLinks> {
        self.networks.host_links().await
    }

    async fn remove_network(&self, bridge: &str) -> Result<()> {
        self.networks.remove(bridge).await
    }

    async fn networks(&self) -> Result<Vec<String>> {
        self.networks.networks().await
    }

    async fn ensure_tap(&self, tap: &TapConfig) -> Result<()> {
        self.networks.ensure_tap(tap).await
    }

    async fn remove_tap(&self, name: &str) -> Result<()> {
        self.networks.remove_tap(name).await
    }

    async fn taps(&self) -> Result<Vec<TapFacts>> {
        self.networks.taps().await
    }

    async fn networks_and_taps(&self) -> Result<(Vec<String>, Vec<TapFacts>)> {
        self.networks.networks_and_taps().await
    }

    async fn apply_firewall(&self, firewall: &Firewall) -> Result<()> {
        self.networks.apply_firewall(firewall).await
    }

    async fn firewall_removed(&self) -> Result<()> {
        self.networks.firewall_removed().await
    }

    async fn leases_taken(&self, bridge: &str) -> Result<Vec<LeaseTaken>> {
        self.networks.leases_taken(bridge).await
    }

    async fn seen_addresses(&self) -> Result<BTreeMap<String, BTreeSet<IpAddr>>> {
        self.networks.seen_addresses().await
    }

    async fn external_leases(&self) -> Result<Vec<ExternalLease>> {
        self.networks.external_leases().await
    }

    async fn external_leases_changed(&self) -> Result<()> {
        self.networks.external_leases_changed().await;
        Ok(())
    }

    async fn uplink(&self) -> Result<Uplink> {
        self.networks.uplink(&self.uplink).await
    }

    async fn occupant(&self, interface: &str, address: IpAddr) -> Result<Option<String>> {
        self.networks.occupant(interface, address).await
    }

    async fn connect_to_guest(&self, bridge: &str, guest: SocketAddr) -> Result<TcpStream> {
        network::guest_port::connect_to_guest(bridge, guest).await
    }

    async fn forwarding(&self) -> Result<Forwarding> {
        self.networks.forwarding().await
    }

    async fn trace(&self, request: &TraceRequest) -> Result<Trace> {
        self.networks.trace(request).await
    }
}

#[async_trait]
impl Machines for LinuxSystem {
    async fn launch(&self, request: &LaunchRequest) -> Result<ProcessFacts> {
        self.rbd.ensure_own(&request.machine.disks).await?;
        let installation = self.host.installation().await?;
        let (mut request, disks) = (request.clone(), request.machine.disks.clone());
        // Files of snapshots may have been merged since the request was made: a suspended machine has one from before.
        let pools = disks.iter().filter_map(|disk| self.layout.pool_of(&disk.file)).collect();
        let (disks, keys) = self
            .on_pools(pools, move |v| {
                let keys = v.keys_of(&disks)?;
                Ok((v.with_chains(disks)?, keys))
            })
            .await?;
        request.machine.disks = disks;
        let started = self.machines.launch(&request, &installation, keys).await?;
        match self.rbd.note_clients(&request.machine.disks).await {
            Ok(()) => {}
            // Another host has taken one of the disks just now. The guest does not run yet.
            Err(error @ SystemError::VolumeLost { .. }) => {
                self.machines.kill(&request.machine.instance, Duration::from_secs(5)).await?;
                return Err(error);
            }
            // Not fatal: the cluster knows the clients while they are connected.
            Err(error) => {
                tracing::warn!(
                    instance = request.machine.instance,
                    error = error.chain(),
                    "clients of Ceph not noted"
                );
            }
        }
        Ok(started)
    }

    async fn mark_started(&self, instance: &str, just_now: bool) {
        self.machines.mark_started(instance, just_now).await;
    }

    async fn cpu_time(&self, instance: &str) -> Result<CpuTime> {
        self.machines.cpu_time(instance).await
    }

    async fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<()> {
        self.machines.set_cpu_time(instance, time).await
    }

    async fn oom_kills(&self, instance: &str) -> Result<u64> {
        self.machines.oom_kills(instance).await
    }

    async fn set_oom_preference(&self, process: &ProcessIdentity, preference: u16) -> Result<()> {
        Ok(self.machines.hypervisor().await?.set_oom_preference(process, preference).await?)
    }

    async fn process(&self, instance: &str) -> Result<Option<ProcessFacts>> {
        self.machines.process(instance).await
    }

    async fn machine_use(
        &self,
        instance: &str,
        process: &ProcessIdentity,
        taps: &[String],
    ) -> Result<Option<MachineUse>> {
        let (pid, instance, taps) = (process.pid, instance.to_owned(), taps.to_vec());
        Ok(blocking(move || usage::machine(pid, &instance, &taps)).await)
    }

    async fn process_state(&self, process: &ProcessIdentity) -> Result<Option<ProcessState>> {
        Ok(self.machines.hypervisor().await?.process_state(process).await?)
    }

    async fn process_details(&self, process: &ProcessIdentity) -> Result<ProcessDetails> {
        let pid = process.pid;
        Ok(blocking(move || process_details::of(pid)).await)
    }

    async fn exited(&self, process: &ProcessIdentity) -> Result<()> {
        self.machines.exited(process).await
    }

    async fn connect(&self, instance: &str) -> Result<(Qmp, Events)> {
        self.machines.connect(instance).await
    }

    async fn guest_agent(&self, instance: &str) -> Result<GuestAgent> {
        self.machines.guest_agent(instance).await
    }

    async fn kill(&self, instance: &str, grace: Duration) -> Result<()> {
        self.machines.kill(instance, grace).await
    }

    async fn remove_instance(&self, instance: &str) -> Result<()> {
        self.give_back_devices(instance).await?;
        self.machines.remove(instance).await
    }

    async fn instances(&self) -> Result<Vec<InstanceFacts>> {
        self.machines.instances().await
    }

    async fn read_journal(&self, instance: &str) -> Result<Option<Value>> {
        self.machines.read_journal(instance).await
    }

    async fn write_journal(&self, instance: &str, journal: &Value) -> Result<()> {
        self.machines.write_journal(instance, journal).await
    }

    async fn instance_bytes(&self) -> Result<BTreeMap<String, u64>> {
        self.machines.instance_bytes().await
    }

    async fn stderr_tail(&self, instance: &str) -> Result<String> {
        self.machines.stderr_tail(instance).await
    }

    async fn serial(&self, instance: &str, port: u8) -> Result<Option<ConsoleStream>> {
        self.machines.serial(instance, port).await
    }

    async fn vnc(&self, instance: &str) -> Result<Option<ConsoleStream>> {
        self.machines.vnc(instance).await
    }

    async fn free_vsock_cid(&self, wanted: u32) -> Result<Option<u32>> {
        blocking(move || vsock::free_cid(wanted)).await
    }

    async fn connect_to_vsock(&self, cid: u32, port: u32) -> Result<ConsoleStream> {
        vsock::connect(cid, port).await
    }

    async fn serial_log(&self, instance: &str, port: u8, max_bytes: u64) -> Result<Vec<u8>> {
        self.machines.serial_log(instance, port, max_bytes).await
    }

    async fn rotate_logs(&self) {
        self.machines.rotate_logs().await;
    }

    async fn grant_disk(&self, instance: &str, disk: &DiskSpec) -> Result<DiskSpec> {
        // Also because a QEMU that opens an image stands still while the cluster does not answer.
        self.rbd.ensure_own(std::slice::from_ref(disk)).await?;
        let granted = self.machines.grant(instance, disk).await?;
        self.rbd.note_clients_later(disk);
        Ok(granted)
    }

    async fn revoke_disk(&self, instance: &str, volume: &str) -> Result<()> {
        self.machines.revoke(instance, volume).await
    }

    async fn grant_medium(&self, instance: &str, medium: &Medium) -> Result<Medium> {
        self.machines.grant_medium(instance, medium).await
    }

    async fn revoke_medium(&self, instance: &str, digest: &str) -> Result<()> {
        self.machines.revoke_medium(instance, digest).await
    }

    async fn take_devices(&self, instance: &str, devices: &DeviceSpecs) -> Result<()> {
        let (pci, usb, vgpus) = (self.passthrough.clone(), self.usb.clone(), self.vgpus.clone());
        let (instance, devices) = (instance.to_owned(), devices.clone());
        blocking(move || {
            pci.take(&instance, &devices.pci)?;
            usb.take(&instance, &devices.usb)?;
            vgpus.take(&instance, &devices.vgpus)
        })
        .await
    }

    async fn give_back_devices(&self, instance: &str) -> Result<()> {
        if let Some(process) = self.machines.process(instance).await? {
            return Err(SystemError::StillRunning {
                instance: instance.to_owned(),
                pid: process.identity.pid,
            });
        }
        let (pci, usb, vgpus) = (self.passthrough.clone(), self.usb.clone(), self.vgpus.clone());
        let instance = instance.to_owned();
        blocking(move || {
            vgpus.give_back(&instance)?;
            pci.give_back(&instance)?;
            usb.give_back(&instance)
        })
        .await
    }

    async fn lend_state(&self, instance: &str, qmp: &Qmp, access: StateAccess) -> Result<()> {
        self.machines.lend_state(instance, qmp, access).await
    }

    async fn lend_key(&self, qmp: &Qmp, disk: &DiskSpec) -> Result<()> {
        let disks = [disk.clone()];
        let pools = self.layout.pool_of(&disk.file).into_iter().collect();
        for (id, key) in self.on_pools(pools, move |v| v.keys_of(&disks)).await? {
            block::add_key(qmp, &id, &key).await.map_err(SystemError::LendKey)?;
        }
        Ok(())
    }

    async fn lend_tap(&self, instance: &str, qmp: &Qmp, nic: &NicSpec) -> Result<LentTap> {
        self.machines.lend_tap(instance, qmp, nic).await
    }

    async fn seal_state(&self, instance: &str) -> Result<()> {
        self.machines.seal_state(instance).await
    }

    async fn has_state(&self, instance: &str) -> Result<bool> {
        self.machines.has_state(instance).await
    }

    async fn remove_state(&self, instance: &str) -> Result<()> {
        self.machines.remove_state(instance).await
    }

    async fn keep_state(&self, instance: &str, id: &str, note: &Value) -> Result<()> {
        self.machines.keep_state(instance, id, note).await
    }

    async fn seal_kept_state(&self, id: &str) -> Result<()> {
        self.machines.seal_kept_state(id).await
    }

    async fn kept_states(&self) -> Result<Vec<String>> {
        self.machines.kept_states().await
    }

    async fn kept_state(&self, id: &str) -> Result<Option<Value>> {
        self.machines.kept_state(id).await
    }

    async fn lay_state(&self, instance: &str, id: &str) -> Result<()> {
        self.machines.lay_state(instance, id).await
    }

    async fn remove_kept_state(&self, id: &str) -> Result<()> {
        self.machines.remove_kept_state(id).await
    }

    async fn bootstrap_data(&self, instance: &str) -> Result<Vec<String>> {
        self.machines.bootstrap_data(instance).await
    }

    fn instance_directory(&self, instance: &str) -> PathBuf {
        self.layout.instance(instance)
    }
}

#[async_trait]
impl HostInfo for LinuxSystem {
    async fn facts(&self) -> Result<HostFacts> {
        let mut facts = self.machine_facts().await?;
        if let Some(address) = facts.address {
            facts.mtu = self.networks.mtu_at(address).await?;
        }
        facts.ranges = self.networks.host_ranges().await?;
        facts.ipv6_addresses = self.networks.host_ipv6_addresses().await?;
        facts.links = self.networks.host_links().await?;
        facts.backup_folders = self.backup_folders.facts().await;
        let (folders, in_ceph) = tokio::join!(self.pool_folders.facts(), self.rbd.facts());
        facts.pool_folders = folders;
        for pool in self.pool_folders.returned(&facts.pool_folders) {
            if let Err(error) = self.machines.revoke_departed(&pool).await {
                tracing::warn!(
                    pool,
                    error = error.chain(),
                    "files of machines that are gone keep their owner"
                );
                self.pool_folders.look_again(&pool);
            }
        }
        facts.pool_folders.extend(in_ceph);
        Ok(facts)
    }

    async fn machine_facts(&self) -> Result<HostFacts> {
        let mut facts = self.host.facts(self.layout.root()).await?;
        let (pci, usb, vgpus) = (self.passthrough.clone(), self.usb.clone(), self.vgpus.clone());
        (facts.pci_devices, facts.usb_devices, facts.vgpus) =
            blocking(move || Ok::<_, SystemError>((pci.facts()?, usb.facts()?, vgpus.facts()?))).await?;
        facts.shares = self.shares.facts().await;
        facts.dedicated = self.machines.dedicated_facts().await?;
        Ok(facts)
    }

    async fn overhead(&self, process: &ProcessIdentity, guest_memory: u64) -> Result<Option<u64>> {
        resident::above_guest_memory(process.pid, guest_memory).await
    }

    async fn shared_unit(&self, process: &ProcessIdentity) -> Result<Option<String>> {
        let pid = process.pid;
        Ok(blocking(move || units::shared_with(pid)).await)
    }

    async fn host_use(&self) -> Result<HostUse> {
        Ok(blocking(usage::host).await)
    }

    async fn foreign(&self) -> Result<Vec<ForeignObject>> {
        let mut foreign = self.machines.foreign().await?;
        foreign.extend(self.on_all_pools(LinuxVolumes::foreign).await?);
        foreign.sort();
        Ok(foreign)
    }

    async fn read_site(&self) -> Result<Option<Value>> {
        let root = self.layout.root().to_owned();
        blocking(move || record::read(&root)).await
    }

    async fn write_site(&self, record: &Value) -> Result<()> {
        let (root, record) = (self.layout.root().to_owned(), record.clone());
        blocking(move || record::write(&root, &record)).await
    }
}

#[cfg(test)]
mod tests;
