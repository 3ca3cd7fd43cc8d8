//! A site that began with `berth up`, with a joined host, moves to a real kube-apiserver while its guests run, and returns to
//! a database from an earlier backup.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Kit;
use super::kubectl::contains_all;
use crate::fleet::{Cluster, Fleet};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::kubectl::Kubectl;
use crate::report::{Report, note};
use crate::terraform::Project;
use crate::{process, wait, workspace};

const SOON: Duration = Duration::from_secs(60);
/// The time limit of a move, with two hosts that follow.
const MOVE: Duration = Duration::from_secs(120);

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("graduate"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let programs = report.step("kube-apiserver is built from source", || kit.kubernetes())?;
    let mut fleet = report.step("berth up serves its segment, and another machine joins it", || {
        let mut fleet = Fleet::embedded(&parts)?;
        fleet.join(2, &["topology.kubernetes.io/zone=b"])?;
        Ok(fleet)
    })?;
    let mut cluster = report
        .step("a cluster on the segment, with berth's definitions and controllers", || {
            fleet.cluster(&programs)
        })?;
    let before = report.step("the empty hosts are looked at", || fleet.footprints())?;
    let outcome = cases(report, &mut fleet, &mut cluster, &guest);
    if outcome.is_err() || report.count().failed > 0 {
        note(&fleet.keep_evidence());
    }
    outcome?;
    report.case("no host has anything left of a VM", || fleet.nothing_beyond(&before, SOON));
    report.case("SIGTERM ends every agent and the controllers", || {
        cluster.stop()?;
        fleet.stop()
    });
    Ok(())
}

/// The VMs' processes, by host.
fn guests(fleet: &Fleet) -> Result<BTreeMap<String, Vec<i32>>> {
    fleet.members().iter().map(|member| Ok((member.name.clone(), member.qemu()?))).collect()
}

fn cases(report: &mut Report, fleet: &mut Fleet, cluster: &mut Cluster, guest: &GuestImage) -> Result<()> {
    let (project, addresses) = report.step("two guests run, one on each host, by Terraform", || {
        let project = two_guests(fleet, guest)?;
        let addresses = super::hosts::map(&project, "public_addresses")?;
        project.plan_is_empty()?;
        Ok((project, addresses))
    })?;
    let running = report.step("which processes they are", || guests(fleet))?;
    ensure!(running.values().all(|pids| pids.len() == 1), "{running:?}");
    let backup = fleet.folder().join("before.db");
    report.step("a backup", || berth(fleet, &["backup", &backup.display().to_string()]).map(drop))?;
    let moved = project.with_kubeconfig(cluster.kubeconfig());
    away(report, fleet, cluster, &running)?;
    report.case("the guests answer, and Terraform has nothing to do on the cluster", || {
        answer(fleet, &addresses)?;
        moved.plan_is_empty()
    });
    report.case("berth up that starts again is an agent of the cluster", || {
        let first = fleet.member_mut("h1")?;
        first.berth.stop()?;
        first.berth.spawn_up()?;
        alive(fleet, cluster.kubectl())?;
        same(fleet, &running)
    });
    report.case("the old control plane takes no write, and names the new one", || {
        takes_nothing(fleet.kubectl(), "https://192.0.2.3:6443")
    });
    report.step("the old database comes back from the backup", || {
        fleet.member_mut("h1")?.berth.stop()?;
        berth(fleet, &["restore", &backup.display().to_string(), "--replace"])?;
        fleet.member_mut("h1")?.berth.spawn_up()
    })?;
    report.case("it commands no host: the guests belong to the cluster, and continue", || {
        wait::until("the restored control plane to answer", SOON, || {
            fleet.kubectl().ok(&["get", "vm", "web-0"]).map(drop)
        })?;
        alive(fleet, cluster.kubectl())?;
        same(fleet, &running)?;
        let log = std::fs::read_to_string(fleet.member("h1")?.berth.log())?;
        contains_all(&log, &["this control plane is not in charge"])?;
        moved.plan_is_empty()
    });
    report.step("berth graduate --back brings the site home, up to date", || {
        graduate(fleet, cluster, &["--back"])?;
        fleet.host_is_ready("h1")?;
        fleet.host_is_ready("h2")
    })?;
    report.case("the guests are the same, and Terraform has nothing to do at home", || {
        same(fleet, &running)?;
        answer(fleet, &addresses)?;
        project.plan_is_empty()
    });
    report.case("the cluster takes no write any more", || {
        takes_nothing(cluster.kubectl(), "https://192.0.2.11:7443")
    });
    report.step("destroy takes everything away", || project.destroy().map(drop))
}

