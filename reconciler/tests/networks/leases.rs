//! Leases of a DHCP server that is not berth's: guests send from them only, and security groups know them.

use berth_api::SecurityGroup;
use berth_host::HostBridge;
use kube::{
    Api,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{Network, Site, VM, in_simulated_time, lan};

fn office(check: &Value) -> Value {
    lan(&json!({"ipv4": {"allocation": "External", "sourceCheck": check}}))
}

#[test]
fn a_source_check_that_does_not_exist_is_refused() {
    in_simulated_time(async {
        let site = Site::new().await;
        let resource = ApiResource::erase::<Network>(&());
        let networks: Api<DynamicObject> =
            Api::namespaced_with(site.client.clone(), "berth-shared", &resource);
        for check in [json!("lease"), json!(""), json!(true), json!(["Lease"])] {
            let mut network = DynamicObject::new("office", &resource);
            network.data = json!({"spec": office(&check)});
            let refused = networks.create(&Default::default(), &network).await;
            let refused = refused.expect_err("there is no such check").to_string();
            assert!(refused.contains("spec.ipv4.sourceCheck"), "{check}: {refused}");
        }
        site.stop.cancel();
    });
}

#[test]
fn a_guest_sends_from_its_lease_only_and_is_a_member_of_its_groups_by_it() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
        site.hosts["h1"].change_bridges(&[bridge]);
        site.apply_in("berth-shared", "Network", "office", office(&json!("Lease"))).await;
        let rule = json!({"name": "friends", "protocol": "tcp", "securityGroups": ["web"]});
        site.apply("SecurityGroup", "web", json!({"ingress": [rule]})).await;
        site.apply("Disk", "web", json!({"image": "debian", "size": "4Gi"})).await;
        let interface = json!({"name": "nic0", "network": "office", "securityGroups": ["web"]});
        let spec = json!({"class": "small", "disks": [{"name": "web", "boot": true}], "networkInterfaces": [interface]});
        site.apply("VM", "web", spec).await;
        site.runs("web").await;
        let host = site.hosts["h1"].clone();
        let sources = || host.firewall_now().ports.iter().map(|port| port.address).collect::<Vec<_>>();
        let firewall = host.firewall_now();
        assert_eq!((sources(), firewall.exceptions.len()), (vec![None], 0), "it may ask for a lease only");
        assert!(firewall.filters.ports.len() == 1 && firewall.filters.ports[0].asks_dhcp, "{firewall:?}");

        let networks = host.bridged_networks();
        let [network] = &networks[..] else { panic!("{networks:?}") };
        assert_eq!(network.leased, [firewall.ports[0].mac.clone()]);
        let address = "192.0.2.77".parse().ok();
        host.lease(&network.bridge, &network.leased[0], address);
        site.until("the guest may send from its lease", async || sources() == [address]).await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        site.until("the status has it", async || {
            let status = vms.get("web").await.expect("it answers").status.unwrap_or_default();
            let leased = status.observed_addresses.into_iter().map(|one| (one.name, one.leased_address));
            leased.eq([("nic0".to_owned(), Some("192.0.2.77".to_owned()))])
        })
        .await;
        let groups: Api<SecurityGroup> = Api::default_namespaced(site.client.clone());
        let members = async || {
            let group = groups.get("web").await.expect("it answers");
            group.status.unwrap_or_default().addresses
        };
        site.until("the group has it", async || members().await == ["192.0.2.77"]).await;

        host.lease(&network.bridge, &network.leased[0], None);
        site.until("the lease has ended", async || {
            sources().iter().all(Option::is_none) && members().await.is_empty()
        })
        .await;
        site.apply_in("berth-shared", "Network", "office", office(&json!("None"))).await;
        site.until("with a group and without a check it sends nothing", async || sources().is_empty()).await;
        site.stop.cancel();
    });
}
