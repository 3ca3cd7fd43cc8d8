//! The steps by which a running guest is sent to another host.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_api::VM;
use berth_api::live_move::{MovedFile, MovedMachine};
use berth_host::InstanceFacts;
use berth_qemu::machine::MachineSpec;

use crate::context::Context;
use crate::error::Error;
use crate::journal::{Departure, DeparturePhase, Journal};
use crate::key::{Key, ObjectName};
use crate::live_moves::{NewDeparture, go_on};
use crate::machine::{Machine, MachineError};
use crate::saved_machine::size_at_most;
use crate::walks;

/// How often the memory of a guest is sent at most: one that writes faster than it is sent stays here.
const REPETITIONS: u64 = 16;
/// How long a guest may take to go on at the start of the agent.
const GO_ON_LIMIT: Duration = Duration::from_secs(10);

/// A guest that is about to be sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leaving {
    pub(crate) departure: Departure,
    /// The machine as it was launched, with the disks that it has now.
    pub(crate) machine: MachineSpec,
    pub(crate) cpus: i64,
}

/// Begins to send the guest.
pub(super) async fn depart(ctx: &Context, vm: &VM, machine: Machine, leaving: &Leaving) -> Result<(), Error> {
    let instance = leaving.machine.instance.as_str();
    let journal = ctx.system.read_journal(instance).await?.ok_or(MachineError::Gone)?;
    let files = ctx.system.bootstrap_files(instance).await?;
    let bootstrap = files
        .into_iter()
        .map(|file| MovedFile { name: file.name, base64: STANDARD.encode(&file.bytes) })
        .collect();
    let spec = serde_json::to_value(&leaving.machine).expect("it is plain data with text keys");
    let moved = MovedMachine { journal, machine: spec, cpus: leaving.cpus, bootstrap };
    let new = NewDeparture {
        departure: leaving.departure.clone(),
        key: Key::of(vm),
        instance: instance.to_owned(),
        machine: Some(Box::new(moved)),
        at_most: size_at_most(&leaving.machine).saturating_mul(REPETITIONS),
    };
    ctx.departures.start(new, Some(machine));
    Ok(())
}

/// Lets a guest go on that an earlier agent began to send, and removes the record: the other host was not asked to start it.
pub(super) async fn abandon(ctx: &Context, instance: &str, machine: &Machine) -> Result<(), Error> {
    let journal = ctx.system.read_journal(instance).await?.ok_or(MachineError::Gone)?;
    let departure = Journal::parse(journal)?.departure;
    // In any other phase it may run there.
    if departure.is_none_or(|departure| departure.phase != DeparturePhase::Sending) {
        return Ok(());
    }
    go_on(ctx.system.as_ref(), instance, machine).await;
    let journal = ctx.system.read_journal(instance).await?.ok_or(MachineError::Gone)?;
    let updated = Journal::parse(journal)?.with_departure(None);
    Ok(ctx.system.write_journal(instance, &updated.to_value()).await?)
}

/// Lets the guests go on that an earlier agent began to send, at the start of the agent: a guest may be paused for the last part of its
/// memory. Needs no control plane.
pub(crate) async fn abandon_left(ctx: &Context) {
    let instances = match ctx.system.instances().await {
        Ok(instances) => instances,
        Err(error) => {
            return tracing::warn!(%error, "it is not known whether guests were being sent to other hosts");
        }
    };
    // After a failure the plan of its VM does it later.
    walks::go_on(GO_ON_LIMIT, instances, |facts| abandon_of(ctx, facts)).await;
}

async fn abandon_of(ctx: &Context, facts: InstanceFacts) -> Result<(), Error> {
    let InstanceFacts { instance, journal, process } = facts;
    let (Some(Ok(journal)), Some(process)) = (journal.map(Journal::parse), process) else { return Ok(()) };
    if journal.departure.as_ref().is_none_or(|departure| departure.phase != DeparturePhase::Sending) {
        return Ok(());
    }
    let key = Key::new::<VM>(ObjectName::new(&journal.namespace, &journal.name));
    let machine = ctx.machines.connect(&instance, Some(&journal.uid), Some(key), &process).await?;
    abandon(ctx, &instance, &machine).await
}

/// Has the other host asked whether it runs the guest.
pub(super) fn settle(ctx: &Context, vm: &VM, instance: &str, departure: &Departure) {
    let new = NewDeparture {
        departure: departure.clone(),
        key: Key::of(vm),
        instance: instance.to_owned(),
        machine: None,
        at_most: 0,
    };
    ctx.departures.start(new, ctx.machines.get(instance));
}
