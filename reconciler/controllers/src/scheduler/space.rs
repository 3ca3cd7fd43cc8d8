//! Room for new disks in the pools of a host. Pure.
//!
//! Thin disks take the space of the data in them, so a pool may promise more than it has, up to its limit. Thick disks take their whole
//! size at once.

use berth_api::Quantity;

use crate::cache::capacity::Candidate;
use crate::cache::storage::{DiskDemand, HostStorage, PoolSpace};

use super::Request;

/// The least free space for a thin disk: a file system that is nearly full pauses the guests that write.
const THIN_LEAST: u64 = 1 << 30;

/// The new disks of a VM in one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NewDisks {
    pub(crate) demand: DiskDemand,
    /// How much the pool may promise, in percent of its size.
    pub(crate) overcommit_percent: u64,
    /// The space that disks of a shared pool take on all hosts together. None: each host has a pool of its own.
    pub(crate) shared: Option<DiskDemand>,
}

/// Why new disks have no room in a pool of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    Away,
    /// The sizes of all disks would be larger than the limit.
    Promised {
        promised: u64,
        limit: u64,
        needed: u64,
    },
    /// There is less free space.
    Free {
        free: u64,
        needed: u64,
    },
}

/// Returns the first pool of a host in which the new disks of a VM have no room.
pub(super) fn shortage<'r>(candidate: &Candidate, request: &'r Request) -> Option<(&'r str, Shortage)> {
    request.disks.iter().find_map(|(pool, new)| {
        let Some(space) = candidate.storage.as_deref().and_then(|storage| storage.pool(pool)) else {
            // A host that does not report its pools may have any room, and no folder that hosts share.
            return new.shared.map(|_| (pool.as_str(), Shortage::Away));
        };
        Some((pool.as_str(), in_pool(candidate, request, space, (pool.as_str(), new))?))
    })
}

fn in_pool(
    candidate: &Candidate,
    request: &Request,
    space: PoolSpace,
    (pool, new): (&str, &NewDisks),
) -> Option<Shortage> {
    if space.is_away || (new.shared.is_some() && !space.is_shared) {
        return Some(Shortage::Away);
    }
    let Load { promised, unmade_thick } = load(candidate, space, pool, new);
    let new_here = demand(request, candidate, space, pool);
    let limit = limit(space.total, new.overcommit_percent);
    if promised.saturating_add(new_here.size) > limit {
        return Some(Shortage::Promised { promised, limit, needed: new_here.size });
    }
    let thin = new_here.size.saturating_sub(new_here.unmade_thick);
    let least = thin.min(space.total / 64).min(THIN_LEAST);
    let free = space.free.saturating_sub(unmade_thick);
    let needed = new_here.unmade_thick.saturating_add(least);
    (needed > free).then_some(Shortage::Free { free, needed })
}

/// The space of a file system that disks take already.
struct Load {
    promised: u64,
    /// The sizes of the thick disks that are to be made.
    unmade_thick: u64,
}

/// Whether another pool is on the same file system.
fn shares_with(storage: &HostStorage, space: PoolSpace, pool: &str, other: &str) -> bool {
    other == pool || (!space.has_folder && storage.pool(other).is_none_or(|other| !other.has_folder))
}

fn load(candidate: &Candidate, space: PoolSpace, pool: &str, new: &NewDisks) -> Load {
    if let Some(everywhere) = new.shared {
        return Load { promised: everywhere.size, unmade_thick: everywhere.unmade_thick };
    }
    let Some(storage) = candidate.storage.as_deref() else { return Load { promised: 0, unmade_thick: 0 } };
    let bound = candidate.used.disks.iter().filter(|(other, _)| shares_with(storage, space, pool, other));
    let bound = bound.fold(DiskDemand::default(), |sum, (_, demand)| sum.plus(*demand));
    let reported = storage.pools().filter(|(other, _)| shares_with(storage, space, pool, other));
    let reported = reported.fold(0u64, |sum, (_, other)| sum.saturating_add(other.promised));
    // The report has files that no Disk has, and lags behind.
    Load { promised: bound.size.max(reported), unmade_thick: bound.unmade_thick }
}

/// The new disks of a VM on the file system of a pool.
fn demand(request: &Request, candidate: &Candidate, space: PoolSpace, pool: &str) -> DiskDemand {
    let Some(storage) = candidate.storage.as_deref() else { return DiskDemand::default() };
    let here = request.disks.iter().filter(|(other, _)| shares_with(storage, space, pool, other));
    here.fold(DiskDemand::default(), |sum, (_, new)| sum.plus(new.demand))
}

