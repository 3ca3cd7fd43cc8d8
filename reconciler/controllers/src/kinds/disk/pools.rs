//! The pools of disks without a file: the declared one, the default of the namespace, or those among which one is chosen with the host.
//! Reads the cache.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{DEFAULT_NAME, Disk, Provisioning, RESTORE_ANNOTATION, ResourceName, StoragePoolType};
use kube::ResourceExt;

use crate::{
    cache::{Cache, capacity::Candidate, storage::DiskDemand},
    key::Key,
    scheduler::{self, NewDisks, PoolChoice, Request},
};

/// The limit of a pool without an object, whose disks are not bound before it exists, in percent.
const UNKNOWN_OVERCOMMIT: u64 = 1000;

/// Returns the demand of the new disks whose pool is decided, by pool.
pub(crate) fn by_pool<'a>(
    cache: &Cache,
    disks: impl Iterator<Item = &'a Disk>,
) -> BTreeMap<String, NewDisks> {
    let mut pools: BTreeMap<String, NewDisks> = BTreeMap::new();
    // A block device takes nothing of a pool.
    for disk in disks.filter(|disk| !is_open(cache, disk) && disk.block_device().is_none()) {
        let pool = disk.target_pool().as_str();
        let one = new_disk(cache, disk, pool);
        let before = pools.get(pool).map(|before| before.demand).unwrap_or_default();
        pools.insert(pool.to_owned(), NewDisks { demand: before.plus(one.demand), ..one });
    }
    pools
}

/// Returns the new disks whose pool is to be chosen, with their demand in each pool that they may be in. Those with the fewest pools come
/// first, and of these the largest: each takes the best that is left.
pub(crate) fn choices<'a>(cache: &Cache, disks: impl Iterator<Item = &'a Disk>) -> Vec<(Key, PoolChoice)> {
    let mut choices: Vec<(Key, PoolChoice)> =
        disks.filter(|disk| is_open(cache, disk)).map(|disk| (Key::of(disk), choice(cache, disk))).collect();
    choices.retain(|(_, choice)| !choice.is_empty());
    let size = |choice: &PoolChoice| choice.values().next().map(|new| new.demand.size).unwrap_or_default();
    choices.sort_by(|(key, a), (other, b)| {
        a.len().cmp(&b.len()).then(size(b).cmp(&size(a))).then_with(|| key.cmp(other))
    });
    choices
}

/// Chooses the pools of new disks that go to this host, whether it has room or not.
pub(crate) fn choose(
    cache: &Cache,
    host: &str,
    choices: &[(Key, PoolChoice)],
) -> BTreeMap<Key, ResourceName> {
    if choices.is_empty() {
        return BTreeMap::new();
    }
    let request =
        Request { choices: choices.iter().map(|(_, choice)| choice.clone()).collect(), ..Request::default() };
    let unknown = Candidate::default();
    let candidate = cache.index.capacity.get(host).unwrap_or(&unknown);
    let pools = scheduler::chosen_pools(candidate, &request);
    choices.iter().zip(pools).map(|((key, _), pool)| (key.clone(), ResourceName(pool))).collect()
}

/// Chooses the pool of one disk that goes to this host. None: it is decided, or there is none.
pub(crate) fn choose_one(cache: &Cache, host: &str, disk: &Disk) -> Option<ResourceName> {
    choose(cache, host, &choices(cache, std::iter::once(disk))).into_values().next()
}

/// Whether the pool of a disk is still to be decided with its host: it is one of several, or the default of its namespace.
pub(super) fn is_open(cache: &Cache, disk: &Disk) -> bool {
    disk.awaits_pool() || !defaults(cache, disk).is_empty()
}

/// Returns the pools that are the default of the namespace of a disk for which that counts. There is one, unless several StoragePools
/// name the namespace.
pub(super) fn defaults(cache: &Cache, disk: &Disk) -> Vec<String> {
    // The file of one that is restored is where it was.
    if !disk.awaits_default_pool() || disk.annotations().contains_key(RESTORE_ANNOTATION) {
        return Vec::new();
    }
    let namespace = disk.namespace().unwrap_or_default();
    let pools = cache.tables.storage_pools.all().filter(|pool| pool.metadata.deletion_timestamp.is_none());
    let mut names: Vec<String> =
        pools.filter(|pool| pool.spec.is_default_for(&namespace)).map(|pool| pool.name_any()).collect();
    names.sort();
    names
}

/// Whether a disk is one that pools in Ceph do not have.
pub(super) fn needs_file(disk: &Disk) -> bool {
    let spec = &disk.spec;
    let is_taken_over = spec.source.as_ref().is_some_and(|from| from.file.is_some());
    is_taken_over || spec.provisioning == Provisioning::Thick || disk.is_read_write_many()
}

