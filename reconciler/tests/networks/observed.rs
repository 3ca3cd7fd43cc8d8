//! The addresses that guests use where others than berth give them out.

use berth_host::HostBridge;
use kube::Api;
use serde_json::json;

use super::{Site, VM, in_simulated_time, lan};

#[test]
fn the_status_has_the_addresses_that_a_guest_uses_where_others_give_them_out_until_it_stops() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
        site.hosts["h1"].change_bridges(&[bridge]);
        let external = json!({"allocation": "External"});
        let spec = lan(&json!({"ipv4": external, "ipv6": external}));
        site.apply_in("berth-shared", "Network", "office", spec).await;
        site.apply("Disk", "web", json!({"image": "debian", "size": "4Gi"})).await;
        let vm = |power: &str| {
            json!({"class": "small", "disks": [{"name": "web", "boot": true}], "power": power,
                "networkInterfaces": [{"name": "nic0", "network": "office"}]})
        };
        site.apply("VM", "web", vm("Running")).await;
        site.runs("web").await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let seen = async || {
            let status = vms.get("web").await.expect("it answers").status.unwrap_or_default();
            let of_each = status.observed_addresses.into_iter();
            of_each.map(|one| format!("{} {}", one.name, one.addresses.join(" "))).collect::<Vec<_>>()
        };
        assert_eq!(seen().await, [""; 0]);
        let observed = site.hosts["h1"].firewall_now().observed;
        let [port] = &observed[..] else { panic!("{observed:?}") };
        assert!(port.ipv4 && port.ipv6);
        for address in ["2001:db8:7::77", "192.0.2.77"] {
            site.hosts["h1"].send_from(&port.tap, address.parse().expect("an address"));
        }
        site.until("the status has them", async || seen().await == ["nic0 192.0.2.77 2001:db8:7::77"]).await;
        site.apply("VM", "web", vm("Stopped")).await;
        site.until("a guest that does not run uses none", async || seen().await.is_empty()).await;
        site.stop.cancel();
    });
}
