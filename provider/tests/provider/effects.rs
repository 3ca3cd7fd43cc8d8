//! What each change does, attribute by attribute: as the pages say, and as the plan says.

use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;

use crate::stage::{Stage, said, value};

/// What a plan may say of a change.
#[derive(Debug, PartialEq, Eq)]
enum Says {
    Live,
    PowerCycle,
    Replace,
    Refused,
}

fn vm() -> Json {
    json!({
        "name": "web", "namespace": "default", "class": "small",
        "disks": [{"name": "root", "boot": true}, {"name": "data", "boot": false}],
        "network_interfaces": [{"name": "nic0", "network": "default", "public_ip": "a", "mac_address": "52:54:00:00:00:01"}],
        "placement": {"group": "g", "host": "h", "host_selector": {"a": "b"}},
        "bootstrap": {"ssh_authorized_keys": ["ssh-rsa A"], "hostname": "web", "user_data": "x"},
        "power": "Running", "restart_policy": "Always", "stop": {"mode": "Graceful", "grace_period_seconds": 60},
        "restart_token": "1", "labels": {"a": "b"},
    })
}

fn changes_of_a_vm() -> Vec<(&'static str, Json, Says)> {
    vec![
        ("/name", json!("web2"), Says::Replace),
        ("/namespace", json!("other"), Says::Replace),
        ("/class", json!("large"), Says::PowerCycle),
        ("/disks", json!([{"name": "root", "boot": true}]), Says::Live),
        ("/disks", json!([{"name": "root"}, {"name": "data", "boot": true}]), Says::PowerCycle),
        ("/network_interfaces/0/public_ip", json!("b"), Says::Live),
        ("/network_interfaces/0/network", json!("lan"), Says::Refused),
        ("/network_interfaces/0/mac_address", json!("52:54:00:00:00:02"), Says::Refused),
        (
            "/network_interfaces",
            json!([{"name": "nic0", "mac_address": "52:54:00:00:00:01"}, {"name": "nic1"}]),
            Says::PowerCycle,
        ),
        ("/placement/group", json!("h"), Says::Replace),
        ("/placement/host", json!("other"), Says::PowerCycle),
        ("/placement/host_selector", json!({"a": "c"}), Says::PowerCycle),
        ("/bootstrap/user_data", json!("y"), Says::Refused),
        ("/bootstrap/ssh_authorized_keys", json!(["ssh-rsa B"]), Says::Refused),
        ("/bootstrap/hostname", json!("other"), Says::Refused),
        ("/power", json!("Stopped"), Says::Live),
        ("/restart_policy", json!("Never"), Says::Live),
        ("/stop/grace_period_seconds", json!(5), Says::Live),
        ("/restart_token", json!("2"), Says::Live),
        ("/labels/a", json!("c"), Says::Live),
    ]
}

fn others() -> Vec<(&'static str, Json, &'static str, Json, Says)> {
    let source = json!({"url": "https://a/x", "sha256": "0".repeat(64)});
    let image = json!({"name": "i", "namespace": "default", "source": source, "format": "qcow2"});
    let disk = json!({"name": "d", "namespace": "default", "size": "2Gi", "image": "i", "pool": "default", "deletion_policy": "Delete"});
    let class = json!({"name": "c", "namespace": "default", "cpus": 1, "memory": "1Gi", "firmware": "UEFI"});
    let ip = json!({"name": "p", "namespace": "default", "pool": "default", "address": "198.18.100.1"});
    let hda = json!({"name": "a", "namespace": "default", "vm": "v", "disk": "d", "force": false});
    let group = json!({"name": "g", "namespace": "default", "strategy": "spread", "enforcement": "required"});
    vec![
        ("berth_image", image.clone(), "/source/url", json!("https://b/x"), Says::Live),
        ("berth_image", image.clone(), "/source/sha256", json!("1".repeat(64)), Says::Replace),
        ("berth_image", image, "/format", json!("raw"), Says::Replace),
        ("berth_disk", disk.clone(), "/size", json!("3Gi"), Says::Live),
        ("berth_disk", disk.clone(), "/size", json!("1Gi"), Says::Refused),
        ("berth_disk", disk.clone(), "/image", json!("j"), Says::Replace),
        ("berth_disk", disk.clone(), "/pool", json!("fast"), Says::Replace),
        ("berth_disk", disk, "/deletion_policy", json!("Retain"), Says::Live),
        ("berth_vm_class", class.clone(), "/cpus", json!(2), Says::PowerCycle),
        ("berth_vm_class", class.clone(), "/memory", json!("2Gi"), Says::PowerCycle),
        ("berth_vm_class", class, "/firmware", json!("BIOS"), Says::PowerCycle),
        ("berth_public_ip", ip.clone(), "/pool", json!("other"), Says::Replace),
        ("berth_public_ip", ip, "/address", json!("198.18.100.2"), Says::Replace),
        ("berth_hotswap_disk_attachment", hda.clone(), "/vm", json!("w"), Says::Replace),
        ("berth_hotswap_disk_attachment", hda.clone(), "/disk", json!("e"), Says::Replace),
        ("berth_hotswap_disk_attachment", hda, "/force", json!(true), Says::Live),
        ("berth_placement_group", group, "/enforcement", json!("preferred"), Says::Live),
    ]
}

#[tokio::test]
async fn the_plan_says_of_each_change_what_it_does() {
    let provider = BerthProvider::default();
    let of_a_vm = changes_of_a_vm().into_iter().map(|(at, to, says)| ("berth_vm", vm(), at, to, says));
    for (type_name, config, at, to, expected) in of_a_vm.chain(others()) {
        let stage = Stage::new(&provider, type_name);
        // The state after a create: the plan of the create, with nothing left unknown.
        let prior = stage.plan_from(tfplugin6::Value::Null, &config).await.planned.unknown_as_null();
        let unchanged = stage.plan_from(prior.clone(), &config).await;
        assert!(
            unchanged.planned == prior && unchanged.diagnostics.is_empty(),
            "{type_name}: {}",
            said(&unchanged.diagnostics)
        );
        let mut changed = config.clone();
        *changed.pointer_mut(at).unwrap_or_else(|| panic!("{type_name}{at}")) = to;
        let plan = stage.plan_from(prior.clone(), &changed).await;
        let text = said(&plan.diagnostics);
        let says = if plan.diagnostics.iter().any(tfplugin6::Diagnostic::is_error) {
            Says::Refused
        } else if !plan.requires_replace.is_empty() {
            Says::Replace
        } else if text.contains("power cycle") {
            Says::PowerCycle
        } else {
            Says::Live
        };
        assert_eq!(says, expected, "{type_name}{at}: {text}");
        assert_ne!(plan.planned, prior, "{type_name}{at}: it is a change");
        if says == Says::Live {
            assert!(text.is_empty(), "{type_name}{at}: {text}");
        }
    }
}

#[tokio::test]
async fn a_stopped_vm_is_not_warned_of_power_cycles() {
    let stage = Stage::new(&BerthProvider::default(), "berth_vm");
    let mut config = vm();
    config["power"] = "Stopped".into();
    let prior = stage.plan_from(value(&Json::Null), &config).await.planned.unknown_as_null();
    config["class"] = "large".into();
    assert_eq!(said(&stage.plan_from(prior, &config).await.diagnostics), "");
}
