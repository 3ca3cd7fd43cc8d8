//! Networks: ranges, bridges, spoofed frames, the reach of guests.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::super::manifests;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::{Content, ImageServer};
use crate::kubectl::{Kubectl, condition_of};
use crate::namespace::Namespace;
use crate::platform::Platform;
use crate::report::Report;

const SOON: Duration = Duration::from_secs(30);
/// The time limit for a guest's start while the machine emulates others.
const BOOT: Duration = Duration::from_secs(150);
const TENANT: &str = "net-mallory";
/// The platform's host on its segment.
const HOST: &str = "192.0.2.1";
const LAN: &str = "192.0.2.0/24";
const VICTIM: &str = "net-victim";

/// Runs the cases; each cleans up after itself.
pub(super) fn run(report: &mut Report, platform: &mut Platform, guest: &GuestImage) {
    let tenant = platform.kubectl().within(TENANT);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}});
    if !report.case("a tenant's namespace is made", || tenant.apply(&namespace.to_string()).map(drop)) {
        return;
    }
    ranges(report, platform, &tenant);
    guests(report, platform, &tenant, guest);
    // kube-apiserver alone has no controller that empties a namespace.
    if platform.is_embedded() {
        report.case("the tenant's namespace goes", || tenant.delete(&format!("namespace/{TENANT}")));
    }
}

fn ranges(report: &mut Report, platform: &Platform, tenant: &Kubectl) {
    report.case("a Network of a special range is refused", || {
        for cidr in [
            "127.0.0.0/8",
            "127.1.0.0/16",
            "169.254.0.0/16",
            "169.0.0.0/8",
            "224.0.0.0/8",
            "0.0.0.0/8",
            "240.0.0.0/8",
            "255.255.255.0/24",
        ] {
            let text = tenant.apply_refused(&manifests::network("special", cidr).to_string())?;
            ensure!(text.contains("special range"), "{cidr}: {text}");
        }
        for cidr in ["10.0.0.0/7", "10.91.0.1/24", "10.91.0.0/31"] {
            tenant.apply_refused(&manifests::network("special", cidr).to_string())?;
        }
        Ok(())
    });
    report.case("a Network over the host's own network is refused, and the host's routes stay", || {
        let routes = || platform.namespace().ip(&["-4", "route", "show", LAN]);
        let before = routes()?;
        let lan = manifests::network("lan", LAN);
        let half = manifests::network("half", "192.0.2.0/25");
        tenant.apply(&manifests::all(&[lan, half]))?;
        for name in ["lan", "half"] {
            let network = stalled(tenant, name)?;
            let message = message(&network)?;
            ensure!(message.contains("a host uses itself") && !message.contains(HOST), "{message}");
            ensure!(network["status"]["vni"].is_null(), "it has an identifier: {:#}", network["status"]);
        }
        ensure!(routes()? == before, "the host's routes have changed: {}", routes()?);
        ["network/lan", "network/half"].iter().try_for_each(|name| tenant.delete(name))
    });
    report.case(
        "a Network larger than a tenant may have is refused and takes no addresses from others",
        || {
            tenant.apply(&manifests::network("all", "10.0.0.0/8").to_string())?;
            let message = message(&stalled(tenant, "all")?)?;
            ensure!(message.contains("larger than /16"), "{message}");
            tenant.apply(&manifests::network("own", "10.91.0.0/24").to_string())?;
            tenant.condition("network/own", "Ready=True", None, SOON)?;
            ["network/all", "network/own"].iter().try_for_each(|name| tenant.delete(name))
        },
    );
}

fn stalled(kubectl: &Kubectl, name: &str) -> Result<Value> {
    kubectl.condition(&format!("network/{name}"), "Stalled=True", Some("InvalidSpec"), SOON)
}

fn message(object: &Value) -> Result<String> {
    let stalled = condition_of(object, "Stalled").context("it is not Stalled")?;
    Ok(stalled["message"].as_str().unwrap_or_default().to_owned())
}

