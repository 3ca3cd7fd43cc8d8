//! Values that others decide: addresses of the control plane, and labels and annotations beside foreign ones.

use serde_json::json;

use super::{no_errors, vm, with};
use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider},
};

#[tokio::test]
async fn writing_down_what_was_decided_is_no_change_now_or_later() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut ip = Stage::new(&provider, "berth_public_ip");
    ip.apply(&json!({"name": "web"})).await;
    let written = json!({"name": "web", "address": ip.state.get("address").as_str()});
    assert!(ip.plan_is_empty(&written).await);
    let applied = ip.apply(&with(written.clone(), json!({"labels": {"a": "b"}}))).await;
    assert!(applied.is_clean(), "{}", applied.text());

    let mut machine = Stage::new(&provider, "berth_vm");
    machine.apply(&vm("web")).await;
    let decided = machine.state.get("network_interfaces").index(0).clone();
    let text = |name: &str| decided.get(name).as_str().expect("it was decided").to_owned();
    let interface =
        |mac: &str, address: &str| json!([{"name": "nic0", "mac_address": mac, "address": address}]);
    let written = with(
        vm("web"),
        json!({"network_interfaces": interface(&text("mac_address").to_uppercase(), &text("address"))}),
    );
    assert!(machine.plan_is_empty(&written).await);
    let later = with(written.clone(), json!({"restart_policy": "Always"}));
    let applied = machine.apply(&later).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert_eq!(
        plane.object("VM", "web").await["spec"]["networkInterfaces"][0]["macAddress"],
        text("mac_address").as_str()
    );
    machine.read().await;
    assert!(machine.plan_is_empty(&later).await);
    // Omitted again, as another client may do: the interface keeps its value.
    plane
        .edit("VM", "web", json!({"spec": {"networkInterfaces": [{"name": "nic0", "network": "default"}]}}))
        .await;
    // Any other value means another interface, and another PublicIP.
    let other = [
        (
            "VM",
            json!({"spec": {"networkInterfaces": [{"name": "nic0", "network": "default", "macAddress": "52:54:00:00:00:99"}]}}),
        ),
        (
            "VM",
            json!({"spec": {"networkInterfaces": [{"name": "nic0", "network": "default", "address": "10.77.0.99"}]}}),
        ),
        ("PublicIP", json!({"spec": {"address": "198.18.100.99"}})),
    ];
    for (kind, patch) in other {
        let params = kube::api::PatchParams::default();
        let refused = plane.objects(kind).patch("web", &params, &kube::api::Patch::Merge(&patch)).await;
        let text = refused.expect_err("it is another one").to_string();
        assert!(text.contains("cannot change"), "{text}");
    }
    plane.close().await;
}

#[tokio::test]
async fn an_interface_with_the_model_that_was_the_default_keeps_it_when_its_class_gets_another_one() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut class = Stage::new(&provider, "berth_vm_class");
    let size = json!({"name": "emulated", "cpus": 1, "memory": "1Gi"});
    let made = class.apply(&size).await;
    assert!(no_errors(&made.diagnostics), "{}", made.text());
    let with_interface = |interface: serde_json::Value| {
        with(vm("web"), json!({"class": "emulated", "network_interfaces": [interface]}))
    };
    // As a former version has left it: the default is in the state and in the object.
    let mut machine = Stage::new(&provider, "berth_vm");
    let made = machine.apply(&with_interface(json!({"name": "nic0", "model": "virtio"}))).await;
    assert!(no_errors(&made.diagnostics), "{}", made.text());
    let changed = class.apply(&with(size, json!({"network_interface_model": "e1000e"}))).await;
    assert!(no_errors(&changed.diagnostics), "{}", changed.text());
    machine.read().await;
    let config = with_interface(json!({"name": "nic0"}));
    assert!(machine.plan_is_empty(&config).await);
    let applied = machine.apply(&with(config.clone(), json!({"restart_policy": "Always"}))).await;
    assert!(no_errors(&applied.diagnostics), "{}", applied.text());
    let spec = plane.object("VM", "web").await["spec"].clone();
    assert_eq!(spec["networkInterfaces"][0]["model"], "virtio", "a change of the rest is none of its card");
    plane.close().await;
}

