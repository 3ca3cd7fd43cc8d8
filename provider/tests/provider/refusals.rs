//! Refusals, warnings and waits, and the state that each of them leaves.

use std::{sync::atomic::Ordering, time::Duration};

use berth_api::Quota;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value as Json, json};
use tfplugin6::{Severity, diagnostic};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

fn vm(name: &str) -> Json {
    json!({"name": name, "class": "small", "disks": [{"name": "root", "boot": true}], "timeouts": {"create": "2s", "delete": "2s"}})
}

fn image(name: &str, timeout: &str) -> Json {
    let source = json!({"url": "https://a.example/x", "sha256": "0".repeat(64)});
    json!({"name": name, "source": source, "timeouts": {"create": timeout}})
}

#[tokio::test]
async fn a_plan_of_unknown_values_needs_no_control_plane() {
    let session = std::sync::Arc::new(terraform_provider_berth::session::Session::default());
    let provider = terraform_provider_berth::BerthProvider::new(session);
    let stage = Stage::new(&provider, "berth_vm");
    let plan = stage
        .plan(&json!({"name": "web", "class": "<unknown>", "disks": [{"name": "<unknown>", "boot": true}]}))
        .await;
    assert_eq!(text_of(&plan.diagnostics), "");
    assert!(plan.planned.get("class").is_unknown() && plan.planned.get("namespace").is_unknown());
    assert!(plan.planned.get("disks").index(0).get("name").is_unknown());
    // A read fails.
    let mut stage = Stage::new(&provider, "berth_vm");
    stage.state = crate::stage::value(&json!({"name": "web", "namespace": "default", "uid": "u"}));
    assert!(text_of(&stage.read().await).contains("No control plane"));
    assert!(!stage.state.is_null(), "never a silent change");
}

#[tokio::test]
async fn admission_speaks_in_the_plan_with_the_attribute() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut disk = Stage::new(&provider, "berth_disk");
    let sized = |size: &str| json!({"name": "d", "size": size});
    disk.apply(&sized("2Gi")).await;
    let plan = disk.plan(&sized("1Gi")).await;
    assert!(text_of(&plan.diagnostics).contains("[size]"), "{}", text_of(&plan.diagnostics));
    assert!(plan.requires_replace.is_empty());
    // Only the server checks this rule.
    let class = Stage::new(&provider, "berth_placement_group");
    let plan = class.plan(&json!({"name": "g", "topology_key": ""})).await;
    assert!(text_of(&plan.diagnostics).contains("[topology_key]"), "{}", text_of(&plan.diagnostics));
    let machine = Stage::new(&provider, "berth_vm");
    let with = |name: &str, value: Json| {
        let mut config = vm("web");
        config[name] = value;
        config
    };
    let tcp = json!({"port": 22});
    let exec = json!({"command": ["true"]});
    let refused = [
        (with("readiness_probe", json!({"period_seconds": 5})), "exactly one of"),
        (with("liveness_probe", json!({"tcp_socket": tcp, "exec": exec})), "exactly one of"),
        (
            with("liveness_probe", json!({"tcp_socket": tcp, "success_threshold": 2})),
            "of a liveness probe must be 1",
        ),
        (with("hooks", json!({"pre_stop": {"timeout_seconds": 5}})), "exactly one of"),
        (with("hooks", json!({"pre_stop": {"exec": exec, "snapshot": {}}})), "exactly one of"),
        (with("start_delay_seconds", json!(5)), "startDelaySeconds needs startOrder"),
    ];
    for (config, words) in refused {
        let text = text_of(&machine.plan(&config).await.diagnostics);
        assert!(text.contains(words), "{config}: {text}");
    }
    plane.close().await;
}

