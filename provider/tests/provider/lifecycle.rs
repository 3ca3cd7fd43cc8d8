//! Create, read, update, delete, import: each kind, and the courses its life cycle can take.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tfplugin6::Value;

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
            json!({"name": "databases", "trash_retention_seconds": 0, "labels": {"a": "b"}}),
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
async fn a_host_is_adopted_and_withdrawn_from_but_neither_created_nor_deleted() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("h1", json!({"kubernetes.io/hostname": "h1", "disk": "hdd"})).await;
    let config = json!({"name": "h1", "labels": {"disk": "ssd"}, "cordoned": true});
    let mut host = Stage::new(&provider, "berth_host");
    let adopted = host.apply(&config).await;
    let text = adopted.text();
    assert!(!adopted.tainted && text.contains("cordoned = false now"), "{text}");
    assert!(text.contains("labels[\"disk\"] = \"hdd\" now") && !text.contains("Error"), "{text}");
    assert_eq!(host.state.get("id").as_str(), Some("h1"));
    assert_eq!(host.state.get("draining").as_bool(), Some(false));
    let object = plane.object("Host", "h1").await;
    assert_eq!(object["metadata"]["labels"], json!({"kubernetes.io/hostname": "h1", "disk": "ssd"}));
    assert_eq!(object["spec"]["cordoned"], true);
    assert!(host.plan_is_empty(&config).await);

    // A value that is not configured stays as others set it, also through an update.
    plane.edit("Host", "h1", json!({"spec": {"draining": true}})).await;
    host.read().await;
    assert!(host.plan_is_empty(&config).await);
    let labelled = with(config.clone(), json!({"labels": {"disk": "nvme", "rack": "7"}}));
    let updated = host.apply(&labelled).await;
    assert!(updated.is_clean(), "{}", updated.text());
    assert_eq!(plane.object("Host", "h1").await["spec"]["draining"], true);
    let mut imported = Stage::new(&provider, "berth_host");
    assert_eq!(text_of(&imported.import("h1").await), "");
    assert!(imported.plan_is_empty(&labelled).await);
    assert!(
        text_of(&Stage::new(&provider, "berth_host").import("default/h1").await).contains("has no namespace")
    );

    let destroyed = host.destroy().await;
    assert!(destroyed.is_clean() && host.state.is_null(), "{}", destroyed.text());
    let object = plane.object("Host", "h1").await;
    assert_eq!(object["metadata"]["labels"], json!({"kubernetes.io/hostname": "h1"}));
    assert_eq!((&object["spec"]["cordoned"], &object["spec"]["draining"]), (&json!(false), &json!(true)));

    // Adopted once more, unless another program declares the same field.
    plane.declare_as("flux", "Host", "h1", json!({"cordoned": false})).await;
    let refused = host.apply(&config).await;
    assert!(host.state.is_null() && refused.text().contains("flux"), "{}", refused.text());
    let forced = host.apply(&with(config.clone(), json!({"force_conflicts": true}))).await;
    assert!(!forced.text().contains("Error:"), "{}", forced.text());
    host.destroy().await;

    let mut missing = Stage::new(&provider, "berth_host");
    let config = json!({"name": "h9", "cordoned": true});
    let plan = missing.plan(&config).await;
    assert!(text_of(&plan.diagnostics).starts_with("Warning: The host does not exist"));
    let refused = missing.apply_plan(plan, &config).await;
    assert!(missing.state.is_null() && refused.text().contains("berth host --join"), "{}", refused.text());
    assert_eq!(plane.count("Host").await, 1);
    plane.close().await;
}

#[tokio::test]
async fn a_host_is_reserved_for_the_declared_namespaces_until_the_resource_goes() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("h1", json!({})).await;
    plane.edit("Host", "h1", json!({"spec": {"namespaces": ["team-b"]}})).await;
    let config = |namespaces: Json| json!({"name": "h1", "namespaces": namespaces});
    let mut host = Stage::new(&provider, "berth_host");
    let adopted = host.apply(&config(json!(["team-a", "team-b"]))).await;
    assert!(
        !adopted.tainted && adopted.text().contains("namespaces = [\"team-b\"] now"),
        "{}",
        adopted.text()
    );
    assert_eq!(plane.object("Host", "h1").await["spec"]["namespaces"], json!(["team-a", "team-b"]));
    assert!(host.plan_is_empty(&config(json!(["team-a", "team-b"]))).await);
    assert!(host.plan_is_empty(&json!({"name": "h1"})).await, "left out, it stays");
    assert!(host.apply(&config(json!([]))).await.is_clean());
    assert_eq!(plane.object("Host", "h1").await["spec"]["namespaces"], json!([]));
    assert!(host.apply(&config(json!(["team-a"]))).await.is_clean());
    let destroyed = host.destroy().await;
    assert!(destroyed.is_clean(), "{}", destroyed.text());
    assert!(plane.object("Host", "h1").await["spec"].get("namespaces").is_none());
    plane.close().await;
}

