//! `examples/networks/names` with the small guest: VMs that find each other by name, and changes while they run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::hosts::map;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::wait;

const SOON: Duration = Duration::from_secs(60);
/// A boot without KVM.
const BOOT: Duration = Duration::from_secs(240);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/networks/names: a guest finds another VM by its name, also under another domain, until the VM is destroyed",
        || {
            let (project, variables) = platform.example("networks/names", guest)?;
            let done = check_guests(platform, &project, &variables);
            project.destroy()?;
            done
        },
    );
}

fn check_guests(platform: &Platform, project: &Project, variables: &Value) -> Result<()> {
    project.apply()?;
    project.plan_is_empty()?;
    let addresses = map(project, "addresses")?;
    let web = addresses.get("web.app.internal").context("web")?;
    let db = addresses.get("db.app.internal").context("db")?;
    let resolve = |name: &str| {
        let path = format!("/cgi-bin/resolve?name={name}");
        http::get_within(platform.namespace(), web, &path, BOOT)
    };
    let leads_to_db = |name: &str, complete: &str| -> Result<()> {
        let page = resolve(name)?;
        ensure!(field(&page, "name")? == complete && field(&page, "address")? == db, "{name}: {page}");
        Ok(())
    };
    wait::until("web to find db", SOON, || leads_to_db("db.app.internal", "db.app.internal"))?;
    leads_to_db("db", "db.app.internal")?;
    let page = resolve(db)?;
    ensure!(field(&page, "name")? == "db.app.internal", "{page}");
    let page = resolve("cache.app.internal")?;
    ensure!(field(&page, "unknown")? == "yes", "{page}");
    // The host name that the guest itself sends by DHCP, alone.
    let page = resolve("web.")?;
    ensure!(field(&page, "address").is_err(), "{page}");

    let mut changed = variables.clone();
    changed["domain"] = json!("data.internal");
    project.write("terraform.tfvars.json", &changed.to_string())?;
    let plan = project.plan()?;
    ensure!(plan.changes() == ["berth_network.app: update"], "{:?}", plan.changes());
    ensure!(!plan.text.contains("power cycle"), "{}", plan.text);
    project.apply()?;
    wait::until("db to have another name", SOON, || leads_to_db("db.data.internal", "db.data.internal"))?;
    http::get_within(platform.namespace(), web, "/cgi-bin/network?renew", SOON)?;
    wait::until("web to look up names in it", SOON, || leads_to_db("db", "db.data.internal"))?;

    changed["vms"] = json!(["web"]);
    project.write("terraform.tfvars.json", &changed.to_string())?;
    project.apply()?;
    wait::until("the name of a VM that is gone to go", SOON, || {
        let page = resolve("db.data.internal")?;
        ensure!(field(&page, "unknown")? == "yes", "{page}");
        Ok(())
    })?;
    project.plan_is_empty()
}
