//! `examples/networks/static-addresses` with the small guest: it gets no lease, and its address by the network configuration of its seed.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{http, workspace};

/// A boot without KVM, and the requests for a lease that nothing answers.
const BOOT: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_secs(60);
/// Configures the small guest as cloud-init would: it has none, and asks for an address by DHCP in any case.
const USER_DATA: &str = include_str!("networks/static.sh");
/// The answers of the DHCP server, as the guest's client reports them.
const DHCP_LOG: &str = "cp /run/udhcpc.eth0.log /www/dhcp-log\n";

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/networks/static-addresses: a guest gets no lease, and its address and the name of its card by cloud-init",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/networks/static-addresses"))?;
            let url = platform.images().put("static.qcow2", Content::File(guest.path.clone()));
            let user_data = USER_DATA.replacen('\n', &format!("\n{DHCP_LOG}"), 1);
            let variables = json!({"image_url": url, "image_sha256": guest.sha256, "user_data": user_data});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            let done = check_guest(platform, &project);
            project.destroy()?;
            done
        },
    );
}

fn check_guest(platform: &Platform, project: &Project) -> Result<()> {
    project.apply()?;
    project.plan_is_empty()?;
    let address = project.output("address")?;
    // It answers at this address only once it has configured it.
    let log = http::get_within(platform.namespace(), &address, "/dhcp-log", BOOT)?;
    ensure!(!log.contains("obtained"), "it has a lease: {log}");
    let config = http::get(platform.namespace(), &address, "/network-config", SOON)?;
    let config: Value = serde_json::from_str(&config)?;
    let card = &config["ethernets"]["nic0"];
    ensure!(card["dhcp4"] == false && card["set-name"] == "lan0", "{config}");
    ensure!(card["addresses"] == json!([format!("{address}/24")]), "{config}");
    ensure!(card["routes"] == json!([{"to": "0.0.0.0/0", "via": "10.88.0.1"}]), "{config}");
    ensure!(card["nameservers"]["addresses"] == json!(["10.88.0.1"]), "{config}");

    project.edit("main.tf", "guest_name = \"lan0\"", "guest_name = \"lan1\"")?;
    let refused = crate::terraform::unwrapped(&project.apply_refused()?);
    contains_all(&refused, &["guest_name", "another name"])?;
    project.edit("main.tf", "guest_name = \"lan1\"", "guest_name = \"lan0\"")
}
