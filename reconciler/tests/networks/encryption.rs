//! Networks whose packets are encrypted between hosts.

use std::sync::Arc;

use async_trait::async_trait;
use berth_api::wireguard::address_of;
use berth_api::{Network, VM, condition};
use berth_host::fake::{FaultAction, Faults, NoFaults, When};
use berth_host::{WireguardFacts, WireguardImplementation};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{LIMIT, Site, in_simulated_time};

const KEYS: [&str; 2] =
    ["xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0="];

impl Site {
    /// A host that can encrypt, with this key.
    async fn join_with_key(&mut self, name: &'static str, address: &str, key: &str) {
        self.start_host(name, address, 1500);
        let facts = WireguardFacts {
            public_key: key.to_owned(),
            port: 51_847,
            implementation: WireguardImplementation::Kernel,
        };
        self.hosts[name].change_facts(|host| host.wireguard = Ok(facts));
        let hosts: Api<berth_api::Host> = Api::all(self.client.clone());
        self.until(&format!("{name} reports its key"), async || {
            let host = hosts.get_opt(name).await.expect("it answers");
            let status = host.and_then(|host| host.status).unwrap_or_default();
            status.wireguard.is_some_and(|wireguard| wireguard.public_key.as_deref() == Some(key))
        })
        .await;
    }

    fn peers(&self, host: &str) -> Vec<String> {
        let config = self.hosts[host].wireguard_now();
        config.into_iter().flat_map(|config| config.peers).map(|peer| peer.endpoint.to_string()).collect()
    }
}

#[test]
fn the_hosts_of_an_encrypted_network_are_peers_and_its_tunnels_have_their_addresses_in_wireguard() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join_with_key("h1", "192.0.2.1", KEYS[0]).await;
        site.join_with_key("h2", "192.0.2.2", KEYS[1]).await;
        site.apply("Network", "secret", json!({"cidr": "10.9.6.0/24", "encryption": "WireGuard"})).await;
        for (name, host) in [("one", "h1"), ("two", "h2")] {
            site.vm(name, host, "secret").await;
            site.runs(name).await;
        }
        let inner = KEYS.map(|key| address_of(key).expect("a key").to_string());
        site.tunnelled("h1", &[inner[1].as_str()]).await;
        site.tunnelled("h2", &[inner[0].as_str()]).await;
        assert_eq!(site.tunnels("h1")[0].local.to_string(), inner[0]);
        assert_eq!(site.hosts["h1"].networks_now()[0].mtu, 1370);
        assert_eq!(site.peers("h1"), ["192.0.2.2:51847"]);
        assert_eq!(site.peers("h2"), ["192.0.2.1:51847"]);

        site.hosts["h1"].lose_wireguard();
        site.until("the interface is there again", async || site.peers("h1") == ["192.0.2.2:51847"]).await;

        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        vms.delete("two", &DeleteParams::default()).await.expect("deleted");
        site.until("no host has an interface of WireGuard", async || {
            ["h1", "h2"].iter().all(|host| site.hosts[host].wireguard_now().is_none())
        })
        .await;
        site.stop.cancel();
    });
}

/// A host on which no interface of WireGuard can be made, as if `wireguard-go` ended at its start.
#[derive(Debug)]
struct NoInterface;

#[async_trait]
impl Faults for NoInterface {
    async fn fault(&self, call: &'static str, _: When) -> FaultAction {
        if call == "ensure_wireguard" { FaultAction::Error } else { FaultAction::Continue }
    }
}

#[test]
fn a_host_whose_interface_cannot_be_made_starts_vms_and_makes_it_later() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join_with_key("h1", "192.0.2.1", KEYS[0]).await;
        site.join_with_key("h2", "192.0.2.2", KEYS[1]).await;
        site.hosts["h1"].set_faults(Arc::new(NoInterface));
        site.apply("Network", "secret", json!({"cidr": "10.9.6.0/24", "encryption": "WireGuard"})).await;
        site.apply("Network", "plain", json!({"cidr": "10.9.7.0/24"})).await;
        let vms = [("one", "h1", "secret"), ("two", "h2", "secret"), ("three", "h1", "secret")];
        for (name, host, network) in vms.into_iter().chain([("four", "h1", "plain")]) {
            site.vm(name, host, network).await;
            site.runs(name).await;
        }
        site.until("the other host has it as a peer", async || site.peers("h2") == ["192.0.2.1:51847"]).await;
        assert_eq!(site.peers("h1"), Vec::<String>::new());
        site.hosts["h1"].set_faults(Arc::new(NoFaults));
        // The time between its attempts may have grown to this.
        tokio::time::sleep(LIMIT).await;
        site.until("it is made", async || site.peers("h1") == ["192.0.2.2:51847"]).await;
        site.stop.cancel();
    });
}

#[test]
fn a_vm_on_an_encrypted_network_waits_for_a_host_that_can_encrypt() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.apply("Network", "secret", json!({"cidr": "10.9.6.0/24", "encryption": "WireGuard"})).await;
        site.vm("one", "h1", "secret").await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        site.until("it waits", async || {
            let status = vms.get("one").await.expect("it answers").status.unwrap_or_default();
            let scheduled = condition::find(&status.conditions, "Scheduled");
            scheduled.is_some_and(|found| {
                found.reason == "NotSupported" && found.message.contains("install wireguard-tools")
            })
        })
        .await;
        site.stop.cancel();
    });
}

#[test]
fn encryption_is_that_of_an_overlay_and_cannot_change() {
    in_simulated_time(async {
        let site = Site::new().await;
        site.apply("Network", "plain", json!({"cidr": "10.9.6.0/24"})).await;
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let change = async |spec: Value| {
            let patch = Patch::Merge(json!({"spec": spec}));
            networks.patch("plain", &PatchParams::default(), &patch).await
        };
        let refused = change(json!({"encryption": "WireGuard"})).await.expect_err("fixed").to_string();
        assert!(refused.contains("encryption cannot change"), "{refused}");
        change(json!({"encryption": "None"})).await.expect("the same as before");
        let create = async |spec: Value| {
            let network = json!({"metadata": {"name": "other"}, "spec": spec});
            let network: Network = serde_json::from_value(network).expect("a Network");
            networks.create(&Default::default(), &network).await.expect_err("refused").to_string()
        };
        let bridge = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.9.7.0/24", "encryption": "WireGuard"});
        let refused = create(bridge).await;
        assert!(refused.contains("encryption is for a Network of type Overlay"), "{refused}");
        let refused = create(json!({"ipv6CIDR": "fd62:6572:7468:1::/64"})).await;
        assert!(refused.contains("which hosts use for encrypted packets"), "{refused}");
        site.stop.cancel();
    });
}
