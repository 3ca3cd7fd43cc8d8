//! IPv6 addresses that guests take first where the network's routers give them out: guests send from those only.

use berth_host::HostBridge;
use serde_json::json;

use super::{Site, in_simulated_time, lan};

#[test]
fn a_guest_sends_from_the_addresses_that_its_host_has_learned_only() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
        site.hosts["h1"].change_bridges(&[bridge]);
        let office = |check: &str| {
            lan(&json!({"ipv4": {"allocation": "External", "sourceCheck": "Lease"},
                "ipv6": {"allocation": "External", "sourceCheck": check}}))
        };
        site.apply_in("berth-shared", "Network", "office", office("Learned")).await;
        site.apply("Disk", "web", json!({"image": "debian", "size": "4Gi"})).await;
        let spec = json!({"class": "small", "disks": [{"name": "web", "boot": true}],
            "networkInterfaces": [{"name": "nic0", "network": "office"}]});
        site.apply("VM", "web", spec).await;
        site.runs("web").await;
        let host = site.hosts["h1"].clone();
        let ranges = || {
            let exceptions = host.firewall_now().exceptions;
            exceptions.iter().flat_map(|one| &one.ranges).map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!((host.firewall_now().ports.len(), ranges()), (1, Vec::new()), "link-local only");
        let networks = host.bridged_networks();
        let [network] = &networks[..] else { panic!("{networks:?}") };
        let [guest] = &network.learned[..] else { panic!("{network:?}") };
        assert_eq!(guest.tap, host.firewall_now().ports[0].tap);
        for address in ["2001:db8:7::77", "fd00:7::77"] {
            host.learn(&network.bridge, &guest.mac, address.parse().expect("an address"));
        }
        let learned = ["2001:db8:7::77/128", "fd00:7::77/128"];
        site.until("the guest may send from them", async || ranges() == learned).await;
        site.apply_in("berth-shared", "Network", "office", office("None")).await;
        site.until("without a check it sends from any", async || ranges() == ["::/0"]).await;
        let is_over = async || host.bridged_networks().iter().all(|network| network.learned.is_empty());
        site.until("its host learns nothing", is_over).await;
        site.stop.cancel();
    });
}
