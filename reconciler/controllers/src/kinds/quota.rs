//! The Quota controller: counts what the objects of a namespace use, and decides which of them are beyond a limit.
//!
//! Admission compares a request with the count in the status, which comes later: many objects that are created at once can pass it
//! together. So the other controllers ask here, before they give a VM, a disk or a snapshot its host or a PublicIP its address. Those
//! that have one stay, whatever the limit; the others get theirs in the order of their creation, as far as they fit.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use berth_api::{Quantity, Quota, QuotaAmounts, QuotaLimits, QuotaStatus, QuotaUsage, Readiness, Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{
    batch::WriteBatch,
    cache::{
        Cache,
        quotas::{Usage, count::Counted},
    },
    config::Config,
    key::Key,
    plan::{Dependency, Outcome},
};

pub(crate) use crate::cache::quotas::count::{of_disks, of_snapshots};

/// Why an object has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) text: String,
    /// The Quota.
    pub(crate) dependency: Dependency,
}

/// Reports the count. The objects that wait for the Quota are reconciled after that.
pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(quota) = cache.tables.quotas.get(key).cloned() else { return Outcome::Settled };
    let used = cache.usages.of(key.namespace()).map(Usage::total).unwrap_or_default();
    batch.status(quota.as_ref(), status(&quota, used, config.clock.now()));
    Outcome::Settled
}

/// Returns why an object that has no host or address yet gets none.
pub(crate) fn excess(cache: &Cache, key: &Key) -> Option<Excess> {
    let limited = Limited::of(cache, key.namespace())?;
    let own = limited.usage.get(key).filter(|counted| !counted.is_placed)?;
    let used = limited.used_before(key);
    limited.first_excess(|quota| {
        if quota.spec.hard.disk_size.is_some() && own.is_size_unknown {
            return Some(
                "diskSize: the size of the disk is not known yet: set size, or wait for its source".into(),
            );
        }
        quota.spec.hard.exceeded(used, own.amounts)
    })
}

/// Returns why an Image that has a host does not get its content anew: the files of the others take the space of the limit. That of its former
/// content is replaced.
pub(crate) fn excess_of_image_anew(cache: &Cache, key: &Key) -> Option<Excess> {
    let limited = Limited::of(cache, key.namespace())?;
    let (placed, own) = (limited.usage.placed(), limited.usage.get(key)?.amounts);
    let image_storage = placed.image_storage.saturating_sub(own.image_storage);
    let used = QuotaAmounts { image_storage, ..placed };
    limited.first_excess(|quota| quota.spec.hard.image_storage_used_up(used))
}

/// Returns why objects with these amounts are not created. Those that wait count, as for admission: it would refuse the creation.
pub(crate) fn excess_of_new(cache: &Cache, namespace: &str, more: QuotaAmounts) -> Option<Excess> {
    if more == QuotaAmounts::default() {
        return None;
    }
    let limited = Limited::of(cache, namespace)?;
    limited.first_excess(|quota| quota.spec.hard.exceeded(limited.usage.total(), more))
}

/// The objects of a namespace, and the Quotas that limit them.
struct Limited<'a> {
    quotas: Vec<&'a Arc<Quota>>,
    usage: &'a Usage,
    /// The smallest of each limit.
    most: QuotaAmounts,
}

impl<'a> Limited<'a> {
    fn of(cache: &'a Cache, namespace: &str) -> Option<Self> {
        let usage = cache.usages.of(namespace)?;
        let quotas: Vec<_> = usage.quotas().iter().filter_map(|key| cache.tables.quotas.get(key)).collect();
        let most = smallest_limits(&quotas);
        Some(Self { quotas, usage, most })
    }

    fn first_excess(&self, why: impl Fn(&Quota) -> Option<String>) -> Option<Excess> {
        self.quotas.iter().find_map(|&quota| {
            let key = Key::of(quota.as_ref());
            let text = format!("Quota {}: {}", key.name, why(quota)?);
            Some(Excess { text, dependency: Dependency::Object(key) })
        })
    }

