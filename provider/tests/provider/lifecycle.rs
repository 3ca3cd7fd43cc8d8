//! Create, read, update, delete, import: each kind, and the courses its life cycle can take. Hosts and VMs have
//! modules of their own.

mod hosts;
mod vms;

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE me@example\n";

fn web() -> Json {
    json!({
        "name": "web", "class": "small",
        "disks": [{"name": "web-root", "boot": true}],
        "network_interfaces": [{"public_ip": "web"}],
        "placement": {"group": "web"},
        "bootstrap": {"ssh_authorized_keys": [KEY], "user_data": "#cloud-config\npassword: canary-secret\n"},
        "power": "Running", "wait_for": "guest",
        "timeouts": {"create": "20s", "update": null, "delete": null, "read": null},
    })
}

pub(crate) fn with(mut config: Json, changes: Json) -> Json {
    for (name, value) in changes.as_object().expect("an object") {
        config[name] = value.clone();
    }
    config
}

/// One configuration per kind, an update of it, and whether that replaces.
pub(crate) fn stories() -> Vec<(&'static str, &'static str, Json, Json)> {
    let image = |url: &str| json!({"name": "debian-12", "source": {"url": url, "sha256": "0".repeat(64)}});
    vec![
        (
            "berth_vm_class",
            "VMClass",
            json!({"name": "small", "cpus": 1, "memory": "512Mi"}),
            json!({"name": "small", "cpus": 2, "memory": "1Gi", "labels": {"tier": "web"}}),
        ),
        (
            "berth_key_class",
            "KeyClass",
            json!({"name": "default", "secret": {"name": "disk-key"}}),
            json!({"name": "default", "secret": {"name": "disk-key"}, "labels": {"a": "b"}}),
        ),
        ("berth_image", "Image", image("https://a.example/x"), image("https://mirror.example/x")),
        (
            "berth_disk",
            "Disk",
            json!({"name": "web-root", "image": "debian-12", "size": "4Gi"}),
            json!({"name": "web-root", "image": "debian-12", "size": "5Gi", "deletion_policy": "Retain"}),
        ),
        (
            "berth_disk_snapshot",
            "DiskSnapshot",
            json!({"name": "before", "disk": "web-root"}),
            json!({"name": "before", "disk": "web-root", "labels": {"a": "b"}}),
        ),
        (
            "berth_backup_repository",
            "BackupRepository",
            json!({"name": "nas", "folder": "nas", "password_secret_name": "backup-password"}),
            json!({"name": "nas", "folder": "nas", "password_secret_name": "other-password", "labels": {"a": "b"},
                "verification": {"interval_days": 30}}),
        ),
        (
            "berth_backup",
            "Backup",
            json!({"name": "data-1", "repository": "nas", "snapshot": "before"}),
            json!({"name": "data-1", "repository": "nas", "snapshot": "before", "deletion_policy": "Retain"}),
        ),
        (
            "berth_placement_group",
            "PlacementGroup",
            json!({"name": "web", "strategy": "spread"}),
            json!({"name": "web", "enforcement": "preferred"}),
        ),
        (
            "berth_vm_group",
            "VMGroup",
            json!({"name": "app", "boot_order": [{"vms": ["db"]}, {"vms": ["web"], "power_on_delay_seconds": 10}]}),
            json!({"name": "app", "power": "Stopped", "boot_order": [{"vms": ["db", "cache"]}, {"groups": ["front"]}]}),
        ),
        (
            "berth_security_group",
            "SecurityGroup",
            json!({"name": "web", "ingress": [{"protocol": "tcp", "ports": ["443"], "cidrs": ["0.0.0.0/0"]}]}),
            json!({"name": "web", "ingress": [{"protocol": "tcp", "ports": ["80", "443"], "cidrs": ["0.0.0.0/0"]}],
                "egress": []}),
        ),
        ("berth_public_ip", "PublicIP", json!({"name": "web"}), json!({"name": "web", "labels": {"a": "b"}})),
        (
            "berth_snapshot_schedule",
            "SnapshotSchedule",
            json!({"name": "nightly", "schedule": "0 3 * * *", "vms": ["web", "db"], "keep": {"daily": 7}}),
            json!({"name": "nightly", "schedule": "@hourly", "time_zone": "Europe/Stockholm", "vm_selector": {"tier": "web"},
                "keep": {"last": 3, "hourly": 12}, "starting_deadline_seconds": 600, "suspend": true,
                "backup": {"repository": "offsite", "keep": {"daily": 30}}}),
        ),
        (
            "berth_quota",
            "Quota",
            json!({"name": "team", "hard": {"disk_size": "1Pi", "vms": 1000}}),
            json!({"name": "team", "hard": {"snapshots": 1000, "vms": 2000, "public_ips": 1000}}),
        ),
        ("berth_vm", "VM", web(), with(web(), json!({"power": "Stopped"}))),
        (
            "berth_vm_snapshot",
            "VMSnapshot",
            json!({"name": "before", "vm": "web"}),
            json!({"name": "before", "vm": "web", "labels": {"a": "b"}}),
        ),
        (
            "berth_network",
            "Network",
            json!({"name": "backend", "cidr": "10.80.0.0/24", "dns": ["10.80.0.53"]}),
            json!({"name": "backend", "cidr": "10.80.0.0/24", "mtu": 1400}),
        ),
        (
            "berth_ip_pool",
            "IPPool",
            json!({"name": "segment", "cidrs": ["192.0.2.64/27"], "mode": "l2"}),
            json!({"name": "segment", "cidrs": ["192.0.2.64/27", "192.0.2.96/27"], "mode": "l2", "use_all_addresses": true}),
        ),
        (
            "berth_storage_pool",
            "StoragePool",
            json!({"name": "databases"}),
            json!({"name": "databases", "trash_retention_seconds": 0, "default_for_namespaces": ["team-a"], "labels": {"a": "b"}}),
        ),
        (
            "berth_hotswap_disk_attachment",
            "HotswapDiskAttachment",
            json!({"vm": "web", "disk": "web-data"}),
            json!({"vm": "web", "disk": "web-data", "force": true}),
        ),
    ]
}

