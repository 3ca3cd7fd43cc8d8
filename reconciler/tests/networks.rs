//! A network that is on several hosts: the controllers list its hosts, and each host's agent creates its tunnels to
//! the others. Complete agents on hosts in memory, on the embedded control plane, in one runtime with paused time.

mod addresses;
mod behind;
mod bridges;
mod encryption;
mod ipv6;
mod learned;
mod leases;
mod names;
mod observed;
mod prefixes;
mod servers;
#[path = "shared/site.rs"]
mod site;

use std::{collections::BTreeSet, time::Duration};

use berth_api::{Network, VM, condition, host_addresses::HOST_ADDRESSES};
use berth_host::Tunnel;
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

use crate::image;
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