/// Returns the pools that a disk may be in, without those that do not exist, are being deleted or have no such disks.
pub(super) fn candidates(cache: &Cache, disk: &Disk) -> BTreeSet<String> {
    let pools = cache.tables.storage_pools.all().filter(|pool| pool.metadata.deletion_timestamp.is_none());
    let needs_file = needs_file(disk);
    let pools = pools.filter(|pool| !needs_file || pool.spec.pool_type != StoragePoolType::Rbd);
    let defaults = defaults(cache, disk);
    let accepts = |name: &str, labels: &BTreeMap<String, String>| match defaults.as_slice() {
        [] => disk.spec.accepts_pool(name, labels),
        [default] => default == name,
        _ => false,
    };
    let accepted = pools.filter(|pool| accepts(&pool.name_any(), pool.labels()));
    let mut names: BTreeSet<String> = accepted.map(|pool| pool.name_any()).collect();
    // It is every host's own folder, also without an object.
    if cache.tables.storage_pools.cluster(DEFAULT_NAME).is_none() && accepts(DEFAULT_NAME, &BTreeMap::new()) {
        names.insert(DEFAULT_NAME.to_owned());
    }
    names
}

fn choice(cache: &Cache, disk: &Disk) -> PoolChoice {
    let pools = candidates(cache, disk).into_iter();
    pools.map(|pool| (pool.clone(), new_disk(cache, disk, &pool))).collect()
}

/// Returns a demand in the pool `default`, which each host has for itself.
pub(crate) fn in_default_pool(cache: &Cache, demand: DiskDemand) -> NewDisks {
    let spec = cache.tables.storage_pools.cluster(DEFAULT_NAME).map(|pool| &pool.spec);
    let percent = spec.and_then(|spec| u64::try_from(spec.overcommit_percent).ok());
    NewDisks { demand, overcommit_percent: percent.unwrap_or(UNKNOWN_OVERCOMMIT), shared: None }
}

