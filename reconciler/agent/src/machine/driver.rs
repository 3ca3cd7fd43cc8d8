//! The task that owns a running machine's monitor. QEMU's events take precedence over requests, some in a row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::block::{self, Devices, Observation, Unplugged};
use berth_qemu::cdrom::{self, Changed};
use berth_qemu::machine::{Medium, NicSpec, SCRATCH_ID, SEED_ID};
use berth_qemu::power::{self, RunState};
use berth_qemu::qmp::{EventKind, Events, Notice, Qmp, QmpError};
use berth_qemu::saved_state::{self, Transfer};
use berth_qemu::{cpus, guest_agent, nics, shares, tpm};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::command::Command;
use super::legal::{Action, IllegalAction, check_legal};
use super::pace::Pace;
use super::{DriverState, Ending, MachineError, MachineState, Notifier};
use berth_host::{ProcessFacts, StateAccess};

/// How long one request waits for the guest to release a device; the caller retries.
pub(super) const RELEASE_WAIT: Duration = Duration::from_secs(2);
/// The time for QEMU to answer before it counts as silent: of a hundred that are started at once, the slowest takes more than 7 s.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// The time for QEMU to answer what is asked again regularly. Other requests wait behind it.
const BRIEF_WAIT: Duration = Duration::from_secs(2);
/// The time for QEMU to answer all questions about its state, of which a QEMU that a guest has taken over may answer each one late.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// How long QEMU may take to exit after its monitor has closed, before its key is enqueued anyway.
const EXIT_WAIT: Duration = Duration::from_secs(10);
/// The number of events after which a request is executed, if one waits.
const MOST_EVENTS: usize = 16;

pub(super) struct Driver {
    pub(super) qmp: Qmp,
    pub(super) events: Events,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) published: watch::Sender<DriverState>,
    pub(super) notifier: Notifier,
    pub(super) process: ProcessFacts,
    pub(super) system: Arc<dyn berth_host::Machines>,
    pub(super) instance: String,
    pub(super) devices: Devices,
    /// The links that this driver has set, by the card's id; true: up. None: it is not known whether QEMU has done it.
    pub(super) links: BTreeMap<String, Option<bool>>,
    /// The state of the other links, if it is known.
    pub(super) link_at_start: Option<bool>,
    /// Set after the guest was started: the caller observes the result itself, so the next RESUME event enqueues
    /// nothing.
    pub(super) expects_resume: bool,
    /// The same of the next STOP event, after a disk was switched to its mirror.
    pub(super) expects_stop: bool,
    /// The number of CPUs, if it was read.
    pub(super) cpus: Option<i64>,
    /// Whether the machine has a device for memory that is plugged in, if it was asked.
    pub(super) can_grow: Option<bool>,
    /// Whether the machine has a TPM, as far as it was asked.
    pub(super) may_have_tpm: bool,
    /// Whether the machine has shares, as far as it was asked.
    pub(super) may_have_shares: bool,
    /// Whether the guest was asked to report its memory.
    pub(super) reports_memory: bool,
    /// Whether this driver has reported that the machine runs. Per driver: an earlier one may have ended before its
    /// report.
    pub(super) has_started: bool,
    /// Whether the guest is being sent to another host: its devices stay as they are.
    pub(super) is_sending: bool,
    /// Whether QEMU may have files open that no disk uses.
    pub(super) may_have_left: bool,
    /// How often events enqueue the VM.
    pub(super) wakes: Pace,
    /// How often a start of the guest's agent counts.
    pub(super) starts: Pace,
}

/// Waits [`BRIEF_WAIT`] for an exchange with QEMU; its command may still take effect after that.
pub(super) async fn briefly<T>(
    exchange: impl Future<Output = Result<T, MachineError>>,
) -> Result<T, MachineError> {
    let late = || QmpError::Timeout { command: "a regular request".to_owned(), after: BRIEF_WAIT };
    tokio::time::timeout(BRIEF_WAIT, exchange).await.unwrap_or_else(|_| Err(late().into()))
}