#[tokio::test]
async fn a_policy_that_refuses_a_change_speaks_in_the_plan_and_in_the_apply_in_its_own_words() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut disk = Stage::new(&provider, "berth_disk");
    let sized = |size: &str| json!({"name": "d", "size": size});
    disk.apply(&sized("2Gi")).await;
    let quotas: Api<Quota> = Api::namespaced(plane.client.clone(), "default");
    let limit = json!({"metadata": {"name": "team"}, "spec": {"hard": {"diskSize": "2Gi"}}});
    let limit = serde_json::from_value(limit).expect("a Quota");
    quotas.create(&PostParams::default(), &limit).await.expect("created");
    // The control plane of the tests counts the same for every Quota.
    while plane.object("Quota", "team").await.pointer("/status/used/diskSize") != Some(&json!("1Gi")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let words = "Quota team: diskSize: 1Gi used, more needed, limit 2Gi";
    let plan = disk.plan(&sized("4Gi")).await;
    assert!(text_of(&plan.diagnostics).contains(words), "{}", text_of(&plan.diagnostics));
    assert!(!plan.diagnostics.iter().any(|it| it.is_error()), "an error would block a destroy");
    let text = text_of(&disk.apply(&sized("4Gi")).await.diagnostics);
    assert!(text.contains(words) && !text.contains("berth-editor"), "{text}");
    assert_eq!(text_of(&disk.plan(&sized("3Gi")).await.diagnostics), "");
    plane.close().await;
}

#[tokio::test]
async fn a_create_after_a_destroy_waits_a_moment_for_the_count_of_a_quota() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut former = Stage::new(&provider, "berth_disk");
    former.apply(&json!({"name": "former", "size": "1Gi"})).await;
    plane.declare_as("others", "Quota", "team", json!({"hard": {"diskSize": "2Gi"}})).await;
    let quotas = plane.objects("Quota");
    while plane.object("Quota", "team").await.pointer("/status/used/diskSize") != Some(&json!("1Gi")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let destroyed = former.destroy().await;
    assert!(destroyed.is_clean(), "{}", destroyed.text());
    // In the place of a lower count, which the control plane of the tests does not have.
    let counted = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let patch = Patch::Merge(json!({"spec": {"hard": {"diskSize": "8Gi"}}}));
        quotas.patch("team", &PatchParams::default(), &patch).await.expect("raised");
    };
    let mut disk = Stage::new(&provider, "berth_disk");
    let config = json!({"name": "d", "size": "4Gi"});
    let (applied, ()) = tokio::join!(disk.apply(&config), counted);
    assert!(!diagnostic::has_errors(&applied.diagnostics), "{}", applied.text());
    plane.close().await;
}

#[tokio::test]
async fn an_object_of_the_same_owner_and_content_is_adopted_and_no_other() {
    let plane = ControlPlane::in_memory().await;
    let ours = provider(&plane.client, "default");
    let config = json!({"name": "d", "size": "1Gi"});
    let mut first = Stage::new(&ours, "berth_disk");
    first.apply(&config).await;
    // The state was lost after the create.
    let mut again = Stage::new(&ours, "berth_disk");
    let adopted = again.apply(&config).await;
    let text = adopted.text();
    assert!(!diagnostic::has_errors(&adopted.diagnostics), "{text}");
    assert!(text.contains("Disk default/d existed already") && text.contains("Owner \"default\""), "{text}");
    assert!(text.contains("another workspace"), "{text}");
    assert_eq!(again.state.get("uid"), first.state.get("uid"));

    let mut other = Stage::new(&ours, "berth_disk");
    let refused = other.apply(&json!({"name": "d", "size": "2Gi"})).await;
    assert!(refused.text().contains("terraform import berth_disk.NAME default/d"), "{}", refused.text());
    assert!(other.state.is_null());

    let theirs = provider(&plane.client, "other-team");
    let refused = Stage::new(&theirs, "berth_disk").apply(&config).await;
    assert!(refused.text().contains("exists already"), "{}", refused.text());
    plane.close().await;
}

#[tokio::test]
async fn another_object_of_the_same_name_is_neither_shown_nor_deleted() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let config = json!({"name": "d", "size": "1Gi"});
    let mut stage = Stage::new(&provider, "berth_disk");
    stage.apply(&config).await;
    plane.objects("Disk").delete("d", &kube::api::DeleteParams::default()).await.expect("it is there");
    while plane.objects("Disk").get_opt("d").await.expect("it answers").is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    plane.declare_as("flux", "Disk", "d", json!({"size": "3Gi"})).await;
    let destroyed = stage.destroy().await;
    assert!(destroyed.is_clean(), "{}", destroyed.text());
    assert_eq!(plane.object("Disk", "d").await["spec"]["size"], "3Gi", "the other one lives");

    let mut stage = Stage::new(&provider, "berth_disk");
    stage.state =
        crate::stage::value(&json!({"name": "d", "namespace": "default", "uid": "gone", "size": "1Gi"}));
    let text = text_of(&stage.read().await);
    assert!(text.contains("another object now"), "{text}");
    assert!(stage.state.is_null());
    plane.close().await;
}

