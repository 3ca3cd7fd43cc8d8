//! The seam: everything the agent does outside the control plane.
//!
//! [`System`] takes and tells plain data and knows none of berth's kinds: whoever reconciles translates objects
//! into it. [`linux::LinuxSystem`] is the real host; the convergence tests put a fake in its place and let every
//! call fail or be cut off in turn. That works because each method is idempotent: asked for what is already so, it
//! does nothing; asked again after it failed or was interrupted, it finishes the job.
//!
//! What QEMU itself does goes through [`berth_qemu`]: a [`Qmp`] and a [`GuestAgent`] are handed out as they are.

mod data;
mod error;
pub mod linux;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::site::Record;
use berth_qemu::guest_agent::GuestAgent;
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::qmp::{Events, Qmp};
use serde_json::Value;

pub use data::{
    Firewall, FirmwareKind, Forward, Forwarding, HostFacts, ImageFacts, ImageSource, InstanceFacts, KvmFacts,
    LaunchConfig, Lease, LeaseTaken, Nat, NetworkConfig, NewVolume, ProcessFacts, QemuFacts, Seed, Stranger,
    StrangerKind, TapConfig, TrashedVolume, Tunnel, Uplink, VolumeFacts, VolumeOwner,
};
pub use error::{Retry, SystemError};

/// Told how far a download is: bytes so far, and of how many if the source said so. Called often; must be quick.
pub type Progress<'a> = &'a (dyn Fn(u64, Option<u64>) + Send + Sync);

type Result<T> = std::result::Result<T, SystemError>;

