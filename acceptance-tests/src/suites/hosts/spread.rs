//! A spread group over the hosts, from `examples/several-hosts`: one more VM than hosts, an added host, a drained host.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde_json::Value;

use super::load_balancer;
use super::names;
use super::security_groups::{self, Addresses};
use super::{ANSWER, SOON, map, message, page, reaches};
use crate::fleet::{Fleet, PUBLIC};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::namespace::Namespace;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::terraform::{Project, unwrapped};
use crate::{wait, workspace};

/// The applied group.
#[derive(Debug)]
pub struct Group {
    /// The project.
    pub project: Project,
    /// Each VM's public address.
    pub public: BTreeMap<String, String>,
}

/// Runs the cases until four VMs run on four hosts.
pub fn run(report: &mut Report, fleet: &mut Fleet, guest: &GuestImage) -> Result<Group> {
    let project = report.step("init of examples/several-hosts", || {
        let project = fleet.project()?;
        project.copy_from(&workspace::root().join("examples/several-hosts"))?;
        project.write("cloud-init.yaml", "#!/bin/sh\n")?;
        let url = fleet.images().put("guest.qcow2", Content::File(guest.path.clone()));
        let variables = serde_json::json!({
            "image_url": url, "image_sha256": guest.sha256, "disk_size": "64Mi", "public_cidrs": [PUBLIC],
        });
        project.write("terraform.tfvars.json", &variables.to_string())?;
        project.init()?;
        Ok(project)
    })?;
    report.step("apply ends with three guests that are up, each on a host of its own", || {
        project.apply()?;
        let hosts = map(&project, "hosts")?;
        let different: BTreeSet<&String> = hosts.values().collect();
        ensure!(hosts.len() == 3 && different.len() == 3, "{hosts:?}");
        for member in fleet.members() {
            ensure!(member.qemu()?.len() == 1, "{} runs {:?}", member.name, member.qemu()?);
        }
        project.plan_is_empty()
    })?;
    report.case("one host has downloaded the image, and the others have copied it", || {
        let requests = fleet.images().requests("guest.qcow2");
        ensure!(requests == 1, "{requests} requests for the image");
        let on_three =
            |image: &Value| image["status"]["hosts"].as_array().is_some_and(|hosts| hosts.len() == 3);
        fleet.kubectl().until("image/web", "to list three hosts", SOON, on_three).map(drop)
    });
    let (private, public) = (map(&project, "private_addresses")?, map(&project, "public_addresses")?);
    report.case("each answers on its public address, asked from a machine on the segment", || {
        for (name, address) in &public {
            let text = page(fleet, address, "/")?;
            ensure!(field(&text, "hostname")? == name, "{address} is not {name}: {text}");
        }
        Ok(())
    });
    report.case("they answer each other's ping and send whole pages by private address", || {
        let outside: &Namespace = fleet.outside();
        let mut pairs = Vec::new();
        for from in &public {
            pairs.extend(private.iter().filter(|(other, _)| *other != from.0).map(|to| (from, to)));
        }
        thread::scope(|scope| {
            let asked: Vec<_> = pairs
                .into_iter()
                .map(|((name, address), (other, private))| {
                    scope.spawn(move || {
                        wait::until(&format!("{name} to reach {other}"), SOON, || {
                            reaches(outside, address, private, other)
                        })
                    })
                })
                .collect();
            asked.into_iter().try_for_each(|asked| asked.join().map_err(|_| anyhow!("a check panicked"))?)
        })
    });
    report.case("a guest reaches another host's guest by its public address too", || {
        let (from, to) = (&public["web-0"], &public["web-1"]);
        let text = http::get(fleet.outside(), from, &format!("/cgi-bin/reach?to={to}"), SOON)?;
        ensure!(field(&text, "hostname")? == "web-1", "{text}");
        Ok(())
    });
    let addresses = Addresses { private, public };
    security_groups::run(report, fleet, &project, &addresses);
    names::run(report, fleet, &addresses);
    load_balancer::run(report, fleet, &addresses.public["web-2"]);
    one_too_many(report, fleet, &project);
    let public = map(&project, "public_addresses")?;
    let group = Group { project, public };
    drain(report, fleet, &group);
    Ok(group)
}

