//! The host: all fake machines, and the controls for tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, broadcast, watch};

use super::command_error::CommandError;
use super::machine::{Later, Machine};
use super::model::MachineModel;
use super::{Behaviour, ImageFiles, LocalFiles, blocks, cdroms, commands, guest};
use crate::hypervisor::{FoundQemu, LaunchError, ProcessIdentity};
use crate::machine::{CdromSpec, LaunchSpec, MachineSpec, blockdevs, disk_device, seed_disk};
use crate::power::RunState;

pub(super) const BINARY: &str = "/usr/bin/qemu-system-x86_64";

/// A host of fake machines. Clones refer to the same host.
#[derive(Clone, Debug)]
pub struct FakeHypervisor {
    world: Arc<Mutex<MachineModel>>,
}

/// An external view of a fake machine, for assertions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineView {
    pub identity: ProcessIdentity,
    pub spec: MachineSpec,
    pub run_state: RunState,
    /// The guest's operating system is running.
    pub booted: bool,
    /// Which boot of the guest's operating system this is: another number after each boot, and the same after a suspension.
    pub boot: Option<u64>,
    /// Device id → file and size of every plugged disk.
    pub disks: BTreeMap<String, (PathBuf, u64)>,
    /// Device id → the files below that of every plugged disk, the nearest first.
    pub below: BTreeMap<String, Vec<PathBuf>>,
    /// The ceiling of operations a second of each disk that has ceilings.
    pub iops: BTreeMap<String, u64>,
    /// The bytes of the guest's memory that are in its balloon.
    pub ballooned: u64,
    /// How much the kernel's OOM killer prefers its process.
    pub oom_preference: u16,
    /// The guest's file systems are frozen.
    pub is_frozen: bool,
    /// How often they were frozen.
    pub freezes: u64,
    /// Every block node, with or without a device: one without a device is a leak.
    pub nodes: Vec<String>,
    /// The network cards, by device id.
    pub nics: BTreeMap<String, NicView>,
    /// Every tap that QEMU has open, with or without a card: one without a card is a leak.
    pub taps: Vec<String>,
}

/// An external view of a network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicView {
    pub mac: String,
    pub tap: Option<String>,
    pub is_up: bool,
}

/// The parts of a machine that its connections need.
pub(super) struct Wire {
    pub(super) pid: i32,
    pub(super) monitor: Arc<Semaphore>,
    pub(super) events: broadcast::Receiver<Value>,
    pub(super) exited: watch::Receiver<bool>,
}

impl Default for FakeHypervisor {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeHypervisor {
    /// Creates a host with real image files.
    pub fn new() -> Self {
        Self::with_files(Arc::new(LocalFiles))
    }

    /// Creates a host with image files that the caller simulates.
    pub fn with_files(files: Arc<dyn ImageFiles>) -> Self {
        Self { world: Arc::new(Mutex::new(MachineModel::new(files))) }
    }

    /// Sets the behaviour of machines without one of their own, from their launch on.
    pub fn set_default_behaviour(&self, behaviour: Behaviour) {
        self.lock().default_behaviour = behaviour;
    }

    /// Changes the behaviour of an instance: now if it runs, and at every later launch.
    pub fn set_behaviour(&self, instance: &str, change: impl FnOnce(&mut Behaviour)) {
        let mut world = self.lock();
        let mut behaviour = world.behaviours.get(instance).unwrap_or(&world.default_behaviour).clone();
        change(&mut behaviour);
        for machine in world.machines.values_mut().filter(|m| m.spec.machine.instance == instance) {
            machine.behaviour = behaviour.clone();
            machine.plug_memory();
        }
        world.behaviours.insert(instance.to_owned(), behaviour);
    }

    /// Kills the process without warning, as by a foreign SIGKILL.
    pub fn crash(&self, instance: &str) {
        for pid in self.pids_of(instance) {
            self.end(pid);
        }
    }

    /// The kernel's OOM killer ends the process.
    pub fn run_out_of_memory(&self, instance: &str) {
        self.lock().oom_kills.insert(instance.to_owned(), 1);
        self.crash(instance);
    }

