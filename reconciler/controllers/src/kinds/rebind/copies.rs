//! Copies of the firmware variables and of the memory of the TPM of a VM that is deleted while it has no host, or with a host that is fenced:
//! another host removes them from the shared pools.
//!
//! ```text
//!    its host is fenced ───▶ not bound ───▶ bound to a host that has ───▶ its agent removes the copies, and then
//!    it has no host ──────────────────────▶ the pool of its boot disk     the finalizer, as of every deleted VM
//! ```
//!
//! A copy is removed only as a part of the deletion of its VM. No host looks for copies without a VM: whether one belongs to a VM that it does not know,
//! such as one of another control plane or of a time after a backup, cannot be seen. A deleted VM is never started, also not where it is bound for this.

use std::cmp::Reverse;

use berth_api::{Host, HostPool, StoragePool, VM, condition};
use kube::ResourceExt;

use crate::cache::Cache;
use crate::kinds::storage_pool::shared_report;

use super::firmware::moves_firmware;
use super::{data_host, lives};

/// How the copies of a deleted VM without a host are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum CopyRemoval {
    /// There are none, or no host has their pool any more.
    Nothing,
    /// By this host.
    By(String),
    /// Not yet, for the reason in the text, until one of these hosts can.
    Waits { text: String, hosts: Vec<String> },
}

/// Decides it for a VM that no host has, or only one that is fenced.
pub(in super::super) fn removal(cache: &Cache, vm: &VM) -> CopyRemoval {
    let had_host = vm.status.as_ref().is_some_and(|status| status.instance_id.is_some());
    if !had_host || !vm.has_firmware_state() {
        return CopyRemoval::Nothing;
    }
    let pools = cache.tables.storage_pools.all().map(|pool| &**pool);
    // It may have had a boot disk in another one before.
    let shared: Vec<&StoragePool> = pools.filter(|pool| pool.spec.pool_type.is_shared()).collect();
    let boot = boot_pool(cache, vm).and_then(|name| shared.iter().copied().find(|p| p.name_any() == name));
    let hosts = cache.tables.hosts.all().map(|host| &**host);
    let hosts: Vec<&Host> = hosts.filter(|host| lives(cache, &host.name_any())).collect();
    let is_there = |host: &Host, pool: &StoragePool| report(host, pool).is_some_and(HostPool::is_there);
    let able =
        hosts.iter().filter(|host| can_be_asked(cache, host) && boot.is_none_or(|pool| is_there(host, pool)));
    let reached = able.map(|host| {
        let count = shared.iter().filter(|pool| is_there(host, pool)).count();
        let name = host.name_any();
        let takes_namespace = host.spec.takes_namespace(&vm.namespace().unwrap_or_default());
        (takes_namespace, !has_data(cache, vm, &name), count, Reverse(name))
    });
    if let Some((.., Reverse(host))) = reached.filter(|(_, _, count, _)| *count > 0).max() {
        return CopyRemoval::By(host);
    }
    let Some(pool) = boot else { return CopyRemoval::Nothing };
    let hosts = hosts.into_iter().filter(|host| report(host, pool).is_some());
    let hosts: Vec<String> = hosts.map(ResourceExt::name_any).collect();
    let Some(host) = hosts.first() else { return CopyRemoval::Nothing };
    let text = format!(
        "the copy of its firmware variables and its TPM in pool {} is removed first, and no host that has the pool can do that now: host {host} is \
         silent or in a recovery, has an older agent, or the pool is away there (status.pools of the Host)",
        pool.name_any()
    );
    CopyRemoval::Waits { text, hosts }
}

fn boot_pool(cache: &Cache, vm: &VM) -> Option<String> {
    let boot = vm.spec.disks.iter().find(|disk| disk.boot)?;
    let disk = cache.tables.disks.named(&vm.namespace().unwrap_or_default(), boot.name.as_str())?;
    Some(disk.pool().to_string())
}

/// Whether a host has data of the disks that the VM has left there. By its record of the VM it keeps them for the next VM with these disks.
fn has_data(cache: &Cache, vm: &VM, host: &str) -> bool {
    let namespace = vm.namespace().unwrap_or_default();
    let names = vm.spec.disks.iter().map(|disk| disk.name.as_str());
    let mut disks = names.filter_map(|name| cache.tables.disks.named(&namespace, name));
    disks.any(|disk| data_host(disk).is_some_and(|of| of == host))
}

