//! Reads of a complete Backup by clients: the account of their tickets, and the end of the time in which its host may read the Secrets of
//! the repository for one.

use std::sync::Arc;

use berth_api::Backup;
use berth_api::console::DISK_READ_ACCOUNT;
use berth_api::disk_read::MOST_SECONDS;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::{
    batch::{Write, WriteBatch},
    cache::Cache,
    config::Config,
    kinds::ticket_accounts,
};

/// Returns when to look again.
pub(super) fn reconcile(
    cache: &Cache,
    config: &Config,
    backup: &Arc<Backup>,
    batch: &mut WriteBatch,
) -> Option<Timestamp> {
    let end = backup.read_until().map(|until| end_of(until, config.clock.now()));
    if end == Some(None) {
        batch.write(Write::EndRead(backup.clone()));
    }
    if backup.is_complete() && backup.metadata.deletion_timestamp.is_none() {
        let namespace = backup.namespace().unwrap_or_default();
        ticket_accounts::ensure(cache, &namespace, &[DISK_READ_ACCOUNT], batch);
    }
    end.flatten()
}

/// Whether a client wants to read it, which takes a host.
pub(super) fn is_wanted(backup: &Backup, now: Timestamp) -> bool {
    let is_there = backup.is_complete() && backup.metadata.deletion_timestamp.is_none();
    is_there && backup.read_until().is_some_and(|until| end_of(until, now).is_some())
}

/// Returns when the time of a read ends; `None` if it is over, is no time, or is longer than any client asks for.
fn end_of(until: &str, now: Timestamp) -> Option<Timestamp> {
    let until: Timestamp = until.parse().ok()?;
    let latest = now.checked_add(SignedDuration::from_secs(MOST_SECONDS)).ok()?;
    (now < until && until <= latest).then_some(until)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::key::{Key, ObjectKind};

    #[tokio::test]
    async fn a_reconcile_removes_the_annotation_once_its_time_is_over() {
        let config = Config::new();
        let is_removed = |until: &str| {
            let backup = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "Backup",
                "metadata": {"name": "b", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1",
                    "annotations": {"berth.dev/read-until": until}},
                "spec": {"repository": "r", "snapshot": "s"},
                "status": {"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1", "backupID": "b-1",
                    "completedAt": "2026-01-01T00:00:00Z"},
            });
            let mut cache = Cache::new(Duration::from_secs(40));
            cache.put(serde_json::from_value::<Backup>(backup).expect("a Backup"), Instant::now());
            let mut batch = WriteBatch::default();
            let key = Key::namespaced(ObjectKind::Backup, "ns", "b");
            crate::kinds::backup::reconcile(&cache, &config, &key, &mut batch);
            let (writes, _) = batch.into_parts();
            writes.iter().any(|write| matches!(write, Write::EndRead(_)))
        };
        let now = config.clock.now();
        let ahead =
            |seconds| now.checked_add(SignedDuration::from_secs(seconds)).expect("a time").to_string();
        assert!(!is_removed(&ahead(120)), "a client opens it");
        assert!(is_removed(&ahead(-1)) && is_removed(&ahead(MOST_SECONDS + 60)) && is_removed("for ever"));
    }

    #[test]
    fn the_time_of_a_read_ends_and_is_never_long() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let end = |until: &str| end_of(until, at(0));
        assert_eq!(end("1970-01-01T00:05:00Z"), Some(at(300)));
        assert_eq!(end("1970-01-01T00:10:00Z"), Some(at(600)));
        for wrong in ["1970-01-01T00:00:00Z", "1969-12-31T23:00:00Z", "1970-01-01T00:10:01Z", "for ever", ""]
        {
            assert_eq!(end(wrong), None, "{wrong}");
        }
    }
}
