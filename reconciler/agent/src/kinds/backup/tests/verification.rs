use berth_api::{BackupStatus, ConditionType, VerificationPolicy, condition};
use berth_host::{BackupToVerify, VerifiedBackup};

use super::super::verification::{damaged_backups, event};
use super::*;

/// A complete backup with this verification.
fn with(name: &str, taken_at: &str, verification: &Value) -> Backup {
    bound(
        name,
        json!({"completedAt": "2026-01-02T00:00:00Z", "takenAt": taken_at, "verification": verification}),
    )
}

fn requested(name: &str, taken_at: &str) -> Backup {
    with(name, taken_at, &json!({"requested": {"at": "2026-01-20T00:00:00Z"}}))
}

/// An index with these backups and a repository that has each verified every ten days.
fn verifying(backups: &[Backup]) -> Index {
    let index = index(backups);
    let mut repository = BackupRepository::clone(
        &index.read().backup_repositories.get(&ObjectName::new("ns", "r")).expect("it is there"),
    );
    let policy =
        VerificationPolicy { interval_days: 10, bandwidth: Some("2Mi".parse().expect("a quantity")) };
    repository.spec.verification = Some(policy);
    repository.metadata.resource_version = Some("2".to_owned());
    index.apply(Event::Apply(repository));
    index
}

