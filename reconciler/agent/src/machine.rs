//! The machines that run on this host: one driver task each, and which machine has which volume open.
//!
//! ```text
//!   Machine (clones) ──command──▶ driver task ──QMP──▶ QEMU
//!                    ──request─▶ guest task ──channel──▶ guest agent
//! ```
//!
//! Knows instances and volumes by their identity on disk; of VMs and Disks only the keys to enqueue.

mod driver;
mod error;
mod exchange;
mod guest;
mod guest_facts;
mod guest_programs;
mod legal;
mod saves;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_qemu::balloon::Balloon;
use berth_qemu::block::{Devices, DiskUse, IoLimits, ObservedCdrom, ObservedDisk, Unplugged};
use berth_qemu::cdrom::Changed;
use berth_qemu::hypervisor::ProcessIdentity;
use berth_qemu::machine::{DiskSpec, Medium, NicSpec};
use berth_qemu::memory::Growth;
use berth_qemu::nics::ObservedNic;
use berth_qemu::power::RunState;
use berth_qemu::saved_state::Transfer;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::key::Key;
use berth_engine::{Clock, Queue};
use berth_host::ProcessFacts;
pub(crate) use driver::ANSWER_WAIT;
use driver::{Command, Driver, briefly};
pub(crate) use error::MachineError;
pub(crate) use exchange::GuestError;
use guest::{Freeze, GuestRequest, GuestTask};
pub(crate) use guest_facts::{GuestFacts, with_stored_use};
pub(crate) use legal::has_ended;
use saves::Saves;

/// Length of a machine's request queue; further callers wait for room.
const QUEUE_LENGTH: usize = 16;
/// After this time, a connection that failed is opened again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// State of a machine, read back from its QEMU.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MachineState {
    pub(crate) run_state: RunState,
    /// Of its QEMU.
    pub(crate) qemu_version: String,
    /// Without the bootstrap volume.
    pub(crate) disks: Vec<ObservedDisk>,
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
    /// The volumes QEMU had at the last observation.
    volumes: Option<BTreeSet<String>>,
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
        if let Some(key) = &self.key {
            self.queue.add(key.clone());
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
}

