//! The conditions of networks, pools, public addresses, hosts and VMs follow what is there, also if another program changes it.

use std::time::Duration;

use berth_api::{Host, IPPool, Network, PublicIP, VM, condition};
use berth_host::HostBridge;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Site, in_simulated_time, lan};

/// The time within which everything is looked at once more without an event.
const PASS: Duration = Duration::from_secs(300);

impl Site {
    async fn apply_pool(&self, name: &str, spec: Value) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "IPPool", "metadata": {"name": name}, "spec": spec});
        let pools: Api<IPPool> = Api::all(self.client.clone());
        pools.patch(name, &PatchParams::apply("user"), &Patch::Apply(&object)).await.expect("a pool");
    }

    async fn of_host(&self, name: &str, kind: &str) -> Option<Condition> {
        let hosts: Api<Host> = Api::all(self.client.clone());
        let status = hosts.get(name).await.expect("it answers").status.unwrap_or_default();
        condition::find(&status.conditions, kind).cloned()
    }

    async fn of_vm(&self, name: &str, kind: &str) -> Option<Condition> {
        let vms: Api<VM> = Api::default_namespaced(self.client.clone());
        let status = vms.get(name).await.expect("it answers").status.unwrap_or_default();
        condition::find(&status.conditions, kind).cloned()
    }

    async fn of_public_ip(&self, name: &str, kind: &str) -> Option<Condition> {
        let ips: Api<PublicIP> = Api::default_namespaced(self.client.clone());
        let status = ips.get(name).await.expect("it answers").status.unwrap_or_default();
        condition::find(&status.conditions, kind).cloned()
    }

    async fn is_ready(&self, vm: &str) -> bool {
        self.of_vm(vm, "Ready").await.is_some_and(|ready| ready.status == "True")
    }

    /// A VM on `h1` with the public address `web` of a pool.
    async fn public_vm(&self, pool: &str) {
        self.apply("PublicIP", "web", json!({"pool": pool})).await;
        self.apply("Disk", "web", json!({"image": "debian", "size": "4Gi"})).await;
        let spec = json!({"class": "small", "placement": {"host": "h1"}, "disks": [{"name": "web", "boot": true}],
            "networkInterfaces": [{"name": "nic0", "publicIP": "web"}]});
        self.apply("VM", "web", spec).await;
        self.runs("web").await;
    }
}

#[test]
fn a_bridge_that_another_program_removed_is_made_again_with_the_taps_of_running_guests() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.vm("one", "h1", "default").await;
        site.runs("one").await;
        site.until("it is ready", async || site.is_ready("one").await).await;
        let host = site.hosts["h1"].clone();
        let bridge = host.networks_now()[0].bridge.clone();
        let (taps, launches) = (host.taps_on(&bridge), host.hypervisor().launches());
        assert_eq!(taps.len(), 1);
        host.lose_network(&bridge);
        assert!(host.taps_on(&bridge).is_empty());
        tokio::time::sleep(PASS).await;
        site.until("the bridge is there, with the tap", async || {
            host.networks_now().iter().any(|network| network.bridge == bridge)
                && host.taps_on(&bridge) == taps
        })
        .await;
        site.until("it is ready again", async || site.is_ready("one").await).await;
        assert_eq!(host.hypervisor().launches(), launches, "the guest noticed nothing");
        assert_eq!(host.violations(), Vec::<String>::new());
        site.stop.cancel();
    });
}

#[test]
fn a_tap_is_put_on_its_bridge_again_also_while_the_dhcp_server_there_cannot_start() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.vm("one", "h1", "default").await;
        site.runs("one").await;
        site.until("it is ready", async || site.is_ready("one").await).await;
        let host = site.hosts["h1"].clone();
        let bridge = host.networks_now()[0].bridge.clone();
        let taps = host.taps_on(&bridge);
        host.refuse_network_server(&bridge, true);
        host.lose_network(&bridge);
        tokio::time::sleep(PASS).await;
        site.until("the tap is on its bridge", async || host.taps_on(&bridge) == taps).await;
        assert!(!host.has_network_server(&bridge));
        site.until("the guest is ready again", async || site.is_ready("one").await).await;
        host.refuse_network_server(&bridge, false);
        site.until("the server runs", async || host.has_network_server(&bridge)).await;
        assert_eq!(host.violations(), Vec::<String>::new());
        site.stop.cancel();
    });
}

#[test]
fn rules_that_another_program_removed_are_in_force_again_and_the_vm_stays_ready() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.public_vm("default").await;
        site.until("it is ready", async || site.is_ready("web").await).await;
        let host = site.hosts["h1"].clone();
        let rules = host.firewall_now();
        assert_eq!(rules.forwards.len(), 1);
        host.lose_firewall();
        site.until("the rules are there again", async || host.firewall_now() == rules).await;
        assert!(site.is_ready("web").await);
        site.stop.cancel();
    });
}

#[test]
fn a_host_whose_bridge_is_gone_says_so_until_the_bridge_is_back() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        let bridge = HostBridge { name: "vmbr0".into(), mtu: 1500, up: true, filters_vlans: false };
        site.hosts["h1"].change_bridges(std::slice::from_ref(&bridge));
        site.apply_in("berth-shared", "Network", "office", lan(&json!({"ipv4": {"allocation": "External"}})))
            .await;
        site.vm("one", "h1", "office").await;
        site.runs("one").await;
        let connected = async || site.of_host("h1", "NetworksConnected").await;
        assert_eq!(connected().await, None);
        site.hosts["h1"].change_bridges(&[]);
        site.until("the host names the bridge", async || {
            connected().await.is_some_and(|c| c.status == "False" && c.message.contains("bridge vmbr0"))
        })
        .await;
        site.hosts["h1"].change_bridges(&[bridge]);
        site.until("it is connected again", async || connected().await.is_none()).await;
        site.stop.cancel();
    });
}

