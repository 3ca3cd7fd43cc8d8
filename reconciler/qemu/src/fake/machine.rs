//! The state of one fake machine and its transitions. Synchronous: delayed transitions are returned as data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, broadcast, watch};

use super::guest_programs::GuestPrograms;
use super::guest_users::GuestUsers;
use super::saved_states::{Migration, SavedStates};
use super::{Behaviour, ImageFiles};
use crate::hypervisor::{CpuTime, ProcessIdentity};
use crate::machine::{
    BALLOON, Bus, Format, LaunchSpec, MEMORY_DEVICE, MachineSpec, Tap, backend_of, key_id, port_name,
};

/// The number of lines by which a connection that does not read may lag; real QEMU buffers without limit.
const EVENT_BUFFER: usize = 32;

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) identity: ProcessIdentity,
    pub(super) spec: LaunchSpec,
    /// The cores with a CPU.
    pub(super) cpus: BTreeSet<u32>,
    /// Beside the memory of the start, in bytes.
    pub(super) memory_requested: u64,
    pub(super) memory_plugged: u64,
    /// In the balloon, in bytes.
    pub(super) ballooned: u64,
    /// The guest is asked to report its memory.
    pub(super) reports_memory: bool,
    pub(super) cpu_time: CpuTime,
    /// How much the kernel's OOM killer prefers its process.
    pub(super) oom_preference: u16,
    pub(super) behaviour: Behaviour,
    pub(super) programs: GuestPrograms,
    pub(super) users: GuestUsers,
    /// Its file systems are frozen.
    pub(super) is_frozen: bool,
    /// How often they were frozen.
    pub(super) freezes: u64,
    /// `query-status` in QEMU's terms.
    pub(super) status: &'static str,
    /// The guest's operating system is running.
    pub(super) booted: bool,
    /// A number of its own for each boot of the guest's operating system: a guest that is loaded from a saved state goes on
    /// with the same.
    pub(super) boot: Option<u64>,
    pub(super) migration: Migration,
    /// It has given the locks of its files up, or has not taken them yet.
    pub(super) is_inactive: bool,
    pub(super) states: SavedStates,
    pub(super) files: Arc<dyn ImageFiles>,
    /// Counts resets and shutdowns, so that a delayed transition of an earlier life of the guest does not apply to a
    /// later one.
    pub(super) life: u64,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) devices: BTreeMap<String, Device>,
    /// The mirrors of disks, by the id of the job.
    pub(super) mirrors: BTreeMap<String, MirrorJob>,
    pub(super) taps: Taps,
    /// The keys of disks, by the ids of the objects.
    pub(super) keys: BTreeMap<String, String>,
    /// By device id.
    pub(super) cdroms: BTreeMap<String, Cdrom>,
    pub(super) events: broadcast::Sender<Value>,
    /// One client per monitor; the next one waits for its greeting.
    pub(super) monitor: Arc<Semaphore>,
    pub(super) exited: watch::Sender<bool>,
    /// QEMU is about to end by itself.
    pub(super) has_failed: bool,
}

/// A named block node with the file it holds open.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) driver: Format,
    pub(super) file: PathBuf,
    /// The files below it, the nearest first.
    pub(super) below: Vec<PathBuf>,
    /// The node below it, if that has a name of its own.
    pub(super) on: Option<String>,
    pub(super) size: u64,
    pub(super) read_only: bool,
    pub(super) is_direct: bool,
    /// The snapshots within its image, by name.
    pub(super) snapshots: Vec<String>,
}

/// The job that mirrors a node.
#[derive(Clone, Debug)]
pub(super) struct MirrorJob {
    pub(super) device: String,
    pub(super) target: String,
    pub(super) done: u64,
    /// In QEMU's terms.
    pub(super) status: &'static str,
    pub(super) error: Option<String>,
}

impl MirrorJob {
    /// The status of a job that has ended.
    pub(super) const CONCLUDED: &str = "concluded";

