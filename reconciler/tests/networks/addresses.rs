//! Addresses on a network: what DHCP gives out, IPv6 prefixes, ranges of the hosts, MAC addresses.

use std::{collections::BTreeSet, time::Duration};

use berth_api::{Network, VM, condition};
use berth_host::HostRange;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Site, in_simulated_time, lan};

#[test]
fn routes_and_domains_of_a_network_and_of_an_interface_reach_the_dhcp_of_its_host_while_the_vm_runs() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let network = json!({"cidr": "10.9.4.0/24"});
        site.apply("Network", "lan", network.clone()).await;
        site.vm("one", "h1", "lan").await;
        site.runs("one").await;
        let host = &site.hosts["h1"];
        let dhcp = || host.networks_now().pop().expect("a network");
        assert!(dhcp().routes.is_empty() && dhcp().search_domains.is_empty());
        assert!(!dhcp().leases[0].no_default_route);

        let mut routed = network.clone();
        routed["searchDomains"] = json!(["example.org"]);
        routed["routes"] = json!([{"name": "office", "to": "192.168.0.0/16", "via": "10.9.4.9"}]);
        site.apply("Network", "lan", routed).await;
        site.until("the routes of the network", async || {
            let [route] = &dhcp().routes[..] else { return false };
            (route.to.to_string().as_str(), route.via.to_string().as_str()) == ("192.168.0.0/16", "10.9.4.9")
                && dhcp().search_domains == ["example.org"]
        })
        .await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let own = json!({"spec": {"networkInterfaces": [{"name": "nic0", "network": "lan", "defaultRoute": false,
            "dns": ["10.9.4.53"], "searchDomains": ["db.example.org"]}]}});
        vms.patch("one", &PatchParams::default(), &Patch::Merge(&own)).await.expect("accepted");
        site.until("the options of the interface", async || {
            let lease = dhcp().leases[0].clone();
            lease.no_default_route
                && lease.dns == ["10.9.4.53".parse::<std::net::IpAddr>().expect("an address")]
                && lease.search_domains == ["db.example.org"]
        })
        .await;
        let status = vms.get("one").await.expect("it answers").status.expect("it has one");
        assert_eq!(status.interfaces[0].default_route, Some(false));
        assert!(status.pending_power_cycle.is_empty(), "{:?}", status.pending_power_cycle);
        site.apply("Network", "lan", network).await;
        site.until("nothing of the network is left", async || {
            dhcp().routes.is_empty() && dhcp().search_domains.is_empty()
        })
        .await;
        site.stop.cancel();
    });
}

#[test]
fn an_interface_has_routes_a_gateway_and_a_largest_packet_of_its_own_and_a_wrong_router_is_named() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.apply("Network", "lan", json!({"cidr": "10.9.4.0/24"})).await;
        site.vm("one", "h1", "lan").await;
        site.runs("one").await;
        let host = &site.hosts["h1"];
        let lease = || host.networks_now().pop().expect("a network").leases[0].clone();
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let change = async |gateway: &str| {
            let routes = json!([{"name": "office", "to": "192.168.0.0/16", "via": "10.9.4.8"}]);
            let own = json!({"spec": {"networkInterfaces": [{"name": "nic0", "network": "lan", "gateway": gateway, "routes": routes,
                "mtu": 1400}]}});
            vms.patch("one", &PatchParams::default(), &Patch::Merge(&own)).await.expect("accepted");
        };
        change("10.9.4.7").await;
        site.until("the options of the interface", async || {
            let routes: Vec<String> =
                lease().routes.iter().map(|route| format!("{} {}", route.to, route.via)).collect();
            routes == ["0.0.0.0/0 10.9.4.7", "192.168.0.0/16 10.9.4.8"] && lease().mtu == Some(1400)
        })
        .await;
        site.until("the card waits for the next start", async || {
            let status = vms.get("one").await.expect("it answers").status.expect("it has one");
            status.pending_power_cycle == ["networkInterfaces[nic0]"]
        })
        .await;
        change("10.9.5.7").await;
        site.until("the condition names the router", async || {
            let status = vms.get("one").await.expect("it answers").status.expect("it has one");
            let synced = condition::find(&status.conditions, "InterfacesSynced");
            synced.is_some_and(|synced| synced.message.contains("gateway is no router of Network lan"))
        })
        .await;
        site.stop.cancel();
    });
}

