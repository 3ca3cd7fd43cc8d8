//! The machines that run on this host: one driver task each, and which machine has which volume open.
//!
//! ```text
//!   Machine (clones) ──command──▶ driver task ──QMP──▶ QEMU
//!                    ──request─▶ guest task ──channel──▶ guest agent
//! ```
//!
//! Knows instances and volumes by their identity on disk; of VMs and Disks only the keys to enqueue.

mod command;
mod disks;
mod driver;
mod error;
mod exchange;
mod freezes;
mod guest;
mod guest_facts;
mod guest_programs;
mod legal;
mod live;
mod live_command;
mod memory;
mod mirrors;
mod pace;
mod requests;
mod saves;
mod silence;
mod sleep;
mod sleep_command;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_engine::{Clock, Queue};
use berth_host::ProcessFacts;
use berth_qemu::block::{Devices, Mirror, ObservedCdrom, ObservedDisk};
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::memory::Growth;
use berth_qemu::nics::ObservedNic;
use berth_qemu::power::RunState;
use berth_qemu::qmp::QmpError;
use berth_qemu::saved_state::Transfer;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::key::Key;
use crate::named_locks::NamedLocks;
use command::Command;
pub(crate) use driver::ANSWER_WAIT;
use driver::Driver;
pub(crate) use error::MachineError;
pub(crate) use exchange::GuestError;
use freezes::Freezes;
use guest::{GuestRequest, GuestTask};
pub(crate) use guest_facts::{GuestFacts, with_stored_use};
pub(crate) use legal::has_ended;
use pace::Pace;
use saves::Saves;
pub(crate) use sleep::Sleep;

/// Length of a machine's request queue; further callers wait for room.
const QUEUE_LENGTH: usize = 16;
/// After this time, a connection that failed is opened again; after the time that the attempt took, if that is longer: QEMUs that do not
/// answer take a worker from the reconciles of other objects for a part of the time only.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// The events that enqueue a VM at once, and the interval after which a further one does.
const WAKES_AT_ONCE: u32 = 16;
const WAKE_EVERY: Duration = Duration::from_millis(500);
/// The starts of a guest's agent that count at once, and the interval after which a further one does. Each begins a poll anew, of which the
/// facts may be written to the status; a guest can open the port once a second.
const STARTS_AT_ONCE: u32 = 16;
const START_EVERY: Duration = Duration::from_secs(5);

/// State of a machine, read back from its QEMU.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MachineState {
    pub(crate) run_state: RunState,
    /// Of its QEMU.
    pub(crate) qemu_version: String,
    /// Without the bootstrap volume.
    pub(crate) disks: Vec<ObservedDisk>,
    /// The volumes whose files QEMU has open without a disk: a plug or an unplug was interrupted.
    pub(crate) left_open: BTreeSet<String>,
    pub(crate) cdroms: Vec<ObservedCdrom>,
    pub(crate) nics: Vec<ObservedNic>,
    /// The ports for network cards, taken or free.
    pub(crate) nic_ports: Vec<u8>,
    /// Whether the link of a network card is up, by the card's id: QEMU does not report it, so a card whose link this agent has not
    /// set is missing.
    pub(crate) links: BTreeMap<String, bool>,
    /// The number of CPUs; None if this QEMU does not tell.
    pub(crate) cpus: Option<i64>,
    /// The memory that was plugged in; None if the machine was not started for it.
    pub(crate) growth: Option<Growth>,
    /// Whether its TPM's emulator is there. None: it has no TPM, or this QEMU does not tell.
    pub(crate) has_tpm: Option<bool>,
    /// The tags of its shares that have lost their servers. None: it has no shares, or this QEMU does not tell.
    pub(crate) lost_shares: Option<Vec<String>>,
    /// The shutdown event QEMU sent when the guest ended, if the driver was connected.
    pub(crate) ending: Option<Ending>,
    /// When it was last resumed after a pause.
    pub(crate) resumed_at: Option<Timestamp>,
    /// The saving or loading of its state. Not queried while the guest runs.
    pub(crate) transfer: Transfer,
    /// The part of the guest's memory that a save has saved, in percent.
    pub(crate) saved_percent: Option<i64>,
    /// Why the last save failed, and when it was begun.
    pub(crate) save_failure: Option<(Timestamp, String)>,
    /// When the last save was begun, since the driver was connected.
    pub(crate) save_began: Option<Timestamp>,
    /// The suspensions of its guest to its memory.
    pub(crate) sleep: Sleep,
    /// The mirrors of its disks, by the volume.
    pub(crate) mirrors: BTreeMap<String, Mirror>,
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) by_guest: bool,
    /// QEMU's shutdown reason.
    pub(crate) reason: String,
}

/// State learned by a driver.
#[derive(Clone, Debug, Default)]
struct DriverState {
    ending: Option<Ending>,
    resumed_at: Option<Timestamp>,
    /// When the guest last began to boot, since the driver was connected.
    booted_at: Option<Instant>,
    /// How often the guest's agent has opened its port, since the driver was connected.
    agent_starts: u64,
    /// When the last save was begun, and why it failed.
    save_began: Option<Timestamp>,
    save_failure: Option<(Timestamp, String)>,
    sleep: Sleep,
    /// The volumes QEMU had at the last observation.
    volumes: Option<BTreeSet<String>>,
    /// The number of mirrors of disks at that time.
    mirrors: usize,
    /// QEMU did not answer when it was last asked for that.
    is_silent: bool,
}

