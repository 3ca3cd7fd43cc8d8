//! The host: all fake machines, and the controls a test has over them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use tokio::io::DuplexStream;

use super::commands::{self, Refusal};
use super::machine::{Later, Machine};
use super::server::{self, Wire};
use super::{Behaviour, ImageFiles, LocalFiles, blocks, guest};
use crate::hypervisor::{FoundQemu, ProcessIdentity};
use crate::machine::{MachineSpec, blockdev, scsi_disk, seed_disk};
use crate::power::RunState;
use crate::process::LaunchError;

pub(super) const BINARY: &str = "/usr/bin/qemu-system-x86_64";

/// A host whose machines are fakes. Clones are the same host.
#[derive(Clone, Debug)]
pub struct FakeHypervisor {
    world: Arc<Mutex<World>>,
}

/// A look at a fake machine from outside, for assertions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineView {
    pub identity: ProcessIdentity,
    pub spec: MachineSpec,
    pub run_state: RunState,
    /// The guest's operating system is up.
    pub booted: bool,
    /// Device id → file and size of every disk plugged in.
    pub disks: BTreeMap<String, (PathBuf, u64)>,
    /// Every block node, plugged in or not: one without a device is a leak.
    pub nodes: Vec<String>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) machines: BTreeMap<i32, Machine>,
    pub(super) foreign: BTreeMap<i32, FoundQemu>,
    default_behaviour: Behaviour,
    behaviours: BTreeMap<String, Behaviour>,
    pub(super) files: Arc<dyn ImageFiles>,
    /// Files QEMU's user may open; true: for writing too.
    pub(super) granted: BTreeMap<PathBuf, bool>,
    next_pid: i32,
    launches: u64,
}

impl World {
    pub(super) fn machine(&mut self, pid: i32) -> Result<&mut Machine, Refusal> {
        self.machines.get_mut(&pid).ok_or_else(|| Refusal::generic("the process is gone"))
    }

    /// Image locking across all machines: one writer, or any number of readers.
    pub(super) fn is_locked(&self, file: &Path, read_only: bool) -> bool {
        let mut nodes = self.machines.values().flat_map(|m| m.nodes.values());
        nodes.any(|n| n.file == file && !(read_only && n.read_only))
    }
}

impl Default for FakeHypervisor {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeHypervisor {
    /// A host over real image files.
    pub fn new() -> Self {
        Self::with_files(Arc::new(LocalFiles))
    }

    /// A host over whatever image files the caller simulates.
    pub fn with_files(files: Arc<dyn ImageFiles>) -> Self {
        let world = World {
            machines: BTreeMap::new(),
            foreign: BTreeMap::new(),
            default_behaviour: Behaviour::default(),
            behaviours: BTreeMap::new(),
            files,
            granted: BTreeMap::new(),
            next_pid: 1000,
            launches: 0,
        };
        Self { world: Arc::new(Mutex::new(world)) }
    }

    /// How machines behave that have no behaviour of their own, from their launch on.
    pub fn set_default_behaviour(&self, behaviour: Behaviour) {
        self.lock().default_behaviour = behaviour;
    }

    /// Changes how an instance behaves: now if it runs, and at every later launch.
    pub fn set_behaviour(&self, instance: &str, change: impl FnOnce(&mut Behaviour)) {
        let mut world = self.lock();
        let mut behaviour = world.behaviours.get(instance).unwrap_or(&world.default_behaviour).clone();
        change(&mut behaviour);
        for machine in world.machines.values_mut().filter(|m| m.spec.instance == instance) {
            machine.behaviour = behaviour.clone();
        }
        world.behaviours.insert(instance.to_owned(), behaviour);
    }

    /// The process dies without a word, as after a SIGKILL from elsewhere.
    pub fn crash(&self, instance: &str) {
        for pid in self.pids_of(instance) {
            self.end(pid);
        }
    }

    /// The guest switches itself off.
    pub fn guest_powers_off(&self, instance: &str) {
        self.with(instance, Machine::guest_off);
    }

