//! `kill -9` amid writes. `cargo storms` does the same for hours.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Kit;
use crate::report::{Report, note};
use crate::storms::{self, Size};
use crate::workspace;

/// The lane ends after this; how many rounds that is depends on the machine.
const LIMIT: Duration = Duration::from_secs(150);
/// Control planes at the same time: starting one leaves a processor idle most of the time.
const SERVERS: u16 = 4;
/// Fewer would show little.
const LEAST: u32 = 20;

/// Runs the lane.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let berth = report.step("berth is built", || kit.binaries())?.berth;
    let seed = u64::from(std::process::id());
    let size = Size { servers: SERVERS, rounds: 100, limit: LIMIT, seed };
    let fact =
        "killed amid writes, every acknowledged write is there once and watches miss and repeat nothing";
    let found = report.step(fact, || storms::run(size, &berth, &workspace::artifacts().join("storms")))?;
    note(&format!("    {found} (seed {seed})"));
    report.case("that was often enough, and at every kind of moment", || {
        ensure!(found.kills >= LEAST, "killed {} times only", found.kills);
        ensure!(found.acknowledged > u64::from(found.kills), "{} writes", found.acknowledged);
        ensure!(found.early_kills > 0, "never while starting");
        Ok(())
    });
    Ok(())
}