    /// Returns the amounts of the objects that are placed, and of those that fit beside them and come before `own`.
    fn used_before(&self, own: &Key) -> QuotaAmounts {
        let before = self.usage.unplaced().take_while(|(key, _)| *key != own);
        before.fold(self.usage.placed(), |used, (_, counted)| {
            // A large one that does not fit leaves its place to the smaller ones after it.
            if self.fits(used, counted) { used.plus(counted.amounts) } else { used }
        })
    }

    /// Whether no Quota is exceeded, as [`QuotaLimits::exceeded`] decides it.
    fn fits(&self, used: QuotaAmounts, counted: &Counted) -> bool {
        let (sum, more, most) = (used.plus(counted.amounts), counted.amounts, self.most);
        let is_size_limited = most.disk_size < u64::MAX;
        !(counted.is_size_unknown && is_size_limited)
            && (more.disk_size == 0 || sum.disk_size <= most.disk_size)
            && ((more.disks == 0 && more.snapshots == 0) || used.used_storage < most.used_storage)
            && (more.image_storage == 0 || sum.image_storage <= most.image_storage)
            && (more.images == 0 || used.image_storage < most.image_storage)
            && (more.backups == 0 || used.backup_storage < most.backup_storage)
            && (more.memory == 0 || sum.memory <= most.memory)
            && (more.cpus == 0 || sum.cpus <= most.cpus)
            && (more.vms == 0 || sum.vms <= most.vms)
            && (more.disks == 0 || sum.disks <= most.disks)
            && (more.snapshots == 0 || sum.snapshots <= most.snapshots)
            && (more.images == 0 || sum.images <= most.images)
            && (more.backups == 0 || sum.backups <= most.backups)
            && (more.public_ips == 0 || sum.public_ips <= most.public_ips)
    }
}

/// Returns the smallest of each limit; the greatest number for none.
fn smallest_limits(quotas: &[&Arc<Quota>]) -> QuotaAmounts {
    let bytes = |of: fn(&QuotaLimits) -> Option<&Quantity>| {
        let limits = quotas.iter().filter_map(|quota| of(&quota.spec.hard)?.bytes().ok());
        limits.min().unwrap_or(u64::MAX)
    };
    let count = |of: fn(&QuotaLimits) -> Option<i64>| {
        quotas.iter().filter_map(|quota| of(&quota.spec.hard)).min().unwrap_or(i64::MAX)
    };
    QuotaAmounts {
        disk_size: bytes(|hard| hard.disk_size.as_ref()),
        used_storage: bytes(|hard| hard.used_storage.as_ref()),
        image_storage: bytes(|hard| hard.image_storage.as_ref()),
        backup_storage: bytes(|hard| hard.backup_storage.as_ref()),
        memory: bytes(|hard| hard.memory.as_ref()),
        cpus: count(|hard| hard.cpus),
        vms: count(|hard| hard.vms),
        disks: count(|hard| hard.disks),
        snapshots: count(|hard| hard.snapshots),
        images: count(|hard| hard.images),
        backups: count(|hard| hard.backups),
        public_ips: count(|hard| hard.public_ips),
    }
}

fn status(quota: &Quota, used: QuotaAmounts, now: Timestamp) -> QuotaStatus {
    let mut status = quota.status.clone().unwrap_or_default();
    let generation = quota.metadata.generation.unwrap_or_default();
    status.hard = Some(quota.spec.hard.clone());
    let hard = &quota.spec.hard;
    let bytes = |limit: &Option<Quantity>, used: u64| limit.as_ref().map(|_| Quantity::from_bytes(used).0);
    status.used = Some(QuotaUsage {
        used_storage: bytes(&hard.used_storage, used.used_storage),
        image_storage: bytes(&hard.image_storage, used.image_storage),
        backup_storage: bytes(&hard.backup_storage, used.backup_storage),
        ..used.usage()
    });
    let used_up = [
        (hard.storage_used_up(used), "no disk and no snapshot is created"),
        (hard.image_storage_used_up(used), "no image is created"),
        (hard.backup_storage_used_up(used), "no backup is created"),
    ];
    let used_up = used_up.into_iter().filter_map(|(text, effect)| Some(format!("{}: {effect}", text?)));
    let used_up = used_up.collect::<Vec<_>>().join("; ");
    Readiness::Ready(Reason::Available, used_up).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
