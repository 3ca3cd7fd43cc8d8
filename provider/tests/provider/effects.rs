//! The effect of each change, attribute by attribute: the pages and the plan agree.

use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;

use crate::stage::{Stage, text_of, value};

/// The effect that a plan announces for a change.
#[derive(Debug, PartialEq, Eq)]
enum Announced {
    Live,
    PowerCycle,
    Reboot,
    /// Has no effect on a VM that has its host.
    Placement,
    Replace,
    Refused,
}

fn vm() -> Json {
    json!({
        "name": "web", "namespace": "default", "class": "small",
        "disks": [{"name": "root", "boot": true}, {"name": "data", "boot": false}],
        "network_interfaces": [{"name": "nic0", "network": "default", "public_ip": "a", "mac_address": "52:54:00:00:00:01", "address": "10.77.0.9"}],
        "placement": {"group": "g", "host": "h", "host_selector": {"a": "b"}},
        "bootstrap": {"ssh_authorized_keys": ["ssh-rsa A"], "hostname": "web", "user_data": "x"},
        "power": "Running", "restart_policy": "Always", "stop": {"mode": "Graceful", "grace_period_seconds": 60},
        "restart_token": "1", "labels": {"a": "b"}, "deletion_protection": false,
    })
}

fn changes_of_a_vm() -> Vec<(&'static str, Json, Announced)> {
    vec![
        ("/name", json!("web2"), Announced::Replace),
        ("/namespace", json!("other"), Announced::Replace),
        ("/class", json!("large"), Announced::PowerCycle),
        ("/disks", json!([{"name": "root", "boot": true}]), Announced::Live),
        ("/disks", json!([{"name": "root"}, {"name": "data", "boot": true}]), Announced::PowerCycle),
        ("/disks", json!([{"name": "other", "boot": true}, {"name": "data"}]), Announced::PowerCycle),
        (
            "/disks",
            json!([{"name": "root"}, {"name": "data"}, {"name": "other", "boot": true}]),
            Announced::PowerCycle,
        ),
        ("/disks", json!([{"name": "data"}, {"name": "root", "boot": true}]), Announced::Live),
        ("/network_interfaces/0/public_ip", json!("b"), Announced::Live),
        ("/network_interfaces/0/network", json!("lan"), Announced::Refused),
        ("/network_interfaces/0/mac_address", json!("52:54:00:00:00:02"), Announced::Refused),
        ("/network_interfaces/0/address", json!("10.77.0.10"), Announced::Refused),
        (
            "/network_interfaces",
            json!([{"name": "nic0", "mac_address": "52:54:00:00:00:01"}, {"name": "nic1"}]),
            Announced::PowerCycle,
        ),
        ("/placement/group", json!("h"), Announced::Replace),
        ("/placement/host", json!("other"), Announced::Refused),
        ("/placement/host", json!("host-a"), Announced::Live),
        ("/placement/host", Json::Null, Announced::Live),
        ("/placement/host_selector", json!({"a": "c"}), Announced::Placement),
        ("/placement/host_selector", json!({}), Announced::Live),
        ("/bootstrap/user_data", json!("y"), Announced::Refused),
        ("/bootstrap/ssh_authorized_keys", json!(["ssh-rsa B"]), Announced::Refused),
        ("/bootstrap/hostname", json!("other"), Announced::Refused),
        ("/power", json!("Stopped"), Announced::Live),
        ("/restart_policy", json!("Never"), Announced::Live),
        ("/stop/grace_period_seconds", json!(5), Announced::Live),
        ("/restart_token", json!("2"), Announced::Reboot),
        ("/restart_token", Json::Null, Announced::Live),
        ("/labels/a", json!("c"), Announced::Live),
        ("/deletion_protection", json!(true), Announced::Live),
    ]
}

