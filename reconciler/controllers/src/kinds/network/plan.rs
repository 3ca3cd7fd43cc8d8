//! The decision: a pure function of the object and the observed inputs.

use berth_api::{Readiness, Reason};

use super::observe::Rejection;

pub(super) fn plan(rejection: Option<&Rejection>) -> Readiness {
    match rejection {
        None => Readiness::Ready(Reason::Available, String::new()),
        Some(rejection) => Readiness::Stalled(rejection.reason, rejection.text.clone()),
    }
}