fn work_of(index: &Index, backup: &Backup) -> Option<BackupToVerify> {
    match wanted_by(&index.read(), backup) {
        Some(Wanted::Verification(_, _, at, Details(work))) => {
            assert_eq!(Some(at), backup.requested_verification().map(|requested| requested.at.clone()));
            Some(work)
        }
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_the_backups_of_a_disk_the_newest_is_verified_first_and_what_a_person_asks_for_before_it() {
    let (old, new) = (requested("a", "2026-01-01T00:00:00Z"), requested("b", "2026-01-03T00:00:00Z"));
    let mut all = vec![old.clone(), new.clone(), complete("c", "2026-01-04T00:00:00Z")];
    let index = verifying(&all);
    assert!(work_of(&index, &old).is_none(), "it waits");
    let work = work_of(&index, &new).expect("it comes first");
    assert_eq!((work.id.backup.as_str(), work.base.as_deref()), ("b-b", None));
    assert_eq!(work.bytes_per_second, 2 << 20);
    let keys: Vec<_> = wanted(&index.read(), "h").collect();
    assert!(matches!(&keys[..], [Wanted::Verification(_, id, ..)] if id.backup == "b-b"), "{keys:?}");
    let mut verified = with("b", "2026-01-03T00:00:00Z", &json!({"endedAt": "2026-01-20T01:00:00Z"}));
    verified.metadata.resource_version = Some("2".to_owned());
    let waits = Key::new::<Backup>(ObjectName::new("ns", "a"));
    assert!(index.apply(Event::Apply(verified)).contains(&waits), "it comes next");
    assert!(work_of(&index, &old).is_some());
    let asked = json!({"requested": {"at": "2026-01-20T00:00:00Z", "token": "now"}});
    let asked = with("a", "2026-01-01T00:00:00Z", &asked);
    all[0] = asked.clone();
    let index = verifying(&all);
    assert!(work_of(&index, &asked).is_some() && work_of(&index, &new).is_none());
    let begun = json!({"requested": {"at": "2026-01-20T00:00:00Z"}, "progress": 0});
    let begun = with("a", "2026-01-01T00:00:00Z", &begun);
    let index = verifying(&[begun.clone(), new.clone()]);
    assert!(work_of(&index, &begun).is_some() && work_of(&index, &new).is_none(), "it is under way");
    let mut elsewhere = new;
    elsewhere.status.as_mut().expect("set").binding = Some(Binding { host: "other".to_owned(), epoch: 1 });
    assert!(
        work_of(&verifying(&[old.clone(), elsewhere]), &old).is_some(),
        "another host's holds up nothing"
    );
    let gone = deleted(old, DeletionPolicy::Retain);
    assert_eq!(wanted_by(&verifying(std::slice::from_ref(&gone)).read(), &gone), None);
}

#[test]
fn blocks_that_were_read_within_the_interval_and_before_no_damage_are_left_out() {
    let new = requested("new", "2026-01-09T00:00:00Z");
    let read = |name: &str, ended: &str, damaged: i64, base: Option<&str>| {
        let result = json!({"endedAt": ended, "damagedBlocks": damaged, "base": base});
        with(name, "2026-01-01T00:00:00Z", &result)
    };
    let base = |others: &[Backup]| {
        let all = [&[new.clone()][..], others].concat();
        work_of(&verifying(&all), &new).expect("it comes first").base
    };
    let (early, late) = ("2026-01-12T00:00:00Z", "2026-01-18T00:00:00Z");
    assert_eq!(base(&[read("a", early, 0, None), read("b", late, 0, None)]).as_deref(), Some("b-b"));
    assert_eq!(base(&[read("a", "2026-01-09T00:00:00Z", 0, None)]), None, "too long ago");
    assert_eq!(base(&[read("a", early, 0, Some("b-0"))]), None, "it was not read as a whole");
    assert_eq!(base(&[read("a", early, 0, None), read("b", late, 1, None)]), None, "damage was found since");
    assert_eq!(base(&[read("a", early, 1, None), read("b", late, 0, None)]).as_deref(), Some("b-b"));
    let asked = json!({"requested": {"at": "2026-01-20T00:00:00Z", "token": "now"}});
    let asked = with("asked", "2026-01-09T00:00:00Z", &asked);
    let all = [asked.clone(), read("b", late, 0, None)];
    assert_eq!(work_of(&verifying(&all), &asked).expect("work").base, None, "a person wants all of it read");
}

/// The status after this state of the verification.
fn after(backup: &Backup, pull: Pull) -> BackupStatus {
    let observed = seen(backup, Some(pull));
    let plan = plan(backup, &observed);
    assert!(matches!(plan.readiness, Readiness::Ready(..)), "it stays ready: {plan:?}");
    status(backup, &observed, &plan.readiness, "2026-01-21T00:00:00Z".parse().expect("a time"))
}

fn verified(status: &BackupStatus) -> (String, String, String) {
    let found =
        condition::find(&status.conditions, ConditionType::Verified.as_str()).expect("it is reported");
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

#[test]
fn a_verification_runs_beside_a_ready_backup_and_its_result_is_recorded_once() {
    let token = json!({"requested": {"at": "2026-01-20T00:00:00Z", "token": "now"}, "token": "before"});
    let backup = with("a", "2026-01-01T00:00:00Z", &token);
    let start = plan(&backup, &seen(&backup, None));
    assert!(matches!(start.steps[..], [Step::Start(Wanted::Verification(..))]), "{start:?}");
    let running = after(&backup, Pull::Running { done: 60, total: Some(100), rate: None, followed: true });
    assert_eq!((running.progress, running.verification.clone().and_then(|v| v.progress)), (None, Some(50)));
    let whole = after(&backup, Pull::Verified(VerifiedBackup { read_bytes: 9, ..VerifiedBackup::default() }));
    assert_eq!(verified(&whole).0, "True");
    assert_eq!(whole.verified_at.as_deref(), Some("2026-01-21T00:00:00Z"));
    let ahead = with("a", "2026-01-01T00:00:00Z", &json!({"requested": {"at": "2026-02-01T00:00:00Z"}}));
    let ended =
        after(&ahead, Pull::Verified(VerifiedBackup::default())).verification.and_then(|v| v.ended_at);
    assert_eq!(ended.as_deref(), Some("2026-02-01T00:00:00Z"), "the clock of the controllers is ahead");
    let result = whole.verification.clone().expect("recorded");
    assert_eq!((result.token.as_deref(), result.requested, result.read_bytes), (Some("now"), None, Some(9)));
    let done = Backup { status: Some(whole), ..backup };
    assert_eq!(wanted_by(&verifying(std::slice::from_ref(&done)).read(), &done), None);
}

#[test]
fn damage_is_reported_with_its_blocks_and_an_unreachable_repository_hides_it_not() {
    let backup = requested("a", "2026-01-01T00:00:00Z");
    let unreachable = || {
        let readiness = Readiness::Reconciling(Reason::RepositoryUnreachable, "no answer".to_owned());
        Pull::Failed { readiness, again: Some(Duration::from_secs(9)) }
    };
    let unknown = after(&backup, unreachable());
    assert_eq!(
        (verified(&unknown).0.as_str(), verified(&unknown).1.as_str()),
        ("Unknown", "RepositoryUnreachable")
    );
    assert!(unknown.verification.as_ref().is_some_and(|v| v.requested.is_some()), "it is tried again");
    let again = plan(&backup, &seen(&backup, Some(unreachable())));
    assert_eq!(again.requeue_after, Some(Duration::from_secs(9)));
    let named = vec!["disks/v-1/blocks/ab/ab0, at byte 0 of the disk: it is missing".to_owned()];
    let found = VerifiedBackup { damaged: 3, named, ..VerifiedBackup::default() };
    let damaged = after(&backup, Pull::Verified(found));
    let (state, reason, message) = verified(&damaged);
    assert_eq!((state.as_str(), reason.as_str()), ("False", "BackupLost"));
    assert!(message.contains("ab0, at byte 0") && message.ends_with("; and 2 more"), "{message}");
    assert_eq!((damaged.verified_at.as_ref(), damaged.completed_at.is_some()), (None, true));
    assert_eq!(event(backup.status.as_ref(), &damaged), Some((Reason::BackupLost, message)));
    assert_eq!(event(Some(&damaged), &damaged), None, "once");
    let mut requested_again = Backup { status: Some(damaged), ..backup };
    assert_eq!(damaged_backups(&index(std::slice::from_ref(&requested_again)).read(), "h"), 1);
    let status = requested_again.status.as_mut().expect("set");
    status.verification.as_mut().expect("set").requested =
        Some(berth_api::RequestedVerification { at: "2026-01-22T00:00:00Z".to_owned(), token: None });
    assert_eq!(verified(&after(&requested_again, unreachable())).0, "False", "the damage stays reported");
}
