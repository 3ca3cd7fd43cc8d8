//! Networks that cannot be made or removed, and DHCP servers that end by themselves.

use std::time::Duration;

use berth_api::{Host, Network, VM, condition};
use kube::{Api, api::DeleteParams};
use serde_json::json;

use super::{Site, in_simulated_time};

#[test]
fn a_dhcp_server_that_ends_is_started_again_and_one_that_goes_on_to_end_is_named_by_its_host() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.vm("one", "h1", "default").await;
        site.runs("one").await;
        let host = site.hosts["h1"].clone();
        let bridge = host.networks_now()[0].bridge.clone();
        assert!(host.has_network_server(&bridge));
        let hosts: Api<Host> = Api::all(site.client.clone());
        let served = async || {
            let status = hosts.get("h1").await.expect("it answers").status.unwrap_or_default();
            condition::find(&status.conditions, "NetworksServed").cloned()
        };
        for time in 0..3 {
            assert!(served().await.is_none(), "{time}");
            host.end_network_server(&bridge);
            site.until("it is started again", async || host.has_network_server(&bridge)).await;
        }
        site.until("the host names the network", async || {
            served().await.is_some_and(|c| c.status == "False" && c.message.contains("berth-shared/default"))
        })
        .await;
        tokio::time::sleep(Duration::from_secs(660)).await;
        site.until("it has run for long", async || served().await.is_none()).await;
        site.stop.cancel();
    });
}

#[test]
fn a_network_whose_server_cannot_start_is_named_by_its_host_and_the_others_are_made() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        for (name, cidr) in [("a", "10.81.0.0/24"), ("b", "10.82.0.0/24"), ("c", "10.83.0.0/24")] {
            site.apply("Network", name, json!({"cidr": cidr})).await;
        }
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let bridge = async |name: &str| networks.get(name).await.expect("it answers").bridge_name();
        site.until("they are accepted", async || {
            bridge("a").await.is_some() && bridge("b").await.is_some() && bridge("c").await.is_some()
        })
        .await;
        let host = site.hosts["h1"].clone();
        let failing = bridge("b").await.expect("it is accepted");
        host.refuse_network_server(&failing, true);
        for name in ["a", "b", "c"] {
            site.vm(name, "h1", name).await;
        }
        site.runs("a").await;
        site.runs("c").await;
        for name in ["a", "c"] {
            assert!(host.has_network_server(&bridge(name).await.expect("it is accepted")), "{name}");
        }
        let hosts: Api<Host> = Api::all(site.client.clone());
        let served = async || {
            let status = hosts.get("h1").await.expect("it answers").status.unwrap_or_default();
            condition::find(&status.conditions, "NetworksServed").cloned()
        };
        site.until("the host names the network with the cause", async || {
            let words = ["Network default/b is not served", "Address already in use"];
            served().await.is_some_and(|c| {
                c.status == "False"
                    && words.iter().all(|words| c.message.contains(words))
                    && !c.message.contains("default/c")
            })
        })
        .await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        site.until("its VM waits with the cause", async || {
            let status = vms.get("b").await.expect("it answers").status.unwrap_or_default();
            condition::find(&status.conditions, "Ready")
                .is_some_and(|c| c.message.contains("Network default/b is not served on this host"))
        })
        .await;
        host.refuse_network_server(&failing, false);
        site.runs("b").await;
        site.until("the host reports that", async || served().await.is_none()).await;
        site.stop.cancel();
    });
}

/// Returns a site of one host with two Networks, and the bridges of these.
async fn with_two_networks() -> (Site, [String; 2]) {
    let mut site = Site::new().await;
    site.join("h1", "192.0.2.1", 1500).await;
    for (name, cidr) in [("a", "10.81.0.0/24"), ("b", "10.82.0.0/24")] {
        site.apply("Network", name, json!({"cidr": cidr})).await;
    }
    let networks: Api<Network> = Api::default_namespaced(site.client.clone());
    let bridge = async |name: &str| networks.get(name).await.expect("it answers").bridge_name();
    site.until("they are accepted", async || bridge("a").await.is_some() && bridge("b").await.is_some())
        .await;
    let bridges = [bridge("a").await.expect("it is accepted"), bridge("b").await.expect("it is accepted")];
    (site, bridges)
}

#[test]
fn a_network_whose_links_cannot_be_changed_holds_back_no_rule_of_another_one() {
    in_simulated_time(async {
        let (site, [bridge_a, bridge_b]) = with_two_networks().await;
        let host = site.hosts["h1"].clone();
        site.vm("first", "h1", "a").await;
        site.runs("first").await;
        host.refuse_network_links(&bridge_a, true);
        site.vm("second", "h1", "a").await;
        site.vm("third", "h1", "b").await;
        site.runs("third").await;
        let made: Vec<String> = host.firewall_now().nat.into_iter().map(|nat| nat.bridge).collect();
        assert!(made.contains(&bridge_a) && made.contains(&bridge_b), "{made:?}");
        host.refuse_network_links(&bridge_a, false);
        site.runs("second").await;
        site.stop.cancel();
    });
}

#[test]
fn a_network_that_cannot_be_removed_holds_back_no_other_one_and_is_removed_later() {
    in_simulated_time(async {
        let (site, [left, _]) = with_two_networks().await;
        let host = site.hosts["h1"].clone();
        site.vm("first", "h1", "a").await;
        site.runs("first").await;
        host.refuse_network_removal(&left, true);
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        vms.delete("first", &DeleteParams::default()).await.expect("deleted");
        site.until("its VM is gone", async || vms.get_opt("first").await.expect("it answers").is_none())
            .await;
        site.vm("second", "h1", "b").await;
        site.runs("second").await;
        assert!(host.leftovers().bridges.contains(&left));
        let rules_of_it = || host.firewall_now().nat.into_iter().filter(|nat| nat.bridge == left).count();
        assert_eq!(rules_of_it(), 2, "no tunnel that it may still have lets packets in");
        host.refuse_network_removal(&left, false);
        site.until("it is removed", async || !host.leftovers().bridges.contains(&left)).await;
        site.until("its rules are", async || rules_of_it() == 0).await;
        site.stop.cancel();
    });
}
