//! Networks on bridges, interfaces and VLANs of the hosts.

use berth_api::{Network, VM, condition};
use berth_host::{BridgeChoice, HostBridge, HostInterface};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Site, in_simulated_time, lan};

#[test]
fn a_bridged_network_belongs_to_the_administrator_and_what_it_is_cannot_change() {
    in_simulated_time(async {
        let site = Site::new().await;
        let over = |bridge: &Value| lan(&json!({"cidr": "192.0.2.0/24", "bridge": bridge}));
        let create = async |namespace: &str, spec: Value| {
            let networks: Api<Network> = Api::namespaced(site.client.clone(), namespace);
            let spec = serde_json::from_value(spec).expect("a spec");
            networks.create(&Default::default(), &Network::new("lan", spec)).await.map_err(|e| e.to_string())
        };
        let fixed = || {
            lan(
                &json!({"cidr": "192.0.2.0/24", "ipv4": {"gateway": "192.0.2.1", "range": "192.0.2.50-192.0.2.99"}}),
            )
        };
        let refused = create("default", fixed()).await.expect_err("a tenant's");
        assert!(refused.contains("belongs in namespace berth-shared"), "{refused}");
        let bad = [
            (json!({"type": "Bridge", "cidr": "192.0.2.0/24"}), "bridge is that of"),
            (json!({"cidr": "192.0.2.0/24", "bridge": {"name": "vmbr0"}}), "bridge is that of"),
            (json!({"cidr": "192.0.2.0/24", "ipv4": {}}), "ipv4 is for a Network of type Bridge"),
            (json!({}), "cidr is missing"),
            (lan(&json!({})), "cidr is missing"),
            (lan(&json!({"cidr": "192.0.2.0/24", "bridge": {"name": "bth-00004d"}})), "berth makes itself"),
            (lan(&json!({"cidr": "192.0.2.0/24", "bridge": {"name": "a/b"}})), "spec.bridge.name"),
            (over(&json!({})), "one of them"),
            (over(&json!({"name": "vmbr0", "interface": "eth1"})), "one of them"),
            (over(&json!({"name": "vmbr0", "vlan": 120})), "vlan is a VLAN of interface"),
            (over(&json!({"interface": "eth1", "vlan": 120, "trunkVLANs": ["20"]})), "leave one of them out"),
            (over(&json!({"name": "vmbr0", "trunkVLANs": ["20", "4095"]})), "each of trunkVLANs"),
            (over(&json!({"name": "vmbr0", "trunkVLANs": ["20-10"]})), "each of trunkVLANs"),
            (over(&json!({"interface": "eth1", "vlan": 0})), "spec.bridge.vlan"),
            (over(&json!({"interface": "eth1", "vlan": 4095})), "spec.bridge.vlan"),
            (over(&json!({"interface": "a b"})), "spec.bridge.interface"),
            (over(&json!({"interface": "sixteencharacter"})), "spec.bridge.interface"),
            (over(&json!({"interface": "lo"})), "loopback"),
            (over(&json!({"interface": "btx-00004d"})), "berth makes itself"),
            (over(&json!({"interface": "btt01234567n0"})), "berth makes itself"),
            (
                lan(&json!({"cidr": "192.0.2.0/24", "ipv4": {"gateway": "198.51.100.1"}})),
                "ipv4.gateway must be",
            ),
            (
                lan(&json!({"cidr": "192.0.2.0/24", "ipv4": {"range": "192.0.2.50-192.0.3.1"}})),
                "ipv4.range must be",
            ),
            (lan(&json!({"cidr": "192.0.2.0/24", "ipv4": {"range": "192.0.2.50"}})), "spec.ipv4.range"),
            (lan(&json!({"ipv4": {"allocation": "External", "dhcp": true}})), "ipv4.dhcp gives out"),
            (lan(&json!({"ipv6": {"allocation": "External", "dhcp": true}})), "ipv6.dhcp gives out"),
            (
                lan(&json!({"ipv6CIDR": "2001:db8:7::/64", "ipv6": {"sourceCheck": "Learned"}})),
                "ipv6.sourceCheck Learned needs",
            ),
            (
                lan(&json!({"cidr": "192.0.2.0/24", "ipv4": {"nameServer": "192.0.2.53"}})),
                "ipv4.nameServer answers questions",
            ),
            (
                lan(
                    &json!({"cidr": "192.0.2.0/24", "dnsDomain": "vms.example.org", "ipv4": {"nameServer": "192.0.3.53"}}),
                ),
                "ipv4.nameServer must be",
            ),
            (lan(&json!({"cidr": "192.0.2.0/24", "ipv6": {"pool": "p"}})), "ipv6.pool gives an Overlay"),
            (lan(&json!({"cidr": "192.0.2.0/24", "ipv4": {"allocation": "External"}})), "leave cidr"),
            (lan(&json!({"dns": ["192.0.2.1"], "ipv4": {"allocation": "External"}})), "leave cidr"),
            (
                lan(&json!({"cidr": "192.0.2.0/24", "ipv4": {"sourceCheck": "Lease"}})),
                "needs ipv4.allocation External",
            ),
        ];
        for (spec, words) in bad {
            let refused = create("berth-shared", spec.clone()).await.expect_err(&spec.to_string());
            assert!(refused.contains(words), "{spec}: {refused}");
        }
        create("berth-shared", fixed()).await.expect("it is valid");
        let networks: Api<Network> = Api::namespaced(site.client.clone(), "berth-shared");
        let change = async |patch: Value| {
            let patch = Patch::Merge(json!({"spec": patch}));
            networks.patch("lan", &PatchParams::default(), &patch).await.map_err(|e| e.to_string())
        };
        for (patch, words) in [
            (json!({"type": "Overlay", "bridge": null, "ipv4": null}), "type cannot change"),
            (json!({"bridge": {"name": "vmbr1"}}), "bridge cannot change"),
            (json!({"bridge": {"name": null, "interface": "eth1"}}), "bridge cannot change"),
            (
                json!({"cidr": null, "ipv4": {"allocation": "External", "gateway": null, "range": null}}),
                "ipv4.allocation cannot change",
            ),
            (json!({"cidr": "192.0.3.0/24"}), "cidr cannot change"),
        ] {
            let refused = change(patch.clone()).await.expect_err(&patch.to_string());
            assert!(refused.contains(words), "{patch}: {refused}");
        }
        change(json!({"ipv4": {"range": "192.0.2.50-192.0.2.199"}})).await.expect("the range may grow");
        change(json!({"bridge": {"trunkVLANs": ["20", "100-199"]}})).await.expect("a trunk may come");
        site.stop.cancel();
    });
}

