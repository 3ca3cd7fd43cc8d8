//! The storage pools of this host, as its status lists them. Pure. Amounts are rounded, so that small changes write nothing.

use std::collections::BTreeSet;

use berth_api::Quantity;
use berth_api::condition::cut;
use berth_api::host::MAX_DETAIL;
use berth_api::storage_pool::{
    HostPool, MAX_FOLDER, MOST_HOST_POOLS, rounded_down, rounded_up, rounding_unit,
};
use berth_host::PoolFolderFacts;

use super::observe::Observed;

const MIB: u64 = 1 << 20;

/// Returns the pools on this host: those with a folder of their own, and all that are declared.
pub(super) fn listed(observed: &Observed, stored: &[HostPool]) -> Vec<HostPool> {
    let folders = &observed.facts.pool_folders;
    // The first ones are those without which a pool would seem to be in the state directory.
    let all = folders
        .iter()
        .map(|of| &of.pool)
        .chain(observed.pools.iter().filter(|name| !folders.iter().any(|of| of.pool == **name)));
    let names: BTreeSet<&String> = all.take(MOST_HOST_POOLS).collect();
    let pool = |name: &String| {
        let folder = folders.iter().find(|of| of.pool == *name);
        let shared = observed.shared_pools.get(name);
        // A shared pool is never in the state directory.
        let without = shared.filter(|_| folder.is_none());
        let without = without.map(|_| {
            format!(
                "this host names no place for it (--pool-folder {name}=FOLDER, or --rbd-pool {name}=CEPHPOOL)"
            )
        });
        let (total, free) = match folder {
            Some(folder) => (folder.total_bytes, folder.free_bytes),
            None if without.is_some() => (0, 0),
            None => (observed.facts.storage_total_bytes, observed.facts.storage_free_bytes),
        };
        let unit = rounding_unit(total);
        let promised = observed.promised.get(name).copied().unwrap_or_default();
        let total = amount(total / MIB * MIB);
        let before = stored.iter().find(|of| of.name == *name && of.total == total);
        HostPool {
            name: name.clone(),
            folder: folder.map(|of| cut(&of.path.to_string_lossy(), MAX_FOLDER).to_owned()),
            free: amount(rounded_down(free, unit, before.map(HostPool::free_bytes))),
            total,
            // It does not go up and down by itself, and VMs are placed by it.
            promised: amount(rounded_up(promised, unit, None)),
            problem: folder
                .and_then(|of| of.problem.as_deref())
                .or(without.as_deref())
                .map(|text| cut(text, MAX_DETAIL).to_owned()),
            shared_id: shared.cloned().flatten(),
        }
    };
    names.into_iter().map(pool).collect()
}

/// Returns the pools as they are stored if they differ only in amounts.
pub(super) fn without_amounts(stored: &[HostPool], now: &[HostPool]) -> Vec<HostPool> {
    let without = |pool: &HostPool| HostPool { free: String::new(), promised: String::new(), ..pool.clone() };
    let is_same = stored.iter().map(without).eq(now.iter().map(without));
    if is_same { stored.to_vec() } else { now.to_vec() }
}

/// Returns the names of the pools that are away.
pub(super) fn away(folders: &[PoolFolderFacts]) -> BTreeSet<String> {
    folders.iter().filter(|of| of.problem.is_some()).map(|of| of.pool.clone()).collect()
}

/// Unlike a declared quantity, an amount may be zero.
fn amount(bytes: u64) -> String {
    Quantity::from_bytes(bytes).0
}
