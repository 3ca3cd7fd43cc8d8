//! Restarts of guests by an agent that does not know the objects of the control plane yet.
//!
//! An agent that loses the control plane goes on with the objects that it knows. One that is started without it knows none, and the journals
//! say how guests are restarted (`plan/offline.rs`). It does only what the agent before it would have done:
//!
//! - That agent held the Lease of this host, on this state directory, in this boot of this machine, and has ended
//!   (`AgentConfig::is_successor_of`). An agent on a copy of the state directory, or after a reboot, restarts nothing: while a host is
//!   off it can be declared lost, and the addresses of its VMs be given to others.
//! - No control plane has answered since; or it has given this agent the Lease, and is away before its objects were read. After any other
//!   answer, for example that another machine is this host, nothing is restarted, by later agents of this boot either: the records are
//!   removed ([`forget_restarts`]).
//! - The guest ran, and ended by itself. Nothing else is started, and nothing is stopped, plugged in or removed. Bridges, DHCP servers and
//!   filters are as the former agent left them.

use std::time::Duration;

use berth_api::VM;
use berth_host::{InstanceFacts, LaunchRequest, ProcessFacts, VolumeFacts};
use berth_qemu::machine::{DiskSpec, MachineSpec};
use futures::future::join_all;
use tokio::time::timeout;

use super::apply::{end_process, start_process};
use super::plan::limits_with;
use super::plan::offline::{Action, Seen, contested, decide, launched, permitted};
use super::vsock;
use crate::context::Context;
use crate::error::Error;
use crate::journal::{Journal, Run};
use crate::key::{Key, ObjectName};
use crate::machine::{Connection, Machine, MachineError, MachineState};
use crate::offline_restart::OfflineRestart;
use crate::plugging::disk_spec;
use crate::pools;

/// How often the instances are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The pause before an instance is looked at again after a step.
const SOON: Duration = Duration::from_secs(1);
/// How long QEMU's monitor may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the first answer of the control plane is awaited. It takes as long until a connection that is dead is noticed.
const CONTACT: Duration = Duration::from_secs(30);
/// How long objects take to be read at most, as a rule: guests that end meanwhile wait for them.
const READING: Duration = Duration::from_secs(10);

/// What ends the time in which guests are restarted by their journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// The control plane has answered.
    Answered,
    /// The objects are known.
    Synced,
}

impl Until {
    fn has_come(self, ctx: &Context) -> bool {
        match self {
            Self::Answered => ctx.lease.has_answered(),
            Self::Synced => ctx.has_synced(),
        }
    }

    async fn come(self, ctx: &Context) {
        match self {
            Self::Answered => ctx.lease.answered().await,
            Self::Synced => ctx.synced().await,
        }
    }
}

/// An instance with a readable journal.
struct Found {
    instance: String,
    journal: Journal,
    process: Option<ProcessFacts>,
}

impl Found {
    fn uid(&self) -> Option<&str> {
        Some(self.journal.uid.as_str()).filter(|uid| !uid.is_empty())
    }

    fn key(&self) -> Key {
        Key::new::<VM>(ObjectName::new(&self.journal.namespace, &self.journal.name))
    }
}

/// Restarts guests until the control plane has answered; does not if it answers the first request. An answer that does not give this agent
/// the Lease removes the records.
pub(crate) async fn restart_until_answered(ctx: &Context) {
    if !timeout(CONTACT, ctx.lease.first_contact()).await.unwrap_or(false) {
        restart(ctx, Until::Answered).await;
    }
    if !ctx.lease.is_held() {
        forget_restarts(ctx).await;
    }
}

/// Removes the records of all instances: what was decided before an answer of the control plane does not count after it. An agent that
/// becomes this host records them anew.
pub(crate) async fn forget_restarts(ctx: &Context) {
    let instances = ctx.system.instances().await.unwrap_or_else(|error| {
        tracing::warn!(error = %Error::from(error).chain(), "the instances cannot be looked at");
        Vec::new()
    });
    for InstanceFacts { instance, .. } in instances {
        if let Err(error) = forget_restart(ctx, &instance).await {
            tracing::warn!(instance, error = %error.chain(), "how its guest is restarted may stay recorded");
        }
    }
}

