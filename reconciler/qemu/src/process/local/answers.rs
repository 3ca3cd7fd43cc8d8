//! The wait for the monitor of a QEMU that was just started.

use std::time::Duration;

use tokio::time::Instant;

use crate::machine::LaunchSpec;
use crate::process::vfork::Child;
use crate::process::{LaunchError, ProcessIdentity, identity, last_lines};
use crate::qmp::Qmp;
use crate::socket;

/// From the start of the process until its monitor must reply. A hundred at once on two cores need 8 s.
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);
/// Between two attempts to connect to the monitor of a QEMU that has just been started.
const SHORTEST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
const STDERR_LINES: usize = 20;
const STDERR_BYTES: u64 = 8 << 10;

/// QEMU's end at its start. It cannot map memory for which there are no pages, or has a fault when it writes to them.
fn exited(spec: &LaunchSpec, status: String, stderr: String) -> LaunchError {
    let is_memory = ["backing store for guest RAM", "preallocat", "hugetlb", "memfd"]
        .iter()
        .any(|part| stderr.contains(part));
    match spec.machine.huge_page_bytes {
        Some(page) if is_memory => LaunchError::HugePages { page, stderr },
        _ => LaunchError::Exited { status, stderr },
    }
}

/// Returns the pause before the next attempt to connect: an eighth of the time that has passed, so that a monitor is found soon after it is
/// there, and a hundred that take seconds cost few attempts.
fn pause_after(passed: Duration) -> Duration {
    (passed / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Waits until the monitor replies, or QEMU has failed.
pub(super) async fn answers(child: &mut Child, spec: &LaunchSpec) -> Result<ProcessIdentity, LaunchError> {
    let pid = child.pid();
    let begun = Instant::now();
    let deadline = begun + LAUNCH_LIMIT;
    let words = || last_lines(&spec.files.paths.stderr_log, STDERR_LINES, STDERR_BYTES).unwrap_or_default();
    loop {
        let attempt = async {
            let stream = socket::connect(&spec.files.paths.qmp).await.ok()?;
            Some(Qmp::over_within(stream, deadline - Instant::now()).await)
        };
        // If QEMU ends before it serves an accepted connection, the attempt ends with it.
        let outcome = attempt.await;
        if let Ok(Some(status)) = child.try_wait() {
            return Err(exited(spec, status.to_string(), words()));
        }
        match outcome {
            Some(Ok(_)) => break,
            _ if Instant::now() >= deadline => {
                return Err(LaunchError::Unresponsive { after: LAUNCH_LIMIT, stderr: words() });
            }
            _ => {}
        }
        tokio::time::sleep(pause_after(begun.elapsed())).await;
    }
    match identity::of(pid) {
        Ok(Some(identity)) => Ok(identity),
        _ => Err(LaunchError::Exited { status: "just after its start".to_owned(), stderr: words() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_attempts_find_a_monitor_soon_after_it_is_there() {
        let (mut passed, mut attempts) = (Duration::ZERO, 0);
        while passed < Duration::from_secs(4) {
            let pause = pause_after(passed);
            assert!(pause <= (passed / 8).max(SHORTEST_PAUSE), "{passed:?}");
            passed += pause;
            attempts += 1;
        }
        assert!(attempts < 120, "{attempts}");
    }
}