#[tokio::test]
async fn an_object_that_moved_to_another_control_plane_is_the_one_it_was() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_disk");
    stage.apply(&json!({"name": "d", "size": "1Gi"})).await;
    let moved = json!({"metadata": {"annotations": {"berth.dev/moved-from": "later,before"}}});
    let patch = Patch::Merge(&moved);
    plane.objects("Disk").patch("d", &PatchParams::default(), &patch).await.expect("it is there");
    let of_before =
        crate::stage::value(&json!({"name": "d", "namespace": "default", "uid": "before", "size": "1Gi"}));
    stage.state = of_before.clone();
    let text = stage.read().await;
    assert!(text.is_empty(), "{}", text_of(&text));
    let uid = plane.object("Disk", "d").await["metadata"]["uid"].as_str().map(str::to_owned);
    assert_eq!(stage.state.get("uid").as_str().map(str::to_owned), uid, "the state has its uid of now");
    stage.state = of_before;
    let destroyed = stage.destroy().await;
    assert!(destroyed.is_clean(), "{}", destroyed.text());
    let left = plane.objects("Disk").get_opt("d").await.expect("it answers");
    assert!(left.is_none_or(|left| left.metadata.deletion_timestamp.is_some()), "it is not left behind");
    plane.close().await;
}

#[tokio::test]
async fn what_a_program_declares_is_not_overwritten_unless_forced() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let config = |policy: &str| json!({"name": "d", "size": "1Gi", "deletion_policy": policy});
    let mut stage = Stage::new(&provider, "berth_disk");
    stage.apply(&config("Delete")).await;
    plane.declare_as("flux", "Disk", "d", json!({"size": "1Gi", "deletionPolicy": "Retain"})).await;
    stage.read().await;
    let refused = stage.apply(&config("Delete")).await;
    let text = refused.text();
    assert!(
        text.contains("flux") && text.contains("deletionPolicy") && text.contains("force_conflicts"),
        "{text}"
    );
    assert!(text.contains("[deletion_policy]"), "{text}");
    let mut forced = config("Delete");
    forced["force_conflicts"] = true.into();
    let applied = stage.apply(&forced).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert_eq!(plane.object("Disk", "d").await["spec"]["deletionPolicy"], "Delete");
    plane.close().await;
}

#[tokio::test]
async fn what_a_person_changed_after_the_plan_is_not_overwritten_unseen() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let config = |policy: &str| json!({"name": "d", "size": "1Gi", "deletion_policy": policy});
    let mut stage = Stage::new(&provider, "berth_disk");
    stage.apply(&config("Delete")).await;
    let mut larger = config("Delete");
    larger["size"] = "2Gi".into();
    let plan = stage.plan(&larger).await;
    plane.edit("Disk", "d", json!({"spec": {"deletionPolicy": "Retain"}})).await;
    let applied = stage.apply_plan(plan, &larger).await;
    assert!(applied.text().contains("plan again"), "{}", applied.text());
    assert_eq!(plane.object("Disk", "d").await["spec"]["deletionPolicy"], "Retain");
    stage.read().await;
    let applied = stage.apply(&larger).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert_eq!(plane.object("Disk", "d").await["spec"]["deletionPolicy"], "Delete");
    plane.close().await;
}

#[tokio::test]
async fn stalled_on_create_is_an_error_when_nothing_is_lost_by_it() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_image");
    let applied = stage.apply(&image("stalled", "60s")).await;
    assert!(applied.tainted && applied.text().contains("InvalidSpec"), "{}", applied.text());
    assert!(applied.text().contains("cannot become ready"), "before the timeout: {}", applied.text());
    let mut stage = Stage::new(&provider, "berth_vm");
    let applied = stage.apply(&vm("stalled-vm")).await;
    assert!(applied.tainted, "{}", applied.text());
    plane.close().await;
}

