//! Network interfaces of a running VM: added, removed, and their links.

use std::time::Duration;

use berth_api::{Disk, SecurityGroup, VM};
use berth_qemu::fake::NicView;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::fixture::{Fixture, INSTANCE, disk_bound, is_ready, vm_bound, vm_reason};

const SECOND: &str = "52:54:00:00:00:09";

async fn running() -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({"networkInterfaces": [{"name": "nic0"}]})).await;
    fixture.running_vm().await;
    fixture
}

/// Declares these interfaces; the second one is given an address, as by the controllers.
async fn declare(fixture: &Fixture, interfaces: Value) {
    let mut given = vm_bound(INSTANCE, 2)["interfaces"].clone();
    if interfaces.as_array().is_some_and(|all| all.len() > 1) {
        let network = given[0]["network"].clone();
        let second =
            json!({"name": "nic1", "network": network, "macAddress": SECOND, "address": "10.77.0.9"});
        given.as_array_mut().expect("a list").push(second);
    }
    fixture.change::<VM>("web", json!({"networkInterfaces": interfaces})).await;
    if given.as_array().is_some_and(|all| all.len() > 1) {
        let patch = Patch::Merge(json!({"status": {"interfaces": given}}));
        fixture.api::<VM>().patch_status("web", &PatchParams::default(), &patch).await.expect("given");
    }
}

fn cards(fixture: &Fixture) -> Vec<NicView> {
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert_eq!(view.nics.len(), view.taps.len(), "a tap without a card, or a card without a tap");
    view.nics.into_values().collect()
}

fn pid(fixture: &Fixture) -> i32 {
    fixture.system.hypervisor().view(INSTANCE).expect("it runs").identity.pid
}

async fn wait_for_cards(fixture: &Fixture, count: usize) {
    fixture.until::<VM>("web", |vm| is_ready(vm, "Running") && cards(fixture).len() == count).await;
}

#[tokio::test(start_paused = true)]
async fn a_card_that_the_guest_keeps_keeps_its_tap_and_address_until_it_is_released() {
    let fixture = running().await;
    let process = pid(&fixture);
    declare(&fixture, json!([{"name": "nic0"}, {"name": "nic1"}])).await;
    wait_for_cards(&fixture, 2).await;
    assert_eq!(cards(&fixture)[1].mac, SECOND);
    fixture.system.hypervisor().set_behaviour(INSTANCE, |behaviour| behaviour.keeps.push("nic1".into()));
    declare(&fixture, json!([{"name": "nic0"}])).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "Detaching").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let vm = fixture.until::<VM>("web", |vm| vm_reason(vm) == "Detaching").await;
    assert_eq!(vm.status.map(|status| status.interfaces.len()), Some(2), "its address is in use");
    assert_eq!(fixture.system.taps_now().len(), 2);
    fixture.system.hypervisor().guest_releases(INSTANCE, "nic1");
    wait_for_cards(&fixture, 1).await;
    let vm = fixture.running_vm().await;
    assert_eq!(vm.status.map(|status| status.interfaces.len()), Some(1), "its address is free");
    assert_eq!(fixture.system.taps_now().len(), 1);
    assert_eq!(pid(&fixture), process, "it is the same QEMU all along");
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_restarted_finds_a_plugged_card_and_sets_its_link_as_declared() {
    let fixture = running().await;
    declare(&fixture, json!([{"name": "nic0"}, {"name": "nic1", "link": "Down"}])).await;
    wait_for_cards(&fixture, 2).await;
    fixture.until::<VM>("web", |_| !cards(&fixture)[1].is_up).await;
    fixture.crash_agent().await;
    declare(&fixture, json!([{"name": "nic0"}, {"name": "nic1"}])).await;
    fixture.start_agent();
    fixture.until::<VM>("web", |vm| is_ready(vm, "Running") && cards(&fixture)[1].is_up).await;
    assert!(cards(&fixture).iter().all(|card| card.is_up));
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_card_whose_tap_was_removed_from_the_host_gets_another_one_and_people_see_why() {
    let fixture = running().await;
    fixture.assert_quiet().await;
    let (process, before) = (pid(&fixture), cards(&fixture));
    let taps = fixture.system.taps_now();
    fixture.system.lose_tap(&taps[0]);
    for _ in 0..600 {
        if fixture.system.taps_now() == taps {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(fixture.system.taps_now(), taps, "the look every five minutes finds it");
    wait_for_cards(&fixture, 1).await;
    assert_eq!((pid(&fixture), cards(&fixture)[0].mac.clone()), (process, before[0].mac.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let events: kube::Api<Event> = kube::Api::namespaced(fixture.client.clone(), "ns");
    let events = events.list(&ListParams::default()).await.expect("listed").items;
    assert_eq!(events.iter().filter(|event| event.reason.as_deref() == Some("TapMissing")).count(), 1);
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn changed_rules_of_a_security_group_are_in_force_without_a_pass_over_the_networks() {
    let fixture = Fixture::start().await;
    fixture.system.expect_filters();
    fixture.furnish().await;
    let rule = |name: &str| json!({"ingress": [{"name": name, "cidrs": ["192.0.2.0/24"]}]});
    fixture.make::<SecurityGroup>("front", rule("before"), None).await;
    fixture.make_vm(json!({"networkInterfaces": [{"name": "nic0", "securityGroups": ["front"]}]})).await;
    fixture.running_vm().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let made = |call: &str| fixture.system.calls().get(call).copied().unwrap_or_default();
    let (passes, writes) = (made("networks"), made("apply_firewall"));
    let rules =
        || fixture.system.filters().groups.iter().map(|group| group.ingress.len()).collect::<Vec<_>>();
    assert_eq!(rules(), [1]);
    let before = fixture.system.firewall_now();
    let two = json!({"ingress": [rule("before")["ingress"][0], rule("more")["ingress"][0]]});
    fixture.change::<SecurityGroup>("front", two).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(rules(), [2]);
    assert_eq!((made("networks"), made("apply_firewall")), (passes, writes + 1));
    let now = fixture.system.firewall_now();
    assert_eq!(
        (&now.nat, &now.ports, &now.filters.ports),
        (&before.nat, &before.ports, &before.filters.ports)
    );
    // Without the group nothing passes.
    fixture.delete::<SecurityGroup>("front").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((rules(), &fixture.system.filters().ports), (Vec::new(), &before.filters.ports));
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_waits_has_its_rules_and_its_start_changes_none() {
    let fixture = running().await;
    let spec = json!({"class": "small", "networkInterfaces": [{"name": "nic0"}],
        "disks": [{"name": "late", "boot": true}]});
    fixture.make::<VM>("second", spec, Some(vm_bound("i-ba9876543210", 3))).await;
    fixture.until::<VM>("second", |vm| vm_reason(vm) == "WaitingForDisk").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = fixture.system.firewall_now();
    let taps: Vec<&str> = before.ports.iter().map(|port| port.tap.as_str()).collect();
    assert_eq!(taps, ["btt01234567n0", "bttba987654n0"]);
    assert_eq!(fixture.system.taps_now().len(), 1, "its tap is not there yet");
    fixture.make::<Disk>("late", json!({"size": "1Gi"}), Some(disk_bound("v-00000000000000b1"))).await;
    fixture.until::<VM>("second", |vm| is_ready(vm, "Running")).await;
    assert_eq!((fixture.system.taps_now().len(), fixture.system.firewall_now()), (2, before));
    fixture.delete::<VM>("second").await;
    fixture.until_gone::<VM>("second").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.system.firewall_now().ports.len(), 1);
    assert_eq!(fixture.system.violations(), Vec::<String>::new());
}
