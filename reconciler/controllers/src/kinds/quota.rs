//! The Quota controller: counts what the objects of a namespace use, and decides which of them are beyond a limit.
//!
//! Admission compares a request with the count in the status, which comes later: many objects that are created at once can pass it
//! together. So the other controllers ask here, before they give a VM, a disk or a snapshot its host or a PublicIP its address. Those
//! that have one stay, whatever the limit; the others get theirs in the order of their creation, as far as they fit.

mod count;
#[cfg(test)]
mod tests;

use berth_api::{ConditionType, Conditions, Quota, QuotaAmounts, QuotaStatus, Readiness, Reason, condition};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::Key,
    plan::{Dependency, Outcome},
};

use count::{Counted, counted};

pub(crate) use count::{of_disks, of_snapshots};

/// Why an object has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) text: String,
    /// The Quota.
    pub(crate) dependency: Dependency,
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    // Also after the Quota is gone.
    waiting(cache, key.namespace()).into_iter().for_each(|object| batch.enqueue(object));
    let Some(quota) = cache.tables.quotas.get(key).cloned() else { return Outcome::Settled };
    let used = sum(&counted(cache, key.namespace()));
    batch.status(quota.as_ref(), status(&quota, used, config.clock.now()));
    Outcome::Settled
}

/// Returns why an object that has no host or address yet gets none.
pub(crate) fn excess(cache: &Cache, key: &Key) -> Option<Excess> {
    first_excess(cache, key.namespace(), |quota, all| {
        let own = all.iter().find(|counted| counted.key == *key && !counted.is_placed)?;
        if quota.spec.hard.disk_size.is_some() && own.is_size_unknown {
            return Some(
                "diskSize: the size of the disk is not known yet: set size, or wait for its source".into(),
            );
        }
        beyond(quota, all, own)
    })
}

/// Returns why objects with these amounts are not created.
pub(crate) fn excess_of_new(cache: &Cache, namespace: &str, more: QuotaAmounts) -> Option<Excess> {
    first_excess(cache, namespace, |quota, all| quota.spec.hard.exceeded(sum(all), more))
}

fn first_excess(
    cache: &Cache,
    namespace: &str,
    why: impl Fn(&Quota, &[Counted]) -> Option<String>,
) -> Option<Excess> {
    let mut quotas = cache.tables.quotas.all().filter(|quota| is_in(&quota.metadata, namespace)).peekable();
    quotas.peek()?;
    let all = counted(cache, namespace);
    quotas.find_map(|quota| {
        let key = Key::of(quota.as_ref());
        let text = format!("Quota {}: {}", key.name, why(quota, &all)?);
        Some(Excess { text, dependency: Dependency::Object(key) })
    })
}

fn is_in(object: &ObjectMeta, namespace: &str) -> bool {
    object.namespace.as_deref() == Some(namespace)
}

fn sum(all: &[Counted]) -> QuotaAmounts {
    all.iter().fold(QuotaAmounts::default(), |sum, counted| sum.plus(counted.amounts))
}

/// Returns why an object that is not placed does not fit beside those that are, and those that come before it.
fn beyond(quota: &Quota, all: &[Counted], own: &Counted) -> Option<String> {
    let limits = &quota.spec.hard;
    let placed = all.iter().filter(|counted| counted.is_placed);
    let mut used = placed.fold(QuotaAmounts::default(), |sum, counted| sum.plus(counted.amounts));
    let mut before: Vec<&Counted> =
        all.iter().filter(|counted| !counted.is_placed && counted.position() < own.position()).collect();
    before.sort_by(|a, b| a.position().cmp(&b.position()));
    for counted in before {
        // A large one that does not fit leaves its place to the smaller ones after it.
        if limits.exceeded(used, counted.amounts).is_none() {
            used = used.plus(counted.amounts);
        }
    }
    limits.exceeded(used, own.amounts)
}

fn status(quota: &Quota, used: QuotaAmounts, now: Timestamp) -> QuotaStatus {
    let mut status = quota.status.clone().unwrap_or_default();
    let generation = quota.metadata.generation.unwrap_or_default();
    status.hard = Some(quota.spec.hard.clone());
    status.used = Some(used.usage());
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}

/// Returns the objects of a namespace that a Quota keeps waiting.
fn waiting(cache: &Cache, namespace: &str) -> Vec<Key> {
    let is_held = |conditions: Option<&Conditions>| {
        let ready = conditions.and_then(|all| condition::find(all, ConditionType::Ready.as_str()));
        ready.is_some_and(|ready| ready.reason == Reason::QuotaExceeded.as_str())
    };
    let mut keys = Vec::new();
    macro_rules! held {
        ($($table:ident)+) => {
            $(for object in cache.tables.$table.all().filter(|object| is_in(&object.metadata, namespace)) {
                if is_held(object.status.as_ref().map(|status| &status.conditions)) {
                    keys.push(Key::of(object.as_ref()));
                }
            })+
        };
    }
    held!(vms disks disk_snapshots vm_snapshots public_ips);
    keys
}