#[test]
fn a_vm_on_a_bridge_runs_on_a_host_that_has_it_with_an_address_of_the_range_or_none_of_berths() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.join("h2", "192.0.2.2", 1500).await;
        site.apply_in(
            "berth-shared",
            "Network",
            "lan",
            lan(&json!({"cidr": "192.0.2.0/24",
            "ipv4": {"gateway": "192.0.2.3", "range": "192.0.2.1-192.0.2.9"}})),
        )
        .await;
        site.apply_in("berth-shared", "Network", "office", lan(&json!({"ipv4": {"allocation": "External"}})))
            .await;
        let anywhere = async |name: &str, network: &str| {
            site.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
            let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}],
                "networkInterfaces": [{"name": "nic0", "network": network}]});
            site.apply("VM", name, spec).await;
        };
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let status = async |name: &str| vms.get(name).await.expect("it answers").status.unwrap_or_default();
        anywhere("fixed", "lan").await;
        site.until("the condition says why it is not placed", async || {
            let scheduled = condition::find(&status("fixed").await.conditions, "Scheduled").cloned();
            scheduled.is_some_and(|c| c.reason == "NoHostWithBridge" && c.message.contains("bridge vmbr0"))
        })
        .await;
        let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
        site.hosts["h2"].change_bridges(&[bridge]);
        site.runs("fixed").await;
        anywhere("external", "office").await;
        site.runs("external").await;
        for (name, address) in [("fixed", "192.0.2.4"), ("external", "")] {
            let status = status(name).await;
            assert_eq!(status.binding.as_ref().map(|b| b.host.as_str()), Some("h2"));
            assert_eq!(status.interfaces[0].address, address, "no host's and not the gateway's");
            assert_eq!(status.private_address.as_deref(), Some(address).filter(|a| !a.is_empty()));
            assert!(
                condition::find(&status.conditions, "Ready").is_some_and(|c| c.status == "True"),
                "{status:?}"
            );
        }
        let host = &site.hosts["h2"];
        assert_eq!(host.bridged_networks().len(), 2);
        assert!(host.networks_now().is_empty() && host.firewall_now().nat.is_empty());
        assert!(site.hosts["h1"].bridged_networks().is_empty());
        let office: Value =
            serde_json::to_value(vms.get("external").await.expect("it answers")).expect("JSON");
        assert!(office.pointer("/status/interfaces/0/address").is_none(), "absent, not empty");
        for name in ["fixed", "external"] {
            vms.delete(name, &DeleteParams::default()).await.expect("deleted");
        }
        site.until("nothing is left on the host", async || {
            site.hosts["h2"].bridged_networks().is_empty() && site.hosts["h2"].leftovers().taps.is_empty()
        })
        .await;
        site.stop.cancel();
    });
}

