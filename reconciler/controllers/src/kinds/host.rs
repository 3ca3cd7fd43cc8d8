//! The Host controller: the agent writes the Host's status; the controllers only report when the agent has fallen
//! silent.

use berth_api::{ConditionType, ConditionUpdate, Host, HostStatus, Reason, USED_FINALIZER, condition};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    batch::{Write, WriteBatch},
    cache::users::Protection,
    cache::{Cache, users},
    config::Config,
    key::{Key, ObjectKind},
    kinds::fenced,
    plan::Outcome,
};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(host) = cache.tables.hosts.get(key).cloned() else { return Outcome::Settled };
    if host.spec.fenced {
        let mut status = fenced_status(&host, config.clock.now());
        status.used_by = cache.listed_users(key, &status.used_by);
        batch.status(host.as_ref(), status);
        fenced::host_itself(cache, &host, batch);
        return Outcome::Settled;
    }
    if cache.is_recovery_over(&host) {
        batch.write(Write::EndRecovery(host.clone()));
        return Outcome::Settled;
    }
    let alive = cache.is_alive(&key.name);
    if !alive && !is_called_unknown(&host) && !cache.is_silence_confirmed(&key.name, Instant::now()) {
        batch.write(Write::ReadLease(key.name.to_string()));
        batch.enqueue(key.clone());
        return Outcome::Settled;
    }
    let listed = host.status.as_ref().map(|status| status.used_by.as_slice()).unwrap_or_default();
    let users = cache.listed_users(key, listed);
    match users::protection(&host.metadata, &users) {
        // A Host gets its finalizer from the start: its status is written too often for a write before its first VM
        // is bound.
        Protection::None | Protection::Hold => {
            if host.metadata.deletion_timestamp.is_none() {
                batch.finalizer_of(host.clone().into(), USED_FINALIZER, true);
            }
        }
        Protection::Release => {
            batch.finalizer_of(host.clone().into(), USED_FINALIZER, false);
            return Outcome::Settled;
        }
        // The host's agent reports it. Backups whose data is in their repositories leave it.
        Protection::Wait(_) => {
            let all = cache.users_of(key).into_iter();
            all.filter(|user| user.kind == ObjectKind::Backup).for_each(|backup| batch.enqueue(backup));
        }
    }
    if !alive {
        // The agent of a silent host does not report its users.
        let status = HostStatus { used_by: users, ..silent_status(&host, config.clock.now()) };
        batch.status(host.as_ref(), status);
    } else if host.status.is_none() {
        batch.status(host.as_ref(), HostStatus::default());
    }
    Outcome::Settled
}

fn fenced_status(host: &Host, now: Timestamp) -> HostStatus {
    let mut status = host.status.clone().unwrap_or_default();
    let generation = host.metadata.generation.unwrap_or_default();
    let text = "gone for good: it goes with the last object that is bound to it";
    let (ready, reason) = (ConditionType::Ready, Reason::HostFenced);
    condition::set(
        &mut status.conditions,
        ConditionUpdate::new(ready, "False", reason, text),
        generation,
        now,
    );
    status.observed_generation = generation;
    status
}

fn is_called_unknown(host: &Host) -> bool {
    let conditions = host.status.as_ref().map(|s| &s.conditions);
    conditions.and_then(|c| condition::find(c, "Ready")).is_some_and(|ready| ready.status == "Unknown")
}

fn silent_status(host: &Host, now: Timestamp) -> HostStatus {
    let mut status = host.status.clone().unwrap_or_default();
    // A host that has never reported is new, not silent: its first report follows its first lease.
    if status.observed_generation < 0 {
        return status;
    }
    let generation = host.metadata.generation.unwrap_or_default();
    let text = "its agent has not renewed its lease: what runs there is not known";
    condition::set(
        &mut status.conditions,
        ConditionUpdate::new(ConditionType::Ready, "Unknown", Reason::HostSilent, text),
        generation,
        now,
    );
    status
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::{Backup, Image};
    use serde_json::{Value, json};

    use super::*;

    fn host(spec: Value, deleted: Option<&str>) -> Host {
        let silent = json!({"type": "Ready", "status": "Unknown", "reason": "HostSilent", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "metadata": {"name": "h1", "resourceVersion": "1", "deletionTimestamp": deleted, "finalizers": [USED_FINALIZER]},
            "spec": spec, "status": {"observedGeneration": 1, "conditions": [silent]},
        }))
        .expect("a Host")
    }

    fn enqueued(cache: &Cache) -> Vec<Key> {
        let mut batch = WriteBatch::default();
        reconcile(cache, &Config::new(), &Key::cluster(ObjectKind::Host, "h1"), &mut batch);
        batch.into_parts().1
    }

    #[tokio::test]
    async fn backups_leave_a_host_that_is_deleted_and_images_of_a_fenced_one_are_looked_at() {
        let now = Instant::now();
        let mut cache = Cache::new(Duration::from_secs(40));
        let status = json!({"observedGeneration": 1, "binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1",
            "backupID": "b-1", "completedAt": "2026-01-01T00:00:00Z"});
        let backup = json!({"metadata": {"name": "b", "namespace": "ns", "uid": "u1", "resourceVersion": "2"},
            "spec": {"repository": "r", "snapshot": "s"}, "status": status});
        cache.put(serde_json::from_value::<Backup>(backup).expect("a Backup"), now);
        let status =
            json!({"observedGeneration": 1, "binding": {"host": "h1", "epoch": 1}, "virtualSize": "1Gi"});
        let image = json!({"metadata": {"name": "i", "namespace": "ns", "uid": "u2", "resourceVersion": "3"},
            "spec": {"source": {"disk": "golden"}}, "status": status});
        cache.put(serde_json::from_value::<Image>(image).expect("an Image"), now);
        let (backup, image) =
            (Key::namespaced(ObjectKind::Backup, "ns", "b"), Key::namespaced(ObjectKind::Image, "ns", "i"));
        cache.put(host(json!({}), None), now);
        assert_eq!(enqueued(&cache), []);
        cache.replace(host(json!({}), Some("2026-01-01T00:00:00Z")).into(), now);
        assert_eq!(enqueued(&cache), std::slice::from_ref(&backup));
        let mut batch = WriteBatch::default();
        crate::kinds::backup::reconcile(&cache, &Config::new(), &backup, &mut batch);
        assert!(batch.into_parts().1.contains(&Key::cluster(ObjectKind::Host, "h1")), "it is unbound");
        cache.replace(host(json!({"fenced": true}), None).into(), now);
        assert!(enqueued(&cache).contains(&image));
    }
}