    /// Whether it reads from or writes to this node.
    pub(super) fn has(&self, node: &str) -> bool {
        self.status != Self::CONCLUDED && (self.device == node || self.target == node)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) driver: &'static str,
    /// For disks: the node, the serial number, the SCSI target.
    pub(super) disk: Option<Disk>,
    /// For network cards.
    pub(super) nic: Option<Nic>,
    pub(super) unplugging: bool,
}

impl Device {
    pub(super) fn without_parts(driver: &'static str) -> Self {
        Self { driver, disk: None, nic: None, unplugging: false }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Cdrom {
    pub(super) node: Option<String>,
    pub(super) tray_open: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) node: String,
    pub(super) serial: String,
    pub(super) bus: Bus,
    /// Only on the virtio-scsi controller.
    pub(super) target: Option<u8>,
    /// Whether other machines may write to its file too.
    pub(super) shares: bool,
    /// The ceilings as they were requested.
    pub(super) limits: Map<String, Value>,
}

/// The taps of one machine.
#[derive(Debug, Default)]
pub(super) struct Taps {
    /// By the name of their descriptor.
    pub(super) lent: BTreeMap<String, String>,
    /// By back end.
    pub(super) backends: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub(super) struct Nic {
    pub(super) backend: String,
    pub(super) mac: String,
    /// The path of its bus.
    pub(super) bus: String,
    pub(super) is_up: bool,
}

/// Returns the ports and cards that a machine has from the start, and its taps.
fn cards_at_start(spec: &MachineSpec) -> (BTreeMap<String, Device>, Taps) {
    let mut devices = BTreeMap::new();
    for number in 0..spec.nic_ports {
        devices.insert(port_name(number), Device::without_parts("pcie-root-port"));
    }
    let mut taps = Taps::default();
    for nic in &spec.nics {
        if let Tap::Name(tap) = &nic.tap {
            taps.backends.insert(backend_of(&nic.id), tap.clone());
        }
        let bus = nic.port.map_or_else(|| "/machine/q35/pcie.0".to_owned(), |port| path_of(&port_name(port)));
        let card = Nic { backend: backend_of(&nic.id), mac: nic.mac.clone(), bus, is_up: true };
        let device = Device { nic: Some(card), ..Device::without_parts(nic.model.driver()) };
        devices.insert(nic.id.clone(), device);
    }
    (devices, taps)
}

/// The path of the bus of a port.
pub(super) fn path_of(port: &str) -> String {
    format!("/machine/peripheral/{port}/{port}")
}

impl Taps {
    /// Lists the taps that QEMU has open.
    pub(super) fn in_use(&self) -> impl Iterator<Item = &String> {
        self.lent.values().chain(self.backends.values())
    }
}

/// A transition after a delay.
#[derive(Clone, Debug)]
pub(super) struct Later {
    pub(super) after: Duration,
    /// The life of the guest that it belongs to; None if it survives resets.
    pub(super) life: Option<u64>,
    pub(super) what: Happening,
}

#[derive(Clone, Debug)]
pub(super) enum Happening {
    Booted,
    GuestOff,
    GuestReboots,
    GuestSuspends,
    DeviceGone(String),
    Saved,
    Loaded,
}

impl Machine {
    pub(super) fn new(
        identity: ProcessIdentity,
        spec: LaunchSpec,
        behaviour: Behaviour,
        (files, states): (Arc<dyn ImageFiles>, SavedStates),
    ) -> Self {
        let is_inactive = spec.files.from_saved_state;
        let status = if is_inactive { "inmigrate" } else { "prelaunch" };
        let (mut devices, taps) = cards_at_start(&spec.machine);
        let fixed = [
            ("scsi0", "virtio-scsi-pci"),
            ("rng0", "virtio-rng-pci"),
            (BALLOON, "virtio-balloon-pci"),
            ("pvpanic0", "pvpanic"),
            ("com1", "isa-serial"),
            ("virtio-serial0", "virtio-serial-pci"),
            ("qga-port0", "virtserialport"),
        ];
        for (id, driver) in fixed {
            devices.insert(id.to_owned(), Device::without_parts(driver));
        }
        let keys = spec.files.keys.iter().map(|(disk, key)| (key_id(disk), key.passphrase())).collect();
        Self {
            identity,
            keys,
            cpus: (0..spec.machine.cpus.into()).collect(),
            memory_requested: 0,
            memory_plugged: 0,
            ballooned: 0,
            reports_memory: false,
            cpu_time: CpuTime::default(),
            oom_preference: 0,
            spec,
            behaviour,
            programs: GuestPrograms::default(),
            users: GuestUsers::default(),
            is_frozen: false,
            freezes: 0,
            status,
            booted: false,
            boot: None,
            migration: Migration::default(),
            is_inactive,
            states,
            files,
            life: 0,
            nodes: BTreeMap::new(),
            cdroms: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            devices,
            taps,
            events: broadcast::channel(EVENT_BUFFER).0,
            monitor: Arc::new(Semaphore::new(1)),
            exited: watch::channel(false).0,
            has_failed: false,
        }
    }