/// Whether the agent of a host carries out what is bound there, and knows of copies.
fn can_be_asked(cache: &Cache, host: &Host) -> bool {
    let name = host.name_any();
    // After a start of the controllers, each host counts as alive for a while.
    let conditions = host.status.as_ref().map(|status| status.conditions.as_slice());
    let ready = condition::find(conditions.unwrap_or_default(), "Ready");
    cache.is_alive(&name)
        && ready.is_none_or(|ready| ready.status != "Unknown")
        && moves_firmware(cache, &name)
        && host.spec.recovery.is_none()
        && host.metadata.deletion_timestamp.is_none()
}

/// Returns the report of a host that has this shared pool, and no former one of its name.
fn report<'a>(host: &'a Host, pool: &StoragePool) -> Option<&'a HostPool> {
    let id = &pool.status.as_ref()?.shared.as_ref()?.id;
    shared_report(host, &pool.name_any()).filter(|report| report.shared_id.as_ref() == Some(id))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::Disk;
    use k8s_openapi::api::coordination::v1::Lease;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(name: &str, version: u32, spec: Value, status: Value) -> K {
        let metadata = json!({"name": name, "uid": name, "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
            .expect("an object")
    }

    fn in_ns<K: serde::de::DeserializeOwned>(name: &str, spec: Value, status: Value) -> K {
        let metadata = json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
            .expect("an object")
    }

    fn vm(firmware: &str, instance: Option<&str>) -> VM {
        let hardware = json!({"cpus": 1, "memory": "1Gi", "firmware": firmware, "tpm": false, "machineType": "q35",
            "cpuModel": "max", "accelerator": "tcg", "uuid": "u"});
        let spec = json!({"disks": [{"name": "root", "boot": true}]});
        in_ns("web", spec, json!({"hardware": hardware, "instanceID": instance}))
    }

    fn reported(pool: &str, problem: Option<&str>) -> Value {
        json!({"name": pool, "folder": "/mnt", "sharedId": format!("id-{pool}"), "total": "1Gi", "free": "1Gi", "promised": "0",
            "problem": problem})
    }

    /// With two shared pools, one of single hosts, and the lost host of the VM, which reported both.
    fn cache(boot: Option<&str>) -> Cache {
        let now = Instant::now();
        let mut cache = Cache::new(Duration::from_secs(40));
        for (name, kind) in [("site", "Shared"), ("ceph", "RBD"), ("fast", "Local")] {
            let status = json!({"shared": {"id": format!("id-{name}"), "initialized": true}});
            cache.put(object::<StoragePool>(name, 1, json!({"type": kind}), status), now);
        }
        if let Some(pool) = boot {
            cache
                .put(in_ns::<Disk>("root", json!({"size": "1Gi", "pool": pool}), json!({"pool": pool})), now);
        }
        put(&mut cache, "lost", json!({"fenced": true}), &[reported("site", None), reported("ceph", None)]);
        cache
    }

    /// Puts a host whose Lease is renewed.
    fn put(cache: &mut Cache, name: &str, spec: Value, pools: &[Value]) {
        let now = Instant::now();
        let version = u32::try_from(cache.tables.hosts.all().count()).expect("few") + 10;
        cache.put(object::<Host>(name, version, spec, json!({"firmwareMoves": true, "pools": pools})), now);
        let lease = json!({"metadata": {"name": name, "namespace": "berth-system", "resourceVersion": "2"},
            "spec": {"holderIdentity": name, "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40}});
        cache.put(serde_json::from_value::<Lease>(lease).expect("a Lease"), now);
    }

    #[tokio::test]
    async fn a_host_that_has_the_pool_of_the_boot_disk_removes_the_copies() {
        let vm = vm("UEFI", Some("i-1"));
        let mut cache = cache(Some("site"));
        assert_eq!(removal(&cache, &vm), CopyRemoval::Nothing, "no other host has the pool");
        put(&mut cache, "a", json!({}), &[reported("ceph", None)]);
        assert_eq!(removal(&cache, &vm), CopyRemoval::Nothing, "this one has another pool");
        put(&mut cache, "b", json!({}), &[reported("site", Some("not mounted"))]);
        let CopyRemoval::Waits { text, hosts } = removal(&cache, &vm) else { panic!("it is away on host b") };
        assert!(text.contains("pool site") && text.contains("host b"), "{text}");
        assert_eq!(hosts, ["b"]);
        put(
            &mut cache,
            "c",
            json!({"recovery": {"since": "2026-01-01T00:00:00Z"}}),
            &[reported("site", None)],
        );
        assert!(matches!(removal(&cache, &vm), CopyRemoval::Waits { .. }), "it may know of other VMs");
        for host in ["e", "d"] {
            put(&mut cache, host, json!({}), &[reported("site", None)]);
        }
        assert_eq!(removal(&cache, &vm), CopyRemoval::By("d".to_owned()));
        put(&mut cache, "f", json!({}), &[reported("site", None), reported("ceph", None)]);
        assert_eq!(removal(&cache, &vm), CopyRemoval::By("f".to_owned()), "it reaches more of them");
        put(
            &mut cache,
            "f",
            json!({"namespaces": ["other"]}),
            &[reported("site", None), reported("ceph", None)],
        );
        assert_eq!(removal(&cache, &vm), CopyRemoval::By("d".to_owned()), "it is reserved for others");
        for host in ["d", "e"] {
            put(&mut cache, host, json!({"namespaces": ["other"]}), &[reported("site", None)]);
        }
        assert_eq!(removal(&cache, &vm), CopyRemoval::By("f".to_owned()), "it starts nothing there");
    }

    #[tokio::test]
    async fn a_host_that_has_data_of_the_disks_is_the_last_to_be_chosen() {
        let mut cache = cache(None);
        let left = json!({"pool": "site", "formerHost": "a"});
        cache.put(in_ns::<Disk>("root", json!({"size": "1Gi", "pool": "site"}), left), Instant::now());
        for host in ["a", "b"] {
            put(&mut cache, host, json!({}), &[reported("site", None)]);
            assert_eq!(removal(&cache, &vm("UEFI", Some("i-1"))), CopyRemoval::By(host.to_owned()));
        }
    }

    #[tokio::test]
    async fn the_removal_of_copies_waits_only_for_the_pool_that_has_one() {
        let away = |cache: &mut Cache| put(cache, "a", json!({}), &[reported("site", Some("not mounted"))]);
        let mut local = cache(Some("fast"));
        let mut unknown = cache(None);
        for cache in [&mut local, &mut unknown] {
            away(cache);
            assert_eq!(removal(cache, &vm("UEFI", Some("i-1"))), CopyRemoval::Nothing);
            put(cache, "b", json!({}), &[reported("ceph", None)]);
            let by = CopyRemoval::By("b".to_owned());
            assert_eq!(removal(cache, &vm("UEFI", Some("i-1"))), by, "its disk may have been there");
        }
        let mut shared = cache(Some("site"));
        away(&mut shared);
        assert_eq!(removal(&shared, &vm("BIOS", Some("i-1"))), CopyRemoval::Nothing, "it has no such state");
        assert_eq!(removal(&shared, &vm("UEFI", None)), CopyRemoval::Nothing, "no host ever had it");
        assert!(matches!(removal(&shared, &vm("UEFI", Some("i-1"))), CopyRemoval::Waits { .. }));
    }

    #[tokio::test]
    async fn a_former_pool_of_the_name_and_an_older_agent_do_not_count() {
        let vm = vm("UEFI", Some("i-1"));
        let mut cache = cache(Some("site"));
        let mut former = reported("site", None);
        former["sharedId"] = json!("another");
        put(&mut cache, "a", json!({}), &[former]);
        assert_eq!(removal(&cache, &vm), CopyRemoval::Nothing);
        put(&mut cache, "b", json!({}), &[reported("site", None)]);
        assert_eq!(removal(&cache, &vm), CopyRemoval::By("b".to_owned()));
        let older: Host = object("b", 90, json!({}), json!({"pools": [reported("site", None)]}));
        cache.put(older, Instant::now());
        assert!(matches!(removal(&cache, &vm), CopyRemoval::Waits { .. }), "it would not remove them");
    }
}
