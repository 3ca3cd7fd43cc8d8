//! When a complete Backup is to be read back. Pure, except for what it reads from the cache.
//!
//! ```text
//!   policy: never verified, or its interval is over, or damage was found beside it ┐
//!   annotation: another text than that of the last one                             ┘─▶ requested ─▶ (host) ─▶ result
//!                                                            neither any more: ─▶ not requested
//! ```
//!
//! The request in the status is what permits the host to read the Secrets of the repository, and what it acts on. It stays until the host has a
//! result, so that an agent that ends meanwhile begins again.

use berth_api::{
    Backup, BackupRepository, BackupStatus, BackupVerification, RequestedVerification, VerificationPolicy,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::{cache::Cache, key::Key};

/// By how much the time of a host may be ahead of this clock: with more, it counts as wrong.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_hours(1);

/// The inputs of the decision, beside the Backup.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// That of its repository.
    pub(super) policy: Option<VerificationPolicy>,
    /// When a verification of another Backup of the same disk last found damage.
    pub(super) damage: Option<Timestamp>,
}

/// Whether a Backup is to be verified now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// For the policy, or for the text of a person.
    Due(Option<String>),
    /// Not before this moment. None: not as long as nothing changes.
    Later(Option<Timestamp>),
}

impl Decision {
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Due(_))
    }
}

pub(super) fn observe(cache: &Cache, backup: &Backup, repository: Option<&BackupRepository>) -> Observed {
    let policy = repository.and_then(|repository| repository.spec.verification.clone());
    if policy.is_none() || !backup.is_complete() {
        return Observed { policy, damage: None };
    }
    let namespace = backup.namespace().unwrap_or_default();
    let damaged = cache.damaged_backups(&namespace).filter(|other| is_beside(backup, other));
    Observed { damage: damaged.filter_map(|other| other.verification()?.ended()).max(), policy }
}

/// Whether the other Backup of the namespace is another complete one of the same disk in the same repository.
fn is_beside(backup: &Backup, other: &Backup) -> bool {
    let disk = |backup: &Backup| backup.identity().map(|(disk, _)| disk);
    other.is_complete()
        && other.spec.repository == backup.spec.repository
        && other.metadata.name != backup.metadata.name
        && disk(backup).is_some_and(|own| disk(other).as_ref() == Some(&own))
}

/// Returns the Backups that damage of this one concerns: they may have the same blocks.
pub(super) fn concerned(cache: &Cache, backup: &Backup) -> Vec<Key> {
    let Some(verification) = backup.verification().filter(|verification| verification.found_damage()) else {
        return Vec::new();
    };
    let is_older = |other: &Backup| {
        other.verification().is_none_or(|found| !found.found_damage() && found.ended() < verification.ended())
    };
    let users = cache.users_of(&super::repository_key(backup));
    let backups = users.iter().filter_map(|key| cache.tables.backups.get(key));
    let concerned = backups.filter(|other| is_older(other) && is_beside(backup, other));
    concerned.map(|other| Key::of(other.as_ref())).collect()
}

pub(super) fn plan(backup: &Backup, observed: &Observed, now: Timestamp) -> Decision {
    if !backup.is_complete() || backup.metadata.deletion_timestamp.is_some() {
        return Decision::Later(None);
    }
    let last = backup.verification().cloned().unwrap_or_default();
    if let Some(token) = backup.verify_token().filter(|token| last.token.as_deref() != Some(*token)) {
        return Decision::Due(Some(token.to_owned()));
    }
    let Some(policy) = &observed.policy else { return Decision::Later(None) };
    let Some(ended) = last.ended() else { return Decision::Due(None) };
    let is_doubtful = !last.found_damage() && observed.damage.is_some_and(|damage| ended < damage);
    let ended = if is_ahead(ended, now) { now } else { ended };
    let interval = SignedDuration::from_hours(policy.interval_days.clamp(1, 365) * 24);
    let next = ended.checked_add(interval).unwrap_or(Timestamp::MAX);
    match is_doubtful || next <= now {
        true => Decision::Due(None),
        false => Decision::Later(Some(next)),
    }
}

/// Whether a recorded time shows that the clock of its host was ahead.
fn is_ahead(ended: Timestamp, now: Timestamp) -> bool {
    ended.duration_since(now) > CLOCK_TOLERANCE
}

