//! Ports of public addresses that lead to guests on a LAN, before and while the host with the address has one of the LAN too.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::lan::{self, BRIDGE, Lan};
use super::{ANSWER, REPORTED, SOON};
use crate::fleet::Fleet;
use crate::http::{self, field};
use crate::kubectl::condition_of;
use crate::{manifests, wait};

/// The address of the guest.
const GUEST: &str = "2001:db8:8::50";
const USER_DATA: &str = "#!/bin/sh\nip -6 addr add 2001:db8:8::50/64 dev eth0\n";

/// The guest `fixed`, by IPv4.
pub(super) fn ipv4(fleet: &Fleet, lan: &Lan) -> Result<()> {
    balanced(fleet, lan, "fixed", "198.18.60.0/30", ["203.0.113.5/24", "203.0.113.5"])
}

/// A guest with an IPv6 address that berth has allocated.
pub(super) fn ipv6(fleet: &Fleet, lan: &Lan) -> Result<()> {
    lan.other().ip(&["-6", "addr", "add", "2001:db8:8::9/64", "dev", lan::CARD, "nodad"])?;
    let kubectl = fleet.kubectl();
    let network = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": {"name": "lan6", "namespace": "berth-shared"},
        "spec": {"type": "Bridge", "bridge": {"name": BRIDGE}, "ipv4": {"allocation": "External"},
            "ipv6CIDR": "2001:db8:8::/64"},
    });
    let vm = manifests::vm("six", "small", "six");
    let interface = json!([{"name": "nic0", "network": "lan6", "ipv6Address": GUEST}]);
    let vm = manifests::with(vm, "networkInterfaces", interface);
    let vm = manifests::with(vm, "bootstrap", json!({"userData": USER_DATA}));
    kubectl.apply(&manifests::all(&[network, manifests::disk("six", "debian", "64Mi"), vm]))?;
    http::get_within(lan.other(), &format!("[{GUEST}]:80"), "/", ANSWER)?;
    balanced(fleet, lan, "six", "2001:db8:60::/126", ["2001:db8:8::5/64", "2001:db8:8::5"])?;
    kubectl.delete("vm/six")?;
    kubectl.delete("disk/six")?;
    kubectl.ok(&["delete", "network", "lan6", "--namespace=berth-shared"]).map(drop)
}

/// A guest over an interface of its host, which has no address of the LAN.
pub(super) fn over_interface(fleet: &Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    kubectl.apply(&port("198.18.61.0/30", "tagged"))?;
    let object = kubectl.condition("publicip/lan", "TargetsAvailable=True", None, SOON)?;
    let status = &object["status"];
    let public = status["address"].as_str().context("it has an address")?;
    ensure!(status["forwardingAddresses"][0]["address"] == "203.0.113.69", "{status:#}");
    let host = fleet.member("h1")?.namespace();
    let text = http::get_within(host, &format!("{public}:8080"), "/", SOON)?;
    ensure!(field(&text, "hostname")? == "tagged", "{text}");
    kubectl.delete("publicip/lan")?;
    kubectl.delete("ippool/lan")?;
    wait::until("the address of the LAN to go", SOON, || {
        let links = host.ip(&["-o", "link"])?;
        ensure!(!links.contains("btr-"), "{links}");
        Ok(())
    })
}

/// A pool of one range, and an address of it with a port that leads to the guest.
fn port(pool: &str, vm: &str) -> String {
    let ports = json!([{"name": "http", "port": 8080, "targetPort": 80, "targets": [vm]}]);
    let ip = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "PublicIP", "metadata": {"name": "lan"},
        "spec": {"pool": "lan", "ports": ports}});
    manifests::all(&[manifests::pool("lan", pool), ip])
}

/// Leads a port of an address of this pool to the guest, before and while its host has an address, given with its prefix and without.
fn balanced(fleet: &Fleet, lan: &Lan, vm: &str, pool: &str, [assigned, via]: [&str; 2]) -> Result<()> {
    let kubectl = fleet.kubectl();
    kubectl.apply(&port(pool, vm))?;
    let unreached = |object: &Value| {
        let text = condition_of(object, "TargetsAvailable").and_then(|c| c["message"].as_str());
        text.is_some_and(|text| text.contains("has no address"))
    };
    kubectl.until("publicip/lan", "a target out of reach", SOON, unreached)?;
    let host = fleet.member("h2")?.namespace();
    host.ip(&["addr", "add", assigned, "dev", BRIDGE])?;
    let object = kubectl.while_hosts_look(REPORTED, |limit| {
        kubectl.condition("publicip/lan", "TargetsAvailable=True", None, limit)
    })?;
    let public = object["status"]["address"].as_str().context("it has an address")?;
    lan.other().ip(&["route", "add", public, "via", via])?;
    let target = if public.contains(':') { format!("[{public}]:8080") } else { format!("{public}:8080") };
    let text = http::get_within(lan.other(), &target, "/", SOON)?;
    ensure!(field(&text, "hostname")? == vm, "{text}");
    lan.other().ip(&["route", "del", public])?;
    kubectl.delete("publicip/lan")?;
    kubectl.delete("ippool/lan")?;
    host.ip(&["addr", "del", assigned, "dev", BRIDGE]).map(drop)
}
