//! The StoragePool controller: a local pool is a folder that each host creates itself; it is ready once reconciled. Its status adds up
//! what the hosts report about it.

use berth_api::storage_pool::{self, rounded_down, rounded_up, rounding_unit};
use berth_api::{
    Host, HostPool, Quantity, Readiness, Reason, SharedFolder, StoragePool, StoragePoolStatus,
    StoragePoolType, former_uid,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{batch::WriteBatch, cache::Cache, config::Config, key::Key, plan::Outcome};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(pool) = cache.tables.storage_pools.get(key).cloned() else { return Outcome::Settled };
    let hosts: Vec<&Host> = cache.tables.hosts.all().map(|host| &**host).collect();
    let space = match pool.spec.pool_type {
        StoragePoolType::Local => Space::of(&key.name, hosts.iter().copied()),
        StoragePoolType::Shared | StoragePoolType::Rbd => Space::of_shared(&key.name, hosts.iter().copied()),
    };
    let shared = shared_folder(&pool, &hosts);
    let mut status = status(&pool, space, config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    status.shared = shared;
    batch.used(pool.as_ref(), status, &users, config.clock.now());
    Outcome::Settled
}

/// The space of a pool on all hosts that report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Space {
    hosts: i64,
    away: i64,
    total: u64,
    free: u64,
    promised: u64,
}

impl Space {
    fn of<'a>(pool: &str, hosts: impl Iterator<Item = &'a Host>) -> Self {
        let reports = hosts.filter_map(|host| host.status.as_ref()?.pools.iter().find(|of| of.name == pool));
        reports.fold(Self::default(), Self::with)
    }

    /// The space of a pool whose folder all hosts share: it counts once. Hosts that name no folder for it do not count.
    fn of_shared<'a>(pool: &str, hosts: impl Iterator<Item = &'a Host>) -> Self {
        let mut space = Self::default();
        for report in hosts.filter_map(|host| shared_report(host, pool)) {
            let before = space;
            space = space.with(report);
            if report.is_there() && before.hosts > 0 {
                space.total = before.total.max(report.total_bytes());
                space.free = before.free.min(report.free_bytes());
            }
        }
        space
    }

    fn with(self, report: &HostPool) -> Self {
        let promised = self.promised.saturating_add(report.promised_bytes());
        if !report.is_there() {
            return Self { away: self.away + 1, promised, ..self };
        }
        Self {
            hosts: self.hosts + 1,
            total: self.total.saturating_add(report.total_bytes()),
            free: self.free.saturating_add(report.free_bytes()),
            promised,
            ..self
        }
    }
}

/// Returns the report of a host that has a folder for a shared pool.
pub(crate) fn shared_report<'a>(host: &'a Host, pool: &str) -> Option<&'a HostPool> {
    let reports = &host.status.as_ref()?.pools;
    reports.iter().find(|of| of.name == pool && of.folder.is_some() && of.shared_id.is_some())
}

/// Decides which host marks the folder of a shared pool. It stays the one as long as its Host exists: another one could write a second
/// marker, into the folder below a file system that is not mounted there.
fn shared_folder(pool: &StoragePool, hosts: &[&Host]) -> Option<SharedFolder> {
    if !pool.spec.pool_type.is_shared() {
        return None;
    }
    let known = pool.status.as_ref().and_then(|status| status.shared.clone());
    let mut folder = known.unwrap_or_else(|| {
        let id = former_uid(pool).map(str::to_owned).or_else(|| pool.uid()).unwrap_or_default();
        SharedFolder { id, ..SharedFolder::default() }
    });
    let name = pool.name_any();
    let reports = hosts.iter().filter_map(|host| Some((host.name_any(), shared_report(host, &name)?)));
    // A report may still be of a former pool of this name.
    let reports: Vec<_> =
        reports.filter(|(_, report)| report.shared_id.as_deref() == Some(folder.id.as_str())).collect();
    folder.initialized |= reports.iter().any(|(_, report)| report.is_there());
    if !folder.initialized {
        let stays =
            folder.first_host.take().filter(|first| hosts.iter().any(|host| host.name_any() == *first));
        folder.first_host = stays.or_else(|| reports.into_iter().map(|(host, _)| host).min());
    }
    Some(folder)
}

fn status(pool: &StoragePool, space: Space, now: Timestamp) -> StoragePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or_default();
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    let unit = rounding_unit(space.total);
    let amount = |bytes: u64| Some(Quantity::from_bytes(bytes).0).filter(|_| space.hosts > 0);
    status.hosts = Some(space.hosts);
    status.hosts_away = Some(space.away);
    // Of another size, all of it is reported anew.
    let total = amount(space.total);
    let is_same = status.total == total;
    let before = |text: &Option<String>| text.as_deref().filter(|_| is_same).map(storage_pool::space);
    status.free = amount(rounded_down(space.free, unit, before(&status.free)));
    status.promised = amount(rounded_up(space.promised, unit, before(&status.promised)));
    status.total = total;
    status
}