/// Removes the record of one instance.
pub(crate) async fn forget_restart(ctx: &Context, instance: &str) -> Result<(), Error> {
    let Some(value) = ctx.system.read_journal(instance).await? else { return Ok(()) };
    let journal = Journal::parse(value)?;
    if journal.offline.is_some() {
        let updated = Journal { offline: None, ..journal };
        ctx.system.write_journal(instance, &updated.to_value()).await?;
    }
    Ok(())
}

/// Restarts guests of a host whose Lease this agent holds until the objects are known.
pub(crate) async fn restart_until_synced(ctx: &Context) {
    if timeout(READING, ctx.synced()).await.is_err() {
        restart(ctx, Until::Synced).await;
    }
}

async fn restart(ctx: &Context, until: Until) {
    tracing::warn!("objects are not known yet: guests that end are restarted as their journals say");
    while !until.has_come(ctx) {
        let wait = pass(ctx, until).await.unwrap_or_else(|error| {
            tracing::warn!(error = %error.chain(), "the instances cannot be looked at yet");
            LOOK_EVERY
        });
        if timeout(wait, until.come(ctx)).await.is_ok() {
            return;
        }
    }
}

/// Looks at each instance once; returns when to look again.
async fn pass(ctx: &Context, until: Until) -> Result<Duration, Error> {
    if is_shut_down(ctx) {
        return Ok(LOOK_EVERY);
    }
    // Objects that come slowly may say that a guest is to be off.
    if until == Until::Synced && !ctx.lease.is_silent().await {
        return Ok(LOOK_EVERY);
    }
    let facts = ctx.system.instances().await?.into_iter();
    let parsed = facts.filter_map(|InstanceFacts { instance, journal, process }| {
        Some(Found { instance, journal: Journal::parse(journal?).ok()?, process })
    });
    let all: Vec<Found> = parsed.collect();
    let contested = contested(all.iter().map(|found| &found.journal));
    let is_successor_of = |holder: &str| ctx.config.is_successor_of(holder);
    let restarts = all.iter().filter_map(|found| {
        let restart = permitted(&found.journal, &contested, is_successor_of)?;
        Some(async move { (found, restart, timeout(ANSWER, machine(ctx, found)).await.ok().flatten()) })
    });
    let mut wait = LOOK_EVERY;
    // QEMUs that do not answer do not keep the guests of others off.
    for (found, restart, machine) in join_all(restarts).await {
        if until.has_come(ctx) || is_shut_down(ctx) {
            break;
        }
        match look_at(ctx, found, restart, machine).await {
            Ok(left) => wait = wait.min(left.unwrap_or(LOOK_EVERY)),
            Err(error) => {
                tracing::warn!(instance = found.instance, error = %error.chain(), "its guest cannot be restarted yet")
            }
        }
    }
    Ok(wait.max(SOON))
}

/// Whether the host is about to be shut down: guests are being asked to end, and none is restarted.
fn is_shut_down(ctx: &Context) -> bool {
    ctx.config.shutdown.current().is_some()
}

/// Takes the next step for an instance, whose machine was seen like this; returns when to look at it again.
async fn look_at(
    ctx: &Context,
    found: &Found,
    restart: &OfflineRestart,
    machine: Option<(Machine, MachineState)>,
) -> Result<Option<Duration>, Error> {
    let has_files = !ctx.system.bootstrap_data(&found.instance).await?.is_empty();
    let oom_killed = found.process.is_none() && ctx.system.oom_kills(&found.instance).await? > 0;
    let seen = Seen {
        journal: &found.journal,
        has_process: found.process.is_some(),
        machine: machine.as_ref().map(|(_, state)| state),
        has_files,
        oom_killed,
        now: ctx.now(),
    };
    match decide(restart, &seen) {
        Action::Wait(left) => return Ok(left),
        Action::Record(journal) => ctx.system.write_journal(&found.instance, &journal.to_value()).await?,
        Action::EndProcess => end_process(ctx, &found.instance).await?,
        Action::Launch => launch(ctx, found, restart).await?,
        Action::Start => {
            if let Some((machine, _)) = machine {
                start(&machine, restart).await?;
            }
        }
    }
    Ok(Some(SOON))
}

