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
//!          place.json                            where this directory is
//!          pci/<address>.json                    PCI devices of machines, and the drivers that they had
//! ```
//!
//! Must not know why a state is desired. The files are the source of truth: nothing that can be read from them is kept
//! in memory.

mod backup_folders;
mod backups;
mod block_devices;
mod copies;
mod device_records;
mod direct_io;
mod doctor;
mod fetching;
mod files;
mod filesystems;
mod filling;
mod guests;
mod host;
mod huge_pages;
mod images;
mod layout;
pub mod libvirt;
mod machines;
mod network;
mod passthrough;
pub mod place;
mod pool_folders;
mod process_details;
mod program;
mod qemu_img;
pub mod qemu_processes;
mod rbd;
pub mod record;
mod reflink;
mod resident;
mod seed;
mod shares;
mod traits;
mod units;
mod usage;
mod usb_devices;
mod users;
mod vaults;
mod vgpus;
mod volumes;
mod vsock;
mod work_folders;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_qemu::machine::{Architecture, Cache};
use berth_qemu::process::RunAs;
use nix::unistd::{Uid, User};
use tokio::sync::RwLock;

use super::{
    BackupFolderMapping, BlockDeviceMapping, CephAccess, PciMapping, PoolFolderMapping, RbdPoolMapping,
    Result, ShareMapping, SystemError, UsbMapping, VgpuMapping, VolumeFacts,
};
use backup_folders::BackupFolders;
pub use backups::{EntryFacts, ObjectStore, RepositoryEntry, RepositoryReader};
use block_devices::BlockDevices;
use direct_io::DirectIo;
pub use doctor::{
    DoctorEmulation, DoctorFacts, DoctorHugePages, DoctorKvm, DoctorMemory, DoctorQemu, DoctorService,
    doctor_facts,
};
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
    /// The block devices that disks may be. Default: none.
    pub block_devices: Vec<BlockDeviceMapping>,
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
    /// The architecture of guests whose processors QEMU may emulate, beside those of the host's own. Default: none.
    pub emulated: Option<Architecture>,
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
            block_devices: Vec::new(),
            shares: Vec::new(),
            backup_folders: Vec::new(),
            pool_folders: Vec::new(),
            rbd_pools: Vec::new(),
            ceph: CephAccess::default(),
            dedicated_cpus: BTreeSet::new(),
            emulated: None,
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
        let devices = BlockDevices::new(config.block_devices);
        let volumes = LinuxVolumes::new(layout.clone(), None)
            .with_adoptable(config.disk_folders)
            .with_block_devices(devices.clone())
            .with_pool_folders(pool_folders.clone());
        volumes.forget_partial()?;
        volumes.forget_moves()?;
        volumes.forget_begun()?;
        let shares = Shares::new(config.shares, own.clone());
        let machines = LinuxMachines::open(layout.clone(), users, config.dedicated_cpus, shares.clone())?;
        Ok(Self {
            images: Arc::new(images),
            vaults: LinuxVaults::default(),
            volumes,
            networks: LinuxNetworks::new(layout.clone()),
            machines: machines.with_pool_folders(pool_folders.clone()).with_block_devices(devices),
            shares,
            backup_folders: BackupFolders::new(config.backup_folders, own),
            pool_folders,
            rbd,
            passthrough: Passthrough::new("/", layout.pci(), config.pci_devices, Arc::new(HostKernel)),
            usb: UsbPassthrough::new("/", layout.usb(), config.usb_devices, Arc::new(HostKernel)),
            vgpus: Vgpus::new("/", layout.vgpus(), config.vgpus, Arc::new(HostKernel)),
            host: LinuxInfo::new(config.address, config.emulated),
            direct_io: Arc::default(),
            tools_user: shared,
            uplink: UplinkChoice { named: config.public_interface, address: config.address },
            bases: RwLock::default(),
            layout,
        })
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

    /// Adds how QEMU opens the volume's file.
    async fn with_cache(&self, volume: VolumeFacts) -> Result<VolumeFacts> {
        if volume.is_shared() {
            // All its machines are on this host and have its page cache in common. With O_DIRECT each QEMU would read a block of the file
            // system, change the guest's sector in it and write the block back, which undoes another one's write beside it.
            return Ok(VolumeFacts { cache: Cache::Writeback, ..volume });
        }
        if volume.problem.is_some() {
            return Ok(volume);
        }
        let io_uring = self.host.installation().await.is_ok_and(|installation| installation.io_uring);
        let (direct_io, pool) = (Arc::clone(&self.direct_io), volume.pool.clone());
        let tried = move |_: &LinuxVolumes| {
            Ok(VolumeFacts { cache: direct_io.cache_of(&volume.path, io_uring), ..volume })
        };
        self.on_pool(&pool, tried).await
    }
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

#[cfg(test)]
mod tests;
