//! N15: a change of a security group, until it is in force on all hosts that it concerns; and the kernel's part of that, on one host.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Bench;
use super::figure::Reading;
use super::figures::filters::{Change, KERNEL_MEMBER, KERNEL_RULE, MEMBER, RULE};
use super::samples::Samples;
use crate::bench::scale::Measured;
use crate::bench::scale::security_groups::{self, Changes, SPREADS};
use crate::namespace::Namespace;
use crate::process;
use crate::scratch::Scratch;
use crate::workspace;

const HOSTS: u16 = 500;
/// The numbers of VMs.
const SIZES: [usize; 2] = [1_000, 10_000];
/// The interfaces and the rules of the one host.
const INTERFACES: &str = "1000";
const RULES: &str = "100";
const PROGRAM: &str = "packet-filter";
const LIMIT: Duration = Duration::from_secs(120);

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let kernel = kernel()?;
    let logs = bench.log("N15").with_extension("");
    let measured = Measured::Embedded { berth: &bench.binaries.berth };
    let found = security_groups::run(&SIZES, HOSTS, &measured, &logs)?;
    let mut readings = of_kind(&RULE, &found, |changes| &changes.rules)?;
    readings.extend(of_kind(&MEMBER, &found, |changes| &changes.members)?);
    for (figure, kind) in [(KERNEL_RULE, "rule"), (KERNEL_MEMBER, "member")] {
        readings.push(Reading::median(figure, &times(&kernel, kind)?));
    }
    Ok(readings)
}

fn of_kind(figures: &Change, found: &[Changes], times: fn(&Changes) -> &Vec<f64>) -> Result<Vec<Reading>> {
    // For each number of VMs, one after the other, with each number of hosts.
    let samples = |size: usize, spread: usize| -> Result<Samples> {
        let changes = found.get(size * SPREADS.len() + spread).context("not all was measured")?;
        Samples::new(times(changes).clone()).context("no changes")
    };
    let (few, all) = (samples(0, 2)?, samples(1, 2)?);
    Ok(vec![
        Reading::percentile(figures.p95, &all, 95),
        Reading::percentile(figures.p50, &all, 50),
        Reading::percentile(figures.longest, &all, 100),
        Reading::percentile(figures.fewer[0], &samples(1, 1)?, 95),
        Reading::percentile(figures.fewer[1], &samples(1, 0)?, 95),
        Reading::percentile(figures.few_vms, &few, 95),
        Reading::once(figures.growth, all.median() / few.median()),
    ])
}

/// Writes the rules of a large host into the kernel, in a network namespace of its own. Returns the program's report.
fn kernel() -> Result<String> {
    let mut build = workspace::cargo();
    build.args(["build", "--release", "--message-format=json", "--example", PROGRAM]);
    // With the programs, so that the crates have the same features and are not compiled again.
    build.args(workspace::PACKAGES).args(["--package", "berth-host"]);
    let mut built = workspace::executables(&workspace::run_build(&mut build)?);
    let program = built.remove(PROGRAM).with_context(|| format!("cargo built no {PROGRAM}"))?;
    let (namespace, folder) = (Namespace::new()?, Scratch::new()?);
    let mut command = namespace.command(program);
    command.arg(folder.path().join("state")).args([INTERFACES, RULES]);
    process::run(&mut command, LIMIT)?.success()
}

fn times(report: &str, kind: &str) -> Result<Samples> {
    let lines = report.lines().filter_map(|line| line.strip_prefix(&format!("{PROGRAM} {kind} ")));
    let times: Vec<f64> = lines.filter_map(|time| time.parse().ok()).collect();
    Samples::new(times).with_context(|| format!("{PROGRAM} reports no {kind}: {report}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_kind_are_read_from_the_report() {
        let report = "packet-filter first 90.0\npacket-filter rule 30.5\npacket-filter member 4.0\npacket-filter member 6.0\n";
        assert_eq!(times(report, "member").expect("two").median(), 5.0);
        assert_eq!(times(report, "rule").expect("one").count(), 1);
        assert!(times(report, "other").is_err());
    }

    #[test]
    fn the_target_is_of_all_hosts_and_all_vms() {
        let changes =
            |vms, hosts, time: f64| Changes { vms, hosts, rules: vec![time; 3], members: vec![time; 3] };
        let found = [
            changes(1_000, 2, 1.0),
            changes(1_000, 50, 2.0),
            changes(1_000, 500, 40.0),
            changes(10_000, 2, 4.0),
            changes(10_000, 50, 5.0),
            changes(10_000, 500, 60.0),
        ];
        let values: Vec<f64> = of_kind(&RULE, &found, |changes| &changes.rules)
            .expect("readings")
            .iter()
            .map(|reading| reading.value)
            .collect();
        assert_eq!(values, [60.0, 60.0, 60.0, 5.0, 4.0, 40.0, 1.5]);
    }
}