#[test]
fn the_security_groups_of_a_network_filter_running_guests_that_name_none() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.apply("SecurityGroup", "base", json!({"ingress": [], "egress": []})).await;
        let network = |groups: Value| json!({"cidr": "10.9.4.0/24", "securityGroups": groups});
        site.apply("Network", "lan", network(json!([]))).await;
        site.vm("one", "h1", "lan").await;
        site.runs("one").await;
        let filtered = || {
            let filters = site.hosts["h1"].firewall_now().filters;
            filters.ports.iter().flat_map(|port| port.groups.clone()).collect::<Vec<_>>()
        };
        assert_eq!(filtered(), [""; 0]);
        site.apply("Network", "lan", network(json!(["base"]))).await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let of_status = async || {
            let status = vms.get("one").await.expect("it answers").status.expect("it has one");
            status.interfaces[0].security_groups.clone()
        };
        site.until("the guest is filtered", async || {
            filtered() == ["default/base"] && of_status().await == ["base"]
        })
        .await;
        site.apply("Network", "lan", network(json!([]))).await;
        site.until("the guest is open again", async || filtered().is_empty() && of_status().await.is_empty())
            .await;
        site.stop.cancel();
    });
}

#[test]
fn without_dhcp_an_interface_has_no_lease_on_its_host_and_one_that_declares_otherwise_has() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.apply("Network", "quiet", json!({"cidr": "10.9.5.0/24", "dhcp4": false})).await;
        site.vm("one", "h1", "quiet").await;
        site.runs("one").await;
        let lease = |vm: &str| {
            let network = site.hosts["h1"].networks_now().pop().expect("a network");
            network.leases.into_iter().find(|lease| lease.hostname == vm)
        };
        let one = lease("one").expect("its address is reserved");
        assert_eq!((one.no_dhcp4, one.served()), (true, None));
        site.apply("Disk", "two", json!({"image": "debian", "size": "4Gi"})).await;
        let spec = json!({"class": "small", "placement": {"host": "h1"}, "disks": [{"name": "two", "boot": true}],
            "networkInterfaces": [{"name": "nic0", "network": "quiet", "dhcp4": true, "guestName": "lan0"}]});
        site.apply("VM", "two", spec).await;
        site.runs("two").await;
        assert!(lease("two").is_some_and(|two| two.address.is_some() && two.served() == two.address));
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let status = vms.get("two").await.expect("it answers").status.expect("it has one");
        assert_eq!(status.interfaces[0].dhcp4, Some(true));
        assert_eq!(status.interfaces[0].guest_name.as_deref(), Some("lan0"));
        for (field, value) in [("dhcp4", json!(false)), ("dhcp6", json!(false)), ("guestName", json!("lan1"))]
        {
            let mut interface =
                json!({"name": "nic0", "network": "quiet", "dhcp4": true, "guestName": "lan0"});
            interface[field] = value;
            let patch = Patch::Merge(json!({"spec": {"networkInterfaces": [interface]}}));
            let refused = vms.patch("two", &PatchParams::default(), &patch).await.expect_err(field);
            assert!(refused.to_string().contains(&format!("{field} cannot change")), "{refused}");
        }
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let patch = Patch::Merge(json!({"spec": {"dhcp4": true}}));
        let refused = networks.patch("quiet", &PatchParams::default(), &patch).await.expect_err("fixed");
        assert!(refused.to_string().contains("dhcp4 cannot change"), "{refused}");
        site.stop.cancel();
    });
}

