//! Several hosts: joining, a spread group on a network between them, isolated tenants, hosts that are drained, silent or gone.
//! The same on `berth up` and on a real Kubernetes control plane.

pub mod access;
pub mod affinity;
pub mod copied_disk;
pub mod copied_image;
pub mod faults;
pub mod firmware;
pub mod host_labels;
pub mod joining;
pub mod live_move;
pub mod load_balancer;
pub mod lost_host;
pub mod moved_vm;
pub mod mover;
pub mod names;
pub mod namespaces;
pub mod overhead;
pub mod security_groups;
pub mod shared_pool;
pub mod spread;
pub mod tenants;
pub mod vm_group;
pub mod zones;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Kit;
use crate::fleet::Fleet;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::namespace::Namespace;
use crate::report::{Report, note};
use crate::terraform::Project;

/// The host that is lost: no other guest is there.
const HOST: &str = "h5";
/// The time limit for a guest that boots beside others on two emulating processors.
const ANSWER: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
/// The time limit until a host counts as silent: a Lease must expire first.
const SILENCE: Duration = Duration::from_secs(120);

/// On `berth up`.
pub fn embedded(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("hosts"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut fleet =
        report.step("berth up serves its segment, and its own host is ready", || Fleet::embedded(&parts))?;
    report.step("two machines join it by token", || {
        fleet.join(2, &["topology.kubernetes.io/zone=b"])?;
        fleet.join(3, &["topology.kubernetes.io/zone=c"])
    })?;
    run_cases(report, &mut fleet, &guest)?;
    ends(report, &mut fleet);
    Ok(())
}

/// On etcd and kube-apiserver.
pub fn kubernetes(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("hosts-kubernetes"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let programs = report.step("kube-apiserver is built from source", || kit.kubernetes())?;
    let mut fleet = report.step("kube-apiserver serves the segment, with berth's definitions", || {
        Fleet::kubernetes(&parts, &programs)
    })?;
    report.step("three machines join it by token", || {
        fleet.join(1, &[])?;
        fleet.join(2, &["topology.kubernetes.io/zone=b"])?;
        fleet.join(3, &["topology.kubernetes.io/zone=c"])
    })?;
    run_cases(report, &mut fleet, &guest)?;
    let senders = access::prepare(report, &mut fleet)?;
    ends(report, &mut fleet);
    access::run(report, &senders)
}

fn run_cases(report: &mut Report, fleet: &mut Fleet, guest: &GuestImage) -> Result<()> {
    let before = report.step("the empty hosts are looked at", || fleet.footprints())?;
    let outcome = chapters(report, fleet, guest);
    if outcome.is_err() || report.count().failed > 0 {
        note(&fleet.keep_evidence());
    }
    outcome?;
    report.case("no host has anything left of a VM", || fleet.nothing_beyond(&before, SOON));
    Ok(())
}

fn ends(report: &mut Report, fleet: &mut Fleet) {
    report.case("SIGTERM ends every agent and the controllers", || fleet.stop());
}

fn chapters(report: &mut Report, fleet: &mut Fleet, guest: &GuestImage) -> Result<()> {
    joining::run(report, fleet);
    zones::run(report, fleet);
    namespaces::run(report, fleet);
    host_labels::run(report, fleet);
    affinity::run(report, fleet);
    vm_group::run(report, fleet);
    let group = spread::run(report, fleet, guest)?;
    copied_image::run(report, fleet);
    shared_pool::run(report, fleet);
    moved_vm::run(report, fleet);
    live_move::run(report, fleet);
    copied_disk::run(report, fleet);
    firmware::run(report, fleet);
    lost_host::run(report, fleet);
    faults::run(report, fleet, &group);
    overhead::run(report, fleet);
    spread::destroy(report, fleet, group)?;
    if fleet.is_embedded() {
        // Reachability between guests is a matter of the hosts: the control plane plays no part in it.
        tenants::run(report, fleet, guest);
    }
    joining::forget(report, fleet);
    Ok(())
}

/// An output that is a map of texts.
pub fn map(project: &Project, output: &str) -> Result<BTreeMap<String, String>> {
    let text = project.run(&["output", "-json", "-no-color", output])?.success()?;
    serde_json::from_str(&text).with_context(|| format!("output {output}"))
}

/// Gets a page of a guest from a machine on the segment that is not a host.
fn page(fleet: &Fleet, address: &str, path: &str) -> Result<String> {
    http::get_within(fleet.outside(), address, path, ANSWER)
}

/// Returns the namespace and the name of the network of a VM's interface.
fn network_of(fleet: &Fleet, vm: &str) -> Result<(String, String)> {
    let object = fleet.kubectl().object("vm", vm)?;
    let network = object.pointer("/status/interfaces/0/network").and_then(Value::as_str);
    let (namespace, name) = network.and_then(|name| name.split_once('/')).context("it has none")?;
    Ok((namespace.to_owned(), name.to_owned()))
}

/// Whether one guest, called on its public address, reads the complete page of another on its private one.
fn reaches(outside: &Namespace, from: &str, private: &str, name: &str) -> Result<()> {
    let text = http::get(outside, from, &format!("/cgi-bin/reach?to={private}"), SOON)?;
    ensure!(field(&text, "ping")? == "yes", "no ping: {text}");
    ensure!(field(&text, "hostname")? == name, "{text}");
    ensure!(field(&text, "bytes")? == "300000", "a large page did not come whole: {text}");
    Ok(())
}

/// The message of a condition.
fn message<'a>(object: &'a Value, condition: &str) -> Result<&'a str> {
    let found = crate::kubectl::condition_of(object, condition);
    found
        .and_then(|found| found["message"].as_str())
        .with_context(|| format!("no {condition} in {:#}", object["status"]))
}
