//! The encryption of a disk in its plan and its status. Pure.

use berth_api::{
    ConditionType, ConditionUpdate, Conditions, Disk, EncryptionStatus, Readiness, Reason, SHARED_NAMESPACE,
    condition,
};
use berth_host::{SealedKey, VolumeFacts};
use jiff::Timestamp;

use super::Step;
use super::observe::Observed;
use crate::converge::Plan;
use crate::unlocking::{self, KeyState, LOOK_AGAIN, LOOK_FOR};

/// Returns the key that a new file is encrypted with, or the plan to wait until it is known.
pub(super) fn of_new_file(observed: &Observed) -> Result<Option<Box<SealedKey>>, Plan<Step>> {
    match &observed.key {
        KeyState::Plain => Ok(None),
        KeyState::Synced(key) | KeyState::Unconfirmed(key) | KeyState::Wraps(key) => Ok(Some(key.clone())),
        KeyState::Waits(readiness) => Err(Plan::without_steps(readiness.clone()).requeue_after(LOOK_FOR)),
    }
}

/// Whether a file is not encrypted, and its disk declares that it is. A guest would write readable data: the note of an image in Ceph that
/// comes from another host is in the metadata of the image, which others can change.
pub(crate) fn is_unencrypted(disk: &Disk, facts: &VolumeFacts) -> bool {
    disk.spec.encryption.is_some() && facts.encryption.is_none()
}

/// Returns the plan for a disk that has a file, as its key allows it. A running machine has its key itself.
pub(super) fn of_file(plan: Plan<Step>, disk: &Disk, facts: &VolumeFacts, observed: &Observed) -> Plan<Step> {
    match &observed.key {
        KeyState::Plain => plan,
        KeyState::Synced(_) => plan.requeue_after(LOOK_AGAIN),
        KeyState::Unconfirmed(_) => plan.requeue_after(LOOK_FOR),
        KeyState::Wraps(key) => {
            let rewrap =
                Step::Rewrap { pool: facts.pool.clone(), volume: facts.id.clone(), key: key.clone() };
            let text = format!("its key is being protected by KeyClass {}", key.wrapped_by);
            let readiness = Readiness::Reconciling(Reason::Provisioning, text);
            match is_announced(disk, key) {
                true => Plan::steps(vec![rewrap], readiness),
                false => Plan::without_steps(readiness).requeue_after(LOOK_FOR),
            }
        }
        KeyState::Waits(_) if observed.open_size.is_some() => plan.requeue_after(LOOK_FOR),
        KeyState::Waits(readiness) => Plan::without_steps(readiness.clone()).requeue_after(LOOK_FOR),
    }
}

/// Whether the status has the class that is to protect the key. It is written before the note is: the host may read the Secret of a
/// reported class, so that it can open the key also if it crashes in between and the disk declares yet another class then.
fn is_announced(disk: &Disk, key: &SealedKey) -> bool {
    let reported = disk.status.as_ref().and_then(|status| status.encryption.as_deref());
    reported.is_none_or(|reported| reported.next.as_deref() == Some(key.wrapped_by.as_str()))
}

/// Returns the encryption to report. A host reports a class that the disk declares, or one that was reported before.
pub(super) fn reported(disk: &Disk, observed: &Observed) -> Option<Box<EncryptionStatus>> {
    let key = observed.volume.as_ref()?.encryption.as_deref()?;
    let declared = disk.spec.encryption.as_ref()?.key_class.as_str();
    let namespace = disk.metadata.namespace.as_deref().unwrap_or_default();
    let before = disk.status.as_ref().and_then(|status| status.encryption.as_ref());
    let is_declared = key
        .wrapped_by
        .split_once('/')
        .is_some_and(|(found, name)| name == declared && (found == namespace || found == SHARED_NAMESPACE));
    let is_known = before.is_some_and(|before| {
        before.key_class == key.wrapped_by || before.next.as_deref() == Some(key.wrapped_by.as_str())
    });
    let mut reported = unlocking::reported(Some(key).filter(|_| is_declared || is_known))?;
    if let KeyState::Wraps(next) = &observed.key {
        reported.next = Some(next.wrapped_by.clone()).filter(|next| *next != reported.key_class);
    }
    Some(reported)
}

/// Writes the condition of a disk that is encrypted, or is to be.
pub(super) fn report(disk: &Disk, observed: &Observed, conditions: &mut Conditions, now: Timestamp) {
    let kind = ConditionType::EncryptionSynced;
    let (holds, reason, text) = match &observed.key {
        KeyState::Plain => return condition::remove(conditions, kind),
        KeyState::Synced(_) | KeyState::Unconfirmed(_) => (true, Reason::Synced, String::new()),
        KeyState::Wraps(key) => {
            let text = format!("its key is being protected by KeyClass {}", key.wrapped_by);
            (false, Reason::Provisioning, text)
        }
        KeyState::Waits(readiness) => (false, readiness.reason(), readiness.message().to_owned()),
    };
    let generation = disk.metadata.generation.unwrap_or(0);
    condition::set(conditions, ConditionUpdate::from_bool(kind, holds, reason, &text), generation, now);
}
