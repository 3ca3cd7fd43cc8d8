//! Changes that reach a guest at once, seen in it or on its host.

use anyhow::{Result, ensure};

use super::bench::{Bench, LARGE, SMALL};
use super::table::Change;
use crate::cgroups;
use crate::http::field;

/// Looks for a change; it may have to be looked for again.
type Check = fn(&mut Bench<'_>) -> Result<()>;

/// By the first attribute of a change of a VM. A disk is not taken out here: no guest agent says that it is not mounted.
pub(super) const CHECKS: &[(&str, Check)] = &[
    ("memoryReservation", reserved),
    ("cpuLimit", limited),
    ("cpuWeight", weighted),
    ("cdroms.image", with_another_medium),
    ("cdroms.connected", with_an_empty_drive),
    ("networkInterfaces", with_two_cards),
    ("networkInterfaces.link", without_a_link),
];

/// Returns how the change is seen. The class's are not looked for again.
pub(super) fn of(change: &Change) -> Option<Check> {
    let name = change.attributes.first().filter(|_| change.kind == "VM")?;
    CHECKS.iter().find(|(other, _)| other == name).map(|(_, check)| *check)
}

fn reserved(bench: &mut Bench<'_>) -> Result<()> {
    let hardware = bench.vm()?["status"]["hardware"].clone();
    ensure!(hardware["memoryReservation"] == "256Mi", "{hardware:#}");
    Ok(())
}

fn limited(bench: &mut Bench<'_>) -> Result<()> {
    let (limit, _) = cgroups::cpu_time(bench.platform.qemu()?)?;
    ensure!(limit == 1_500, "{limit} thousandths of a CPU");
    Ok(())
}

fn weighted(bench: &mut Bench<'_>) -> Result<()> {
    let (_, weight) = cgroups::cpu_time(bench.platform.qemu()?)?;
    ensure!(weight == 200, "a weight of {weight}");
    Ok(())
}

fn with_another_medium(bench: &mut Bench<'_>) -> Result<()> {
    let size = medium(bench)?;
    ensure!(size > LARGE, "a medium of {size} bytes");
    Ok(())
}

fn with_an_empty_drive(bench: &mut Bench<'_>) -> Result<()> {
    let size = medium(bench)?;
    ensure!(size < SMALL, "a medium of {size} bytes");
    Ok(())
}

/// The size of the medium in the guest's drive, in bytes.
fn medium(bench: &Bench<'_>) -> Result<u64> {
    let page = bench.page("disks")?;
    let line = page.lines().find(|line| line.starts_with("name=sr0 ")).unwrap_or_default();
    Ok(field(line, "size")?.parse()?)
}

fn with_two_cards(bench: &mut Bench<'_>) -> Result<()> {
    let page = bench.page("network")?;
    ensure!(page.matches("queues-").count() == 2, "not two cards: {page}");
    Ok(())
}

fn without_a_link(bench: &mut Bench<'_>) -> Result<()> {
    ensure!(bench.page("uptime").is_err(), "the guest answers");
    Ok(())
}
