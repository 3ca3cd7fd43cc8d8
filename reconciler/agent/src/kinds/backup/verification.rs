//! The verification of a complete backup: the work that the controllers request in its status, and the result there.
//!
//! ```text
//!   requested ─Start─▶ (reads) ─▶ whole: verifiedAt │ damaged: Verified=False, with the blocks │ unreachable: again later
//! ```
//!
//! Of the backups of a disk one is verified at a time, so that the next ones leave out the blocks that they share with it. A request of a
//! person comes first and leaves out nothing. Nothing is deleted because of a result.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{
    Backup, BackupRepository, BackupStatus, ConditionType, ConditionUpdate, Conditions, Readiness, Reason,
    RequestedVerification, condition,
};
use berth_host::{BackupToVerify, VerifiedBackup};
use jiff::{SignedDuration, Timestamp};

use super::{Step, id_of, repository_of};
use crate::converge::Plan;
use crate::details::Details;
use crate::index::Tables;
use crate::key::{Key, ObjectName};
use crate::pulls::{Pull, Wanted, percent};

/// Progress is reported in steps of so many percent: no reader waits for it.
const STEP: i64 = 25;

/// Returns the other complete Backups of the same disk in the same repository.
fn beside<'a>(tables: &'a Tables, backup: &'a Backup) -> impl Iterator<Item = &'a Backup> {
    let disk = id_of(backup).map(|id| id.disk);
    let namespace = backup.metadata.namespace.as_deref().unwrap_or_default();
    tables.backups.in_namespace(namespace).map(|(_, other)| other.as_ref()).filter(move |other: &&Backup| {
        other.metadata.name != backup.metadata.name
            && other.metadata.deletion_timestamp.is_none()
            && other.spec.repository == backup.spec.repository
            && other.is_complete()
            && disk.is_some()
            && id_of(other).map(|id| id.disk) == disk
    })
}

/// Whether another Backup of its disk may come first after this change. Each agent has all Backups, so others are not looked for at every
/// change.
pub(super) fn gives_way(old: &Backup, new: Option<&Backup>) -> bool {
    let Some(requested) = old.requested_verification() else { return false };
    new.is_none_or(|new| new.requested_verification() != Some(requested) || host(new) != host(old))
}

/// Returns the keys of the Backups of the same disk that wait for a verification.
pub(super) fn waiting_beside(tables: &Tables, backup: &Backup) -> Vec<Key> {
    let waiting = beside(tables, backup).filter(|other| other.requested_verification().is_some());
    waiting.map(|other| Key::new::<Backup>(ObjectName::of(other))).collect()
}

/// Returns the verification that a Backup needs now. None also while another one of its disk comes first.
pub(super) fn wanted(tables: &Tables, backup: &Backup) -> Option<Wanted> {
    let requested = backup.requested_verification()?;
    let is_after = |other: &Backup| host(other) == host(backup) && rank(other) > rank(backup);
    if beside(tables, backup).any(|other| other.requested_verification().is_some() && is_after(other)) {
        return None;
    }
    work(tables, backup, base(tables, backup, requested))
}

/// Returns the verifications that a host needs now: of each disk the first. They have no base, which does not distinguish them.
pub(super) fn all_wanted<'a>(tables: &'a Tables, own: &str) -> impl Iterator<Item = Wanted> + use<'a> {
    let mut first: BTreeMap<(Option<&'a str>, &'a str, String), &'a Backup> = BTreeMap::new();
    for backup in tables.backups.all().map(|(_, backup)| -> &'a Backup { backup }) {
        if backup.requested_verification().is_none() || host(backup) != Some(own) {
            continue;
        }
        let Some(id) = id_of(backup) else { continue };
        let of = (backup.metadata.namespace.as_deref(), backup.spec.repository.as_str(), id.disk);
        let first = first.entry(of).or_insert(backup);
        if rank(backup) > rank(first) {
            *first = backup;
        }
    }
    first.into_values().filter_map(|backup| work(tables, backup, None))
}

/// Returns the requested verification of a Backup. None: its repository does not exist.
fn work(tables: &Tables, backup: &Backup, base: Option<String>) -> Option<Wanted> {
    let requested = backup.requested_verification()?;
    let (repository, id) = (repository_of(tables, backup)?, id_of(backup)?);
    let bytes_per_second = declared(tables, backup)?.spec.verification_bandwidth();
    let verification = BackupToVerify { id: id.clone(), base, bytes_per_second };
    Some(Wanted::Verification(repository, id, requested.at.clone(), Details(verification)))
}

fn declared(tables: &Tables, backup: &Backup) -> Option<Arc<BackupRepository>> {
    let name = ObjectName::of(backup).beside(backup.spec.repository.as_str());
    tables.backup_repositories.get(&name)
}

fn host(backup: &Backup) -> Option<&str> {
    Some(backup.status.as_ref()?.binding.as_ref()?.host.as_str())
}

/// The greatest comes first: what a person asks for, then what is under way, and then the newest. A backup that is made meanwhile would
/// have one that takes days begin anew each day otherwise.
fn rank(backup: &Backup) -> (bool, bool, Option<Timestamp>, Option<&str>) {
    let asked = backup.requested_verification().is_some_and(|requested| requested.token.is_some());
    let is_begun = backup.verification().is_some_and(|verification| verification.progress.is_some());
    let taken_at = backup.status.as_ref().and_then(|status| status.taken_at.as_ref()?.parse().ok());
    (asked, is_begun, taken_at, backup.metadata.name.as_deref())
}

