//! Host: its agent speaks for it; the controllers only say when the agent has fallen silent.

use berth_api::{ConditionType, Host, HostStatus, Reason, condition};
use k8s_openapi::jiff::Timestamp;

use super::{
    Key, World,
    apply::{WriteError, Writer},
    fenced,
    plan::Outcome,
};

pub(super) async fn reconcile(
    world: &mut World,
    writer: &Writer,
    key: &Key,
    touched: &mut Vec<Key>,
) -> Result<Outcome, WriteError> {
    let Some(host) = world.hosts.get(key).cloned() else { return Ok(Outcome::Settled) };
    if host.spec.fenced {
        let mut status = fenced_status(&host, writer.now());
        status.used_by = world.listed_users(key, &status.used_by);
        writer.status(world, host.as_ref(), status, touched).await?;
        fenced::host_itself(world, writer, key, touched).await?;
        return Ok(Outcome::Settled);
    }
    let mut alive = world.is_alive(&key.name);
    if !alive && !is_called_unknown(&host) {
        alive = !writer.confirms_silence(world, &key.name, touched).await?;
    }
    let mut status = status(&host, alive, writer.now());
    if !alive {
        // Nobody else says so while its agent is silent.
        status.used_by = world.listed_users(key, &status.used_by);
    }
    writer.status(world, host.as_ref(), status, touched).await?;
    Ok(Outcome::Settled)
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