fn limit(total: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(total) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// The share of its limit that the fullest pool of the new disks has left once it also has them, in units of 2^-32. None: not known.
pub(super) fn share_left(candidate: &Candidate, request: &Request) -> Option<i128> {
    let storage = candidate.storage.as_deref()?;
    let share = |(pool, new): (&String, &NewDisks)| {
        let space = storage.pool(pool)?;
        let limit = i128::from(limit(space.total, new.overcommit_percent));
        let promised = load(candidate, space, pool, new).promised;
        let used = i128::from(promised) + i128::from(demand(request, candidate, space, pool).size);
        (limit > 0).then(|| ((limit - used) << 32) / limit)
    };
    request.disks.iter().filter_map(share).min()
}

/// The most that the pool of a host may promise to new disks while it has no others. None: not known.
fn most(candidate: &Candidate, pool: &str, new: &NewDisks) -> Option<u64> {
    let space = candidate.storage.as_deref()?.pool(pool)?;
    (!space.is_away).then(|| limit(space.total, new.overcommit_percent))
}

/// Explains why a host has no room for the new disks.
pub(super) fn explain(candidate: &Candidate, request: &Request) -> String {
    let name = &candidate.name;
    match shortage(candidate, request) {
        Some((pool, Shortage::Away)) => {
            format!("pool {pool} is away on host {name}: see status.pools of the Host")
        }
        Some((pool, Shortage::Promised { promised, limit, needed })) => format!(
            "host {name} has promised {} of {} in pool {pool} and its new disks need {}: delete disks, or raise overcommit_percent of the \
             pool",
            mib(promised),
            mib(limit),
            mib(needed)
        ),
        Some((pool, Shortage::Free { free, needed })) => format!(
            "host {name} has {} free in pool {pool} and its new disks need {}",
            mib(free),
            mib(needed)
        ),
        None => format!("host {name} has no room for its disks"),
    }
}

/// Returns why none of these hosts will ever have room for the new disks in one of their pools.
pub(super) fn too_large<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    request.disks.iter().find_map(|(pool, new)| {
        // A host that does not report the pool, or where it is away, may have room.
        let has_room = |c: &Candidate| most(c, pool, new).is_none_or(|most| new.demand.size <= most);
        if eligible.clone().any(has_room) {
            return None;
        }
        let (most, host) = eligible.clone().filter_map(|c| Some((most(c, pool, new)?, &c.name))).max()?;
        Some(format!(
            "its new disks in pool {pool} have {} together and no host it may run on may promise that much: {host} may promise {}. Lower \
             their size, raise overcommit_percent of the pool, or add a host with more space",
            mib(new.demand.size),
            mib(most)
        ))
    })
}

