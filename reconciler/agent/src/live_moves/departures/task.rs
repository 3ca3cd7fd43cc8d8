//! One attempt to send a guest, or the question how an earlier one has ended.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_api::live_move::{DestinationMessage, MovedMachine, SourceMessage};
use berth_console_client::Connection;
use berth_engine::ErrorChain;
use berth_host::{RemoteError, System, SystemError};
use berth_qemu::block::ObservedDisk;
use berth_qemu::live_move::{SendLimits, SendPhase};
use berth_qemu::power::RunState;
use tokio::io::{AsyncRead, AsyncReadExt, BufReader, ReadHalf, WriteHalf};
use tokio::time::{sleep, timeout};

use super::NewDeparture;
use crate::copies::Copies;
use crate::journal::{Departure, DeparturePhase, Journal};
use crate::live_moves::wire::{read_answer, write_line};
use crate::machine::Machine;

/// The limits of a move: 1 GiB in a second, and a pause of 300 ms for the last part of the memory.
const LIMITS: SendLimits = SendLimits { bandwidth: 1 << 30, downtime_ms: 300 };
/// The time for the other host to prepare: it may have to get the images below the disks.
const PREPARATION: Duration = Duration::from_secs(600);
/// The longest time that a guest is sent.
const SENDING: Duration = Duration::from_secs(3600);
/// The time for the other host to load the last part, and again to start the guest.
const ANSWER: Duration = Duration::from_secs(60);
/// How often QEMU is asked for its progress, and whether the move was cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_FOR_CANCEL: Duration = Duration::from_millis(100);
/// The pause between two questions how a move has ended: the first, which doubles up to the longest.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often a guest that goes on is started, if QEMU refuses it.
const STARTS: u32 = 20;
/// The bytes that are passed on at a time.
const CHUNK: usize = 256 << 10;
const CANCELLED: &str =
    "it is cancelled: the VM is to be stopped, restarted, suspended or deleted, or is not to move any more";

/// How an attempt has ended.
#[derive(Debug)]
pub(super) enum Ended {
    HandedOver,
    /// The guest goes on here, or has ended.
    Failed(String),
}

pub(super) struct Task {
    pub(super) new: NewDeparture,
    /// None: its QEMU has ended.
    pub(super) machine: Option<Machine>,
    pub(super) system: Arc<dyn System>,
    pub(super) copies: Copies,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) report: Box<dyn Fn(Option<i64>) + Send + Sync>,
}

/// A connection to the other host.
struct Link {
    from: BufReader<ReadHalf<Connection>>,
    to: WriteHalf<Connection>,
}

impl Link {
    async fn send(&mut self, message: &SourceMessage) -> Result<(), String> {
        write_line(&mut self.to, message, &[]).await.map_err(|error| error.to_string())
    }

