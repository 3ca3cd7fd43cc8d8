//! Bridged networks, from `examples/networks/bridge` and `vlan`: guests on a bridge of their hosts, or on one that berth makes over an
//! interface, are machines of the network behind it. Then a network that is encrypted between the hosts ([`encrypted`]), and one without
//! IPv4 ([`chosen`]).
//!
//! ```text
//!            LAN 203.0.113.0/24, a namespace with a DHCP server at .1
//!        ┌──────┴──────┐
//!   h1 ─ lan0     h2 ─ vmbr0      beside the segment that the hosts themselves are on
//! ```
//!
//! The same on `berth up` and on a real Kubernetes control plane.

mod balanced;
pub mod chosen;
pub mod encrypted;
pub mod lan;
mod learned;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Kit;
use super::kubectl::contains_all;
use crate::fleet::Fleet;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::namespace::Namespace;
use crate::report::{Report, note};
use crate::segment;
use crate::terraform::Project;
use crate::{wait, workspace};
use lan::{BRIDGE, Lan};

/// The time limit for a guest that boots beside others on two emulating processors.
const ANSWER: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
/// A host looks at its interfaces once a minute.
const REPORTED: Duration = Duration::from_secs(90);
/// Longer than an answer takes, shorter than a client that gives up.
const NO_ANSWER: Duration = Duration::from_secs(6);
/// The first address of the range.
const FIXED: &str = "203.0.113.50";
/// The second one.
const NEXT: &str = "203.0.113.51";
/// The address of a guest that asks for it by DHCP.
const SERVED: &str = "203.0.113.58";
/// The first address of the range of the Network over an interface.
const OVER_INTERFACE: &str = "203.0.113.60";
/// Configures the small guest as cloud-init would: it has none, and asks for an address by DHCP in any case.
const USER_DATA: &str = include_str!("networks/static.sh");

