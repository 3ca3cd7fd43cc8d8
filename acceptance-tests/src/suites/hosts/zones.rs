//! A group that is spread over zones; two hosts may share a zone.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{SOON, message};
use crate::fleet::{Fleet, host_in};
use crate::manifests;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::wait;

const ZONE: &str = "topology.kubernetes.io/zone";
const GROUP: &str = "zones";

/// Runs the cases; only host h1's label is left.
pub fn run(report: &mut Report, fleet: &Fleet) {
    let kubectl = fleet.kubectl();
    report.case("each member of a group spread over zones has a zone of its own", || {
        // The same zone as h2's.
        zone_of_first(fleet, "b")?;
        let group = manifests::with(manifests::group(GROUP), "topologyKey", json!(ZONE));
        kubectl.apply(&manifests::all(&[manifests::bios_class(GROUP, "64Mi"), group]))?;
        for number in 0..2 {
            declare(fleet, number)?;
        }
        let zones = [runs_in(fleet, 0)?, runs_in(fleet, 1)?];
        ensure!(zones[0] != zones[1], "both are in zone {}", zones[0]);
        Ok(())
    });
    report.case("one VM more than there are zones has no host, with a reason, though a host is left", || {
        declare(fleet, 2)?;
        let vm =
            kubectl.condition(&format!("vm/{}", name(2)), "Stalled=True", Some("GroupTooLarge"), SOON)?;
        contains_all(message(&vm, "Stalled")?, &["hosts have 2 different values of", ZONE])?;
        ensure!(host_in(&vm).is_none(), "it is bound: {:#}", vm["status"]);
        Ok(())
    });
    report.case("once a host is of a third zone it runs", || {
        zone_of_first(fleet, "a")?;
        runs_in(fleet, 2).map(drop)
    });
    report.case("the group is taken away", || {
        let all: Vec<String> = (0..3).map(|number| format!("vm/{}", name(number))).collect();
        let mut delete = vec!["delete", "--timeout=60s"];
        delete.extend(all.iter().map(String::as_str));
        kubectl.ok(&delete)?;
        wait::until("its disks to go", SOON, || {
            let disks = [name(0), name(1), name(2)].map(|name| format!("disk/{name}"));
            let [first, second, third] = &disks;
            kubectl.ok(&["delete", first, second, third, "--ignore-not-found", "--timeout=60s"])
        })?;
        kubectl.ok(&["delete", "placementgroup/zones", "vmclass/zones"]).map(drop)
    });
}

fn name(number: u32) -> String {
    format!("zoned-{number}")
}

fn zone_of_first(fleet: &Fleet, zone: &str) -> Result<()> {
    fleet.kubectl().ok(&["label", "host", "h1", &format!("{ZONE}={zone}"), "--overwrite"]).map(drop)
}

/// A VM without an operating system: only the placement matters.
fn declare(fleet: &Fleet, number: u32) -> Result<()> {
    let vm = manifests::vm(&name(number), GROUP, &name(number));
    let vm = manifests::with(vm, "placement", json!({"group": GROUP}));
    fleet.kubectl().apply(&manifests::all(&[manifests::blank_disk(&name(number), "64Mi"), vm])).map(drop)
}

/// The zone of the host a VM runs on.
fn runs_in(fleet: &Fleet, number: u32) -> Result<String> {
    fleet.kubectl().condition(&format!("vm/{}", name(number)), "Running=True", None, SOON)?;
    let host = fleet.kubectl().object("host", &fleet.host_of(&name(number))?)?;
    let zone = host["metadata"]["labels"][ZONE].as_str().context("a host without a zone")?;
    Ok(zone.to_owned())
}
