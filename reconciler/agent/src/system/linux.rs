//! The real host: files below one state directory, rtnetlink, nftables, dnsmasq and QEMU.
//!
//! ```text
//!  <state>/images/<sha256>                       verified images
//!          pools/<pool>/volumes/<id>.qcow2       disks, each with a note beside it
//!          pools/<pool>/trash/…                  deleted ones
//!          instances/<id>/…                      machines
//!          network/<bridge>/…                    DHCP
//! ```
//!
//! Must not know why anything is wanted. Files are the truth: nothing here remembers what it could read.

mod files;
mod host;
mod images;
mod layout;
mod machines;
mod network;
mod program;
pub mod record;
mod resident;
mod seed;
mod volumes;

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::site::Record;
use berth_qemu::guest_agent::GuestAgent;
use berth_qemu::hypervisor::{Hypervisor, ProcessIdentity};
use berth_qemu::process::RunAs;
use berth_qemu::qmp::{Events, Qmp};
use nix::unistd::{Uid, User};
use serde_json::Value;
use tokio::sync::RwLock;

use super::{
    Firewall, Forwarding, HostFacts, ImageFacts, ImageSource, InstanceFacts, LaunchConfig, LeaseTaken,
    NetworkConfig, NewVolume, ProcessFacts, Progress, Result, Stranger, System, SystemError, TapConfig,
    TrashedVolume, Uplink, VolumeFacts, VolumeOwner,
};
use files::blocking;
use host::Host;
use images::Images;
use layout::Layout;
use machines::Machines;
use network::{Networks, UplinkChoice};
use volumes::Volumes;

/// How a host is used.
#[derive(Clone, Debug)]
pub struct LinuxConfig {
    /// Everything is below this folder.
    pub state_dir: PathBuf,
    /// The user QEMU runs as. None: ourselves.
    pub run_as: Option<RunAs>,
    /// The largest image that is downloaded, in bytes. Default 256 GiB.
    pub max_image_bytes: u64,
    /// The address other hosts reach this one at. None: where the default route leaves from.
    pub address: Option<Ipv4Addr>,
    /// The interface public addresses are announced on. None: that of the default route, or else that of the address.
    pub public_interface: Option<String>,
}

/// A user and group nobody else has: outside what Debian and systemd give out.
const QEMU_ALONE: RunAs = RunAs { uid: 60_927, gid: 60_927 };

impl LinuxConfig {
    /// The defaults. If we are root, QEMU runs as the first of the users that distributions make for it, or as one
    /// that is in no list of users: never as `nobody`, whom and whose group other services share.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        let nobody = User::from_name("nobody").ok().flatten().map(|u| u.uid.as_raw());
        let run_as = RunAs::default_user().filter(|user| Some(user.uid) != nobody);
        let run_as = run_as.or_else(|| Uid::effective().is_root().then_some(QEMU_ALONE));
        Self {
            state_dir: state_dir.into(),
            run_as,
            max_image_bytes: 256 << 30,
            address: None,
            public_interface: None,
        }
    }
}

/// This machine.
#[derive(Debug)]
pub struct LinuxSystem {
    layout: Layout,
    images: Arc<Images>,
    volumes: Volumes,
    networks: Networks,
    uplink: UplinkChoice,
    machines: Machines,
    host: Host,
    /// Held for writing while an image goes, for reading while a volume is made on one.
    bases: RwLock<()>,
}

impl LinuxSystem {
    /// Makes the folders that are missing. Blocks for some file operations.
    ///
    /// *Errors*: when QEMU's user cannot pass through to the state directory.
    pub fn open(config: LinuxConfig) -> Result<Self> {
        let layout = Layout::new(&config.state_dir);
        files::ensure_folder(layout.root())?;
        check_passable(layout.root(), config.run_as.as_ref())?;
        for folder in [layout.pools(), layout.networks()] {
            files::ensure_folder(&folder)?;
        }
        let images = Images::open(layout.clone(), config.run_as.clone(), config.max_image_bytes)?;
        Ok(Self {
            images: Arc::new(images),
            volumes: Volumes::new(layout.clone(), config.run_as.clone()),
            networks: Networks::new(layout.clone()),
            machines: Machines::open(layout.clone(), config.run_as)?,
            host: Host::new(config.address),
            uplink: UplinkChoice { named: config.public_interface, address: config.address },
            bases: RwLock::default(),
            layout,
        })
    }

