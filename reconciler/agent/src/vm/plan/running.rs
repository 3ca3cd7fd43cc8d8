//! A VM that runs as declared: its disks are brought in line while it does.

use std::time::Duration;

use berth_api::{Readiness, Reason, VM};
use berth_qemu::power::RunState;
use jiff::SignedDuration;

use super::super::observe::User;
use super::super::{disk_spec, unwanted};
use super::start::since;
use super::{Observed, Step};
use crate::converge::Plan;
use crate::machine::Look;

const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How often a guest that is paused for an error of the host is made to go on.
const RESUME_EVERY: Duration = Duration::from_secs(10);
/// How often a guest that nobody has told of is looked for.
const SEEK_EVERY: Duration = Duration::from_secs(30);
/// How often a guest that keeps a disk is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

pub(super) fn plan(vm: &VM, observed: &Observed) -> Plan<Step> {
    let Some(look) = &observed.look else {
        let text = format!(
            "QEMU runs and its monitor does not answer: {}",
            observed.unreachable.as_deref().unwrap_or("")
        );
        return Plan::stands(Readiness::Reconciling(Reason::Retrying, text)).look_again(TRY_AGAIN);
    };
    match &look.state {
        RunState::Running => disks(vm, observed, look),
        RunState::Prelaunch => {
            Plan::steps(vec![Step::Start], Readiness::Reconciling(Reason::Starting, "being started".into()))
        }
        RunState::Paused => resume(observed, look, Reason::Starting, "the machine was paused"),
        RunState::IoError => {
            resume(observed, look, Reason::NoSpace, "the machine is paused: the host cannot write its disk")
        }
        other => {
            let text = format!("QEMU is in state {other:?}");
            Plan::stands(Readiness::Reconciling(Reason::Retrying, text)).look_again(TRY_AGAIN)
        }
    }
}

/// At once the first time, then now and then: what stopped it may stop it again.
fn resume(observed: &Observed, look: &Look, reason: Reason, text: &str) -> Plan<Step> {
    let every = SignedDuration::try_from(RESUME_EVERY).unwrap_or(SignedDuration::ZERO);
    let due = look.resumed_at.is_none_or(|at| since(at, observed.now) >= every);
    let readiness = Readiness::Reconciling(reason, text.to_owned());
    let plan = if due { Plan::steps(vec![Step::Start], readiness) } else { Plan::stands(readiness) };
    plan.look_again(RESUME_EVERY)
}

fn disks(vm: &VM, observed: &Observed, look: &Look) -> Plan<Step> {
    let mut steps = Vec::new();
    let mut waiting = None;
    for disk in observed.disks.iter().filter(|d| !d.boot) {
        let plugged = |id: &String| look.disks.iter().any(|d| d.id == *id);
        if disk.volume_id.as_ref().is_some_and(plugged) {
            continue;
        }
        match (&disk.volume, &disk.user) {
            (Some(volume), User::ThisVm) => {
                let spec = disk_spec(volume, &disk.serial, false, None);
                steps.push(Step::Plug { pool: volume.pool.clone(), disk: Box::new(spec) });
            }
            (_, User::Other(other)) => {
                let text = format!("Disk {} is used by VM {other}", disk.name);
                waiting.get_or_insert(Readiness::Stalled(Reason::DiskInUse, text));
            }
            _ => {
                let why = disk.problem.as_deref().unwrap_or("is not ready yet");
                let text = format!("Disk {}: {why}", disk.name);
                waiting.get_or_insert(Readiness::Reconciling(Reason::WaitingForDisk, text));
            }
        }
    }
    let mut busy = false;
    for disk in unwanted(look, observed) {
        let mounted = observed.mounts.get(&disk.id).map(Vec::as_slice).unwrap_or_default();
        if mounted.is_empty() {
            steps.push(Step::Unplug { volume: disk.id.clone() });
        } else {
            busy = true;
            let text = format!(
                "the guest has disk {} mounted at {}: unmount it there",
                disk.serial,
                mounted.join(", ")
            );
            waiting.get_or_insert(Readiness::Stalled(Reason::GuestBusy, text));
        }
    }
    if !steps.is_empty() {
        let text = "disks are being plugged in or out".to_owned();
        return Plan::steps(steps, Readiness::Reconciling(Reason::Attaching, text)).look_again(ASK_AGAIN);
    }
    let readiness = waiting.or_else(|| addresses(observed));
    let readiness = readiness.unwrap_or_else(|| Readiness::Ready(Reason::Running, String::new()));
    let plan = seek_guest(vm, observed, Plan::stands(readiness));
    if busy { plan.look_again(ASK_AGAIN) } else { plan }
}

fn addresses(observed: &Observed) -> Option<Readiness> {
    let missing = observed.public.iter().find(|public| !public.forwarded)?;
    let text = match &missing.refused {
        Some(why) => format!("PublicIP {} cannot lead here: {why}", missing.name),
        None => format!("PublicIP {} does not lead here yet", missing.name),
    };
    Some(Readiness::Reconciling(Reason::WaitingForPublicIP, text))
}

/// Whoever has an agent is told of by its driver, and who takes a lease soon after its start by those who look for it
/// ([`crate::seekers`]).
fn seek_guest(vm: &VM, observed: &Observed, plan: Plan<Step>) -> Plan<Step> {
    let seen = observed.guest.agent || observed.lease_taken;
    if seen || vm.spec.network_interfaces.is_empty() { plan } else { plan.look_again(SEEK_EVERY) }
}
