//! Room for new disks in the pools of a host. Pure.
//!
//! Thin disks take the space of the data in them, so a pool may promise more than it has, up to its limit. Thick disks take their whole
//! size at once.

use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap};

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

/// A new disk of a VM whose pool is chosen with the host: its demand in each of the pools that it may be in.
pub(crate) type PoolChoice = BTreeMap<String, NewDisks>;

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

/// Returns the pools in which the new disks of a VM are to be, or may be.
pub(super) fn pools(request: &Request) -> impl Iterator<Item = &String> {
    request.disks.keys().chain(request.choices.iter().flat_map(|choice| choice.keys()))
}

/// Returns the pools of a host for the new disks whose pool is to be chosen, in their order: each gets the one with the most room beside
/// those before it.
pub(crate) fn chosen_pools(candidate: &Candidate, request: &Request) -> Vec<String> {
    assign(candidate, request).1
}

fn assign(candidate: &Candidate, request: &Request) -> (BTreeMap<String, NewDisks>, Vec<String>) {
    let mut disks = request.disks.clone();
    let mut chosen = Vec::new();
    for choice in &request.choices {
        let best = choice.iter().max_by_key(|(pool, new)| {
            let mut with = disks.clone();
            add(&mut with, pool, new);
            let fits =
                with.get(*pool).is_none_or(|all| in_pool(candidate, &with, (pool.as_str(), all)).is_none());
            (fits, room(candidate, &disks, (pool.as_str(), *new)), Reverse(*pool))
        });
        if let Some((pool, new)) = best {
            add(&mut disks, pool, new);
            chosen.push(pool.clone());
        }
    }
    (disks, chosen)
}

fn add(disks: &mut BTreeMap<String, NewDisks>, pool: &str, new: &NewDisks) {
    let before = disks.get(pool).map(|before| before.demand).unwrap_or_default();
    disks.insert(pool.to_owned(), NewDisks { demand: before.plus(new.demand), ..*new });
}

/// The sizes of further disks that a pool has room for: the least of what it may still promise and of its free space times its limit.
fn room(candidate: &Candidate, disks: &BTreeMap<String, NewDisks>, (pool, new): (&str, &NewDisks)) -> u64 {
    let space = candidate.storage.as_deref().and_then(|storage| storage.pool(pool));
    let Some(space) = space.filter(|space| !space.is_away) else { return 0 };
    let Load { promised, unmade_thick } = load(candidate, space, pool, new);
    let here = demand(disks, candidate, space, pool);
    let promised = promised.saturating_add(here.size);
    let free = space.free.saturating_sub(unmade_thick).saturating_sub(here.unmade_thick);
    let percent = new.overcommit_percent;
    limit(space.total, percent).saturating_sub(promised).min(limit(free, percent))
}

/// Returns the new disks by pool, those whose pool is to be chosen included.
fn placed<'r>(candidate: &Candidate, request: &'r Request) -> Cow<'r, BTreeMap<String, NewDisks>> {
    match request.choices.is_empty() {
        true => Cow::Borrowed(&request.disks),
        false => Cow::Owned(assign(candidate, request).0),
    }
}

/// Returns the first pool of a host in which the new disks of a VM have no room.
pub(super) fn shortage(candidate: &Candidate, request: &Request) -> Option<(String, Shortage)> {
    let disks = placed(candidate, request);
    disks
        .iter()
        .find_map(|(pool, new)| Some((pool.clone(), in_pool(candidate, &disks, (pool.as_str(), new))?)))
}

