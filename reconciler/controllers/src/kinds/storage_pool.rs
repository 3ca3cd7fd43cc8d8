//! The StoragePool controller: a local pool is a folder that each host creates itself; it is ready once reconciled. Its status adds up
//! what the hosts report about it.

use berth_api::storage_pool::{self, rounded_down, rounded_up, rounding_unit};
use berth_api::{Host, HostPool, Quantity, Readiness, Reason, StoragePool, StoragePoolStatus};
use k8s_openapi::jiff::Timestamp;

use crate::{batch::WriteBatch, cache::Cache, config::Config, key::Key, plan::Outcome};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(pool) = cache.tables.storage_pools.get(key).cloned() else { return Outcome::Settled };
    let space = Space::of(&key.name, cache.tables.hosts.all().map(|host| &**host));
    let mut status = status(&pool, space, config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
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
