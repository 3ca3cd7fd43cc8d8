//! IPv6 prefixes that networks take from a pool.

use berth_api::{IPPool, Network, PublicIP, VM, condition};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::{Site, in_simulated_time};

#[test]
fn networks_take_their_prefixes_from_a_pool_and_give_them_back_when_they_are_deleted() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let pools: Api<IPPool> = Api::all(site.client.clone());
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let spec = json!({"ipv6": {"pool": "prefixes"}, "ipv6Egress": "Routed"});
        site.apply("Network", "one", spec.clone()).await;
        let ready = async |name: &str| {
            let status = networks.get(name).await.expect("it answers").status.unwrap_or_default();
            condition::find(&status.conditions, "Ready").cloned()
        };
        site.until("the network waits for its pool", async || {
            ready("one").await.is_some_and(|c| c.reason == "WaitingForPool")
        })
        .await;
        let prefixes = |prefixes: serde_json::Value| {
            let spec = serde_json::from_value(json!({"networkPrefixes": prefixes})).expect("a spec");
            IPPool::new("prefixes", spec)
        };
        let refused = pools.create(&Default::default(), &prefixes(json!(["192.0.2.0/24"]))).await;
        assert!(refused.expect_err("of IPv4").to_string().contains("must be an IPv6 range"));
        pools.create(&Default::default(), &prefixes(json!(["2001:db8:100::/63"]))).await.expect("created");
        site.apply("Network", "two", spec.clone()).await;
        let prefix = async |name: &str| {
            networks.get(name).await.expect("it answers").status.unwrap_or_default().ipv6_cidr
        };
        site.until("both have a prefix", async || {
            !prefix("one").await.is_empty() && !prefix("two").await.is_empty()
        })
        .await;
        assert_ne!(prefix("one").await, prefix("two").await);
        site.vm("web", "h1", "one").await;
        site.runs("web").await;
        let given = site.hosts["h1"].networks_now().into_iter().find_map(|network| network.ipv6);
        assert_eq!(given.map(|ipv6| ipv6.prefix.to_string()), Some(prefix("one").await));
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        let status = vms.get("web").await.expect("it answers").status.unwrap_or_default();
        assert!(!status.interfaces[0].ipv6_address.is_empty(), "{status:?}");

        site.apply("Network", "three", spec).await;
        site.until("there is no third prefix", async || {
            ready("three").await.is_some_and(|c| c.reason == "NoFreeAddress")
        })
        .await;
        let second = prefix("two").await;
        networks.delete("two", &DeleteParams::default()).await.expect("deleted");
        site.until("it is given on", async || prefix("three").await == second).await;
        pools.delete("prefixes", &DeleteParams::default()).await.expect("deleted");
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        assert!(pools.get_opt("prefixes").await.expect("it answers").is_some(), "networks use it");
        site.stop.cancel();
    });
}

#[test]
fn a_pool_over_a_network_gives_out_no_address_until_its_range_is_another() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.apply("Network", "lan", json!({"cidr": "10.81.0.0/24"})).await;
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        site.until("the network is accepted", async || {
            let status = networks.get("lan").await.expect("it answers").status;
            status.is_some_and(|status| status.vni.is_some())
        })
        .await;
        let pools: Api<IPPool> = Api::all(site.client.clone());
        let spec = serde_json::from_value(json!({"cidrs": ["10.81.0.64/28"]})).expect("a spec");
        pools.create(&Default::default(), &IPPool::new("over", spec)).await.expect("created");
        let ready = async || {
            let status = pools.get("over").await.expect("it answers").status.unwrap_or_default();
            condition::find(&status.conditions, "Ready").cloned()
        };
        site.until("the pool names the network", async || {
            ready().await.is_some_and(|c| {
                c.status == "False" && c.message.contains("lies over 10.81.0.0/24 of Network default/lan")
            })
        })
        .await;
        site.apply("PublicIP", "web", json!({"pool": "over"})).await;
        let ips: Api<PublicIP> = Api::default_namespaced(site.client.clone());
        let public = async || ips.get("web").await.expect("it answers").status.unwrap_or_default();
        site.until("the address waits for its pool", async || {
            let status = public().await;
            let waits = condition::find(&status.conditions, "Ready");
            waits.is_some_and(|c| c.reason == "WaitingForPool" && !c.message.contains("lan"))
                && status.address.is_none()
        })
        .await;
        let patch = Patch::Merge(json!({"spec": {"cidrs": ["198.18.77.0/28"]}}));
        pools.patch("over", &PatchParams::default(), &patch).await.expect("accepted");
        site.until("an address is given out", async || {
            public().await.address.as_deref() == Some("198.18.77.1")
        })
        .await;
        site.until("the pool is ready", async || ready().await.is_some_and(|c| c.status == "True")).await;
        // The other order, with an older pool.
        site.apply("Network", "late", json!({"cidr": "198.18.77.0/24"})).await;
        site.until("the network is refused", async || {
            let status = networks.get("late").await.expect("it answers").status.unwrap_or_default();
            let stalled = condition::find(&status.conditions, "Stalled");
            stalled.is_some_and(|c| c.message.contains("has public addresses of an IPPool"))
        })
        .await;
        let spec = serde_json::from_value(json!({"cidrs": ["198.18.77.8-198.18.77.20"]})).expect("a spec");
        pools.create(&Default::default(), &IPPool::new("second", spec)).await.expect("created");
        site.until("the younger pool names the older one", async || {
            let status = pools.get("second").await.expect("it answers").status.unwrap_or_default();
            let stalled = condition::find(&status.conditions, "Stalled");
            stalled.is_some_and(|c| c.message.contains("of IPPool over, which is older"))
        })
        .await;
        pools.delete("second", &DeleteParams::default()).await.expect("deleted");
        site.stop.cancel();
    });
}
