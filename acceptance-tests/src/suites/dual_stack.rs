//! `examples/networks/dual-stack` with the small guest: IPv6 between two guests, to their gateway, and not under other addresses; a public
//! IPv6 address from outside. `examples/networks/ipv6-only`: guests without IPv4. `examples/networks/ipv6-autoconfiguration`: a guest that
//! forms its address. `examples/networks/prefix-pool`: a prefix from a pool. `examples/networks/public-prefix`: a prefix that is routed to a
//! guest.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::{NEIGHBOUR, Platform};
use crate::report::Report;
use crate::terraform::{Project, unwrapped};
use crate::workspace;

const SOON: Duration = Duration::from_secs(60);
/// A boot without KVM, of two guests at once.
const BOOT: Duration = Duration::from_secs(240);
const WEB: &str = "fd00:60::8:80";
/// The lowest address of a network without IPv4.
const CLIENT: &str = "fd00:60::2";
const GATEWAY: &str = "fd00:60::1";
/// The lowest address of the pool.
const PUBLIC: &str = "2001:db8:9::100";
const POOL: &str = r#"resource "berth_ip_pool" "segment6" {
  name  = "segment6"
  mode  = "l2"
  cidrs = ["2001:db8:9::100-2001:db8:9::1ff"]
}

resource "berth_public_ip" "web6" {
  name = "web6"
  pool = berth_ip_pool.segment6.name
}
"#;
const PORTS: &str = r#"resource "berth_public_ip" "ports6" {
  name  = "ports6"
  pool  = berth_ip_pool.segment6.name
  ports = [{ name = "http", port = 8080, target_port = 80, targets = [berth_vm.web.name], health_check = {} }]
}
"#;
const PRIVATE_ONLY: &str = r#"    ipv6_address    = "fd00:60::8:80"
"#;
const WITH_PUBLIC: &str = r#"    ipv6_address    = "fd00:60::8:80"
    public_ipv6     = berth_public_ip.web6.name
"#;

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/networks/dual-stack: guests reach each other and their gateway by IPv6, under their own addresses only",
        || {
            let (project, variables) = platform.example("networks/dual-stack", guest)?;
            let done = check(platform, &project, &variables);
            project.destroy()?;
            done
        },
    );
    report.case("examples/networks/ipv6-only: guests without IPv4 reach each other and are in no other way different", || {
        let project = platform.project()?;
        project.copy_from(&workspace::root().join("examples/networks/ipv6-only"))?;
        let url = platform.images().put("ipv6-only.qcow2", Content::File(guest.path.clone()));
        // The small guest has no client of DHCPv6, so that it is not known to berth.
        let script = include_str!("dual_stack/guest.sh");
        let user_data = json!({"web": script.replace("ADDRESS", WEB), "client": script.replace("ADDRESS", CLIENT)});
        let variables =
            json!({"image_url": url, "image_sha256": guest.sha256, "user_data": user_data, "wait_for": "running"});
        project.write("terraform.tfvars.json", &variables.to_string())?;
        project.init()?;
        let done = check_ipv6_only(platform, &project);
        project.destroy()?;
        done
    });
    report.case(
        "examples/networks/prefix-pool: a network takes a prefix of a pool, which goes after it",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/networks/prefix-pool"))?;
            let url = platform.images().put("prefix-pool.qcow2", Content::File(guest.path.clone()));
            let variables = json!({"image_url": url, "image_sha256": guest.sha256, "disk_size": "64Mi"});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            let done = check_prefix_pool(platform, &project);
            project.destroy()?;
            done
        },
    );
}