/// The queue and the guest task that a driver notifies.
#[derive(Clone, Debug)]
struct Notifier {
    queue: Arc<Queue<Key>>,
    key: Option<Key>,
    guest: Arc<Notify>,
    clock: Arc<dyn Clock>,
}

impl Notifier {
    fn wake(&self) {
        self.wake_after(Duration::ZERO);
    }

    fn wake_after(&self, delay: Duration) {
        if let Some(key) = &self.key {
            self.queue.add_after(key.clone(), delay);
        }
    }
}

/// A running machine. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) process: ProcessFacts,
    /// When the process was started.
    launched: Instant,
    commands: mpsc::Sender<Command>,
    requests: mpsc::Sender<GuestRequest>,
    driver: watch::Receiver<DriverState>,
    facts: watch::Receiver<GuestFacts>,
    freezes: Arc<Freezes>,
}

/// A machine that has a volume open, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) instance: String,
    pub(crate) vm_uid: Option<String>,
    pub(crate) key: Option<Key>,
    /// Whether it was seen to have the volume open or is being given it.
    pub(crate) is_certain: bool,
}

/// A machine that exists or may be about to exist.
#[derive(Debug, Default)]
struct Entry {
    vm_uid: Option<String>,
    /// The key enqueued on its changes.
    key: Option<Key>,
    /// Volumes reserved for it while it opens them.
    reserved: BTreeSet<String>,
    machine: Option<Machine>,
    /// The last attempt to connect, if it failed.
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    process: ProcessIdentity,
    at: Instant,
    pause: Duration,
    text: String,
}

/// The agent's connection to the process of an instance.
#[derive(Debug)]
pub(crate) enum Connection {
    Open(Machine),
    /// The last attempt failed a moment ago, for this reason.
    Failed(String),
    /// To be opened (again) with [`Machines::connect`].
    Due,
}

impl Entry {
    /// Whether it has this volume open; `None` if that is not known.
    fn has(&self, volume: &str) -> Option<bool> {
        let seen = || Some(self.machine.as_ref()?.driver.borrow().volumes.as_ref()?.contains(volume));
        if self.reserved.contains(volume) { Some(true) } else { seen() }
    }

    /// Whether it has this volume open or may have: unknown counts as open.
    fn holds(&self, volume: &str) -> bool {
        self.has(volume).unwrap_or(true)
    }

    /// Whether its process has ended, given that none was found: a machine that is being started has none either.
    fn has_ended(&self) -> bool {
        self.machine.as_ref().map_or(self.reserved.is_empty(), Machine::is_closed)
    }
}

#[derive(Debug)]
pub(crate) struct Machines {
    system: Arc<dyn berth_host::Machines>,
    queue: Arc<Queue<Key>>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    tasks: Mutex<JoinSet<()>>,
    /// That of a volume is held while a machine opens it, if several machines may have it.
    opening: NamedLocks,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// Volumes with users that are being determined; they cannot be reserved meanwhile.
    blocked: BTreeSet<String>,
    /// Volumes of which a snapshot is being taken; they cannot be reserved meanwhile.
    held_still: BTreeSet<String>,
    saves: Saves,
}

/// No machine opens these volumes, and no other snapshot of them is taken, while this exists.
#[derive(Debug)]
pub(crate) struct Still<'a> {
    machines: &'a Machines,
    volumes: Vec<String>,
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        let held = &mut self.machines.state().held_still;
        held.retain(|volume| !self.volumes.contains(volume));
    }
}