    async fn expect(&mut self, wanted: DestinationMessage, limit: Duration) -> Result<(), String> {
        match read_answer(&mut self.from, limit).await {
            Ok(answer) if answer == wanted => Ok(()),
            Ok(DestinationMessage::NotStarted(why)) => Err(why),
            Ok(_) => Err("the other host sent another answer than expected".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn text(error: &(dyn std::error::Error + 'static)) -> String {
    ErrorChain(error).to_string()
}

impl Task {
    pub(super) async fn run(self) -> Ended {
        let (Some(moved), Some(machine)) = (&self.new.machine, &self.machine) else {
            return self.settle().await;
        };
        let sent = tokio::select! {
            sent = timeout(PREPARATION + SENDING, self.transfer(machine, moved)) => sent,
            () = self.until_cancelled() => Ok(Err(CANCELLED.to_owned())),
        };
        let sent = sent.unwrap_or_else(|_| Err("it took too long".to_owned()));
        match sent {
            Ok(link) => self.hand_over(link).await,
            Err(why) => self.go_on(why).await,
        }
    }

    pub(super) async fn until_cancelled(&self) {
        while !self.cancelled.load(Ordering::Relaxed) {
            sleep(LOOK_FOR_CANCEL).await;
        }
    }

    async fn connect(&self) -> Result<Link, String> {
        let Departure { id, to, .. } = &self.new.departure;
        let connected = self.copies.live_move(to, &self.new.key.name, id).await;
        let connection =
            connected.map_err(|(RemoteError::Unreachable(why) | RemoteError::Refused(why))| why)?;
        let (from, to) = tokio::io::split(connection);
        Ok(Link { from: BufReader::new(from), to })
    }

    /// Sends the guest until it is paused and loaded on the other host.
    async fn transfer(&self, machine: &Machine, moved: &MovedMachine) -> Result<Link, String> {
        // Before the other host looks at them.
        let files = open_files(machine).await?;
        let mut link = self.connect().await?;
        link.send(&SourceMessage::Begin(Box::new(moved.clone()))).await?;
        link.expect(DestinationMessage::Ready, PREPARATION).await?;
        tracing::info!(instance = self.new.instance, to = self.new.departure.to, "sending the guest");
        let channel = machine.send_guest(LIMITS).await.map_err(|error| text(&error))?;
        let (mut from_qemu, _to_qemu) = channel.into_parts();
        // QEMU may not answer while it writes: its progress is asked for beside the copying.
        let pump = pump(&mut from_qemu, &mut link.to, self.new.at_most);
        // From the beginning on its disks stay in their files. A snapshot that was begun before may have had them continue in others.
        let check = async { check_files(&files, &open_files(machine).await?) };
        tokio::try_join!(pump, self.watch(machine), check)?;
        link.send(&SourceMessage::End).await?;
        link.expect(DestinationMessage::Loaded, ANSWER).await?;
        Ok(link)
    }

    /// Follows QEMU's progress to its end, and has it switch when the rest of the memory fits into the pause.
    async fn watch(&self, machine: &Machine) -> Result<(), String> {
        let mut is_switched = false;
        loop {
            let (phase, percent) = machine.send_progress().await.map_err(|error| text(&error))?;
            (self.report)(percent);
            match phase {
                SendPhase::Completed => return Ok(()),
                SendPhase::Failed(why) => return Err(format!("QEMU could not send the guest: {why}")),
                SendPhase::Idle => return Err("QEMU does not send the guest any more".to_owned()),
                SendPhase::ReadyToSwitch if !is_switched => {
                    machine.switch_over().await.map_err(|error| text(&error))?;
                    is_switched = true;
                }
                SendPhase::ReadyToSwitch | SendPhase::Sending | SendPhase::Switching => {}
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Lets the other host start the guest. Before it is asked for that, this host has recorded that it does not let the guest go on by
    /// itself.
    async fn hand_over(&self, mut link: Link) -> Ended {
        if self.cancelled.load(Ordering::Relaxed) {
            return self.go_on(CANCELLED.to_owned()).await;
        }
        let handing = Departure { phase: DeparturePhase::HandingOver, ..self.new.departure.clone() };
        // It is not known whether a failed write is on the disk: the next one takes its place.
        if let Err(why) = self.record(Some(handing)).await {
            return self.go_on(why).await;
        }
        let asked = link.send(&SourceMessage::Go).await;
        let answer = match asked {
            Ok(()) => read_answer(&mut link.from, ANSWER).await.map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        match answer {
            Ok(DestinationMessage::Started) => self.handed_over().await,
            Ok(DestinationMessage::NotStarted(why)) => self.go_on(why).await,
            // Whether it has started the guest is not known.
            Ok(_) | Err(_) => self.settle().await,
        }
    }

    /// Asks the other host whether it runs the guest, until it answers or is declared lost.
    async fn settle(&self) -> Ended {
        let mut pause = ASK_AGAIN;
        loop {
            match self.ask().await {
                Ok(DestinationMessage::Started) => return self.handed_over().await,
                Ok(DestinationMessage::NotStarted(why)) => return self.go_on(why).await,
                Ok(_) => {}
                Err(why) => {
                    tracing::warn!(
                        instance = self.new.instance,
                        to = self.new.departure.to,
                        why,
                        "it is not known whether the guest runs on the other host: it stays paused here"
                    );
                    if self.copies.is_lost(&self.new.departure.to).await {
                        let why = format!("host {} is gone for good", self.new.departure.to);
                        return self.go_on(why).await;
                    }
                }
            }
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    async fn ask(&self) -> Result<DestinationMessage, String> {
        let mut link = self.connect().await?;
        link.send(&SourceMessage::Settle).await?;
        read_answer(&mut link.from, ANSWER).await.map_err(|error| error.to_string())
    }

    async fn handed_over(&self) -> Ended {
        tracing::info!(
            instance = self.new.instance,
            to = self.new.departure.to,
            "the guest runs on the other host"
        );
        let over = Departure { phase: DeparturePhase::HandedOver, ..self.new.departure.clone() };
        let mut pause = ASK_AGAIN;
        // Without the record, the other host is asked again, and answers the same.
        while let Err(why) = self.record(Some(over.clone())).await {
            tracing::warn!(instance = self.new.instance, why, "the end of a move cannot be recorded");
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
        Ended::HandedOver
    }

    /// Lets the guest go on here: the other host has not started it, and does not.
    async fn go_on(&self, why: String) -> Ended {
        tracing::warn!(instance = self.new.instance, to = self.new.departure.to, why, "the guest stays here");
        if let Some(machine) = &self.machine {
            go_on(self.system.as_ref(), &self.new.instance, machine).await;
        }
        let mut pause = ASK_AGAIN;
        while let Err(problem) = self.record(None).await {
            tracing::warn!(instance = self.new.instance, problem, "the end of a move cannot be recorded");
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
        Ended::Failed(why)
    }

    async fn record(&self, departure: Option<Departure>) -> Result<(), String> {
        let instance = &self.new.instance;
        let read = self.system.read_journal(instance).await.map_err(|error| error.chain())?;
        let journal = read.ok_or_else(|| "its journal is gone".to_owned())?;
        let journal = Journal::parse(journal).map_err(|error| error.chain())?;
        let updated = journal.with_departure(departure).to_value();
        let written = self.system.write_journal(instance, &updated).await;
        written.map_err(|error| error.chain())
    }
}

/// The files that the disks of a machine are in, by their ids.
type OpenFiles = BTreeMap<String, Option<PathBuf>>;

async fn open_files(machine: &Machine) -> Result<OpenFiles, String> {
    Ok(files_of(&machine.state().await.map_err(|error| text(&error))?.disks))
}

fn files_of(disks: &[ObservedDisk]) -> OpenFiles {
    disks.iter().map(|disk| (disk.id.clone(), disk.file.clone())).collect()
}

/// Checks that the guest has written to no other files than those that the other host has opened.
fn check_files(before: &OpenFiles, now: &OpenFiles) -> Result<(), String> {
    match before == now {
        true => Ok(()),
        false => {
            Err("its disks were changed, or a snapshot of them was taken, while the other host prepared"
                .to_owned())
        }
    }
}

/// Ends the sending of a guest, and lets it go on. One that has ended meanwhile, or that QEMU refuses, is left to the plan of its VM.
pub(crate) async fn go_on(system: &dyn System, instance: &str, machine: &Machine) {
    for _ in 0..STARTS {
        // The other host may have let its QEMU open the files, and QEMU opens them again to write.
        if let Err(error) = grant(system, instance).await {
            tracing::warn!(
                instance,
                error = error.chain(),
                "the disks of a guest that goes on are not granted"
            );
        }
        // Ends QEMU's part, if it is not complete. A guest that is paused for the last part then goes on.
        let ended = machine.cancel_save().await;
        let state = match (ended, machine.state().await) {
            (Ok(()), Ok(state)) => state.run_state,
            // It has ended, or does not answer now.
            _ if machine.is_closed() => return,
            _ => {
                sleep(ASK_AGAIN).await;
                continue;
            }
        };
        let is_paused = matches!(state, RunState::PostMigrate | RunState::Paused);
        if !is_paused {
            if !matches!(state, RunState::Other(_)) {
                return;
            }
        } else if machine.start().await.is_ok() {
            machine.set_clock().await;
            return;
        }
        sleep(ASK_AGAIN).await;
    }
}

async fn grant(system: &dyn System, instance: &str) -> Result<(), SystemError> {
    let journal = system.read_journal(instance).await?.and_then(|journal| Journal::parse(journal).ok());
    let machine = journal.and_then(|journal| journal.run).and_then(|run| run.machine);
    for disk in machine.iter().flat_map(|machine| &machine.disks) {
        system.grant_disk(instance, disk).await?;
    }
    Ok(())
}

/// Passes the bytes of QEMU on, to their end.
async fn pump(
    from_qemu: &mut (impl AsyncRead + Unpin),
    to: &mut WriteHalf<Connection>,
    at_most: u64,
) -> Result<(), String> {
    let mut buffer = vec![0; CHUNK];
    let mut sent: u64 = 0;
    loop {
        let count = from_qemu.read(&mut buffer).await;
        let count = count.map_err(|error| format!("QEMU's connection broke: {error}"))?;
        if count == 0 {
            return Ok(());
        }
        let length = u32::try_from(count).unwrap_or_default();
        sent = sent.saturating_add(u64::from(length));
        if sent > at_most {
            return Err("the guest writes to its memory faster than it is sent".to_owned());
        }
        let chunk = &buffer[..count];
        let written = write_line(to, &SourceMessage::Chunk(length), chunk).await;
        written.map_err(|error| error.to_string())?;
    }
}

#[cfg(test)]
mod tests {
    use berth_qemu::block::IoLimits;
    use berth_qemu::machine::Bus;

    use super::*;

    #[test]
    fn a_guest_whose_disk_continues_in_another_file_does_not_arrive_on_the_former_one() {
        let disk = |file: &str, io_error: bool| ObservedDisk {
            id: "v-1".to_owned(),
            node: None,
            serial: "v-1".to_owned(),
            file: Some(file.into()),
            size: 1 << 30,
            read_only: false,
            bus: Bus::VirtioScsi,
            target: Some(0),
            limits: IoLimits::default(),
            is_direct: true,
            files_below: 0,
            is_encrypted: false,
            io_error,
        };
        let before = files_of(&[disk("/site/v-1.qcow2", false)]);
        assert_eq!(check_files(&before, &files_of(&[disk("/site/v-1.qcow2", true)])), Ok(()));
        assert!(check_files(&before, &files_of(&[disk("/site/v-1.1.qcow2", false)])).is_err());
        assert!(check_files(&before, &files_of(&[])).is_err());
    }
}