#[cfg(test)]
mod tests {
    use berth_api::{HostSpec, HostStatus, StoragePoolSpec};

    use super::*;

    fn host(name: &str, pools: Vec<HostPool>) -> Host {
        let mut host = Host::new(name, HostSpec::default());
        host.status = Some(HostStatus { pools, ..HostStatus::default() });
        host
    }

    fn fast(free: &str, problem: Option<&str>) -> HostPool {
        let (total, free) = if problem.is_some() { ("0", "0") } else { ("1Ti", free) };
        HostPool {
            name: "fast".into(),
            total: total.into(),
            free: free.into(),
            promised: "100Gi".into(),
            problem: problem.map(Into::into),
            ..HostPool::default()
        }
    }

    #[test]
    fn the_space_of_a_pool_is_that_of_the_hosts_where_it_is_there() {
        let hosts = [
            host("a", vec![fast("700Gi", None)]),
            host("b", vec![fast("300Gi", None)]),
            host("c", vec![fast("0", Some("not mounted"))]),
            host("d", Vec::new()),
        ];
        let space = Space::of("fast", hosts.iter());
        let pool = StoragePool::new("fast", StoragePoolSpec::default());
        let status = status(&pool, space, Timestamp::UNIX_EPOCH);
        assert_eq!((status.hosts, status.hosts_away), (Some(2), Some(1)), "an older agent reports none");
        assert_eq!((status.total.as_deref(), status.free.as_deref()), (Some("2Ti"), Some("1000Gi")));
        assert_eq!(status.promised.as_deref(), Some("304Gi"), "in units of 8 GiB");
    }

    #[test]
    fn a_shared_pool_counts_once_and_one_host_marks_its_folder() {
        let shared = |free: &str, problem: Option<&str>| HostPool {
            folder: Some("/mnt/site".into()),
            shared_id: Some("u".into()),
            ..fast(free, problem)
        };
        let no_folder = HostPool { folder: None, ..shared("0", Some("no folder")) };
        let waits = || shared("0", Some("no marker"));
        let spec = StoragePoolSpec { pool_type: StoragePoolType::Shared, ..StoragePoolSpec::default() };
        let mut pool = StoragePool::new("fast", spec);
        pool.metadata.uid = Some("u".into());
        let decide = |pool: &mut StoragePool, hosts: &[Host]| {
            let folder = shared_folder(pool, &hosts.iter().collect::<Vec<_>>());
            pool.status = Some(StoragePoolStatus { shared: folder.clone(), ..StoragePoolStatus::default() });
            folder.map(|folder| (folder.first_host, folder.initialized))
        };
        let a = || host("a", vec![no_folder.clone()]);
        let of_another = HostPool { shared_id: Some("former".into()), ..shared("1Gi", None) };
        let hosts = [a(), host("b", vec![of_another]), host("d", vec![waits()])];
        assert_eq!(decide(&mut pool, &hosts), Some((Some("d".into()), false)));
        let hosts = [a(), host("b", vec![waits()]), host("d", vec![waits()])];
        assert_eq!(decide(&mut pool, &hosts), Some((Some("d".into()), false)), "it stays the one");
        let hosts = [a(), host("b", vec![shared("700Gi", None)]), host("d", vec![shared("690Gi", None)])];
        assert_eq!(decide(&mut pool, &hosts), Some((Some("d".into()), true)));
        let space = Space::of_shared("fast", hosts.iter());
        assert_eq!((space.hosts, space.away, space.total, space.free), (2, 0, 1 << 40, 690 << 30));
        assert_eq!(space.promised, 200 << 30, "each host reports the disks in its own folder");
    }

    #[test]
    fn a_report_that_changes_the_sums_a_little_writes_nothing() {
        let report = |free: &str, pool: &StoragePool| {
            let space = Space::of("fast", [host("a", vec![fast(free, None)])].iter());
            status(pool, space, Timestamp::UNIX_EPOCH)
        };
        let mut pool = StoragePool::new("fast", StoragePoolSpec::default());
        let first = report("700Gi", &pool);
        assert_eq!(first.free.as_deref(), Some("700Gi"), "in units of 4 GiB");
        pool.status = Some(first.clone());
        assert_eq!(report("707Gi", &pool), first);
        assert_eq!(report("699Gi", &pool).free.as_deref(), Some("696Gi"));
    }

    #[test]
    fn a_pool_that_no_host_reports_has_no_amounts() {
        let pool = StoragePool::new("fast", StoragePoolSpec::default());
        let status = status(&pool, Space::of("fast", std::iter::empty()), Timestamp::UNIX_EPOCH);
        assert_eq!((status.hosts, status.total, status.free), (Some(0), None, None));
    }
}
