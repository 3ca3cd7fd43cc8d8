//! Rules of VMs about other VMs, which are selected by their labels. The VMs are off: only the placement matters.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{SOON, message};
use crate::fleet::{Fleet, host_in};
use crate::kubectl::condition_of;
use crate::manifests;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::wait;

const ZONE: &str = "topology.kubernetes.io/zone";
const CLASS: &str = "affinity";
/// Each is kept apart from the others.
const REPLICAS: [&str; 4] = ["affinity-0", "affinity-1", "affinity-2", "affinity-3"];
const CACHE: &str = "affinity-cache";
const DB: &str = "affinity-db";

/// Runs the cases; nothing is left behind. Each of the three hosts is in a zone of its own.
pub fn run(report: &mut Report, fleet: &Fleet) {
    let kubectl = fleet.kubectl();
    report.case("VMs that are kept apart by their own label are on three hosts, and a fourth waits", || {
        kubectl.apply(&manifests::bios_class(CLASS, "64Mi").to_string())?;
        for name in &REPLICAS[..3] {
            declare(fleet, name, "web", &json!({"affinity": [apart()]}))?;
            placed(fleet, name)?;
        }
        let mut hosts = Vec::new();
        for name in &REPLICAS[..3] {
            hosts.push(fleet.host_of(name)?);
        }
        hosts.sort();
        ensure!(hosts == ["h1", "h2", "h3"], "they are on {hosts:?}");
        declare(fleet, REPLICAS[3], "web", &json!({"affinity": [apart()]}))?;
        waits(fleet, REPLICAS[3], &["app=web, from which affinity replicas keeps it apart"])
    });
    report.case("one without a rule is kept away too, and is placed once another has gone", || {
        kubectl.delete(&format!("vm/{}", REPLICAS[3]))?;
        declare(fleet, REPLICAS[3], "web", &json!({}))?;
        waits(fleet, REPLICAS[3], &["whose affinity keeps it apart from VMs with app=web"])?;
        let freed = fleet.host_of(REPLICAS[0])?;
        kubectl.delete(&format!("vm/{}", REPLICAS[0]))?;
        placed(fleet, REPLICAS[3])?;
        let host = fleet.host_of(REPLICAS[3])?;
        ensure!(host == freed, "it is on {host}, and {freed} became free");
        Ok(())
    });
    report.case("a VM waits for one that it is to be together with, and follows that into its zone", || {
        let together =
            json!({"name": "db", "vmSelector": {"app": "db"}, "strategy": "pack", "topologyKey": ZONE});
        declare(fleet, CACHE, "cache", &json!({"affinity": [together]}))?;
        waits(fleet, CACHE, &["app=db, with which affinity db keeps it together", ZONE])?;
        let host = fleet.host_of(REPLICAS[1])?;
        declare(fleet, DB, "db", &json!({"host": host}))?;
        for name in [DB, CACHE] {
            placed(fleet, name)?;
            ensure!(fleet.host_of(name)? == host, "{name} is on {}", fleet.host_of(name)?);
        }
        Ok(())
    });
    report.case(
        "another label moves nothing, and the VM that is to be apart reports it until it is undone",
        || {
            let vm = format!("vm/{}", REPLICAS[1]);
            let host = fleet.host_of(DB)?;
            let label = |app: &str| kubectl.ok(&["label", "vm", DB, &format!("app={app}"), "--overwrite"]);
            label("web")?;
            let reported = kubectl.condition(&vm, "PlacementSynced=False", Some("PlacedElsewhere"), SOON)?;
            contains_all(message(&reported, "PlacementSynced")?, &["affinity replicas", DB])?;
            ensure!(fleet.host_of(DB)? == host, "it has moved");
            label("db")?;
            let is_undone = |vm: &Value| condition_of(vm, "PlacementSynced").is_none();
            kubectl.until(&vm, "to be apart again", SOON, is_undone).map(drop)
        },
    );
    report.case("the VMs with rules are taken away", || {
        let all: Vec<&str> = REPLICAS.into_iter().chain([CACHE, DB]).collect();
        let vms: Vec<String> = all.iter().map(|name| format!("vm/{name}")).collect();
        delete(fleet, &vms)?;
        let disks: Vec<String> = all.iter().map(|name| format!("disk/{name}")).collect();
        wait::until("their disks to go", SOON, || delete(fleet, &disks))?;
        kubectl.delete(&format!("vmclass/{CLASS}"))
    });
}

fn apart() -> Value {
    json!({"name": "replicas", "vmSelector": {"app": "web"}})
}

/// A VM without an operating system that is off, and its disk.
fn declare(fleet: &Fleet, name: &str, app: &str, placement: &Value) -> Result<()> {
    let mut vm = manifests::with(manifests::vm(name, CLASS, name), "placement", placement.clone());
    vm = manifests::with(vm, "power", json!("Stopped"));
    vm["metadata"]["labels"] = json!({"app": app});
    fleet.kubectl().apply(&manifests::all(&[manifests::blank_disk(name, "64Mi"), vm])).map(drop)
}

/// Waits until a host has made what the VM needs.
fn placed(fleet: &Fleet, name: &str) -> Result<()> {
    fleet.kubectl().condition(&format!("vm/{name}"), "Ready=True", Some("Stopped"), SOON).map(drop)
}

/// Waits until a VM has no host, for this reason.
fn waits(fleet: &Fleet, name: &str, words: &[&str]) -> Result<()> {
    let object = format!("vm/{name}");
    let vm = fleet.kubectl().condition(&object, "Ready=False", Some("Unschedulable"), SOON)?;
    ensure!(host_in(&vm).is_none(), "it is bound: {:#}", vm["status"]);
    contains_all(message(&vm, "Ready")?, words)
}

fn delete(fleet: &Fleet, objects: &[String]) -> Result<()> {
    let mut arguments = vec!["delete", "--ignore-not-found", "--timeout=60s"];
    arguments.extend(objects.iter().map(String::as_str));
    fleet.kubectl().ok(&arguments).map(drop)
}