#[tokio::test]
async fn a_timeout_is_a_warning_with_the_state_kept_unless_asked_otherwise() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_image");
    let applied = stage.apply(&image("slow", "4s")).await;
    assert_eq!(applied.diagnostics.len(), 1);
    assert_eq!(applied.diagnostics[0].severity, Severity::Warning);
    assert!(applied.text().contains("Pulling"), "{}", applied.text());
    assert!(!applied.tainted && stage.state.get("uid").as_str().is_some());
    let mut config = image("slow-2", "2s");
    config["on_timeout"] = "fail".into();
    let applied = Stage::new(&provider, "berth_image").apply(&config).await;
    assert!(applied.tainted, "{}", applied.text());
    plane.close().await;
}

#[tokio::test]
async fn a_stop_ends_the_wait_with_the_state_kept() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_image");
    let cancel = stage.cancel.clone();
    let stop_once_created = async {
        while plane.count("Image").await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        cancel.cancel();
    };
    let config = image("slow", "60s");
    let (applied, ()) = tokio::join!(stage.apply(&config), stop_once_created);
    assert!(applied.text().contains("Stopped waiting"), "{}", applied.text());
    assert!(!applied.tainted && stage.state.get("uid").as_str().is_some(), "{}", applied.text());
    plane.close().await;
}

#[tokio::test]
async fn a_disk_in_use_is_refused_while_its_user_stays_and_goes_when_it_goes() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut disk = Stage::new(&provider, "berth_disk");
    disk.apply(&json!({"name": "root", "size": "1Gi"})).await;
    let mut machine = Stage::new(&provider, "berth_vm");
    let made = machine.apply(&vm("web")).await;
    assert!(made.is_clean(), "{}", made.text());
    let in_use = async || plane.object("Disk", "root").await.pointer("/status/usedBy").is_some();
    while !in_use().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = disk.destroy().await;
    assert!(refused.text().contains("in use by VM web"), "{}", refused.text());
    assert!(!disk.state.is_null());
    assert!(machine.destroy().await.is_clean());
    let destroyed = disk.destroy().await;
    assert!(destroyed.is_clean(), "{}", destroyed.text());
    plane.close().await;
}

#[tokio::test]
async fn a_class_an_image_and_a_group_in_use_are_destroyed_once_nothing_uses_them() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut class = Stage::new(&provider, "berth_vm_class");
    class.apply(&json!({"name": "small", "cpus": 1, "memory": "256Mi"})).await;
    let mut img = Stage::new(&provider, "berth_image");
    img.apply(&image("debian", "10s")).await;
    let mut group = Stage::new(&provider, "berth_placement_group");
    group.apply(&json!({"name": "spread"})).await;
    let mut disk = Stage::new(&provider, "berth_disk");
    disk.apply(&json!({"name": "root", "size": "4Gi", "image": "debian"})).await;
    let mut machine = Stage::new(&provider, "berth_vm");
    let mut config = vm("web");
    config["placement"] = json!({"group": "spread"});
    let made = machine.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    let listed = async |kind, name| plane.object(kind, name).await.pointer("/status/usedBy").is_some();
    let used = [("VMClass", "small"), ("PlacementGroup", "spread"), ("Image", "debian")];
    for (kind, name) in used {
        while !listed(kind, name).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // All together, as destroy does without references between resources. The users are destroyed last: until then, the
    // objects that they use are accepted for deletion and still exist.
    let terminating =
        async |kind, name| plane.object(kind, name).await.pointer("/metadata/deletionTimestamp").is_some();
    let (class, group, img, users) = tokio::join!(class.destroy(), group.destroy(), img.destroy(), async {
        for (kind, name) in used {
            while !terminating(kind, name).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        (machine.destroy().await, disk.destroy().await)
    });
    for destroyed in [class, group, img, users.0, users.1] {
        assert!(destroyed.is_clean(), "{}", destroyed.text());
    }
    plane.close().await;
}

#[tokio::test]
async fn a_deletion_that_is_held_for_longer_than_the_timeout_warns_and_names_the_user() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut class = Stage::new(&provider, "berth_vm_class");
    let config = json!({"name": "small", "cpus": 1, "memory": "256Mi", "timeouts": {"delete": "2s"}});
    class.apply(&config).await;
    let machine = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "busy"},
        "spec": {"class": "small", "disks": [{"name": "root", "boot": true}]}});
    plane.declare_as("flux", "VM", "busy", machine["spec"].clone()).await;
    while plane.object("VM", "busy").await.pointer("/metadata/finalizers").is_none()
        || plane.object("VMClass", "small").await.pointer("/status/usedBy").is_none()
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A user under deletion, which the controllers list until it is gone.
    plane.hold_users.store(true, Ordering::SeqCst);
    plane.objects("VM").delete("busy", &kube::api::DeleteParams::default()).await.expect("it is there");
    let destroyed = class.destroy().await;
    let text = destroyed.text();
    assert!(text.contains("VMClass default/small is still being deleted") && text.contains("busy"), "{text}");
    assert!(class.state.is_null(), "Terraform forgets it");
    plane.close().await;
}