    pub(super) fn emit(&self, event: &str, data: Value) {
        // Simulated time may start anywhere, so the timestamp is QEMU's value for "unknown".
        let mut message = json!({"event": event, "timestamp": {"seconds": -1, "microseconds": -1}});
        if !data.is_null() {
            message["data"] = data;
        }
        let _ = self.events.send(message);
    }

    pub(super) fn cont(&mut self) -> Result<Vec<Later>, String> {
        match self.status {
            // QEMU ignores it for a guest that has suspended itself.
            "running" | "suspended" => return Ok(Vec::new()),
            // QEMU would let the guest run as soon as its state is loaded, perhaps twice.
            "inmigrate" => return Err("a machine that waits for its state is never started".to_owned()),
            "finish-migrate" => {
                return Err("Can't cont while the migration is being finished".to_owned());
            }
            "shutdown" | "internal-error" => {
                return Err("Resetting the Virtual Machine is required".to_owned());
            }
            _ => {}
        }
        let first = self.status == "prelaunch";
        self.status = "running";
        self.emit("RESUME", Value::Null);
        Ok(if first { vec![self.boot()] } else { Vec::new() })
    }

    pub(super) fn stop(&mut self) {
        if self.status == "running" {
            self.status = "paused";
            self.emit("STOP", Value::Null);
        }
    }

    /// The guest suspends itself to its memory.
    pub(super) fn suspend_itself(&mut self) {
        if self.status == "running" && self.booted {
            self.status = "suspended";
            self.emit("SUSPEND", Value::Null);
        }
    }

    pub(super) fn wake_up(&mut self) -> Result<(), String> {
        if self.status != "suspended" {
            return Err("Unable to wake up: guest is not in suspended state".to_owned());
        }
        self.status = "running";
        self.emit("WAKEUP", Value::Null);
        Ok(())
    }

    pub(super) fn powerdown(&mut self) -> Vec<Later> {
        self.emit("POWERDOWN", Value::Null);
        if self.status != "running" || !self.booted || self.behaviour.ignores_powerdown {
            return Vec::new();
        }
        vec![Later { after: self.behaviour.shutdown_time, life: Some(self.life), what: Happening::GuestOff }]
    }

    pub(super) fn reset(&mut self, by_guest: bool) -> Vec<Later> {
        let reason = if by_guest { "guest-reset" } else { "host-qmp-system-reset" };
        self.emit("RESET", json!({"guest": by_guest, "reason": reason}));
        self.life += 1;
        self.agent_port(false);
        self.booted = false;
        // Its driver plugs it in again.
        self.memory_plugged = 0;
        if self.status == "running" {
            return vec![self.boot()];
        }
        self.status = "prelaunch";
        Vec::new()
    }

    pub(super) fn guest_off(&mut self) {
        self.emit("SHUTDOWN", json!({"guest": true, "reason": "guest-shutdown"}));
        self.emit("STOP", Value::Null);
        self.end_life("shutdown");
    }

    pub(super) fn guest_panics(&mut self) {
        self.emit("GUEST_PANICKED", json!({"action": "pause"}));
        self.emit("STOP", Value::Null);
        self.end_life("guest-panicked");
    }

