//! The Host controller: the agent writes the Host's status; the controllers only report when the agent has fallen
//! silent.

use berth_api::{ConditionType, ConditionUpdate, Host, HostStatus, Reason, USED_FINALIZER, condition};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    batch::{Write, WriteBatch},
    cache::users::Protection,
    cache::{Cache, users},
    config::Config,
    key::{Key, ObjectKind},
    kinds::fenced,
    plan::Outcome,
};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(host) = cache.tables.hosts.get(key).cloned() else { return Outcome::Settled };
    if host.spec.fenced {
        let mut status = fenced_status(&host, config.clock.now());
        status.used_by = cache.listed_users(key, &status.used_by);
        batch.status(host.as_ref(), status);
        fenced::host_itself(cache, &host, batch);
        return Outcome::Settled;
    }
    if cache.is_recovery_over(&host) {
        batch.write(Write::EndRecovery(host.clone()));
        return Outcome::Settled;
    }
    let alive = cache.is_alive(&key.name);
    if !alive && !is_called_unknown(&host) && !cache.is_silence_confirmed(&key.name, Instant::now()) {
        batch.write(Write::ReadLease(key.name.to_string()));
        batch.enqueue(key.clone());
        return Outcome::Settled;
    }
    let listed = host.status.as_ref().map(|status| status.used_by.as_slice()).unwrap_or_default();
    let users = cache.listed_users(key, listed);
    match users::protection(&host.metadata, &users) {
        // A Host gets its finalizer from the start: its status is written too often for a write before its first VM
        // is bound.
        Protection::None | Protection::Hold => {
            if host.metadata.deletion_timestamp.is_none() {
                batch.finalizer_of(host.clone().into(), USED_FINALIZER, true);
            }
        }
        Protection::Release => {
            batch.finalizer_of(host.clone().into(), USED_FINALIZER, false);
            return Outcome::Settled;
        }
        // The host's agent reports it. Backups whose data is in their repositories leave it.
        Protection::Wait(_) => {
            let all = cache.users_of(key).into_iter();
            all.filter(|user| user.kind == ObjectKind::Backup).for_each(|backup| batch.enqueue(backup));
        }
    }
    if !alive {
        // The agent of a silent host does not report its users.
        let status = HostStatus { used_by: users, ..silent_status(&host, config.clock.now()) };
        batch.status(host.as_ref(), status);
    } else if host.status.is_none() {
        batch.status(host.as_ref(), HostStatus::default());
    }
    Outcome::Settled
}

fn fenced_status(host: &Host, now: Timestamp) -> HostStatus {
    let mut status = host.status.clone().unwrap_or_default();
    let generation = host.metadata.generation.unwrap_or_default();
    let text = "gone for good: it goes with the last object that is bound to it";
    let (ready, reason) = (ConditionType::Ready, Reason::HostFenced);
    condition::set(
        &mut status.conditions,
        ConditionUpdate::new(ready, "False", reason, text),
        generation,
        now,
    );
    status.observed_generation = generation;
    status
}

fn is_called_unknown(host: &Host) -> bool {
    let conditions = host.status.as_ref().map(|s| &s.conditions);
    conditions.and_then(|c| condition::find(c, "Ready")).is_some_and(|ready| ready.status == "Unknown")
}

fn silent_status(host: &Host, now: Timestamp) -> HostStatus {
    let mut status = host.status.clone().unwrap_or_default();
    // A host that has never reported is new, not silent: its first report follows its first lease.
    if status.observed_generation < 0 {
        return status;
    }
    let generation = host.metadata.generation.unwrap_or_default();
    let text = "its agent has not renewed its lease: what runs there is not known";
    condition::set(
        &mut status.conditions,
        ConditionUpdate::new(ConditionType::Ready, "Unknown", Reason::HostSilent, text),
        generation,
        now,
    );
    status
}