#[tokio::test]
async fn a_host_reserves_what_is_declared_and_keeps_it_when_the_configuration_forgets_it() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("h1", json!({})).await;
    // Its status follows a moment after the creation: 8 CPUs and 16Gi.
    while plane.object("Host", "h1").await.pointer("/status/capacity").is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    plane.edit("Host", "h1", json!({"spec": {"reserved": {"cpus": 1}}})).await;
    let reserving = |reserved: Json| json!({"name": "h1", "reserved": reserved});
    let mut host = Stage::new(&provider, "berth_host");
    for (reserved, has) in [(json!({"memory": "16384Mi"}), "has 16Gi"), (json!({"cpus": 8}), "has 8")] {
        let plan = host.plan(&reserving(reserved.clone())).await;
        let text = text_of(&plan.diagnostics);
        assert!(text.contains("less than is reserved") && text.contains(has), "{text}");
        let refused = host.apply_plan(plan, &reserving(reserved)).await;
        assert!(refused.text().contains("Error: The host has less than is reserved"), "{}", refused.text());
    }
    let config = reserving(json!({"cpus": 2, "memory": "1Gi"}));
    let adopted = host.apply(&config).await;
    assert!(!adopted.tainted && adopted.text().contains("reserved.cpus = 1 now"), "{}", adopted.text());
    assert_eq!(plane.object("Host", "h1").await["spec"]["reserved"], json!({"cpus": 2, "memory": "1Gi"}));
    host.read().await;
    assert!(
        host.plan_is_empty(&with(config.clone(), json!({"reserved": {"cpus": 2, "memory": "1024Mi"}}))).await
    );
    let mut imported = Stage::new(&provider, "berth_host");
    imported.import("h1").await;
    assert!(imported.plan_is_empty(&config).await);

    let less = reserving(json!({"memory": "1Gi"}));
    assert!(host.apply(&less).await.is_clean());
    assert_eq!(plane.object("Host", "h1").await["spec"]["reserved"], json!({"memory": "1Gi"}));
    let forgotten = json!({"name": "h1", "labels": {"disk": "ssd"}});
    host.read().await;
    let updated = host.apply(&forgotten).await;
    assert!(updated.is_clean(), "{}", updated.text());
    assert_eq!(plane.object("Host", "h1").await["spec"]["reserved"], json!({"memory": "1Gi"}));
    host.read().await;
    assert!(host.plan_is_empty(&forgotten).await);
    assert!(host.destroy().await.is_clean());
    let left = plane.object("Host", "h1").await["spec"]["reserved"].clone();
    assert!(left.is_null() || left == json!({}), "nothing is declared any more: {left}");
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
async fn what_the_control_plane_decides_is_in_the_state_and_never_a_diff() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut ip = Stage::new(&provider, "berth_public_ip");
    ip.apply(&json!({"name": "web"})).await;
    assert_eq!(ip.state.get("address").as_str(), Some("198.18.100.3"));
    let mut vm = Stage::new(&provider, "berth_vm");
    let planned = vm.plan(&web()).await.planned;
    assert!(planned.get("private_address").is_unknown());
    assert_eq!(planned.get("id").as_str(), Some("default/web"));
    assert_eq!(planned.get("network_interfaces").index(0).get("name").as_str(), Some("nic0"));
    let made = vm.apply(&web()).await;
    assert!(made.is_clean(), "{}", made.text());
    assert_eq!(vm.state.get("private_address").as_str(), Some("10.77.0.10"));
    assert_eq!(vm.state.get("public_address").as_str(), Some("198.18.100.3"));
    assert_eq!(vm.state.get("host").as_str(), Some("host-a"));
    assert_eq!(
        vm.state.get("network_interfaces").index(0).get("mac_address").as_str(),
        Some("52:54:00:00:00:00")
    );

    // A move is no diff, and an unrelated update plans all unchanged values as known.
    vm.state.set("host", "host-b");
    let config = with(web(), json!({"restart_policy": "Always"}));
    let planned = vm.plan(&config).await.planned;
    assert!(planned.is_wholly_known(), "{planned:?}");
    assert_eq!(planned.get("host").as_str(), Some("host-b"));
    plane.close().await;
}

