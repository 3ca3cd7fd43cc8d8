//! Networks without IPv4, and IPv6 on bridges of the hosts.

use berth_host::HostBridge;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Network, Site, VM, condition, in_simulated_time, lan};

impl Site {
    /// Returns the private address of a VM, and the IPv4 and the IPv6 address of its first interface.
    async fn addresses(&self, name: &str) -> (Option<String>, String, String) {
        let vms: Api<VM> = Api::default_namespaced(self.client.clone());
        let status = vms.get(name).await.expect("it answers").status.unwrap_or_default();
        let first = status.interfaces.first().cloned().unwrap_or_default();
        (status.private_address, first.address, first.ipv6_address)
    }

    async fn anywhere(&self, name: &str, interface: Value) {
        self.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
        let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}],
            "networkInterfaces": [interface]});
        self.apply("VM", name, spec).await;
    }

    async fn waits(&self, name: &str, words: &str) {
        let vms: Api<VM> = Api::default_namespaced(self.client.clone());
        self.until(&format!("{name} reports {words:?}"), async || {
            let status = vms.get(name).await.expect("it answers").status.unwrap_or_default();
            condition::find(&status.conditions, "Scheduled").is_some_and(|c| c.message.contains(words))
        })
        .await;
    }
}

#[test]
fn a_network_without_ipv4_gives_out_ipv6_addresses_and_names_and_its_vms_are_ready() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let spec = json!({"ipv6CIDR": "fd00:60::/64", "dnsDomain": "app.internal", "dns": ["2620:fe::fe"]});
        site.apply("Network", "six", spec).await;
        site.apply("SecurityGroup", "web", json!({"ingress": [{"name": "all", "cidrs": ["::/0"]}]})).await;
        site.anywhere("one", json!({"name": "nic0", "network": "six", "securityGroups": ["web"]})).await;
        site.runs("one").await;
        let own = "fd00:60::2".to_owned();
        assert_eq!(site.addresses("one").await, (Some(own.clone()), String::new(), own.clone()));
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        site.until("the configuration of the guest is published", async || {
            let status = vms.get("one").await.expect("it answers").status.unwrap_or_default();
            status.network_config.first().is_some_and(|config| {
                config.addresses == ["fd00:60::2/64"] && config.dns == ["2620:fe::fe"] && config.mtu == 1500
            })
        })
        .await;
        let host = &site.hosts["h1"];
        let network = host.networks_now().pop().expect("a network");
        assert_eq!((network.ipv4, network.dns.len()), (None, 1));
        assert_eq!((network.leases[0].address, network.leases[0].ipv6), (None, own.parse().ok()));
        let names = network.names.expect("it has a domain").records;
        let addresses: Vec<_> = names.iter().map(|name| name.address.to_string()).collect();
        assert_eq!(addresses, std::slice::from_ref(&own));
        let firewall = host.firewall_now();
        let [port] = &firewall.filters.ports[..] else { panic!("{firewall:?}") };
        assert_eq!((port.port.address, port.port.ipv6), (None, own.parse().ok()), "it is filtered");
        assert!(firewall.exceptions.is_empty());
        site.until("the VM is ready", async || {
            let status = vms.get("one").await.expect("it answers").status.unwrap_or_default();
            condition::find(&status.conditions, "Ready").is_some_and(|c| c.status == "True")
        })
        .await;

        site.anywhere("two", json!({"name": "nic0", "network": "six", "address": "10.0.0.9"})).await;
        site.waits("two", "has no IPv4 (cidr): take address out").await;
        site.anywhere("three", json!({"name": "nic0", "network": "six", "publicIP": "web"})).await;
        site.waits("three", "name a PublicIP of an IPv6 pool in publicIPv6").await;
        site.stop.cancel();
    });
}

#[test]
fn a_guest_forms_the_address_that_its_vm_has_and_sends_from_the_further_ones_that_it_lists() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let routes = json!([{"name": "office", "to": "fd09::/48", "via": "fe80::9"}]);
        let spec = json!({"cidr": "10.9.4.0/24", "ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true, "routes": routes});
        site.apply("Network", "formed", spec).await;
        let interface = json!({"name": "nic0", "network": "formed", "macAddress": "52:54:00:00:00:09",
            "allowedAddresses": ["fd00:60::100/128"], "allowedMacAddresses": ["00:00:5e:00:02:0a"]});
        site.anywhere("one", interface).await;
        site.runs("one").await;
        let own = "fd00:60::5054:ff:fe00:9";
        assert_eq!(site.addresses("one").await.2, own);
        let host = &site.hosts["h1"];
        let network = host.networks_now().pop().expect("a network");
        assert!(network.ipv6.is_some_and(|ipv6| ipv6.autoconfiguration));
        assert_eq!(network.ipv6_routes.len(), 1);
        let firewall = host.firewall_now();
        assert_eq!(firewall.ports[0].ipv6, own.parse().ok());
        let [exception] = &firewall.exceptions[..] else { panic!("{firewall:?}") };
        let ranges: Vec<String> = exception.ranges.iter().map(ToString::to_string).collect();
        assert_eq!((ranges, exception.macs.len()), (vec!["fd00:60::100/128".to_owned()], 1));
        assert_eq!(exception.gateways.len(), 3, "IPv4, IPv6 and link-local");
        site.anywhere("two", json!({"name": "nic0", "network": "formed", "ipv6Address": "fd00:60::2"})).await;
        site.waits("two", "take ipv6Address out").await;
        site.stop.cancel();
    });
}

