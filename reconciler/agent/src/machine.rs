//! The machines that run on this host, as this agent holds them: one driver task each, and who holds which volume.
//!
//! ```text
//!   Machine (clones) ──order──▶ driver task ──QMP──▶ QEMU
//!                    ──question─▶ guest task ──channel──▶ guest agent
//! ```
//!
//! Knows instances and volumes by their identity on disk, nothing of VMs and Disks but whom to wake.

mod driver;
mod guest;
mod legal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_qemu::block::{Devices, ObservedDisk, Unplugged};
use berth_qemu::machine::DiskSpec;
use berth_qemu::power::RunState;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::error::Error;
use crate::queue::{Key, Queue};
use crate::system::{ProcessFacts, System};
use driver::{Driver, Order};
pub(crate) use guest::GuestFacts;
use guest::{Question, Talk};
pub(crate) use legal::{Refusal, has_ended};

/// Orders waiting for one machine; more askers than that wait their turn.
const ORDERS: usize = 16;

/// How a machine is, read back from its QEMU.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Look {
    pub(crate) state: RunState,
    /// Without the bootstrap volume.
    pub(crate) disks: Vec<ObservedDisk>,
    /// What QEMU told when the guest ended, if we were there.
    pub(crate) ending: Option<Ending>,
    /// When it was last made to go on after a pause.
    pub(crate) resumed_at: Option<Timestamp>,
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) by_guest: bool,
    /// QEMU's word.
    pub(crate) reason: String,
}

/// What a driver has learnt.
#[derive(Clone, Debug, Default)]
struct Told {
    ending: Option<Ending>,
    resumed_at: Option<Timestamp>,
    /// The volumes QEMU had when it was last looked at.
    volumes: Option<BTreeSet<String>>,
}

/// Whom a driver tells.
#[derive(Clone, Debug)]
struct Watcher {
    queue: Arc<Queue>,
    key: Option<Key>,
    guest: Arc<Notify>,
    clock: Arc<dyn Clock>,
}

impl Watcher {
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
    orders: mpsc::Sender<Order>,
    questions: mpsc::Sender<Question>,
    told: watch::Receiver<Told>,
    facts: watch::Receiver<GuestFacts>,
}

