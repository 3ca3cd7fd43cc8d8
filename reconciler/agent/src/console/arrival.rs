//! A running guest that comes from another host, once the ticket of that host is accepted: see [`berth_api::live_move`].
//!
//! ```text
//!  ticket of the host's account ─▶ the control plane: the VM is bound to that host and moves here ─▶ Begin … Go, or Settle
//! ```
//!
//! The VM is read from the control plane for each request: the word of the host that sends counts for nothing. A connection that ends before
//! the guest is started removes the machine, and no other connection is answered before that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_api::image_copy::of_query;
use berth_api::live_move::{DestinationMessage, MovedMachine, SourceMessage, audience};
use berth_api::vm::VMMigration;
use berth_api::{VM, VMStatus};
use berth_qemu::power::RunState;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::{Instant, sleep, timeout};

use super::places::Place;
use super::refusal::ConsoleRefusal;
use super::{ARRIVALS, ARRIVALS_OF_HOST, Consoles, STALLED};
use crate::arrivals::{self, Coming, StartEnd};
use crate::context::Context;
use crate::error::Error;
use crate::index::instance_of;
use crate::key::ObjectName;
use crate::live_moves::{Line, read_line, write_line};
use crate::machine::{Machine, MachineError};
use crate::typed_api::TypedApi;

/// The time for the first message, which has the bootstrap data.
const FIRST: Duration = Duration::from_secs(60);
/// The longest pause between two chunks: the other QEMU may wait for its guest.
const CHUNK_PAUSE: Duration = Duration::from_secs(120);
/// The time for QEMU to take a chunk.
const QEMU_TIME: Duration = Duration::from_secs(60);
/// The time for QEMU to load the last part, and how often it is looked at.
const LOADING: Duration = Duration::from_secs(50);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The time from Loaded to Go.
const UNTIL_GO: Duration = Duration::from_secs(60);
/// How often the memory of a guest comes at most.
const REPETITIONS: u64 = 17;
const SLACK: u64 = 1 << 30;

/// A guest that comes, or a question about one.
pub(super) struct ArrivalSession {
    ctx: Arc<Context>,
    vm: VM,
    /// None: the control plane knows no such move any more.
    migration: Option<VMMigration>,
    /// Of the attempt.
    id: String,
    /// The host that it leaves.
    from: String,
    /// None: there is none for another guest, and only a question is answered.
    place: Option<Place<String>>,
}

impl ArrivalSession {
    /// Verifies the ticket of the host that sends.
    ///
    /// *Errors*: the ticket is not that of the host in the query and for this attempt; the VM is not bound to that host, or does not move here.
    pub(super) async fn open(
        ctx: &Arc<Context>,
        consoles: &Consoles,
        name: ObjectName,
        id: &str,
        query: Option<&str>,
        ticket: &str,
    ) -> Result<Self, ConsoleRefusal> {
        let (host, _) = query.and_then(of_query).ok_or(ConsoleRefusal::NoCopyQuery)?;
        let audience = audience(&name.namespace, &name.name, id);
        consoles.tickets.redeem_of_host(&ctx.client, ctx.now(), ticket, host, audience).await?;
        let vms: TypedApi<VM> = TypedApi::namespaced(ctx.client.clone(), &name.namespace);
        let vm = vms.get_opt(&name.name).await;
        let vm = vm.map_err(|error| ConsoleRefusal::CannotReadNeeds { detail: error.to_string() })?;
        let not_coming = || ConsoleRefusal::NotComing { host: host.to_owned() };
        let vm = vm.ok_or_else(not_coming)?;
        // A question about an attempt is answered from its record, also if the control plane lists it no more.
        if !is_of(&vm, ctx.host(), host) {
            return Err(not_coming());
        }
        let migration = migration(&vm, ctx.host(), host, id);
        tracing::info!(
            namespace = name.namespace,
            vm = name.name,
            host,
            id,
            "move of a running guest opened"
        );
        let place = consoles.arrivals.take(host.to_owned());
        Ok(Self { ctx: ctx.clone(), vm, migration, id: id.to_owned(), from: host.to_owned(), place })
    }

    /// Runs the session to its end.
    pub(super) async fn run(self, stream: TokioIo<Upgraded>) {
        let (from, mut to) = tokio::io::split(stream);
        let mut from = BufReader::new(from);
        if let Err(why) = Box::pin(self.answer(&mut from, &mut to)).await {
            tracing::warn!(id = self.id, host = self.from, why, "a guest did not come");
            // The other host may have ended the connection.
            let _ = write_line(&mut to, &DestinationMessage::NotStarted(cut(why)), &[]).await;
        }
        let _ = timeout(STALLED, to.shutdown()).await;
    }