    /// The guest creates a file, or removes it.
    pub fn guest_file(&self, instance: &str, path: &str, exists: bool) {
        self.with(instance, |machine| machine.programs.set_file(path, exists));
    }

    /// Returns how many programs the guest's agent has started.
    pub fn guest_programs(&self, instance: &str) -> usize {
        let world = self.lock();
        let machine = world.machines.values().find(|m| m.spec.machine.instance == instance);
        machine.map_or(0, |machine| machine.programs.started())
    }

    /// Returns the SSH keys of a user of the guest.
    pub fn authorized_keys(&self, instance: &str, user: &str) -> Vec<String> {
        let world = self.lock();
        let machine = world.machines.values().find(|m| m.spec.machine.instance == instance);
        machine.map(|machine| machine.users.keys(user)).unwrap_or_default()
    }

    /// Returns what was done with the package of the guest's agent, the first action first.
    pub fn agent_package_actions(&self, instance: &str) -> Vec<String> {
        let world = self.lock();
        let machine = world.machines.values().find(|m| m.spec.machine.instance == instance);
        machine.map(|machine| machine.programs.package.actions.clone()).unwrap_or_default()
    }

    /// The guest's package manager ends with this exit code from now on.
    pub fn package_manager_ends_with(&self, instance: &str, code: u8) {
        self.with(instance, |machine| machine.programs.package.exit_code = code);
    }

    /// Returns the hashes that the password of a user of the guest was set to, the first one first.
    pub fn guest_passwords(&self, instance: &str, user: &str) -> Vec<String> {
        let world = self.lock();
        let machine = world.machines.values().find(|m| m.spec.machine.instance == instance);
        machine.map(|machine| machine.users.passwords(user)).unwrap_or_default()
    }

    /// The guest has a user with these SSH keys.
    pub fn set_authorized_keys(&self, instance: &str, user: &str, keys: &[&str]) {
        self.with(instance, |machine| machine.users.set_keys(user, keys));
    }

    /// The guest has no such user any more.
    pub fn remove_guest_user(&self, instance: &str, user: &str) {
        self.with(instance, |machine| machine.users.remove_user(user));
    }

    /// The guest's agent is restarted.
    pub fn guest_agent_restarts(&self, instance: &str) {
        self.with(instance, |machine| machine.restart_agent());
    }

    /// The host loses power and boots: no process is left.
    pub fn reboot(&self) {
        let pids: Vec<i32> = {
            let mut world = self.lock();
            world.boots += 1;
            world.foreign.clear();
            world.machines.keys().copied().collect()
        };
        pids.into_iter().for_each(|pid| self.end(pid));
    }

    /// The identity of the host's last boot.
    pub fn boot_id(&self) -> String {
        self.lock().boot_id()
    }

    /// The guest powers itself off.
    pub fn guest_powers_off(&self, instance: &str) {
        self.with(instance, Machine::guest_off);
    }

    /// The guest's kernel panics.
    pub fn guest_panics(&self, instance: &str) {
        self.with(instance, Machine::guest_panics);
    }

    /// The guest suspends itself to its memory.
    pub fn guest_sleeps(&self, instance: &str) {
        self.with(instance, Machine::suspend_itself);
    }

    /// The guest wakes up by itself: by its clock, or a key.
    pub fn guest_wakes(&self, instance: &str) {
        self.with(instance, |machine| {
            // One that runs has nothing to wake up from.
            let _ = machine.wake_up();
        });
    }

    /// The guest reboots itself.
    pub fn guest_reboots(&self, instance: &str) {
        for pid in self.pids_of(instance) {
            let later = self.lock().machine(pid).map(|m| m.reset(true)).unwrap_or_default();
            self.schedule(pid, later);
        }
    }

    /// The guest releases a device that it kept ([`Behaviour::keeps`]) after an unplug request.
    pub fn guest_releases(&self, instance: &str, disk: &str) {
        self.set_behaviour(instance, |behaviour| behaviour.keeps.retain(|kept| kept != disk));
        self.with(instance, |machine| machine.release(disk));
    }