impl Driver {
    /// Drives the machine until its monitor closes or the last `Machine` is dropped.
    pub(super) async fn drive(mut self) {
        let mut in_a_row = 0;
        loop {
            let command = if in_a_row < MOST_EVENTS {
                tokio::select! {
                    biased;
                    notice = self.events.next() => match notice {
                        Some(notice) => {
                            self.handle_event(&notice);
                            in_a_row += 1;
                            continue;
                        }
                        None => break,
                    },
                    command = self.commands.recv() => command,
                }
            } else {
                in_a_row = 0;
                // The guest task, too.
                tokio::task::yield_now().await;
                match self.commands.try_recv() {
                    Ok(command) => Some(command),
                    Err(TryRecvError::Empty) => continue,
                    Err(TryRecvError::Disconnected) => None,
                }
            };
            in_a_row = 0;
            let Some(command) = command else { return };
            // Those that wait when QEMU falls silent would each wait for it as long as the first one.
            if self.is_silent() && !command.is_patient() {
                continue;
            }
            let (begun, is_check) = (Instant::now(), matches!(command, Command::CheckAnswer));
            self.execute(command).await;
            if !is_check && (begun.elapsed() >= ANSWER_WAIT || self.is_silent()) {
                self.check_answer().await;
            }
        }
        // Pending and later requests fail at once instead of waiting for a machine that is ending.
        self.commands.close();
        let _ = tokio::time::timeout(EXIT_WAIT, self.system.exited(&self.process.identity)).await;
        self.notifier.wake();
    }

    fn handle_event(&mut self, notice: &Notice) {
        let Notice::Event(event) = notice else {
            // Events were lost: the next observation shows their effects.
            if self.starts.wait(Instant::now()).is_zero() {
                self.published.send_modify(|state| state.agent_starts += 1);
            }
            self.may_have_left = true;
            self.enqueue();
            return;
        };
        let kind = event.kind();
        match &kind {
            EventKind::Shutdown { by_guest, reason } => {
                let ending = Ending { by_guest: *by_guest, reason: reason.clone() };
                self.published.send_modify(|state| state.ending = Some(ending));
            }
            EventKind::PortOpened { open, .. } => {
                if *open && self.starts.wait(Instant::now()).is_zero() {
                    self.published.send_modify(|state| state.agent_starts += 1);
                    self.notifier.guest.notify_one();
                }
                return;
            }
            EventKind::Resume if std::mem::take(&mut self.expects_resume) => return,
            EventKind::Stop if std::mem::take(&mut self.expects_stop) => return,
            EventKind::Suspend | EventKind::Wakeup => self.note_sleep(&kind),
            EventKind::GuestPanicked | EventKind::Watchdog | EventKind::BlockIoError { .. } => {}
            // The guest may have released a disk after the request to unplug it had ended.
            EventKind::DeviceDeleted { .. } => self.may_have_left = true,
            EventKind::Stop | EventKind::Resume | EventKind::UnplugRefused { .. } => {}
            EventKind::MemoryChanged | EventKind::TrayMoved | EventKind::StateTransfer => {}
            EventKind::Reset { .. } => {
                self.published.send_modify(|state| state.booted_at = Some(Instant::now()));
                return;
            }
            EventKind::Powerdown | EventKind::Other => return,
        }
        tracing::debug!(event = event.name, "the machine tells");
        self.enqueue();
    }

    /// Enqueues the VM; after a pause, if a QEMU that a guest has taken over has sent many events.
    fn enqueue(&mut self) {
        let wait = self.wakes.wait(Instant::now());
        self.notifier.wake_after(wait);
    }

