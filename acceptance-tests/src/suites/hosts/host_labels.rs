//! A group and a disk that ask for hosts with a label, and the conditions of the group's members.

use anyhow::ensure;
use serde_json::{Value, json};

use super::{SOON, message};
use crate::fleet::Fleet;
use crate::manifests;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::wait;

const ZONE: &str = "topology.kubernetes.io/zone";
const GROUP: &str = "labelled";
/// Its group asks for a zone.
const MEMBER: &str = "labelled-member";
/// Its disk asks for a zone.
const USER: &str = "labelled-user";

/// Runs the cases. The hosts h2 and h3 are in the zones b and c.
pub fn run(report: &mut Report, fleet: &Fleet) {
    let kubectl = fleet.kubectl();
    report.case("a VM is placed in the zone of its group, and another in the zone of its disk", || {
        let class = manifests::bios_class(GROUP, "64Mi");
        let disk = manifests::with(manifests::blank_disk(USER, "64Mi"), "placement", selector("b"));
        let member =
            manifests::with(manifests::vm(MEMBER, GROUP, MEMBER), "placement", json!({"group": GROUP}));
        kubectl.apply(&manifests::all(&[
            class,
            group("c"),
            manifests::blank_disk(MEMBER, "64Mi"),
            disk,
            member,
            manifests::vm(USER, GROUP, USER),
        ]))?;
        for (vm, host) in [(MEMBER, "h3"), (USER, "h2")] {
            kubectl.condition(&format!("vm/{vm}"), "Running=True", None, SOON)?;
            ensure!(fleet.host_of(vm)? == host, "{vm} is on {}", fleet.host_of(vm)?);
        }
        let is_placed = |group: &Value| {
            has_condition(group, "Scheduled", "True") && has_condition(group, "PlacementSynced", "True")
        };
        let name = format!("placementgroup/{GROUP}");
        let group = kubectl.until(&name, "to have its member", SOON, is_placed)?;
        ensure!(group["status"]["placed"] == 1, "{:#}", group["status"]);
        Ok(())
    });
    report.case("a zone that the host of a member is not in is reported, and moves nothing", || {
        kubectl.apply(&manifests::all(&[group("b")]))?;
        let vm = kubectl.condition(
            &format!("vm/{MEMBER}"),
            "PlacementSynced=False",
            Some("PlacedElsewhere"),
            SOON,
        )?;
        contains_all(message(&vm, "PlacementSynced")?, &["PlacementGroup labelled", ZONE, "host h3"])?;
        let name = format!("placementgroup/{GROUP}");
        let is_reported = |group: &Value| has_condition(group, "PlacementSynced", "False");
        let found = kubectl.until(&name, "to report the member", SOON, is_reported)?;
        let broken = kubectl.condition(&name, "Ready=False", Some("GroupRuleBroken"), SOON)?;
        contains_all(message(&broken, "Ready")?, &[MEMBER, ZONE, "host h3"])?;
        ensure!(found["status"]["members"][0]["host"] == "h3", "{:#}", found["status"]);
        ensure!(fleet.host_of(MEMBER)? == "h3", "it has moved");
        Ok(())
    });
    report.case("a disk of a zone that no host is in says so, and its VM waits", || {
        let lost = "labelled-nowhere";
        let disk = manifests::with(manifests::blank_disk(lost, "64Mi"), "placement", selector("z"));
        kubectl.apply(&manifests::all(&[disk, manifests::vm(lost, GROUP, lost)]))?;
        let disk = kubectl.condition(&format!("disk/{lost}"), "Stalled=True", Some("NoSuchHost"), SOON)?;
        contains_all(message(&disk, "Stalled")?, &["none of", &format!("{ZONE}=z")])?;
        let vm = kubectl.condition(&format!("vm/{lost}"), "Ready=False", Some("WaitingForDisk"), SOON)?;
        contains_all(message(&vm, "Ready")?, &["Disk labelled-nowhere", ZONE])?;
        kubectl.delete(&format!("vm/{lost}"))?;
        kubectl.delete(&format!("disk/{lost}"))
    });
    report.case("the VMs of both zones are taken away", || {
        for vm in [MEMBER, USER] {
            kubectl.delete(&format!("vm/{vm}"))?;
        }
        wait::until("their disks to go", SOON, || {
            let (member, user) = (format!("disk/{MEMBER}"), format!("disk/{USER}"));
            kubectl.ok(&["delete", &member, &user, "--ignore-not-found", "--timeout=60s"])
        })?;
        kubectl.delete(&format!("placementgroup/{GROUP}"))?;
        kubectl.delete(&format!("vmclass/{GROUP}"))
    });
}

fn selector(zone: &str) -> Value {
    json!({"hostSelector": {ZONE: zone}})
}

fn group(zone: &str) -> Value {
    manifests::with(manifests::group(GROUP), "hostSelector", json!({ZONE: zone}))
}

/// Whether the only member has a condition with this status.
fn has_condition(group: &Value, kind: &str, status: &str) -> bool {
    let conditions = group["status"]["members"][0]["conditions"].as_array();
    conditions.into_iter().flatten().any(|found| found["type"] == kind && found["status"] == status)
}
