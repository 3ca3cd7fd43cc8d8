//! Network interfaces of a VM and the filters of its security groups.

use berth_host::{BridgeChoice, HostInterface};
use serde_json::json;

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{
    all_is_deleted, prerequisites_are_declared, until_host, web, web_is_declared, web_is_declared_with,
    web_runs,
};

fn rules(names: &[&str]) -> serde_json::Value {
    let rule =
        |name: &&str| json!({"name": name, "protocol": "tcp", "ports": ["22"], "securityGroups": ["web"]});
    json!({"ingress": names.iter().map(rule).collect::<Vec<_>>(), "egress": []})
}

#[test]
fn a_vm_with_a_security_group_never_has_an_open_filter_and_follows_its_rules_and_members() {
    converges(&[Fault::CrashAfter], async |rig| {
        rig.system.expect_filters();
        let mut spec = web("Running");
        spec["networkInterfaces"][0]["securityGroups"] = json!(["web", "more"]);
        web_is_declared_with(rig, "Stopped").await;
        rig.apply("SecurityGroup", "web", rules(&["ssh"])).await;
        rig.apply("SecurityGroup", "more", rules(&["ssh"])).await;
        rig.apply("VM", "web", spec).await;
        web_runs(rig).await;
        let own = || rig.system.filters().ports.first().map(|filtered| filtered.port.address);
        let members = || rig.system.filters().sets.get("default/web").cloned();
        until_host("its own address is in the set of its group", || {
            own().flatten().is_some_and(|address| members() == Some(vec![(address, address)]))
        })
        .await;
        rig.strike_from_here();
        rig.apply("SecurityGroup", "web", rules(&["ssh", "more"])).await;
        let ingress = || {
            let filters = rig.system.filters();
            let group = filters.groups.iter().find(|group| group.name == "default/web");
            group.map(|group| (group.ingress.len(), group.egress.as_ref().map(Vec::len)))
        };
        until_host("the new rule is in force", || ingress() == Some((2, Some(0)))).await;
        rig.delete("SecurityGroup", "more").await;
        spec_without_more(rig).await;
        until_host("the VM has one group left", || {
            rig.system.filters().ports.iter().all(|port| port.groups == ["default/web"])
        })
        .await;
        let before = rig.system.filters();
        rig.system.lose_firewall();
        until_host("removed rules are there again", || rig.system.filters() == before).await;
        rig.must_settle().await;
        all_is_deleted(rig).await;
        rig.delete("SecurityGroup", "web").await;
        rig.until_nothing_is_left().await;
    });
}

async fn spec_without_more(rig: &Rig) {
    let mut spec = web("Running");
    spec["networkInterfaces"][0]["securityGroups"] = json!(["web"]);
    rig.apply("VM", "web", spec).await;
}

#[test]
fn a_network_interface_is_plugged_in_and_out_while_the_vm_runs() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        let with = |interfaces: serde_json::Value| {
            let mut spec = web("Running");
            spec["networkInterfaces"] = interfaces;
            spec
        };
        let cards = || {
            let hypervisor = rig.system.hypervisor();
            let view = hypervisor.instances().first().and_then(|web| hypervisor.view(web));
            let view = view.expect("it runs");
            assert_eq!(view.nics.len(), view.taps.len(), "a tap without a card: {view:?}");
            view.nics.into_values().map(|nic| (nic.mac, nic.is_up)).collect::<Vec<_>>()
        };
        let settled = async |wanted: &[(&str, bool)]| {
            rig.until_vm("web", "has its cards", |vm| {
                let given = vm.status.iter().flat_map(|status| &status.interfaces);
                let mac = |name: &str| given.clone().find(|i| i.name == name).map(|i| i.mac_address.clone());
                let expected: Vec<_> =
                    wanted.iter().filter_map(|(name, up)| Some((mac(name)?, *up))).collect();
                let pending = vm.status.as_ref().is_some_and(|status| !status.pending_power_cycle.is_empty());
                let is_there = expected.len() == wanted.len() && given.clone().count() == wanted.len();
                is_there && rig::is_ready(vm) && !pending && cards() == expected
            })
            .await;
        };
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        let first = json!({"name": "nic0", "publicIP": "web"});
        rig.strike_from_here();
        rig.apply("VM", "web", with(json!([first, {"name": "lan", "link": "Down"}]))).await;
        settled(&[("nic0", true), ("lan", false)]).await;
        rig.apply("VM", "web", with(json!([{"name": "lan"}, first]))).await;
        settled(&[("nic0", true), ("lan", true)]).await;
        rig.apply("VM", "web", with(json!([first]))).await;
        settled(&[("nic0", true)]).await;
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU all along");
        assert_eq!(rig.system.taps_now().len(), 1, "its tap is gone");
        rig.must_settle().await;
    });
}

#[test]
fn a_vm_on_a_vlan_of_an_interface_is_connected_while_it_runs_and_nothing_is_left_of_the_bridge() {
    converges(&[Fault::CrashAfter], async |rig| {
        let eth1 =
            HostInterface { name: "eth1".into(), mtu: 1500, up: true, carrier: true, ..Default::default() };
        rig.system.change_interfaces(&[eth1]);
        rig.system.change_facts(|facts| facts.links.vlans = true);
        rig.apply_shared(
            "Network",
            "lan",
            json!({"type": "Bridge", "bridge": {"interface": "eth1", "vlan": 120},
            "cidr": "192.0.2.0/24", "ipv4": {"range": "192.0.2.50-192.0.2.59"}}),
        )
        .await;
        prerequisites_are_declared(rig).await;
        let mut spec = web("Running");
        spec["networkInterfaces"] = json!([{"name": "lan", "network": "lan"}]);
        rig.strike_from_here();
        rig.apply("VM", "web", spec).await;
        web_runs(rig).await;
        let over = BridgeChoice::Over { interface: "eth1".into(), vlan: Some(120) };
        let parts = rig.system.bridged_networks();
        assert_eq!(parts.iter().map(|part| &part.to).collect::<Vec<_>>(), [&over]);
        rig.must_settle().await;
        rig.delete("VM", "web").await;
        until_host("nothing is connected any more", || rig.system.bridged_networks().is_empty()).await;
    });
}