    /// Executes a request. A reply is discarded if the caller has gone.
    async fn execute(&mut self, command: Command) {
        match command {
            Command::ReadState(reply) => {
                let late = || QmpError::Timeout { command: "all questions".to_owned(), after: READ_LIMIT };
                let read = tokio::time::timeout(READ_LIMIT, self.read_state()).await;
                let _ = reply.send(read.unwrap_or_else(|_| Err(late().into())));
            }
            Command::Start(reply) => {
                let done = self.start().await;
                let _ = reply.send(done);
            }
            Command::Pause(reply) => {
                let done = self.pause().await;
                let _ = reply.send(done);
            }
            Command::Save(at_most, reply) => {
                let done = self.save(at_most).await;
                let _ = reply.send(done);
            }
            Command::CancelSave(reply) => {
                self.is_sending = false;
                let _ = reply.send(saved_state::cancel(&self.qmp).await.map_err(MachineError::from));
            }
            Command::Load(cpus, reply) => {
                let done = self.load(cpus).await;
                let _ = reply.send(done);
            }
            Command::PressPowerButton(reply) => {
                let done = self.allowed(Action::PressPowerButton).await;
                let done = match done {
                    Ok(()) => power::powerdown(&self.qmp).await.map_err(MachineError::from),
                    refused => refused,
                };
                let _ = reply.send(done);
            }
            Command::Reset(reply) => {
                let done = match self.allowed(Action::Reset).await {
                    Ok(()) => power::reset(&self.qmp).await.map_err(MachineError::from),
                    refused => refused,
                };
                let _ = reply.send(done);
            }
            Command::InjectNmi(reply) => {
                let done = match self.allowed(Action::InjectNmi).await {
                    Ok(()) => power::inject_nmi(&self.qmp).await.map_err(MachineError::from),
                    refused => refused,
                };
                let _ = reply.send(done);
            }
            Command::Quit(reply) => {
                let done = match self.allowed(Action::Quit).await {
                    Ok(()) => power::quit(&self.qmp).await.map_err(MachineError::from),
                    refused => refused,
                };
                let _ = reply.send(done);
            }
            Command::Plug(disk, reply) => {
                let _ = reply.send(self.plug(&disk).await);
            }
            Command::Unplug(id, reply) => {
                let _ = reply.send(self.unplug(&id).await);
            }
            Command::PlugNic(nic, reply) => {
                let _ = reply.send(self.plug_nic(&nic).await);
            }
            Command::UnplugNic(id, reply) => {
                let _ = reply.send(self.unplug_nic(&id).await);
            }
            Command::SetLink { nic, up, reply } => {
                let _ = reply.send(self.set_link(nic, up).await);
            }
            Command::AssumeLinksUp(reply) => {
                self.link_at_start = Some(true);
                // Its process was started just now.
                self.may_have_left = false;
                let _ = reply.send(Ok(()));
            }
            Command::Resize { id, bytes, reply } => {
                let _ = reply.send(self.resize(&id, bytes).await);
            }
            Command::SnapshotDisks { overlays, images, reply } => {
                let _ = reply.send(self.snapshot_disks(&overlays, &images).await);
            }
            Command::ShortenChain(disk, reply) => {
                let _ = reply.send(self.shorten_chain(&disk).await);
            }
            Command::Mirror(request, reply) => {
                let done = Box::pin(self.mirror(&request)).await;
                let _ = reply.send(done);
            }
            Command::SetLimits { id, limits, reply } => {
                let _ = reply.send(self.set_limits(&id, &limits).await);
            }
            Command::ChangeMedium { slot, medium, reply } => {
                let _ = reply.send(self.change_medium(slot, medium.as_ref()).await);
            }
            Command::CloseTray(slot, reply) => {
                let _ = reply.send(self.close_tray(slot).await);
            }
            Command::PlugCpus(count, reply) => {
                let _ = reply.send(self.plug_cpus(count).await);
            }
            Command::RequestMemory(bytes, reply) => {
                let _ = reply.send(self.request_memory(bytes).await);
            }
            Command::ReadDiskUse(reply) => {
                // The caller may have stopped waiting while an earlier request was executed.
                if !reply.is_closed() {
                    let read = async { Ok(block::disk_use(&self.qmp).await?) };
                    let _ = reply.send(briefly(read).await);
                }
            }
            Command::ReadBalloon(reply) => {
                if !reply.is_closed() {
                    let _ = reply.send(briefly(self.balloon()).await);
                }
            }
            Command::CheckAnswer => self.check_answer().await,
            Command::ReadBallooned(reply) => {
                if !reply.is_closed() {
                    let _ = reply.send(briefly(self.ballooned()).await);
                }
            }
            Command::SetBalloon(bytes, reply) => {
                // The number is of a moment that is over.
                if !reply.is_closed() {
                    let _ = reply.send(briefly(self.set_balloon(bytes)).await);
                }
            }
            Command::Live(command) => self.execute_live(command).await,
            Command::Sleep(command) => self.execute_sleep(command).await,
            Command::GuestListens(reply) => {
                if !reply.is_closed() {
                    let listens = async { Ok(guest_agent::has_listener(&self.qmp).await?) };
                    let _ = reply.send(briefly(listens).await);
                }
            }
        }
    }

