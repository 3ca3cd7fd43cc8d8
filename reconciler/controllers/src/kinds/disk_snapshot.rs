//! The DiskSnapshot controller: binds a snapshot to the host of its Disk once the Disk has a file there. After that the host's agent
//! owns it.

use std::sync::Arc;

use berth_api::console::DISK_READ_ACCOUNT;
use berth_api::{
    Binding, Disk, DiskSnapshot, DiskSnapshotStatus, HOST_FINALIZER, Readiness, Reason, ResourceName,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::{Key, ObjectKind},
    kinds::{
        fenced,
        quota::{self, Excess},
        ticket_accounts,
    },
    plan::{Dependency, Outcome, Plan, Step},
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    NoChange,
    Wait(Readiness),
    Bind { host: String, snapshot_id: String, volume_id: String, pool: ResourceName },
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(snapshot) = cache.tables.disk_snapshots.get(key).cloned() else { return Outcome::Settled };
    if let Some(outcome) = fenced::snapshot(cache, config, &snapshot, batch) {
        return outcome;
    }
    let disk = cache.tables.disks.named(key.namespace(), snapshot.spec.disk.as_str()).cloned();
    let is_bound = snapshot.status.as_ref().is_some_and(|status| status.binding.is_some());
    let over_quota = if is_bound { None } else { quota::excess(cache, key) };
    let plan = plan(&snapshot, disk.as_ref(), over_quota.as_ref());
    if let Decision::Bind { pool, .. } = &plan.decision {
        batch.hold(cache, [Key::cluster(ObjectKind::StoragePool, pool.as_str())]);
    }
    batch.steps(cache, config.clock.now(), &plan.steps);
    batch.status(snapshot.as_ref(), status(&snapshot, &plan.decision, config.clock.now()));
    if is_bound && snapshot.metadata.deletion_timestamp.is_none() {
        ticket_accounts::ensure(cache, key.namespace(), &[DISK_READ_ACCOUNT], batch);
    }
    plan.outcome
}

fn plan(snapshot: &DiskSnapshot, disk: Option<&Arc<Disk>>, over_quota: Option<&Excess>) -> Plan<Decision> {
    let key = Key::of(snapshot);
    let is_deleted = snapshot.metadata.deletion_timestamp.is_some();
    if snapshot.status.as_ref().is_some_and(|s| s.binding.is_some()) {
        let mut plan = Plan::settled(Decision::NoChange);
        if !is_deleted {
            // Restored after its removal: the host has to release the file first.
            plan.steps.push(Step::AddFinalizer(key, HOST_FINALIZER));
        }
        return plan;
    }
    if is_deleted {
        let mut plan = Plan::settled(Decision::NoChange);
        plan.steps.push(Step::RemoveFinalizer(key, HOST_FINALIZER));
        return plan;
    }
    if let Some(excess) = over_quota {
        let readiness = Readiness::Reconciling(Reason::QuotaExceeded, excess.text.clone());
        return Plan::blocked(Decision::Wait(readiness), vec![excess.dependency.clone()]);
    }
    let name = &snapshot.spec.disk;
    let disk_key = Key::namespaced(ObjectKind::Disk, key.namespace(), name.as_str());
    let wait = |text: String| {
        let readiness = Readiness::Reconciling(Reason::WaitingForDisk, text);
        Plan::blocked(Decision::Wait(readiness), vec![Dependency::Object(disk_key.clone())])
    };
    let Some(disk) = disk else { return wait(format!("Disk {name} does not exist")) };
    if disk.metadata.deletion_timestamp.is_some() {
        return wait(format!("Disk {name} is being deleted"));
    }
    if let Some(why) = disk.without_snapshots() {
        let text = format!("Disk {name} {why}: no snapshot is taken of it");
        let readiness = Readiness::Stalled(Reason::NotSupported, text);
        return Plan::blocked(Decision::Wait(readiness), vec![Dependency::Object(disk_key.clone())]);
    }
    let status = disk.status.clone().unwrap_or_default();
    let (Some(binding), Some(volume_id), Some(_)) = (status.binding, status.volume_id, status.size) else {
        return wait(format!("Disk {name} has no file yet: the snapshot is taken once it has"));
    };
    let Some(snapshot_id) = snapshot.identity() else {
        return wait(format!("the DiskSnapshot of Disk {name} has no uid"));
    };
    Plan {
        steps: vec![Step::AddFinalizer(key, HOST_FINALIZER)],
        decision: Decision::Bind { host: binding.host, snapshot_id, volume_id, pool: disk.pool().clone() },
        outcome: Outcome::Settled,
    }
}

