//! The memory overhead of a QEMU above its guest's memory: its host measures it, and the scheduler counts it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{SOON, message};
use crate::fleet::Fleet;
use crate::manifests;
use crate::report::Report;
use crate::suites::kubectl::contains_all;

const HOST: &str = "h2";
const NAME: &str = "counted";
/// The overhead that is counted until a QEMU has been measured to use more, in MiB.
const KNOWN: u64 = 90;
/// The tolerance in MiB: host and test measure at different moments, and the host rounds to steps of 5.
const APART: u64 = 20;

/// Runs the cases on a host with one guest and an agent that has just found it running; nothing is left behind.
pub fn run(report: &mut Report, fleet: &Fleet) {
    report.case("a host counts with what its QEMU takes by /proc above the guest's memory", || {
        let pids = fleet.member(HOST)?.qemu()?;
        ensure!(pids.len() == 1, "{pids:?}");
        let takes = above_the_guest(pids[0])?;
        let counted = mib(&host(fleet)?["status"]["vmOverhead"])?;
        ensure!(takes > 10, "a QEMU cannot take {takes} MiB");
        ensure!(
            counted + APART >= takes && counted <= (takes + APART).max(KNOWN),
            "it takes {takes} MiB, and {counted} MiB are counted"
        );
        Ok(())
    });
    report.case("and so does the scheduler: a VM that fits but for that is not placed there", || {
        let kubectl = fleet.kubectl();
        let host = host(fleet)?;
        let fits = mib(&host["status"]["free"]["memory"])? - mib(&host["status"]["vmOverhead"])?;
        let declare = |memory: u64| {
            // Stopped: only the placement matters.
            let vm = manifests::with(manifests::vm(NAME, NAME, NAME), "power", json!("Stopped"));
            let vm = manifests::with(vm, "placement", json!({"host": HOST}));
            let class = manifests::bios_class(NAME, &format!("{memory}Mi"));
            kubectl.apply(&manifests::all(&[class, manifests::blank_disk(NAME, "64Mi"), vm])).map(drop)
        };
        declare(fits + 2)?;
        let vm = kubectl.condition(&format!("vm/{NAME}"), "Scheduled=False", None, SOON)?;
        contains_all(message(&vm, "Scheduled")?, &["memory"])?;
        declare(fits - 2)?;
        let vm = kubectl.condition(&format!("vm/{NAME}"), "Ready=True", Some("Stopped"), SOON)?;
        ensure!(crate::fleet::host_in(&vm).as_deref() == Some(HOST), "{:#}", vm["status"]["binding"]);
        let all = [format!("vm/{NAME}"), format!("disk/{NAME}"), format!("vmclass/{NAME}")];
        for object in &all {
            kubectl.ok(&["delete", object, "--timeout=60s"])?;
        }
        Ok(())
    });
}

fn host(fleet: &Fleet) -> Result<Value> {
    fleet.kubectl().object("host", HOST)
}

/// The MiB of a quantity in MiB or GiB.
fn mib(quantity: &Value) -> Result<u64> {
    let text = quantity.as_str().context("no quantity")?;
    let (number, factor) = match text.strip_suffix("Gi") {
        Some(number) => (number, 1024),
        None => (text.strip_suffix("Mi").with_context(|| text.to_owned())?, 1),
    };
    Ok(number.parse::<u64>().with_context(|| text.to_owned())? * factor)
}

/// The MiB of a process by the kernel's own sum, without its largest mapping, which is the guest's memory.
fn above_the_guest(pid: i32) -> Result<u64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let all = rollup.lines().find_map(|line| kib(line, "Pss:")).context("no Pss")?;
    let (mut largest, mut size) = ((0, 0), 0);
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        size = kib(line, "Size:").unwrap_or(size);
        if let Some(pss) = kib(line, "Pss:").filter(|_| size > largest.0) {
            largest = (size, pss);
        }
    }
    Ok(all.saturating_sub(largest.1) / 1024)
}

fn kib(line: &str, name: &str) -> Option<u64> {
    line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok()
}