fn others() -> Vec<(&'static str, Json, &'static str, Json, Announced)> {
    let source = json!({"url": "https://a/x", "sha256": "0".repeat(64)});
    let image = json!({"name": "i", "namespace": "default", "source": source, "format": "qcow2"});
    let from =
        |source: Json| json!({"name": "i", "namespace": "default", "source": source, "format": "qcow2"});
    let by_sha512 = from(json!({"url": "https://a/x", "sha512": "0".repeat(128)}));
    let by_file = from(json!({"url": "https://a/x", "checksum_url": "https://a/SHA512SUMS"}));
    let disk = json!({"name": "d", "namespace": "default", "size": "2Gi", "image": "i", "pool": "default", "deletion_policy": "Delete"});
    let class = json!({"name": "c", "namespace": "default", "cpus": 1, "memory": "1Gi", "firmware": "UEFI"});
    let ip = json!({"name": "p", "namespace": "default", "pool": "default", "address": "198.18.100.1"});
    let hda = json!({"name": "a", "namespace": "default", "vm": "v", "disk": "d", "force": false});
    let network = json!({"name": "n", "namespace": "default", "cidr": "10.80.0.0/24", "dns": ["10.80.0.1"], "mtu": 1400});
    let pool = json!({"name": "p", "cidrs": ["192.0.2.0/24"], "mode": "local", "use_all_addresses": false});
    let storage = json!({"name": "s", "type": "Local", "trash_retention_seconds": 60});
    let host =
        json!({"name": "h", "cordoned": false, "draining": false, "reserved": {"cpus": 1, "memory": "1Gi"}});
    let group = json!({"name": "g", "namespace": "default", "strategy": "spread", "enforcement": "required"});
    vec![
        ("berth_image", image.clone(), "/source/url", json!("https://b/x"), Announced::Live),
        ("berth_image", image.clone(), "/source/sha256", json!("1".repeat(64)), Announced::Replace),
        ("berth_image", by_sha512, "/source/sha512", json!("1".repeat(128)), Announced::Replace),
        ("berth_image", by_file, "/source/checksum_url", json!("https://b/SHA512SUMS"), Announced::Replace),
        ("berth_image", image, "/format", json!("raw"), Announced::Replace),
        ("berth_disk", disk.clone(), "/size", json!("3Gi"), Announced::Live),
        ("berth_disk", disk.clone(), "/size", json!("1Gi"), Announced::Refused),
        ("berth_disk", disk.clone(), "/image", json!("j"), Announced::Replace),
        ("berth_disk", disk.clone(), "/pool", json!("fast"), Announced::Replace),
        ("berth_disk", disk, "/deletion_policy", json!("Retain"), Announced::Live),
        ("berth_vm_class", class.clone(), "/cpus", json!(2), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/memory", json!("2Gi"), Announced::PowerCycle),
        ("berth_vm_class", class, "/firmware", json!("BIOS"), Announced::PowerCycle),
        ("berth_public_ip", ip.clone(), "/pool", json!("other"), Announced::Replace),
        ("berth_public_ip", ip, "/address", json!("198.18.100.2"), Announced::Replace),
        ("berth_hotswap_disk_attachment", hda.clone(), "/vm", json!("w"), Announced::Replace),
        ("berth_hotswap_disk_attachment", hda.clone(), "/disk", json!("e"), Announced::Replace),
        ("berth_hotswap_disk_attachment", hda, "/force", json!(true), Announced::Live),
        ("berth_network", network.clone(), "/cidr", json!("10.81.0.0/24"), Announced::Replace),
        ("berth_network", network.clone(), "/dns", json!(["10.80.0.2"]), Announced::Live),
        ("berth_network", network, "/mtu", json!(1450), Announced::PowerCycle),
        ("berth_ip_pool", pool.clone(), "/cidrs", json!(["192.0.2.0/25"]), Announced::Live),
        ("berth_ip_pool", pool.clone(), "/mode", json!("l2"), Announced::Replace),
        ("berth_ip_pool", pool, "/use_all_addresses", json!(true), Announced::Live),
        ("berth_storage_pool", storage.clone(), "/type", json!("Other"), Announced::Replace),
        ("berth_storage_pool", storage, "/trash_retention_seconds", json!(0), Announced::Live),
        ("berth_host", host.clone(), "/name", json!("h2"), Announced::Replace),
        ("berth_host", host.clone(), "/cordoned", json!(true), Announced::Live),
        ("berth_host", host.clone(), "/draining", json!(true), Announced::Live),
        ("berth_host", host.clone(), "/reserved/cpus", json!(2), Announced::Live),
        ("berth_host", host, "/reserved/memory", json!("2Gi"), Announced::Live),
        ("berth_placement_group", group, "/enforcement", json!("preferred"), Announced::Live),
    ]
}

#[tokio::test]
async fn the_plan_announces_the_effect_of_each_change() {
    let provider = BerthProvider::default();
    let of_a_vm = changes_of_a_vm().into_iter().map(|(at, to, effect)| ("berth_vm", vm(), at, to, effect));
    for (type_name, config, at, to, expected) in of_a_vm.chain(others()) {
        let stage = Stage::new(&provider, type_name);
        // The state after a create: the plan of the create, without unknown values.
        let mut prior = stage.plan_from(tfplugin6::Value::Null, &config).await.planned.unknown_as_null();
        if type_name == "berth_vm" {
            prior.set("host", "host-a");
        }
        let unchanged = stage.plan_from(prior.clone(), &config).await;
        assert!(
            unchanged.planned == prior && unchanged.diagnostics.is_empty(),
            "{type_name}: {}",
            text_of(&unchanged.diagnostics)
        );
        let mut changed = config.clone();
        *changed.pointer_mut(at).unwrap_or_else(|| panic!("{type_name}{at}")) = to;
        let plan = stage.plan_from(prior.clone(), &changed).await;
        let text = text_of(&plan.diagnostics);
        // An error in a plan would block terraform destroy.
        assert!(!plan.diagnostics.iter().any(tfplugin6::Diagnostic::is_error), "{type_name}{at}: {text}");
        let announced = if text.contains("An apply of this plan fails") {
            Announced::Refused
        } else if text.contains("Does not move the VM") {
            Announced::Placement
        } else if text.contains("The VM will be restarted") {
            Announced::Reboot
        } else if !plan.requires_replace.is_empty() {
            Announced::Replace
        } else if text.contains("power cycle") {
            Announced::PowerCycle
        } else {
            Announced::Live
        };
        assert_eq!(announced, expected, "{type_name}{at}: {text}");
        assert_ne!(plan.planned, prior, "{type_name}{at}: it is a change");
        if announced == Announced::Live {
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
    assert_eq!(text_of(&stage.plan_from(prior, &config).await.diagnostics), "");
}
