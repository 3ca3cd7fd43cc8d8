//! The Disk controller: before its first VM a disk has no host; the controller only writes its readiness, or binds
//! it to restore it from a host's trash or from a claim.

mod observe;
mod plan;
mod pools;
mod status;
#[cfg(test)]
mod tests;

use berth_api::Disk;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::{Key, ObjectKind},
    kinds::{fenced, rebind},
    plan::{Dependency, Outcome},
};

use observe::{observe, undecided_user};
use plan::plan;
use status::status;

pub(crate) use observe::{image_host, unconfirmed};
pub(crate) use plan::{Obstacle, bind_disk};
pub(crate) use pools::{by_pool, choices, choose, choose_one, in_default_pool};

/// Returns why an unbound disk cannot be used yet.
pub(crate) fn obstacle(cache: &Cache, disk: &Disk) -> Option<Obstacle> {
    plan::obstacle(disk, &observe(cache, disk))
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(disk) = cache.tables.disks.get(key).cloned() else { return Outcome::Settled };
    if let Some(vm) = undecided_user(cache, &disk) {
        return Outcome::Blocked(vec![Dependency::Object(vm)]);
    }
    if let Some(status) = rebind::between_hosts(cache, &disk) {
        batch.status(disk.as_ref(), status);
        return Outcome::Settled;
    }
    if let Some(host) = rebind::deletes_left(cache, &disk) {
        let status = disk.status.clone().unwrap_or_default();
        let volume = status.volume_id.unwrap_or_default();
        batch.steps(cache, config.clock.now(), &bind_disk(key, &host, None, &volume, status.used_by));
        return Outcome::Settled;
    }
    let without = rebind::without_mark(cache, &disk).or_else(|| rebind::without_lost_data(cache, &disk));
    if let Some(status) = without {
        batch.status(disk.as_ref(), status);
        return Outcome::Settled;
    }
    rebind::after_marking(cache, &disk, batch);
    rebind::after_taking(cache, &disk, batch);
    let mut observed = observe(cache, &disk);
    if observed.source.is_some() {
        observed.fresh_volume_id = format!("v-{}", config.identities.hex(16));
    }
    // A disk without a file yet is not lost with its host.
    if !observed.abandoned
        && let Some(outcome) = fenced::disk(cache, config, &disk, batch)
    {
        return outcome;
    }
    let plan = plan(&disk, &observed);
    if let Some(source) = observed.source.as_ref().filter(|source| source.key.kind == ObjectKind::Image)
        && !plan.steps.is_empty()
    {
        batch.hold(cache, [source.key.clone()]);
    }
    batch.steps(cache, config.clock.now(), &plan.steps);
    if plan.decision.is_some() {
        batch.status(disk.as_ref(), status(&disk, &plan.decision, config.clock.now()));
    }
    plan.outcome
}