/// Returns the machine of the instance; none if it has no process, or QEMU's monitor does not answer.
async fn machine(ctx: &Context, found: &Found) -> Option<(Machine, MachineState)> {
    let process = found.process.as_ref()?;
    let machine = match ctx.machines.connection(&found.instance, found.uid(), &process.identity) {
        Connection::Open(machine) => machine,
        Connection::Failed(_) => return None,
        Connection::Due => {
            let connected =
                ctx.machines.connect(&found.instance, found.uid(), Some(found.key()), process).await;
            connected.ok()?
        }
    };
    let state = machine.state().await.ok()?;
    Some((machine, state))
}

async fn launch(ctx: &Context, found: &Found, restart: &OfflineRestart) -> Result<(), Error> {
    let Some(machine) = on_files(ctx, restart).await? else {
        tracing::info!(
            instance = found.instance,
            "its disks are not those of its last run: its guest stays off"
        );
        return Ok(());
    };
    let host = ctx.facts().await?;
    if let Some(refusal) = host.refusal(machine.architecture()) {
        tracing::info!(instance = found.instance, refusal, "its guest stays off");
        return Ok(());
    }
    let host = host.for_guests_of(machine.architecture());
    let machine = vsock::chosen_again(ctx, machine).await?;
    for disk in &machine.disks {
        ctx.machines.reserve(&found.instance, &found.journal.uid, &disk.id)?;
    }
    let most = machine.max_memory_bytes.unwrap_or(machine.memory_bytes);
    let journal = launched(&found.journal, machine.clone());
    let request = LaunchRequest {
        machine,
        seed: None,
        keys: None,
        scratch: journal.run.as_ref().and_then(|run| run.profile.scratch()),
        limits: limits_with(most, restart.cpu, &host),
        dedicated: journal.run.as_ref().and_then(Run::dedicated_request),
        from_saved_state: false,
    };
    tracing::info!(instance = found.instance, "its guest is restarted without the control plane");
    ctx.system.write_journal(&found.instance, &journal.to_value()).await?;
    start_process(ctx, found.uid(), found.key(), &request).await?;
    let machine = ctx.machines.get(&found.instance).ok_or(MachineError::Gone)?;
    start(&machine, restart).await
}

/// Lets the guest run, with the links down that are to be.
async fn start(machine: &Machine, restart: &OfflineRestart) -> Result<(), Error> {
    for nic in &restart.links_down {
        machine.set_link(nic, false).await?;
    }
    Ok(machine.start().await?)
}

/// Returns the machine with the present files of its disks. None: one is gone, was restored or given up since the record, or is in
/// the middle of a snapshot.
async fn on_files(ctx: &Context, restart: &OfflineRestart) -> Result<Option<MachineSpec>, Error> {
    let mut disks = Vec::new();
    for disk in &restart.machine.disks {
        let recorded = restart.volumes.iter().find(|volume| volume.id == disk.id);
        let Some(recorded) = recorded else { return Ok(None) };
        let mut volume = pools::present(ctx, &recorded.pool, &recorded.id).await?;
        // It may have been moved since that run.
        if volume.is_none()
            && let Some(pool) = ctx.system.pool_of_volume(&recorded.id).await?
        {
            volume = pools::present(ctx, &pool, &recorded.id).await?;
        }
        let is_as_recorded = |volume: &VolumeFacts| {
            let restored_at = volume.restores.last().map(|restored| restored.at);
            let is_settled = !volume.restoring && !volume.retained && volume.pending_snapshot.is_none();
            is_settled && restored_at == recorded.restored_at
        };
        let Some(volume) = volume.filter(is_as_recorded) else { return Ok(None) };
        let now = disk_spec(&volume, &disk.serial, disk.boot, disk.target);
        disks.push(DiskSpec { wwn: disk.wwn, read_only: disk.read_only, bus: disk.bus, ..now });
    }
    Ok(Some(MachineSpec { disks, ..restart.machine.clone() }))
}