fn guests(report: &mut Report, platform: &Platform, tenant: &Kubectl, guest: &GuestImage) {
    let url = platform.images().put("net-guest.qcow2", Content::File(guest.path.clone()));
    let running = report.step("a guest runs on its namespace's default network", || {
        let kubectl = platform.kubectl();
        let card = json!([{"name": "nic0", "publicIP": VICTIM}]);
        let vm = manifests::with(manifests::vm(VICTIM, VICTIM, VICTIM), "networkInterfaces", card);
        kubectl.apply(&manifests::all(&[
            manifests::class(VICTIM, 1, "256Mi"),
            manifests::image(VICTIM, &url, &guest.sha256),
            manifests::disk(VICTIM, VICTIM, "64Mi"),
            manifests::public_ip(VICTIM, "default"),
            vm,
        ]))?;
        let vm = kubectl.until(&format!("vm/{VICTIM}"), "a public address", BOOT, |vm| {
            vm["status"]["publicAddress"].is_string()
        })?;
        let public = vm["status"]["publicAddress"].as_str().context("an address")?.to_owned();
        http::get_within(platform.neighbour(), &public, "/", BOOT)?;
        Ok((public, vm["status"]["interfaces"][0].clone()))
    });
    if let Ok((public, interface)) = running {
        same_mac(report, tenant, &interface);
        let victim = Guest { public: &public, interface: &interface };
        own_network(report, platform, tenant, guest, victim);
        doors(report, platform, &public);
        spoofing(report, platform, &public, &interface);
    }
    report.case("the guest goes", || {
        let objects = ["vm", "publicip", "disk", "image", "vmclass"];
        objects.iter().try_for_each(|kind| platform.kubectl().delete(&format!("{kind}/{VICTIM}")))
    });
}

fn same_mac(report: &mut Report, tenant: &Kubectl, interface: &Value) {
    report.case(
        "a VM that declares another tenant's MAC address is refused without its owner's name",
        || {
            let mac = interface["macAddress"].as_str().context("a MAC")?.to_uppercase();
            let card = json!([{"name": "nic0", "macAddress": mac}]);
            let vm = manifests::with(manifests::vm("twin", "twin", "twin"), "networkInterfaces", card);
            tenant.apply(&manifests::all(&[
                manifests::class("twin", 1, "256Mi"),
                manifests::blank_disk("twin", "64Mi"),
                vm,
            ]))?;
            let vm = tenant.condition("vm/twin", "Stalled=True", Some("AddressUnavailable"), SOON)?;
            let message = message(&vm)?;
            ensure!(message.contains("is taken") && !message.contains(VICTIM), "{message}");
            ensure!(vm["status"]["binding"].is_null(), "it is bound: {:#}", vm["status"]);
            ["vm/twin", "disk/twin", "vmclass/twin"].iter().try_for_each(|object| tenant.delete(object))
        },
    );
}

/// A running guest: its public address, and its interface in the VM's status.
#[derive(Clone, Copy)]
struct Guest<'a> {
    public: &'a str,
    interface: &'a Value,
}

