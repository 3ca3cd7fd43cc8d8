//! A network that is on several hosts: the controllers list its hosts, and each host's agent creates its tunnels to
//! the others. Complete agents on hosts in memory, on the embedded control plane, in one runtime with paused time.

use std::{collections::BTreeSet, time::Duration};

use berth_api::{Network, VM, condition, host_addresses::HOST_ADDRESSES};
use berth_host::{BridgeChoice, HostBridge, HostInterface, HostRange, Tunnel};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

#[path = "shared/image.rs"]
mod image;
#[path = "shared/installed.rs"]
mod installed;
#[path = "networks/ipv6.rs"]
mod ipv6;
#[path = "networks/leases.rs"]
mod leases;
#[path = "networks/names.rs"]
mod names;
#[path = "networks/observed.rs"]
mod observed;
#[path = "shared/setup.rs"]
mod setup;
#[path = "shared/site.rs"]
mod site;
use site::Site;

const LIMIT: Duration = Duration::from_secs(300);

impl Site {
    async fn new() -> Self {
        let site = Self::start().await;
        site.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        site.apply("Image", "debian", image::spec()).await;
        site
    }

    async fn join(&mut self, name: &'static str, address: &str, mtu: u16) {
        self.start_host(name, address, mtu);
        let hosts: Api<berth_api::Host> = Api::all(self.client.clone());
        self.until(&format!("{name} reports"), async || {
            let host = hosts.get_opt(name).await.expect("it answers");
            host.and_then(|h| h.status).is_some_and(|s| s.address.is_some())
        })
        .await;
    }

    async fn apply(&self, kind: &str, name: &str, spec: Value) {
        self.apply_in("default", kind, name, spec).await;
    }

    async fn apply_in(&self, namespace: &str, kind: &str, name: &str, spec: Value) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let resource = ApiResource {
            group: "berth.dev".into(),
            version: "v1alpha1".into(),
            api_version: "berth.dev/v1alpha1".into(),
            kind: kind.into(),
            plural: format!("{}{}", kind.to_lowercase(), if kind == "VMClass" { "es" } else { "s" }),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let applied = api.patch(name, &PatchParams::apply("user").force(), &Patch::Apply(&object)).await;
        applied.unwrap_or_else(|error| panic!("applying {kind} {name}: {error}"));
    }

    /// A VM that must run on this host.
    async fn vm(&self, name: &str, host: &str, network: &str) {
        self.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
        let spec = json!({
            "class": "small", "placement": {"host": host},
            "disks": [{"name": name, "boot": true}],
            "networkInterfaces": [{"name": "nic0", "network": network}],
        });
        self.apply("VM", name, spec).await;
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < LIMIT, "never: {what}");
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn runs(&self, name: &str) {
        let vms: Api<VM> = Api::default_namespaced(self.client.clone());
        self.until(&format!("{name} runs"), async || {
            let vm = vms.get(name).await.expect("it answers");
            let status = vm.status.unwrap_or_default();
            condition::find(&status.conditions, "Running").is_some_and(|c| c.status == "True")
        })
        .await;
    }

    /// Returns a host's tunnels, each with its peers.
    fn tunnels(&self, host: &str) -> Vec<Tunnel> {
        self.hosts[host].networks_now().into_iter().filter_map(|network| network.tunnel).collect()
    }

    async fn tunnelled(&self, host: &str, peers: &[&str]) {
        self.until(&format!("{host} reaches {peers:?}"), async || {
            let tunnels = self.tunnels(host);
            let to: Vec<String> = tunnels.iter().flat_map(|t| &t.peers).map(ToString::to_string).collect();
            to == peers
        })
        .await;
    }

    async fn network(&self) -> Network {
        let networks: Api<Network> = Api::namespaced(self.client.clone(), "berth-shared");
        networks.get("default").await.expect("the default network")
    }
}

fn in_simulated_time(scenario: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can always be built");
    runtime.block_on(scenario);
}

