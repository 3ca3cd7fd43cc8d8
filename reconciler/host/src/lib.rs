//! A Linux host that runs VMs: everything that the agent does outside the control plane.
//!
//! ```text
//!  images   volumes   backups   vaults   networks   machines   info      seven traits with their data; System is all of them
//!     ▲        ▲         ▲        ▲         ▲          ▲         ▲
//!     ├────────┴─────────┴────────┴─────────┴──────────┴─────────┤
//!  linux   the real host                                       fake   a host in memory, with faults at every call
//!     images/    download, verify, cache      volumes/   files in pools, trash
//!     network/   bridges, taps, tunnels, firewall, DHCP
//!     machines/  QEMU processes, their users and files
//!  error   failures, and whether a retry helps          start   the identity of one start of the agent
//!  trace   the way of one packet through the host's rules
//! ```
//!
//! It takes and returns plain data. It must not know Kubernetes, a client, or any kind of berth's: the agent translates
//! objects into that data. QEMU's own operations go through [`berth_qemu`]: its `Qmp` and `GuestAgent` are returned as
//! they are.
//!
//! Every method is idempotent: it does nothing if the desired state is already reached, and a retry after a failure or an
//! interruption completes the work. The convergence tests use the fake to make each call fail or be interrupted in turn.
mod backups;
mod balancing;
mod block_devices;
mod bridged_networks;
mod dedicated_cpus;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod firmware_state;
mod images;
mod info;
mod keyring;
pub mod linux;
mod machines;
mod names;
mod networks;
mod packet_filter;
mod passthrough;
mod pool_folders;
mod rbd_pools;
mod routes;
mod shares;
mod start;
mod trace;
mod usage;
mod vaults;
mod vgpus;
mod volume_copies;
mod volume_fill;
mod volume_owner;
mod volumes;
mod wireguard;

pub use backups::{
    BackupFacts, BackupFolderFacts, BackupFolderMapping, BackupId, BackupParent, BackupToVerify, Backups,
    DiskReader, MAX_DECLARATION, NewBackup, RepositoryAccess, RepositoryPlace, S3Access, VerifiedBackup,
};
pub use balancing::{Balanced, BalancedPort, PortProtocol, Relay};
pub use berth_qemu::machine::Architecture;
pub use block_devices::{BlockDeviceFacts, BlockDeviceMapping, NewDevice};
pub use bridged_networks::{
    BridgeChoice, BridgedNames, BridgedNetwork, ExternalLease, LearnedAddress, LearnedGuest, ServedGuest,
    ServedIpv6Guest,
};
pub use dedicated_cpus::{DedicatedCpus, DedicatedFacts, DedicatedRequest, cpu_list, parse_cpu_list};
pub use error::{RepositoryProblem, Retry, SystemError, VaultProblem};
pub use firmware_state::{FirmwareCopy, MAX_FIRMWARE_ARCHIVE};
pub use images::{
    ChecksumSource, Compression, Credentials, DownloadLimits, Encoding, ImageFacts, ImageFile, ImageSource,
    Images, NewImage, Progress, RemoteError, RemoteImage, ResolvedImage, SourceHost, copy_url, upload_url,
};
pub use info::{
    EmulatedFacts, ForeignKind, ForeignObject, HostFacts, HostInfo, HugePagesFacts, KvmFacts, QemuFacts,
};
pub use keyring::SealedKey;
pub use linux::{bridge_mac, relay_link};
pub use machines::{
    BootstrapFile, DeviceSpecs, InstanceFacts, LaunchRequest, MAX_BOOTSTRAP, Machines, ProcessDetails,
    ProcessFacts, Seed, StateAccess,
};
pub use names::{NameRecord, Names};
pub use networks::{
    Egress, Firewall, Forward, Forwarding, HostBridge, HostInterface, HostLinks, HostRange, Ipv4Network,
    Ipv6Network, Isolation, Lease, LeaseTaken, Nat, NetworkConfig, Networks, PortException, PortLimits,
    PortMark, PortTrunk, RoutedPrefix, TapConfig, TapFacts, TraceRequest, TrafficLimit, Tunnel, Uplink,
};
pub use packet_filter::{
    ChosenAddresses, FilterGroup, FilterProtocol, FilterRule, FilteredPort, Filters, ObservedPort, Port,
};
pub use passthrough::{
    DeviceMapping, DeviceSelector, PciDeviceFacts, PciMapping, PciSelector, UsbDeviceFacts, UsbMapping,
    UsbSelector,
};
pub use pool_folders::{PoolFolderFacts, PoolFolderMapping, SharedPool};
pub use rbd_pools::{CephAccess, RbdPoolMapping};
pub use routes::{GuestRoutes, Ipv6Route, Route};
pub use shares::{ShareFacts, ShareMapping};
pub use start::{Earlier, Start};
pub use trace::{
    SENDER, StepResult, Trace, TraceDirection, TraceEnd, TraceObject, TraceProtocol, TraceStep, TracedPacket,
    TracedRule,
};
pub use usage::{HostUse, InterfaceUse, MachineUse};
pub use vaults::{VaultAccess, VaultLogin, Vaults};
pub use vgpus::{VgpuFacts, VgpuMapping, VgpuSelector};
pub use volume_copies::{
    Arrival, COPY_BLOCK, CopiedFile, CopiedPart, NewFetch, RemoteParts, RemoteVolume, RemoteVolumeFile,
    VolumeReader,
};
pub use volume_fill::{FilesystemKind, Fill, NewFilesystem, NewScratch};
pub use volume_owner::{DeclaredSource, VolumeOwner};
pub use volumes::{
    DeclaredRestore, MOST_RESTORES, MOST_SNAPSHOTS, Merged, NewMove, NewRestore, NewSnapshot, NewTake,
    NewVolume, Restored, SnapshotFacts, Taken, TrashedVolume, VolumeFacts, Volumes,
};
pub use wireguard::{WireguardConfig, WireguardFacts, WireguardImplementation, WireguardPeer};

type Result<T> = std::result::Result<T, SystemError>;

/// A host that runs VMs, as the agent sees it.
///
/// *Guarantees*: every method may be called again with the same arguments at any time, also after a crash in the middle
/// of an earlier call, and has the same result. Methods that read change nothing. Objects that berth did not create are
/// neither changed nor removed. Dropping a future stops the work at a point from which it can be resumed.
pub trait System: Images + Volumes + Backups + Vaults + Networks + Machines + HostInfo {}

impl<T: Images + Volumes + Backups + Vaults + Networks + Machines + HostInfo> System for T {}