fn own_network(
    report: &mut Report,
    platform: &Platform,
    tenant: &Kubectl,
    image: &GuestImage,
    victim: Guest<'_>,
) {
    let Guest { public, interface } = victim;
    report.case(
        "a VM of another namespace is on a Network of its own, and neither guest reaches the other",
        || {
            let url = platform.images().put("net-guest.qcow2", Content::File(image.path.clone()));
            let card = json!([{"name": "nic0", "publicIP": TENANT}]);
            let vm = manifests::with(manifests::vm(TENANT, TENANT, TENANT), "networkInterfaces", card);
            tenant.apply(&manifests::all(&[
                manifests::class(TENANT, 1, "256Mi"),
                manifests::image(TENANT, &url, &image.sha256),
                manifests::disk(TENANT, TENANT, "64Mi"),
                manifests::public_ip(TENANT, "default"),
                vm,
            ]))?;
            let vm = tenant.until(&format!("vm/{TENANT}"), "a public address", BOOT, |vm| {
                vm["status"]["publicAddress"].is_string()
            })?;
            let theirs = vm["status"]["publicAddress"].as_str().context("an address")?;
            http::get_within(platform.neighbour(), theirs, "/", BOOT)?;
            let other = &vm["status"]["interfaces"][0];
            ensure!(other["network"] == format!("{TENANT}/default"), "{other}");
            ensure!(interface["network"] == "default/default", "{interface}");
            let neighbour: &Namespace = platform.neighbour();
            let does_not_reach = |from: &str, to: &Value| -> Result<()> {
                let address = to["address"].as_str().context("an address")?;
                let page = http::get(neighbour, from, &format!("/cgi-bin/reach?to={address}"), SOON)?;
                ensure!(field(&page, "ping")? == "no" && field(&page, "hostname")?.is_empty(), "{page}");
                Ok(())
            };
            // Each waits for an answer that does not come.
            thread::scope(|scope| {
                let other_way = scope.spawn(|| does_not_reach(theirs, interface));
                does_not_reach(public, other)?;
                other_way.join().map_err(|_| anyhow!("a check panicked"))?
            })?;
            let objects = ["vm", "publicip", "disk", "image", "vmclass"];
            objects.iter().try_for_each(|kind| tenant.delete(&format!("{kind}/{TENANT}")))
        },
    );
}

/// A field from a page that the guest serves.
fn ask(platform: &Platform, public: &str, path: &str, key: &str) -> Result<String> {
    let page = http::get(platform.neighbour(), public, path, SOON)?;
    field(&page, key).map(str::to_owned)
}

fn doors(report: &mut Report, platform: &Platform, public: &str) {
    report.case("a guest reaches names at its gateway, and no service of its host at any address", || {
        let service = ImageServer::start(platform.namespace(), "0.0.0.0")?;
        let url = service.put("page", Content::Gone);
        let port: u16 =
            url.split(':').nth(2).and_then(|rest| rest.split('/').next()).context("a port")?.parse()?;
        let open = |to: &str, port: u16| {
            ask(platform, public, &format!("/cgi-bin/door?to={to}&port={port}"), "open")
        };
        let gateway = gateway(platform, public)?;
        ensure!(open(&gateway, 53)? == "yes", "no names at {gateway}");
        let at = format!("{HOST}:{port}");
        let connected = platform.neighbour().inside(move || Ok(std::net::TcpStream::connect(at).is_ok()))?;
        ensure!(connected, "the service is not there for the neighbour either");
        for to in [HOST, &gateway] {
            ensure!(open(to, port)? == "no", "{to}:{port} is open to guests");
        }
        let outside = ImageServer::start(platform.neighbour(), "192.0.2.2")?;
        let url = outside.put("page", Content::Gone);
        let port: u16 =
            url.split(':').nth(2).and_then(|rest| rest.split('/').next()).context("a port")?.parse()?;
        ensure!(open("192.0.2.2", port)? == "yes", "the world is closed");
        Ok(())
    });
}

fn gateway(platform: &Platform, public: &str) -> Result<String> {
    ask(platform, public, "/cgi-bin/network", "gateway")
}

fn spoofing(report: &mut Report, platform: &Platform, public: &str, interface: &Value) {
    report.case("a guest is heard under its own address only", || {
        let gateway = gateway(platform, public)?;
        let own = interface["address"].as_str().context("an address")?;
        let heard =
            |who: &str| ask(platform, public, &format!("/cgi-bin/spoof?as={who}&to={gateway}"), "ping");
        ensure!(heard(own)? == "yes", "it is not heard under its own address");
        let range: Vec<&str> = own.split('.').collect();
        let neighbour = format!("{}.{}.200.200", range[0], range[1]);
        for who in [neighbour.as_str(), "203.0.113.9", HOST] {
            ensure!(heard(who)? == "no", "it is heard as {who}");
        }
        Ok(())
    });
}