/// Records the decision. A request stays as it was made: its host may be at work. A time that is ahead becomes this one: the next
/// verification would come too late otherwise, and if it were requested at once, without an end as long as the clock of the host is ahead.
pub(super) fn write(status: &mut BackupStatus, decision: &Decision, now: Timestamp) {
    if let Some(verification) = &mut status.verification
        && verification.ended().is_some_and(|ended| is_ahead(ended, now))
    {
        verification.ended_at = Some(now.to_string());
    }
    match decision {
        Decision::Due(token) => {
            let verification = status.verification.get_or_insert_default();
            let is_same = verification.requested.as_ref().is_some_and(|requested| requested.token == *token);
            if !is_same {
                verification.requested =
                    Some(RequestedVerification { at: now.to_string(), token: token.clone() });
                verification.progress = None;
            }
        }
        Decision::Later(_) => {
            if let Some(verification) = &mut status.verification {
                (verification.requested, verification.progress) = (None, None);
            }
            status.verification = status.verification.take().filter(|v| *v != BackupVerification::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::Host;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::{
        batch::{Write, WriteBatch},
        config::Config,
        object::Object,
        plan::{Dependency, Outcome},
    };

    fn backup(verification: &Value, annotation: Option<&str>) -> Backup {
        serde_json::from_value(json!({
            "metadata": {"name": "b", "namespace": "ns", "uid": "u", "generation": 1,
                "annotations": annotation.map(|text| json!({"berth.dev/verify": text}))},
            "spec": {"repository": "r", "snapshot": "s"},
            "status": {"volumeID": "v-1", "backupID": "b-1", "completedAt": "2026-01-01T00:00:00Z", "verification": verification},
        }))
        .expect("a backup")
    }

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn weekly() -> Observed {
        Observed { policy: Some(VerificationPolicy { interval_days: 7, bandwidth: None }), damage: None }
    }

    #[test]
    fn a_policy_verifies_a_complete_backup_at_once_and_after_each_interval() {
        let now = at("2026-01-10T00:00:00Z");
        let never = backup(&json!(null), None);
        assert_eq!(plan(&never, &Observed::default(), now), Decision::Later(None), "there is no policy");
        assert_eq!(plan(&never, &weekly(), now), Decision::Due(None));
        let ended = |time: &str| backup(&json!({"endedAt": time, "damagedBlocks": 0}), None);
        let next = Decision::Later(Some(at("2026-01-11T00:00:00Z")));
        assert_eq!(plan(&ended("2026-01-04T00:00:00Z"), &weekly(), now), next);
        assert_eq!(plan(&ended("2026-01-03T00:00:00Z"), &weekly(), now), Decision::Due(None));
        let future = ended("2027-01-01T00:00:00Z");
        let decision = plan(&future, &weekly(), now);
        assert_eq!(decision, Decision::Later(Some(at("2026-01-17T00:00:00Z"))), "a clock was wrong");
        let mut status = future.status.expect("set");
        write(&mut status, &decision, now);
        assert_eq!(status.verification.and_then(|v| v.ended()), Some(now));
        let mut unfinished = never;
        unfinished.status = None;
        assert_eq!(plan(&unfinished, &weekly(), now), Decision::Later(None));
    }

    #[test]
    fn damage_beside_it_makes_a_whole_backup_doubtful_and_a_damaged_one_not() {
        let now = at("2026-01-10T00:00:00Z");
        let damage = Observed { damage: Some(at("2026-01-09T00:00:00Z")), ..weekly() };
        let ended = |damaged: i64| {
            backup(&json!({"endedAt": "2026-01-08T00:00:00Z", "damagedBlocks": damaged}), None)
        };
        assert_eq!(plan(&ended(0), &damage, now), Decision::Due(None));
        assert!(!plan(&ended(1), &damage, now).is_due(), "two of them would have each other read for ever");
        let later = Observed { damage: Some(at("2026-01-07T00:00:00Z")), ..weekly() };
        assert!(!plan(&ended(0), &later, now).is_due());
    }

    #[test]
    fn an_annotation_asks_once_and_its_removal_ends_the_request() {
        let now = at("2026-01-10T00:00:00Z");
        let asked =
            |text: &str| backup(&json!({"token": "one", "endedAt": "2026-01-09T00:00:00Z"}), Some(text));
        assert!(!plan(&asked("one"), &Observed::default(), now).is_due());
        let due = plan(&asked("two"), &Observed::default(), now);
        assert_eq!(due, Decision::Due(Some("two".to_owned())));
        for wrong in [String::new(), "x".repeat(65)] {
            assert!(!plan(&asked(&wrong), &Observed::default(), now).is_due());
        }
        let mut status = asked("two").status.expect("set");
        write(&mut status, &due, now);
        let requested = status.clone();
        write(&mut status, &due, at("2026-01-11T00:00:00Z"));
        assert_eq!(status, requested, "it stays as it was made");
        write(&mut status, &Decision::Later(None), now);
        assert_eq!(Some(&status), asked("two").status.as_ref());
        let mut untouched = backup(&json!(null), None).status.expect("set");
        write(&mut untouched, &due, now);
        write(&mut untouched, &Decision::Later(None), now);
        assert_eq!(untouched.verification, None);
    }

    /// A cache with a host, a repository that has its backups verified each week, and two complete backups of a disk.
    fn cache(first: &Value, second: &Value) -> Cache {
        let mut cache = Cache::new(Duration::from_secs(40));
        let mut version = 0;
        let mut metadata = |name: &str| {
            version += 1;
            json!({"name": name, "namespace": "ns", "uid": name, "generation": 1, "resourceVersion": version.to_string(),
                "finalizers": [berth_api::HOST_FINALIZER]})
        };
        let host = json!({"metadata": {"name": "h1", "uid": "h1", "resourceVersion": "1"}, "spec": {}});
        cache.put(serde_json::from_value::<Host>(host).expect("a Host"), Instant::now());
        let spec = json!({"folder": "nas", "passwordSecretName": "p", "verification": {"intervalDays": 7}});
        let repository = json!({"metadata": metadata("r"), "spec": spec});
        let repository = serde_json::from_value::<BackupRepository>(repository).expect("a BackupRepository");
        cache.put(repository, Instant::now());
        for (name, verification) in [("first", first), ("second", second)] {
            let backup = json!({"metadata": metadata(name), "spec": {"repository": "r", "snapshot": name},
                "status": {"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1", "backupID": name,
                    "completedAt": "2026-01-01T00:00:00Z", "verification": verification}});
            cache.put(serde_json::from_value::<Backup>(backup).expect("a Backup"), Instant::now());
        }
        cache
    }

    fn key(name: &str) -> Key {
        Key::namespaced(crate::key::ObjectKind::Backup, "ns", name)
    }

    /// Returns the status that a reconcile writes, the keys that it enqueues, and its outcome.
    fn reconciled(cache: &Cache, config: &Config, name: &str) -> (Option<BackupStatus>, Vec<Key>, Outcome) {
        let mut batch = WriteBatch::default();
        let outcome = super::super::reconcile(cache, config, &key(name), &mut batch);
        let (writes, enqueued) = batch.into_parts();
        let status = writes.iter().find_map(|write| match write {
            Write::Status(Object::Backup(backup)) => backup.status.clone(),
            _ => None,
        });
        (status, enqueued, outcome)
    }

    #[tokio::test]
    async fn a_reconcile_requests_a_verification_that_is_due_and_comes_back_when_the_next_one_is() {
        let config = Config::new();
        let now = config.clock.now();
        let done = json!({"endedAt": now.to_string(), "damagedBlocks": 0});
        let cache = cache(&json!(null), &done);
        let (status, ..) = reconciled(&cache, &config, "first");
        let requested = status.and_then(|status| status.verification?.requested).expect("it is requested");
        assert_eq!(requested.token, None);
        let (status, enqueued, outcome) = reconciled(&cache, &config, "second");
        assert_eq!((status, enqueued), (None, Vec::new()), "nothing is written");
        let next = now.checked_add(SignedDuration::from_hours(7 * 24)).expect("a time");
        let Outcome::Blocked(dependencies) = outcome else { panic!("{outcome:?}") };
        assert!(dependencies.contains(&Dependency::Time(next)), "{dependencies:?}");
        let repository = Key::namespaced(crate::key::ObjectKind::BackupRepository, "ns", "r");
        assert!(dependencies.contains(&Dependency::Object(repository)), "its policy may change");
    }

    #[tokio::test]
    async fn damage_of_a_backup_has_the_others_of_its_disk_verified() {
        let config = Config::new();
        let ago = |hours: i64| {
            let time = config.clock.now().checked_sub(SignedDuration::from_hours(hours)).expect("a time");
            time.to_string()
        };
        let (damaged, whole) =
            (json!({"endedAt": ago(1), "damagedBlocks": 2}), json!({"endedAt": ago(2), "damagedBlocks": 0}));
        let cache = cache(&damaged, &whole);
        let (status, enqueued, _) = reconciled(&cache, &config, "first");
        assert_eq!((status, enqueued), (None, vec![key("second")]));
        let (status, enqueued, _) = reconciled(&cache, &config, "second");
        assert!(status.is_some_and(|status| status.verification.is_some_and(|v| v.requested.is_some())));
        assert!(enqueued.is_empty(), "{enqueued:?}");
    }
}
