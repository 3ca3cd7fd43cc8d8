//! Rules about changes: which are refused, in the plan and by the control plane, and which values are judged later.

mod restarts;
mod values;

use serde_json::{Value as Json, json};
use tfplugin6::{Diagnostic, Severity, Value};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

fn vm(name: &str) -> Json {
    json!({"name": name, "class": "small", "disks": [{"name": "root", "boot": true}],
        "timeouts": {"create": "20s", "update": "20s", "delete": "5s", "read": null}})
}

fn with(mut config: Json, changes: Json) -> Json {
    for (name, value) in changes.as_object().expect("an object") {
        config[name] = value.clone();
    }
    config
}

fn no_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Warning)
}

#[tokio::test]
async fn a_refused_change_is_a_warning_of_the_plan_and_an_error_of_the_apply_that_changes_nothing() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut disk = Stage::new(&provider, "berth_disk");
    disk.apply(&json!({"name": "root", "size": "2Gi"})).await;
    let mut machine = Stage::new(&provider, "berth_vm");
    let with_data = |text: &str| with(vm("web"), json!({"bootstrap": {"user_data": text}}));
    let made = machine.apply(&with_data("#!/bin/sh\n")).await;
    assert!(made.is_clean(), "{}", made.text());
    let other_mac = with(
        with_data("#!/bin/sh\n"),
        json!({"network_interfaces": [{"name": "nic0", "mac_address": "52:54:00:00:00:77"}]}),
    );
    let elsewhere = with(with_data("#!/bin/sh\n"), json!({"placement": {"host": "host-b"}}));
    let cases = [
        (&mut disk, json!({"name": "root", "size": "1Gi"}), "can only grow"),
        (&mut machine, with_data("#!/bin/bash\n"), "user_data_policy"),
    ];
    for (stage, config, words) in cases {
        refused(stage, &config, words).await;
    }
    for (config, words) in [(other_mac, "another name"), (elsewhere, "stays on the host")] {
        refused(&mut machine, &config, words).await;
    }
    let object = plane.object("VM", "web").await;
    assert_eq!(object["metadata"]["generation"], 1, "nothing was changed");
    plane.close().await;
}

/// The names of the objects that a VM refers to are looked up; the Disk of a template is created with the VM.
#[tokio::test]
async fn a_disk_of_a_template_is_declared_changed_and_imported_with_its_vm() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    let with_size = |size: &str| {
        let template = json!({"size": size, "limits": {"iops": 100}});
        with(vm("web"), json!({"disks": [{"name": "web-root", "boot": true, "template": template}]}))
    };
    let made = machine.apply(&with_size("2Gi")).await;
    assert!(made.is_clean(), "{}", made.text());
    assert!(machine.plan_is_empty(&with_size("2048Mi")).await, "the same size");
    let object = plane.object("VM", "web").await;
    assert_eq!(object.pointer("/spec/disks/0/template/size"), Some(&json!("2Gi")));
    assert_eq!(object.pointer("/spec/disks/0/template/pool"), Some(&json!("default")));
    let grown = machine.apply(&with_size("3Gi")).await;
    assert!(grown.is_clean(), "{}", grown.text());
    refused(&mut machine, &with_size("2Gi"), "can only grow").await;
    let other = json!({"disks": [{"name": "web-root", "boot": true}]});
    refused(&mut machine, &with(vm("web"), other), "template cannot change on an existing disk").await;
    machine.import("default/web").await;
    let imported = machine.plan(&with_size("3Gi")).await;
    assert!(no_errors(&imported.diagnostics), "{}", text_of(&imported.diagnostics));
    assert!(machine.plan_is_empty(&with_size("3Gi")).await, "imported as it is declared");
    let of_nothing = json!({"disks": [{"name": "web-root", "boot": true, "template": {"pool": "default"}}]});
    let invalid = machine.validate(&with(vm("web"), of_nothing)).await;
    assert!(
        text_of(&invalid).contains("disks[0].template.size: a disk without an image needs a size"),
        "{invalid:?}"
    );
    plane.close().await;
}

async fn refused(stage: &mut Stage, config: &Json, words: &str) {
    let before = stage.state.clone();
    let plan = stage.plan(config).await;
    let text = text_of(&plan.diagnostics);
    assert!(no_errors(&plan.diagnostics) && text.contains(words), "{text}");
    let applied = stage.apply(config).await;
    let errors: Vec<_> = applied.diagnostics.iter().filter(|found| found.is_error()).collect();
    assert!(errors.len() == 1 && errors[0].detail.contains(words), "{}", applied.text());
    assert!(errors[0].attribute.is_some(), "{}", applied.text());
    assert_eq!(stage.state, before);
}

