//! The mode in which a VM is stopped.

use berth_api::{StopMode, VM};

use super::Observed;
use crate::journal::StopReason;

/// Returns the mode of a stop. A guest holds back neither a deletion nor the administrator of its host, and one that does
/// not work is not waited for.
pub(super) fn mode(vm: &VM, observed: &Observed, why: StopReason) -> StopMode {
    let declared = match why {
        StopReason::Restart | StopReason::Unhealthy => vm.spec.restart_mode.unwrap_or(vm.spec.stop.mode),
        StopReason::PowerOff | StopReason::Delete => vm.spec.stop.mode,
    };
    let falls_back = matches!(why, StopReason::Delete | StopReason::Unhealthy) || observed.draining;
    if declared == StopMode::Soft && falls_back { StopMode::Graceful } else { declared }
}