#[tokio::test]
async fn bootstrap_data_is_in_a_secret_that_the_vm_owns_and_nowhere_else() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut vm = Stage::new(&provider, "berth_vm");
    let made = vm.apply(&web()).await;
    assert!(made.is_clean(), "{}", made.text());
    let object = plane.object("VM", "web").await;
    assert!(!object.to_string().contains("canary-secret"));
    assert_eq!(object["spec"]["bootstrap"]["secretName"], "web-bootstrap");
    assert_eq!(object["spec"]["bootstrap"]["sshAuthorizedKeys"], json!([KEY.trim()]));
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
        kube::Api::namespaced(plane.client.clone(), "default");
    let secret = secrets.get("web-bootstrap").await.expect("it was written");
    let data = secret.data.expect("it has data");
    assert_eq!(data["userData"].0, b"#cloud-config\npassword: canary-secret\n");
    let owners = secret.metadata.owner_references.expect("it has an owner");
    assert_eq!(Some(owners[0].uid.as_str()), object["metadata"]["uid"].as_str());

    // Write-only: in no plan and no state, and an import omits it too.
    vm.destroy().await;
    let config =
        with(web(), json!({"bootstrap": {"user_data_wo": "canary-secret-2", "user_data_wo_version": 1}}));
    let planned = vm.plan(&config).await;
    assert!(!format!("{planned:?}").contains("canary"));
    let made = vm.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    assert!(!format!("{:?}{:?}", vm.state, vm.private).contains("canary"));
    assert_eq!(
        secrets.get("web-bootstrap").await.expect("written").data.expect("data")["userData"].0,
        b"canary-secret-2"
    );
    let mut imported = Stage::new(&provider, "berth_vm");
    imported.import("web").await;
    assert!(!format!("{:?}", imported.state).contains("canary"));
    assert!(imported.plan_is_empty(&config).await);
    plane.close().await;
}

#[tokio::test]
async fn the_hash_of_a_password_is_in_the_secret_and_the_password_nowhere() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut vm = Stage::new(&provider, "berth_vm");
    let unattend = r#"<unattend xmlns="urn:schemas-microsoft-com:unattend"/>"#;
    let config = with(
        web(),
        json!({"bootstrap": {"user": "admin", "password_wo": "canary-secret-3", "password_wo_version": 1,
            "password_expires": false, "guest_agent": "Install", "sysprep_unattend": unattend, "ssh_authorized_keys_secret": "keys"}}),
    );
    let made = vm.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    assert!(!format!("{:?}{:?}", vm.state, vm.private).contains("canary"));
    let object = plane.object("VM", "web").await;
    let bootstrap = &object["spec"]["bootstrap"];
    assert_eq!(
        (&bootstrap["user"], &bootstrap["passwordExpires"], &bootstrap["sshAuthorizedKeysSecret"]),
        (&json!("admin"), &json!(false), &json!("keys"))
    );
    assert_eq!(bootstrap["guestAgent"], "Install");
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
        kube::Api::namespaced(plane.client.clone(), "default");
    let data = secrets.get("web-bootstrap").await.expect("it was written").data.expect("it has data");
    let keys: Vec<&str> = data.keys().map(String::as_str).collect();
    assert_eq!(keys, ["password", "unattend.xml"]);
    let hash = String::from_utf8(data["password"].0.clone()).expect("text");
    assert!(hash.starts_with("$6$rounds=") && !hash.contains("canary"), "{hash}");
    assert!(vm.plan_is_empty(&config).await);
    let mut imported = Stage::new(&provider, "berth_vm");
    imported.import("web").await;
    assert!(imported.plan_is_empty(&config).await, "an import finds the version of the password");

    let with_hash =
        with(web(), json!({"bootstrap": {"password_hash": "$6$salt$hash", "user_data_policy": "reboot"}}));
    let made = vm.apply(&with_hash).await;
    assert!(!made.text().contains("Error"), "{}", made.text());
    let data = secrets.get("web-bootstrap").await.expect("it was written").data.expect("it has data");
    assert_eq!(data["password"].0, b"$6$salt$hash", "a hash is left as it is");
    assert_eq!(data.len(), 1, "the answer file is gone");
    plane.close().await;
}

