//! Ports of a PublicIP that lead to VMs on two hosts: what the controllers decide, what the host that has the address does, and what
//! admission refuses. Complete agents on hosts in memory, on the embedded control plane, in one runtime with paused time.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use berth_api::{Network, PublicIP, PublicIPStatus, VM, condition};
use berth_host::Balanced;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::image;

mod bridges;
#[path = "shared/site.rs"]
mod site;
use site::Site;

const LIMIT: Duration = Duration::from_secs(300);

impl Site {
    async fn new() -> Self {
        let site = Self::start().await;
        site.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        site.apply("Image", "debian", image::spec()).await;
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool", "metadata": {"name": "balanced"},
            "spec": {"cidrs": ["198.18.200.0/24"]}});
        let pools: Api<berth_api::IPPool> = Api::all(site.client.clone());
        pools.patch("balanced", &PatchParams::apply("user"), &Patch::Apply(&pool)).await.expect("a pool");
        site
    }

    fn join(&mut self, name: &'static str, address: &str) {
        self.start_host(name, address, 1500);
    }

    async fn try_apply(&self, kind: &str, name: &str, spec: Value) -> Result<(), String> {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("berth.dev", "v1alpha1", kind));
        let api: Api<DynamicObject> = Api::default_namespaced_with(self.client.clone(), &resource);
        let applied = api.patch(name, &PatchParams::apply("user").force(), &Patch::Apply(&object)).await;
        applied.map(drop).map_err(|error| error.to_string())
    }

    async fn apply(&self, kind: &str, name: &str, spec: Value) {
        self.try_apply(kind, name, spec).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    async fn vm(&self, name: &str, host: &str, more: Value) {
        self.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
        let mut interface = json!({"name": "nic0"});
        for (key, value) in more.as_object().into_iter().flatten() {
            interface[key] = value.clone();
        }
        let spec = json!({"class": "small", "placement": {"host": host}, "disks": [{"name": name, "boot": true}],
            "networkInterfaces": [interface]});
        self.apply("VM", name, spec).await;
    }

    async fn balancer(&self, ports: Value) {
        self.apply("PublicIP", "web", json!({"pool": "balanced", "ports": ports})).await;
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < LIMIT, "never: {what}: {:#?}", self.status().await);
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn status(&self) -> PublicIPStatus {
        let ips: Api<PublicIP> = Api::default_namespaced(self.client.clone());
        ips.get_opt("web").await.expect("it answers").and_then(|ip| ip.status).unwrap_or_default()
    }

    /// Waits until the first port has so many available targets.
    async fn available(&self, count: i64) -> PublicIPStatus {
        self.until(&format!("{count} targets"), async || {
            self.status().await.ports.first().is_some_and(|port| port.available == count)
        })
        .await;
        self.status().await
    }

    fn balanced(&self, host: &str) -> Vec<Balanced> {
        self.hosts[host].firewall_now().balanced
    }

    /// Waits until a host sends new connections of the first port to so many guests.
    async fn sends_to(&self, host: &str, count: usize) {
        self.until(&format!("{host} sends to {count}"), async || {
            self.balanced(host).first().is_some_and(|address| address.ports[0].targets.len() == count)
        })
        .await;
    }
}

fn port(targets: &[&str]) -> Value {
    json!({"name": "http", "port": 80, "targetPort": 8080, "targets": targets})
}