    /// The guest's kernel gives up.
    pub fn guest_panics(&self, instance: &str) {
        self.with(instance, Machine::guest_panics);
    }

    /// The guest restarts itself.
    pub fn guest_reboots(&self, instance: &str) {
        for pid in self.pids_of(instance) {
            let later = self.lock().machine(pid).map(|m| m.reset(true)).unwrap_or_default();
            self.schedule(pid, later);
        }
    }

    /// The guest lets go of a disk it kept ([`Behaviour::keeps`]) after it was asked to.
    pub fn guest_releases(&self, instance: &str, disk: &str) {
        self.set_behaviour(instance, |behaviour| behaviour.keeps.retain(|kept| kept != disk));
        self.with(instance, |machine| machine.release(disk));
    }

    /// The host's file system has no room for what the guest writes to this disk.
    pub fn disk_full(&self, instance: &str, disk: &str) {
        self.with(instance, |machine| machine.disk_full(disk));
    }

    /// A QEMU somebody else runs.
    pub fn add_foreign(&self, name: &str) -> ProcessIdentity {
        let mut world = self.lock();
        let identity = next_identity(&mut world);
        let argv = vec![BINARY.to_owned(), "-name".to_owned(), format!("guest={name}")];
        let found = FoundQemu {
            identity: identity.clone(),
            uid: 0,
            instance: None,
            name: Some(name.to_owned()),
            argv,
        };
        world.foreign.insert(identity.pid, found);
        identity
    }

    /// The instance as it is now; None when it has no process.
    pub fn view(&self, instance: &str) -> Option<MachineView> {
        let world = self.lock();
        let machine = world.machines.values().find(|m| m.spec.instance == instance)?;
        let disk = |(id, disk): (&String, &super::machine::Disk)| {
            let node = machine.nodes.get(&disk.node)?;
            Some((id.clone(), (node.file.clone(), node.size)))
        };
        Some(MachineView {
            identity: machine.identity.clone(),
            spec: machine.spec.clone(),
            run_state: RunState::from_qemu(machine.status),
            booted: machine.booted,
            disks: machine.disks().filter_map(disk).collect(),
            nodes: machine.nodes.keys().cloned().collect(),
        })
    }

    /// Process number and MAC addresses of every machine whose guest is up.
    pub fn booted(&self) -> Vec<(i32, Vec<String>)> {
        let world = self.lock();
        let booted = world.machines.values().filter(|m| m.booted);
        let macs = |m: &Machine| m.spec.nics.iter().map(|nic| nic.mac.clone()).collect();
        booted.map(|m| (m.identity.pid, macs(m))).collect()
    }

    /// QEMUs that somebody else runs: process number and name.
    pub fn foreign(&self) -> Vec<(i32, String)> {
        let world = self.lock();
        world.foreign.values().map(|f| (f.identity.pid, f.name.clone().unwrap_or_default())).collect()
    }

    /// All instances that have a process.
    pub fn instances(&self) -> Vec<String> {
        self.lock().machines.values().map(|m| m.spec.instance.clone()).collect()
    }

    /// How many launches were successful so far.
    pub fn launches(&self) -> u64 {
        self.lock().launches
    }

    /// Serves QMP for an instance on a stream of the caller's.
    pub fn serve_monitor(&self, instance: &str, stream: DuplexStream) -> bool {
        let Some(pid) = self.pids_of(instance).first().copied() else { return false };
        let Some(wire) = self.wire(|m| m.identity.pid == pid) else { return false };
        tokio::spawn(server::monitor(self.clone(), wire, stream));
        true
    }

    pub(super) fn execute(
        &self,
        pid: i32,
        command: &str,
        args: &Map<String, Value>,
    ) -> Result<Value, Refusal> {
        let (value, later) = commands::execute(&mut self.lock(), pid, command, args)?;
        self.schedule(pid, later);
        Ok(value)
    }

    pub(super) fn ask_guest(&self, pid: i32, message: &Value) -> Option<Value> {
        let (value, later) = guest::answer(self.lock().machines.get(&pid)?, message);
        self.schedule(pid, later);
        value
    }