#[tokio::test]
async fn the_user_data_policy_decides_what_a_change_does() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut vm = Stage::new(&provider, "berth_vm");
    vm.apply(&web()).await;
    let changed = |policy: Option<&str>| {
        let mut config = with(
            web(),
            json!({"bootstrap": {"ssh_authorized_keys": [KEY], "user_data": "#cloud-config\nx: 1\n"}}),
        );
        if let Some(policy) = policy {
            config["bootstrap"]["user_data_policy"] = policy.into();
        }
        config
    };
    let refused = vm.plan(&changed(None)).await;
    assert!(text_of(&refused.diagnostics).contains("user_data_policy"), "{}", text_of(&refused.diagnostics));
    let ignored = vm.plan(&changed(Some("ignore"))).await;
    assert!(ignored.requires_replace.is_empty());
    assert_eq!(ignored.planned, vm.state, "nothing to do");
    let replaced = vm.plan(&changed(Some("replace"))).await;
    assert_eq!(
        replaced.requires_replace.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["bootstrap.user_data"]
    );
    let rebooted = vm.apply(&changed(Some("reboot"))).await;
    let announced = "Warning: The VM will be restarted: bootstrap.user_data: user_data_policy is \"reboot\"";
    assert!(rebooted.diagnostics.len() == 1 && rebooted.text().starts_with(announced), "{}", rebooted.text());
    let object = plane.object("VM", "web").await;
    let token = object["spec"]["restartToken"].as_str().expect("a restart was asked for").to_owned();
    vm.read().await;
    assert!(vm.plan_is_empty(&changed(Some("reboot"))).await);
    // The token stays through later updates: removing it would be another restart.
    vm.apply(&with(changed(Some("reboot")), json!({"restart_policy": "Never"}))).await;
    assert_eq!(plane.object("VM", "web").await["spec"]["restartToken"], token.as_str());
    plane.close().await;
}

#[tokio::test]
async fn a_change_that_needs_a_power_cycle_says_so_or_restarts_if_allowed() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut vm = Stage::new(&provider, "berth_vm");
    vm.apply(&web()).await;
    let larger = with(web(), json!({"class": "large"}));
    let plan = vm.plan(&larger).await;
    assert!(text_of(&plan.diagnostics).contains("next power cycle"), "{}", text_of(&plan.diagnostics));
    assert!(plan.requires_replace.is_empty());
    let allowed = with(larger, json!({"allow_reboot": true}));
    let applied = vm.apply(&allowed).await;
    assert!(applied.text().contains("will be restarted"), "{}", applied.text());
    assert!(plane.object("VM", "web").await["spec"]["restartToken"].is_string());
    vm.read().await;
    assert!(vm.plan_is_empty(&allowed).await);
    plane.close().await;
}

#[tokio::test]
async fn equal_values_in_other_words_are_no_diff() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut class = Stage::new(&provider, "berth_vm_class");
    class.apply(&json!({"name": "small", "cpus": 1, "memory": "1Gi"})).await;
    assert!(class.plan_is_empty(&json!({"name": "small", "cpus": 1, "memory": "1024Mi"})).await);
    let mut vm = Stage::new(&provider, "berth_vm");
    let config =
        |mac: &str| with(web(), json!({"network_interfaces": [{"name": "lan", "mac_address": mac}]}));
    let made = vm.apply(&config("52:54:00:AB:CD:EF")).await;
    assert!(made.is_clean(), "{}", made.text());
    vm.read().await;
    assert!(vm.plan_is_empty(&config("52:54:00:ab:cd:ef")).await);
    let crlf = with(
        config("52:54:00:ab:cd:ef"),
        json!({"bootstrap": {"ssh_authorized_keys": [KEY.trim()],
        "user_data": "#cloud-config\r\npassword: canary-secret\r\n"}}),
    );
    assert!(vm.plan_is_empty(&crlf).await);
    assert!(
        vm.plan_is_empty(&with(crlf, json!({"wait_for": "none", "on_timeout": "fail"}))).await,
        "provider-only fields alone"
    );
    plane.close().await;
}