impl Machine {
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, MachineError>>) -> Command,
    ) -> Result<T, MachineError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| MachineError::Gone)?;
        answer.await.map_err(|_| MachineError::Gone)?
    }

    /// As [`Machine::ask`], for what is asked again regularly: a QEMU that does not answer holds up the caller for two seconds.
    async fn ask_briefly<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, MachineError>>) -> Command,
    ) -> Result<T, MachineError> {
        briefly(self.ask(command)).await
    }

    pub(crate) async fn state(&self) -> Result<MachineState, MachineError> {
        self.ask(Command::ReadState).await
    }

    pub(crate) async fn start(&self) -> Result<(), MachineError> {
        self.ask(Command::Start).await
    }

    pub(crate) async fn pause(&self) -> Result<(), MachineError> {
        self.ask(Command::Pause).await
    }

    /// Begins to save the machine's state, of at most this many bytes. The guest's CPUs are stopped.
    pub(crate) async fn save(&self, at_most: u64) -> Result<(), MachineError> {
        self.ask(|reply| Command::Save(at_most, reply)).await
    }

    /// Cancels a save; the guest's CPUs stay stopped.
    pub(crate) async fn cancel_save(&self) -> Result<(), MachineError> {
        self.ask(Command::CancelSave).await
    }

    /// Begins to load the state of a machine that had this number of CPUs.
    pub(crate) async fn load(&self, cpus: usize) -> Result<(), MachineError> {
        self.ask(|reply| Command::Load(cpus, reply)).await
    }

    pub(crate) async fn press_power_button(&self) -> Result<(), MachineError> {
        self.ask(Command::PressPowerButton).await
    }

    pub(crate) async fn reset(&self) -> Result<(), MachineError> {
        self.ask(Command::Reset).await
    }

    pub(crate) async fn inject_nmi(&self) -> Result<(), MachineError> {
        self.ask(Command::InjectNmi).await
    }

    pub(crate) async fn quit(&self) -> Result<(), MachineError> {
        self.ask(Command::Quit).await
    }

    pub(crate) async fn plug(&self, disk: DiskSpec) -> Result<(), MachineError> {
        self.ask(|reply| Command::Plug(Box::new(disk), reply)).await
    }

    pub(crate) async fn unplug(&self, id: &str) -> Result<Unplugged, MachineError> {
        self.ask(|reply| Command::Unplug(id.to_owned(), reply)).await
    }

    pub(crate) async fn plug_nic(&self, nic: NicSpec) -> Result<(), MachineError> {
        self.ask(|reply| Command::PlugNic(Box::new(nic), reply)).await
    }

    pub(crate) async fn unplug_nic(&self, id: &str) -> Result<Unplugged, MachineError> {
        self.ask(|reply| Command::UnplugNic(id.to_owned(), reply)).await
    }

    pub(crate) async fn set_link(&self, nic: &str, up: bool) -> Result<(), MachineError> {
        self.ask(|reply| Command::SetLink { nic: nic.to_owned(), up, reply }).await
    }

    /// Has the driver take the links as up that it has not set: its process was started just now.
    pub(crate) async fn assume_links_up(&self) -> Result<(), MachineError> {
        self.ask(Command::AssumeLinksUp).await
    }

    /// Exchanges the medium of a CD-ROM drive.
    pub(crate) async fn change_medium(
        &self,
        slot: u8,
        medium: Option<Medium>,
    ) -> Result<Changed, MachineError> {
        self.ask(|reply| Command::ChangeMedium { slot, medium, reply }).await
    }

    /// Closes the tray of a CD-ROM drive.
    pub(crate) async fn close_tray(&self, slot: u8) -> Result<(), MachineError> {
        self.ask(|reply| Command::CloseTray(slot, reply)).await
    }

    pub(crate) async fn plug_cpus(&self, count: usize) -> Result<(), MachineError> {
        self.ask(|reply| Command::PlugCpus(count, reply)).await
    }

    pub(crate) async fn request_memory(&self, bytes: u64) -> Result<(), MachineError> {
        self.ask(|reply| Command::RequestMemory(bytes, reply)).await
    }

    /// Reads the operations of its disks.
    pub(crate) async fn disk_use(&self) -> Result<Vec<DiskUse>, MachineError> {
        self.ask_briefly(Command::ReadDiskUse).await
    }

    /// Has the driver ask whether QEMU answers, see [`Machine::is_silent`]. Does not wait for it. A driver for which other requests wait
    /// does not ask: they show whether QEMU answers, and would have to wait for one more.
    pub(crate) fn check_answer(&self) {
        if self.commands.capacity() == QUEUE_LENGTH {
            // A driver that has ended belongs to a machine that has ended.
            let _ = self.commands.try_send(Command::CheckAnswer);
        }
    }

    /// Whether QEMU did not answer when it was last asked for that.
    pub(crate) fn is_silent(&self) -> bool {
        self.driver.borrow().is_silent
    }

    /// Reads its balloon, and the memory that its guest reports from the first reading on.
    pub(crate) async fn balloon(&self) -> Result<Balloon, MachineError> {
        self.ask_briefly(Command::ReadBalloon).await
    }

    /// Reads how much of its memory is in its balloon, in bytes, while its guest runs.
    pub(crate) async fn ballooned(&self) -> Result<u64, MachineError> {
        self.ask_briefly(Command::ReadBallooned).await
    }

    /// Asks the guest to have this many bytes of the memory of its start. Does not wait for it.
    pub(crate) async fn set_balloon(&self, bytes: u64) -> Result<(), MachineError> {
        self.ask_briefly(|reply| Command::SetBalloon(bytes, reply)).await
    }

    /// Has the guest agent set CPUs and memory online that were plugged in. Without an agent the guest decides. Does not wait for
    /// it.
    pub(crate) async fn set_online(&self) {
        if !self.guest_listens().await {
            return;
        }
        // A guest task that has ended belongs to a machine that has ended.
        let _ = self.requests.send(GuestRequest::SetOnline).await;
    }

    /// Records that a snapshot begins to freeze the guest's file systems.
    pub(crate) fn freeze_begins(&self) {
        // A task with a full queue has no time to look at the guest either.
        let _ = self.requests.try_send(GuestRequest::Frozen(Freeze::None));
    }

    /// Records that the guest's file systems were frozen and not thawed: the guest task tries it until they are.
    pub(crate) async fn thaw_failed(&self) {
        let _ = self.requests.send(GuestRequest::Frozen(Freeze::Overdue)).await;
    }

    /// Has the guest agent set the guest's clock to the host's. Does not wait for it.
    pub(crate) async fn set_clock(&self) {
        if self.guest_listens().await {
            // A guest task that has ended belongs to a machine that has ended.
            let _ = self.requests.send(GuestRequest::SetClock).await;
        }
    }

    pub(crate) async fn resize(&self, id: &str, bytes: u64) -> Result<(), MachineError> {
        self.ask(|reply| Command::Resize { id: id.to_owned(), bytes, reply }).await
    }

    /// Has disks continue in these overlays on their present files, at one moment. Returns whether they were switched just now.
    pub(crate) async fn continue_in_overlays(&self, disks: Vec<DiskSpec>) -> Result<bool, MachineError> {
        self.ask(|reply| Command::ContinueInOverlays(disks, reply)).await
    }

    /// Has a disk read through the chain of files of this one, which is shorter than its present one.
    pub(crate) async fn shorten_chain(&self, disk: DiskSpec) -> Result<(), MachineError> {
        self.ask(|reply| Command::ShortenChain(Box::new(disk), reply)).await
    }

    pub(crate) async fn set_limits(&self, id: &str, limits: IoLimits) -> Result<(), MachineError> {
        self.ask(|reply| Command::SetLimits { id: id.to_owned(), limits, reply }).await
    }

    /// Returns the disk's mount points in the guest; None if no guest agent answers.
    pub(crate) async fn mounts(&self, serial: &str, target: Option<u8>) -> Option<Vec<String>> {
        if !self.guest_listens().await {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let request = GuestRequest::Mounts { serial: serial.to_owned(), target, reply };
        self.requests.send(request).await.ok()?;
        answer.await.ok()?
    }

    /// Asks the guest agent to shut the guest down. Returns false if no agent received the request.
    pub(crate) async fn ask_guest_to_shut_down(&self) -> bool {
        if !self.guest_listens().await {
            return false;
        }
        let (reply, answer) = oneshot::channel();
        self.requests.send(GuestRequest::Shutdown(reply)).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Whether the guest has its agent's port open. True if the monitor does not answer: that is no reason not to ask.
    async fn guest_listens(&self) -> bool {
        self.ask(Command::GuestListens).await.unwrap_or(true)
    }

    pub(crate) fn guest(&self) -> GuestFacts {
        self.facts.borrow().clone()
    }

    /// Returns when the guest last began to boot, or when its process was started if that is not known.
    pub(crate) fn booted_at(&self) -> Instant {
        self.driver.borrow().booted_at.unwrap_or(self.launched)
    }

    /// Returns the number of starts of the guest's agent that were seen.
    pub(crate) fn agent_starts(&self) -> u64 {
        self.driver.borrow().agent_starts
    }

    /// Waits for another start of the guest's agent than those that were seen before, or for the end of the machine.
    pub(crate) async fn next_agent_start(&self, before: u64) {
        // An error is the end of the driver.
        let _ = self.driver.clone().wait_for(|state| state.agent_starts != before).await;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }
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
    /// Held while a machine opens a disk that it only reads.
    opening: tokio::sync::Mutex<()>,
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
        let (state, tasks, opening) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::default());
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
        let failed =
            entry.failure.as_ref().filter(|f| f.process == *process && f.at.elapsed() < RECONNECT_AFTER);
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
        let opened = self.open(instance, key, process).await;
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
                entry.failure = Some(Failure { process, at: Instant::now(), text });
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
        let (qmp, events) = self.system.connect(instance).await?;
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
            has_started: false,
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

    /// Whether the machine of this VM has this volume open, or may have.
    pub(crate) fn holds(&self, vm_uid: &str, volume: &str) -> bool {
        let state = self.state();
        state.entries.values().any(|e| e.vm_uid.as_deref() == Some(vm_uid) && e.holds(volume))
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

    /// Returns the machines that have this volume open, or may have.
    pub(crate) fn holders(&self, volume: &str) -> Vec<Holder> {
        let state = self.state();
        let holding = state.entries.iter().filter(|(_, entry)| entry.holds(volume));
        let holder = |(instance, entry): (&String, &Entry)| Holder {
            instance: instance.clone(),
            vm_uid: entry.vm_uid.clone(),
            key: entry.key.clone(),
            is_certain: entry.has(volume).is_some(),
        };
        holding.map(holder).collect()
    }

    /// Whether any machine has this volume open, or may have.
    pub(crate) fn is_open(&self, volume: &str) -> bool {
        self.state().entries.values().any(|entry| entry.holds(volume))
    }

    /// Returns the machines that have this volume open: several only if they read it.
    pub(crate) fn openers(&self, volume: &str) -> Vec<Machine> {
        let state = self.state();
        let seen = |m: &&Machine| m.driver.borrow().volumes.as_ref().is_some_and(|v| v.contains(volume));
        state.entries.values().filter_map(|e| e.machine.as_ref()).filter(seen).cloned().collect()
    }

    /// Returns the machine that has this volume open, and may write to it.
    pub(crate) fn holder(&self, volume: &str) -> Option<Machine> {
        self.openers(volume).into_iter().next()
    }

    /// Waits until no other machine opens a disk that it only reads, if one of these is read only. The file of such a disk is readable by
    /// the user of one QEMU at a time: that of another one which reads it too has to have it open before.
    pub(crate) async fn open_alone(&self, disks: &[DiskSpec]) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match disks.iter().any(|disk| disk.read_only) {
            true => Some(self.opening.lock().await),
            false => None,
        }
    }

    /// Reserves a volume for a machine that is about to open it.
    ///
    /// *Guarantees:* between `Ok` and [`Machines::forget`] or [`Machines::unreserve`] the machine counts as a holder, so
    /// its claim on the volume is kept.
    pub(crate) fn reserve(&self, instance: &str, vm_uid: &str, volume: &str) -> Result<(), MachineError> {
        let mut state = self.state();
        if state.blocked.contains(volume) || state.held_still.contains(volume) {
            return Err(MachineError::ReservationBlocked { volume: volume.to_owned() });
        }
        let entry = state.entries.entry(instance.to_owned()).or_default();
        entry.vm_uid = Some(vm_uid.to_owned());
        entry.reserved.insert(volume.to_owned());
        Ok(())
    }

    /// Keeps machines from opening these volumes until the result is dropped. Those that have them open keep them.
    ///
    /// *Errors:* [`MachineError::ReservationBlocked`] while another caller holds one of them still.
    pub(crate) fn hold_still(&self, volumes: Vec<String>) -> Result<Still<'_>, MachineError> {
        let mut state = self.state();
        if let Some(held) = volumes.iter().find(|volume| state.held_still.contains(*volume)) {
            return Err(MachineError::ReservationBlocked { volume: held.clone() });
        }
        state.held_still.extend(volumes.iter().cloned());
        Ok(Still { machines: self, volumes })
    }

    /// Releases a reservation: from now on, the volumes QEMU has are what counts.
    pub(crate) fn unreserve(&self, instance: &str, volume: &str) {
        if let Some(entry) = self.state().entries.get_mut(instance) {
            entry.reserved.remove(volume);
        }
    }

    /// Blocks reservations of this volume until [`Machines::allow_reservations`].
    pub(crate) fn block_reservations(&self, volume: &str) {
        self.state().blocked.insert(volume.to_owned());
    }

    pub(crate) fn allow_reservations(&self, volume: &str) {
        self.state().blocked.remove(volume);
    }
}