fn check_prefix_pool(platform: &Platform, project: &Project) -> Result<()> {
    let pool = "{ pool = berth_ip_pool.prefixes.name }";
    project.edit("main.tf", pool, "{ pool = berth_ip_pool.prefixes.name, gateway = \"fe80::1\" }")?;
    contains_all(&unwrapped(&project.plan_refused()?), &["takes its prefix from the pool"])?;
    project.edit("main.tf", "{ pool = berth_ip_pool.prefixes.name, gateway = \"fe80::1\" }", pool)?;
    project.apply()?;
    project.plan_is_empty()?;
    let network = platform.kubectl().object("network", "routed")?;
    let prefix = network["status"]["ipv6CIDR"].as_str().context("no prefix")?;
    let start = prefix.strip_prefix("2001:db8:100:").and_then(|rest| rest.strip_suffix("::/64"));
    ensure!(start.is_some() || prefix == "2001:db8:100::/64", "{prefix}");
    let of_network = prefix.trim_end_matches(":/64");
    let vm = platform.kubectl().object("vm", "prefix-web")?;
    let own = vm["status"]["interfaces"][0]["ipv6Address"].as_str().context("no IPv6 address")?;
    ensure!(own.starts_with(of_network), "{own} is not of {prefix}");
    let address = vm["status"]["interfaces"][0]["address"].as_str().context("no address")?;
    let page = http::get_within(platform.namespace(), address, "/", BOOT)?;
    ensure!(field(&page, "hostname")? == "prefix-web", "{page}");
    let addresses = platform.namespace().ip(&["-6", "-o", "addr", "show"])?;
    ensure!(
        addresses.contains(&format!("{of_network}:1/64")),
        "the host has no gateway of {prefix}: {addresses}"
    );
    Ok(())
}

pub fn autoconfiguration(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/networks/ipv6-autoconfiguration: a guest forms the IPv6 address that its VM has, and answers there",
        || {
            let (project, _) = platform.example("networks/ipv6-autoconfiguration", guest)?;
            let done = check_autoconfiguration(platform, &project);
            project.destroy()?;
            done
        },
    );
}

pub fn public_prefix(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/networks/public-prefix: an address of a public prefix leads to its guest, from the host and from outside",
        || {
            let (project, _) = platform.example("networks/public-prefix", guest)?;
            let done = check_public_prefix(platform, &project);
            project.destroy()?;
            done
        },
    );
}

fn check_public_prefix(platform: &Platform, project: &Project) -> Result<()> {
    project.edit("main.tf", "prefix_length = 80", "prefix_length = 60")?;
    contains_all(&unwrapped(&project.plan_refused()?), &["prefix_length"])?;
    project.edit("main.tf", "prefix_length = 60", "prefix_length = 80")?;
    project.apply()?;
    project.plan_is_empty()?;
    project.edit("main.tf", "prefix_length = 80", "prefix_length = 68")?;
    contains_all(&unwrapped(&project.plan_refused()?), &["68 is less than 72", "min_prefix_length"])?;
    project.edit("main.tf", "prefix_length = 68", "prefix_length = 80")?;
    let (prefix, address) = (project.output("prefix")?, project.output("address")?);
    ensure!(
        (prefix.as_str(), address.as_str()) == ("2001:db8:0:8::/80", "2001:db8:0:8::1"),
        "{prefix}, {address}"
    );
    let attributes = project.attributes("berth_vm.containers")?;
    ensure!(attributes["public_ipv6_address"].is_null(), "the guest has no single one: {attributes:#}");
    let url = format!("[{address}]:80");
    http::get_within(platform.namespace(), &url, "/", BOOT)?;
    let (host, neighbour) = (platform.namespace(), platform.neighbour());
    host.ip(&["-6", "addr", "add", "2001:db8:a::1/64", "dev", "uplink", "nodad"])?;
    neighbour.ip(&["-6", "addr", "add", "2001:db8:a::2/64", "dev", "uplink", "nodad"])?;
    neighbour.ip(&["-6", "route", "add", "2001:db8:0:8::/64", "via", "2001:db8:a::1"])?;
    let answer = http::get_within(neighbour, &url, "/", SOON);
    neighbour.ip(&["-6", "route", "del", "2001:db8:0:8::/64", "via", "2001:db8:a::1"])?;
    answer.map(drop)
}

fn check_autoconfiguration(platform: &Platform, project: &Project) -> Result<()> {
    let interface = "[{ network = berth_network.formed.name }]";
    let fixed = "[{ network = berth_network.formed.name, ipv6_address = \"fd00:91::2\" }]";
    project.apply()?;
    project.plan_is_empty()?;
    let address = project.output("address")?;
    ensure!(
        address.starts_with("fd00:91::") && address.contains("ff:fe"),
        "not of its MAC address: {address}"
    );
    http::get_within(platform.namespace(), &format!("[{address}]:80"), "/", BOOT)?;
    project.edit("main.tf", interface, fixed)?;
    contains_all(&unwrapped(&project.apply_refused()?), &["ipv6_address"])?;
    project.edit("main.tf", fixed, interface)?;
    // The refused apply has left the planned address in the output.
    project.apply()?;
    project.plan_is_empty()
}

