//! `examples/networks/limits` with the small guest: guests that are kept from each other, a further address of an interface, limits of
//! its traffic, and a port of a public address.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{process, wait};

const SOON: Duration = Duration::from_secs(60);
/// A boot without KVM.
const BOOT: Duration = Duration::from_secs(240);
/// The further address of the server's interface, and one that it has not.
const SHARED: &str = "10.99.0.100";
const FOREIGN: &str = "10.99.0.101";
const GATEWAY: &str = "10.99.0.1";

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/networks/limits: isolated guests, a shared address, limits and a class of packets, each changed while they run",
        || {
            let (project, variables) = platform.example("networks/limits", guest)?;
            let done = check(platform, &project, &variables);
            project.destroy()?;
            done
        },
    );
}

fn rules(platform: &Platform) -> Result<String> {
    let mut nft = platform.namespace().command("nft");
    nft.args(["list", "table", "bridge", "berth"]);
    process::run(&mut nft, SOON)?.success()
}

fn check(platform: &Platform, project: &Project, variables: &Value) -> Result<()> {
    project.apply()?;
    project.plan_is_empty()?;
    let (server, client) = (project.output("server")?, project.output("client")?);
    let page = |address: &str, path: &str| http::get_within(platform.namespace(), address, path, BOOT);
    let answers = |path: &str, key: &str| -> Result<bool> { Ok(field(&page(&server, path)?, key)? == "yes") };
    let to_client = format!("/cgi-bin/reach?to={client}");
    ensure!(page(&client, "/")?.contains("hostname=limits-client"), "the client answers its host");
    ensure!(!answers(&to_client, "ping")?, "isolated guests reach each other");
    let under = |address: &str| format!("/cgi-bin/spoof?as={address}&to={GATEWAY}");
    ensure!(answers(&under(SHARED), "ping")?, "the server cannot use {SHARED}");
    ensure!(!answers(&under(FOREIGN), "ping")?, "the server uses {FOREIGN}");

    contains_all(&rules(platform)?, &["over 12500000 bytes/second", "over 6250000 bytes/second", "dscp"])?;
    let web = project.output("web")?;
    ensure!(web.starts_with("198.51.100.") && web.contains(":200"), "not of the ranges: {web}");
    contains_all(&http::get_within(platform.namespace(), &web, "/", BOOT)?, &["hostname=limits-server"])?;
    let boot = page(&server, "/cgi-bin/uptime")?;

    let mut open = variables.clone();
    open["isolated"] = false.into();
    open["egress_bandwidth"] = "8M".into();
    project.write("terraform.tfvars.json", &open.to_string())?;
    let mut changes = project.plan()?.changes();
    changes.sort();
    ensure!(changes == ["berth_network.cell: update", "berth_vm.server: update"], "{changes:?}");
    project.apply()?;
    project.plan_is_empty()?;
    wait::until("the guests to reach each other", SOON, || {
        ensure!(answers(&to_client, "ping")?, "the client does not answer");
        Ok(())
    })?;
    wait::until("the other limit", SOON, || contains_all(&rules(platform)?, &["over 1000000 bytes/second"]))?;
    let now = page(&server, "/cgi-bin/uptime")?;
    ensure!(field(&now, "boot_id")? == field(&boot, "boot_id")?, "another boot: {now}");
    Ok(())
}
