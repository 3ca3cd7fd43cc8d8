//! Rules about changes: refusals, equality of values, and changes that restart a VM.

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

async fn token(plane: &ControlPlane, name: &str) -> Option<String> {
    let object = plane.object("VM", name).await;
    object.pointer("/spec/restartToken").and_then(Json::as_str).map(str::to_owned)
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
async fn a_restart_token_of_the_users_goes_together_with_what_else_restarts() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    let config =
        |changes: Json| with(with(vm("web"), json!({"restart_token": "1+a", "allow_reboot": true})), changes);
    machine.apply(&config(json!({}))).await;
    assert_eq!(token(&plane, "web").await.as_deref(), Some("1+a"));
    let larger = config(json!({"class": "large"}));
    let applied = machine.apply(&larger).await;
    assert!(applied.text().contains("will be restarted"), "{}", applied.text());
    let first = token(&plane, "web").await.expect("there is one");
    assert!(first.starts_with("1+a+terraform-"), "{first}");
    machine.read().await;
    assert_eq!(machine.state.get("restart_token").as_str(), Some("1+a"));
    assert!(machine.plan_is_empty(&larger).await);
    // Another restart, by the policy for bootstrap data.
    let data =
        json!({"class": "large", "bootstrap": {"user_data": "#!/bin/sh\n", "user_data_policy": "reboot"}});
    machine.apply(&config(data.clone())).await;
    let second = token(&plane, "web").await.expect("there is one");
    assert!(second.starts_with("1+a+terraform-") && second != first, "{first} {second}");
    // And one by the user alone, which keeps the provider's part.
    let mut third = config(data);
    third["restart_token"] = "2".into();
    machine.apply(&third).await;
    assert_eq!(token(&plane, "web").await, Some(second.replace("1+a+", "2+")));
    machine.read().await;
    assert!(machine.plan_is_empty(&third).await);
    plane.close().await;
}

#[tokio::test]
async fn a_restart_token_is_refused_in_the_plan_and_by_the_control_plane_unless_the_vm_is_to_run() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    for power in ["Stopped", "Paused", "Suspended"] {
        let config = with(vm("web"), json!({"power": power}));
        let applied = machine.apply(&config).await;
        assert!(applied.is_clean(), "{}", applied.text());
        let with_token = with(config.clone(), json!({"restart_token": power}));
        let why = format!("while power is {power}: ");
        let plan = machine.plan(&with_token).await;
        let text = text_of(&plan.diagnostics);
        assert!(text.contains(&why) && text.contains("restart_token cannot change"), "{text}");
        assert!(!plan.diagnostics.iter().any(Diagnostic::is_error), "{text}");
        let applied = machine.apply(&with_token).await;
        assert!(applied.text().contains(&why), "{}", applied.text());
        let refused = plane.edit_refused("VM", "web", json!({"spec": {"restartToken": power}})).await;
        assert!(refused.contains(&why) && refused.contains("spec.restartToken"), "{refused}");
        assert!(plane.object("VM", "web").await["spec"].get("restartToken").is_none());
    }
    // With the power that starts it, a token is taken up by the start.
    let applied = machine.apply(&with(vm("web"), json!({"restart_token": "1"}))).await;
    assert!(applied.is_clean(), "{}", applied.text());
    // Its removal requests nothing, so it is allowed; also beside a token of the provider's own.
    let resized = with(vm("web"), json!({"restart_token": "1", "allow_reboot": true, "class": "large"}));
    machine.apply(&resized).await;
    assert!(
        plane.object("VM", "web").await["spec"]["restartToken"].as_str().is_some_and(|t| t.contains('+'))
    );
    let stopped = with(resized, json!({"power": "Stopped"}));
    machine.apply(&stopped).await;
    let applied = machine.apply(&with(stopped, json!({"restart_token": null}))).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert!(plane.object("VM", "web").await["spec"].get("restartToken").is_none());
    plane.close().await;
}

