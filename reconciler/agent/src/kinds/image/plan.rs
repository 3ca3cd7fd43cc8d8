//! Plan for an image. Pure.

use std::time::Duration;

use berth_api::{Image, Readiness, Reason};

use super::{Observed, Step, wanted_by};
use crate::converge::Plan;
use crate::pulls::Pull;

const SOON: Duration = Duration::from_millis(10);

pub(super) fn plan(image: &Image, observed: &Observed) -> Plan<Step> {
    if image.metadata.deletion_timestamp.is_some() {
        return Plan::without_steps(Readiness::Reconciling(Reason::Deleting, String::new()));
    }
    match (&observed.cached, &observed.pull) {
        (Some(_), _) => Plan::without_steps(Readiness::Ready(Reason::Verified, String::new())),
        (None, Some(Pull::Running { done, total, followed })) => {
            let follow = (!followed).then(|| Step::FollowPull(wanted_by(image)));
            let readiness = Readiness::Reconciling(Reason::Pulling, progress(*done, *total));
            Plan::steps(follow.into_iter().collect(), readiness)
        }
        (None, Some(Pull::Found(_))) => {
            // Once the status has the checksum, the image itself is downloaded.
            Plan::without_steps(Readiness::Reconciling(Reason::Pulling, progress(0, None)))
                .requeue_after(SOON)
        }
        (None, Some(Pull::Failed { readiness, again })) => {
            let plan = Plan::without_steps(readiness.clone());
            match again {
                Some(again) => plan.requeue_after((*again).max(Duration::from_millis(1))),
                None => plan,
            }
        }
        (None, None) => {
            let readiness = Readiness::Reconciling(Reason::Pulling, progress(0, None));
            Plan::steps(vec![Step::Pull(wanted_by(image))], readiness)
        }
    }
}

/// Formats the progress in steps of 5 %, so that the text changes only when that is worth a write.
pub(super) fn progress(done: u64, total: Option<u64>) -> String {
    match total {
        Some(total) if total > 0 => format!("{} % downloaded", done.saturating_mul(20) / total * 5),
        _ => "downloading".to_owned(),
    }
}
