//! `examples/networks/load-balancer` on running guests of several hosts.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{ANSWER, SOON};
use crate::fleet::Fleet;
use crate::http::{self, field};
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::terraform::Project;
use crate::{wait, workspace};

/// The number of connections by which the spread is seen.
const CONNECTIONS: usize = 6;
/// The time for one connection: a guest that is shutting down may accept it and never answer.
const PATIENCE: Duration = Duration::from_secs(5);
const BALANCER: &str = "publicip/balancer";
/// Before all others in the list.
const NEW_ENTRY: &str = r#"    { name = "new", target_port = 22, targets = slice(var.targets, 0, 1) },
"#;

/// Spreads connections over two guests of two hosts, stops one of them and starts it again. `caller`: the public address of a third
/// guest.
pub fn run(report: &mut Report, fleet: &Fleet, caller: &str) {
    let applied = report.step("examples/networks/load-balancer is applied", || {
        let project = fleet.project()?;
        project.copy_from(&workspace::root().join("examples/networks/load-balancer"))?;
        let variables = json!({"pool": "segment", "targets": ["web-0", "web-1"]});
        project.write("terraform.tfvars.json", &variables.to_string())?;
        project.init()?;
        project.apply()?;
        let address = project.output("address")?;
        Ok((project, address))
    });
    let Ok((project, address)) = applied else { return };
    report.case("connections to its address are spread over guests of two hosts", || {
        fleet.kubectl().condition(BALANCER, "TargetsAvailable=True", Some("Available"), SOON)?;
        ensure!(fleet.host_of("web-0")? != fleet.host_of("web-1")?, "they are on one host");
        wait::until("both guests to answer", SOON, || answer(fleet, &address, &["web-0", "web-1"]))?;
        project.plan_is_empty()
    });
    report.case("a client's connections to the port with affinity go to one guest", || {
        let names = names(fleet, &format!("{address}:8080"))?;
        ensure!(names.len() == 1, "{names:?}");
        Ok(())
    });
    report.case("a guest reaches it, and a port that is not declared is refused", || {
        let text = http::get(fleet.outside(), caller, &format!("/cgi-bin/reach?to={address}"), SOON)?;
        ensure!(field(&text, "hostname")?.starts_with("web-"), "{text}");
        ensure!(http::get(fleet.outside(), &format!("{address}:22"), "/", SOON).is_err(), "it is open");
        Ok(())
    });
    report.case(
        "a port that is given out leads to its guest, which reports it, and stays when entries change",
        || {
            let direct = project.output("direct")?;
            wait::until("the guest to answer", SOON, || answer(fleet, &direct, &["web-0"]))?;
            let port = direct.rsplit(':').next().unwrap_or_default().parse::<i64>()?;
            fleet.kubectl().until("vm/web-0", "its public port", SOON, |vm| {
                let ports = vm["status"]["publicPorts"].as_array();
                ports.is_some_and(|all| {
                    all.iter().any(|p| p["name"] == "balancer/direct" && p["port"] == port)
                })
            })?;
            project.edit("main.tf", "  ports = [\n", &format!("  ports = [\n{NEW_ENTRY}"))?;
            project.apply()?;
            ensure!(project.output("direct")? == direct, "another port");
            project.plan_is_empty()
        },
    );
    report.case(
        "a stopped guest gets no connections, and its status tells why; started again it does",
        || {
            power(fleet, "Stopped")?;
            wait::until("the other guest to answer alone", SOON, || answer(fleet, &address, &["web-1"]))?;
            let kubectl = fleet.kubectl();
            let object = kubectl.until(BALANCER, "one target", SOON, |ip| http_port(ip)["available"] == 1)?;
            let port = http_port(&object);
            ensure!(port["total"] == 2, "{port:#}");
            contains_all(port["message"].as_str().unwrap_or_default(), &["VM web-0", "does not run"])?;
            power(fleet, "Running")?;
            wait::until("both guests to answer", ANSWER, || answer(fleet, &address, &["web-0", "web-1"]))
        },
    );
    report.case("a port twice is refused at plan, and destroy takes the address away", || {
        destroy(&project)?;
        wait::until("the address to go", SOON, || {
            let found = fleet.kubectl().ok(&["get", "publicips", "-o", "name"])?;
            ensure!(!found.contains("/balancer"), "{found}");
            for member in fleet.members() {
                let links = member.namespace().ip(&["-o", "link"])?;
                ensure!(!links.contains("btr-"), "{}: {links}", member.name);
            }
            Ok(())
        })
    });
}

/// The state of the port `http`.
fn http_port(ip: &Value) -> &Value {
    let mut ports = ip["status"]["ports"].as_array().into_iter().flatten();
    ports.find(|port| port["name"] == "http").unwrap_or(&Value::Null)
}

fn destroy(project: &Project) -> Result<()> {
    project.edit("main.tf", "= 8080", "= 80")?;
    contains_all(&project.plan_refused()?, &["ports[2].port", "ports[1] too"])?;
    project.edit("main.tf", "port             = 80\n", "port             = 8080\n")?;
    project.destroy().map(drop)
}

fn power(fleet: &Fleet, power: &str) -> Result<()> {
    let patch = json!({"spec": {"power": power}}).to_string();
    fleet.kubectl().ok(&["patch", "vm/web-0", "--type=merge", "-p", &patch]).map(drop)
}

/// The names of the guests that answer several connections.
fn names(fleet: &Fleet, address: &str) -> Result<BTreeSet<String>> {
    let name = |_| {
        let text = http::get(fleet.outside(), address, "/", PATIENCE)?;
        Ok(field(&text, "hostname")?.to_owned())
    };
    (0..CONNECTIONS).map(name).collect()
}

fn answer(fleet: &Fleet, address: &str, expected: &[&str]) -> Result<()> {
    let names = names(fleet, address)?;
    ensure!(names.iter().eq(expected.iter()), "{names:?} answered");
    Ok(())
}