    pub(super) fn disk_full(&mut self, id: &str) {
        let node = self.devices.get(id).and_then(|d| d.disk.as_ref()).map(|d| d.node.clone());
        self.emit("BLOCK_IO_ERROR", json!({"device": "", "node-name": node, "nospace": true, "operation": "write", "action": "stop", "reason": "No space left on device"}));
        self.status = "io-error";
        self.emit("STOP", Value::Null);
    }

    fn end_life(&mut self, status: &'static str) {
        self.life += 1;
        self.agent_port(false);
        self.booted = false;
        self.status = status;
    }

    fn boot(&self) -> Later {
        Later { after: self.behaviour.boot_time, life: Some(self.life), what: Happening::Booted }
    }

    /// The guest's agent ends and starts again.
    pub(super) fn restart_agent(&self) {
        self.agent_port(false);
        self.agent_port(true);
    }

    /// The guest's agent ends, and is not started again.
    pub(super) fn remove_agent(&mut self) {
        self.agent_port(false);
        self.behaviour.guest_agent = false;
    }

    fn agent_port(&self, open: bool) {
        if self.behaviour.guest_agent && (open || self.booted) {
            self.emit("VSERPORT_CHANGE", json!({"id": "qga-port0", "open": open}));
        }
    }

    /// The guest's driver, if it runs and there is one, plugs memory in and out as requested.
    pub(super) fn plug_memory(&mut self) {
        if self.booted && self.behaviour.plugs_memory && self.memory_plugged != self.memory_requested {
            self.memory_plugged = self.memory_requested;
            self.emit("MEMORY_DEVICE_SIZE_CHANGE", json!({"id": MEMORY_DEVICE, "size": self.memory_plugged}));
        }
    }

    /// Applies a delayed transition.
    pub(super) fn happen(&mut self, later: &Later) -> Vec<Later> {
        if later.life.is_some_and(|life| life != self.life) {
            return Vec::new();
        }
        match &later.what {
            Happening::Booted => {
                self.booted = true;
                self.boot = u64::try_from(self.identity.pid).ok().map(|pid| (pid << 32) + self.life);
                self.agent_port(true);
                self.plug_memory();
            }
            Happening::GuestOff => self.guest_off(),
            Happening::GuestReboots => return self.reset(true),
            Happening::GuestSuspends if self.behaviour.ignores_suspend => {}
            Happening::GuestSuspends => self.suspend_itself(),
            Happening::DeviceGone(id) => self.release(id),
            Happening::Saved => self.saved(),
            Happening::Loaded => match self.awaits_state() {
                Some(later) => return vec![later],
                None => self.has_failed = !self.loaded(),
            },
        }
        Vec::new()
    }

    /// Completes a requested unplug.
    pub(super) fn release(&mut self, id: &str) {
        if self.devices.get(id).is_some_and(|d| d.unplugging) {
            self.devices.remove(id);
            self.emit("DEVICE_DELETED", json!({"device": id, "path": format!("/machine/peripheral/{id}")}));
        }
    }

    /// Takes a device out, as a request at another monitor does.
    pub(super) fn pull(&mut self, id: &str) {
        if self.devices.remove(id).is_some() {
            self.emit("DEVICE_DELETED", json!({"device": id, "path": format!("/machine/peripheral/{id}")}));
        }
    }

    pub(super) fn disks(&self) -> impl Iterator<Item = (&String, &Disk)> {
        self.devices.iter().filter_map(|(id, d)| Some((id, d.disk.as_ref()?)))
    }

    pub(super) fn free_target(&self) -> u8 {
        let taken: BTreeSet<u8> = self.disks().filter_map(|(_, d)| d.target).collect();
        (0..=u8::MAX).find(|t| !taken.contains(t)).unwrap_or(u8::MAX)
    }

    /// Whether the guest uses the medium in the drive.
    pub(super) fn locks_tray(&self, drive: &Cdrom) -> bool {
        self.booted && self.behaviour.locks_trays && drive.node.is_some() && !drive.tray_open
    }

    /// A paused guest still has the port open.
    pub(super) fn agent_port_is_open(&self) -> bool {
        self.booted && self.behaviour.guest_agent
    }

    pub(super) fn agent_answers(&self) -> bool {
        self.booted && self.status == "running" && self.behaviour.guest_agent
    }
}
