//! The behaviour of a fake machine and its guest. Plain data; can be changed while the machine runs.

use std::collections::BTreeMap;
use std::time::Duration;

/// The settings. The default is a well-behaved guest that boots in 100 ms and has an agent.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// From `cont` (or a reset) until the operating system runs: until then it reacts to neither power button nor agent
    /// requests.
    pub boot_time: Duration,
    /// Whether a guest agent runs inside, once booted.
    pub guest_agent: bool,
    /// Commands that the configuration of the guest agent forbids.
    pub disabled_commands: Vec<String>,
    pub guest: GuestFacts,
    /// The guest agent freezes file systems and does not thaw them.
    pub never_thaws: bool,
    /// Whether the guest, once booted, plugs memory in and out as QEMU requests.
    pub plugs_memory: bool,
    /// Whether the guest, once booted, has a driver for the balloon.
    pub balloons: bool,
    /// The bytes of memory that the guest uses.
    pub memory_used: u64,
    /// The guest, once booted, uses the media in its CD-ROM drives.
    pub locks_trays: bool,
    /// The emulator of its TPM has ended.
    pub tpm_ended: bool,
    /// The tags of shares whose servers have ended.
    pub lost_shares: Vec<String>,
    /// The guest ignores the power button.
    pub ignores_powerdown: bool,
    /// The guest's kernel cannot suspend itself: its agent refuses the request with this text.
    pub suspend_refused: Option<String>,
    /// The guest's agent takes the request to suspend the guest, and its kernel does not suspend itself.
    pub ignores_suspend: bool,
    /// From the power button until the guest is off.
    pub shutdown_time: Duration,
    /// Disks and network cards (device ids) that the guest never releases: `device_del` is accepted without effect.
    pub keeps: Vec<String>,
    /// From an accepted `device_del` until DEVICE_DELETED.
    pub unplug_time: Duration,
    /// Commands that fail, with QEMU's error text.
    pub refuses: BTreeMap<String, String>,
    /// The delay before every reply of the monitor.
    pub latency: Duration,
    /// The monitor is open but never replies.
    pub hangs: bool,
    /// QEMU fails at start with this text on stderr.
    pub fails_at_start: Option<String>,
    /// From the launch until the monitor replies.
    pub launch_time: Duration,
    /// How long the saving or loading of its state takes.
    pub save_time: Duration,
    /// A save fails at its end with this text.
    pub save_fails: Option<String>,
    /// QEMU ends with this text on stderr when it loads a saved state.
    pub load_fails: Option<String>,
    /// Mirrors of disks do not go on.
    pub mirrors_stall: bool,
    /// Mirrors of disks fail with this text before they are ready.
    pub mirror_fails: Option<String>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            boot_time: Duration::from_millis(100),
            guest_agent: true,
            disabled_commands: Vec::new(),
            guest: GuestFacts::default(),
            never_thaws: false,
            plugs_memory: true,
            balloons: true,
            memory_used: 64 << 20,
            locks_trays: false,
            tpm_ended: false,
            lost_shares: Vec::new(),
            ignores_powerdown: false,
            suspend_refused: None,
            ignores_suspend: false,
            shutdown_time: Duration::from_millis(100),
            keeps: Vec::new(),
            unplug_time: Duration::from_millis(5),
            refuses: BTreeMap::new(),
            latency: Duration::ZERO,
            hangs: false,
            fails_at_start: None,
            launch_time: Duration::from_millis(20),
            save_time: Duration::from_millis(50),
            save_fails: None,
            load_fails: None,
            mirrors_stall: false,
            mirror_fails: None,
        }
    }
}

/// The guest agent's answers. Unset values are derived from the machine.
#[derive(Clone, Debug, Default)]
pub struct GuestFacts {
    /// None: the machine's name.
    pub host_name: Option<String>,
    pub addresses: Vec<GuestAddress>,
    /// Serial number of a disk → its mount point in the guest.
    pub mounts: BTreeMap<String, String>,
}

/// An address inside the guest.
#[derive(Clone, Debug)]
pub struct GuestAddress {
    /// Index into the machine's NICs.
    pub nic: usize,
    pub address: std::net::IpAddr,
    pub prefix: u8,
}