#[tokio::test]
async fn what_is_protected_is_refused_at_plan_and_the_attribute_is_named() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let disk = |size: &str, image: Option<&str>, protected: bool| json!({"name": "kept", "size": size, "image": image, "deletion_protection": protected});
    let mut stage = Stage::new(&provider, "berth_disk");
    let made = stage.apply(&disk("1Gi", None, true)).await;
    assert!(made.is_clean(), "{}", made.text());
    assert_eq!(plane.object("Disk", "kept").await["spec"]["deletionProtection"], true);
    assert!(stage.plan_is_empty(&disk("1Gi", None, true)).await);
    for protected in [true, false] {
        let replaced = stage.plan(&disk("1Gi", Some("debian"), protected)).await;
        let text = text_of(&replaced.diagnostics);
        assert!(text.contains("deletion_protection = true and would be replaced"), "{text}");
    }
    let text = text_of(&stage.plan_destroy().await.diagnostics);
    assert!(text.contains("Set deletion_protection = false"), "{text}");
    // Without a plan, admission refuses.
    let refused = stage.destroy().await;
    assert!(refused.text().contains("Disk kept is protected"), "{}", refused.text());
    let changed = stage.apply(&disk("1Gi", None, false)).await;
    assert!(changed.is_clean(), "{}", changed.text());
    assert!(stage.plan_destroy().await.diagnostics.is_empty());
    assert!(stage.destroy().await.is_clean());
    plane.close().await;
}

#[tokio::test]
async fn a_gate_on_deletion_is_named_with_its_reason_and_left_in_place() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_vm");
    let vm = json!({"name": "gated", "cpus": 1, "memory": "64Mi", "disks": [{"name": "root", "boot": true}], "wait_for": "none"});
    stage.apply(&vm).await;
    let gate = |reason: Json| json!({"metadata": {"annotations": {"delete.check.berth.dev/backup": reason}}});
    plane.edit("VM", "gated", gate(json!("a backup is being made"))).await;
    let mut labelled = vm.clone();
    labelled["labels"] = json!({"a": "b"});
    let changed = stage.apply(&labelled).await;
    assert!(changed.is_clean(), "{}", changed.text());
    let refused = stage.destroy().await.text();
    assert!(
        refused.contains(
            "VM gated is held by the annotation delete.check.berth.dev/backup (a backup is being made)"
        ),
        "{refused}"
    );
    plane.edit("VM", "gated", gate(Json::Null)).await;
    let destroyed = stage.destroy().await;
    assert!(destroyed.is_clean(), "{}", destroyed.text());
    plane.close().await;
}

#[tokio::test]
async fn a_disk_the_guest_still_uses_is_not_forgotten() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_hotswap_disk_attachment");
    stage.apply(&json!({"name": "busy", "vm": "web", "disk": "data"})).await;
    let refused = stage.destroy().await;
    assert!(refused.text().contains("unmount"), "{}", refused.text());
    assert!(!stage.state.is_null());
    plane.close().await;
}

#[tokio::test]
async fn an_apply_survives_a_control_plane_that_goes_away_for_a_while() {
    let plane = ControlPlane::in_memory().await;
    let (client, line) = plane.line();
    let provider = provider(&client, "default");
    // The response to the declaration is lost: the second attempt finds the object that the first created.
    line.lose_answer.store(true, Ordering::SeqCst);
    let mut disk = Stage::new(&provider, "berth_disk");
    let plan = disk.plan(&json!({"name": "d", "size": "1Gi"})).await;
    line.lose_answer.store(true, Ordering::SeqCst);
    let made = disk.apply_plan(plan, &json!({"name": "d", "size": "1Gi"})).await;
    assert!(made.is_clean(), "{}", made.text());
    assert_eq!(plane.count("Disk").await, 1);
    // The control plane goes away during a wait and comes back.
    let mut image_stage = Stage::new(&provider, "berth_image");
    let plan = image_stage.plan(&image("img", "20s")).await;
    line.failures.store(3, Ordering::SeqCst);
    let made = image_stage.apply_plan(plan, &image("img", "20s")).await;
    assert!(made.is_clean(), "{}", made.text());
    plane.close().await;
}