    pub(super) fn behaviour_of(&self, pid: i32) -> Option<Behaviour> {
        Some(self.lock().machines.get(&pid)?.behaviour.clone())
    }

    pub(super) fn announce_quit(&self, pid: i32) -> Value {
        if let Ok(machine) = self.lock().machine(pid) {
            machine.emit("SHUTDOWN", json!({"guest": false, "reason": "host-qmp-quit"}));
        }
        json!({"return": {}})
    }

    /// The process is gone, with everything it held.
    pub(super) fn end(&self, pid: i32) {
        if let Some(machine) = self.lock().machines.remove(&pid) {
            machine.exited.send_replace(true);
        }
    }

    fn schedule(&self, pid: i32, later: Vec<Later>) {
        for item in later {
            let host = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(item.after).await;
                let next = host.lock().machine(pid).map(|m| m.happen(&item)).unwrap_or_default();
                host.schedule(pid, next);
            });
        }
    }

    fn with(&self, instance: &str, change: impl Fn(&mut Machine)) {
        for machine in self.lock().machines.values_mut().filter(|m| m.spec.instance == instance) {
            change(machine);
        }
    }

    fn pids_of(&self, instance: &str) -> Vec<i32> {
        let world = self.lock();
        world.machines.iter().filter(|(_, m)| m.spec.instance == instance).map(|(pid, _)| *pid).collect()
    }

    pub(super) fn wire(&self, wanted: impl Fn(&Machine) -> bool) -> Option<Wire> {
        let world = self.lock();
        let machine = world.machines.values().find(|m| wanted(m))?;
        Some(Wire {
            pid: machine.identity.pid,
            monitor: machine.monitor.clone(),
            events: machine.events.subscribe(),
            exited: machine.exited.subscribe(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        // A test that panicked while it held the lock has its own message already.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything QEMU checks before its monitor answers.
    pub(super) fn build(&self, spec: &MachineSpec) -> Result<ProcessIdentity, LaunchError> {
        let mut world = self.lock();
        if let Some(other) = world.machines.values().find(|m| m.spec.instance == spec.instance) {
            let pid = other.identity.pid;
            return Err(LaunchError::AlreadyRunning { instance: spec.instance.clone(), pid });
        }
        let behaviour = world.behaviours.get(&spec.instance).unwrap_or(&world.default_behaviour).clone();
        if let Some(words) = behaviour.fails_at_start {
            return Err(LaunchError::Exited { status: "exit status: 1".to_owned(), stderr: words });
        }
        let seed = spec.seed.iter().map(|s| seed_disk(s));
        let disks: Vec<_> = spec.disks.iter().cloned().chain(seed).collect();
        for disk in &disks {
            world.granted.insert(disk.file.clone(), !disk.read_only);
            if let Some(backing) = &disk.backing {
                world.granted.entry(backing.file.clone()).or_insert(false);
            }
        }
        let identity = next_identity(&mut world);
        let pid = identity.pid;
        world.machines.insert(pid, Machine::new(identity.clone(), spec.clone(), behaviour));
        for disk in &disks {
            let outcome = arguments(&blockdev(disk))
                .and_then(|args| blocks::blockdev_add(&mut world, pid, &args))
                .and_then(|()| arguments(&scsi_disk(disk)))
                .and_then(|args| blocks::device_add(&mut world, pid, &args));
            if let Err(refusal) = outcome {
                world.machines.remove(&pid);
                let stderr = format!("qemu-system-x86_64: -blockdev {}: {}", disk.id, refusal.desc);
                return Err(LaunchError::Exited { status: "exit status: 1".to_owned(), stderr });
            }
        }
        world.launches += 1;
        Ok(identity)
    }
}

fn arguments(value: &Value) -> Result<Map<String, Value>, Refusal> {
    value.as_object().cloned().ok_or_else(|| Refusal::generic("not an object"))
}

fn next_identity(world: &mut World) -> ProcessIdentity {
    world.next_pid += 1;
    let start_time = world.next_pid.unsigned_abs().into();
    ProcessIdentity { pid: world.next_pid, start_time, boot_id: "fake".to_owned() }
}