#[test]
fn an_ipv6_prefix_is_a_unicast_64_of_an_overlay_and_cannot_change() {
    in_simulated_time(async {
        let site = Site::new().await;
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let create = async |spec: Value| {
            let network = json!({"metadata": {"name": "dual"}, "spec": spec});
            networks.create(&Default::default(), &serde_json::from_value(network).expect("a Network")).await
        };
        let overlay = |prefix: &str| json!({"cidr": "10.9.6.0/24", "ipv6CIDR": prefix});
        for (prefix, words) in [
            ("fd00:60::1/64", "no host bits set"),
            ("fd00:60::/48", "length of 64"),
            ("10.9.6.0/24", "fc00::/7"),
            ("fe80::/64", "fc00::/7"),
            ("ff02::/64", "fc00::/7"),
            ("::/64", "fc00::/7"),
            ("FD00:60::/64", "lower case"),
        ] {
            let refused = create(overlay(prefix)).await.expect_err(prefix).to_string();
            assert!(refused.contains(words), "{prefix}: {refused}");
        }
        let bridged = json!({"cidr": "192.0.2.0/24", "ipv6CIDR": "fd00:60::/64", "ipv6Egress": "Routed"});
        let refused = create(lan(&bridged)).await.expect_err("a bridge").to_string();
        assert!(refused.contains("ipv6Egress is for a Network of type Overlay"), "{refused}");
        let bridged = lan(&json!({"cidr": "192.0.2.0/24", "egress": "None"}));
        let refused = create(bridged).await.expect_err("a bridge").to_string();
        assert!(refused.contains("egress is for a Network of type Overlay"), "{refused}");
        let without = json!({"cidr": "10.9.6.0/24", "ipv6Egress": "Routed"});
        let refused = create(without).await.expect_err("no prefix").to_string();
        assert!(refused.contains("ipv6Egress needs ipv6CIDR"), "{refused}");
        for prefix in ["2001:db8:1:2::/64", "fc12:3456::/64", "fd00:60::/64"] {
            create(overlay(prefix)).await.expect(prefix);
            if prefix != "fd00:60::/64" {
                networks.delete("dual", &DeleteParams::default()).await.expect("deleted");
            }
        }
        let patch = async |spec: Value| {
            let patch = Patch::Merge(json!({"spec": spec}));
            networks.patch("dual", &PatchParams::default(), &patch).await
        };
        patch(json!({"ipv6Egress": "Masquerade", "egress": "None"})).await.expect("live");
        for prefix in [json!("fd00:61::/64"), json!(null)] {
            let refused = patch(json!({"ipv6CIDR": prefix})).await.expect_err("fixed").to_string();
            assert!(refused.contains("ipv6CIDR cannot change"), "{refused}");
        }
        for same in ["fd00:60:0:0::/64", "fd00:60::/64"] {
            patch(json!({"ipv6CIDR": same})).await.expect("another spelling");
        }
        site.stop.cancel();
    });
}

#[test]
fn each_interface_on_a_network_with_a_prefix_has_one_ipv6_address_which_its_host_gives_out() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.apply("Network", "dual", json!({"cidr": "10.9.6.0/24", "ipv6CIDR": "fd00:60::/64"})).await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let vm = async |name: &str, address: Option<&str>| {
            site.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
            let mut interface = json!({"name": "nic0", "network": "dual"});
            if let Some(address) = address {
                interface["ipv6Address"] = address.into();
            }
            let disks = json!([{"name": name, "boot": true}]);
            let spec = json!({"class": "small", "disks": disks, "networkInterfaces": [interface]});
            site.apply("VM", name, spec).await;
        };
        let given = async |name: &str| {
            let status = vms.get(name).await.expect("it answers").status.unwrap_or_default();
            status.interfaces.first().map(|i| (i.address.clone(), i.ipv6_address.clone())).unwrap_or_default()
        };
        let pair = |ipv4: &str, ipv6: &str| (ipv4.to_owned(), ipv6.to_owned());
        vm("one", Some("fd00:60::3")).await;
        site.runs("one").await;
        assert_eq!(given("one").await, pair("10.9.6.2", "fd00:60::3"));
        vm("two", None).await;
        site.runs("two").await;
        assert_eq!(given("two").await, pair("10.9.6.3", "fd00:60::1:0:3"), "its number is taken");
        vm("three", None).await;
        site.runs("three").await;
        assert_eq!(given("three").await, pair("10.9.6.4", "fd00:60::4"));
        let network = site.hosts["h1"].networks_now().pop().expect("a network");
        assert_eq!(network.ipv6.map(|ipv6| ipv6.gateway.to_string()).as_deref(), Some("fd00:60::1"));
        let leases: BTreeSet<String> =
            network.leases.iter().filter_map(|lease| Some(lease.ipv6?.to_string())).collect();
        let expected = ["fd00:60::1:0:3", "fd00:60::3", "fd00:60::4"].map(str::to_owned);
        assert_eq!(leases, BTreeSet::from(expected));

        vm("four", Some("fd00:60::4")).await;
        site.until("it reports that its address is taken", async || {
            let status = vms.get("four").await.expect("it answers").status.unwrap_or_default();
            let stalled = condition::find(&status.conditions, "Stalled");
            stalled.is_some_and(|c| c.message.contains("fd00:60::4 is taken in network default/dual"))
        })
        .await;
        vms.delete("three", &DeleteParams::default()).await.expect("deleted");
        site.runs("four").await;

        // The decided address can be declared and left out again; another one cannot.
        let declare = async |address: Value| {
            let mut interface = json!({"name": "nic0", "network": "dual"});
            if !address.is_null() {
                interface["ipv6Address"] = address;
            }
            let own = json!({"spec": {"networkInterfaces": [interface]}});
            vms.patch("two", &PatchParams::default(), &Patch::Merge(&own)).await
        };
        declare(json!("fd00:60::1:0:3")).await.expect("its own");
        declare(json!(null)).await.expect("left out");
        let refused = declare(json!("fd00:60::99")).await.expect_err("another").to_string();
        assert!(refused.contains("ipv6Address cannot change"), "{refused}");
        let refused =
            declare(json!("fd00:0060::1:0:3")).await.expect_err("not the shortest form").to_string();
        assert!(refused.contains("shortest form"), "{refused}");

        // A second network with the prefix gets no VM.
        site.apply("Network", "twin", json!({"cidr": "10.9.7.0/24", "ipv6CIDR": "fd00:60::/64"})).await;
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        site.until("the second network is refused", async || {
            let status = networks.get("twin").await.expect("it answers").status.unwrap_or_default();
            let stalled = condition::find(&status.conditions, "Stalled");
            stalled.is_some_and(|c| {
                c.message.contains("its ipv6CIDR fd00:60::/64 is that of network default/dual")
            })
        })
        .await;
        site.stop.cancel();
    });
}