impl Machine {
    async fn ask<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Order,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).await.map_err(|_| Error::MachineGone)?;
        answer.await.map_err(|_| Error::MachineGone)?
    }

    pub(crate) async fn look(&self) -> Result<Look, Error> {
        self.ask(Order::Look).await
    }

    pub(crate) async fn start(&self) -> Result<(), Error> {
        self.ask(Order::Start).await
    }

    pub(crate) async fn press_power_button(&self) -> Result<(), Error> {
        self.ask(Order::PressPowerButton).await
    }

    pub(crate) async fn quit(&self) -> Result<(), Error> {
        self.ask(Order::Quit).await
    }

    pub(crate) async fn plug(&self, disk: DiskSpec) -> Result<(), Error> {
        self.ask(|reply| Order::Plug(Box::new(disk), reply)).await
    }

    pub(crate) async fn unplug(&self, id: &str) -> Result<Unplugged, Error> {
        self.ask(|reply| Order::Unplug(id.to_owned(), reply)).await
    }

    pub(crate) async fn resize(&self, id: &str, bytes: u64) -> Result<(), Error> {
        self.ask(|reply| Order::Resize { id: id.to_owned(), bytes, reply }).await
    }

    /// Where the guest has something of this disk mounted; None: it has no agent to ask.
    pub(crate) async fn mounts(&self, serial: &str, target: Option<u8>) -> Option<Vec<String>> {
        if !self.guest_listens().await {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let question = Question::Mounts { serial: serial.to_owned(), target, reply };
        self.questions.send(question).await.ok()?;
        answer.await.ok()?
    }

    /// Asks the guest's agent to shut down. False: nobody heard.
    pub(crate) async fn ask_guest_to_shut_down(&self) -> bool {
        if !self.guest_listens().await {
            return false;
        }
        let (reply, answer) = oneshot::channel();
        self.questions.send(Question::Shutdown(reply)).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// False: nobody in the guest would answer. A monitor that does not say is no reason not to ask.
    async fn guest_listens(&self) -> bool {
        self.ask(Order::GuestListens).await.unwrap_or(true)
    }

    pub(crate) fn guest(&self) -> GuestFacts {
        self.facts.borrow().clone()
    }

    fn is_closed(&self) -> bool {
        self.orders.is_closed()
    }
}

/// A machine that exists or may be coming into existence.
#[derive(Debug, Default)]
struct Entry {
    vm_uid: Option<String>,
    /// Volumes it is being given at this moment.
    reserved: BTreeSet<String>,
    machine: Option<Machine>,
}

impl Entry {
    /// Unknown counts as held.
    fn holds(&self, volume: &str) -> bool {
        let seen = self.machine.as_ref().and_then(|m| m.told.borrow().volumes.clone());
        self.reserved.contains(volume) || seen.is_none_or(|volumes| volumes.contains(volume))
    }
}

#[derive(Debug)]
pub(crate) struct Machines {
    system: Arc<dyn System>,
    queue: Arc<Queue>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// Volumes whose users are being worked out: nobody may take one meanwhile.
    settling: BTreeSet<String>,
}

impl Machines {
    pub(crate) fn new(system: Arc<dyn System>, queue: Arc<Queue>, clock: Arc<dyn Clock>) -> Self {
        Self { system, queue, clock, state: Mutex::default(), tasks: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine of this instance, if it is being driven.
    pub(crate) fn get(&self, instance: &str) -> Option<Machine> {
        self.state().entries.get(instance)?.machine.clone().filter(|m| !m.is_closed())
    }

    /// Notes that this instance's QEMU runs or may run: it counts as holding volumes until they are seen.
    pub(crate) fn expect(&self, instance: &str, vm_uid: Option<&str>) {
        let mut state = self.state();
        let entry = state.entries.entry(instance.to_owned()).or_default();
        if let Some(uid) = vm_uid {
            entry.vm_uid = Some(uid.to_owned());
        }
    }

    /// The machine behind this process, with a driver of its own.
    pub(crate) async fn open(
        &self,
        instance: &str,
        vm_uid: Option<&str>,
        key: Option<Key>,
        process: &ProcessFacts,
    ) -> Result<Machine, Error> {
        self.expect(instance, vm_uid);
        if let Some(machine) = self.get(instance)
            && machine.process.identity == process.identity
        {
            return Ok(machine);
        }
        let (qmp, events) = self.system.connect(instance).await?;
        let (orders, order_queue) = mpsc::channel(ORDERS);
        let (questions, question_queue) = mpsc::channel(ORDERS);
        let (told, told_reader) = watch::channel(Told::default());
        let (facts, facts_reader) = watch::channel(GuestFacts::default());
        let poke = Arc::new(Notify::new());
        let watcher = Watcher {
            queue: self.queue.clone(),
            key: key.clone(),
            guest: poke.clone(),
            clock: self.clock.clone(),
        };
        let driver = Driver {
            qmp,
            events,
            orders: order_queue,
            told,
            watcher,
            process: process.clone(),
            system: self.system.clone(),
            instance: instance.to_owned(),
            devices: Devices::default(),
            resumes: false,
            has_started: false,
        };
        let talk = Talk {
            system: self.system.clone(),
            instance: instance.to_owned(),
            questions: question_queue,
            poke,
            facts,
            queue: self.queue.clone(),
            wake: key,
        };
        self.spawn(driver, talk);
        let machine =
            Machine { process: process.clone(), orders, questions, told: told_reader, facts: facts_reader };
        let mut state = self.state();
        state.entries.entry(instance.to_owned()).or_default().machine = Some(machine.clone());
        Ok(machine)
    }

    /// The guest's task ends with the driver's, whichever way that goes.
    fn spawn(&self, driver: Driver, talk: Talk) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            tokio::select! {
                () = driver.drive() => {}
                () = talk.run() => {}
            }
        });
    }

    /// Notes that this instance has no QEMU: it holds nothing.
    pub(crate) fn gone(&self, instance: &str) {
        self.state().entries.remove(instance);
    }

    /// Whether the machine of this VM has, or may have, this volume open.
    pub(crate) fn holds(&self, vm_uid: &str, volume: &str) -> bool {
        let state = self.state();
        state.entries.values().any(|e| e.vm_uid.as_deref() == Some(vm_uid) && e.holds(volume))
    }

    /// The machine that has this volume open.
    pub(crate) fn holder(&self, volume: &str) -> Option<Machine> {
        let state = self.state();
        let seen = |m: &&Machine| m.told.borrow().volumes.as_ref().is_some_and(|v| v.contains(volume));
        state.entries.values().filter_map(|e| e.machine.as_ref()).find(seen).cloned()
    }

    /// Takes a volume for a machine that is about to open it.
    ///
    /// *Guarantees:* between `Ok` and [`Machines::gone`] or [`Machines::unreserve`] the claim on it is not given up.
    pub(crate) fn reserve(&self, instance: &str, vm_uid: &str, volume: &str) -> Result<(), Error> {
        let mut state = self.state();
        if state.settling.contains(volume) {
            return Err(Error::Settling { name: volume.to_owned() });
        }
        let entry = state.entries.entry(instance.to_owned()).or_default();
        entry.vm_uid = Some(vm_uid.to_owned());
        entry.reserved.insert(volume.to_owned());
        Ok(())
    }

    /// Takes back a reservation: from here on it counts what QEMU has.
    pub(crate) fn unreserve(&self, instance: &str, volume: &str) {
        if let Some(entry) = self.state().entries.get_mut(instance) {
            entry.reserved.remove(volume);
        }
    }

    /// From here on until [`Machines::settled`] nobody takes this volume.
    pub(crate) fn settle(&self, volume: &str) {
        self.state().settling.insert(volume.to_owned());
    }

    pub(crate) fn settled(&self, volume: &str) {
        self.state().settling.remove(volume);
    }
}