#[tokio::test(start_paused = true)]
async fn one_host_has_the_address_and_forwards_to_the_targets_on_the_others() {
    let mut site = Site::new().await;
    site.join("h1", "192.0.2.1");
    site.join("h2", "192.0.2.2");
    site.balancer(json!([port(&["web-1", "web-2"])])).await;
    let waits = site.available(0).await;
    let missing = condition::find(&waits.conditions, "TargetsAvailable").expect("it has ports");
    assert_eq!((missing.status.as_str(), missing.reason.as_str()), ("False", "NoAvailableTarget"));
    assert!(missing.message.contains("0 of 2 targets: VM web-1 does not exist; VM web-2"), "{missing:?}");
    let ready = condition::find(&waits.conditions, "Ready").expect("always");
    assert_eq!(ready.status, "True", "an apply does not wait for targets");

    site.vm("web-1", "h1", json!({})).await;
    site.available(1).await;
    site.sends_to("h1", 1).await;
    site.vm("web-2", "h2", json!({})).await;
    let both = site.available(2).await;
    assert_eq!(both.binding.as_ref().map(|b| b.host.as_str()), Some("h1"), "where the first target ran");
    site.sends_to("h1", 2).await;
    assert!(site.balanced("h2").is_empty(), "one host has the address");
    // The way to the other host.
    let [forwarding] = &both.forwarding_addresses[..] else { panic!("{both:?}") };
    let source: IpAddr = forwarding.address.parse().expect("an address");
    let network = site.hosts["h1"].networks_now().remove(0);
    let relay = network.relay.expect("a target is on another host");
    assert_eq!((relay.addresses, relay.targets.len()), (vec![source], 1));
    assert!(
        !network.leases.iter().any(|lease| lease.address.map(IpAddr::from) == Some(source)),
        "no guest has it"
    );
    assert!(site.hosts["h2"].networks_now()[0].relay.is_none());

    // Isolated, the hosts keep the VMs apart, and let what the other one forwards pass.
    let (namespace, name) = forwarding.network.split_once('/').expect("namespace/name");
    let networks: Api<Network> = Api::namespaced(site.client.clone(), namespace);
    let isolate = async |isolated: bool| {
        let patch = Patch::Merge(json!({"spec": {"isolated": isolated}}));
        networks.patch(name, &PatchParams::default(), &patch).await.expect("accepted");
    };
    isolate(true).await;
    site.until("both hosts isolate their VMs", async || {
        ["h1", "h2"].iter().all(|host| {
            let isolated = site.hosts[*host].firewall_now().isolated;
            isolated.iter().any(|network| network.taps.len() == 1 && network.relays == [source])
        })
    })
    .await;
    isolate(false).await;
    site.until("no host isolates them", async || {
        let status = networks.get(name).await.expect("it answers").status.unwrap_or_default();
        let is_open = |host: &&str| site.hosts[*host].firewall_now().isolated.is_empty();
        status.relay_addresses.is_empty() && ["h1", "h2"].iter().all(is_open)
    })
    .await;

    // The VM on the holder goes: the address stays there, and its Network too.
    let vms: Api<VM> = Api::default_namespaced(site.client.clone());
    vms.delete("web-1", &DeleteParams::default()).await.expect("deleted");
    let one = site.available(1).await;
    assert_eq!(one.binding.as_ref().map(|b| b.host.as_str()), Some("h1"));
    site.sends_to("h1", 1).await;
    site.until("web-1 is gone", async || vms.get_opt("web-1").await.expect("it answers").is_none()).await;
    site.until("the Network leads to both", async || {
        let network = networks.get(name).await.expect("it answers");
        network.status.is_some_and(|s| s.hosts.len() == 2)
    })
    .await;
    site.sends_to("h1", 1).await;
    assert!(site.hosts["h1"].networks_now()[0].relay.is_some(), "without a guest of its own");

    // Without the PublicIP nothing of it is left.
    let ips: Api<PublicIP> = Api::default_namespaced(site.client.clone());
    ips.delete("web", &DeleteParams::default()).await.expect("deleted");
    site.until("the host lets go of it", async || {
        site.balanced("h1").is_empty() && site.hosts["h1"].networks_now().is_empty()
    })
    .await;
    site.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_target_gets_connections_once_its_health_check_succeeds() {
    let mut site = Site::new().await;
    site.join("h1", "192.0.2.1");
    site.vm("web-1", "h1", json!({})).await;
    // A fake guest has the ports of this machine.
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let number = listener.local_addr().expect("an address").port();
    drop(listener);
    let checked = json!({"name": "http", "port": 80, "targetPort": number, "targets": ["web-1"],
        "healthCheck": {"interval": "1s", "unhealthyThreshold": 1}});
    site.balancer(json!([checked])).await;
    site.until("the failure is reported", async || {
        site.status().await.ports.first().is_some_and(|port| port.message.contains("fails its health check"))
    })
    .await;
    let status = site.status().await;
    let found = condition::find(&status.conditions, "TargetsAvailable").expect("it has ports");
    assert!(found.message.contains(&format!("no connection to port {number}")), "{found:?}");
    site.sends_to("h1", 0).await;

    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, number)).expect("the same port");
    let served = tokio::net::TcpListener::from_std({
        listener.set_nonblocking(true).expect("it is a socket");
        listener
    });
    let served = served.expect("in the runtime");
    site.available(1).await;
    site.sends_to("h1", 1).await;
    drop(served);
    site.available(0).await;
    site.sends_to("h1", 0).await;
    site.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn an_address_with_ports_is_not_the_whole_address_of_a_vm() {
    let mut site = Site::new().await;
    site.join("h1", "192.0.2.1");
    site.apply("PublicIP", "whole", json!({"pool": "balanced"})).await;
    site.vm("web-1", "h1", json!({"publicIP": "whole"})).await;
    let ips: Api<PublicIP> = Api::default_namespaced(site.client.clone());
    site.until("the VM uses it", async || {
        let ip = ips.get("whole").await.expect("it answers");
        ip.status.is_some_and(|s| !s.used_by.is_empty())
    })
    .await;
    let refused =
        site.try_apply("PublicIP", "whole", json!({"pool": "balanced", "ports": [port(&["web-1"])]})).await;
    assert!(refused.expect_err("it is in use").contains("the whole address leads to a VM"));

    site.balancer(json!([port(&["web-1"])])).await;
    site.vm("web-2", "h1", json!({"publicIP": "web"})).await;
    let vms: Api<VM> = Api::default_namespaced(site.client.clone());
    site.until("the VM is refused", async || {
        let vm = vms.get("web-2").await.expect("it answers");
        let conditions = vm.status.map(|s| s.conditions).unwrap_or_default();
        condition::find(&conditions, "Stalled").is_some_and(|c| c.message.contains("PublicIP web has ports"))
    })
    .await;
    site.until("the PublicIP names the VM", async || {
        let status = site.status().await;
        condition::find(&status.conditions, "Stalled").is_some_and(|c| c.message.contains("VM web-2"))
    })
    .await;
    site.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn an_ipv6_address_has_no_ports_and_leads_as_a_whole_to_the_ipv6_address_of_a_vm() {
    let mut site = Site::new().await;
    site.join("h1", "192.0.2.1");
    site.hosts["h1"].change_facts(|facts| facts.ipv6_addresses = vec!["2001:db8:7::1".parse().expect("one")]);
    let pools: Api<berth_api::IPPool> = Api::all(site.client.clone());
    let pool = async |cidrs: Value| {
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool", "metadata": {"name": "six"},
            "spec": {"cidrs": cidrs}});
        pools.patch("six", &PatchParams::apply("user"), &Patch::Apply(&pool)).await.map(drop)
    };
    for wrong in [
        json!(["2001:db8:7::/63"]),
        json!(["2001:db8:7::1/64"]),
        json!(["2001:db8:7::/64", "192.0.2.0/28"]),
        json!(["2001:db8:7::1-2001:db8:7:1::1"]),
        json!(["192.0.2.1-192.0.2.x"]),
        json!(["192.0.2.1-2001:db8:7::1"]),
        json!(["fe80::/64"]),
        json!(["ff02::5-ff02::9"]),
        json!(["::/64"]),
    ] {
        pool(wrong.clone()).await.expect_err(&wrong.to_string());
    }
    pool(json!(["2001:db8:7::/64"])).await.expect("a pool");
    site.until("the address of the host is known", async || {
        let status = pools.get("six").await.expect("it answers").status.unwrap_or_default();
        condition::find(&status.conditions, "HostAddresses").is_some()
    })
    .await;
    let dual = json!({"cidr": "10.9.6.0/24", "ipv6CIDR": "fd00:60::/64", "ipv6Egress": "Masquerade"});
    site.apply("Network", "dual", dual).await;
    site.apply("PublicIP", "six", json!({"pool": "six"})).await;
    site.vm("web-1", "h1", json!({"network": "dual", "publicIPv6": "six"})).await;
    let vms: Api<VM> = Api::default_namespaced(site.client.clone());
    site.until("the address leads to the VM", async || {
        let status = vms.get("web-1").await.expect("it answers").status.unwrap_or_default();
        status.public_ipv6_address.as_deref() == Some("2001:db8:7::2") && status.public_address.is_none()
    })
    .await;
    let forwards = site.hosts["h1"].firewall_now().forwards;
    let to: Vec<String> = forwards.iter().map(|f| format!("{} {}", f.public, f.private)).collect();
    assert_eq!(to, ["2001:db8:7::2 fd00:60::2"]);

    for spec in [
        json!({"pool": "six", "ports": [port(&["web-1"])]}),
        json!({"pool": "six", "address": "2001:db8:7::2", "ports": [port(&["web-1"])]}),
    ] {
        site.try_apply("PublicIP", "six", spec).await.expect_err("as a whole it leads to a VM");
    }
    site.apply("PublicIP", "ports", json!({"pool": "six", "ports": [port(&["web-1"])]})).await;
    let ips: Api<PublicIP> = Api::default_namespaced(site.client.clone());
    site.until("a port of another address leads to the VM", async || {
        let status = ips.get("ports").await.expect("it answers").status.unwrap_or_default();
        let is_available = status.ports.first().is_some_and(|port| port.available == 1);
        is_available && status.address.as_deref() == Some("2001:db8:7::3")
    })
    .await;
    site.sends_to("h1", 1).await;
    let target = site.balanced("h1")[0].ports[0].targets[0].to_string();
    assert_eq!(target, "fd00:60::2");
    for (name, more, why) in [
        ("other-family", json!({"network": "dual", "publicIP": "spare"}), "name it in publicIPv6"),
        ("no-prefix", json!({"publicIPv6": "spare"}), "has no IPv6 prefix"),
    ] {
        site.apply("PublicIP", "spare", json!({"pool": "six"})).await;
        site.vm(name, "h1", more).await;
        site.until(why, async || {
            let status = vms.get(name).await.expect("it answers").status.unwrap_or_default();
            condition::find(&status.conditions, "Stalled").is_some_and(|c| c.message.contains(why))
        })
        .await;
    }
    site.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn the_ports_of_an_ipv6_address_lead_to_targets_on_two_hosts() {
    let mut site = Site::new().await;
    site.join("h1", "192.0.2.1");
    site.join("h2", "192.0.2.2");
    let pools: Api<berth_api::IPPool> = Api::all(site.client.clone());
    let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool", "metadata": {"name": "six"},
        "spec": {"cidrs": ["2001:db8:7::/64"]}});
    pools.patch("six", &PatchParams::apply("user"), &Patch::Apply(&pool)).await.expect("a pool");
    let dual = json!({"cidr": "10.9.6.0/24", "ipv6CIDR": "fd00:60::/64", "ipv6Egress": "Masquerade"});
    site.apply("Network", "dual", dual).await;
    site.apply("PublicIP", "web", json!({"pool": "six", "ports": [port(&["web-1", "web-2"])]})).await;
    site.vm("web-1", "h1", json!({"network": "dual"})).await;
    site.available(1).await;
    site.vm("web-2", "h2", json!({"network": "dual"})).await;
    let both = site.available(2).await;
    let [forwarding] = &both.forwarding_addresses[..] else { panic!("{both:?}") };
    assert_eq!(forwarding.network, "default/dual");
    let source: IpAddr = forwarding.address.parse().expect("an address");
    assert!(source.is_ipv6(), "{source}");
    site.sends_to("h1", 2).await;
    assert_eq!(site.balanced("h1")[0].sources.len(), 1);
    let networks = site.hosts["h1"].networks_now();
    let relay = networks.iter().find_map(|network| network.relay.clone()).expect("a target is elsewhere");
    let targets: Vec<String> = relay.targets.iter().map(ToString::to_string).collect();
    assert_eq!((relay.addresses, targets), (vec![source], vec!["fd00:60::3".to_owned()]));
    site.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_public_prefix_is_routed_to_its_vm_and_has_no_address_of_another() {
    let mut site = Site::new().await;
    site.join("h1", "192.0.2.1");
    let pools: Api<berth_api::IPPool> = Api::all(site.client.clone());
    for (name, mode, cidr) in
        [("routed6", "local", "2001:db8:0:8::/64"), ("segment6", "l2", "2001:db8:0:9::/64")]
    {
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool", "metadata": {"name": name},
            "spec": {"mode": mode, "cidrs": [cidr]}});
        pools.patch(name, &PatchParams::apply("user"), &Patch::Apply(&pool)).await.expect("a pool");
    }
    for wrong in [
        json!({"pool": "routed6", "prefixLength": 63}),
        json!({"pool": "routed6", "prefixLength": 128}),
        json!({"pool": "routed6", "prefixLength": 80, "address": "192.0.2.9"}),
        json!({"pool": "routed6", "prefixLength": 80, "ports": [port(&["web-1"])]}),
    ] {
        site.try_apply("PublicIP", "wrong", wrong.clone()).await.expect_err(&wrong.to_string());
    }
    let dual = json!({"cidr": "10.9.6.0/24", "ipv6CIDR": "fd00:60::/64", "ipv6Egress": "Routed"});
    site.apply("Network", "dual", dual).await;
    site.apply("PublicIP", "prefix", json!({"pool": "routed6", "prefixLength": 80})).await;
    site.vm("web-1", "h1", json!({"network": "dual", "publicIPv6": "prefix"})).await;
    let vms: Api<VM> = Api::default_namespaced(site.client.clone());
    site.until("the prefix is routed to the VM", async || {
        let status = vms.get("web-1").await.expect("it answers").status.unwrap_or_default();
        let prefix = status.interfaces.first().and_then(|interface| interface.public_ipv6_prefix.clone());
        prefix.as_deref() == Some("2001:db8:0:8::/80") && status.public_ipv6_address.is_none()
    })
    .await;
    let firewall = site.hosts["h1"].firewall_now();
    let to: Vec<String> = firewall.prefixes.iter().map(|p| format!("{} {}", p.prefix, p.via)).collect();
    assert_eq!(to, ["2001:db8:0:8::/80 fd00:60::2"]);
    assert!(firewall.forwards.is_empty(), "its first address is not translated");
    site.until("its guest may send from it", async || {
        let firewall = site.hosts["h1"].firewall_now();
        let ranges: Vec<String> =
            firewall.exceptions.iter().flat_map(|one| &one.ranges).map(ToString::to_string).collect();
        ranges == ["2001:db8:0:8::/80"]
    })
    .await;
    let networks = site.hosts["h1"].networks_now();
    assert_eq!(networks.iter().map(|network| network.prefixes.len()).sum::<usize>(), 1, "its route");

    for changed in [json!({"pool": "routed6", "prefixLength": 96}), json!({"pool": "routed6"})] {
        let refused = site.try_apply("PublicIP", "prefix", changed).await;
        assert!(refused.expect_err("it stays").contains("prefixLength cannot change"));
    }
    let ips: Api<PublicIP> = Api::default_namespaced(site.client.clone());
    site.apply("PublicIP", "single", json!({"pool": "routed6"})).await;
    site.until("a single address is not of the prefix", async || {
        let status = ips.get("single").await.expect("it answers").status.unwrap_or_default();
        status.address.as_deref() == Some("2001:db8:0:8:1::") && status.prefix.is_none()
    })
    .await;
    site.apply("PublicIP", "announced", json!({"pool": "segment6", "prefixLength": 80})).await;
    site.until("a pool that is announced has none", async || {
        let status = ips.get("announced").await.expect("it answers").status.unwrap_or_default();
        condition::find(&status.conditions, "Stalled").is_some_and(|c| c.message.contains("has the mode l2"))
    })
    .await;
    site.stop.cancel();
}

