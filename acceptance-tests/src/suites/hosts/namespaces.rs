//! A host that is reserved for a namespace.

use anyhow::Result;
use serde_json::json;

use super::{SOON, message};
use crate::fleet::{Fleet, host_in};
use crate::manifests;
use crate::report::Report;
use crate::suites::kubectl::contains_all;

const HOST: &str = "h2";
const NAME: &str = "unwelcome";

/// Runs the case; afterwards the host takes VMs of all namespaces.
pub fn run(report: &mut Report, fleet: &Fleet) {
    report.case("a host that is reserved for a namespace takes a VM of another once it is no more", || {
        let waited = reserve(fleet, &["another"]).and_then(|()| waits(fleet));
        let placed = reserve(fleet, &[]).and_then(|()| gets_the_host(fleet));
        let kubectl = fleet.kubectl();
        kubectl.delete(&format!("vm/{NAME}"))?;
        kubectl.delete(&format!("disk/{NAME}"))?;
        kubectl.delete(&format!("vmclass/{NAME}"))?;
        waited.and(placed)
    });
}

/// Reserves the host, and waits until its agent has seen that.
fn reserve(fleet: &Fleet, namespaces: &[&str]) -> Result<()> {
    let patch = json!({"spec": {"namespaces": namespaces}}).to_string();
    fleet.kubectl().ok(&["patch", "host", HOST, "--type=merge", "-p", &patch])?;
    let is_seen =
        |host: &serde_json::Value| host["status"]["observedGeneration"] == host["metadata"]["generation"];
    fleet.kubectl().until(&format!("host/{HOST}"), "to be reserved", SOON, is_seen).map(drop)
}

fn waits(fleet: &Fleet) -> Result<()> {
    let vm = manifests::with(manifests::vm(NAME, NAME, NAME), "placement", json!({"host": HOST}));
    let vm = manifests::with(vm, "power", json!("Stopped"));
    let class = manifests::bios_class(NAME, "64Mi");
    fleet.kubectl().apply(&manifests::all(&[class, manifests::blank_disk(NAME, "64Mi"), vm]))?;
    let vm = fleet.kubectl().condition(&format!("vm/{NAME}"), "Ready=False", Some("Unschedulable"), SOON)?;
    contains_all(message(&vm, "Ready")?, &["host h2 is reserved for other namespaces"])
}

fn gets_the_host(fleet: &Fleet) -> Result<()> {
    let is_there = |vm: &serde_json::Value| host_in(vm).is_some();
    fleet.kubectl().until(&format!("vm/{NAME}"), "to be placed", SOON, is_there).map(drop)
}
