//! The names of a network's VMs: the controllers list them, and the agents of all hosts of the network have them.

use berth_api::VMState;
use berth_host::HostBridge;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Network, Site, VM, in_simulated_time, lan};

/// The names and addresses that a name server has; None without a domain.
type Names = Option<Vec<String>>;

/// Returns the names of a host's one network; None while it has no network.
fn names(site: &Site, host: &str) -> Option<Names> {
    let names = site.hosts[host].networks_now().pop()?.names;
    let text = |record: &berth_host::NameRecord| format!("{}={}", record.name, record.address);
    Some(names.map(|names| names.records.iter().map(text).collect()))
}

async fn have(site: &Site, hosts: &[&str], expected: Option<&[&str]>) {
    let expected: Names = expected.map(|expected| expected.iter().map(|name| (*name).to_owned()).collect());
    site.until(&format!("{hosts:?} have {expected:?}"), async || {
        hosts.iter().all(|host| names(site, host).as_ref() == Some(&expected))
    })
    .await;
}

#[test]
fn the_names_of_all_vms_of_a_network_reach_each_of_its_hosts_and_go_with_the_vms() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.join("h2", "192.0.2.2", 1500).await;
        let plain = json!({"cidr": "10.9.4.0/24"});
        site.apply("Network", "lan", plain.clone()).await;
        for (name, host) in [("one", "h1"), ("two", "h2")] {
            site.vm(name, host, "lan").await;
            site.runs(name).await;
        }
        have(&site, &["h1", "h2"], None).await;
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let status = async || networks.get("lan").await.expect("it answers").status.unwrap_or_default();
        assert!(status().await.names.is_empty());

        let mut named = plain.clone();
        named["dnsDomain"] = json!("app.internal");
        site.apply("Network", "lan", named).await;
        have(&site, &["h1", "h2"], Some(&["one=10.9.4.2", "two=10.9.4.3"])).await;
        assert_eq!(site.hosts["h1"].networks_now()[0].names.as_ref().expect("names").domain, "app.internal");

        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let stop = Patch::Merge(json!({"spec": {"power": "Stopped"}}));
        vms.patch("two", &PatchParams::default(), &stop).await.expect("accepted");
        site.until("two is stopped", async || {
            let status = vms.get("two").await.expect("it answers").status.unwrap_or_default();
            status.state == Some(VMState::Stopped)
        })
        .await;
        let version = networks.get("lan").await.expect("it answers").metadata.resource_version;
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
        have(&site, &["h1"], Some(&["one=10.9.4.2", "two=10.9.4.3"])).await;
        let after = networks.get("lan").await.expect("it answers").metadata.resource_version;
        assert_eq!(after, version, "nothing is written when nothing happens");

        vms.delete("two", &DeleteParams::default()).await.expect("deleted");
        have(&site, &["h1"], Some(&["one=10.9.4.2"])).await;
        site.apply("Network", "lan", plain).await;
        have(&site, &["h1"], None).await;
        assert!(status().await.names.is_empty());
        site.stop.cancel();
    });
}

#[test]
fn a_domain_of_names_has_two_labels_and_belongs_to_an_overlay() {
    in_simulated_time(async {
        let site = Site::new().await;
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let create = async |spec: Value| {
            let network = json!({"metadata": {"name": "named"}, "spec": spec});
            networks.create(&Default::default(), &serde_json::from_value(network).expect("a Network")).await
        };
        let overlay = |domain: &str| json!({"cidr": "10.9.7.0/24", "dnsDomain": domain});
        let long = format!("{}.internal", "a".repeat(42));
        for (domain, words) in [
            ("internal", "spec.dnsDomain"),
            ("App.internal", "spec.dnsDomain"),
            ("app_.internal", "spec.dnsDomain"),
            ("app.internal.", "spec.dnsDomain"),
            (long.as_str(), "spec.dnsDomain"),
            ("app.local", "must not end with local"),
            ("10.in-addr.arpa", "must not end with local"),
            ("app.7", "must not end with local"),
        ] {
            let refused = create(overlay(domain)).await.expect_err(domain).to_string();
            assert!(refused.contains(words), "{domain}: {refused}");
        }
        let bridged = lan(&json!({"cidr": "192.0.2.0/24", "dnsDomain": "app.internal"}));
        let refused = create(bridged).await.expect_err("a bridge").to_string();
        assert!(refused.contains("dnsDomain of a Network of type Bridge needs ipv4.nameServer"), "{refused}");
        let mut long = overlay("app.internal");
        long["searchDomains"] = json!(["a".repeat(60), "b".repeat(29)]);
        let refused = create(long).await.expect_err("too long").to_string();
        assert!(refused.contains("dnsDomain is the first of the search domains"), "{refused}");
        create(overlay("app.internal")).await.expect("a domain");
        site.stop.cancel();
    });
}

#[test]
fn a_host_answers_for_the_names_of_the_vms_of_a_bridge_and_no_vm_gets_its_address() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "198.51.100.1", 1500).await;
        let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
        site.hosts["h1"].change_bridges(&[bridge]);
        let office = |more: &Value| {
            let mut spec = lan(&json!({"cidr": "192.0.2.0/24", "dnsDomain": "lan.example.org"}));
            spec["ipv4"] = more.clone();
            spec
        };
        let named = json!({"range": "192.0.2.50-192.0.2.59", "nameServer": "192.0.2.50"});
        site.apply_in("berth-shared", "Network", "office", office(&named)).await;
        site.apply("Disk", "web", json!({"image": "debian", "size": "4Gi"})).await;
        let spec = json!({"class": "small", "disks": [{"name": "web", "boot": true}],
            "networkInterfaces": [{"name": "nic0", "network": "office"}]});
        site.apply("VM", "web", spec).await;
        site.runs("web").await;
        let host = site.hosts["h1"].clone();
        let records = || {
            let networks = host.bridged_networks();
            let names = networks.first().and_then(|network| network.names.as_ref());
            let records = names.into_iter().flat_map(|names| &names.names.records);
            records.map(|record| format!("{} {}", record.name, record.address)).collect::<Vec<_>>()
        };
        site.until("the host has the name", async || records() == ["web.default 192.0.2.51"]).await;
        let servers = host.firewall_now().name_servers;
        assert_eq!(
            servers.iter().map(|(_, address)| address.to_string()).collect::<Vec<_>>(),
            ["192.0.2.50"]
        );
        site.stop.cancel();
    });
}