#[tokio::test]
async fn an_update_that_the_control_plane_refuses_leaves_the_secret_as_it_was() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    let config = |text: &str, restart: &str| {
        let bootstrap = json!({"user_data": text, "user_data_policy": "reboot"});
        with(vm("web"), json!({"bootstrap": bootstrap, "restart_policy": restart}))
    };
    let made = machine.apply(&config("#!/bin/sh\n", "Always")).await;
    assert!(made.is_clean(), "{}", made.text());
    plane.declare_as("flux", "VM", "web", json!({"restartPolicy": "Never"})).await;
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
        kube::Api::namespaced(plane.client.clone(), "default");
    let before = secrets.get("web-bootstrap").await.expect("it was written");
    let applied = machine.apply(&config("#!/bin/bash\n", "OnFailure")).await;
    assert!(!no_errors(&applied.diagnostics) && applied.text().contains("flux"), "{}", applied.text());
    let after = secrets.get("web-bootstrap").await.expect("it is there");
    assert_eq!(after.data, before.data, "the VM would have other user data at its next start");
    let applied =
        machine.apply(&with(config("#!/bin/bash\n", "OnFailure"), json!({"force_conflicts": true}))).await;
    assert!(no_errors(&applied.diagnostics), "{}", applied.text());
    let after = secrets.get("web-bootstrap").await.expect("it is there");
    assert_eq!(after.data.expect("it has data")["userData"].0, b"#!/bin/bash\n");
    plane.close().await;
}

#[tokio::test]
async fn a_restore_of_a_disk_is_announced_and_so_is_one_that_was_done_before() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut disk = Stage::new(&provider, "berth_disk");
    let with = |restore: Json| json!({"name": "root", "size": "1Gi", "restore": restore});
    disk.apply(&with(Json::Null)).await;
    plane.declare_as("other", "DiskSnapshot", "before", json!({"disk": "root"})).await;
    let restore = with(json!({"snapshot": "before"}));
    let text = text_of(&disk.plan(&restore).await.diagnostics);
    assert!(text.contains("will be replaced") && text.contains("power = \"Stopped\""), "{text}");
    assert!(no_errors(&disk.apply(&restore).await.diagnostics));
    disk.read().await;
    assert!(disk.plan_is_empty(&restore).await);
    disk.apply(&with(Json::Null)).await;
    disk.read().await;
    let text = text_of(&disk.plan(&restore).await.diagnostics);
    assert!(text.contains("Nothing is restored") && text.contains("another restore.token"), "{text}");
    let again = with(json!({"snapshot": "before", "token": "2"}));
    let text = text_of(&disk.plan(&again).await.diagnostics);
    assert!(text.contains("will be replaced"), "{text}");
    plane.close().await;
}

#[tokio::test]
async fn what_the_control_plane_would_refuse_is_a_warning_of_the_plan() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut class = Stage::new(&provider, "berth_vm_class");
    let config = |cpus: i64| json!({"name": "small", "cpus": cpus, "memory": "1Gi"});
    class.apply(&config(1)).await;
    plane.declare_as("flux", "VMClass", "small", json!({"cpus": 4, "memory": "1Gi"})).await;
    class.read().await;
    let plan = class.plan(&config(1)).await;
    let text = text_of(&plan.diagnostics);
    assert!(
        no_errors(&plan.diagnostics) && text.contains("flux") && text.contains("force_conflicts"),
        "{text}"
    );
    let applied = class.apply(&config(1)).await;
    assert!(!no_errors(&applied.diagnostics) && applied.text().contains("flux"), "{}", applied.text());
    plane.close().await;
}

#[tokio::test]
async fn user_data_that_is_not_known_yet_is_judged_when_it_is() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    let with_data = |text: &str| with(vm("web"), json!({"bootstrap": {"user_data": text}}));
    machine.apply(&with_data("#!/bin/sh\n")).await;
    let plan = machine.plan(&with_data("<unknown>")).await;
    assert!(plan.diagnostics.is_empty(), "{}", text_of(&plan.diagnostics));
    assert!(plan.requires_replace.is_empty());
    // As in core within an apply: planned again, with the values known by then.
    assert!(machine.plan_is_empty(&with_data("#!/bin/sh\n")).await);
    refused(&mut machine, &with_data("#!/bin/bash\n"), "user_data_policy").await;
    let network = with(
        with_data("#!/bin/sh\n"),
        json!({"network_interfaces": [{"name": "nic0", "network": "<unknown>", "address": "<unknown>"}]}),
    );
    let plan = machine.plan(&network).await;
    assert!(!text_of(&plan.diagnostics).contains("cannot change"), "{}", text_of(&plan.diagnostics));
    plane.close().await;
}