    pub(super) async fn allowed(&self, action: Action) -> Result<(), MachineError> {
        let state = power::run_state(&self.qmp).await?;
        if self.is_sending && matches!(action, Action::ChangeDevices | Action::ContinueInOverlays) {
            return Err(IllegalAction { action, state }.into());
        }
        Ok(check_legal(&state, action)?)
    }

    async fn read_state(&mut self) -> Result<MachineState, MachineError> {
        let state = power::run_state(&self.qmp).await?;
        check_legal(&state, Action::ReadState)?;
        if state != RunState::Prelaunch {
            self.report_started(false).await;
        }
        let Observation { mut disks, cdroms, nics, nic_ports } = self.devices.look(&self.qmp).await?;
        disks.retain(|d| ![SEED_ID, SCRATCH_ID].contains(&d.id.as_str()));
        let mirrors = block::mirrors(&self.qmp).await?;
        let left_open = match self.may_have_left {
            true => Box::pin(self.left_open(&state, &disks, &mirrors)).await?,
            false => BTreeSet::new(),
        };
        let held: BTreeSet<String> = disks.iter().map(|d| &d.id).chain(&left_open).cloned().collect();
        self.published.send_modify(|state| (state.volumes, state.mirrors) = (Some(held), mirrors.len()));
        // Sent together: on a host where many machines start, each answer waits for a turn.
        let (cpus, growth, has_tpm, lost_shares, progress) = tokio::join!(
            self.read_cpus(),
            self.read_growth(),
            self.read_tpm(),
            self.read_lost_shares(),
            self.read_progress(&state)
        );
        self.cpus = cpus;
        if let Ok(found) = &growth {
            self.can_grow = Some(found.is_some());
        }
        if let Ok(found) = &has_tpm {
            self.may_have_tpm = found.is_some();
        }
        if let Ok(found) = &lost_shares {
            self.may_have_shares = found.is_some();
        }
        let (transfer, saved_percent) = progress?;
        if let Transfer::Failed(why) = &transfer {
            let now = self.notifier.clock.now();
            self.published.send_modify(|state| {
                let began = *state.save_began.get_or_insert(now);
                state.save_failure = Some((began, why.clone()));
            });
        }
        let link = |nic: &nics::ObservedNic| {
            let up = self.links.get(&nic.id).copied().unwrap_or(self.link_at_start)?;
            Some((nic.id.clone(), up))
        };
        let links = nics.iter().filter_map(link).collect();
        let version = self.qmp.version();
        let qemu_version = format!("{}.{}.{}", version.major, version.minor, version.micro);
        let published = self.published.borrow();
        Ok(MachineState {
            run_state: state,
            qemu_version,
            disks,
            left_open,
            cdroms,
            nics,
            nic_ports,
            links,
            cpus,
            growth: growth.ok().flatten(),
            has_tpm: has_tpm.ok().flatten(),
            lost_shares: lost_shares.ok().flatten(),
            ending: published.ending.clone(),
            resumed_at: published.resumed_at,
            transfer,
            saved_percent,
            save_failure: published.save_failure.clone(),
            save_began: published.save_began,
            sleep: published.sleep.clone(),
            mirrors,
        })
    }

    async fn save(&mut self, at_most: u64) -> Result<(), MachineError> {
        let state = power::run_state(&self.qmp).await?;
        check_legal(&state, Action::Save)?;
        self.cancel_mirrors().await?;
        self.system.lend_state(&self.instance, &self.qmp, StateAccess::Write { at_most }).await?;
        let now = self.notifier.clock.now();
        self.published.send_modify(|state| {
            state.save_began = Some(now);
            state.save_failure = None;
            // The resume after this pause does not wait.
            state.resumed_at = None;
        });
        Ok(saved_state::save(&self.qmp, state == RunState::Running).await?)
    }