/// A host that runs VMs, as the agent sees it.
///
/// *Guarantees*: every method may be called again with the same arguments, at any time, also after a crash in the
/// middle of an earlier call, and then leads to the same end. Reading methods change nothing. Nothing that berth
/// did not make is changed or removed. Dropping a future stops the work at a point from which it can be resumed.
#[async_trait]
pub trait System: Send + Sync + fmt::Debug + 'static {
    // Images: a cache of verified files, named by their SHA-256.

    /// The verified image of this checksum, if it is in the cache.
    async fn image(&self, sha256: &str) -> Result<Option<ImageFacts>>;

    /// Makes sure the image is in the cache: downloads, verifies checksum, format and virtual size.
    ///
    /// *Guarantees*: nothing is ever in the cache that was not verified. Callers who ask for the same checksum at
    /// the same time share one download. A download that was cut off is taken up where it ended.
    async fn pull(&self, source: &ImageSource, progress: Progress<'_>) -> Result<ImageFacts>;

    /// Every image in the cache, by checksum.
    async fn images(&self) -> Result<Vec<ImageFacts>>;

    /// Drops an image, and what was downloaded of it.
    ///
    /// *Errors*: [`SystemError::ImageInUse`] while a volume, in a pool or in the trash, is based on it.
    async fn remove_image(&self, sha256: &str) -> Result<()>;

    // Volumes: the files of disks, in pools.

    async fn volume(&self, pool: &str, id: &str) -> Result<Option<VolumeFacts>>;

    /// Makes the volume's file. One that is there already is returned as it is (and grown if it is smaller).
    ///
    /// *Errors*: [`SystemError::SmallerThanImage`]; [`SystemError::ImageNotCached`] if its base is not in the
    /// cache; [`SystemError::NoSpace`], with nothing half-made left.
    async fn create_volume(&self, volume: &NewVolume) -> Result<VolumeFacts>;

    /// Grows a volume that no QEMU has open (a running one grows by QMP). A size it already has is no change;
    /// a smaller one is refused.
    async fn grow_volume(&self, pool: &str, id: &str, size: u64) -> Result<VolumeFacts>;

    /// Makes the volume's file usable for the user QEMU runs as. Needed before it is plugged into a running machine;
    /// [`System::launch`] does it for the disks it is given.
    async fn grant_volume(&self, pool: &str, id: &str) -> Result<()>;

    /// Moves a volume to the pool's trash. One that is neither in the pool nor in the trash is no error.
    async fn trash_volume(&self, pool: &str, id: &str) -> Result<()>;

    /// Brings a volume back from the trash for a (new) owner.
    async fn restore_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<VolumeFacts>;

    /// Notes that the volume is another owner's from now on. The file is not touched: it may be open.
    async fn hand_over_volume(&self, pool: &str, id: &str, owner: &VolumeOwner) -> Result<()>;

    /// Deletes for good what has been in the pool's trash for longer than this. Returns the ids.
    async fn purge_trash(&self, pool: &str, older_than: Duration) -> Result<Vec<String>>;

    /// Every volume of every pool.
    async fn volumes(&self) -> Result<Vec<VolumeFacts>>;

    /// Everything in the trash of every pool.
    async fn trash(&self) -> Result<Vec<TrashedVolume>>;

    // Networks.

    /// Makes a private network real: its bridge with the gateway's address, DHCP with exactly these leases, DNS, and
    /// its tunnel to other hosts, or none.
    async fn ensure_network(&self, network: &NetworkConfig) -> Result<()>;

    /// Removes a bridge with its DHCP server. The taps on it are the caller's to remove first.
    async fn remove_network(&self, bridge: &str) -> Result<()>;

    /// The bridges berth made that exist now.
    async fn networks(&self) -> Result<Vec<String>>;

    /// Makes a tap for QEMU and joins it to its bridge.
    async fn ensure_tap(&self, tap: &TapConfig) -> Result<()>;

    async fn remove_tap(&self, name: &str) -> Result<()>;

    /// The taps berth made that exist now.
    async fn taps(&self) -> Result<Vec<String>>;

    /// Makes this all that berth asks of the host's firewall, in one transaction; public addresses are put on the
    /// host too. An empty one leaves nothing behind. No change when it is so already.
    async fn apply_firewall(&self, firewall: &Firewall) -> Result<()>;

    /// What guests of this network asked for and got by DHCP.
    async fn leases_taken(&self, bridge: &str) -> Result<Vec<LeaseTaken>>;

    /// Where public addresses can be made known.
    async fn uplink(&self) -> Result<Uplink>;

    /// The MAC address of whoever else answers for an address on the segment of this interface. Takes about a second.
    async fn occupant(&self, interface: &str, address: std::net::Ipv4Addr) -> Result<Option<String>>;

    /// Whether packets of guests get through this host, as far as can be read.
    async fn forwarding(&self) -> Result<Forwarding>;

    // Machines.

    /// Starts the machine's QEMU, stopped before its first instruction: whoever has written down that it exists
    /// says `cont`. If one of this instance runs already, it is returned.
    ///
    /// *Assumptions*: disks, taps and the instance's journal are there.
    async fn launch(&self, config: &LaunchConfig) -> Result<ProcessFacts>;

    /// Says that the machine runs, since `just_now` or longer: from here on it is to share the processors as every other does,
    /// once it has left them to those that are being started.
    async fn has_started(&self, _instance: &str, _just_now: bool) {}

    /// The instance's QEMU, if one is alive.
    async fn process(&self, instance: &str) -> Result<Option<ProcessFacts>>;

    /// Waits until this process is gone. Cancel safe.
    async fn exited(&self, process: &ProcessIdentity) -> Result<()>;

    /// The machine's main monitor. One at a time: a second one waits until the first is closed.
    async fn connect(&self, instance: &str) -> Result<(Qmp, Events)>;

    /// The channel to the guest's agent. Succeeds also when nobody listens in the guest.
    async fn guest_agent(&self, instance: &str) -> Result<GuestAgent>;

    /// Ends the instance's QEMU: SIGTERM, then SIGKILL after `grace`. Returns when it is gone.
    async fn kill(&self, instance: &str, grace: Duration) -> Result<()>;

    /// Removes everything of the instance from the disk, its firmware variables and logs included.
    ///
    /// *Errors*: [`SystemError::StillRunning`] while its QEMU is alive.
    async fn remove_instance(&self, instance: &str) -> Result<()>;

    /// Every instance this host has something of, alive or not.
    async fn instances(&self) -> Result<Vec<InstanceFacts>>;

    /// What the agent noted down for itself about an instance.
    async fn read_journal(&self, instance: &str) -> Result<Option<Value>>;

    /// Notes something down for after a crash; on disk when it returns. Makes the instance's folder.
    async fn write_journal(&self, instance: &str, journal: &Value) -> Result<()>;

    /// The last of what the instance's QEMU said on its standard error; empty when it said nothing.
    async fn last_words(&self, instance: &str) -> Result<String>;

    // The host.

    /// Which control plane this host obeyed last; `None` if the site it belongs to never moved.
    async fn read_site(&self) -> Result<Option<Record>>;

    /// Keeps which control plane this host obeys from now on; on disk when it returns.
    async fn write_site(&self, record: &Record) -> Result<()>;

    async fn facts(&self) -> Result<HostFacts>;

    /// Bytes that a QEMU takes above its guest's memory; `None` if that cannot be told, or it is gone.
    async fn overhead(&self, process: &ProcessIdentity, guest_memory: u64) -> Result<Option<u64>>;

    /// What runs or lies here that berth did not make.
    async fn strangers(&self) -> Result<Vec<Stranger>>;

    /// Where an instance's files are.
    fn instance_directory(&self, instance: &str) -> PathBuf;
}
