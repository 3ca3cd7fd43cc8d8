//! `examples/networks/security-groups` on running guests of three hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{SOON, network_of, page, reaches};
use crate::fleet::Fleet;
use crate::http::{self, field};
use crate::report::Report;
use crate::terraform::Project;
use crate::{wait, workspace};

/// The addresses of the guests, by name.
#[derive(Debug)]
pub struct Addresses {
    pub private: BTreeMap<String, String>,
    pub public: BTreeMap<String, String>,
}

/// Longer than an answer takes, shorter than a client that gives up.
const NO_ANSWER: Duration = Duration::from_secs(6);
const OVERRIDE: &str = "security_groups_override.tf";

/// Gives the three guests groups, changes these, and takes them away again.
pub fn run(report: &mut Report, fleet: &Fleet, project: &Project, addresses: &Addresses) {
    let Addresses { private, public } = addresses;
    let db = &private["web-1"];
    report.case("examples/networks/security-groups is applied, and running guests get the groups", || {
        let before = processes(fleet)?;
        let groups = fleet.project()?;
        groups.copy_from(&workspace::root().join("examples/networks/security-groups"))?;
        groups.init()?;
        groups.apply()?;
        assign(project, r#"[["web"], ["db"], []]"#)?;
        project.plan_is_empty()?;
        ensure!(processes(fleet)? == before, "a guest was started again");
        Ok(())
    });
    report.case(
        "a member accepts what its group allows from outside, and one of another group nothing",
        || {
            let text = page(fleet, &public["web-0"], "/")?;
            ensure!(field(&text, "hostname")? == "web-0", "{text}");
            wait::until("web-1 to be closed", SOON, || closed(fleet, &public["web-1"]))
        },
    );
    report.case("on another host, members of the group that a rule names pass, and no others", || {
        wait::until("web-0 to reach web-1", SOON, || {
            reaches(fleet.outside(), &public["web-0"], db, "web-1")
        })?;
        closed_to(fleet, &public["web-2"], db)
    });
    report.case(
        "a trace names the rule that passes a packet, and the group that drops one, on another host",
        || {
            let trace = |from: &str| {
                let packet = ["net", "trace", from, "--to", "web-1", "--protocol", "tcp", "--port", "80"];
                fleet.administrator().run(&packet)
            };
            // While a host is about to write its rules, a trace is not decided.
            wait::until("a trace that passes", SOON, || {
                let passes = trace("web-0")?.success()?;
                let rule = "SecurityGroup db, ingress rule 1 (members)";
                ensure!(
                    passes.contains(rule) && passes.contains("It passes: VM web-1, interface"),
                    "{passes}"
                );
                Ok(())
            })?;
            wait::until("a trace that is dropped", SOON, || {
                let dropped = trace("web-2")?;
                ensure!(dropped.code() == 1, "{}", dropped.output());
                let text = dropped.failure()?;
                let by = "by SecurityGroup db, ingress.";
                ensure!(text.contains("It is dropped on host") && text.contains(by), "{text}");
                Ok(())
            })?;
            let wrong = fleet.administrator().run(&["net", "trace", "web-0", "--to", "absent"])?;
            ensure!(wrong.code() == 2, "{}", wrong.output());
            Ok(())
        },
    );
    report.case("a new member passes, and one that leaves does not, on running guests", || {
        assign(project, r#"[[], ["db"], ["web"]]"#)?;
        wait::until("web-2 to reach web-1", SOON, || {
            reaches(fleet.outside(), &public["web-2"], db, "web-1")
        })?;
        closed_to(fleet, &public["web-0"], db)
    });
    report.case("the groups of a Network close a running guest that names none, and no other", || {
        let network = network_of(fleet, "web-0")?;
        set_groups(fleet, &network, &json!(["db"]))?;
        wait::until("web-0 to be closed", SOON, || closed(fleet, &public["web-0"]))?;
        let vm = fleet.kubectl().object("vm", "web-0")?;
        ensure!(vm["status"]["interfaces"][0]["securityGroups"] == json!(["db"]), "{:#}", vm["status"]);
        let text = page(fleet, &public["web-2"], "/")?;
        ensure!(field(&text, "hostname")? == "web-2", "it has its own group: {text}");
        set_groups(fleet, &network, &Value::Null)?;
        wait::until("web-0 to answer", SOON, || page(fleet, &public["web-0"], "/").map(drop))
    });
    report.case("a group that is deleted while guests use it stays in force and names them", || {
        let kubectl = fleet.kubectl();
        kubectl.ok(&["delete", "securitygroup/db", "--wait=false"])?;
        let group = kubectl.condition("securitygroup/db", "Ready=False", Some("InUse"), SOON)?;
        ensure!(group["status"]["usedBy"][0]["name"] == "web-1", "{:#}", group["status"]);
        closed_to(fleet, &public["web-0"], db)
    });
    report.case("without groups everything within the network passes again, and the groups go", || {
        std::fs::remove_file(project.folder().join(OVERRIDE))?;
        project.apply()?;
        project.plan_is_empty()?;
        wait::until("web-0 to reach web-1", SOON, || {
            reaches(fleet.outside(), &public["web-0"], db, "web-1")
        })?;
        wait::until("the deleted group to go", SOON, || {
            let found = fleet.kubectl().ok(&["get", "securitygroups", "-o", "name"])?;
            ensure!(!found.contains("/db"), "{found}");
            Ok(())
        })?;
        fleet.kubectl().delete("securitygroup/web")
    });
}

/// Sets the groups of each guest's interface.
fn assign(project: &Project, groups: &str) -> Result<()> {
    let text = format!(
        "resource \"berth_vm\" \"web\" {{\n  network_interfaces = [{{ public_ip = \
         berth_public_ip.web[count.index].name, security_groups = {groups}[count.index] }}]\n}}\n"
    );
    project.write(OVERRIDE, &text)?;
    project.apply().map(drop)
}

/// Sets the groups of the interfaces of a Network that name none.
fn set_groups(fleet: &Fleet, (namespace, name): &(String, String), groups: &Value) -> Result<()> {
    let patch = json!({"spec": {"securityGroups": groups}}).to_string();
    let kubectl = fleet.kubectl().within(namespace);
    kubectl.ok(&["patch", "network", name, "--type=merge", "-p", &patch]).map(drop)
}

fn closed(fleet: &Fleet, address: &str) -> Result<()> {
    let answer = http::get(fleet.outside(), address, "/", NO_ANSWER);
    ensure!(answer.is_err(), "{address} answers: {answer:?}");
    Ok(())
}

/// Whether a guest gets no answer from another one's private address.
fn closed_to(fleet: &Fleet, from: &str, private: &str) -> Result<()> {
    let text = http::get(fleet.outside(), from, &format!("/cgi-bin/reach?to={private}"), SOON)?;
    ensure!(field(&text, "ping")? == "no" && field(&text, "hostname")?.is_empty(), "{text}");
    Ok(())
}

/// The process of each guest.
fn processes(fleet: &Fleet) -> Result<Vec<i64>> {
    let pid = |number: u8| {
        let vm = fleet.kubectl().object("vm", &format!("web-{number}"))?;
        vm["status"]["process"]["pid"].as_i64().context("it does not run")
    };
    (0..3).map(pid).collect()
}