#[test]
fn a_network_leads_to_the_hosts_its_vms_are_on_and_to_no_others() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.vm("one", "h1", "default").await;
        site.runs("one").await;
        let alone = &site.hosts["h1"].networks_now()[0];
        assert_eq!((alone.mtu, alone.tunnel.clone()), (1500, None), "one machine is as it always was");

        site.join("h2", "192.0.2.2", 1500).await;
        site.join("h3", "192.0.2.3", 9000).await;
        site.vm("two", "h2", "default").await;
        site.runs("two").await;
        site.tunnelled("h1", &["192.0.2.2"]).await;
        site.tunnelled("h2", &["192.0.2.1"]).await;
        let (here, there) = (&site.tunnels("h1")[0], &site.tunnels("h2")[0]);
        assert_eq!(here.vni, there.vni);
        assert_eq!(site.network().await.status.and_then(|s| s.vni), Some(i64::from(here.vni)));
        assert_eq!(site.hosts["h2"].networks_now()[0].mtu, 1450);
        let rules = site.hosts["h1"].firewall_now();
        assert_eq!(rules.nat[0].tunnel.as_ref(), Some(here), "guarded");
        assert_eq!(rules.nat[0].bridge, format!("bth-{:06x}", here.vni));
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let interface = vms.get("one").await.expect("it answers").status.expect("bound").interfaces.remove(0);
        let port = &rules.ports[0];
        assert_eq!(rules.ports.len(), 1, "the tap of the one guest here");
        assert_eq!(
            (&port.mac, port.address.map(|a| a.to_string())),
            (&interface.mac_address, Some(interface.address))
        );
        let closed = |address: &str| {
            let address: std::net::Ipv4Addr = address.parse().expect("an address");
            rules.closed.iter().any(|range| range.contains(&address))
        };
        assert!(closed("192.0.2.1") && closed("192.0.2.2"), "{:?}", rules.closed);
        assert!(closed("192.0.2.3"), "also a host that has no VM of the network: {:?}", rules.closed);

        site.vm("three", "h3", "default").await;
        site.runs("three").await;
        site.tunnelled("h1", &["192.0.2.2", "192.0.2.3"]).await;
        // The last VM of the network leaves a host.
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        vms.delete("two", &DeleteParams::default()).await.expect("deleted");
        site.tunnelled("h1", &["192.0.2.3"]).await;
        site.tunnelled("h2", &[]).await;
        assert!(site.hosts["h2"].leftovers().bridges.is_empty());
        site.stop.cancel();
    });
}

#[test]
fn guests_stay_kept_from_every_host_while_the_list_of_hosts_is_lost_and_it_is_written_again() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.vm("one", "h1", "default").await;
        site.runs("one").await;
        site.join("h2", "192.0.2.2", 1500).await;
        let closed = |host: &str, address: &str| {
            let address: std::net::Ipv4Addr = address.parse().expect("an address");
            site.hosts[host].firewall_now().closed.iter().any(|range| range.contains(&address))
        };
        site.until("h1 keeps its guests from h2", async || closed("h1", "192.0.2.2")).await;
        let reached: std::net::Ipv6Addr = "2001:db8::2".parse().expect("an address");
        site.hosts["h2"].change_facts(|facts| facts.ipv6_addresses = vec![reached]);
        site.until("h1 keeps its guests from h2 by IPv6 too", async || {
            let rules = site.hosts["h1"].firewall_now();
            rules.ipv6_closed.iter().any(|range| range.contains(&reached))
        })
        .await;
        let networks = site.network().await.metadata.resource_version;
        let maps: Api<ConfigMap> = Api::namespaced(site.client.clone(), "berth-system");
        let listed = maps.get(HOST_ADDRESSES).await.expect("there is a list");
        maps.delete(HOST_ADDRESSES, &DeleteParams::default()).await.expect("deleted");
        let begun = Instant::now();
        site.until("the list is written again", async || {
            assert!(closed("h1", "192.0.2.2"), "{:?}", begun.elapsed());
            maps.get_opt(HOST_ADDRESSES).await.expect("it answers").is_some()
        })
        .await;
        let again = maps.get(HOST_ADDRESSES).await.expect("there is a list");
        assert_eq!(again.data, listed.data);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(closed("h1", "192.0.2.2"));
        assert_eq!(site.network().await.metadata.resource_version, networks, "no Network is written");
        site.stop.cancel();
    });
}

#[test]
fn a_vm_waits_for_a_network_that_is_refused_and_reports_the_reason() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        site.apply("Network", "mine", json!({"cidr": "10.77.4.0/24"})).await;
        site.vm("one", "h1", "mine").await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        site.until("it reports why it waits", async || {
            let status = vms.get("one").await.expect("it answers").status.unwrap_or_default();
            let ready = condition::find(&status.conditions, "Ready").map(|c| c.message.clone());
            ready.is_some_and(|text| {
                text.contains("Network mine is refused")
                    && text.contains("overlaps 10.77.0.0/16 of network berth-shared/default")
            })
        })
        .await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(vms.get("one").await.expect("it answers").status.and_then(|s| s.binding).is_none());
        // Once the older one is gone, this one recovers by itself.
        let networks: Api<Network> = Api::namespaced(site.client.clone(), "berth-shared");
        networks.delete("default", &DeleteParams::default()).await.expect("deleted");
        site.runs("one").await;
        site.stop.cancel();
    });
}