/// On `berth up`.
pub fn embedded(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("networks"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    report.step("the programs of WireGuard are installed", encrypted::install)?;
    let mut fleet =
        report.step("berth up serves its segment, and its own host is ready", || Fleet::embedded(&parts))?;
    report.step("a second machine joins it", || fleet.join(2, &[]))?;
    run_cases(report, &mut fleet, &guest)
}

/// On etcd and kube-apiserver.
pub fn kubernetes(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("networks-kubernetes"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    report.step("the programs of WireGuard are installed", encrypted::install)?;
    let programs = report.step("kube-apiserver is built from source", || kit.kubernetes())?;
    let mut fleet = report.step("kube-apiserver serves the segment, with berth's definitions", || {
        Fleet::kubernetes(&parts, &programs)
    })?;
    report.step(
        "a machine joins it by token, and another one at the IPv6 address of kube-apiserver",
        || {
            fleet.join(1, &[])?;
            fleet.join_by_ipv6(2)
        },
    )?;
    report.case(
        "the host whose control plane is at an IPv6 address has its IPv4 address for tunnels",
        || {
            let member = fleet.member("h2")?;
            let status = fleet.kubectl().object("host", "h2")?["status"].clone();
            let reported = status["ipv6Addresses"].as_array().context("no IPv6 addresses")?;
            ensure!(status["address"] == member.address.as_str(), "{status:#}");
            ensure!(reported.contains(&json!("2001:db8:c::12")), "{status:#}");
            Ok(())
        },
    );
    run_cases(report, &mut fleet, &guest)
}

fn run_cases(report: &mut Report, fleet: &mut Fleet, guest: &GuestImage) -> Result<()> {
    let before = report.step("the empty hosts are looked at", || fleet.footprints())?;
    let outcome = cases(report, fleet, guest)
        .and_then(|()| encrypted::cases(report, fleet, guest))
        .and_then(|()| chosen::cases(report, fleet, guest));
    if outcome.is_err() || report.count().failed > 0 {
        note(&fleet.keep_evidence());
    }
    outcome?;
    report.case("no host has anything left of a VM", || fleet.nothing_beyond(&before, SOON));
    report.case("SIGTERM ends every agent and the controllers", || fleet.stop());
    Ok(())
}

fn cases(report: &mut Report, fleet: &mut Fleet, guest: &GuestImage) -> Result<()> {
    let lan =
        report.step("a LAN with a DHCP server, a bridge of host h2 on it, and an interface of h1", || {
            let lan = Lan::new()?;
            lan.connect(fleet.member("h2")?.namespace(), "h2")?;
            lan.plug(fleet.member("h1")?.namespace(), "h1")?;
            Ok(lan)
        })?;
    report.case("each host reports its bridges, its interfaces, and those it uses itself", || {
        let networks = |host: &str, kind: &str| {
            let status = fleet.kubectl().object("host", host)?["status"].clone();
            let of_kind = status["networks"].as_array().into_iter().flatten().filter(|n| n["kind"] == kind);
            Ok(Value::from_iter(of_kind.cloned()))
        };
        let expected = json!([{"name": BRIDGE, "kind": "Bridge", "mtu": 1500, "up": true}]);
        wait::until("h2 to report its bridge", REPORTED, || {
            let found: Result<Value> = networks("h2", "Bridge");
            let found = found?;
            ensure!(found == expected, "{found}");
            Ok(())
        })?;
        let other: Result<Value> = networks("h1", "Bridge");
        ensure!(other? == json!([]));
        wait::until("h1 to report its interfaces", REPORTED, || {
            let found: Result<Value> = networks("h1", "Interface");
            let found = found?;
            ensure!(
                found[0] == json!({"name": lan::CARD, "kind": "Interface", "mtu": 1500, "up": false}),
                "{found}"
            );
            let in_use = found[1]["inUse"].as_str().unwrap_or_default();
            ensure!(found[1]["name"] == segment::CARD && in_use.starts_with("has address"), "{found}");
            Ok(())
        })
    });
    let settings = lan::settings(fleet.member("h2")?.namespace())?;
    let project = report.step("examples/networks/bridge is applied", || {
        let project = project(fleet, guest, "bridge", &json!({}))?;
        project.apply()?;
        Ok(project)
    })?;
    report.case("the plan is empty, and both VMs are on the host with the bridge and Ready", || {
        project.plan_is_empty()?;
        for vm in ["fixed", "external"] {
            ensure!(fleet.host_of(vm)? == "h2");
            fleet.kubectl().condition(&format!("vm/{vm}"), "Ready=True", None, ANSWER)?;
        }
        ensure!(project.output("address")? == FIXED);
        let external = fleet.kubectl().object("vm", "external")?;
        let status = &external["status"];
        ensure!(
            status["interfaces"][0]["address"].is_null() && status["privateAddress"].is_null(),
            "{status:#}"
        );
        Ok(())
    });
    report.case("the guest with a static address answers on it from the LAN", || {
        let text = http::get_within(lan.namespace(), FIXED, "/", ANSWER)?;
        ensure!(field(&text, "hostname")? == "fixed", "{text}");
        // It takes the address of the DHCP server first, and then configures itself.
        wait::until("the guest to have the address and the gateway", SOON, || {
            let text = http::get(lan.namespace(), FIXED, "/cgi-bin/network", SOON)?;
            let address = field(&text, "address")?;
            ensure!(address == "203.0.113.50/24" && field(&text, "gateway")? == lan::GATEWAY, "{text}");
            Ok(())
        })
    });
    let external =
        report.step("the other has an address of the LAN's DHCP server, and answers on it", || {
            let address =
                wait::until("the guest to take a lease", ANSWER, || lan.lease(&mac(fleet, "external")?))?;
            let text = http::get_within(lan.namespace(), &address, "/", ANSWER)?;
            ensure!(field(&text, "hostname")? == "external", "{text}");
            Ok(address)
        })?;
    report.case("the guest with a static address sends under no other", || spoofs(&lan, FIXED));
    report.case("the other sends from its lease only, which the status has", || {
        spoofs(&lan, &external)?;
        wait::until("the status to have the lease", SOON, || {
            let vm = fleet.kubectl().object("vm", "external")?;
            let leased = &vm["status"]["observedAddresses"][0]["leasedAddress"];
            ensure!(*leased == external.as_str(), "{leased}");
            Ok(())
        })
    });
    report.case("an address that a machine of the LAN has is given to no guest until it is free", || {
        conflicts(fleet, &lan)
    });
    report.case(
        "a security group filters the guest on the LAN, live, and its host's bridge stays as it is",
        || filters(fleet, &lan, &settings, ("fixed", FIXED)),
    );
    report.case("a security group filters the guest with a lease too", || {
        filters(fleet, &lan, &settings, ("external", external.as_str()))
    });
    report.case(
        "the agent is killed and started again: the guests answer, and the bridge is as it was",
        || {
            fleet.member_mut("h2")?.berth.crash()?;
            for address in [FIXED, &external] {
                http::get_within(lan.namespace(), address, "/", SOON)?;
            }
            fleet.member_mut("h2")?.berth.spawn_joined(None, &[])?;
            fleet.host_is_ready("h2")?;
            for address in [FIXED, &external] {
                http::get_within(lan.namespace(), address, "/", SOON)?;
            }
            lan::unchanged(fleet.member("h2")?.namespace(), &settings, 2)
        },
    );
    report.case("a guest's packets get the class of its interface, live", || marks(fleet, &lan));
    report.case("a Network whose interface no host can use says of each host why", || unusable(fleet));
    two_hosts(report, fleet, &lan, guest)?;
    report
        .case("ports of a public address lead to a guest of the LAN once its host is on the LAN too", || {
            balanced::ipv4(fleet, &lan)
        });
    report.case("ports of a public IPv6 address lead to a guest of the LAN in the same way", || {
        balanced::ipv6(fleet, &lan)
    });
    report.case(
        "a guest that asks by DHCP gets the address that berth allocated, and finds another guest by its name",
        || served(fleet, &lan),
    );
    report
        .case("a guest has an IPv6 address that it takes itself, unless a machine of the LAN has it", || {
            learned::learned(fleet, &lan)
        });
    report.case("what cannot be is refused at plan or named by a condition", || refusals(fleet, &project));
    report.case("an IPPool over the addresses of a Network names it, and gives out others only", || {
        pool_over_a_network(fleet)
    });
    report.case("destroy takes the guests away, and the host has its bridge as before", || {
        project.destroy()?;
        wait::until("the ports of berth to go", SOON, || {
            lan::unchanged(fleet.member("h2")?.namespace(), &settings, 0)
        })?;
        Lan::disconnect(fleet.member("h2")?.namespace(), &[BRIDGE, lan::CARD])
    });
    Ok(())
}

fn project(fleet: &Fleet, guest: &GuestImage, example: &str, more: &Value) -> Result<Project> {
    let project = fleet.project()?;
    project.copy_from(&workspace::root().join("examples/networks").join(example))?;
    let url = fleet.images().put("guest.qcow2", Content::File(guest.path.clone()));
    let mut variables = json!({
        "image_url": url, "image_sha256": guest.sha256, "disk_size": "64Mi", "memory": "256Mi", "user_data": USER_DATA,
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        variables[name] = value.clone();
    }
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.init()?;
    Ok(project)
}

fn mac(fleet: &Fleet, vm: &str) -> Result<String> {
    let object = fleet.kubectl().object("vm", vm)?;
    let mac = object["status"]["interfaces"][0]["macAddress"].as_str();
    Ok(mac.with_context(|| format!("{vm} has no interface"))?.to_owned())
}

/// Lets the guest send under an address that is not its own.
fn spoofs(lan: &Lan, guest: &str) -> Result<()> {
    let path = format!("/cgi-bin/spoof?as=203.0.113.60&to={}", lan::GATEWAY);
    let text = http::get(lan.namespace(), guest, &path, SOON)?;
    ensure!(field(&text, "ping")? == "no", "{text}");
    Ok(())
}

/// Adds an interface whose address another machine of the LAN has, and takes it away from that machine.
fn conflicts(fleet: &Fleet, lan: &Lan) -> Result<()> {
    let kubectl = fleet.kubectl();
    let address = format!("{NEXT}/24");
    lan.other().ip(&["addr", "add", &address, "dev", lan::CARD])?;
    let interfaces = |list: Value| {
        let patch = json!({"spec": {"networkInterfaces": list}});
        kubectl.ok(&["patch", "vm/external", "--type=merge", "-p", &patch.to_string()])
    };
    let before = kubectl.object("vm", "external")?["spec"]["networkInterfaces"].clone();
    let mut more = before.clone();
    let list = more.as_array_mut().context("it has an interface")?;
    list.push(json!({"name": "second", "network": "lan", "address": NEXT}));
    interfaces(more)?;
    kubectl.condition("vm/external", "Ready=False", Some("AddressConflict"), SOON)?;
    lan.other().ip(&["addr", "del", &address, "dev", lan::CARD])?;
    kubectl.condition("vm/external", "Ready=True", None, ANSWER)?;
    interfaces(before)?;
    wait::until("the interface to go", SOON, || {
        let found = kubectl.object("vm", "external")?["status"]["interfaces"].as_array().map(Vec::len);
        ensure!(found == Some(1), "it has {found:?}");
        Ok(())
    })
}

fn filters(fleet: &Fleet, lan: &Lan, settings: &str, (vm, address): (&str, &str)) -> Result<()> {
    let kubectl = fleet.kubectl();
    let group = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "SecurityGroup", "metadata": {"name": "closed"},
        "spec": {"ingress": [{"name": "other", "protocol": "tcp", "ports": ["80"], "cidrs": [format!("{}/32", lan::OTHER)]}]},
    });
    kubectl.apply(&group.to_string())?;
    let set = |groups: Value| {
        let patch =
            json!([{"op": "add", "path": "/spec/networkInterfaces/0/securityGroups", "value": groups}]);
        kubectl.ok(&["patch", &format!("vm/{vm}"), "--type=json", "-p", &patch.to_string()])
    };
    set(json!(["closed"]))?;
    wait::until("the guest to be closed to the gateway", SOON, || {
        ensure!(http::get(lan.namespace(), address, "/", NO_ANSWER).is_err(), "it answers");
        Ok(())
    })?;
    let text = http::get(lan.other(), address, "/", SOON)?;
    ensure!(field(&text, "hostname")? == vm, "what a rule allows passes: {text}");
    lan::unchanged(fleet.member("h2")?.namespace(), settings, 2)?;
    set(json!([]))?;
    http::get_within(lan.namespace(), address, "/", SOON)?;
    kubectl.delete("securitygroup/closed")
}

/// Starts a guest that nothing configures on the network whose addresses its host gives out by DHCP too.
fn served(fleet: &Fleet, lan: &Lan) -> Result<()> {
    let kubectl = fleet.kubectl();
    let vm = manifests::vm("served", "small", "served");
    let interface = json!([{"name": "nic0", "network": "lan", "address": SERVED}]);
    kubectl.apply(&manifests::all(&[
        manifests::disk("served", "debian", "64Mi"),
        manifests::with(vm, "networkInterfaces", interface),
    ]))?;
    let text = http::get_within(lan.namespace(), SERVED, "/", ANSWER)?;
    ensure!(field(&text, "hostname")? == "served", "{text}");
    let text = http::get(lan.namespace(), SERVED, "/cgi-bin/network", SOON)?;
    ensure!(
        field(&text, "address")? == format!("{SERVED}/24") && field(&text, "gateway")? == lan::GATEWAY,
        "{text}"
    );
    ensure!(lan.lease(&mac(fleet, "served")?).is_err(), "the LAN's DHCP server has answered it");
    let path = "/cgi-bin/resolve?name=fixed.default.vms.example.org";
    let text = http::get(lan.namespace(), SERVED, path, SOON)?;
    ensure!(field(&text, "address")? == FIXED, "its host has answered for a name: {text}");
    kubectl.delete("vm/served")?;
    kubectl.delete("disk/served")
}

/// Runs nftables in the network of a machine.
fn nft(machine: &Namespace, arguments: &[&str]) -> Result<String> {
    let output = machine.command("nft").args(arguments).output().context("running nft")?;
    ensure!(output.status.success(), "nft {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Counts the packets of a class that the gateway receives from the guest, before its interface has the class and after.
fn marks(fleet: &Fleet, lan: &Lan) -> Result<()> {
    let gateway = lan.namespace();
    nft(gateway, &["add table ip seen"])?;
    nft(gateway, &["add chain ip seen input { type filter hook input priority 0; }"])?;
    nft(gateway, &[&format!("add rule ip seen input ip saddr {FIXED} ip dscp af21 counter")])?;
    let unmarked = || Ok::<_, anyhow::Error>(nft(gateway, &["list table ip seen"])?.contains("packets 0 "));
    http::get(gateway, FIXED, "/", SOON)?;
    ensure!(unmarked()?, "the guest itself sets no class");
    let change = |operation: &str| {
        let patch = json!([{"op": operation, "path": "/spec/networkInterfaces/0/dscp", "value": "AF21"}]);
        fleet.kubectl().ok(&["patch", "vm/fixed", "--type=json", "-p", &patch.to_string()])
    };
    change("add")?;
    wait::until("packets with the class", SOON, || {
        http::get(gateway, FIXED, "/", SOON)?;
        ensure!(!unmarked()?, "none has arrived");
        Ok(())
    })?;
    change("remove")?;
    nft(gateway, &["delete table ip seen"]).map(drop)
}

/// Declares VMs on interfaces that neither host has, or can use.
fn unusable(fleet: &Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    let vlans = ["h1", "h2"]
        .iter()
        .all(|host| kubectl.object("host", host).is_ok_and(|object| object["status"]["vlans"] == true));
    let cases = [
        ("missing", json!({"interface": "eth9"}), "h1 has no interface eth9"),
        ("used", json!({"interface": segment::CARD}), "h1 uses interface uplink itself: it has address"),
        (
            "tagged",
            json!({"interface": if vlans { "eth9" } else { segment::CARD }, "vlan": 120}),
            if vlans { "VLAN 120 of interface eth9" } else { "modprobe 8021q" },
        ),
    ];
    for (name, bridge, words) in cases {
        let network = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": {"name": name, "namespace": "berth-shared"},
            "spec": {"type": "Bridge", "bridge": bridge, "ipv4": {"allocation": "External"}},
        });
        let vm = manifests::with(
            manifests::vm(name, "small", name),
            "networkInterfaces",
            json!([{"name": "nic0", "network": name}]),
        );
        kubectl.apply(&manifests::all(&[network, manifests::disk(name, "debian", "64Mi"), vm]))?;
        let vm =
            kubectl.condition(&format!("vm/{name}"), "Scheduled=False", Some("NoHostWithBridge"), SOON)?;
        let text = condition_of(&vm, "Scheduled").and_then(|c| c["message"].as_str()).unwrap_or_default();
        contains_all(text, &[words])?;
        [format!("vm/{name}"), format!("disk/{name}")]
            .iter()
            .try_for_each(|object| kubectl.delete(object))?;
        kubectl.ok(&["delete", "network", name, "--namespace=berth-shared"])?;
    }
    Ok(())
}

/// Connects the other host too, by an interface, and lets a guest there reach one on the first host.
fn two_hosts(report: &mut Report, fleet: &Fleet, lan: &Lan, guest: &GuestImage) -> Result<()> {
    let host = fleet.member("h1")?.namespace();
    let before = host.ip(&["-o", "link", "show", "dev", lan::CARD])?;
    let project =
        report.step("examples/networks/vlan is applied, with an interface without a VLAN", || {
            let more = json!({"interface": lan::CARD, "vlan": null, "trunk_vlans": [10, "100-199"]});
            let project = project(fleet, guest, "vlan", &more)?;
            project.apply()?;
            Ok(project)
        })?;
    report.case(
        "the VM is on the host whose interface berth can use, and its guest answers on the LAN",
        || {
            project.plan_is_empty()?;
            ensure!(fleet.host_of("tagged")? == "h1");
            ensure!(project.output("address")? == OVER_INTERFACE);
            let text = http::get_within(lan.namespace(), OVER_INTERFACE, "/", ANSWER)?;
            ensure!(field(&text, "hostname")? == "tagged", "{text}");
            let rules = nft(host, &["list", "table", "bridge", "berth"])?;
            contains_all(&rules, &["vlan id { 10, 100-199 }"])
        },
    );
    report.case("VMs of two hosts reach each other over the LAN, without a tunnel", || {
        let path = format!("/cgi-bin/reach?to={OVER_INTERFACE}");
        let text = http::get(lan.namespace(), FIXED, &path, SOON)?;
        ensure!(field(&text, "ping")? == "yes" && field(&text, "hostname")? == "tagged", "{text}");
        for member in fleet.members() {
            let links = member.namespace().ip(&["-o", "link"])?;
            ensure!(!links.contains("btx-"), "{links}");
        }
        Ok(())
    });
    report
        .case("ports of a public address lead to it from an address that its host has for that only", || {
            balanced::over_interface(fleet)
        });
    report.case("with the VM the bridge goes, and the interface is down as it was found", || {
        project.destroy()?;
        wait::until("the interface to be as before", SOON, || {
            let now = host.ip(&["-o", "link", "show", "dev", lan::CARD])?;
            ensure!(now == before, "before: {before}\nnow: {now}");
            let links = host.ip(&["-o", "link"])?;
            ensure!(!links.contains("btb-") && !links.contains("btu-"), "{links}");
            Ok(())
        })?;
        Lan::disconnect(host, &[lan::CARD])
    });
    Ok(())
}

fn refusals(fleet: &Fleet, project: &Project) -> Result<()> {
    project.edit("main.tf", "203.0.113.50-203.0.113.59", "203.0.113.50-203.0.114.59")?;
    contains_all(&project.plan_refused()?, &["ipv4.range", "not within cidr"])?;
    project.edit("main.tf", "203.0.113.50-203.0.114.59", "203.0.113.50-203.0.113.59")?;
    project.edit("variables.tf", "\"vmbr0\"", "\"vmbr9\"")?;
    contains_all(&project.plan_refused()?, &["The network is in use"])?;
    project.edit("variables.tf", "\"vmbr9\"", "\"vmbr0\"")?;
    project.plan_is_empty()?;
    let tenants = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": {"name": "lan", "namespace": "default"},
        "spec": {"type": "Bridge", "bridge": {"name": BRIDGE}, "ipv4": {"allocation": "External"}},
    });
    contains_all(&fleet.kubectl().apply_refused(&tenants.to_string())?, &["berth-shared"])?;
    let patch = json!([{"op": "add", "path": "/spec/networkInterfaces/0/securityGroups", "value": ["none"]}]);
    let kubectl = fleet.kubectl();
    kubectl.ok(&["patch", "vm/external", "--type=json", "-p", &patch.to_string()])?;
    kubectl.condition("vm/external", "SecurityGroupsSynced=False", Some("WaitingForSecurityGroup"), SOON)?;
    let unchecked = json!({"spec": {"ipv4": {"sourceCheck": "None"}}}).to_string();
    kubectl.ok(&["patch", "network/office", "--namespace=berth-shared", "--type=merge", "-p", &unchecked])?;
    let vm = kubectl.condition("vm/external", "SecurityGroupsSynced=False", Some("NotSupported"), SOON)?;
    let text = condition_of(&vm, "SecurityGroupsSynced").and_then(|c| c["message"].as_str());
    contains_all(text.unwrap_or_default(), &["nic0", "External"])
}

fn pool_over_a_network(fleet: &Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    kubectl.apply(&manifests::pool("over", "203.0.113.52/30").to_string())?;
    let pool = kubectl.condition("ippool/over", "Ready=False", Some("InvalidSpec"), SOON)?;
    let text = condition_of(&pool, "Ready").and_then(|c| c["message"].as_str());
    contains_all(text.unwrap_or_default(), &["203.0.113.50-203.0.113.59 of Network berth-shared/"])?;
    kubectl.apply(&manifests::public_ip("over", "over").to_string())?;
    kubectl.condition("publicip/over", "Ready=False", Some("WaitingForPool"), SOON)?;
    kubectl.apply(&manifests::pool("over", "203.0.113.200/30").to_string())?;
    kubectl.condition("ippool/over", "Ready=True", None, SOON)?;
    let ip = kubectl.condition("publicip/over", "Ready=True", None, SOON)?;
    ensure!(ip["status"]["address"] == "203.0.113.201", "{ip:#}");
    kubectl.ok(&["delete", "publicip/over", "ippool/over"]).map(drop)
}