#[tokio::test]
async fn every_kind_is_made_changed_imported_and_destroyed_and_every_second_plan_is_empty() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    for (type_name, kind, config, changed) in stories() {
        let mut stage = Stage::new(&provider, type_name);
        assert_eq!(text_of(&stage.validate(&config).await), "", "{type_name}");
        let made = stage.apply(&config).await;
        assert!(made.is_clean(), "{type_name}: {}", made.text());
        assert!(stage.plan_is_empty(&config).await, "{type_name}: plan after create");
        assert_eq!(text_of(&stage.read().await), "", "{type_name}");
        assert!(stage.plan_is_empty(&config).await, "{type_name}: plan after refresh");
        let uid = stage.state.get("uid").clone();

        let updated = stage.apply(&changed).await;
        assert!(
            !updated.diagnostics.iter().any(tfplugin6::Diagnostic::is_error),
            "{type_name}: {}",
            updated.text()
        );
        assert_eq!(text_of(&stage.read().await), "", "{type_name}");
        assert!(stage.plan_is_empty(&changed).await, "{type_name}: plan after update");
        assert_eq!(stage.state.get("uid"), &uid, "{type_name}: updated in place");

        let mut imported = Stage::new(&provider, type_name);
        let id = stage.state.get("id").as_str().expect("it has an ID").to_owned();
        assert_eq!(text_of(&imported.import(&id).await), "", "{type_name}");
        assert!(imported.plan_is_empty(&changed).await, "{type_name}: plan after import");

        let destroyed = stage.destroy().await;
        assert!(destroyed.is_clean(), "{type_name}: {}", destroyed.text());
        assert_eq!(plane.count(kind).await, 0, "{type_name}");
        assert_eq!(text_of(&imported.read().await), "", "{type_name}");
        assert!(imported.state.is_null(), "{type_name}: gone is gone");
    }
    plane.close().await;
}

#[tokio::test]
async fn a_complete_backup_says_what_it_has_and_one_that_cannot_complete_is_an_error() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let config = json!({"name": "data-1", "repository": "nas", "snapshot": "before"});
    let mut backup = Stage::new(&provider, "berth_backup");
    let made = backup.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    for (attribute, value) in [
        ("volume_id", "v-0123456789abcdef"),
        ("backup_id", "b-0123456789abcdef"),
        ("size", "1Gi"),
        ("taken_at", "2026-01-01T00:00:00Z"),
        ("consistency", "FileSystem"),
        ("completed_at", "2026-01-01T00:01:00Z"),
        ("host", "host-a"),
    ] {
        assert_eq!(backup.state.get(attribute).as_str(), Some(value), "{attribute}");
    }
    assert_eq!(backup.state.get("read_bytes").as_i64(), Some(4_194_304));
    assert_eq!(backup.state.get("stored_bytes").as_i64(), Some(1_048_576));
    assert_eq!(backup.state.get("verified_at").as_str(), Some("2026-01-01T00:02:00Z"));
    assert_eq!(backup.state.get("damaged_blocks").as_i64(), Some(0));

    let mut stalled = Stage::new(&provider, "berth_backup");
    let made = stalled.apply(&with(config, json!({"name": "stalled-1"}))).await;
    assert!(made.tainted && made.text().contains("cannot become ready"), "{}", made.text());
    assert!(stalled.state.get("read_bytes").is_null() && stalled.state.get("completed_at").is_null());
    plane.close().await;
}

