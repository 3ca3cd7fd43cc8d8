//! Plan for a snapshot. Pure.

use std::time::Duration;

use berth_api::condition::find;
use berth_api::{ConditionType, DiskSnapshot, Readiness, Reason, former_uid};
use berth_host::{NewSnapshot, VolumeOwner};

use super::Step;
use super::observe::Observed;
use super::parts::{Parts, identity};
use crate::converge::Plan;

/// How often a deleted snapshot looks whether a restore still needs it.
const LOOK_FOR_RESTORE: Duration = Duration::from_secs(2);

/// Interval at which it is seen whether its status names the pool that its disk was moved to.
const LOOK_AFTER_MOVE: Duration = Duration::from_secs(2);

/// Interval at which it is seen whether its pool, or the data of its disk, is there.
const LOOK_FOR_POOL: Duration = Duration::from_secs(30);

pub(super) fn plan(snapshot: &DiskSnapshot, observed: &Observed) -> Plan<Step> {
    let Some(new) = identity(snapshot) else {
        let text = "bound without the identity of its disk".to_owned();
        return Plan::without_steps(Readiness::Reconciling(Reason::Bound, text));
    };
    // It may have been moved with its disk since its status was written.
    let pool = observed.snapshot.as_ref().map_or(new.pool, |facts| facts.pool.clone());
    let new = NewSnapshot { pool, ..new };
    if let Some(text) = &observed.away {
        // Nothing is taken, deleted or taken for lost.
        return Plan::without_steps(Readiness::Reconciling(Reason::PoolAway, text.clone()))
            .requeue_after(LOOK_FOR_POOL);
    }
    let owner =
        observed.snapshot.as_ref().map_or(Owner::ThisSnapshot, |facts| owner(snapshot, facts.owner.as_ref()));
    if snapshot.metadata.deletion_timestamp.is_some() {
        if let Some(vm) = &observed.held_by {
            let text = format!("deleted, and held until VM {vm} is restored from its VMSnapshot");
            let held = Readiness::Reconciling(Reason::InUse, text);
            return Plan::without_steps(held).requeue_after(LOOK_FOR_RESTORE);
        }
        let mut steps = Vec::new();
        if !matches!(owner, Owner::Other) {
            // The memory is kept before the snapshot is begun, and goes before the last record of it.
            steps.push(Step::RemoveMemory(new.id.clone()));
            // The record of a lost one would keep what is below it, and its disk in its pool.
            steps.extend((observed.snapshot.is_some() || observed.is_lost).then_some(Step::Delete(new)));
        }
        steps.push(Step::Release);
        return Plan::steps(steps, Readiness::Reconciling(Reason::Deleting, "being deleted".into()));
    }
    let is_taken = observed.snapshot.as_ref().is_some_and(|facts| facts.taken.is_some());
    match owner {
        Owner::Other => {
            let text =
                format!("snapshot {} on this host was taken for another object: it is left alone", new.id);
            Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text))
        }
        Owner::Former => {
            let Some(owner) = new.owner else { return Plan::without_steps(ready()) };
            let step = Step::TakeOver { pool: new.pool, snapshot: new.id, owner };
            let text = "taken over from the uid it had before".to_owned();
            Plan::steps(vec![step], Readiness::Reconciling(Reason::Bound, text))
        }
        Owner::ThisSnapshot if is_taken => Plan::without_steps(ready()),
        Owner::ThisSnapshot
            if observed.is_lost
                || snapshot.status.as_ref().is_some_and(|status| status.taken_at.is_some()) =>
        {
            let text = format!(
                "snapshot {} was on this host and its file is gone: bring the file back, or delete the DiskSnapshot",
                new.id
            );
            Plan::without_steps(Readiness::Stalled(Reason::SnapshotLost, text))
        }
        Owner::ThisSnapshot if observed.is_elsewhere => {
            let text = format!(
                "Disk {} comes from another host: the snapshot is taken once its data is here",
                snapshot.spec.disk
            );
            Plan::without_steps(Readiness::Reconciling(Reason::WaitingForDisk, text))
                .requeue_after(LOOK_FOR_POOL)
        }
        Owner::ThisSnapshot if observed.moved_to.is_some() => {
            // Its status names that pool first.
            let text = "its disk was moved to another pool, in which it is taken".to_owned();
            Plan::without_steps(Readiness::Reconciling(Reason::Provisioning, text))
                .requeue_after(LOOK_AFTER_MOVE)
        }
        Owner::ThisSnapshot if !observed.has_volume => {
            let text = format!(
                "Disk {} was deleted before the snapshot was taken: its volume {} is not on this host any more",
                snapshot.spec.disk, new.volume
            );
            Plan::without_steps(Readiness::Stalled(Reason::DiskLost, text))
        }
        Owner::ThisSnapshot => take(snapshot, new, observed.parts.as_ref()),
    }
}

fn take(snapshot: &DiskSnapshot, new: NewSnapshot, parts: Option<&Parts>) -> Plan<Step> {
    let being_taken = |text: String| Readiness::Reconciling(Reason::Provisioning, text);
    match parts {
        None => Plan::steps(vec![Step::Take(vec![new])], being_taken("being taken".to_owned())),
        Some(parts) if parts.here.len() != parts.total => {
            let text = format!(
                "it is taken together with those of the VM's other disks: {} of {} are on this host",
                parts.here.len(),
                parts.total
            );
            Plan::without_steps(Readiness::Reconciling(Reason::WaitingForSnapshot, text))
        }
        Some(Parts { taken_by: Some(other), .. }) => {
            Plan::without_steps(being_taken(format!("being taken together with DiskSnapshot {other}")))
        }
        Some(Parts { memory: true, here, .. }) => {
            if let Some(failed) = memory_failed(snapshot) {
                return Plan::without_steps(failed);
            }
            let text = "being taken together with those of the VM's other disks and with the guest's memory";
            Plan::steps(vec![Step::TakeWithMemory(here.clone())], being_taken(text.to_owned()))
        }
        Some(parts) => {
            let text = "being taken together with those of the VM's other disks".to_owned();
            Plan::steps(vec![Step::Take(parts.here.clone())], being_taken(text))
        }
    }
}

/// Returns the stored readiness of a snapshot whose memory was not saved: each attempt pauses the guest, so there is no other one.
fn memory_failed(snapshot: &DiskSnapshot) -> Option<Readiness> {
    let conditions = &snapshot.status.as_ref()?.conditions;
    let ready = find(conditions, ConditionType::Ready.as_str())?;
    (ready.reason == Reason::SnapshotFailed.as_str())
        .then(|| Readiness::Stalled(Reason::SnapshotFailed, ready.message.clone()))
}

fn ready() -> Readiness {
    Readiness::Ready(Reason::Available, String::new())
}

/// The owner of a snapshot according to the record beside its file.
#[derive(Clone, Copy, Debug)]
enum Owner {
    ThisSnapshot,
    /// This object, under the uid it had before.
    Former,
    Other,
}

fn owner(snapshot: &DiskSnapshot, noted: Option<&VolumeOwner>) -> Owner {
    let Some(noted) = noted else { return Owner::Other };
    let same_name = Some(&noted.namespace) == snapshot.metadata.namespace.as_ref()
        && Some(&noted.name) == snapshot.metadata.name.as_ref();
    match noted.uid.as_deref() {
        uid if same_name && uid == snapshot.metadata.uid.as_deref() => Owner::ThisSnapshot,
        Some(uid) if same_name && former_uid(snapshot) == Some(uid) => Owner::Former,
        _ => Owner::Other,
    }
}