    /// The error is why the guest was not started, and never will be: what was made for it is removed.
    async fn answer(
        &self,
        from: &mut (impl AsyncBufRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), String> {
        let instance = instance_of(&self.vm).unwrap_or_default();
        // The session before ends first, with the removal of its machine.
        let _alone = self.ctx.arrival_locks.lock(instance).await;
        match read_line(from, FIRST).await {
            Ok(Line::Message(message)) => match *message {
                SourceMessage::Begin(moved) => self.begin(instance, &moved, from, to).await,
                SourceMessage::Settle => self.settle(to).await,
                _ => Err("the first message is another one than expected".to_owned()),
            },
            Ok(Line::Chunk(_)) => Err("the first message is another one than expected".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn settle(&self, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), String> {
        let answer = match arrivals::settle(&self.ctx, &self.coming()).await {
            Ok(StartEnd::Started) => DestinationMessage::Started,
            Ok(StartEnd::Refused(why)) => DestinationMessage::NotStarted(cut(why)),
            // It is not known: no answer, and the other host asks again.
            Err(why) => {
                tracing::warn!(id = self.id, host = self.from, why, "how a move has ended is not known yet");
                return Ok(());
            }
        };
        // The other host asks again if this is lost.
        let _ = write_line(to, &answer, &[]).await;
        Ok(())
    }

    fn coming(&self) -> Coming<'_> {
        let epoch = self.migration.as_ref().map_or(0, |migration| migration.epoch);
        Coming { vm: &self.vm, id: &self.id, from: &self.from, epoch }
    }

    async fn begin(
        &self,
        instance: &str,
        moved: &MovedMachine,
        from: &mut (impl AsyncBufRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), String> {
        if self.place.is_none() {
            return Err(format!(
                "{ARRIVALS_OF_HOST} running guests of host {} come to this host, or {ARRIVALS} in all: one arrives first",
                self.from
            ));
        }
        // What an earlier agent has left is settled first.
        if !self.ctx.is_working.load(Ordering::Relaxed) {
            return Err("the agent of the other host has just been started".to_owned());
        }
        if self.migration.is_none() {
            return Err("the VM does not move to this host any more".to_owned());
        }
        if self.vm.metadata.deletion_timestamp.is_some() {
            return Err("the VM is being deleted".to_owned());
        }
        // Before anything is made, and again after the machine is removed, nothing of another attempt is touched.
        let prepared = Box::pin(arrivals::prepare(&self.ctx, &self.coming(), moved)).await;
        let loaded = match prepared {
            Ok(machine) => match Box::pin(self.receive(&machine, moved.cpus, from, to)).await {
                Ok(()) => Ok(machine),
                Err(why) => Err(why),
            },
            Err(why) => Err(why),
        };
        let machine = match loaded {
            Ok(machine) => machine,
            Err(why) => {
                self.remove(instance).await;
                return Err(why);
            }
        };
        let answer = match Box::pin(arrivals::start(&self.ctx, instance, &machine)).await {
            StartEnd::Started => DestinationMessage::Started,
            StartEnd::Refused(why) => DestinationMessage::NotStarted(cut(why)),
        };
        // The other host asks again if this is lost.
        let _ = write_line(to, &answer, &[]).await;
        Ok(())
    }

    /// Receives the guest, until the other host has it started. The error is why it is not started.
    async fn receive(
        &self,
        machine: &Machine,
        cpus: i64,
        from: &mut (impl AsyncBufRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), String> {
        let text = |error: MachineError| Error::from(error).chain();
        let cpus = usize::try_from(cpus).unwrap_or_default();
        let channel = machine.receive_guest(cpus).await.map_err(text)?;
        let (_from_qemu, mut to_qemu) = channel.into_parts();
        write_line(to, &DestinationMessage::Ready, &[]).await.map_err(|error| error.to_string())?;
        let most = most_bytes(&self.vm);
        let mut received: u64 = 0;
        loop {
            match read_line(from, CHUNK_PAUSE).await.map_err(|error| error.to_string())? {
                Line::Chunk(bytes) => {
                    received = received.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                    if received > most {
                        return Err("more comes than the state of the guest can take".to_owned());
                    }
                    let written = timeout(QEMU_TIME, to_qemu.write_all(&bytes)).await;
                    let written = written.map_err(|_| "QEMU does not take the state".to_owned())?;
                    written.map_err(|error| format!("QEMU does not take the state: {error}"))?;
                }
                Line::Message(message) if *message == SourceMessage::End => break,
                Line::Message(_) => return Err("another message than expected came".to_owned()),
            }
        }
        let _ = to_qemu.shutdown().await;
        loaded(machine).await?;
        write_line(to, &DestinationMessage::Loaded, &[]).await.map_err(|error| error.to_string())?;
        match read_line(from, UNTIL_GO).await.map_err(|error| error.to_string())? {
            Line::Message(message) if *message == SourceMessage::Go => Ok(()),
            _ => Err("another message than expected came".to_owned()),
        }
    }

    /// Removes the machine. As long as that fails, nothing is answered, and no other session about it begins.
    async fn remove(&self, instance: &str) {
        while let Err(why) = arrivals::remove_attempt(&self.ctx, instance, &self.id).await {
            tracing::warn!(instance, why, "the machine of a guest that did not come cannot be removed");
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Returns the most bytes that come for a guest: of all of its memory, whatever is kept for it and whatever its pages are.
fn most_bytes(vm: &VM) -> u64 {
    let taken = vm.status.as_ref().and_then(|status| status.hardware.as_ref()?.taken());
    let memory = taken.map_or(0, |taken| taken.whole_memory.saturating_add(taken.huge_memory.total()));
    memory.saturating_mul(REPETITIONS).saturating_add(SLACK)
}

/// Waits until QEMU has loaded the state.
async fn loaded(machine: &Machine) -> Result<(), String> {
    let until = Instant::now() + LOADING;
    loop {
        match machine.state().await {
            Ok(state) if state.run_state == RunState::Paused => return Ok(()),
            Err(_) if machine.is_closed() => {
                return Err("QEMU could not load the state of the guest".to_owned());
            }
            // It answers nothing while it loads.
            Ok(_) | Err(_) => {}
        }
        if Instant::now() >= until {
            return Err("QEMU has not loaded the state of the guest in time".to_owned());
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Whether a VM is bound to that host, and not to this one.
fn is_of(vm: &VM, own: &str, from: &str) -> bool {
    let binding = vm.status.as_ref().and_then(|status| status.binding.as_ref());
    from != own && binding.is_some_and(|binding| binding.host == from)
}

/// Returns the move of a VM from that host to this one that an attempt is of.
fn migration(vm: &VM, own: &str, from: &str, id: &str) -> Option<VMMigration> {
    let status = vm.status.as_ref()?;
    let migration = VMStatus::live_move(status).filter(|migration| migration.to == own)?;
    if !is_of(vm, own, from) {
        return None;
    }
    let is_of_it = id.strip_prefix(migration.id.as_str()).is_some_and(|attempt| attempt.starts_with('-'));
    is_of_it.then(|| migration.clone())
}

/// A reason of a length that the other host takes.
fn cut(why: String) -> String {
    why.chars().take(1000).collect()
}

#[cfg(test)]
mod tests {
    use berth_api::HugePages;
    use berth_api::vm::Hardware;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_guest_comes_only_from_the_host_of_its_vm_and_by_the_move_that_the_controllers_decided() {
        let comes = |from: &str, id: &str, status: Value| {
            let object = json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {"disks": []}, "status": status});
            let vm: VM = serde_json::from_value(object).expect("a VM");
            migration(&vm, "b", from, id).is_some()
        };
        let status = |host: &str, epoch: i64, to: &str| {
            json!({"binding": {"host": host, "epoch": 3},
                "migration": {"id": "m1", "to": to, "epoch": epoch, "phase": "Requested"}})
        };
        assert!(comes("a", "m1-7", status("a", 3, "b")));
        assert!(!comes("c", "m1-7", status("a", 3, "b")), "the VM is bound to another host");
        assert!(!comes("a", "m1-7", status("a", 3, "c")), "it goes to another host");
        assert!(!comes("a", "m1-7", status("a", 2, "b")), "that was an earlier binding");
        assert!(!comes("a", "m2-7", status("a", 3, "b")) && !comes("a", "m1", status("a", 3, "b")));
        assert!(!comes("a", "m1-7", json!({"binding": {"host": "a", "epoch": 3}})));
    }

    #[test]
    fn all_memory_of_a_guest_may_come_also_in_huge_pages_and_beyond_its_reservation() {
        let most = |huge_pages, reserved: Option<&str>| {
            let memory_reservation = reserved.map(str::to_owned);
            let hardware =
                Hardware { memory: "64Gi".to_owned(), huge_pages, memory_reservation, ..Hardware::default() };
            let mut vm = VM::new("web", Default::default());
            vm.status = Some(VMStatus { hardware: Some(hardware), ..VMStatus::default() });
            most_bytes(&vm)
        };
        let all = (64_u64 << 30) * REPETITIONS + SLACK;
        assert_eq!(most(None, None), all);
        assert_eq!(most(None, Some("1Gi")), all);
        assert_eq!(most(Some(HugePages::TwoMebibytes), None), all);
        assert_eq!(most_bytes(&VM::new("web", Default::default())), SLACK);
    }
}
