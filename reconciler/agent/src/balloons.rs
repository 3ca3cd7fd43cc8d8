//! The balloons of this host's guests: a guest of which less memory is kept than it has gives some back when the host is short of it,
//! and gets it again when there is room.
//!
//! ```text
//!   every 10 s:  host's memory, balloons, guests' reports ─▶ policy ─▶ what each balloon is to leave
//! ```
//!
//! *Guarantees:* only guests with a reservation below their memory are touched, while they run; one that has lost its reservation gets
//! all of its memory back, also if another agent took it. Nothing is written: the balloon itself is the state. On a host that runs out
//! of memory nevertheless, the kernel ends QEMUs that use more than is kept for them before others.

mod policy;

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{Size, VM};
use berth_qemu::hypervisor::ProcessIdentity;
use futures::{StreamExt, stream};
use tokio::time::sleep;

use crate::context::Context;
use crate::error::Error;
use crate::guest_memory;
use crate::hardware::memory_reservation;
use crate::index::{declared_size, instance_of};
use crate::journal::{Journal, Run};
use crate::key::ObjectName;
use crate::machine::Machine;
use policy::{Guest, HostMemory, oom_preference, targets};

/// The time between two steps.
const EVERY: Duration = Duration::from_secs(10);
/// The number of machines that are read at a time.
const AT_A_TIME: usize = 8;

/// The machines of which nothing was in the balloon, and all of the memory is kept: the others are looked at with each step.
type Whole = BTreeMap<String, ProcessIdentity>;

/// A VM with a machine whose balloon may change.
struct Candidate {
    name: ObjectName,
    machine: Machine,
    run: Run,
    /// The bytes that are kept for it; none: all of them.
    reserved: Option<u64>,
}

/// Adjusts the balloons for as long as it is polled.
pub(crate) async fn run(ctx: &Context) {
    ctx.lease.acquired().await;
    ctx.synced().await;
    let mut whole = Whole::new();
    let mut was_short = false;
    loop {
        sleep(EVERY).await;
        match adjust(ctx, &mut whole).await {
            Ok(is_short) => {
                if is_short && !was_short {
                    tracing::info!("the host is short of memory: guests are asked to give some back");
                }
                was_short = is_short;
            }
            Err(error) => tracing::debug!(error = %error.chain(), "the balloons of guests are not adjusted"),
        }
    }
}

/// Does one step. Returns whether guests were asked to give memory back.
async fn adjust(ctx: &Context, whole: &mut Whole) -> Result<bool, Error> {
    let candidates = candidates(ctx, whole).await;
    if candidates.is_empty() {
        return Ok(false);
    }
    let Some(host) = host_memory(ctx).await? else { return Ok(false) };
    // Whatever the guest answers, and whether it answers.
    for Candidate { name, machine, reserved, .. } in &candidates {
        let process = &machine.process.identity;
        set_oom_preference(ctx, name, process, oom_preference(*reserved, host.total)).await;
    }
    let looks = stream::iter(candidates).map(|candidate| look(ctx, candidate)).buffer_unordered(AT_A_TIME);
    let mut found: Vec<(Candidate, Guest)> = looks.filter_map(futures::future::ready).collect().await;
    // Equal inputs have equal results, whatever the order of the answers.
    found.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    let guests: Vec<Guest> = found.iter().map(|(_, guest)| *guest).collect();
    let targets = targets(&host, &guests);
    let gives =
        guests.iter().zip(&targets).any(|(guest, target)| target.is_some_and(|bytes| bytes < guest.left));
    let changes = found.into_iter().zip(targets);
    let changes: Vec<(Candidate, u64)> =
        changes.filter_map(|((candidate, _), target)| Some((candidate, target?))).collect();
    let asked = stream::iter(changes).map(|(candidate, bytes)| set_balloon(candidate, bytes));
    asked.buffer_unordered(AT_A_TIME).collect::<()>().await;
    Ok(gives)
}

/// Asks a guest to have this many bytes.
async fn set_balloon(candidate: Candidate, bytes: u64) {
    let Candidate { name, machine, .. } = candidate;
    tracing::debug!(vm = %name, bytes, "the balloon is to leave another size");
    // A guest that is paused meanwhile is asked with a later step.
    if let Err(error) = machine.set_balloon(bytes).await {
        tracing::debug!(vm = %name, %error, "the balloon stays as it is");
    }
}

