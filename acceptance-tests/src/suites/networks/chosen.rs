//! `examples/networks/ipv6-privacy-addresses` with the small guest: VMs of two hosts on a network without IPv4, with addresses whose
//! identifiers they have chosen. The small guest adds such an address as one with RFC 7217 would.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::super::hosts::map;
use super::{ANSWER, SOON};
use crate::fleet::Fleet;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::terraform::Project;
use crate::{wait, workspace};

const GATEWAY: &str = "fd00:92::1";

/// A VM that runs.
struct Guest {
    name: String,
    host: String,
    /// The address that follows from its MAC address.
    formed: String,
    chosen: String,
}

pub fn cases(report: &mut Report, fleet: &Fleet, guest: &GuestImage) -> Result<()> {
    let project = report.step("examples/networks/ipv6-privacy-addresses is applied", || {
        let project = project(fleet, guest)?;
        refusals(&project)?;
        project.apply()?;
        project.plan_is_empty()?;
        Ok(project)
    })?;
    let guests = report.step("guests of two hosts answer at the addresses of their MAC addresses", || {
        guests(fleet, &project)
    })?;
    report.case("they reach each other, and the gateway, from the addresses that they have chosen", || {
        for (from, to) in [(&guests[0], &guests[1]), (&guests[1], &guests[0])] {
            for address in [to.chosen.as_str(), GATEWAY] {
                let what = format!("{} to reach {address}", from.name);
                wait::until(&what, SOON, || answers(fleet, from, &format!("to={address}"), "yes"))?;
            }
        }
        Ok(())
    });
    report.case("neither takes an address of the other one, nor of a MAC address or the gateway", || {
        for (from, other) in [(&guests[0], &guests[1]), (&guests[1], &guests[0])] {
            for taken in [other.chosen.as_str(), other.formed.as_str(), "fd00:92::5054:ff:fe00:1"] {
                answers(fleet, from, &format!("to={GATEWAY}&as={taken}"), "no")
                    .with_context(|| format!("{} as {taken}", from.name))?;
            }
            answers(fleet, from, &format!("to={}&as={GATEWAY}", other.chosen), "no")?;
        }
        Ok(())
    });
    report.case("the chosen addresses are in the status of each VM, and the names lead to them", || {
        for guest in &guests {
            wait::until(&format!("{} to be known", guest.chosen), SOON, || {
                let vm = fleet.kubectl().object("vm", &guest.name)?;
                let observed = &vm["status"]["observedAddresses"][0]["addresses"];
                let has = observed.as_array().is_some_and(|all| all.contains(&json!(guest.chosen)));
                ensure!(has, "{:#}", vm["status"]);
                let network = fleet.kubectl().object("network", "private")?;
                let names = network["status"]["names"].as_array().context("no names")?;
                let is_named = names.iter().any(|name| {
                    name["name"] == guest.name.as_str() && name["ipv6Address"] == guest.chosen.as_str()
                });
                ensure!(is_named, "{names:?}");
                Ok(())
            })?;
        }
        Ok(())
    });
    report.case("with the VMs the network goes", || project.destroy().map(drop));
    Ok(())
}

fn project(fleet: &Fleet, guest: &GuestImage) -> Result<Project> {
    let project = fleet.project()?;
    project.copy_from(&workspace::root().join("examples/networks/ipv6-privacy-addresses"))?;
    let url = fleet.images().put("guest.qcow2", Content::File(guest.path.clone()));
    let variables = json!({"image_url": url, "image_sha256": guest.sha256, "disk_size": "64Mi", "memory": "256Mi",
        "user_data": include_str!("chosen.sh"), "wait_for": "running"});
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.init()?;
    Ok(project)
}

fn refusals(project: &Project) -> Result<()> {
    let (right, wrong) = ("ipv6_autoconfiguration = true", "ipv6_autoconfiguration = false");
    project.edit("main.tf", right, wrong)?;
    contains_all(&project.plan_refused()?, &["ipv6_privacy_addresses", "ipv6_autoconfiguration = true"])?;
    project.edit("main.tf", wrong, right)
}

fn guests(fleet: &Fleet, project: &Project) -> Result<Vec<Guest>> {
    let mut guests = Vec::new();
    for (name, formed) in map(project, "addresses")? {
        ensure!(formed.starts_with("fd00:92::") && formed.contains("ff:fe"), "{formed}");
        let host = fleet.host_of(&name)?;
        let machine = fleet.member(&host)?.namespace();
        let url = format!("[{formed}]:80");
        http::get_within(machine, &url, "/chosen-ready", ANSWER)?;
        let page = http::get_within(machine, &url, "/cgi-bin/chosen", SOON)?;
        let chosen = field(&page, "chosen")?.to_owned();
        guests.push(Guest { name, host, formed, chosen });
    }
    ensure!(guests.len() == 2 && guests[0].host != guests[1].host, "they are not on two hosts");
    Ok(guests)
}

/// Checks whether a guest, called from its host, gets an answer to its ping.
fn answers(fleet: &Fleet, from: &Guest, query: &str, expected: &str) -> Result<()> {
    let machine = fleet.member(&from.host)?.namespace();
    let url = format!("[{}]:80", from.formed);
    let page = http::get(machine, &url, &format!("/cgi-bin/chosen?{query}"), SOON)?;
    ensure!(field(&page, "ping")? == expected, "{page}");
    Ok(())
}
