//! DHCP servers of networks that end by themselves.

use std::time::Duration;

use berth_api::{Host, condition};
use kube::Api;

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
