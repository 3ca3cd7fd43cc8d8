//! Plan for a disk that moves to another pool while its guest runs. Pure.

use std::time::Duration;

use berth_api::{Disk, Readiness, Reason};
use berth_host::{NewMove, VolumeFacts};
use berth_qemu::block::Mirror;

use super::Step;
use super::observe::Observed;
use crate::converge::Plan;
use crate::pulls::percent;

/// Interval at which QEMU is asked how much is copied.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Interval at which it is seen whether the disk can move under its guest now.
const LOOK_FOR_OBSTACLE: Duration = Duration::from_secs(30);

/// Returns the plan for a disk that has a mirror, or of which one has left a file. None: there is neither.
pub(super) fn ongoing(disk: &Disk, facts: &VolumeFacts, observed: &Observed) -> Option<Plan<Step>> {
    let seen = &observed.mirror;
    let volume = || facts.id.clone();
    let is_wanted = disk.metadata.deletion_timestamp.is_none()
        && seen
            .prepared
            .as_ref()
            .is_some_and(|new| new.from == facts.pool && new.to == disk.target_pool().as_str());
    let cancel = |failure| {
        let text = "its move to another pool is being ended".to_owned();
        let step = Step::CancelMirror { volume: volume(), failure };
        Some(Plan::steps(vec![step], Readiness::Reconciling(Reason::Moving, text)))
    };
    let to = seen.prepared.as_ref().map(|new| new.to.as_str()).unwrap_or_default();
    let finish = || {
        let readiness = moving(facts, to, "its machine is being switched to it");
        Some(Plan::steps(vec![Step::FinishMirror(volume())], readiness))
    };
    match &seen.state {
        // Its guest is paused.
        Some(Mirror::Switched) => finish(),
        Some(Mirror::Pending | Mirror::Ready) if is_wanted && may_finish(observed) => finish(),
        Some(Mirror::Pending | Mirror::Ready) if is_wanted => {
            let readiness =
                moving(facts, to, "it is copied, and its machine is switched once its guest runs");
            Some(Plan::without_steps(readiness).requeue_after(LOOK_AGAIN))
        }
        Some(Mirror::Copying { done, total }) if is_wanted => {
            let done = percent(*done, Some(*total)).unwrap_or_default();
            let readiness = moving(facts, to, &format!("{done} %"));
            Some(Plan::without_steps(readiness).requeue_after(LOOK_AGAIN))
        }
        Some(Mirror::Failed(why)) => cancel(Some(why.clone()).filter(|_| is_wanted)),
        Some(_) => cancel(None),
        // Of one that has ended, whichever file counts. Another attempt makes the file anew.
        None if seen.prepared.is_some() && !(is_wanted && is_begun_again(observed)) => cancel(None),
        None => None,
    }
}

/// Whether the machine can be switched: a guest that is paused for another reason is not resumed by that.
fn may_finish(observed: &Observed) -> bool {
    observed.mirror.is_running || observed.mirror.state == Some(Mirror::Pending)
}

/// Whether a mirror of which a file is left begins once more, now or after a pause.
fn is_begun_again(observed: &Observed) -> bool {
    let is_open = observed.opener.is_some() && observed.mirror.obstacle.is_none();
    is_open || observed.mirror.failure.is_some()
}

/// Returns the plan for a disk that is to move now and that this VM has open. The error is what else it reports, and when it is looked at
/// again.
pub(super) fn begin(
    new: &NewMove,
    vm: &str,
    facts: &VolumeFacts,
    observed: &Observed,
) -> Result<Plan<Step>, (Readiness, Option<Duration>)> {
    let seen = &observed.mirror;
    if let Some(why) = &seen.obstacle {
        let text = format!(
            "it moves to the pool {} when no VM has it open: VM {vm} has, or may have, and it does not move under a running guest now: {why}",
            new.to
        );
        return Err((Readiness::Reconciling(Reason::MoveWaits, text), Some(LOOK_FOR_OBSTACLE)));
    }
    if let Some((why, again)) = &seen.failure {
        let text =
            format!("its guest goes on in the pool {}, and the move is tried again: {why}", facts.pool);
        let again = (*again).max(Duration::from_millis(1));
        return Err((Readiness::Stalled(Reason::MoveRefused, text), Some(again)));
    }
    Ok(Plan::steps(vec![Step::BeginMirror(new.clone())], moving(facts, &new.to, "0 %")))
}

fn moving(facts: &VolumeFacts, to: &str, progress: &str) -> Readiness {
    let text = format!(
        "being moved from the pool {} to the pool {to} while its guest runs ({progress})",
        facts.pool
    );
    Readiness::Reconciling(Reason::Moving, text)
}
