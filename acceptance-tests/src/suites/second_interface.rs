//! A second network interface of a guest that runs: added, without a link, removed.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::http::{self, field};
use crate::platform::Platform;
use crate::terraform::Project;
use crate::wait;

const SOON: Duration = Duration::from_secs(45);

/// The VM `web` has `one` as its only interface; it answers at this address, and this is its boot.
pub fn comes_and_goes(
    platform: &Platform,
    project: &Project,
    (public, boot): (&str, &str),
    one: &str,
) -> Result<()> {
    let page = |path: &str| http::get(platform.namespace(), public, path, SOON);
    let interfaces = || -> Result<Vec<String>> {
        let vm = platform.kubectl().object("vm", "web")?;
        let all = vm["status"]["interfaces"].as_array().cloned().unwrap_or_default();
        Ok(all.iter().filter_map(|i| i["macAddress"].as_str().map(str::to_owned)).collect())
    };
    let two = |link: &str| format!("{}, {{ link = \"{link}\" }}]", one.trim_end_matches(']'));
    project.edit("main.tf", one, &two("Up"))?;
    let plan = project.plan()?;
    ensure!(plan.changes() == ["berth_vm.web: update"], "{:?}", plan.changes());
    project.apply()?;
    let macs = interfaces()?;
    ensure!(macs.len() == 2, "{macs:?}");
    let link = format!("link-{}", macs[1]);
    let has_link = |carrier: &str| {
        wait::until("the link of the second card", SOON, || {
            let text = page("/cgi-bin/network")?;
            ensure!(field(&text, &link)? == carrier, "{text}");
            Ok(())
        })
    };
    has_link("1")?;
    project.plan_is_empty()?;
    project.edit("main.tf", &two("Up"), &two("Down"))?;
    project.apply()?;
    has_link("0")?;
    project.edit("main.tf", &two("Down"), one)?;
    project.apply()?;
    let text = page("/cgi-bin/network")?;
    ensure!(field(&text, &link).is_err(), "the card is still there: {text}");
    ensure!(interfaces()? == macs[..1], "its address is not free: {:?}", interfaces()?);
    let text = page("/cgi-bin/uptime")?;
    ensure!(field(&text, "boot_id")? == boot, "the guest rebooted: {text}");
    project.plan_is_empty()
}