fn away(
    report: &mut Report,
    fleet: &mut Fleet,
    cluster: &mut Cluster,
    running: &BTreeMap<String, Vec<i32>>,
) -> Result<()> {
    report.case("a dry run lists what the move would do, and does nothing", || {
        let output = graduate(fleet, cluster, &["--dry-run"])?;
        contains_all(&output, &["https://192.0.2.3:6443", "VM", "Secret", "2 hosts follow"])?;
        cluster.kubectl().refused(&["get", "configmap", "berth-site", "-n", "berth-system"]).map(drop)
    });
    report.case("a move that is killed half-way touches no guest, and is given up", || {
        let mut command = administer(fleet, Some("1.5"), &graduation(cluster, &[]));
        let _ = process::run(&mut command, MOVE)?;
        same(fleet, running)?;
        graduate(fleet, cluster, &["--abort"])?;
        fleet.kubectl().ok(&["annotate", "vm", "web-0", "note=free"])?;
        fleet.kubectl().ok(&["annotate", "vm", "web-0", "note-"]).map(drop)
    });
    report.step("killed half-way once more, and run again, the site moves", || {
        let mut command = administer(fleet, Some("2"), &graduation(cluster, &[]));
        let _ = process::run(&mut command, MOVE)?;
        graduate(fleet, cluster, &[])?;
        alive(fleet, cluster.kubectl())
    })?;
    report.case("every guest is the same process on the same host", || same(fleet, running));
    report.case("both VMs are ready on the cluster, on the hosts they were on", || {
        for vm in ["web-0", "web-1"] {
            let there = cluster.kubectl().condition(&format!("vm/{vm}"), "Ready=True", None, SOON)?;
            let here = fleet.kubectl().object("vm", vm)?;
            for field in ["binding", "instanceID", "interfaces"] {
                ensure!(there["status"][field] == here["status"][field], "{field}: {:#}", there["status"]);
            }
            ensure!(
                there["metadata"]["uid"] != here["metadata"]["uid"],
                "another control plane, another uid"
            );
        }
        Ok(())
    });
    Ok(())
}

fn two_guests(fleet: &Fleet, guest: &GuestImage) -> Result<Project> {
    let project = fleet.project()?;
    project.copy_from(&workspace::root().join("examples/several-hosts"))?;
    project.write("cloud-init.yaml", "#!/bin/sh\n")?;
    let url = fleet.images().put("guest.qcow2", Content::File(guest.path.clone()));
    let variables = serde_json::json!({
        "image_url": url, "image_sha256": guest.sha256, "disk_size": "64Mi", "replicas": 2,
    });
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.init()?;
    project.apply()?;
    Ok(project)
}

/// Checks that the control plane refuses writes to objects that the site has moved to another one, and accepts writes to
/// others.
fn takes_nothing(kubectl: &Kubectl, other: &str) -> Result<()> {
    for refused in [
        &["annotate", "vm", "web-0", "a=b"][..],
        &["annotate", "secret", "web-0-bootstrap", "a=b"],
        &["delete", "secret", "web-0-bootstrap"],
        &["delete", "--raw", "/api/v1/namespaces/default/secrets"],
    ] {
        contains_all(&kubectl.refused(refused)?, &[other])?;
    }
    kubectl.ok(&["create", "secret", "generic", "mine"])?;
    kubectl.ok(&["delete", "secret", "mine"]).map(drop)
}

fn same(fleet: &Fleet, running: &BTreeMap<String, Vec<i32>>) -> Result<()> {
    let now = guests(fleet)?;
    ensure!(now == *running, "{now:?} were {running:?}");
    Ok(())
}

fn answer(fleet: &Fleet, addresses: &BTreeMap<String, String>) -> Result<()> {
    for (name, address) in addresses {
        let text = http::get(fleet.outside(), address, "/", SOON)?;
        ensure!(field(&text, "hostname")? == name, "{address} is not {name}: {text}");
    }
    Ok(())
}

/// Waits until both hosts report on this control plane, with a current Lease, that they are ready.
fn alive(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    for member in fleet.members() {
        let lease = ["get", "lease", &member.name, "-n", "berth-system", "-o", "jsonpath={.spec.renewTime}"];
        let before = kubectl.run(&lease)?.stdout;
        wait::until(&format!("host {} to renew its Lease", member.name), SOON, || {
            let now = kubectl.ok(&lease)?;
            ensure!(now != before, "it is still of {before}");
            Ok(())
        })?;
        kubectl.condition(&format!("host/{}", member.name), "Ready=True", None, SOON)?;
    }
    Ok(())
}

fn graduation(cluster: &Cluster, more: &[&str]) -> Vec<String> {
    let mut arguments =
        vec!["graduate".to_owned(), "--to".to_owned(), cluster.kubeconfig().display().to_string()];
    arguments.extend(more.iter().map(|&word| word.to_owned()));
    arguments
}

fn graduate(fleet: &Fleet, cluster: &Cluster, more: &[&str]) -> Result<String> {
    let finished = process::run(&mut administer(fleet, None, &graduation(cluster, more)), MOVE)?;
    let output = finished.output();
    finished.success()?;
    Ok(output)
}

/// `berth` as the site's administrator, from a machine that is not a host; killed after `killed_after` seconds, if given.
fn administer(fleet: &Fleet, killed_after: Option<&str>, arguments: &[String]) -> Command {
    let program: &Path = fleet.members()[0].berth.program();
    let mut command = match killed_after {
        Some(seconds) => {
            let mut command = fleet.outside().command("timeout");
            command.args(["--signal=KILL", seconds]).arg(program);
            command
        }
        None => fleet.outside().command(program),
    };
    command.args(arguments).env(crate::berth::KUBECONFIG_VARIABLE, fleet.kubeconfig());
    command
}

/// `berth` on the first host's machine, with its state directory.
fn berth(fleet: &Fleet, arguments: &[&str]) -> Result<String> {
    let first = &fleet.member("h1")?.berth;
    let mut command = first.machine().command(first.program());
    command.args(arguments).arg("--state-dir").arg(first.state());
    process::run(&mut command, SOON)?.success()
}
