//! Many VMs on simulated hosts. The suite checks counts; `cargo scale` reports times.
//!
//! A thousand VMs on fifty hosts with release binaries (`--release`); debug binaries take thirty times as long per VM, so the
//! suite then uses a tenth of that.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Kit;
use crate::bench::scale::{self, Measured, PROBE, Size};
use crate::report::Report;
use crate::workspace;

/// The numbers of VMs and hosts, with release and with debug binaries.
const RELEASE: (usize, u16) = (1_000, 50);
const DEBUG: (usize, u16) = (100, 10);
/// The limit of writes per VM, all kinds and events counted:
///
/// | object | writes |
/// |---|---|
/// | VM | create with the finalizer, bind, admission, running with the guest seen |
/// | Disk | create with the finalizer, bind, file |
///
/// Those are 7, as simulated guests are seen a tenth of a second after their start. The count varies by the share of the host's status, by
/// Disks whose VM is created more than a quarter of a second later, and by guests that are seen more than a second after their start, or
/// whose agent is more than a second after their lease (all on a busy machine).
const WRITES_PER_VM: f64 = 8.7;
/// The shortest time between two reports of a host.
const HOST_REPORTS_EVERY: Duration = Duration::from_secs(5);

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let berth = report.step("berth is built", || kit.binaries())?.berth;
    let (vms, hosts) = if kit.is_debug() { DEBUG } else { RELEASE };
    let size = Size { vms, hosts, steady: Duration::from_secs(10) };
    let fact = format!("{vms} VMs created at once on {hosts} hosts are all bound, and all converge");
    let found = report.step(&fact, || {
        scale::run(size, &Measured::Embedded { berth: &berth }, &workspace::artifacts().join("scale"))
    })?;
    report.case("every host has its share of them", || {
        let (fewest, most) = found.seen.spread();
        ensure!(found.seen.hosts() == usize::from(hosts), "{} hosts have any", found.seen.hosts());
        ensure!(most - fewest <= 2, "from {fewest} to {most} on a host");
        Ok(())
    });
    report.case("a VM takes a small number of writes", || {
        let writes = found.burst.writes_per_vm();
        ensure!(writes <= WRITES_PER_VM, "{writes:.1} writes a VM:\n{}", found.burst.table());
        Ok(())
    });
    report.case("no VM takes an event", || {
        let events = found.burst.counts.writes_of(&["events"]);
        ensure!(events == 0, "{events} events of {vms} VMs that only made progress");
        Ok(())
    });
    report.case("a host reports at most once in five seconds", || {
        let (writes, lasted) = (found.burst.host_writes(), found.burst.lasted);
        let limit = u64::from(hosts) * (1 + lasted.as_secs() / HOST_REPORTS_EVERY.as_secs());
        ensure!(writes <= limit, "{writes} reports of {hosts} hosts in {lasted:.0?}");
        Ok(())
    });
    report.case("a VM takes no more writes on a full site than on an empty one", || {
        // A write for each host would add as many writes as there are hosts.
        let (early, late) = (found.early.writes_per_vm(), found.late.writes_per_vm());
        ensure!(late <= early + 2.0, "{late:.1} writes a VM after {vms}, {early:.1} before");
        Ok(())
    });
    report.case("nothing is written when nothing happens", || {
        let writes = found.steady.idle_writes();
        ensure!(writes == 0, "{writes} writes: {:#?}", found.steady.counts);
        Ok(())
    });
    report.case("the cost of a VM does not grow with their number", || {
        let growth = found.growth();
        ensure!(growth <= 2.0, "a VM of {PROBE} costs {growth:.2} times as much after {vms} as before");
        Ok(())
    });
    Ok(())
}
