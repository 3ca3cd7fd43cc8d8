//! A group of VMs on two hosts: started in order, stopped in the reverse order.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{SOON, message};
use crate::fleet::Fleet;
use crate::manifests;
use crate::report::Report;
use crate::suites::kubectl::contains_all;

const GROUP: &str = "grouped";
/// Each VM, and its host.
const VMS: [(&str, &str); 2] = [("grouped-first", "h2"), ("grouped-last", "h3")];

/// Runs the cases; nothing is left behind.
pub fn run(report: &mut Report, fleet: &Fleet) {
    report.case(
        "a VM waits for one of its group on another host, and is started once that one is ready",
        || {
            let kubectl = fleet.kubectl();
            let class = manifests::bios_class(GROUP, "64Mi");
            kubectl.apply(&manifests::all(&[class, group("Running")]))?;
            declare(fleet, VMS[1])?;
            let held = kubectl.condition("vm/grouped-last", "Ready=False", Some("WaitingForVM"), SOON)?;
            contains_all(message(&held, "Ready")?, &["VMGroup grouped"])?;
            let waits = kubectl.condition("vmgroup/grouped", "Ready=False", Some("WaitingForVM"), SOON)?;
            contains_all(message(&waits, "Ready")?, &["VM grouped-first", "does not exist"])?;
            declare(fleet, VMS[0])?;
            kubectl.condition("vm/grouped-last", "Ready=True", None, SOON)?;
            kubectl.condition("vm/grouped-first", "Ready=True", None, SOON)?;
            let group = kubectl.condition("vmgroup/grouped", "Ready=True", None, SOON)?;
            ensure!(group["status"]["running"] == 2, "{:#}", group["status"]);
            Ok(())
        },
    );
    report.case("the power of the group stops both, and the group is deleted after them", || {
        let kubectl = fleet.kubectl();
        kubectl.apply(&group("Stopped").to_string())?;
        let is_stopped = |group: &Value| {
            let status = &group["status"];
            status["observedGeneration"] == group["metadata"]["generation"] && status["stopped"] == 2
        };
        kubectl.until("vmgroup/grouped", "to have two stopped VMs", SOON, is_stopped)?;
        for (name, _) in VMS {
            kubectl.condition(&format!("vm/{name}"), "Ready=True", Some("Stopped"), SOON)?;
        }
        for (name, _) in VMS {
            kubectl.ok(&["delete", &format!("vm/{name}"), &format!("disk/{name}"), "--timeout=60s"])?;
        }
        kubectl.ok(&["delete", "vmgroup/grouped", "vmclass/grouped", "--timeout=60s"]).map(drop)
    });
}

fn group(power: &str) -> Value {
    let order =
        json!([{"name": "first", "vms": ["grouped-first"]}, {"name": "last", "vms": ["grouped-last"]}]);
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VMGroup", "metadata": {"name": GROUP},
        "spec": {"power": power, "bootOrder": order}})
}

fn declare(fleet: &Fleet, (name, host): (&str, &str)) -> Result<()> {
    let vm = manifests::with(manifests::vm(name, GROUP, name), "placement", json!({"host": host}));
    let vm = manifests::with(vm, "vmGroup", json!(GROUP));
    fleet.kubectl().apply(&manifests::all(&[manifests::blank_disk(name, "64Mi"), vm])).map(drop)
}