/// Returns the backup whose blocks need not be read again: within the interval it was read as a whole, and no damage was found since.
fn base(tables: &Tables, backup: &Backup, requested: &RequestedVerification) -> Option<String> {
    let days = declared(tables, backup)?.spec.verification.as_ref()?.interval_days;
    let asked: Timestamp = requested.at.parse().ok().filter(|_| requested.token.is_none())?;
    let since = asked.checked_sub(SignedDuration::from_hours(days.clamp(1, 365) * 24)).ok()?;
    let all = || beside(tables, backup).chain([backup]);
    let ended = |other: &Backup, damaged: bool| {
        let found = other.verification().filter(|found| found.found_damage() == damaged)?;
        found.ended()
    };
    let damage = all().filter_map(|other| ended(other, true)).max();
    let is_recent = |at: &Timestamp| since <= *at && damage.is_none_or(|damage| damage < *at);
    let whole = beside(tables, backup).filter(|other| other.verification().is_some_and(|v| v.base.is_none()));
    let recent =
        whole.filter_map(|other| Some((ended(other, false).filter(is_recent)?, id_of(other)?.backup)));
    recent.max().map(|(_, id)| id)
}

/// The plan for a complete backup.
pub(super) fn plan(wanted: Option<&Wanted>, pull: Option<&Pull>) -> Plan<Step> {
    let ready = Readiness::Ready(Reason::Available, String::new());
    match (wanted, pull) {
        (Some(wanted), None) => Plan::steps(vec![Step::Start(wanted.clone())], ready),
        (Some(wanted), Some(Pull::Running { followed: false, .. })) => {
            Plan::steps(vec![Step::Follow(wanted.clone())], ready)
        }
        (Some(_), Some(Pull::Failed { again, .. })) => Plan::without_steps(ready).requeue_for_retry(*again),
        _ => Plan::without_steps(ready),
    }
}

/// Writes how far the verification of a complete backup is, or its result.
pub(super) fn write(status: &mut BackupStatus, pull: Option<&Pull>, generation: i64, now: Timestamp) {
    let (Some(pull), Some(verification)) = (pull, &mut status.verification) else { return };
    match pull {
        Pull::Running { done, total, .. } => {
            verification.progress = percent(*done, *total).map(|percent| percent / STEP * STEP);
        }
        Pull::Failed { readiness, .. } => {
            // Damage that was found stays reported.
            let known = condition::find(&status.conditions, ConditionType::Verified.as_str());
            if known.is_none_or(|known| known.status != "False") {
                let text = format!("it could not be read, which is tried again: {}", readiness.message());
                let update =
                    ConditionUpdate::new(ConditionType::Verified, "Unknown", readiness.reason(), &text);
                condition::set(&mut status.conditions, update, generation, now);
            }
        }
        Pull::Verified(found) => {
            let requested = verification.requested.take();
            // A clock that is behind that of the controllers would have them request it again at once.
            let at = requested.as_ref().and_then(|requested| requested.at.parse().ok());
            let ended = at.map_or(now, |at: Timestamp| at.max(now));
            if let Some(token) = requested.and_then(|requested| requested.token) {
                verification.token = Some(token);
            }
            verification.progress = None;
            verification.ended_at = Some(ended.to_string());
            verification.read_bytes = Some(i64::try_from(found.read_bytes).unwrap_or(i64::MAX));
            verification.base.clone_from(&found.base);
            verification.damaged_blocks = Some(i64::try_from(found.damaged).unwrap_or(i64::MAX));
            if found.damaged == 0 {
                status.verified_at = Some(now.to_string());
            }
            report(&mut status.conditions, found, generation, now);
        }
        Pull::Found(_) | Pull::Stored(_) | Pull::Deleted => {}
    }
}

fn report(conditions: &mut Conditions, found: &VerifiedBackup, generation: i64, now: Timestamp) {
    let (reason, text) = match (found.damaged, &found.base) {
        (0, None) => (Reason::Verified, "all its data was read back".to_owned()),
        (0, Some(base)) => {
            (Reason::Verified, format!("all its data was read back that backup {base} does not have too"))
        }
        (damaged, _) => {
            let more = damaged.saturating_sub(found.named.len() as u64);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            (Reason::BackupLost, format!("damaged or missing: {}{more}", found.named.join("; ")))
        }
    };
    let update = ConditionUpdate::from_bool(ConditionType::Verified, found.damaged == 0, reason, &text);
    condition::set(conditions, update, generation, now);
}

/// Returns the event of damage that was not reported before.
pub(super) fn event(stored: Option<&BackupStatus>, status: &BackupStatus) -> Option<(Reason, String)> {
    let damage = |status: &BackupStatus| {
        let verified = condition::find(&status.conditions, ConditionType::Verified.as_str());
        verified.filter(|verified| verified.status == "False").map(|verified| verified.message.clone())
    };
    let now = damage(status)?;
    (stored.and_then(damage).as_ref() != Some(&now)).then_some((Reason::BackupLost, now))
}

/// Returns the number of Backups of this host whose last verification found damage.
pub(crate) fn damaged_backups(tables: &Tables, own: &str) -> usize {
    let damaged = tables.backups.all().filter(|(_, backup)| {
        host(backup) == Some(own) && backup.verification().is_some_and(|found| found.found_damage())
    });
    damaged.count()
}