#[tokio::test]
async fn a_pool_that_does_not_exist_is_a_warning_of_the_plan_and_fails_the_apply() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let pools = [
        (
            "berth_disk",
            json!({"name": "d", "size": "1Gi", "pool": "p"}),
            "berth_storage_pool",
            json!({"name": "p"}),
        ),
        (
            "berth_public_ip",
            json!({"name": "a", "pool": "p"}),
            "berth_ip_pool",
            json!({"name": "p", "cidrs": ["192.0.2.0/24"]}),
        ),
    ];
    for (type_name, config, pool_type, pool) in pools {
        let mut stage = Stage::new(&provider, type_name);
        let plan = stage.plan(&config).await;
        let text = text_of(&plan.diagnostics);
        assert!(text.starts_with("Warning") && text.contains("unless it creates that too"), "{text}");
        let refused = stage.apply_plan(plan, &config).await;
        assert!(
            stage.state.is_null() && refused.text().contains("Pool p does not exist"),
            "{}",
            refused.text()
        );
        let plan = stage.plan(&config).await;
        let made = Stage::new(&provider, pool_type).apply(&pool).await;
        assert!(made.is_clean(), "{pool_type}: {}", made.text());
        let made = stage.apply_plan(plan, &config).await;
        assert!(made.is_clean(), "{type_name}: {}", made.text());
    }
    plane.close().await;
}

#[tokio::test]
async fn a_network_or_pool_in_use_is_not_replaced_under_its_name() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut pool = Stage::new(&provider, "berth_ip_pool");
    let of_mode = |mode: &str| json!({"name": "segment", "cidrs": ["192.0.2.64/27"], "mode": mode});
    pool.apply(&of_mode("l2")).await;
    let mut network = Stage::new(&provider, "berth_network");
    let of_range = |cidr: &str| json!({"name": "default", "cidr": cidr});
    network.apply(&of_range("10.80.0.0/24")).await;
    assert!(!pool.plan(&of_mode("local")).await.requires_replace.is_empty());
    let mut ip = Stage::new(&provider, "berth_public_ip");
    ip.apply(&json!({"name": "web", "pool": "segment"})).await;
    let mut vm = Stage::new(&provider, "berth_vm");
    vm.apply(&with(web(), json!({"placement": null}))).await;
    for (kind, name) in [("IPPool", "segment"), ("Network", "default")] {
        while plane.object(kind, name).await.pointer("/status/usedBy").is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for (stage, config, words) in [
        (&pool, of_mode("local"), "The pool is in use"),
        (&network, of_range("10.81.0.0/24"), "The network is in use"),
    ] {
        let text = text_of(&stage.plan(&config).await.diagnostics);
        assert!(text.starts_with("Error") && text.contains(words), "{text}");
    }
    plane.close().await;
}

#[tokio::test]
async fn what_was_declared_once_is_declared_on_when_the_configuration_forgets_it() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut ip = Stage::new(&provider, "berth_public_ip");
    ip.apply(&json!({"name": "web", "address": "198.18.100.77"})).await;
    ip.read().await;
    let forgotten = json!({"name": "web", "labels": {"a": "b"}});
    let applied = ip.apply(&forgotten).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert_eq!(plane.object("PublicIP", "web").await["spec"]["address"], "198.18.100.77");
    plane.close().await;
}

#[tokio::test]
async fn elements_of_others_in_a_set_are_removed_and_a_list_that_they_leave_empty_is_no_change() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut schedule = Stage::new(&provider, "berth_snapshot_schedule");
    let config = json!({"name": "nightly", "schedule": "@daily", "vms": ["web"], "keep": {"last": 1}});
    let made = schedule.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    plane.edit("SnapshotSchedule", "nightly", json!({"spec": {"vms": ["db", "web", "extra"]}})).await;
    schedule.read().await;
    assert_eq!(schedule.state.get("vms").elements().len(), 3);
    let applied = schedule.apply(&config).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert_eq!(plane.object("SnapshotSchedule", "nightly").await["spec"]["vms"], json!(["web"]));

    let mut group = Stage::new(&provider, "berth_security_group");
    let config = json!({"name": "web", "ingress": [{"cidrs": ["0.0.0.0/0"]}]});
    group.apply(&config).await;
    plane.edit("SecurityGroup", "web", json!({"spec": {"egress": []}})).await;
    group.read().await;
    assert!(!group.plan_is_empty(&config).await, "it allows nothing, and none allows everything");
    let applied = group.apply(&config).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert!(plane.object("SecurityGroup", "web").await["spec"].get("egress").is_none());
    assert!(group.plan_is_empty(&config).await);

    let mut group = Stage::new(&provider, "berth_security_group");
    let config = json!({"name": "db"});
    group.apply(&config).await;
    plane.edit("SecurityGroup", "db", json!({"spec": {"ingress": []}})).await;
    group.read().await;
    assert!(group.plan_is_empty(&config).await);
    plane.close().await;
}

#[tokio::test]
async fn a_label_of_an_import_is_removed_as_the_plan_shows() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut ip = Stage::new(&provider, "berth_public_ip");
    ip.apply(&json!({"name": "web"})).await;
    let labels = json!({"example.org/tier": "web", "team": "a"});
    plane.edit("PublicIP", "web", json!({"metadata": {"labels": labels}})).await;
    let mut imported = Stage::new(&provider, "berth_public_ip");
    imported.import("web").await;
    assert!(imported.plan_is_empty(&json!({"name": "web", "labels": labels})).await);
    let applied = imported.apply(&json!({"name": "web", "labels": {"team": "a"}})).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert_eq!(plane.object("PublicIP", "web").await["metadata"]["labels"], json!({"team": "a"}));
    plane.close().await;
}