#[test]
fn a_network_that_takes_a_range_of_a_host_is_refused_until_the_host_has_it_no_more() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let lan = HostRange { range: "10.9.0.0/16".parse().expect("a range"), is_route: false };
        site.hosts["h1"].change_facts(|facts| facts.ranges = vec![lan]);
        let hosts: Api<berth_api::Host> = Api::all(site.client.clone());
        site.until("the host reports it", async || {
            let host = hosts.get("h1").await.expect("it answers");
            host.status.is_some_and(|status| status.ranges == ["10.9.0.0/16"])
        })
        .await;
        site.apply("Network", "lan", json!({"cidr": "10.9.4.0/24"})).await;
        site.vm("one", "h1", "lan").await;
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        site.until("it is refused", async || {
            let status = networks.get("lan").await.expect("it answers").status.unwrap_or_default();
            let stalled = condition::find(&status.conditions, "Stalled");
            status.vni.is_none() && stalled.is_some_and(|c| c.message.contains("a host uses itself"))
        })
        .await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(site.hosts["h1"].networks_now().is_empty());
        site.hosts["h1"].change_facts(|facts| facts.ranges.clear());
        site.runs("one").await;
        // An accepted network stays on the hosts where its guests run if a host reports its range as used only
        // later.
        let lan = HostRange { range: "10.9.0.0/16".parse().expect("a range"), is_route: false };
        site.hosts["h1"].change_facts(|facts| facts.ranges = vec![lan]);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(site.hosts["h1"].networks_now().len(), 1);
        site.stop.cancel();
    });
}

#[test]
fn a_second_vm_with_the_mac_of_another_waits_until_that_one_is_gone() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let mac = "52:54:00:AA:BB:CC";
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        for name in ["one", "two"] {
            site.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
            let interface = json!([{"name": "nic0", "macAddress": mac}]);
            let disks = json!([{"name": name, "boot": true}]);
            let spec = json!({"class": "small", "disks": disks, "networkInterfaces": interface});
            site.apply("VM", name, spec).await;
            if name == "one" {
                site.runs("one").await;
            }
        }
        site.until("the second reports it", async || {
            let status = vms.get("two").await.expect("it answers").status.unwrap_or_default();
            let stalled = condition::find(&status.conditions, "Stalled");
            stalled.is_some_and(|c| c.message.contains("MAC address 52:54:00:aa:bb:cc is VM one's"))
        })
        .await;
        vms.delete("one", &DeleteParams::default()).await.expect("deleted");
        site.runs("two").await;
        site.stop.cancel();
    });
}
