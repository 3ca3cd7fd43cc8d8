//! Plan for a backup. Pure.

use berth_api::{Backup, Readiness, Reason};

use super::observe::Observed;
use super::{Step, id_of, verification};
use crate::converge::Plan;
use crate::pulls::{Pull, Wanted, percent};

pub(super) fn plan(backup: &Backup, observed: &Observed) -> Plan<Step> {
    if backup.metadata.deletion_timestamp.is_some() {
        return delete(observed);
    }
    if backup.is_complete() {
        return verification::plan(observed.wanted.as_ref(), observed.pull.as_ref());
    }
    if matches!(observed.pull, Some(Pull::Stored(_))) {
        return Plan::without_steps(Readiness::Ready(Reason::Available, String::new()));
    }
    if id_of(backup).is_none() {
        let text = "bound without the identity of its snapshot".to_owned();
        return Plan::without_steps(Readiness::Reconciling(Reason::Bound, text));
    }
    let Some(wanted) = observed.wanted.clone() else {
        let text = match observed.has_repository {
            true => "bound without the identity of its snapshot".to_owned(),
            false => format!("BackupRepository {} does not exist", backup.spec.repository),
        };
        return Plan::without_steps(Readiness::Reconciling(Reason::WaitingForRepository, text));
    };
    work(wanted, observed.pull.as_ref(), |done, total| match &backup.spec.existing {
        Some(_) => Readiness::Reconciling(Reason::BackingUp, "being looked for in the repository".to_owned()),
        None => Readiness::Reconciling(Reason::BackingUp, progress(done, total)),
    })
    .explained(backup)
}

/// The plan of a backup that is deleted. The work that makes it ends first: it would be complete after its deletion otherwise.
fn delete(observed: &Observed) -> Plan<Step> {
    let deleting = || Readiness::Reconciling(Reason::Deleting, "being deleted".to_owned());
    if let Some(unfinished) = observed.unfinished.clone() {
        return Plan::steps(vec![Step::Cancel(unfinished)], deleting());
    }
    match (&observed.wanted, &observed.pull) {
        // Its data is to stay, or there is no repository to delete it from.
        (None, _) | (_, Some(Pull::Deleted)) => Plan::steps(vec![Step::Release], deleting()),
        (Some(_), Some(Pull::Failed { readiness, .. })) if matches!(readiness, Readiness::Stalled(..)) => {
            let text = format!(
                "{}. To let the Backup go and leave its data there, set deletionPolicy to Retain",
                readiness.message()
            );
            let plan = work_of(observed, deleting);
            Plan { readiness: Readiness::Stalled(readiness.reason(), text), ..plan }
        }
        (Some(_), _) => work_of(observed, deleting),
    }
}

fn work_of(observed: &Observed, running: impl Fn() -> Readiness) -> Plan<Step> {
    match observed.wanted.clone() {
        Some(wanted) => work(wanted, observed.pull.as_ref(), |_, _| running()),
        None => Plan::without_steps(running()),
    }
}

/// Returns the plan for work in the background.
fn work(wanted: Wanted, pull: Option<&Pull>, running: impl Fn(u64, Option<u64>) -> Readiness) -> Plan<Step> {
    match pull {
        None => Plan::steps(vec![Step::Start(wanted)], running(0, None)),
        Some(Pull::Running { done, total, followed, .. }) => {
            let follow = (!followed).then_some(Step::Follow(wanted));
            Plan::steps(follow.into_iter().collect(), running(*done, *total))
        }
        Some(Pull::Failed { readiness, again }) => {
            Plan::without_steps(readiness.clone()).requeue_for_retry(*again)
        }
        Some(Pull::Found(_) | Pull::Stored(_) | Pull::Deleted | Pull::Verified(_)) => {
            Plan::without_steps(running(0, None))
        }
    }
}

impl Plan<Step> {
    /// Explains a lost snapshot by the object that it was of.
    fn explained(self, backup: &Backup) -> Self {
        match (&self.readiness, &backup.spec.snapshot) {
            (Readiness::Stalled(Reason::SnapshotLost, text), Some(snapshot)) => {
                let text = format!(
                    "DiskSnapshot {snapshot} was deleted or lost before the backup was complete ({text}): delete the Backup"
                );
                Self { readiness: Readiness::Stalled(Reason::SnapshotLost, text), ..self }
            }
            _ => self,
        }
    }
}

fn progress(done: u64, total: Option<u64>) -> String {
    percent(done, total)
        .map_or_else(|| "being backed up".to_owned(), |percent| format!("{percent} % backed up"))
}
