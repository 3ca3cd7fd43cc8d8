//! `kill -9` during writes. `cargo crash` does the same for hours.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Kit;
use crate::bench::crash::{self, Size};
use crate::report::{Report, note};
use crate::workspace;

/// The time after which the suite ends; the number of rounds depends on the machine.
const LIMIT: Duration = Duration::from_secs(150);
/// The number of concurrent control planes: starting one leaves a processor idle most of the time.
const SERVERS: u16 = 4;
/// The minimum number of rounds for a meaningful result.
const LEAST: u32 = 20;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let berth = report.step("berth is built", || kit.binaries())?.berth;
    let seed = u64::from(std::process::id());
    let size = Size { servers: SERVERS, rounds: 100, limit: LIMIT, seed };
    let fact =
        "killed amid writes, every acknowledged write is there once and watches miss and repeat nothing";
    let found = report.step(fact, || crash::run(size, &berth, &workspace::artifacts().join("crash")))?;
    note(&format!("    {found} (seed {seed})"));
    report.case("that was often enough, and at every kind of moment", || {
        ensure!(found.kills >= LEAST, "killed {} times only", found.kills);
        ensure!(found.acknowledged > u64::from(found.kills), "{} writes", found.acknowledged);
        ensure!(found.early_kills > 0, "never while starting");
        Ok(())
    });
    Ok(())
}