#[tokio::test]
async fn a_label_of_ours_is_put_right_beside_a_foreign_one() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let config = json!({"name": "d", "size": "1Gi", "labels": {"team": "red"}});
    let mut disk = Stage::new(&provider, "berth_disk");
    disk.apply(&config).await;
    plane.edit("Disk", "d", json!({"metadata": {"labels": {"team": "blue", "theirs": "kept"}}})).await;
    disk.read().await;
    let applied = disk.apply(&config).await;
    assert!(applied.is_clean(), "{}", applied.text());
    let labels = plane.object("Disk", "d").await["metadata"]["labels"].clone();
    assert_eq!(labels, json!({"team": "red", "theirs": "kept"}));
    // An edit that the plan did not show is still not overwritten.
    let larger = with(config.clone(), json!({"size": "2Gi"}));
    let plan = disk.plan(&larger).await;
    plane.edit("Disk", "d", json!({"metadata": {"labels": {"team": "green"}}})).await;
    let applied = disk.apply_plan(plan, &larger).await;
    assert!(applied.text().contains("plan again"), "{}", applied.text());
    plane.close().await;
}

#[tokio::test]
async fn annotations_of_a_vm_are_declared_beside_foreign_ones_and_imported_without_those_of_programs() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    let note = json!({"annotations": {"example.org/note": "any text", "poweron.check.berth.dev/copy": "is being copied"}});
    let config = with(vm("web"), note);
    let applied = machine.apply(&config).await;
    assert!(no_errors(&applied.diagnostics), "{}", applied.text());
    let theirs = json!({"metadata": {"annotations": {"kubectl.kubernetes.io/theirs": "kept"}}});
    plane.edit("VM", "web", theirs).await;
    machine.read().await;
    assert!(machine.plan_is_empty(&config).await);
    let mut imported = Stage::new(&provider, "berth_vm");
    imported.import("default/web").await;
    assert!(imported.plan_is_empty(&config).await, "plan after import");
    machine.apply(&vm("web")).await;
    let left = plane.object("VM", "web").await["metadata"]["annotations"].clone();
    assert_eq!(left["kubectl.kubernetes.io/theirs"], "kept");
    assert!(
        left.get("example.org/note").is_none() && left.get("poweron.check.berth.dev/copy").is_none(),
        "{left}"
    );
    assert!(machine.plan_is_empty(&vm("web")).await);
    plane.close().await;
}

#[tokio::test]
async fn addresses_are_in_the_state_after_the_apply_whatever_is_waited_for() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut ip = Stage::new(&provider, "berth_public_ip");
    ip.apply(&json!({"name": "web"})).await;
    for (name, wish) in [("late-1", json!({"wait_for": "none"})), ("late-2", json!({"power": "Stopped"}))] {
        let mut machine = Stage::new(&provider, "berth_vm");
        let config = with(vm(name), json!({"network_interfaces": [{"public_ip": "web"}]}));
        let config = with(config, wish);
        let made = machine.apply(&config).await;
        assert!(made.is_clean(), "{}", made.text());
        let after = machine.state.clone();
        machine.read().await;
        for output in ["private_address", "public_address", "network_interfaces"] {
            assert!(!after.get(output).is_null(), "{name}: {output}");
            assert_eq!(after.get(output), machine.state.get(output), "{name}: {output}");
        }
        assert_eq!(after.get("public_address"), ip.state.get("address"));
        assert!(machine.destroy().await.is_clean());
    }
    plane.close().await;
}

#[tokio::test]
async fn the_addresses_of_each_interface_are_in_the_state_and_in_the_data_source() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.stock(&["root"]).await;
    for name in ["a", "bc"] {
        let made = Stage::new(&provider, "berth_public_ip").apply(&json!({"name": name})).await;
        assert!(made.is_clean(), "{}", made.text());
    }
    let interfaces =
        json!([{"name": "lan"}, {"name": "wan", "public_ip": "a"}, {"name": "dmz", "public_ip": "bc"}]);
    let config = with(vm("web"), json!({"network_interfaces": interfaces}));
    let expected = crate::stage::value(&json!({
        "lan": ["10.77.0.10"], "wan": ["10.77.0.11", "198.18.100.1"], "dmz": ["10.77.0.12", "198.18.100.2"],
    }));
    let mut machine = Stage::new(&provider, "berth_vm");
    assert!(machine.plan(&config).await.planned.get("addresses").is_unknown());
    // Stopped, its host forwards no public address yet.
    let stopped = with(config.clone(), json!({"power": "Stopped"}));
    for config in [stopped, config.clone()] {
        let applied = machine.apply(&config).await;
        assert!(applied.is_clean(), "{}", applied.text());
        assert_eq!(machine.state.get("addresses"), &expected);
        machine.read().await;
        assert_eq!(machine.state.get("addresses"), &expected);
        assert!(machine.plan_is_empty(&config).await);
    }
    let fewer = with(vm("web"), json!({"network_interfaces": [{"name": "wan", "public_ip": "bc"}]}));
    assert!(machine.plan(&fewer).await.planned.get("addresses").is_unknown());
    machine.apply(&fewer).await;
    assert_eq!(machine.state.get("addresses").as_map().map(|map| map.len()), Some(1));
    plane.close().await;
}