/// An entry without a declared port.
fn open(name: &str) -> Value {
    json!({"name": name, "targetPort": 22, "targets": ["web-1"]})
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_given_out_stays_and_its_vm_reports_it() {
    let mut site = Site::new().await;
    site.join("h1", "192.0.2.1");
    let ports = async || -> Vec<(String, Option<i64>)> {
        let mut ports: Vec<_> =
            site.status().await.ports.into_iter().map(|port| (port.name, port.port)).collect();
        ports.sort();
        ports
    };
    let given = |ports: &[(&str, i64)]| -> Vec<(String, Option<i64>)> {
        ports.iter().map(|(name, port)| ((*name).to_owned(), Some(*port))).collect()
    };
    site.balancer(json!([open("ssh")])).await;
    site.until("a port", async || ports().await == given(&[("ssh", 30_000)])).await;
    site.vm("web-1", "h1", json!({})).await;
    site.sends_to("h1", 1).await;
    let balanced = site.balanced("h1");
    assert_eq!((balanced[0].ports[0].port, balanced[0].ports[0].target_port), (30_000, 22));
    let vms: Api<VM> = Api::default_namespaced(site.client.clone());
    let reported = async || -> Vec<(String, i64, i64)> {
        let status = vms.get("web-1").await.expect("it answers").status.unwrap_or_default();
        status.public_ports.into_iter().map(|p| (p.name, p.port, p.target_port)).collect()
    };
    site.until("the VM reports it", async || reported().await == [("web/ssh".to_owned(), 30_000, 22)]).await;

    site.balancer(json!([open("new"), open("ssh")])).await;
    let both = given(&[("new", 30_001), ("ssh", 30_000)]);
    site.until("another port for the new entry", async || ports().await == both).await;
    let declared = json!({"name": "web", "port": 30_001, "targets": ["web-1"]});
    let spec = json!({"pool": "balanced", "ports": [open("new"), open("ssh"), declared]});
    let refused = site.try_apply("PublicIP", "web", spec).await.expect_err("it is given out");
    assert!(refused.contains("has been given out"), "{refused}");

    let spec = json!({"pool": "balanced", "portRange": "30000-30001", "ports": [open("new"), open("ssh"), open("third")]});
    site.apply("PublicIP", "web", spec).await;
    site.until("the range is exhausted", async || {
        let conditions = site.status().await.conditions;
        condition::find(&conditions, "Ready")
            .is_some_and(|c| c.reason == "NoFreePort" && c.message.contains("third"))
    })
    .await;
    assert_eq!(ports().await, [both, vec![("third".to_owned(), None)]].concat());

    site.balancer(json!([open("new")])).await;
    site.until("its port goes from the VM", async || {
        reported().await == [("web/new".to_owned(), 30_001, 22)]
    })
    .await;
    site.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn admission_refuses_what_ports_cannot_be() {
    let site = Site::new().await;
    let with = |key: &str, value: Value| {
        let mut port = port(&["a"]);
        port[key] = value;
        json!([port])
    };
    let other = |name: &str, number: i64, protocol: &str| json!({"name": name, "port": number, "protocol": protocol, "targets": ["a"]});
    let many: Vec<Value> = (1..34).map(|n| other(&format!("p{n}"), n, "tcp")).collect();
    let targets: Vec<String> = (0..33).map(|n| format!("vm-{n}")).collect();
    let bad = [
        (
            json!([other("a", 80, "tcp"), other("b", 80, "tcp")]),
            "each port and protocol can be declared once",
        ),
        (with("port", json!(0)), "spec.ports[0].port"),
        (with("targetPort", json!(65_536)), "spec.ports[0].targetPort"),
        (with("protocol", json!("sctp")), "protocol"),
        (with("targets", json!([])), "spec.ports[0].targets"),
        (with("targets", json!(targets)), "spec.ports[0].targets"),
        (with("targets", json!(["a", "b", "a"])), "a target can be named once"),
        (json!(many), "spec.ports"),
        (json!([{"name": "ssh", "targets": ["a"]}]), "an entry without port needs a targetPort"),
        (with("healthCheck", json!({"interval": "0s"})), "interval"),
        (with("healthCheck", json!({"timeout": "61s"})), "timeout"),
        (with("healthCheck", json!({"path": "healthz"})), "path"),
        (with("healthCheck", json!({"type": "tcp", "path": "/"})), "path is for the type http"),
        (
            json!([{"name": "u", "port": 53, "protocol": "udp", "targets": ["a"], "healthCheck": {}}]),
            "needs a port",
        ),
    ];
    for (ports, words) in bad {
        let refused = site.try_apply("PublicIP", "web", json!({"pool": "balanced", "ports": ports})).await;
        let refused = refused.expect_err(words);
        assert!(refused.contains(words), "{words}: {refused}");
    }
    for range in ["30000", "0-10", "10-9", "1-65536", "a-b", "1-2-3"] {
        let spec = json!({"pool": "balanced", "portRange": range});
        let refused = site.try_apply("PublicIP", "web", spec).await.expect_err(range);
        assert!(refused.contains("portRange"), "{range}: {refused}");
    }
    let good = json!([other("a", 80, "tcp"), other("b", 80, "udp"), other("c", 65_535, "tcp")]);
    site.balancer(good).await;
    site.stop.cancel();
}
