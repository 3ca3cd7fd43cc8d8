//! The decision: a pure function of the object and the observed inputs.

use berth_api::network::MOST_NAMES;
use berth_api::{Readiness, Reason};

use super::observe::Observed;

pub(super) fn plan(observed: &Observed) -> Readiness {
    match &observed.rejection {
        None if observed.names.len() > MOST_NAMES => {
            let text = format!(
                "its VMs have {} interfaces with an address, and its name servers know {MOST_NAMES} of them: spread the VMs over several networks",
                observed.names.len()
            );
            Readiness::Ready(Reason::Available, text)
        }
        None => Readiness::Ready(Reason::Available, String::new()),
        Some(rejection) => Readiness::Stalled(rejection.reason, rejection.text.clone()),
    }
}