/// Returns the demand of a new disk in a pool.
fn new_disk(cache: &Cache, disk: &Disk, pool: &str) -> NewDisks {
    let spec = cache.tables.storage_pools.cluster(pool).map(|pool| &pool.spec);
    let is_shared = spec.is_some_and(|spec| spec.pool_type.is_shared());
    let percent = spec.and_then(|spec| u64::try_from(spec.overcommit_percent).ok());
    // A file that another host of the pool has is in the pool already. In a pool of single hosts it is copied.
    let is_there = is_shared && disk.status.as_ref().is_some_and(|status| status.former_host.is_some());
    NewDisks {
        demand: if is_there { DiskDemand::default() } else { DiskDemand::of(&cache.tables, disk) },
        shared: is_shared.then(|| cache.index.capacity.taken_everywhere(pool)),
        overcommit_percent: percent.unwrap_or(UNKNOWN_OVERCOMMIT),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use berth_api::{Readiness, Reason, StoragePool};
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use crate::kinds::disk::{
        Obstacle, observe::Observed, observe::observe, obstacle, plan::plan, status::status,
    };
    use crate::plan::{Dependency, Step};

    use super::*;

    fn pool(name: &str, labels: &Value) -> StoragePool {
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}, "spec": {},
        }))
        .expect("a StoragePool")
    }

    fn disk(name: &str, spec: &Value) -> Arc<Disk> {
        let object = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec});
        Arc::new(serde_json::from_value(object).expect("a Disk"))
    }

    #[test]
    fn a_disk_chooses_among_the_pools_that_exist_and_have_its_labels() {
        let mut cache = Cache::new(Duration::from_secs(40));
        cache.put(pool("a", &json!({"media": "ssd"})), Instant::now());
        cache.put(pool("b", &json!({"media": "hdd"})), Instant::now());
        let names =
            |spec: Value| candidates(&cache, &disk("d", &spec)).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(names(json!({"pools": ["a", "missing", "default"]})), "a default");
        assert_eq!(names(json!({"poolSelector": {"media": "ssd"}})), "a");
        assert_eq!(names(json!({"poolSelector": {"media": "tape"}})), "");
        let disks = [
            disk("one", &json!({"size": "1Gi", "pools": ["a"]})),
            disk("small", &json!({"size": "1Gi", "pools": ["a", "b"]})),
            disk("large", &json!({"size": "2Gi", "pools": ["a", "b"]})),
            disk("plain", &json!({"size": "2Gi", "pool": "b"})),
        ];
        let all = || disks.iter().map(|disk| &**disk);
        let order: Vec<String> =
            choices(&cache, all()).into_iter().map(|(key, _)| key.name.to_string()).collect();
        assert_eq!(order, ["one", "large", "small"]);
        assert_eq!(by_pool(&cache, all()).into_keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(choose_one(&cache, "h1", &disks[1]).as_ref().map(ResourceName::as_str), Some("a"));
        assert_eq!(choose_one(&cache, "h1", &disks[3]), None);
    }

    #[test]
    fn a_disk_without_a_pool_to_choose_waits_for_one() {
        let cache = Cache::new(Duration::from_secs(40));
        for (spec, why) in [
            (json!({"size": "1Gi", "pools": ["a", "b"]}), "none of the StoragePools a, b exists"),
            (
                json!({"size": "1Gi", "poolSelector": {"media": "ssd"}}),
                "no StoragePool has the labels media=ssd of its poolSelector",
            ),
        ] {
            let waits = Obstacle { text: why.to_owned(), dependencies: vec![Dependency::StoragePools] };
            assert_eq!(obstacle(&cache, &disk("d", &spec)), Some(waits));
        }
    }

    #[test]
    fn a_pool_in_ceph_is_chosen_only_for_disks_that_it_can_have() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let mut ceph = pool("ceph", &json!({}));
        ceph.spec.pool_type = StoragePoolType::Rbd;
        cache.put(ceph, Instant::now());
        cache.put(pool("a", &json!({})), Instant::now());
        for (more, names) in [
            (json!({}), "a ceph"),
            (json!({"provisioning": "Thick"}), "a"),
            (json!({"encryption": {"keyClass": "k"}}), "a ceph"),
            (json!({"source": {"backup": "b"}}), "a ceph"),
            (json!({"source": {"disk": "other"}}), "a ceph"),
            (json!({"source": {"snapshot": "s"}}), "a ceph"),
        ] {
            let mut spec = json!({"size": "1Gi", "pools": ["a", "ceph"]});
            spec.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
            let found: Vec<String> = candidates(&cache, &disk("d", &spec)).into_iter().collect();
            assert_eq!(found.join(" "), names, "{spec}");
        }
        let thick = json!({"size": "1Gi", "pools": ["ceph"], "provisioning": "Thick"});
        let text = obstacle(&cache, &disk("d", &thick)).map(|waits| waits.text).unwrap_or_default();
        assert!(text.contains("of type RBD"), "{text}");
    }

    #[test]
    fn a_copy_with_a_choice_is_in_the_pool_of_its_source() {
        let mut cache = Cache::new(Duration::from_secs(40));
        for name in ["a", "b"] {
            cache.put(pool(name, &json!({})), Instant::now());
        }
        let source: Disk = serde_json::from_value(json!({
            "metadata": {"name": "source", "namespace": "ns", "uid": "s", "resourceVersion": "1"},
            "spec": {"size": "1Gi", "pools": ["a", "b"]},
            "status": {"binding": {"host": "h1", "epoch": 1}, "pool": "b", "size": "1Gi"},
        }))
        .expect("a Disk");
        cache.put(source, Instant::now());
        let planned = |pools: Value| {
            let copy = disk("copy", &json!({"source": {"disk": "source"}, "pools": pools}));
            plan(&copy, &Observed { unknown: None, ..observe(&cache, &copy) })
        };
        let bound = planned(json!(["a", "b"]));
        let is_in_b =
            |step: &Step| matches!(step, Step::BindDisk { pool: Some(pool), .. } if pool.as_str() == "b");
        assert!(bound.steps.iter().any(is_in_b), "{bound:?}");
        let refused = planned(json!(["a"]));
        assert!(refused.steps.is_empty(), "{refused:?}");
        let text = refused.decision.map(|readiness| readiness.message().to_owned()).unwrap_or_default();
        assert!(text.contains("Disk source is in the pool b, which the disk may not be in"), "{text}");
    }

    /// A pool that is the default of the namespace of the disks here.
    fn default_pool(name: &str) -> StoragePool {
        let mut pool = pool(name, &json!({}));
        pool.spec.default_for_namespaces = vec!["other".to_owned(), "ns".to_owned()];
        pool
    }

    #[test]
    fn a_disk_that_names_no_pool_is_in_the_default_pool_of_its_namespace() {
        let mut cache = Cache::new(Duration::from_secs(40));
        cache.put(pool("slow", &json!({})), Instant::now());
        let unnamed = disk("d", &json!({"size": "1Gi"}));
        assert_eq!(choose_one(&cache, "h1", &unnamed), None, "the namespace has none");
        cache.put(default_pool("fast"), Instant::now());
        let chosen = |spec: Value| choose_one(&cache, "h1", &disk("d", &spec)).map(|pool| pool.to_string());
        assert_eq!(chosen(json!({"size": "1Gi"})).as_deref(), Some("fast"));
        assert_eq!(chosen(json!({"size": "1Gi", "pool": "default"})).as_deref(), Some("fast"));
        assert_eq!(chosen(json!({"size": "1Gi", "pool": "slow"})), None);
        assert_eq!(chosen(json!({"size": "1Gi", "pools": ["slow"]})).as_deref(), Some("slow"));
        assert!(by_pool(&cache, std::iter::once(&*unnamed)).is_empty(), "its demand is in the default pool");
        let mut elsewhere = unnamed.as_ref().clone();
        elsewhere.metadata.namespace = Some("third".to_owned());
        assert_eq!(choose_one(&cache, "h1", &elsewhere), None);
        let mut restored = unnamed.as_ref().clone();
        restored.annotations_mut().insert(RESTORE_ANNOTATION.to_owned(), "h1/v-1".to_owned());
        assert_eq!(choose_one(&cache, "h1", &restored), None, "its file is where it was");
        for status in [json!({"binding": {"host": "h1", "epoch": 1}}), json!({"pool": "default"})] {
            let mut older = unnamed.as_ref().clone();
            older.status = Some(serde_json::from_value(status).expect("a status"));
            assert_eq!(choose_one(&cache, "h1", &older), None, "another default moves no disk");
        }
    }

    #[test]
    fn a_disk_waits_while_its_namespace_has_two_default_pools_or_one_without_such_disks() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let mut ceph = default_pool("ceph");
        ceph.spec.pool_type = StoragePoolType::Rbd;
        cache.put(ceph, Instant::now());
        let thick = disk("d", &json!({"size": "1Gi", "provisioning": "Thick"}));
        let waits = obstacle(&cache, &thick).expect("it waits");
        assert!(waits.text.contains("StoragePool ceph, the default pool of the namespace"), "{waits:?}");
        let thin = disk("d", &json!({"size": "1Gi"}));
        assert_eq!(obstacle(&cache, &thin), None);
        cache.put(default_pool("fast"), Instant::now());
        let waits = obstacle(&cache, &thin).expect("it waits");
        assert!(waits.text.contains("ceph, fast are all the default pool"), "{waits:?}");
        assert_eq!(waits.dependencies, [Dependency::StoragePools]);
        assert_eq!(choose_one(&cache, "h1", &thin), None);
    }

    #[test]
    fn a_copy_without_a_pool_is_in_the_default_pool_or_in_an_older_pool_of_its_source() {
        let bound_in = |source_pool: &str| {
            let mut cache = Cache::new(Duration::from_secs(40));
            cache.put(default_pool("fast"), Instant::now());
            let source: Disk = serde_json::from_value(json!({
                "metadata": {"name": "source", "namespace": "ns", "uid": "s", "resourceVersion": "1"},
                "spec": {"size": "1Gi", "pool": source_pool},
                "status": {"binding": {"host": "h1", "epoch": 1}, "pool": source_pool, "size": "1Gi"},
            }))
            .expect("a Disk");
            cache.put(source, Instant::now());
            let copy = disk("copy", &json!({"source": {"disk": "source"}}));
            let plan = plan(&copy, &Observed { unknown: None, ..observe(&cache, &copy) });
            let pool = plan.steps.iter().find_map(|step| match step {
                Step::BindDisk { pool, .. } => pool.as_ref().map(ToString::to_string),
                _ => None,
            });
            pool.ok_or_else(|| plan.decision.map(|it| it.message().to_owned()).unwrap_or_default())
        };
        assert_eq!(bound_in("fast").as_deref(), Ok("fast"));
        assert_eq!(bound_in("default").as_deref(), Ok("default"), "the source is older than the default");
        let refused = bound_in("slow").expect_err("refused");
        assert!(refused.contains("set pool to slow"), "{refused}");
    }

    #[test]
    fn a_disk_whose_host_did_not_make_it_takes_the_default_pool_of_its_next_host() {
        let ready = Some(Readiness::Ready(Reason::WaitingForFirstUse, String::new()));
        let released = |size: Option<&str>| {
            let mut bound = disk("d", &json!({"size": "1Gi"})).as_ref().clone();
            let stored = json!({"binding": {"host": "h1", "epoch": 1}, "pool": "fast", "defaultPool": "fast", "size": size});
            bound.status = Some(serde_json::from_value(stored).expect("a status"));
            let status = status(&bound, &ready, Timestamp::UNIX_EPOCH);
            (status.pool.is_some(), status.default_pool.is_some())
        };
        assert_eq!(released(None), (false, false));
        assert_eq!(released(Some("1Gi")), (true, true), "it has a file");
    }
}