    /// A device is taken out of the machine, without a request of berth.
    pub fn pull_device(&self, instance: &str, id: &str) {
        self.with(instance, |machine| machine.pull(id));
    }

    /// The guest opens the tray of a CD-ROM drive.
    pub fn guest_ejects(&self, instance: &str, slot: u8) {
        self.with(instance, |machine| cdroms::guest_ejects(machine, &CdromSpec::id(slot)));
    }

    /// The host's file system has no space for the guest's writes to this disk.
    pub fn disk_full(&self, instance: &str, disk: &str) {
        self.with(instance, |machine| machine.disk_full(disk));
    }

    /// Adds a foreign QEMU process.
    pub fn add_foreign(&self, name: &str) -> ProcessIdentity {
        let mut world = self.lock();
        let identity = world.next_identity();
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

    /// Gives a file with the saved state of a machine a second name.
    pub fn link_state(&self, from: &Path, to: &Path) {
        self.lock().states.link(from, to);
    }

    /// Returns the current state of the instance; None if it has no process.
    pub fn view(&self, instance: &str) -> Option<MachineView> {
        let world = self.lock();
        let machine = world.machines.values().find(|m| m.spec.machine.instance == instance)?;
        let disk = |(id, disk): (&String, &super::machine::Disk)| {
            let node = machine.nodes.get(&disk.node)?;
            Some((id.clone(), (node.file.clone(), node.size)))
        };
        let nic = |(id, nic): (&String, &super::machine::Nic)| {
            let tap = machine.taps.backends.get(&nic.backend).cloned();
            (id.clone(), NicView { mac: nic.mac.clone(), tap, is_up: nic.is_up })
        };
        Some(MachineView {
            identity: machine.identity.clone(),
            spec: machine.spec.machine.clone(),
            run_state: RunState::from_qemu(machine.status),
            booted: machine.booted,
            ballooned: machine.ballooned,
            oom_preference: machine.oom_preference,
            is_frozen: machine.is_frozen,
            freezes: machine.freezes,
            boot: machine.boot.filter(|_| machine.booted),
            disks: machine.disks().filter_map(disk).collect(),
            below: machine
                .disks()
                .filter_map(|(id, disk)| Some((id.clone(), machine.nodes.get(&disk.node)?.below.clone())))
                .collect(),
            iops: machine
                .disks()
                .filter_map(|(id, disk)| Some((id.clone(), disk.limits.get("iops")?.as_u64()?)))
                .collect(),
            nodes: machine.nodes.keys().cloned().collect(),
            nics: machine.nics().map(nic).collect(),
            taps: machine.taps.in_use().cloned().collect(),
        })
    }

    /// Returns pid and MAC addresses of every machine with a booted guest.
    pub fn booted(&self) -> Vec<(i32, Vec<String>)> {
        let world = self.lock();
        let booted = world.machines.values().filter(|m| m.booted);
        let macs = |m: &Machine| m.nics().map(|(_, nic)| nic.mac.clone()).collect();
        booted.map(|m| (m.identity.pid, macs(m))).collect()
    }

    /// Returns pid and name of the foreign QEMU processes.
    pub fn foreign(&self) -> Vec<(i32, String)> {
        let world = self.lock();
        world.foreign.values().map(|f| (f.identity.pid, f.name.clone().unwrap_or_default())).collect()
    }

    /// Lists all instances that have a process.
    pub fn instances(&self) -> Vec<String> {
        self.lock().machines.values().map(|m| m.spec.machine.instance.clone()).collect()
    }

    /// Returns the taps that machines have open.
    pub fn taps(&self) -> Vec<String> {
        self.lock().machines.values().flat_map(|m| m.taps.in_use().cloned()).collect()
    }

    /// The number of successful launches so far.
    pub fn launches(&self) -> u64 {
        self.lock().launches
    }

    pub(super) fn execute(
        &self,
        pid: i32,
        command: &str,
        args: &Map<String, Value>,
    ) -> Result<Value, CommandError> {
        let (value, later) = commands::execute(&mut self.lock(), pid, command, args)?;
        self.schedule(pid, later);
        Ok(value)
    }

    pub(super) fn ask_guest(&self, pid: i32, message: &Value) -> Option<Value> {
        let (value, later) = guest::answer(self.lock().machines.get_mut(&pid)?, message);
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

    /// Ends the process and drops all its resources.
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
                if host.lock().machine(pid).is_ok_and(|m| m.has_failed) {
                    host.end(pid);
                }
                host.schedule(pid, next);
            });
        }
    }

    pub(super) fn with(&self, instance: &str, change: impl Fn(&mut Machine)) {
        for machine in self.lock().machines.values_mut().filter(|m| m.spec.machine.instance == instance) {
            change(machine);
        }
    }

    pub(super) fn pids_of(&self, instance: &str) -> Vec<i32> {
        let world = self.lock();
        world
            .machines
            .iter()
            .filter(|(_, m)| m.spec.machine.instance == instance)
            .map(|(pid, _)| *pid)
            .collect()
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

    pub(super) fn lock(&self) -> MutexGuard<'_, MachineModel> {
        // A test that panicked while holding the lock has already reported its failure.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does all the checks that QEMU does before its monitor replies.
    pub(super) fn build(&self, spec: &LaunchSpec) -> Result<ProcessIdentity, LaunchError> {
        let mut world = self.lock();
        if let Some(other) =
            world.machines.values().find(|m| m.spec.machine.instance == spec.machine.instance)
        {
            let pid = other.identity.pid;
            return Err(LaunchError::AlreadyRunning { instance: spec.machine.instance.clone(), pid });
        }
        let behaviour =
            world.behaviours.get(&spec.machine.instance).unwrap_or(&world.default_behaviour).clone();
        if let Some(words) = behaviour.fails_at_start {
            return Err(LaunchError::Exited { status: "exit status: 1".to_owned(), stderr: words });
        }
        let seed = spec.files.seed.iter().map(|s| seed_disk(s));
        let disks: Vec<_> = spec.machine.disks.iter().cloned().chain(seed).collect();
        for disk in &disks {
            world.granted.insert(disk.file.clone(), !disk.read_only);
            let mut below = disk.backing.as_ref();
            while let Some(backing) = below {
                world.granted.entry(backing.file.clone()).or_insert(false);
                below = backing.backing.as_deref();
            }
        }
        let identity = world.next_identity();
        let pid = identity.pid;
        let shared = (world.files.clone(), world.states.clone());
        world.machines.insert(pid, Machine::new(identity.clone(), spec.clone(), behaviour, shared));
        for disk in &disks {
            let mut nodes = blockdevs(disk).into_iter();
            let outcome = nodes
                .try_for_each(|node| blocks::blockdev_add(&mut world, pid, &arguments(&node)?))
                .and_then(|()| arguments(&disk_device(disk)))
                .and_then(|args| blocks::device_add(&mut world, pid, &args));
            if let Err(refusal) = outcome {
                world.machines.remove(&pid);
                let stderr = format!("qemu-system-x86_64: -blockdev {}: {}", disk.id, refusal.desc);
                return Err(LaunchError::Exited { status: "exit status: 1".to_owned(), stderr });
            }
        }
        if let Err(refusal) = cdroms::build(&mut world, pid, &spec.machine.cdroms) {
            world.machines.remove(&pid);
            let stderr = format!("qemu-system-x86_64: -blockdev: {}", refusal.desc);
            return Err(LaunchError::Exited { status: "exit status: 1".to_owned(), stderr });
        }
        world.launches += 1;
        world.oom_kills.remove(&spec.machine.instance);
        Ok(identity)
    }
}

fn arguments(value: &Value) -> Result<Map<String, Value>, CommandError> {
    value.as_object().cloned().ok_or_else(|| CommandError::generic("not an object"))
}