fn mib(bytes: u64) -> Quantity {
    Quantity::from_bytes(bytes >> 20 << 20)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::cache::capacity::Usage;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn space(has_folder: bool, free: u64, promised: u64) -> PoolSpace {
        PoolSpace {
            has_folder,
            is_away: false,
            is_shared: false,
            total: 100 * GIB,
            free: free * GIB,
            promised: promised * GIB,
        }
    }

    fn host<const N: usize>(pools: [(&str, PoolSpace); N]) -> Candidate {
        Candidate { name: "a".into(), storage: Some(Arc::new(pools.into())), ..Candidate::default() }
    }

    fn new(pool: &str, thin: u64, thick: u64) -> Request {
        let demand = DiskDemand { size: (thin + thick) * GIB, unmade_thick: thick * GIB };
        let new = NewDisks { demand, overcommit_percent: 200, shared: None };
        Request { disks: [(pool.to_owned(), new)].into(), ..Request::default() }
    }

    fn bound(pool: &str, size: u64, unmade_thick: u64) -> Usage {
        let demand = DiskDemand { size: size * GIB, unmade_thick: unmade_thick * GIB };
        Usage { disks: [(pool.to_owned(), demand)].into(), ..Usage::default() }
    }

    fn short(candidate: &Candidate, request: &Request) -> Option<Shortage> {
        shortage(candidate, request).map(|(_, why)| why)
    }

    #[test]
    fn thin_disks_are_promised_up_to_the_limit_of_the_pool() {
        let candidate = host([("fast", space(true, 90, 150))]);
        assert_eq!(short(&candidate, &new("fast", 50, 0)), None);
        let over = Shortage::Promised { promised: 150 * GIB, limit: 200 * GIB, needed: 51 * GIB };
        assert_eq!(short(&candidate, &new("fast", 51, 0)), Some(over));
        // Disks that were bound since the report count too.
        let busy = Candidate { used: bound("fast", 160, 0), ..candidate };
        assert!(short(&busy, &new("fast", 41, 0)).is_some());
        assert_eq!(short(&busy, &new("fast", 40, 0)), None);
    }

    #[test]
    fn a_thick_disk_needs_its_whole_size_and_a_thin_one_a_little() {
        let candidate = host([("fast", space(true, 20, 0))]);
        assert_eq!(short(&candidate, &new("fast", 0, 20)), None);
        let over = Shortage::Free { free: 20 * GIB, needed: 21 * GIB };
        assert_eq!(short(&candidate, &new("fast", 0, 21)), Some(over));
        let waiting = Candidate { used: bound("fast", 15, 15), ..candidate };
        assert!(
            short(&waiting, &new("fast", 0, 6)).is_some(),
            "15 GiB are taken by a disk that is to be made"
        );
        assert_eq!(short(&waiting, &new("fast", 0, 5)), None);
        let full = host([("fast", space(true, 0, 0))]);
        assert!(matches!(short(&full, &new("fast", 10, 0)), Some(Shortage::Free { free: 0, .. })));
    }

    #[test]
    fn pools_without_a_folder_share_one_file_system_and_others_do_not() {
        let candidate = host([
            ("default", space(false, 90, 120)),
            ("slow", space(false, 90, 60)),
            ("fast", space(true, 90, 0)),
        ]);
        assert!(short(&candidate, &new("default", 30, 0)).is_some(), "180 of 200 GiB are promised");
        assert!(short(&candidate, &new("unlisted", 30, 0)).is_some());
        assert_eq!(short(&candidate, &new("default", 20, 0)), None);
        assert_eq!(short(&candidate, &new("fast", 200, 0)), None);
        let mut both = new("default", 15, 0);
        both.disks.extend(new("slow", 15, 0).disks);
        assert!(short(&candidate, &both).is_some(), "they share what is left");
    }

    #[test]
    fn a_pool_that_is_away_takes_no_disks_and_a_host_that_reports_none_takes_any() {
        let away = PoolSpace { is_away: true, ..space(true, 0, 0) };
        assert_eq!(short(&host([("fast", away)]), &new("fast", 1, 0)), Some(Shortage::Away));
        let older = Candidate { name: "b".into(), ..Candidate::default() };
        assert_eq!(short(&older, &new("fast", 9999, 9999)), None);
        assert_eq!(share_left(&older, &new("fast", 1, 0)), None);
        assert_eq!(short(&host([("fast", away)]), &Request::default()), None, "it has no new disks");
    }

    #[test]
    fn new_disks_of_a_shared_pool_go_where_its_folder_is_and_count_with_those_of_all_hosts() {
        let shared = PoolSpace { is_shared: true, ..space(true, 90, 10) };
        let everywhere = |gib: u64| {
            let mut request = new("site", 50, 0);
            let taken = DiskDemand { size: gib * GIB, unmade_thick: 0 };
            request.disks.values_mut().for_each(|new| new.shared = Some(taken));
            request
        };
        assert_eq!(short(&host([("site", shared)]), &everywhere(150)), None);
        let over = Shortage::Promised { promised: 151 * GIB, limit: 200 * GIB, needed: 50 * GIB };
        assert_eq!(short(&host([("site", shared)]), &everywhere(151)), Some(over));
        assert_eq!(
            short(&host([("site", space(true, 90, 0))]), &everywhere(0)),
            Some(Shortage::Away),
            "its own"
        );
        let older = Candidate { name: "b".into(), ..Candidate::default() };
        assert_eq!(short(&older, &everywhere(0)), Some(Shortage::Away), "it has no shared folders");
    }

    #[test]
    fn the_fuller_pool_has_the_smaller_share_left() {
        let left = |promised| share_left(&host([("fast", space(true, 90, promised))]), &new("fast", 20, 0));
        assert_eq!(left(80), Some(1 << 31), "half of 200 GiB");
        assert!(left(10) > left(80));
    }
}