#[tokio::test]
async fn a_vm_has_a_size_of_its_own_without_a_class_and_beside_one() {
    let plane = ControlPlane::in_memory().await;
    plane.stock(&["root"]).await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    let config = |size: Json| {
        with(json!({"name": "web", "power": "Stopped", "disks": [{"name": "root", "boot": true}]}), size)
    };
    let spec = async |plane: &ControlPlane| {
        let spec = plane.object("VM", "web").await["spec"].clone();
        ["class", "cpus", "memory", "firmware", "cpuTopology"].map(|key| spec[key].clone())
    };
    let topology = json!({"sockets": 1, "cores": 2, "threads": 2});
    let null = Json::Null;
    for (size, expected) in [
        (
            json!({"cpus": 2, "memory": "1Gi"}),
            [null.clone(), json!(2), json!("1Gi"), null.clone(), null.clone()],
        ),
        (
            json!({"cpu_topology": {"cores": 2, "threads": 2}, "firmware": "BIOS"}),
            [null.clone(), null.clone(), null.clone(), json!("BIOS"), topology],
        ),
        (
            json!({"class": "small", "memory": "2Gi"}),
            [json!("small"), null.clone(), json!("2Gi"), null.clone(), null.clone()],
        ),
        (json!({"class": "small"}), [json!("small"), null.clone(), null.clone(), null.clone(), null.clone()]),
    ] {
        let config = config(size.clone());
        let applied = machine.apply(&config).await;
        assert!(
            !applied.diagnostics.iter().any(tfplugin6::Diagnostic::is_error),
            "{size}: {}",
            applied.text()
        );
        assert_eq!(spec(&plane).await, expected, "{size}");
        machine.read().await;
        assert!(machine.plan_is_empty(&config).await, "{size}");
    }
    assert!(machine.plan_is_empty(&config(json!({"class": "small"}))).await);
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
async fn a_value_is_removed_from_an_object_that_changes_meanwhile() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut vm = Stage::new(&provider, "berth_vm");
    vm.apply(&web()).await;
    for round in 0..10 {
        plane.edit("VM", "web", json!({"spec": {"restartToken": "now"}})).await;
        vm.read().await;
        let config = web();
        let busy = async {
            for count in 0_u64.. {
                let annotations = json!({"metadata": {"annotations": {"count": count.to_string()}}});
                plane.edit("VM", "web", annotations).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let applied = tokio::select! {
            applied = vm.apply(&config) => applied,
            () = busy => unreachable!("it never ends"),
        };
        assert!(applied.is_clean(), "round {round}: {}", applied.text());
        assert!(plane.object("VM", "web").await["spec"].get("restartToken").is_none());
    }
    plane.close().await;
}

#[tokio::test]
async fn drift_is_shown_and_put_right() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut vm = Stage::new(&provider, "berth_vm");
    vm.apply(&web()).await;
    plane.edit("VM", "web", json!({"spec": {"restartToken": "now"}})).await;
    let edit = json!({"spec": {"power": "Stopped",
        "disks": [{"name": "web-root", "boot": true}, {"name": "extra", "boot": false}]}});
    plane.edit("VM", "web", edit).await;
    vm.read().await;
    assert_eq!(vm.state.get("power").as_str(), Some("Stopped"));
    assert_eq!(vm.state.get("disks").elements().len(), 2);
    assert!(!vm.plan_is_empty(&web()).await);
    let applied = vm.apply(&web()).await;
    assert!(applied.is_clean(), "{}", applied.text());
    let object = plane.object("VM", "web").await;
    assert_eq!(object["spec"]["power"], "Running");
    assert_eq!(object["spec"]["disks"].as_array().map(Vec::len), Some(1));
    assert!(object["spec"].get("restartToken").is_none());
    vm.read().await;
    assert!(vm.plan_is_empty(&web()).await);

    // Labels that others add are not a diff.
    plane.edit("VM", "web", json!({"metadata": {"labels": {"team": "x"}}})).await;
    vm.read().await;
    assert!(vm.plan_is_empty(&web()).await);
    plane.close().await;
}

#[tokio::test]
async fn interfaces_are_told_apart_by_name_and_not_by_place() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut vm = Stage::new(&provider, "berth_vm");
    let two = with(web(), json!({"network_interfaces": [{"name": "a"}, {"name": "b"}]}));
    vm.apply(&two).await;
    let mac_of_b = vm.state.get("network_interfaces").index(1).get("mac_address").clone();
    let one = with(web(), json!({"network_interfaces": [{"name": "b"}]}));
    let planned = vm.plan(&one).await.planned;
    assert_eq!(planned.get("network_interfaces").index(0).get("mac_address"), &mac_of_b);
    let none = with(web(), json!({"network_interfaces": []}));
    assert_eq!(vm.plan(&none).await.planned.get("network_interfaces"), &Value::List(Vec::new()));
    plane.close().await;
}