impl Machines {
    pub(crate) fn new(
        system: Arc<dyn berth_host::Machines>,
        queue: Arc<Queue<Key>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (state, tasks, opening) = (Mutex::default(), Mutex::default(), NamedLocks::default());
        Self { system, queue, clock, state, tasks, opening }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the machine of this instance, if it has a driver.
    pub(crate) fn get(&self, instance: &str) -> Option<Machine> {
        self.state().entries.get(instance)?.machine.clone().filter(|m| !m.is_closed())
    }

    /// Returns the machines that have drivers.
    pub(crate) fn all(&self) -> Vec<Machine> {
        let state = self.state();
        let machines = state.entries.values().filter_map(|entry| entry.machine.clone());
        machines.filter(|machine| !machine.is_closed()).collect()
    }

    /// Returns the connection to this process of the VM with this uid.
    pub(crate) fn connection(
        &self,
        instance: &str,
        vm_uid: Option<&str>,
        process: &ProcessIdentity,
    ) -> Connection {
        let state = self.state();
        let Some(entry) = state.entries.get(instance) else { return Connection::Due };
        let has_uid = vm_uid.is_none() || entry.vm_uid.as_deref() == vm_uid;
        let open = entry.machine.as_ref().filter(|m| !m.is_closed() && m.process.identity == *process);
        if let Some(machine) = open.filter(|_| has_uid) {
            return Connection::Open(machine.clone());
        }
        let failed = entry.failure.as_ref().filter(|f| f.process == *process && f.at.elapsed() < f.pause);
        failed.map_or(Connection::Due, |failure| Connection::Failed(failure.text.clone()))
    }

    /// Whether anything is recorded of this instance.
    pub(crate) fn is_known(&self, instance: &str) -> bool {
        self.state().entries.contains_key(instance)
    }

    /// Records that the QEMU of this instance runs or may run: it counts as having volumes open until they have been
    /// read.
    pub(crate) fn expect(&self, instance: &str, vm_uid: Option<&str>, key: Option<&Key>) {
        let mut state = self.state();
        let entry = state.entries.entry(instance.to_owned()).or_default();
        entry.key = key.cloned();
        if let Some(uid) = vm_uid {
            entry.vm_uid = Some(uid.to_owned());
        }
    }

    /// Returns the machine of this process, starting a driver for it if it has none. A failure is remembered for
    /// [`Machines::connection`].
    pub(crate) async fn connect(
        &self,
        instance: &str,
        vm_uid: Option<&str>,
        key: Option<Key>,
        process: &ProcessFacts,
    ) -> Result<Machine, MachineError> {
        self.expect(instance, vm_uid, key.as_ref());
        if let Some(machine) = self.get(instance)
            && machine.process.identity == process.identity
        {
            return Ok(machine);
        }
        let begun = Instant::now();
        let opened = self.open(instance, key, process).await;
        let pause = begun.elapsed().max(RECONNECT_AFTER);
        let mut state = self.state();
        let entry = state.entries.entry(instance.to_owned()).or_default();
        match &opened {
            Ok(machine) => {
                entry.machine = Some(machine.clone());
                entry.failure = None;
            }
            Err(error) => {
                let text = error.chain();
                tracing::debug!(instance, error = text, "the monitor of a machine does not answer");
                let process = process.identity.clone();
                entry.failure = Some(Failure { process, at: Instant::now(), pause, text });
            }
        }
        opened
    }

    async fn open(
        &self,
        instance: &str,
        key: Option<Key>,
        process: &ProcessFacts,
    ) -> Result<Machine, MachineError> {
        let connected = timeout(ANSWER_WAIT, self.system.connect(instance)).await;
        let (qmp, events) = connected.map_err(|_| QmpError::NoGreeting { after: ANSWER_WAIT })??;
        let (commands, command_queue) = mpsc::channel(QUEUE_LENGTH);
        let (requests, request_queue) = mpsc::channel(QUEUE_LENGTH);
        let (sender, state) = watch::channel(DriverState::default());
        let (facts, facts_reader) = watch::channel(GuestFacts::default());
        let poll_now = Arc::new(Notify::new());
        let notifier = Notifier {
            queue: self.queue.clone(),
            key: key.clone(),
            guest: poll_now.clone(),
            clock: self.clock.clone(),
        };
        let driver = Driver {
            qmp,
            events,
            commands: command_queue,
            published: sender,
            notifier,
            process: process.clone(),
            system: self.system.clone(),
            instance: instance.to_owned(),
            devices: Devices::default(),
            links: BTreeMap::new(),
            link_at_start: None,
            cpus: None,
            can_grow: None,
            reports_memory: false,
            may_have_tpm: true,
            may_have_shares: true,
            expects_resume: false,
            expects_stop: false,
            has_started: false,
            is_sending: false,
            // An earlier agent may have ended within a request.
            may_have_left: true,
            wakes: Pace::new(WAKE_EVERY, WAKES_AT_ONCE),
            starts: Pace::new(START_EVERY, STARTS_AT_ONCE),
        };
        let guest_task = GuestTask {
            system: self.system.clone(),
            instance: instance.to_owned(),
            requests: request_queue,
            poll_now,
            facts,
            queue: self.queue.clone(),
            wake: key,
            clock: self.clock.clone(),
        };
        self.spawn(driver, guest_task);
        let age = Duration::try_from(self.clock.now().duration_since(process.started_at)).unwrap_or_default();
        let now = Instant::now();
        Ok(Machine {
            process: process.clone(),
            launched: now.checked_sub(age).unwrap_or(now),
            commands,
            requests,
            driver: state,
            facts: facts_reader,
            freezes: Arc::default(),
        })
    }

    /// Spawns the driver and the guest task. The first to end also ends the other.
    fn spawn(&self, driver: Driver, guest_task: GuestTask) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            tokio::select! {
                () = driver.drive() => {}
                () = guest_task.run() => {}
            }
        });
    }

    /// Records that this instance has no QEMU and so no volumes open.
    pub(crate) fn forget(&self, instance: &str) {
        self.state().entries.remove(instance);
    }

    /// Records that no process was found for an instance that no VM here owns. Returns true if it counted as having
    /// volumes open until now.
    pub(crate) fn forget_ended(&self, instance: &str) -> bool {
        let mut state = self.state();
        let has_ended = state.entries.get(instance).is_some_and(Entry::has_ended);
        if has_ended {
            state.entries.remove(instance);
        }
        has_ended
    }
}