#[tokio::test]
async fn without_a_control_plane_an_apply_and_a_read_fail_clearly_and_the_next_apply_goes_on() {
    let plane = ControlPlane::in_memory().await;
    let (client, line) = plane.line();
    let provider = provider(&client, "default");
    let config = json!({"name": "d", "size": "1Gi", "timeouts": {"create": "1s", "read": "1s"}});
    let mut disk = Stage::new(&provider, "berth_disk");
    line.cut.store(true, Ordering::SeqCst);
    let failed = disk.apply(&config).await;
    assert!(failed.text().contains("does not respond") && !failed.tainted, "{}", failed.text());
    line.cut.store(false, Ordering::SeqCst);
    let made = disk.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    line.cut.store(true, Ordering::SeqCst);
    let before = disk.state.clone();
    let text = text_of(&disk.read().await);
    assert!(text.contains("Error"), "{text}");
    assert_eq!(disk.state, before);
    plane.close().await;
}

#[tokio::test]
async fn a_destroy_by_a_server_that_does_not_know_the_kind_keeps_the_state() {
    let plane = ControlPlane::in_memory().await;
    let mut class = Stage::new(&provider(&plane.client, "default"), "berth_vm_class");
    let made = class.apply(&json!({"name": "small", "cpus": 1, "memory": "1Gi"})).await;
    assert!(!diagnostic::has_errors(&made.diagnostics), "{}", made.text());
    let server = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        let body = kube::client::Body::from(b"404 page not found".to_vec());
        let mut response = http::Response::new(body);
        *response.status_mut() = http::StatusCode::NOT_FOUND;
        Ok::<_, tower::BoxError>(response)
    });
    let elsewhere = provider(&kube::Client::new(server, "default"), "default");
    let mut lost = Stage::new(&elsewhere, "berth_vm_class").with_state_of(&class);
    let refused = lost.destroy().await;
    assert!(refused.text().contains("does not serve the kind VMClass"), "{}", refused.text());
    assert!(!lost.state.is_null());
    assert_eq!(plane.count("VMClass").await, 1);
    plane.close().await;
}

#[tokio::test]
async fn an_attachment_to_a_stopped_vm_need_not_be_waited_for() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_hotswap_disk_attachment");
    let config = json!({"name": "slow", "vm": "web", "disk": "data", "wait_for": "none"});
    let made = stage.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    plane.close().await;
}

#[tokio::test]
async fn a_replacement_of_the_same_name_before_the_destruction_is_refused_and_harms_nothing() {
    let plane = ControlPlane::in_memory().await;
    let ours = provider(&plane.client, "default");
    let config = json!({"name": "d", "size": "1Gi"});
    let mut disk = Stage::new(&ours, "berth_disk");
    assert!(disk.apply(&config).await.is_clean());
    let uid = plane.object("Disk", "d").await["metadata"]["uid"].clone();

    // As core does for `-replace` with create_before_destroy: the change, the create, and only then the destruction.
    let planning = provider(&plane.client, "default");
    let mut replacement = Stage::new(&planning, "berth_disk");
    (replacement.state, replacement.private) = (disk.state.clone(), disk.private.clone());
    replacement.plan(&config).await;
    let plan = replacement.plan_from(tfplugin6::Value::Null, &config).await;
    let applying = provider(&plane.client, "default");
    let mut created = Stage::new(&applying, "berth_disk");
    let refused = created.apply_plan(plan, &config).await;
    assert!(refused.text().contains("remove create_before_destroy"), "{}", refused.text());
    assert!(created.state.is_null());
    assert_eq!(plane.object("Disk", "d").await["metadata"]["uid"], uid);

    // Without create_before_destroy the old one is gone by then.
    let plan = replacement.plan_from(tfplugin6::Value::Null, &config).await;
    assert!(disk.destroy().await.is_clean());
    let made = created.apply_plan(plan, &config).await;
    assert!(made.is_clean(), "{}", made.text());
    assert_ne!(plane.object("Disk", "d").await["metadata"]["uid"], uid);
    assert!(created.plan_is_empty(&config).await);
    plane.close().await;
}