#[test]
fn a_public_address_that_its_host_takes_itself_leads_nowhere_until_the_host_gives_it_up() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.public_vm("default").await;
        site.until("it is ready", async || site.is_ready("web").await).await;
        let host = site.hosts["h1"].clone();
        let forwards = host.firewall_now().forwards;
        let public = forwards[0].public;
        host.change_uplink(|uplink| {
            uplink.own.insert(public);
        });
        tokio::time::sleep(PASS).await;
        site.until("the host and the VM say so", async || {
            let at_host = site.of_host("h1", "PublicAddresses").await;
            let of_vm = site.of_vm("web", "Ready").await;
            at_host.is_some_and(|c| c.status == "False" && c.reason == "HostAddress")
                && of_vm.is_some_and(|c| c.status == "False" && c.reason == "WaitingForPublicIP")
        })
        .await;
        assert!(host.firewall_now().forwards.is_empty());
        host.change_uplink(|uplink| uplink.own.clear());
        site.until("it leads to the VM again", async || {
            host.firewall_now().forwards == forwards && site.is_ready("web").await
        })
        .await;
        site.until("the host says no more", async || site.of_host("h1", "PublicAddresses").await.is_none())
            .await;
        site.stop.cancel();
    });
}

#[test]
fn a_public_address_that_another_machine_answers_for_has_a_condition_until_that_machine_is_gone() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.apply_pool("segment", json!({"cidrs": ["192.0.2.128/29"], "mode": "l2"})).await;
        let host = site.hosts["h1"].clone();
        let addresses = (128..136).map(|last| std::net::Ipv4Addr::new(192, 0, 2, last));
        let occupy = |mac: Option<&str>| {
            addresses.clone().for_each(|address| host.occupy(address.into(), mac));
        };
        occupy(Some("02:00:00:00:00:09"));
        site.public_vm("segment").await;
        let conflict = async || site.of_public_ip("web", "AddressConflict").await;
        site.until("the address is another machine's", async || {
            conflict().await.is_some_and(|c| c.status == "True" && c.message.contains("02:00:00:00:00:09"))
        })
        .await;
        assert!(host.firewall_now().forwards.is_empty() && !site.is_ready("web").await);
        occupy(None);
        tokio::time::sleep(PASS).await;
        site.until("it leads to the VM", async || {
            conflict().await.is_none()
                && host.firewall_now().forwards.len() == 1
                && site.is_ready("web").await
        })
        .await;
        site.stop.cancel();
    });
}

#[test]
fn a_pool_names_the_addresses_of_hosts_in_its_ranges_as_long_as_the_hosts_have_them() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.apply_pool("six", json!({"cidrs": ["2001:db8:7::/120"]})).await;
        let pools: Api<IPPool> = Api::all(site.client.clone());
        let seen = async || {
            let status = pools.get("six").await.expect("it answers").status.unwrap_or_default();
            let held = condition::find(&status.conditions, "HostAddresses").map(|c| c.message.clone());
            (status.free, held)
        };
        site.until("all its addresses are free", async || seen().await.0 > 0).await;
        let (free, held) = seen().await;
        assert_eq!(held, None);
        let address = "2001:db8:7::5";
        let own = vec![address.parse().expect("an address")];
        site.hosts["h1"].change_facts(|facts| facts.ipv6_addresses = own);
        site.until("the pool names it", async || {
            let (left, held) = seen().await;
            left == free - 1 && held.is_some_and(|text| text.contains(&format!("{address} of host h1")))
        })
        .await;
        site.hosts["h1"].change_facts(|facts| facts.ipv6_addresses = Vec::new());
        site.until("it is free again", async || seen().await == (free, None)).await;
        site.stop.cancel();
    });
}

#[test]
fn a_network_says_while_its_mtu_does_not_fit_between_its_hosts() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.join("h2", "192.0.2.2", 1500).await;
        site.apply("Network", "wide", json!({"cidr": "10.9.7.0/24", "mtu": 1450})).await;
        for (name, host) in [("one", "h1"), ("two", "h2")] {
            site.vm(name, host, "wide").await;
            site.runs(name).await;
        }
        let networks: Api<Network> = Api::default_namespaced(site.client.clone());
        let seen = async || {
            let status = networks.get("wide").await.expect("it answers").status.unwrap_or_default();
            let fits = condition::find(&status.conditions, "MTUFits").map(|c| c.status.clone());
            (status.mtu, fits)
        };
        site.until("it fits", async || seen().await == (Some(1450), None)).await;
        site.hosts["h2"].change_facts(|facts| facts.mtu = Some(1400));
        let too_large = (Some(1350), Some("False".to_owned()));
        site.until("it does not fit any more", async || seen().await == too_large).await;
        site.hosts["h2"].change_facts(|facts| facts.mtu = Some(1500));
        site.until("it fits again", async || seen().await == (Some(1450), None)).await;
        site.stop.cancel();
    });
}