#[tokio::test]
async fn values_that_a_module_passes_on_and_that_may_be_null_are_no_contradiction() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let stage = Stage::new(&provider, "berth_vm");
    // As when Terraform validates a child module: no variable has a value.
    let all = [
        "user_data",
        "user_data_wo",
        "user_data_wo_version",
        "secret_name",
        "ssh_authorized_keys",
        "hostname",
    ];
    let bootstrap: Json = all
        .iter()
        .map(|name| (name.to_string(), json!("<unknown>")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let unknown = with(vm("web"), json!({"bootstrap": bootstrap}));
    assert_eq!(text_of(&stage.validate(&unknown).await), "");
    let write_only =
        with(vm("web"), json!({"bootstrap": {"user_data_wo": "<unknown>", "user_data_wo_version": null}}));
    assert_eq!(text_of(&stage.validate(&write_only).await), "");
    // As when it plans: the variables have values, or are null.
    for known in [
        json!({"user_data": null, "secret_name": null}),
        json!({"user_data": "#!/bin/sh\n", "secret_name": null}),
    ] {
        assert_eq!(text_of(&stage.validate(&with(vm("web"), json!({"bootstrap": known}))).await), "");
    }
    let both = with(vm("web"), json!({"bootstrap": {"user_data": "#!/bin/sh\n", "secret_name": "b"}}));
    assert!(text_of(&stage.validate(&both).await).contains("two places"));
    let ways =
        crate::stage::value(&json!({"kubeconfig": "<unknown>", "host": "<unknown>", "token": "<unknown>"}));
    let client = tfplugin6::provider::ClientCapabilities::default();
    let request = tfplugin6::resource::ValidateRequest {
        config: ways,
        client,
        cancel: tfplugin6::CancellationToken::new(),
    };
    assert_eq!(text_of(&tfplugin6::Provider::validate(&provider, request).await), "");
    plane.close().await;
}

#[tokio::test]
async fn a_selector_that_the_vms_host_fits_is_live_and_another_is_refused() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("host-a", json!({"disk": "ssd", "zone": "a"})).await;
    let mut machine = Stage::new(&provider, "berth_vm");
    machine.apply(&vm("web")).await;
    let selects = |labels: Json| with(vm("web"), json!({"placement": {"host_selector": labels}}));
    let applied = machine.apply(&selects(json!({"disk": "ssd"}))).await;
    assert!(applied.is_clean(), "{}", applied.text());
    refused(&mut machine, &selects(json!({"disk": "ssd", "zone": "b"})), "zone").await;
    let mut unplaced = machine.state.clone();
    unplaced.set("host", Value::Null);
    let plan = machine.plan_from(unplaced, &selects(json!({"zone": "b"}))).await;
    assert_eq!(text_of(&plan.diagnostics), "", "it is read when the VM is placed");
    plane.close().await;
}

#[tokio::test]
async fn a_selector_that_the_host_of_a_disk_does_not_fit_is_refused() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("host-a", json!({"zone": "a"})).await;
    let mut disk = Stage::new(&provider, "berth_disk");
    let selects = |labels: Json| json!({"name": "d", "size": "1Gi", "placement": {"host_selector": labels}});
    let made = disk.apply(&selects(json!({"zone": "a"}))).await;
    assert!(made.is_clean(), "{}", made.text());
    let mut placed = disk.state.clone();
    placed.set("host", Value::from("host-a"));
    for (labels, refusal) in [
        (json!({}), None),
        (json!({"zone": "a"}), None),
        (json!({"zone": "b"}), Some("this one is on host-a, which does not have the label zone = \"b\"")),
    ] {
        let plan = disk.plan_from(placed.clone(), &selects(labels)).await;
        let text = text_of(&plan.diagnostics);
        assert!(no_errors(&plan.diagnostics), "{text}");
        match refusal {
            Some(words) => assert!(text.contains(words), "{text}"),
            None => assert_eq!(text, ""),
        }
    }
    plane.close().await;
}

#[tokio::test]
async fn a_disk_of_a_pool_that_does_not_exist_is_refused() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut disk = Stage::new(&provider, "berth_disk");
    refused(&mut disk, &json!({"name": "d", "size": "1Gi", "pool": "fast"}), "StoragePool").await;
    assert_eq!(plane.count("Disk").await, 0);
    plane.close().await;
}