#[test]
fn the_addresses_that_a_guest_chooses_are_in_its_status_and_its_name_leads_to_them() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let spec = json!({"ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true, "ipv6PrivacyAddresses": true,
            "dnsDomain": "app.internal"});
        site.apply("Network", "formed", spec).await;
        site.anywhere("one", json!({"name": "nic0", "network": "formed", "macAddress": "52:54:00:00:00:09"}))
            .await;
        site.runs("one").await;
        let own = "fd00:60::5054:ff:fe00:9";
        assert_eq!(site.addresses("one").await.2, own);
        let firewall = site.hosts["h1"].firewall_now();
        let [port] = &firewall.observed[..] else { panic!("{firewall:?}") };
        let chosen = port.chosen.as_ref().expect("its guest chooses");
        assert_eq!(Some(&chosen.bridge), firewall.nat.first().map(|nat| &nat.bridge));
        assert!(chosen.own.contains(&own.parse().expect("an address")), "{chosen:?}");
        let [exception] = &firewall.exceptions[..] else { panic!("{firewall:?}") };
        assert!(exception.ranges.contains(&"fd00:60::/64".parse().expect("a prefix")), "{exception:?}");
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let named = async || {
            let status = networks.get("formed").await.expect("it answers").status.unwrap_or_default();
            status.names.into_iter().map(|name| name.ipv6_address).collect::<Vec<_>>()
        };
        site.until("its name leads to its first address", async || named().await == [own]).await;
        let address = "fd00:60::1234:5678:9abc:def0";
        site.hosts["h1"].send_from(&port.tap, address.parse().expect("an address"));
        site.until("its status has the address", async || {
            let status = vms.get("one").await.expect("it answers").status.unwrap_or_default();
            status.observed_addresses.iter().any(|one| one.name == "nic0" && one.addresses == [address])
        })
        .await;
        site.until("its name leads there", async || named().await == [address]).await;
        let groups = json!({"name": "nic0", "network": "formed", "securityGroups": ["web"]});
        site.anywhere("filtered", groups).await;
        site.waits("filtered", "has ipv6PrivacyAddresses: take securityGroups out").await;
        site.stop.cancel();
    });
}

#[test]
fn a_vm_on_a_bridge_has_an_ipv6_address_of_the_range_or_those_of_the_networks_routers() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
        site.hosts["h1"].change_bridges(&[bridge]);
        let fixed = json!({"ipv6CIDR": "2001:db8:7::/64",
            "ipv6": {"gateway": "2001:db8:7::50", "range": "2001:db8:7::50-2001:db8:7::59"}});
        site.apply_in("berth-shared", "Network", "lan", lan(&fixed)).await;
        let external = json!({"ipv6": {"allocation": "External"}});
        site.apply_in("berth-shared", "Network", "office", lan(&external)).await;
        site.anywhere("fixed", json!({"name": "nic0", "network": "lan"})).await;
        site.anywhere("external", json!({"name": "nic0", "network": "office"})).await;
        for (name, address) in [("fixed", "2001:db8:7::51"), ("external", "")] {
            site.runs(name).await;
            let private = Some(address.to_owned()).filter(|address| !address.is_empty());
            assert_eq!(site.addresses(name).await, (private, String::new(), address.to_owned()));
        }
        let firewall = site.hosts["h1"].firewall_now();
        assert_eq!((firewall.bridged.len(), firewall.advertised.len(), firewall.ports.len()), (2, 1, 2));
        let [exception] = &firewall.exceptions[..] else { panic!("{firewall:?}") };
        assert_eq!(exception.ranges.iter().map(ToString::to_string).collect::<Vec<_>>(), ["::/0"]);
        site.anywhere("filtered", json!({"name": "nic0", "network": "office", "securityGroups": ["web"]}))
            .await;
        site.waits("filtered", "ipv6.allocation External: take securityGroups out").await;
        site.stop.cancel();
    });
}