fn in_pool(
    candidate: &Candidate,
    disks: &BTreeMap<String, NewDisks>,
    (pool, new): (&str, &NewDisks),
) -> Option<Shortage> {
    let Some(space) = candidate.storage.as_deref().and_then(|storage| storage.pool(pool)) else {
        // A host that does not report its pools may have any room, and no folder that hosts share.
        return new.shared.map(|_| Shortage::Away);
    };
    if space.is_away || (new.shared.is_some() && !space.is_shared) {
        return Some(Shortage::Away);
    }
    let Load { promised, unmade_thick } = load(candidate, space, pool, new);
    let new_here = demand(disks, candidate, space, pool);
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
fn demand(
    disks: &BTreeMap<String, NewDisks>,
    candidate: &Candidate,
    space: PoolSpace,
    pool: &str,
) -> DiskDemand {
    let Some(storage) = candidate.storage.as_deref() else { return DiskDemand::default() };
    let here = disks.iter().filter(|(other, _)| shares_with(storage, space, pool, other));
    here.fold(DiskDemand::default(), |sum, (_, new)| sum.plus(new.demand))
}

fn limit(total: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(total) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// The share of its limit that the fullest pool of the new disks has left once it also has them, in units of 2^-32. None: not known.
pub(super) fn share_left(candidate: &Candidate, request: &Request) -> Option<i128> {
    let storage = candidate.storage.as_deref()?;
    let disks = placed(candidate, request);
    let share = |(pool, new): (&String, &NewDisks)| {
        let space = storage.pool(pool)?;
        let limit = i128::from(limit(space.total, new.overcommit_percent));
        let promised = load(candidate, space, pool, new).promised;
        let used = i128::from(promised) + i128::from(demand(&disks, candidate, space, pool).size);
        (limit > 0).then(|| ((limit - used) << 32) / limit)
    };
    disks.iter().filter_map(share).min()
}

/// The most that the pool of a host may promise to new disks while it has no others. None: not known.
fn most(candidate: &Candidate, pool: &str, new: &NewDisks) -> Option<u64> {
    let space = candidate.storage.as_deref()?.pool(pool)?;
    (!space.is_away).then(|| limit(space.total, new.overcommit_percent))
}

/// Explains why a host has no room for the new disks.
pub(super) fn explain(candidate: &Candidate, request: &Request) -> String {
    let name = &candidate.name;
    let shortage = shortage(candidate, request).map(|(pool, why)| (described(request, pool), why));
    match shortage {
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

/// The name of a pool, with the others that were to choose from.
fn described(request: &Request, pool: String) -> String {
    let others = |choice: &&PoolChoice| choice.len() > 1 && choice.contains_key(&pool);
    match request.choices.iter().find(others) {
        Some(choice) => {
            let names: Vec<&str> = choice.keys().map(String::as_str).collect();
            format!("{pool} (the one with the most room of {})", names.join(", "))
        }
        None => pool,
    }
}

/// Returns why none of these hosts will ever have room for the new disks in one of their pools.
pub(super) fn too_large<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    let named = request.disks.iter().map(|of| vec![of]);
    let chosen = request.choices.iter().map(|choice| choice.iter().collect::<Vec<_>>());
    named.chain(chosen).find_map(|pools| {
        let needed = pools.first()?.1.demand.size;
        let mut all = Vec::new();
        for candidate in eligible.clone() {
            all.extend(pools.iter().map(|(pool, new)| (most(candidate, pool, new), &candidate.name, *pool)));
        }
        // A host that does not report the pool, or where it is away, may have room.
        if all.iter().any(|(most, ..)| most.is_none_or(|most| needed <= most)) {
            return None;
        }
        let (most, host, pool) = all.into_iter().max()?;
        Some(format!(
            "its new disks in pool {pool} have {} together and no host it may run on may promise that much: {host} may promise {}. Lower \
             their size, raise overcommit_percent of the pool, or add a host with more space",
            mib(needed),
            mib(most.unwrap_or_default())
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

    /// A new disk that may be in one of these pools.
    fn choice<const N: usize>(pools: [&str; N], thin: u64) -> PoolChoice {
        pools.into_iter().flat_map(|pool| new(pool, thin, 0).disks).collect()
    }

    #[test]
    fn a_disk_with_a_choice_goes_into_the_pool_with_the_most_room_where_it_fits() {
        let candidate =
            host([("a", space(true, 90, 100)), ("b", space(true, 90, 40)), ("c", space(true, 90, 0))]);
        let request = |choices: Vec<PoolChoice>| Request { choices, ..Request::default() };
        let chosen = |request: &Request| chosen_pools(&candidate, request);
        let both = request(vec![choice(["a", "b"], 50)]);
        assert_eq!((chosen(&both), shortage(&candidate, &both)), (vec!["b".to_owned()], None));
        let two = request(vec![choice(["a", "b"], 100), choice(["a", "b"], 90)]);
        assert_eq!((chosen(&two), shortage(&candidate, &two)), (vec!["b".to_owned(), "a".to_owned()], None));
        let beside = Request { disks: new("b", 150, 0).disks, ..both.clone() };
        assert_eq!(chosen(&beside), ["a"], "the others of the VM count");
        let large = request(vec![choice(["a", "b"], 170)]);
        assert!(
            matches!(shortage(&candidate, &large), Some((pool, Shortage::Promised { .. })) if pool == "b")
        );
        let why = explain(&candidate, &large);
        assert!(why.contains("in pool b (the one with the most room of a, b)"), "{why}");
        assert_eq!(too_large(&large, [&candidate].into_iter()), None, "disks may be deleted");
        let never = too_large(&request(vec![choice(["a", "b"], 201)]), [&candidate].into_iter());
        assert!(never.is_some_and(|text| text.contains("may promise 200Gi")), "no pool is as large");
        let away = PoolSpace { is_away: true, ..space(true, 0, 0) };
        let one_away = host([("a", space(true, 90, 190)), ("b", away)]);
        assert_eq!(chosen_pools(&one_away, &request(vec![choice(["a", "b"], 5)])), ["a"]);
        let older = Candidate { name: "old".into(), ..Candidate::default() };
        assert_eq!(chosen_pools(&older, &both), ["a"], "it does not report its room");
    }
}