fn check_ipv6_only(platform: &Platform, project: &Project) -> Result<()> {
    project.edit("main.tf", "ipv6_egress = \"Masquerade\"", "egress = \"Masquerade\"")?;
    contains_all(&unwrapped(&project.plan_refused()?), &["it is for IPv4"])?;
    project.edit("main.tf", "egress = \"Masquerade\"", "ipv6_egress = \"Masquerade\"")?;
    project.apply()?;
    project.plan_is_empty()?;
    for (vm, address) in [("web", WEB), ("client", CLIENT)] {
        let attributes = project.attributes(&format!("berth_vm.{vm}"))?;
        ensure!(attributes["private_address"] == address, "{attributes:#}");
        ensure!(attributes["addresses"]["nic0"] == json!([address]), "{attributes:#}");
    }
    http::get_within(platform.namespace(), &format!("[{CLIENT}]:80"), "/six-ready", BOOT)?;
    let ask = |to: &str| {
        http::get(platform.namespace(), &format!("[{CLIENT}]:80"), &format!("/cgi-bin/six?to={to}"), SOON)
    };
    crate::wait::until("the other guest to answer", BOOT, || {
        let page = ask(WEB)?;
        ensure!(field(&page, "hostname")? == "six-web", "{page}");
        ensure!(field(&page, "ping")? == "no", "its security group allows no ICMPv6: {page}");
        Ok(())
    })?;
    let page = ask(GATEWAY)?;
    ensure!(field(&page, "ping")? == "yes" && field(&page, "default")?.starts_with("fe80::"), "{page}");
    Ok(())
}

fn check(platform: &Platform, project: &Project, variables: &Value) -> Result<()> {
    refusals(project)?;
    let script = include_str!("dual_stack/guest.sh");
    let mut variables = variables.clone();
    variables["user_data"] =
        json!({"web": script.replace("ADDRESS", WEB), "client": script.replace("ADDRESS", "")});
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.apply()?;
    project.plan_is_empty()?;
    let decided = |vm: &str| -> Result<(String, String)> {
        let attributes = project.attributes(&format!("berth_vm.{vm}"))?;
        let interface = &attributes["network_interfaces"][0];
        let text = |name: &str| interface[name].as_str().map(str::to_owned).context("an address");
        Ok((text("address")?, text("ipv6_address")?))
    };
    let ((web, web_ipv6), (client, client_ipv6)) = (decided("web")?, decided("client")?);
    let number = client.strip_prefix("10.86.0.").context("an address of the network")?;
    ensure!(web_ipv6 == WEB && client_ipv6 == format!("fd00:60::{number}"), "{web_ipv6}, {client_ipv6}");
    for address in [&client, &web] {
        http::get_within(platform.namespace(), address, "/six-ready", BOOT)?;
    }
    let ask = |query: &str| http::get(platform.namespace(), &client, &format!("/cgi-bin/six?{query}"), SOON);
    let routes = |of: &str| -> Result<Value> {
        let config = http::get(platform.namespace(), of, "/network-config", SOON)?;
        let config: Value = serde_json::from_str(&config)?;
        Ok(config["ethernets"]["nic0"]["routes"].clone())
    };
    ensure!(routes(&client)? == json!([{"to": "fd09::/48", "via": WEB}]), "{}", routes(&client)?);
    ensure!(routes(&web)?.is_null(), "the router has no route by itself: {}", routes(&web)?);

    let page = ask(&format!("to={GATEWAY}"))?;
    ensure!(field(&page, "ping")? == "yes" && field(&page, "prefix")? == "fd00:60::/64", "{page}");
    ensure!(field(&page, "default")?.is_empty(), "there is no way out: {page}");
    let page = ask(&format!("to={WEB}"))?;
    ensure!(field(&page, "hostname")? == "dual-web", "by HTTP: {page}");
    ensure!(field(&page, "ping")? == "no", "its security group allows no ICMPv6: {page}");
    let heard = |who: &str| -> Result<String> {
        let page = ask(&format!("to={GATEWAY}&as={who}"))?;
        field(&page, "ping").map(str::to_owned)
    };
    for who in ["fd00:60::77", WEB, "fd00:61::3"] {
        ensure!(heard(who)? == "no", "it is heard as {who}");
    }
    http::get(platform.namespace(), &format!("[{WEB}]:80"), "/", SOON)?;

    // Live: a group that allows all, and a way out, which is a default route.
    project.edit("main.tf", "protocol = \"tcp\", ports = [\"80\"], cidrs", "cidrs")?;
    variables["ipv6_egress"] = json!("Masquerade");
    project.write("terraform.tfvars.json", &variables.to_string())?;
    let plan = project.plan()?;
    let expected = ["berth_network.app: update", "berth_security_group.web: update"];
    ensure!(plan.changes() == expected, "{:?}", plan.changes());
    project.apply()?;
    project.plan_is_empty()?;
    crate::wait::until("the guest to have a default route, and an answer", SOON, || {
        let page = ask(&format!("to={WEB}"))?;
        ensure!(field(&page, "ping")? == "yes", "{page}");
        ensure!(field(&page, "default")?.starts_with("fe80::"), "{page}");
        Ok(())
    })?;
    for (namespace, address) in
        [(platform.namespace(), "2001:db8:9::1/64"), (platform.neighbour(), "2001:db8:9::2/64")]
    {
        namespace.ip(&["-6", "addr", "add", address, "dev", "uplink", "nodad"])?;
    }
    // The host announces public addresses on the interface of its default route.
    platform.namespace().ip(&["route", "add", "default", "via", NEIGHBOUR])?;
    let done = public_address(platform, project, &client);
    platform.namespace().ip(&["route", "del", "default"])?;
    done
}

