//! How a fake machine and its guest behave. Plain data; may be changed while the machine runs.

use std::collections::BTreeMap;
use std::time::Duration;

/// The knobs. The default is a well-behaved guest that boots in 100 ms and has an agent.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// From `cont` (or a reset) until the operating system runs: until then it hears neither power button nor agent.
    pub boot_time: Duration,
    /// Whether a guest agent runs inside, once booted.
    pub guest_agent: bool,
    pub guest: GuestFacts,
    /// The guest pretends not to hear the power button.
    pub ignores_powerdown: bool,
    /// From the power button until the guest is off.
    pub shutdown_time: Duration,
    /// Disks (device ids) the guest never lets go of: `device_del` is accepted and nothing follows.
    pub keeps: Vec<String>,
    /// From an accepted `device_del` until DEVICE_DELETED.
    pub unplug_time: Duration,
    /// Commands that fail, with what QEMU says.
    pub refuses: BTreeMap<String, String>,
    /// Before every answer of the monitor.
    pub latency: Duration,
    /// The monitor is open and never answers.
    pub hangs: bool,
    /// QEMU gives up at start with these words on stderr.
    pub fails_at_start: Option<String>,
    /// From the launch until the monitor answers.
    pub launch_time: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            boot_time: Duration::from_millis(100),
            guest_agent: true,
            guest: GuestFacts::default(),
            ignores_powerdown: false,
            shutdown_time: Duration::from_millis(100),
            keeps: Vec::new(),
            unplug_time: Duration::from_millis(5),
            refuses: BTreeMap::new(),
            latency: Duration::ZERO,
            hangs: false,
            fails_at_start: None,
            launch_time: Duration::from_millis(20),
        }
    }
}

/// What the guest agent tells. What is not set is derived from the machine.
#[derive(Clone, Debug, Default)]
pub struct GuestFacts {
    /// None: the machine's name.
    pub host_name: Option<String>,
    pub addresses: Vec<GuestAddress>,
    /// Serial number of a disk → where the guest mounted it.
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
