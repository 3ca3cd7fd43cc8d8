//! The one task that talks to a running machine's monitor. What QEMU tells unasked comes before what is asked of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::block::{self, Devices, ObservedDisk, Unplugged};
use berth_qemu::guest_agent;
use berth_qemu::machine::DiskSpec;
use berth_qemu::power::{self, RunState};
use berth_qemu::qmp::{EventKind, Events, Notice, Qmp};
use tokio::sync::{mpsc, oneshot, watch};

use super::legal::{Act, legal};
use super::{Ending, Look, Told, Watcher};
use crate::error::Error;
use crate::system::{ProcessFacts, System};

/// How long one request waits for the guest to let go of a disk; the asker comes again.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
/// How long a QEMU whose monitor has closed may take to be gone before somebody looks.
const EXIT_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) enum Order {
    Look(oneshot::Sender<Result<Look, Error>>),
    Start(Reply),
    PressPowerButton(Reply),
    Quit(Reply),
    Plug(Box<DiskSpec>, Reply),
    Unplug(String, oneshot::Sender<Result<Unplugged, Error>>),
    Resize {
        id: String,
        bytes: u64,
        reply: Reply,
    },
    /// Whether something in the guest has its agent's port open.
    GuestListens(oneshot::Sender<Result<bool, Error>>),
}

pub(super) type Reply = oneshot::Sender<Result<(), Error>>;

pub(super) struct Driver {
    pub(super) qmp: Qmp,
    pub(super) events: Events,
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) told: watch::Sender<Told>,
    pub(super) watcher: Watcher,
    pub(super) process: ProcessFacts,
    pub(super) system: Arc<dyn System>,
    pub(super) instance: String,
    pub(super) devices: Devices,
    /// The guest was just told to run, and whoever told it looks for himself whether it does.
    pub(super) resumes: bool,
    /// It was said that the machine runs: by this driver, for one before may have ended in between.
    pub(super) has_started: bool,
}

impl Driver {
    /// Drives until the monitor closes or nobody holds the machine any more.
    pub(super) async fn drive(mut self) {
        loop {
            tokio::select! {
                biased;
                notice = self.events.next() => match notice {
                    Some(notice) => self.hear(&notice),
                    None => break,
                },
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => return,
                },
            }
        }
        // Orders that still come fail at once instead of waiting for a machine that is going.
        self.orders.close();
        let _ = tokio::time::timeout(EXIT_WAIT, self.system.exited(&self.process.identity)).await;
        self.watcher.wake();
    }

    fn hear(&mut self, notice: &Notice) {
        let Notice::Event(event) = notice else {
            // Some were lost: whoever looks next sees what they led to.
            self.watcher.wake();
            return;
        };
        let kind = event.kind();
        match &kind {
            EventKind::Shutdown { by_guest, reason } => {
                let ending = Ending { by_guest: *by_guest, reason: reason.clone() };
                self.told.send_modify(|told| told.ending = Some(ending));
            }
            EventKind::PortOpened { open, .. } => {
                if *open {
                    self.watcher.guest.notify_one();
                }
                return;
            }
            EventKind::Resume if std::mem::take(&mut self.resumes) => return,
            EventKind::GuestPanicked | EventKind::BlockIoError { .. } | EventKind::DeviceDeleted { .. } => {}
            EventKind::Stop | EventKind::Resume | EventKind::UnplugRefused { .. } => {}
            EventKind::Reset { .. } | EventKind::Powerdown | EventKind::Other => return,
        }
        tracing::debug!(event = event.name, "the machine tells");
        self.watcher.wake();
    }

    /// An asker who has gone away meanwhile is no matter.
    async fn obey(&mut self, order: Order) {
        match order {
            Order::Look(reply) => {
                let _ = reply.send(self.look().await);
            }
            Order::Start(reply) => {
                let done = self.start().await;
                let _ = reply.send(done);
            }
            Order::PressPowerButton(reply) => {
                let done = self.allowed(Act::PressPowerButton).await;
                let done = match done {
                    Ok(()) => power::powerdown(&self.qmp).await.map_err(Error::from),
                    refused => refused,
                };
                let _ = reply.send(done);
            }
            Order::Quit(reply) => {
                let done = match self.allowed(Act::Quit).await {
                    Ok(()) => power::quit(&self.qmp).await.map_err(Error::from),
                    refused => refused,
                };
                let _ = reply.send(done);
            }
            Order::Plug(disk, reply) => {
                let _ = reply.send(self.plug(&disk).await);
            }
            Order::Unplug(id, reply) => {
                let _ = reply.send(self.unplug(&id).await);
            }
            Order::Resize { id, bytes, reply } => {
                let _ = reply.send(self.resize(&id, bytes).await);
            }
            Order::GuestListens(reply) => {
                let _ = reply.send(guest_agent::has_listener(&self.qmp).await.map_err(Error::from));
            }
        }
    }

    async fn allowed(&self, act: Act) -> Result<(), Error> {
        let state = power::run_state(&self.qmp).await?;
        Ok(legal(&state, act)?)
    }

    async fn look(&mut self) -> Result<Look, Error> {
        let state = power::run_state(&self.qmp).await?;
        legal(&state, Act::Look)?;
        if state != RunState::Prelaunch {
            self.say_started(false).await;
        }
        let disks: Vec<ObservedDisk> = self
            .devices
            .look(&self.qmp)
            .await?
            .into_iter()
            .filter(|d| d.id != berth_qemu::machine::SEED_ID)
            .collect();
        let held: BTreeSet<String> = disks.iter().map(|d| d.id.clone()).collect();
        self.told.send_modify(|told| told.volumes = Some(held));
        let told = self.told.borrow();
        Ok(Look { state, disks, ending: told.ending.clone(), resumed_at: told.resumed_at })
    }

    async fn start(&mut self) -> Result<(), Error> {
        let state = power::run_state(&self.qmp).await?;
        legal(&state, Act::Start)?;
        power::start(&self.qmp).await?;
        self.resumes = true;
        if state != RunState::Prelaunch {
            let now = self.watcher.clock.now();
            self.told.send_modify(|told| told.resumed_at = Some(now));
        }
        self.say_started(state == RunState::Prelaunch).await;
        self.watcher.guest.notify_one();
        Ok(())
    }

    async fn say_started(&mut self, just_now: bool) {
        if !std::mem::replace(&mut self.has_started, true) {
            self.system.has_started(&self.instance, just_now).await;
        }
    }

    async fn plug(&mut self, disk: &DiskSpec) -> Result<(), Error> {
        self.allowed(Act::ChangeDisks).await?;
        self.devices = Devices::default();
        Ok(block::plug(&self.qmp, disk).await?)
    }

    async fn unplug(&self, id: &str) -> Result<Unplugged, Error> {
        self.allowed(Act::ChangeDisks).await?;
        Ok(block::unplug(&self.qmp, id, RELEASE_WAIT).await?)
    }

    async fn resize(&self, id: &str, bytes: u64) -> Result<(), Error> {
        self.allowed(Act::ChangeDisks).await?;
        Ok(block::resize(&self.qmp, id, bytes).await?)
    }
}