/// Has the kernel prefer a QEMU that was launched just now as the next step would: a state that it loads takes its memory before that.
pub(crate) async fn prefer_launched(ctx: &Context, vm: &VM, process: &ProcessIdentity) {
    let name = ObjectName::of(vm);
    let size = declared_size(&ctx.index.read(), &name, vm).ok();
    let Some(reserved) = size.and_then(|size| size.memory_reservation) else { return };
    let Ok(Some(host)) = host_memory(ctx).await else { return };
    set_oom_preference(ctx, &name, process, oom_preference(Some(reserved), host.total)).await;
}

/// Has the kernel end the QEMU of a VM that may use more than is kept for it before others, if the host runs out of memory.
async fn set_oom_preference(ctx: &Context, name: &ObjectName, process: &ProcessIdentity, preference: u16) {
    if let Err(error) = ctx.system.set_oom_preference(process, preference).await {
        tracing::debug!(vm = %name, %error, "the OOM killer does not prefer it");
    }
}

/// Returns the VMs of which not all memory is kept, and those that lack some of it nevertheless.
async fn candidates(ctx: &Context, whole: &mut Whole) -> Vec<Candidate> {
    let declared: Vec<(ObjectName, String, Option<Size>)> = {
        let tables = ctx.index.read();
        let declared = tables.vms.all().filter_map(|(name, vm)| {
            Some((name.clone(), instance_of(vm)?.to_owned(), declared_size(&tables, name, vm).ok()))
        });
        declared.collect()
    };
    let known = &*whole;
    let looked = stream::iter(declared).map(|vm| candidate(ctx, known, vm)).buffered(AT_A_TIME);
    let looked: Vec<Looked> = looked.filter_map(futures::future::ready).collect().await;
    let (mut found, mut now_whole) = (Vec::new(), Whole::new());
    for look in looked {
        match look {
            Looked::Whole(instance, process) => drop(now_whole.insert(instance, process)),
            Looked::MayChange(candidate) => found.push(*candidate),
        }
    }
    *whole = now_whole;
    found
}

/// A machine at a first look.
enum Looked {
    /// Nothing of its memory is in the balloon, and all of it is kept.
    Whole(String, ProcessIdentity),
    MayChange(Box<Candidate>),
}

/// Looks whether the balloon of a VM may change. None: it has no machine, QEMU does not answer, or the guest does not run.
async fn candidate(
    ctx: &Context,
    whole: &Whole,
    (name, instance, size): (ObjectName, String, Option<Size>),
) -> Option<Looked> {
    let machine = ctx.machines.get(&instance).filter(|machine| !machine.is_silent())?;
    if size.is_none_or(|size| size.memory_reservation.is_none()) {
        let process = &machine.process.identity;
        let is_known = whole.get(&instance) == Some(process);
        let ballooned = if is_known { 0 } else { machine.ballooned().await.ok()? };
        if ballooned == 0 {
            if !is_known {
                // Another agent may have changed it.
                set_oom_preference(ctx, &name, process, 0).await;
            }
            return Some(Looked::Whole(instance, process.clone()));
        }
    }
    let journal = Journal::parse(ctx.system.read_journal(&instance).await.ok()??).ok()?;
    let reserved = size.and_then(|size| memory_reservation(&journal, &size));
    let run = journal.run?;
    Some(Looked::MayChange(Box::new(Candidate { name, machine, run, reserved })))
}

/// Looks at a guest. None: its QEMU does not answer.
async fn look(ctx: &Context, candidate: Candidate) -> Option<(Candidate, Guest)> {
    let Candidate { machine, run, reserved, .. } = &candidate;
    let balloon = machine.balloon().await.ok()?;
    let base = run.base_memory();
    let guest = Guest {
        base,
        plugged: run.memory_bytes.saturating_sub(base),
        reserved: reserved.unwrap_or(run.memory_bytes),
        left: balloon.left.min(base),
        reported: guest_memory::reported(run, balloon, ctx.now()),
    };
    Some((candidate, guest))
}

/// Reads the memory of the host. None: it is not known.
async fn host_memory(ctx: &Context) -> Result<Option<HostMemory>, Error> {
    let seen = ctx.system.host_use().await?;
    let total = seen.memory_bytes.saturating_sub(seen.huge_page_bytes);
    let reserved = ctx.reserved_memory(seen.memory_bytes);
    let memory = HostMemory { total, available: seen.memory_available_bytes, reserved };
    Ok((total > 0).then_some(memory))
}
