//! Host: its agent speaks for it; the controllers only say when the agent has fallen silent.

use berth_api::{ConditionType, Host, HostStatus, Reason, condition};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Config, Key, World,
    draft::{Draft, Write},
    fenced,
    plan::Outcome,
};

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(host) = world.hosts.get(key).cloned() else { return Outcome::Settled };
    if host.spec.fenced {
        let mut status = fenced_status(&host, config.clock.now());
        status.used_by = world.listed_users(key, &status.used_by);
        draft.status(host.as_ref(), status);
        fenced::host_itself(world, &host, draft);
        return Outcome::Settled;
    }
    let alive = world.is_alive(&key.name);
    if !alive && !is_called_unknown(&host) && !world.is_silence_confirmed(&key.name, Instant::now()) {
        draft.write(Write::ReadLease(key.name.clone()));
        draft.touch(key.clone());
        return Outcome::Settled;
    }
    let mut status = status(&host, alive, config.clock.now());
    if !alive {
        // Nobody else says so while its agent is silent.
        status.used_by = world.listed_users(key, &status.used_by);
    }
    draft.status(host.as_ref(), status);
    Outcome::Settled
}

fn fenced_status(host: &Host, now: Timestamp) -> HostStatus {
    let mut status = host.status.clone().unwrap_or_default();
    let generation = host.metadata.generation.unwrap_or_default();
    let text = "gone for good: it goes with the last object that is bound to it";
    let (ready, reason) = (ConditionType::Ready, Reason::HostFenced);
    condition::set(&mut status.conditions, ready, "False", reason, text, generation, now);
    status.observed_generation = generation;
    status
}

fn is_called_unknown(host: &Host) -> bool {
    let conditions = host.status.as_ref().map(|s| &s.conditions);
    conditions.and_then(|c| condition::find(c, "Ready")).is_some_and(|ready| ready.status == "Unknown")
}

fn status(host: &Host, alive: bool, now: Timestamp) -> HostStatus {
    let mut status = host.status.clone().unwrap_or_default();
    // A host that has never reported is new, not silent: its first report follows its first lease.
    if alive || status.observed_generation < 0 {
        return status;
    }
    let generation = host.metadata.generation.unwrap_or_default();
    let text = "its agent has not renewed its lease: what runs there is not known";
    condition::set(
        &mut status.conditions,
        ConditionType::Ready,
        "Unknown",
        Reason::HostSilent,
        text,
        generation,
        now,
    );
    status
}