#[test]
fn bad_declarations_of_ipv6_are_refused_and_ranges_of_one_lan_do_not_overlap() {
    in_simulated_time(async {
        let site = Site::new().await;
        let networks: Api<Network> = Api::namespaced(site.client.clone(), "berth-shared");
        let create = async |name: &str, spec: Value| {
            let network = json!({"metadata": {"name": name}, "spec": spec});
            let network = serde_json::from_value(network).expect("a Network");
            networks.create(&Default::default(), &network).await.map_err(|error| error.to_string())
        };
        let on_lan = |ipv6: Value| lan(&json!({"ipv6CIDR": "2001:db8:7::/64", "ipv6": ipv6}));
        let bad = [
            (json!({"ipv6CIDR": "fd00:60::/64", "egress": "Routed"}), "egress is that of IPv4"),
            (
                json!({"ipv6CIDR": "fd00:60::/64", "routes": [{"name": "a", "to": "10.0.0.0/8", "via": "10.9.9.9"}]}),
                "routes are those of IPv4",
            ),
            (
                json!({"ipv6CIDR": "fd00:60::/64", "routes": [{"name": "a", "to": "fd09::/48", "via": "fd00:61::9"}]}),
                "via of each route of IPv6",
            ),
            (
                json!({"ipv6CIDR": "fd00:60::/64", "routes": [{"name": "a", "to": "fd09::/48", "via": "10.9.9.9"}]}),
                "to and via must be of the same family",
            ),
            (
                json!({"ipv6CIDR": "fd00:60::/64", "routes": [{"name": "a", "to": "::/0", "via": "fd00:60::9"}]}),
                "leave this route out",
            ),
            (
                json!({"cidr": "10.9.7.0/24", "routes": [{"name": "a", "to": "fd09::/48", "via": "fe80::9"}]}),
                "routes of IPv6 need ipv6CIDR",
            ),
            (
                json!({"cidr": "10.9.7.0/24", "ipv6Autoconfiguration": true}),
                "ipv6Autoconfiguration needs ipv6CIDR",
            ),
            (
                json!({"ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true, "dhcp6": true}),
                "leave dhcp6 out",
            ),
            (
                lan(&json!({"ipv6CIDR": "2001:db8:7::/64", "ipv6Autoconfiguration": true})),
                "ipv6Autoconfiguration is for a Network of type Overlay",
            ),
            (
                json!({"ipv6CIDR": "fd00:60::/64", "ipv6PrivacyAddresses": true}),
                "ipv6PrivacyAddresses needs ipv6Autoconfiguration",
            ),
            (
                json!({"ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true, "ipv6PrivacyAddresses": true, "securityGroups": ["web"]}),
                "leave them out, or ipv6PrivacyAddresses",
            ),
            (json!({"ipv6CIDR": "fd00:60::/64", "ipv6": {}}), "ipv6 is for a Network of type Bridge"),
            (json!({"ipv6CIDR": "fd00:60::/64", "dns": ["one"]}), "spec.dns"),
            (lan(&json!({"cidr": "192.0.2.0/24", "ipv6": {}})), "ipv6 needs ipv6CIDR"),
            (lan(&json!({"ipv6CIDR": "2001:db8:7::/64", "ipv4": {"gateway": "192.0.2.1"}})), "need cidr"),
            (on_lan(json!({"allocation": "External"})), "leave ipv6CIDR"),
            (on_lan(json!({"gateway": "2001:db8:8::1"})), "ipv6.gateway must be"),
            (on_lan(json!({"gateway": "192.0.2.1"})), "spec.ipv6.gateway"),
            (on_lan(json!({"range": "2001:db8:7::50-2001:db8:8::1"})), "ipv6.range must be"),
            (on_lan(json!({"range": "2001:db8:7::50"})), "spec.ipv6.range"),
        ];
        for (spec, words) in bad {
            let refused = create("bad", spec.clone()).await.expect_err(&spec.to_string());
            assert!(refused.contains(words), "{spec}: {refused}");
        }
        create("low", on_lan(json!({"gateway": "fe80::1", "range": "2001:db8:7::10-2001:db8:7::1f"})))
            .await
            .expect("it is valid");
        let patch = Patch::Merge(json!({"spec": {"ipv6CIDR": null,
            "ipv6": {"allocation": "External", "gateway": null, "range": null}}}));
        let refused = networks.patch("low", &PatchParams::default(), &patch).await.expect_err("fixed");
        assert!(refused.to_string().contains("ipv6.allocation cannot change"), "{refused}");
        let refused = async |name: &str, words: &str| {
            site.until(&format!("{name} is refused: {words}"), async || {
                let status = networks.get(name).await.expect("it answers").status.unwrap_or_default();
                condition::find(&status.conditions, "Stalled").is_some_and(|c| c.message.contains(words))
            })
            .await;
        };
        let vni = async |name: &str| {
            networks.get(name).await.expect("it answers").status.and_then(|status| status.vni)
        };
        site.until("the first one is accepted", async || vni("low").await.is_some()).await;
        create("over", on_lan(json!({"range": "2001:db8:7::1f-2001:db8:7::2f"}))).await.expect("valid");
        refused("over", "or another ipv6.range").await;
        create("high", on_lan(json!({"range": "2001:db8:7::20-2001:db8:7::2f"}))).await.expect("valid");
        site.until("another range is accepted", async || vni("high").await.is_some()).await;
        create("empty", on_lan(json!({"range": "2001:db8:7::99-2001:db8:7::90"}))).await.expect("valid");
        refused("empty", "its ipv6.range has no address").await;
        site.stop.cancel();
    });
}
