//! `examples/networks/routes` with the small guest: what a guest between two networks gets by DHCP, and a change while it runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{http, wait};

const SOON: Duration = Duration::from_secs(60);
/// A boot without KVM.
const BOOT: Duration = Duration::from_secs(240);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/networks/routes: a guest gets routes, domains and one default route, and a change when it renews its lease",
        || {
            let (project, variables) = platform.example("networks/routes", guest)?;
            let done = check_guest(platform, &project, &variables);
            project.destroy()?;
            done
        },
    );
}

/// Returns the values of a key of the guest's page, in order.
fn values<'a>(page: &'a str, key: &str) -> Vec<&'a str> {
    let value = |word: &'a str| word.strip_prefix(key)?.strip_prefix('=');
    let mut values: Vec<&str> = page.split_whitespace().filter_map(value).collect();
    values.sort_unstable();
    values
}

fn check_guest(platform: &Platform, project: &Project, variables: &Value) -> Result<()> {
    project.apply()?;
    project.plan_is_empty()?;
    let address = project.output("address")?;
    let page = |path: &str| http::get_within(platform.namespace(), &address, path, BOOT);
    wait::until("the second card to have its lease", SOON, || {
        contains_all(&page("/cgi-bin/network")?, &["eth1_"])
    })?;
    let first = page("/cgi-bin/network")?;
    ensure!(values(&first, "gateway") == ["10.82.0.1"], "one default route: {first}");
    ensure!(
        values(&first, "route")
            == ["10.84.0.0/24,10.83.0.3", "172.16.0.0/12,10.82.0.8", "192.168.0.0/16,10.82.0.9"],
        "none by itself, and the one of its own: {first}"
    );
    ensure!(values(&first, "eth0_search") == ["example.org"], "{first}");
    ensure!(values(&first, "eth0_nameserver") == ["10.82.0.1"], "{first}");
    ensure!(values(&first, "eth1_search") == ["db.example.org"], "{first}");
    ensure!(values(&first, "eth1_nameserver") == ["10.83.0.53"], "{first}");

    let pid = platform.qemu()?;
    let mut changed = variables.clone();
    changed["search_domains"] = json!(["example.net", "example.org"]);
    changed["default_route_by_back"] = json!(true);
    project.write("terraform.tfvars.json", &changed.to_string())?;
    let plan = project.plan()?;
    ensure!(
        plan.changes() == ["berth_network.front: update", "berth_vm.router: update"],
        "{:?}",
        plan.changes()
    );
    ensure!(!plan.text.contains("power cycle"), "{}", plan.text);
    project.apply()?;
    project.plan_is_empty()?;
    wait::until("the guest to have it with its next leases", SOON, || {
        let page = page("/cgi-bin/network?renew")?;
        ensure!(values(&page, "gateway") == ["10.82.0.1", "10.83.0.1"], "{page}");
        ensure!(values(&page, "eth0_search") == ["example.net,example.org"], "{page}");
        Ok(())
    })?;
    ensure!(platform.qemu()? == pid, "the VM was restarted");

    project.edit("main.tf", r#"via = "10.82.0.9""#, r#"via = "10.85.0.9""#)?;
    let refused = crate::terraform::unwrapped(&project.plan_refused()?);
    contains_all(&refused, &["routes[0].via", "10.85.0.9 is not within cidr 10.82.0.0/24"])?;
    project.edit("main.tf", r#"via = "10.85.0.9""#, r#"via = "10.82.0.9""#)
}
