//! The memory of a guest as its balloon and the guest itself report it.

use berth_qemu::balloon::{Balloon, GuestMemory, REPORT_EVERY};
use jiff::Timestamp;

use crate::journal::Run;

/// The age in seconds from which on the report of a guest is not used: the guest has been started anew without the driver, or hangs.
const OLD_REPORT: i64 = 6 * REPORT_EVERY.cast_signed();

/// Returns the memory that a guest has reported a moment ago, cut to what it can have: the numbers are the guest's own.
pub(crate) fn reported(run: &Run, balloon: Balloon, now: Timestamp) -> Option<GuestMemory> {
    let report = balloon.report.filter(|report| now.as_second().saturating_sub(report.at) < OLD_REPORT)?;
    Some(report.memory.within(run.memory_bytes))
}

/// Returns the bytes that are in the balloon.
pub(crate) fn ballooned(run: &Run, balloon: Balloon) -> u64 {
    run.base_memory().saturating_sub(balloon.left)
}