fn status(snapshot: &DiskSnapshot, decision: &Decision, now: Timestamp) -> DiskSnapshotStatus {
    let mut status = snapshot.status.clone().unwrap_or_default();
    let generation = snapshot.metadata.generation.unwrap_or_default();
    let readiness = match decision {
        Decision::NoChange => return status,
        Decision::Wait(readiness) => readiness.clone(),
        Decision::Bind { host, snapshot_id, volume_id, pool } => {
            status.binding = Some(Binding { host: host.clone(), epoch: 1 });
            status.snapshot_id = Some(snapshot_id.clone());
            status.volume_id = Some(volume_id.clone());
            status.pool = Some(pool.clone());
            Readiness::bound_to(host)
        }
    };
    readiness.write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(status: Value) -> DiskSnapshot {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "ns", "uid": "u1", "generation": 1}, "spec": {"disk": "d"}, "status": status,
        }))
        .expect("a snapshot")
    }

    fn disk(status: Value) -> Arc<Disk> {
        let disk = json!({"metadata": {"name": "d", "namespace": "ns"}, "spec": {"size": "1Gi", "pool": "fast"}, "status": status});
        Arc::new(serde_json::from_value(disk).expect("a disk"))
    }

    #[test]
    fn a_snapshot_waits_until_its_disk_has_a_file_and_is_bound_to_its_host() {
        let new = snapshot(json!(null));
        let waits = |disk: Option<&Arc<Disk>>| {
            let plan = plan(&new, disk, None);
            let Decision::Wait(readiness) = plan.decision else { panic!("{plan:?}") };
            assert!(matches!(plan.outcome, Outcome::Blocked(_)), "it is requeued when the disk changes");
            assert_eq!(readiness.reason(), Reason::WaitingForDisk);
            readiness.message().to_owned()
        };
        assert!(waits(None).contains("does not exist"));
        assert!(waits(Some(&disk(json!(null)))).contains("has no file yet"));
        let bound = json!({"binding": {"host": "h", "epoch": 1}, "volumeID": "v-1"});
        assert!(waits(Some(&disk(bound.clone()))).contains("has no file yet"));
        let mut made = bound;
        made["size"] = json!("1Gi");
        let plan = plan(&new, Some(&disk(made)), None);
        assert_eq!(plan.steps, [Step::AddFinalizer(Key::of(&new), HOST_FINALIZER)]);
        let status = status(&new, &plan.decision, Timestamp::UNIX_EPOCH);
        assert_eq!(status.binding.map(|b| b.host).as_deref(), Some("h"));
        assert_eq!((status.snapshot_id.as_deref(), status.volume_id.as_deref()), (Some("s-u1"), Some("v-1")));
        assert_eq!(status.pool.as_ref().map(ResourceName::as_str), Some("fast"));
    }

    #[test]
    fn a_disk_that_is_a_block_device_has_no_snapshot() {
        let mut device = disk(json!(null)).as_ref().clone();
        device.spec.source = serde_json::from_value(json!({"device": "nvme"})).expect("a source");
        let plan = plan(&snapshot(json!(null)), Some(&Arc::new(device)), None);
        let Decision::Wait(readiness) = plan.decision else { panic!("{plan:?}") };
        assert_eq!(readiness.reason(), Reason::NotSupported);
        assert!(readiness.message().contains("is a block device of its host"), "{}", readiness.message());
    }

    #[test]
    fn a_bound_snapshot_stays_where_it_is_whatever_becomes_of_its_disk() {
        let bound = snapshot(json!({"binding": {"host": "h", "epoch": 1}, "snapshotID": "s-u1"}));
        assert_eq!(plan(&bound, None, None).decision, Decision::NoChange);
        let mut deleted = snapshot(json!(null));
        deleted.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        assert_eq!(
            plan(&deleted, None, None).steps,
            [Step::RemoveFinalizer(Key::of(&deleted), HOST_FINALIZER)]
        );
    }
}
