//! The reasons for an object's state: one vocabulary for conditions and events.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// A machine-readable reason, the same word in a condition and an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[$doc])* $name),+ }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// The reason as it is written in conditions and events.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name)),+ }
            }
        }
    };
}

reasons! {
    // Converged.
    /// Everything declared is real.
    Available,
    /// The VM runs as declared.
    Running,
    /// The VM is stopped as declared.
    Stopped,
    /// The guest's CPUs are stopped.
    Paused,
    /// The disk has no file yet: its first VM decides the host.
    WaitingForFirstUse,
    /// The image's checksum, format and virtual size were verified.
    Verified,
    /// The disk is attached to the running VM.
    Attached,
    /// The address is allocated.
    Allocated,
    /// The guest agent or a DHCP lease showed that the guest is up.
    GuestSeen,
    /// Effective settings are those declared.
    Synced,

    // On the way, by itself.
    /// The object has not been observed yet.
    Pending,
    /// Bound to a host that has not reported yet.
    Bound,
    /// No host can take it now; the message names each rule that failed.
    Unschedulable,
    /// A host has not reported its guests and files yet, or its report is being processed.
    WaitingForInventory,
    /// The host it was bound to refused it, for the reason in the message. It is placed anew.
    Refused,
    /// The VMClass does not exist yet.
    WaitingForClass,
    /// A Disk does not exist yet or has no file yet.
    WaitingForDisk,
    /// The Image does not exist yet or is not verified yet.
    WaitingForImage,
    /// The PlacementGroup does not exist yet.
    WaitingForGroup,
    /// The Network does not exist yet.
    WaitingForNetwork,
    /// The PublicIP does not exist yet or has no address yet.
    WaitingForPublicIP,
    /// The Secret with bootstrap data does not exist yet.
    WaitingForBootstrap,
    /// The VM does not exist yet or is not bound or not running yet.
    WaitingForVM,
    /// The IPPool or StoragePool does not exist yet.
    WaitingForPool,
    /// The image is being downloaded.
    Pulling,
    /// A file is being made.
    Provisioning,
    /// QEMU is being started.
    Starting,
    /// The guest was asked to shut down.
    Stopping,
    /// Being attached.
    Attaching,
    /// Being detached.
    Detaching,
    /// Being grown.
    Growing,
    /// Being deleted.
    Deleting,
    /// Deleted, and held until nothing uses it; the message names the users.
    InUse,
    /// An annotation holds back the start of the VM; the message names it.
    PowerOnHeld,
    /// A declared change takes effect at the next power cycle.
    PowerCycleNeeded,
    /// The VM's host is not one that its placement allows: a placed VM does not move.
    PlacedElsewhere,
    /// A step failed and is being tried again; the message is the error.
    Retrying,
    /// The guest was not seen yet.
    GuestNotSeen,
    /// The host's Lease is stale: the state of its objects is unknown.
    HostSilent,

    /// The host is drained: the VM stays stopped until the host is uncordoned.
    HostDraining,

    // A person must change something.
    /// The host was declared lost for good, with everything on it.
    HostFenced,
    /// The downloaded bytes do not have the declared checksum.
    ChecksumMismatch,
    /// The source answered that there is no such image.
    ImageNotFound,
    /// The host may not fetch from there: a file outside of the folders, or an address outside of the ranges, that its
    /// administrator allows.
    ImageNotAllowed,
    /// The bytes are not an image of the declared format, or one that is refused (backing file, external data file).
    ImageInvalid,
    /// The image's virtual size is larger than allowed.
    ImageTooLarge,
    /// The disk is smaller than the image it is made from.
    DiskSmallerThanImage,
    /// The disk is used by another VM.
    DiskInUse,
    /// The disk's file is on another host.
    DiskOnOtherHost,
    /// The disk's file is gone from its host.
    DiskLost,
    /// No address is free in the pool.
    NoFreeAddress,
    /// The declared address is not in the pool, or is in use.
    AddressUnavailable,
    /// QEMU is not installed on the host.
    QemuMissing,
    /// QEMU failed at start; the message is its standard error.
    QemuFailed,
    /// The VM's QEMU ended repeatedly; restarts are backed off.
    CrashLoop,
    /// The guest ended and the restart policy leaves it ended.
    GuestEnded,
    /// The guest still uses the disk (a mounted filesystem): unmount it or set force.
    GuestBusy,
    /// No guest agent reports whether the running guest has the disk mounted: run one, stop the VM, or set force.
    MountsUnknown,
    /// The guest was asked to shut down and still runs; the mode `Soft` leaves it running.
    ShutdownIgnored,
    /// The host does not support what is declared.
    NotSupported,
    /// The declared data cannot be used (for example bootstrap data that is too large).
    InvalidSpec,
    /// The host has no space left for the file.
    NoSpace,
    /// No host is large enough for the VM, however empty; the message names the largest.
    NoHostLargeEnough,
    /// No host has the name or the labels the VM asks for.
    NoSuchHost,
    /// The placement group has more members than hosts, or zones, to keep them apart.
    GroupTooLarge,
    /// Members of the placement group are placed against its rule.
    GroupRuleBroken,
    /// The declared MTU does not fit through the tunnels between hosts; a smaller one is used.
    MTUTooLarge,
    /// The address for a VM is an address of a host.
    HostAddress,
    /// The network's identifier is in use by another network.
    IdentifierInUse,
    /// The namespace has the largest number of these that its quota allows.
    QuotaExceeded,
    /// Another machine on the segment answers for the address.
    AddressConflict,
    /// The host has no interface to announce public addresses on, or that interface is not configured for it.
    NoPublicInterface,

    // Hosts.
    /// The host agent reports.
    AgentReady,
    /// The accelerator is usable.
    Accelerated,
    /// The accelerator is not usable; emulation is used.
    Emulated,
    /// Guests run or files lie on the host that no object owns.
    OrphansFound,
    /// All that the host has, or more, is reserved for the host itself.
    ReservedTooLarge,
    /// A firewall that is not berth's drops forwarded packets.
    ForeignFirewall,
    /// The host takes no new VMs.
    Cordoned,
    /// The control plane's definitions are older than the host's agent.
    OlderDefinitions,
    /// The control plane's definitions are newer than the host's agent: it takes no new VMs.
    NewerDefinitions,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