#[test]
fn a_vm_on_a_vlan_runs_where_the_interface_can_be_used_and_the_host_says_when_it_cannot_any_more() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.join("h2", "192.0.2.2", 1500).await;
        let eth1 = HostInterface {
            name: "eth1".into(),
            mtu: 1500,
            up: true,
            carrier: true,
            in_use: Some("has address 198.51.100.1/24".into()),
            ..HostInterface::default()
        };
        for host in ["h1", "h2"] {
            site.hosts[host].change_interfaces(std::slice::from_ref(&eth1));
        }
        let on = |bridge: &Value, range: &str| {
            lan(&json!({"bridge": bridge, "cidr": "192.0.2.0/24", "ipv4": {"range": range}}))
        };
        let plain = on(&json!({"interface": "eth1"}), "192.0.2.50-192.0.2.59");
        let tagged = on(&json!({"interface": "eth1", "vlan": 120}), "192.0.2.60-192.0.2.69");
        site.apply_in("berth-shared", "Network", "plain", plain).await;
        site.apply_in("berth-shared", "Network", "tagged", tagged).await;
        for name in ["plain", "tagged"] {
            site.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
            let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}],
                "networkInterfaces": [{"name": "nic0", "network": name}]});
            site.apply("VM", name, spec).await;
        }
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let status = async |name: &str| vms.get(name).await.expect("it answers").status.unwrap_or_default();
        for (name, words) in
            [("plain", "h1 uses interface eth1 itself: it has address"), ("tagged", "modprobe 8021q")]
        {
            site.until(&format!("{name} says why it is not placed"), async || {
                let scheduled = condition::find(&status(name).await.conditions, "Scheduled").cloned();
                scheduled.is_some_and(|c| c.reason == "NoHostWithBridge" && c.message.contains(words))
            })
            .await;
        }
        site.hosts["h2"].change_facts(|facts| facts.links.vlans = true);
        site.runs("tagged").await;
        assert_eq!(status("tagged").await.binding.map(|b| b.host), Some("h2".to_owned()));
        let parts = site.hosts["h2"].bridged_networks();
        let over = BridgeChoice::Over { interface: "eth1".into(), vlan: Some(120) };
        assert_eq!(parts.iter().map(|part| &part.to).collect::<Vec<_>>(), [&over]);

        let hosts: Api<berth_api::Host> = Api::all(site.client.clone());
        let connected = async || {
            let host = hosts.get("h2").await.expect("it answers").status.unwrap_or_default();
            condition::find(&host.conditions, "NetworksConnected").cloned()
        };
        for (interfaces, words) in [
            (vec![HostInterface { carrier: false, ..eth1.clone() }], "no carrier on interface eth1"),
            (Vec::new(), "no interface eth1"),
        ] {
            site.hosts["h2"].change_interfaces(&interfaces);
            site.until(words, async || connected().await.is_some_and(|c| c.message.contains(words))).await;
            assert!(site.hosts["h2"].bridged_networks().len() == 1, "what runs is left as it is");
        }
        let calls = || site.hosts["h2"].calls()["ensure_bridged_network"];
        let before = calls();
        site.hosts["h2"].change_interfaces(std::slice::from_ref(&eth1));
        site.until("it is connected again", async || connected().await.is_none() && calls() > before).await;

        let free = HostInterface { in_use: None, ..eth1 };
        site.hosts["h1"].change_interfaces(&[free]);
        site.runs("plain").await;
        assert_eq!(status("plain").await.binding.map(|b| b.host), Some("h1".to_owned()));
        for name in ["plain", "tagged"] {
            vms.delete(name, &DeleteParams::default()).await.expect("deleted");
        }
        site.until("nothing is left on the hosts", async || {
            ["h1", "h2"].iter().all(|host| site.hosts[*host].bridged_networks().is_empty())
        })
        .await;
        site.stop.cancel();
    });
}

#[test]
fn what_cannot_be_on_a_bridge_is_refused_with_the_interface_and_the_remedy() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.hosts["h1"].change_bridges(&[HostBridge {
            name: "vmbr0".into(),
            mtu: 1500,
            up: true,
            filters_vlans: false,
        }]);
        site.apply_in("berth-shared", "Network", "lan", lan(&json!({"cidr": "192.0.2.0/24"}))).await;
        site.apply_in("berth-shared", "Network", "office", lan(&json!({"ipv4": {"allocation": "External"}})))
            .await;
        site.apply("SecurityGroup", "web", json!({})).await;
        site.apply("PublicIP", "web", json!({})).await;
        let cases = [
            ("public", json!({"network": "lan", "publicIP": "web"}), "take publicIP web out"),
            ("grouped", json!({"network": "office", "securityGroups": ["web"]}), "take securityGroups out"),
            ("addressed", json!({"network": "office", "address": "192.0.2.9"}), "take address out"),
            ("second", json!({"network": "office", "defaultRoute": false}), "take defaultRoute out"),
            ("served", json!({"network": "lan", "dhcp4": false}), "take dhcp4 out"),
            ("resolved", json!({"network": "office", "dns": ["192.0.2.9"]}), "take dns out"),
        ];
        for (name, mut interface, words) in cases {
            interface["name"] = "nic0".into();
            site.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
            let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}], "networkInterfaces": [interface]});
            site.apply("VM", name, spec).await;
            let vms: Api<VM> = Api::default_namespaced(site.client.clone());
            site.until(&format!("{name} says why it waits"), async || {
                let status = vms.get(name).await.expect("it answers").status.unwrap_or_default();
                let ready = condition::find(&status.conditions, "Ready").map(|c| c.message.clone());
                ready.is_some_and(|text| text.contains(words))
            })
            .await;
        }
        site.stop.cancel();
    });
}