/// A public IPv6 address is given to the running guest, and taken away again.
fn public_address(platform: &Platform, project: &Project, client: &str) -> Result<()> {
    project.write("public.tf", POOL)?;
    project.edit("main.tf", PRIVATE_ONLY, WITH_PUBLIC)?;
    project.apply()?;
    project.plan_is_empty()?;
    let attributes = project.attributes("berth_vm.web")?;
    ensure!(attributes["public_ipv6_address"] == PUBLIC, "{attributes:#}");
    let addresses = attributes["addresses"]["nic0"].as_array().context("a list")?;
    ensure!(addresses.ends_with(&[json!(WEB), json!(PUBLIC)]) && addresses.len() == 3, "{addresses:?}");
    let url = format!("[{PUBLIC}]:80");
    let answer = http::get(platform.neighbour(), &url, "/", Duration::from_secs(3));
    ensure!(answer.is_err(), "its security group allows its network only: {answer:?}");
    project.edit("main.tf", "app.ipv6_cidr] }", "app.ipv6_cidr, \"::/0\"] }")?;
    project.apply()?;
    http::get_within(platform.neighbour(), &url, "/", SOON)?;
    let page = http::get(platform.namespace(), client, &format!("/cgi-bin/six?to={PUBLIC}"), SOON)?;
    ensure!(field(&page, "hostname")? == "dual-web", "from the other guest: {page}");
    project.edit("main.tf", WITH_PUBLIC, PRIVATE_ONLY)?;
    project.apply()?;
    crate::wait::until("the address to lead nowhere", SOON, || {
        let answer = http::get(platform.neighbour(), &url, "/", Duration::from_secs(5));
        ensure!(answer.is_err(), "it still answers: {answer:?}");
        Ok(())
    })?;
    // A port of another address leads to the same VM.
    project.write("ports.tf", PORTS)?;
    project.apply()?;
    project.plan_is_empty()?;
    let attributes = project.attributes("berth_public_ip.ports6")?;
    let address = attributes["address"].as_str().context("an address")?;
    http::get_within(platform.neighbour(), &format!("[{address}]:8080"), "/", SOON)?;
    let answer = http::get(platform.neighbour(), &format!("[{address}]:80"), "/", Duration::from_secs(3));
    ensure!(answer.is_err(), "a port that is not declared: {answer:?}");
    Ok(())
}

fn refusals(project: &Project) -> Result<()> {
    for (right, wrong, words) in [
        ("\"fd00:60::/64\"", "\"fd00:60::/56\"", "write a /64"),
        ("\"fd00:60::/64\"", "\"fe80::/64\"", "neither of fc00::/7"),
        ("ipv6_address    = \"fd00:60::8:80\"", "ipv6_address    = \"10.86.0.9\"", "not an IPv6 address"),
        ("via = \"fd00:60::8:80\"", "via = \"fd00:61::80\"", "not within ipv6_cidr fd00:60::/64"),
        ("via = \"fd00:60::8:80\"", "via = \"10.86.0.9\"", "of one family"),
    ] {
        project.edit("main.tf", right, wrong)?;
        contains_all(&unwrapped(&project.plan_refused()?), &[words])?;
        project.edit("main.tf", wrong, right)?;
    }
    Ok(())
}