    /// With another hypervisor than this machine's QEMU.
    pub fn with_hypervisor(mut self, hypervisor: Arc<dyn Hypervisor>) -> Self {
        self.machines.set_hypervisor(hypervisor);
        self
    }

    async fn on_volumes<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Volumes) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let volumes = self.volumes.clone();
        blocking(move || work(&volumes)).await
    }
}

/// QEMU's user opens its files by their full paths: every folder above has to let it through. Said here, where it
/// can be told what to do, rather than by QEMU at the first start.
fn check_passable(root: &Path, run_as: Option<&RunAs>) -> Result<()> {
    let Some(user) = run_as.filter(|u| u.uid != 0) else {
        return Ok(());
    };
    let root = std::path::absolute(root).map_err(files::failed("find", root))?;
    // The state directory itself is ours: it was perhaps made by somebody with a narrower mode.
    let own = std::fs::metadata(&root).map_err(files::failed("look at", &root))?;
    let mode = own.permissions().mode();
    if mode & 0o001 == 0 {
        let wider = std::fs::Permissions::from_mode((mode & 0o7777) | 0o011);
        std::fs::set_permissions(&root, wider).map_err(files::failed("change the mode of", &root))?;
    }
    for folder in root.ancestors().skip(1) {
        let metadata = std::fs::metadata(folder).map_err(files::failed("look at", folder))?;
        let mode = metadata.permissions().mode();
        let (owner, group) = {
            use std::os::unix::fs::MetadataExt;
            (metadata.uid() == user.uid && mode & 0o100 != 0, metadata.gid() == user.gid && mode & 0o010 != 0)
        };
        if mode & 0o001 == 0 && !owner && !group {
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
impl System for LinuxSystem {
    async fn image(&self, sha256: &str) -> Result<Option<ImageFacts>> {
        self.images.image(sha256).await
    }

    async fn pull(&self, source: &ImageSource, progress: Progress<'_>) -> Result<ImageFacts> {
        self.images.pull(source, progress).await
    }

    async fn images(&self) -> Result<Vec<ImageFacts>> {
        self.images.images().await
    }

    async fn remove_image(&self, sha256: &str) -> Result<()> {
        let _nobody_makes_a_volume = self.bases.write().await;
        let wanted = sha256.to_owned();
        let user = self.on_volumes(move |v| v.based_on(&wanted)).await?;
        match user {
            Some(volume) => Err(SystemError::ImageInUse { sha256: sha256.to_owned(), volume }),
            None => self.images.remove(sha256).await,
        }
    }

    async fn volume(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>> {
        let (pool, id) = (pool.to_owned(), id.to_owned());
        self.on_volumes(move |v| v.volume(&pool, &id)).await
    }

    async fn create_volume(&self, volume: &NewVolume) -> Result<VolumeFacts> {
        let _no_image_goes = self.bases.read().await;
        let base = match &volume.base {
            None => None,
            Some(sha256) => {
                let missing = || SystemError::ImageNotCached { sha256: sha256.clone() };
                Some(self.images.image(sha256).await?.ok_or_else(missing)?)
            }
        };
        let new = volume.clone();
        self.on_volumes(move |v| v.create(&new, base.as_ref())).await
    }

    async fn grow_volume(&self, pool: &str, id: &str, size: u64) -> Result<VolumeFacts> {
        let (pool, id) = (pool.to_owned(), id.to_owned());
        self.on_volumes(move |v| v.grow(&pool, &id, size)).await
    }

    async fn grant_volume(&self, pool: &str, id: &str) -> Result<()> {
        let (pool, id) = (pool.to_owned(), id.to_owned());
        self.on_volumes(move |v| v.grant(&pool, &id)).await
    }

    async fn trash_volume(&self, pool: &str, id: &str) -> Result<()> {
        let (pool, id) = (pool.to_owned(), id.to_owned());
        self.on_volumes(move |v| v.trash(&pool, &id)).await
    }

    async fn restore_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts> {
        let (pool, id, owner) = (pool.to_owned(), id.to_owned(), owner.clone());
        self.on_volumes(move |v| v.restore(&pool, &id, &owner)).await
    }

    async fn hand_over_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()> {
        let (pool, id, owner) = (pool.to_owned(), id.to_owned(), owner.clone());
        self.on_volumes(move |v| v.hand_over(&pool, &id, &owner)).await
    }

    async fn purge_trash(&self, pool: &str, older_than: Duration) -> Result<Vec<String>> {
        let pool = pool.to_owned();
        self.on_volumes(move |v| v.purge(&pool, older_than)).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeFacts>> {
        self.on_volumes(Volumes::volumes).await
    }

    async fn trash(&self) -> Result<Vec<TrashedVolume>> {
        self.on_volumes(Volumes::trashed).await
    }

    async fn ensure_network(&self, network: &NetworkConfig) -> Result<()> {
        self.networks.ensure(network).await
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

    async fn taps(&self) -> Result<Vec<String>> {
        self.networks.taps().await
    }

    async fn apply_firewall(&self, firewall: &Firewall) -> Result<()> {
        self.networks.apply_firewall(firewall).await
    }

    async fn leases_taken(&self, bridge: &str) -> Result<Vec<LeaseTaken>> {
        self.networks.leases_taken(bridge).await
    }

    async fn occupant(&self, interface: &str, address: Ipv4Addr) -> Result<Option<String>> {
        self.networks.occupant(interface, address).await
    }

    async fn uplink(&self) -> Result<Uplink> {
        self.networks.uplink(&self.uplink).await
    }

    async fn forwarding(&self) -> Result<Forwarding> {
        self.networks.forwarding().await
    }

    async fn launch(&self, config: &LaunchConfig) -> Result<ProcessFacts> {
        let installation = self.host.installation().await?;
        self.machines.launch(config, &installation).await
    }

    async fn has_started(&self, instance: &str, just_now: bool) {
        self.machines.has_started(instance, just_now).await;
    }

    async fn process(&self, instance: &str) -> Result<Option<ProcessFacts>> {
        self.machines.process(instance).await
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

    async fn last_words(&self, instance: &str) -> Result<String> {
        self.machines.last_words(instance).await
    }

    async fn read_site(&self) -> Result<Option<Record>> {
        let root = self.layout.root().to_owned();
        blocking(move || record::read(&root)).await
    }

    async fn write_site(&self, record: &Record) -> Result<()> {
        let (root, record) = (self.layout.root().to_owned(), record.clone());
        blocking(move || record::write(&root, &record)).await
    }

    async fn facts(&self) -> Result<HostFacts> {
        let mut facts = self.host.facts(self.layout.root()).await?;
        if let Some(address) = facts.address {
            facts.mtu = self.networks.mtu_at(address).await?;
        }
        Ok(facts)
    }

    async fn overhead(&self, process: &ProcessIdentity, guest_memory: u64) -> Result<Option<u64>> {
        resident::above_guest_memory(process.pid, guest_memory).await
    }

    async fn strangers(&self) -> Result<Vec<Stranger>> {
        let mut strangers = self.machines.strangers().await?;
        strangers.extend(self.on_volumes(Volumes::strangers).await?);
        strangers.sort();
        Ok(strangers)
    }

    fn instance_directory(&self, instance: &str) -> PathBuf {
        self.layout.instance(instance)
    }
}

#[cfg(test)]
mod tests;
