//! VMs: what is decided for them, their bootstrap data, changes, and drift.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tfplugin6::Value;

use super::{KEY, web, with};
use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

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