#[test]
fn a_special_range_is_refused_by_the_schema() {
    in_simulated_time(async {
        let site = Site::new().await;
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let create = async |cidr: &str| {
            let spec = berth_api::NetworkSpec { cidr: cidr.to_owned(), ..Default::default() };
            networks.create(&Default::default(), &Network::new("special", spec)).await
        };
        let special = [
            "0.0.0.0/8",
            "127.0.0.0/8",
            "127.3.0.0/16",
            "169.254.0.0/16",
            "169.254.7.0/24",
            "169.0.0.0/8",
            "169.128.0.0/9",
            "169.254.0.0/15",
            "224.0.0.0/8",
            "239.1.0.0/16",
            "240.0.0.0/8",
            "255.255.255.0/24",
        ];
        for cidr in special {
            let refused = create(cidr).await.expect_err(cidr).to_string();
            assert!(refused.contains("special range"), "{cidr}: {refused}");
        }
        for cidr in ["10.0.0.0/7", "10.0.0.1/24", "10.0.0.0/31", "fd00::/64", "nonsense"] {
            create(cidr).await.expect_err(cidr);
        }
        for cidr in [
            "10.0.0.0/8",
            "169.253.0.0/16",
            "172.16.0.0/24",
            "126.0.0.0/16",
            "223.0.0.0/16",
            "192.168.1.0/29",
        ] {
            create(cidr).await.expect(cidr);
            networks.delete("special", &DeleteParams::default()).await.expect("deleted");
        }
        site.stop.cancel();
    });
}

fn lan(more: &Value) -> Value {
    let mut spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

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

#[test]
fn each_namespace_gets_a_default_network_of_its_own_unless_one_is_shared() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.vm("shared", "h1", "default").await;
        site.runs("shared").await;
        let networks: Api<Network> = Api::all(site.client.clone());
        let names = async || -> Vec<String> {
            let all = networks.list(&ListParams::default()).await.expect("it answers");
            all.iter().map(|n| format!("{}/{}", n.namespace().unwrap_or_default(), n.name_any())).collect()
        };
        assert_eq!(names().await, ["berth-shared/default"], "what is shared is used");
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        vms.delete("shared", &DeleteParams::default()).await.expect("deleted");
        let shared: Api<Network> = Api::namespaced(site.client.clone(), "berth-shared");
        shared.delete("default", &DeleteParams::default()).await.expect("deleted");
        site.until("nothing is shared", async || names().await.is_empty()).await;

        // Many at once: each decision sees the ranges allocated before it.
        let namespaces: Vec<String> = (0..24).map(|n| format!("tenant-{n}")).collect();
        let all: Api<Namespace> = Api::all(site.client.clone());
        for name in &namespaces {
            let namespace = Namespace {
                metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                ..Namespace::default()
            };
            all.create(&PostParams::default(), &namespace).await.expect("created");
            for vm in ["a", "b"] {
                let spec = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": vm},
                    "spec": {"class": "small", "disks": [{"name": vm, "boot": true}]}});
                let vms: Api<VM> = Api::namespaced(site.client.clone(), name);
                let vm = serde_json::from_value(spec).expect("a VM");
                vms.create(&PostParams::default(), &vm).await.expect("created");
            }
        }
        site.until("every namespace has its own", async || {
            let all = networks.list(&ListParams::default()).await.expect("it answers");
            all.items.len() == namespaces.len()
                && all.iter().all(|n| n.status.as_ref().is_some_and(|s| s.vni.is_some()))
        })
        .await;
        let all = networks.list(&ListParams::default()).await.expect("it answers");
        let ranges: BTreeSet<&str> = all.iter().map(|n| n.spec.cidr.as_str()).collect();
        assert_eq!(ranges.len(), namespaces.len(), "no two have the same");
        assert!(ranges.iter().all(|range| range.starts_with("10.") && range.ends_with("/20")), "{ranges:?}");

        // One that is deleted while it is unused is created again, with the same range, for the next VM.
        let before = networks_of(&site, "tenant-0").get("default").await.expect("it is there").spec.cidr;
        for vm in ["a", "b"] {
            let vms: Api<VM> = Api::namespaced(site.client.clone(), "tenant-0");
            vms.delete(vm, &DeleteParams::default()).await.expect("deleted");
        }
        networks_of(&site, "tenant-0").delete("default", &DeleteParams::default()).await.expect("deleted");
        site.until("it is gone", async || {
            networks_of(&site, "tenant-0").get_opt("default").await.expect("it answers").is_none()
        })
        .await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(networks_of(&site, "tenant-0").get_opt("default").await.expect("it answers").is_none());
        let vm = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "c"},
            "spec": {"class": "small", "disks": [{"name": "c", "boot": true}]}});
        let vms: Api<VM> = Api::namespaced(site.client.clone(), "tenant-0");
        vms.create(&PostParams::default(), &serde_json::from_value(vm).expect("a VM"))
            .await
            .expect("created");
        site.until("it is there again", async || {
            networks_of(&site, "tenant-0").get_opt("default").await.expect("it answers").is_some()
        })
        .await;
        let after = networks_of(&site, "tenant-0").get("default").await.expect("it is there").spec.cidr;
        assert_eq!(after, before, "the range follows from the namespace's name");
        site.stop.cancel();
    });
}

fn networks_of(site: &Site, namespace: &str) -> Api<Network> {
    Api::namespaced(site.client.clone(), namespace)
}