    async fn load(&mut self, cpus: usize) -> Result<(), MachineError> {
        self.allowed(Action::Load).await?;
        self.cpus = None;
        cpus::plug(&self.qmp, cpus).await?;
        self.system.lend_state(&self.instance, &self.qmp, StateAccess::Read).await?;
        Ok(saved_state::load(&self.qmp).await?)
    }

    async fn start(&mut self) -> Result<(), MachineError> {
        let state = power::run_state(&self.qmp).await?;
        check_legal(&state, Action::Start)?;
        self.ensure_none_switches(&state).await?;
        power::start(&self.qmp).await?;
        self.expects_resume = true;
        if state == RunState::Prelaunch {
            self.published.send_modify(|state| state.booted_at = Some(Instant::now()));
        } else {
            let now = self.notifier.clock.now();
            self.published.send_modify(|state| state.resumed_at = Some(now));
        }
        self.report_started(state == RunState::Prelaunch).await;
        self.notifier.guest.notify_one();
        Ok(())
    }

    async fn pause(&mut self) -> Result<(), MachineError> {
        self.allowed(Action::Pause).await?;
        power::stop(&self.qmp).await?;
        // The next resume ends this pause, whatever was resumed before it.
        self.published.send_modify(|state| state.resumed_at = None);
        Ok(())
    }

    async fn report_started(&mut self, just_now: bool) {
        if !std::mem::replace(&mut self.has_started, true) {
            self.system.mark_started(&self.instance, just_now).await;
        }
    }

    /// Plugs in a network card, once its tap exists.
    async fn plug_nic(&mut self, nic: &NicSpec) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        self.devices = Devices::default();
        if nics::is_plugged(&self.qmp, nic).await? {
            return Ok(());
        }
        nics::remove_backend(&self.qmp, &nic.id).await?;
        let lent = self.system.lend_tap(&self.instance, &self.qmp, nic).await?;
        nics::plug(&self.qmp, nic, lent).await?;
        self.links.insert(nic.id.clone(), Some(true));
        Ok(())
    }

    async fn unplug_nic(&mut self, id: &str) -> Result<Unplugged, MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        self.devices = Devices::default();
        let unplugged = nics::unplug(&self.qmp, id, RELEASE_WAIT).await?;
        if unplugged == Unplugged::Released {
            self.links.remove(id);
        }
        Ok(unplugged)
    }

    async fn set_link(&mut self, nic: String, up: bool) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        self.links.insert(nic.clone(), None);
        nics::set_link(&self.qmp, &nic, up).await?;
        self.links.insert(nic, Some(up));
        Ok(())
    }

    async fn change_medium(&self, slot: u8, medium: Option<&Medium>) -> Result<Changed, MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        Ok(cdrom::change_medium(&self.qmp, slot, medium).await?)
    }

    async fn close_tray(&self, slot: u8) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        Ok(cdrom::close_tray(&self.qmp, slot).await?)
    }

    async fn plug_cpus(&mut self, count: usize) -> Result<(), MachineError> {
        self.allowed(Action::ChangeDevices).await?;
        self.cpus = None;
        Ok(cpus::plug(&self.qmp, count).await?)
    }

    /// Reads the number of CPUs, unless it is known: only `plug_cpus` changes it.
    async fn read_cpus(&self) -> Option<i64> {
        if self.cpus.is_some() {
            return self.cpus;
        }
        cpus::observe(&self.qmp).await.ok().and_then(|cpus| i64::try_from(cpus.present).ok())
    }

    /// Reads how far a save or a load is. While the guest runs, there is none.
    async fn read_progress(&self, state: &RunState) -> Result<(Transfer, Option<i64>), QmpError> {
        match state {
            RunState::Running => Ok((Transfer::Idle, None)),
            _ => saved_state::progress(&self.qmp).await,
        }
    }

    /// Reads whether the emulator of its TPM is there. Most machines have no TPM, and are asked once.
    async fn read_tpm(&self) -> Result<Option<bool>, QmpError> {
        if !self.may_have_tpm {
            return Ok(None);
        }
        tpm::emulator(&self.qmp).await
    }

    /// Reads which shares have lost their servers. Most machines have none, and are asked once.
    async fn read_lost_shares(&self) -> Result<Option<Vec<String>>, QmpError> {
        if !self.may_have_shares {
            return Ok(None);
        }
        shares::lost(&self.qmp).await
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