fn one_too_many(report: &mut Report, fleet: &mut Fleet, project: &Project) {
    report.case("a fourth for which there is no host fails the apply with the reason", || {
        let variables = project.read("terraform.tfvars.json")?;
        let mut values: Value = serde_json::from_str(&variables)?;
        values["replicas"] = 4.into();
        values["patience"] = "15s".into();
        project.write("terraform.tfvars.json", &values.to_string())?;
        let output = unwrapped(&project.apply_refused()?);
        contains_all(&output, &["Error", "web-3", "GroupTooLarge", "placement group web", "add a host"])
    });
    report.case("the VM and the group report it too, and the others are left alone", || {
        let kubectl = fleet.kubectl();
        let vm = kubectl.condition("vm/web-3", "Ready=False", Some("GroupTooLarge"), SOON)?;
        contains_all(message(&vm, "Ready")?, &["group web", "add a host"])?;
        ensure!(vm["status"]["state"] == "Unschedulable", "{:#}", vm["status"]);
        ensure!(crate::fleet::host_in(&vm).is_none(), "it is bound: {:#}", vm["status"]);
        let group = kubectl.condition("placementgroup/web", "Ready=False", None, SOON)?;
        contains_all(message(&group, "Ready")?, &["3 of 4 members"])?;
        for member in fleet.members() {
            ensure!(member.qemu()?.len() == 1, "{} runs {:?}", member.name, member.qemu()?);
        }
        Ok(())
    });
    report.case("once a fourth host joins it runs there by itself, and the next apply is content", || {
        fleet.join(4, &["topology.kubernetes.io/zone=d"])?;
        fleet.kubectl().condition("vm/web-3", "Ready=True", None, ANSWER)?;
        ensure!(fleet.host_of("web-3")? == "h4", "on {}", fleet.host_of("web-3")?);
        fleet.kubectl().condition("placementgroup/web", "Ready=True", None, SOON)?;
        let values = project.read("terraform.tfvars.json")?.replace("\"15s\"", "\"10m\"");
        project.write("terraform.tfvars.json", &values)?;
        project.apply()?;
        project.plan_is_empty()?;
        let address = map(project, "public_addresses")?["web-3"].clone();
        let text = page(fleet, &address, "/")?;
        ensure!(field(&text, "hostname")? == "web-3", "{text}");
        Ok(())
    });
}

fn drain(report: &mut Report, fleet: &mut Fleet, group: &Group) {
    report.case("a drained host ends its guest and reports it; the others answer", || {
        let vm = vm_on(fleet, "h4")?;
        fleet.administrator().host("drain", "h4")?.success()?;
        wait::until("h4 to run nothing", SOON, || {
            ensure!(fleet.member("h4")?.qemu()?.is_empty(), "QEMU still runs");
            Ok(())
        })?;
        ensure!(fleet.host_of(&vm)? == "h4", "its disk cannot have moved");
        for (name, address) in group.public.iter().filter(|(name, _)| **name != vm) {
            let text = page(fleet, address, "/")?;
            ensure!(field(&text, "hostname")? == name, "{text}");
        }
        let list = fleet.administrator().run(&["host", "list"])?.success()?;
        let line = list.lines().find(|line| line.contains("h4")).unwrap_or_default();
        contains_all(&line.to_lowercase(), &["drain"])
    });
    report.case("uncordoned it runs its guest again", || {
        fleet.administrator().host("uncordon", "h4")?.success()?;
        let vm = vm_on(fleet, "h4")?;
        fleet.kubectl().condition(&format!("vm/{vm}"), "Ready=True", None, ANSWER)?;
        let text = page(fleet, &group.public[&vm], "/")?;
        ensure!(field(&text, "hostname")? == vm, "{text}");
        group.project.plan_is_empty()
    });
}

/// The VM on a host.
pub fn vm_on(fleet: &Fleet, host: &str) -> Result<String> {
    for number in 0..4 {
        let vm = format!("web-{number}");
        if fleet.host_of(&vm).is_ok_and(|found| found == host) {
            return Ok(vm);
        }
    }
    anyhow::bail!("no VM is on {host}")
}

/// Destroys the group.
pub fn destroy(report: &mut Report, fleet: &Fleet, group: Group) -> Result<()> {
    report.step("destroy takes everything away on every host", || {
        group.project.destroy()?;
        wait::until("no QEMU", Duration::from_secs(60), || {
            for member in fleet.members() {
                ensure!(member.qemu()?.is_empty(), "{} still runs one", member.name);
            }
            Ok(())
        })
    })
}