#[tokio::test]
async fn another_boot_disk_restarts_the_vm_where_that_is_allowed() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    machine.apply(&vm("web")).await;
    let other = with(vm("web"), json!({"disks": [{"name": "new-root", "boot": true}]}));
    let plan = machine.plan(&other).await;
    assert!(text_of(&plan.diagnostics).contains("next power cycle"), "{}", text_of(&plan.diagnostics));
    let allowed = with(other, json!({"allow_reboot": true}));
    let applied = machine.apply(&allowed).await;
    assert!(applied.text().contains("will be restarted"), "{}", applied.text());
    assert!(token(&plane, "web").await.is_some_and(|token| token.starts_with("terraform-")));
    machine.read().await;
    assert!(machine.plan_is_empty(&allowed).await);
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
async fn what_waits_for_a_power_cycle_is_listed_and_a_later_allow_reboot_restarts_the_vm() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.stock(&["root"]).await;
    let mut machine = Stage::new(&provider, "berth_vm");
    let made = machine.apply(&vm("web")).await;
    assert!(made.is_clean(), "{}", made.text());
    let pending = |machine: &Stage| {
        let names = machine.state.get("pending_power_cycle").elements().to_vec();
        names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(machine.state.get("pending_power_cycle"), &Value::List(Vec::new()));
    let synced = json!(null);
    let waits = |plane: &ControlPlane, expected: Json| {
        let api = plane.objects("VM");
        async move {
            loop {
                let vm =
                    serde_json::to_value(api.get("web").await.expect("it is there")).expect("plain data");
                if *vm.pointer("/status/pendingPowerCycle").unwrap_or(&Json::Null) == expected {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    };

    // Another client edits the class; the configuration stays as it is.
    plane.declare_as("others", "VMClass", "small", json!({"cpus": 4, "memory": "1Gi"})).await;
    waits(&plane, json!(["cpus", "memory"])).await;
    assert_eq!(text_of(&machine.read().await), "");
    assert_eq!(pending(&machine), ["cpus", "memory"]);
    let plan = machine.plan(&vm("web")).await;
    let text = text_of(&plan.diagnostics);
    assert!(plan.planned == machine.state && no_errors(&plan.diagnostics), "{text}");
    let words = "Warning: Changes wait for the next power cycle: pending_power_cycle: These changes take effect when the VM is next \
                 started: cpus, memory.";
    assert!(text.starts_with(words) && text.contains("allow_reboot = true"), "{text}");
    // Neither another change nor an apply without permission restarts it.
    let later = with(vm("web"), json!({"restart_policy": "Always"}));
    let applied = machine.apply(&later).await;
    assert!(
        applied.text().contains("cpus, memory") && !applied.text().contains("restarted"),
        "{}",
        applied.text()
    );
    assert_eq!(token(&plane, "web").await, None);
    assert_eq!(pending(&machine), ["cpus", "memory"]);
    // A VM that is stopped waits for nothing.
    let stops = machine.plan(&with(later.clone(), json!({"power": "Stopped"}))).await;
    assert!(!text_of(&stops.diagnostics).contains("power cycle"), "{}", text_of(&stops.diagnostics));

    let allowed = with(later, json!({"allow_reboot": true}));
    // While it is not known whether it is allowed, both may follow.
    let unknown = machine.plan(&with(allowed.clone(), json!({"allow_reboot": "<unknown>"}))).await;
    assert!(unknown.planned.get("pending_power_cycle").is_unknown() && unknown.diagnostics.is_empty());
    let plan = machine.plan(&allowed).await;
    let text = text_of(&plan.diagnostics);
    let words = "allow_reboot is true, and these changes wait for the next power cycle: cpus, memory.";
    assert!(text.starts_with("Warning: The VM will be restarted") && text.contains(words), "{text}");
    assert_eq!(plan.diagnostics.len(), 1, "{text}");
    let uid = machine.state.get("uid").clone();
    let applied = machine.apply_plan(plan, &allowed).await;
    assert!(applied.is_clean(), "{}", applied.text());
    let first = token(&plane, "web").await.expect("a restart was requested");
    waits(&plane, synced.clone()).await;
    assert_eq!(plane.object("VM", "web").await["status"]["hardware"]["cpus"], 4);
    assert_eq!((pending(&machine).len(), machine.state.get("uid")), (0, &uid));
    assert_eq!(machine.state.get("allow_reboot").as_bool(), Some(true));
    machine.read().await;
    assert!(machine.plan_is_empty(&allowed).await);

    // With the permission there already, the next apply restarts it again, once.
    plane.declare_as("others", "VMClass", "small", json!({"cpus": 2, "memory": "1Gi"})).await;
    waits(&plane, json!(["cpus"])).await;
    machine.read().await;
    let applied = machine.apply(&allowed).await;
    assert!(
        applied.text().contains("The VM will be restarted") && no_errors(&applied.diagnostics),
        "{}",
        applied.text()
    );
    assert_ne!(token(&plane, "web").await, Some(first));
    waits(&plane, synced).await;
    machine.read().await;
    assert!(machine.plan_is_empty(&allowed).await);
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
