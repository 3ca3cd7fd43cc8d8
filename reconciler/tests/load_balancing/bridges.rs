//! Targets on bridged networks, by a bridge of the hosts or an interface of theirs.

use std::net::IpAddr;

use berth_api::{Network, PublicIP, condition};
use berth_host::{HostBridge, HostInterface, HostRange, Relay, relay_link};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use super::{port, site::Site};

#[tokio::test(start_paused = true)]
async fn a_target_on_a_bridge_is_reached_by_the_network_of_the_bridge_if_the_host_is_on_it() {
    let mut site = Site::new().await;
    site.join("h1", "198.51.100.1");
    let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
    site.hosts["h1"].change_bridges(&[bridge]);
    let lan = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": {"name": "lan"},
        "spec": {"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24", "ipv4": {"range": "192.0.2.50-192.0.2.59"}}});
    let networks: Api<Network> = Api::namespaced(site.client.clone(), "berth-shared");
    networks.patch("lan", &PatchParams::apply("user"), &Patch::Apply(&lan)).await.expect("a network");
    site.balancer(json!([port(&["web-1"])])).await;
    site.vm("web-1", "h1", json!({"network": "lan"})).await;
    let why = async || {
        let status = site.status().await;
        let found = condition::find(&status.conditions, "TargetsAvailable");
        found.map(|found| found.message.clone()).unwrap_or_default()
    };
    site.until("the condition has the cause", async || why().await.contains("has no address")).await;
    assert!(why().await.contains("192.0.2.0/24 host h1"), "{}", why().await);
    site.hosts["h1"].change_facts(|facts| {
        let range = "192.0.2.0/24".parse().expect("a range");
        facts.ranges.push(HostRange { range, is_route: false });
    });
    let status = site.available(1).await;
    assert!(status.forwarding_addresses.is_empty(), "{status:?}");
    site.sends_to("h1", 1).await;
    let by_lan = ("vmbr0".to_owned(), IpAddr::from([192, 0, 2, 50]));
    assert_eq!(site.balanced("h1")[0].by_lan, [by_lan]);
    site.hosts["h1"].change_facts(|facts| facts.links.filters_ipv4 = true);
    site.until("the clients that do not reach it are named", async || why().await.contains("sysctl -w"))
        .await;
    assert_eq!(site.status().await.ports[0].available, 1);
    site.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn the_port_of_an_ipv6_address_leads_to_a_target_on_a_bridge_if_the_host_has_an_address_of_its_prefix()
{
    let mut site = Site::new().await;
    site.join("h1", "198.51.100.1");
    let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
    site.hosts["h1"].change_bridges(&[bridge]);
    let pools: Api<berth_api::IPPool> = Api::all(site.client.clone());
    let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool", "metadata": {"name": "six"},
        "spec": {"cidrs": ["2001:db8:9::/64"]}});
    pools.patch("six", &PatchParams::apply("user"), &Patch::Apply(&pool)).await.expect("a pool");
    let lan = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": {"name": "lan"},
        "spec": {"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "2001:db8:7::/64"}});
    let networks: Api<Network> = Api::namespaced(site.client.clone(), "berth-shared");
    networks.patch("lan", &PatchParams::apply("user"), &Patch::Apply(&lan)).await.expect("a network");
    site.apply("PublicIP", "web", json!({"pool": "six", "ports": [port(&["web-1"])]})).await;
    site.vm("web-1", "h1", json!({"network": "lan", "ipv6Address": "2001:db8:7::50"})).await;
    site.until("the condition has the cause", async || {
        let status = site.status().await;
        let found = condition::find(&status.conditions, "TargetsAvailable");
        found.is_some_and(|found| found.message.contains("in whose prefix 2001:db8:7::/64 host h1"))
    })
    .await;
    site.hosts["h1"].change_facts(|facts| {
        facts.ipv6_addresses.push("2001:db8:7::1".parse().expect("an address"));
    });
    let status = site.available(1).await;
    assert!(status.forwarding_addresses.is_empty(), "{status:?}");
    site.sends_to("h1", 1).await;
    let target: IpAddr = "2001:db8:7::50".parse().expect("an address");
    assert_eq!(site.balanced("h1")[0].by_lan, [("vmbr0".to_owned(), target)]);
    site.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_target_over_an_interface_is_reached_by_an_address_that_the_host_gets_for_that() {
    let mut site = Site::new().await;
    site.join("h1", "198.51.100.1");
    let eth1 =
        HostInterface { name: "eth1".into(), mtu: 1500, up: true, carrier: true, ..HostInterface::default() };
    site.hosts["h1"].change_interfaces(&[eth1]);
    let lan = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network", "metadata": {"name": "lan"},
        "spec": {"type": "Bridge", "bridge": {"interface": "eth1"}, "cidr": "192.0.2.0/24",
            "ipv4": {"range": "192.0.2.50-192.0.2.59"}}});
    let networks: Api<Network> = Api::namespaced(site.client.clone(), "berth-shared");
    networks.patch("lan", &PatchParams::apply("user"), &Patch::Apply(&lan)).await.expect("a network");
    site.balancer(json!([port(&["web-1"])])).await;
    site.vm("web-1", "h1", json!({"network": "lan"})).await;
    let status = site.available(1).await;
    let given: Vec<&str> = status.forwarding_addresses.iter().map(|of| of.address.as_str()).collect();
    assert_eq!(given, ["192.0.2.59"], "the highest of the range");
    site.sends_to("h1", 1).await;
    let address = |last: u8| IpAddr::from([192, 0, 2, last]);
    let expected = Relay { addresses: vec![address(59)], targets: vec![address(50)] };
    let relay = || site.hosts["h1"].bridged_networks().first().and_then(|part| part.relay.clone());
    site.until("the host has the address", async || relay().as_ref() == Some(&expected)).await;
    let link = relay_link(&site.hosts["h1"].bridged_networks()[0].bridge);
    assert_eq!(site.balanced("h1")[0].by_lan, [(link, address(50))]);
    let ips: Api<PublicIP> = Api::default_namespaced(site.client.clone());
    ips.delete("web", &DeleteParams::default()).await.expect("deleted");
    site.until("the host has no address there", async || relay().is_none()).await;
    site.stop.cancel();
}
