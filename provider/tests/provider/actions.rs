//! Actions on a VM: what they change, that the next plan stays empty, their progress and their errors.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use kube::api::PostParams;
use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;
use tfplugin6::{
    Action, CancellationToken, Diagnostic, Provider, Value,
    action::{ActionRequest, Progress},
    provider::ClientCapabilities,
    resource::ValidateRequest,
};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of, value},
};

const RESTART: &str = "berth_vm_restart";
const POWER: &str = "berth_vm_power";
const MOVE: &str = "berth_vm_move";

fn action(provider: &BerthProvider, type_name: &str) -> Arc<dyn Action> {
    let found = provider.actions().into_iter().find(|action| action.type_name() == type_name);
    found.unwrap_or_else(|| panic!("no action {type_name}"))
}

fn request(config: &Json, cancel: &CancellationToken) -> ActionRequest {
    ActionRequest { config: value(config), client: ClientCapabilities::default(), cancel: cancel.clone() }
}

/// The progress and the diagnostics of an invocation.
async fn invoke(provider: &BerthProvider, type_name: &str, config: &Json) -> (Vec<String>, Vec<Diagnostic>) {
    let (progress, mut messages) = Progress::channel();
    let request = request(config, &CancellationToken::new());
    let diagnostics = action(provider, type_name).invoke(request, progress).await;
    let mut all = Vec::new();
    while let Some(message) = messages.recv().await {
        all.push(message);
    }
    (all, diagnostics)
}

async fn done(provider: &BerthProvider, type_name: &str, config: &Json) -> Vec<String> {
    let (messages, diagnostics) = invoke(provider, type_name, config).await;
    assert!(diagnostics.is_empty(), "{}", text_of(&diagnostics));
    messages
}

async fn failed(provider: &BerthProvider, type_name: &str, config: &Json) -> String {
    let (_, diagnostics) = invoke(provider, type_name, config).await;
    assert!(!diagnostics.is_empty(), "{config}");
    text_of(&diagnostics)
}

fn vm(name: &str) -> Json {
    json!({"name": name, "class": "small", "disks": [{"name": name, "boot": true}], "wait_for": "none"})
}

async fn made(plane: &ControlPlane, provider: &BerthProvider, config: &Json) -> Stage {
    prepared(plane, config["name"].as_str().expect("a name")).await;
    let mut stage = Stage::new(provider, "berth_vm");
    let applied = stage.apply(config).await;
    assert!(applied.is_clean(), "{}", applied.text());
    stage
}

async fn prepared(plane: &ControlPlane, name: &str) {
    if plane.count("VMClass").await == 0 {
        create(plane, "VMClass", "small", json!({"cpus": 1, "memory": "512Mi"})).await;
    }
    create(plane, "Disk", name, json!({"size": "1Gi"})).await;
}

async fn create(plane: &ControlPlane, kind: &str, name: &str, spec: Json) {
    let object =
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let object = serde_json::from_value(object).expect("an object");
    plane.objects(kind).create(&PostParams::default(), &object).await.expect("it is valid");
}

async fn token(plane: &ControlPlane, name: &str) -> Option<String> {
    let object = plane.object("VM", name).await;
    object.pointer("/spec/restartToken").and_then(Json::as_str).map(str::to_owned)
}

#[tokio::test]
async fn a_restart_leaves_the_next_plan_empty_with_and_without_a_token_of_the_users() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    for (name, theirs) in [("plain", Json::Null), ("users", "1".into())] {
        let mut config = vm(name);
        config["restart_token"] = theirs.clone();
        let mut stage = made(&plane, &provider, &config).await;
        let mut before = token(&plane, name).await;
        for _ in 0..2 {
            let messages = done(&provider, RESTART, &json!({"name": name})).await;
            assert_eq!(messages.first(), Some(&format!("VM default/{name}: restart requested")));
            assert_eq!(messages.last(), Some(&format!("VM default/{name}: Running")));
            let after = token(&plane, name).await;
            assert!(after.is_some() && after != before, "{after:?}");
            assert_eq!(after.as_ref().map(|after| after.starts_with("1+")), Some(theirs == "1"));
            before = after;
            let read = stage.read().await;
            assert!(read.is_empty(), "{}", text_of(&read));
            assert!(stage.plan_is_empty(&config).await, "{name}");
        }
        // Another change does not restart it again, and a token of the user's still does.
        config["deletion_protection"] = true.into();
        let applied = stage.apply(&config).await;
        assert!(applied.is_clean(), "{}", applied.text());
        assert_eq!(token(&plane, name).await, before);
        config["restart_token"] = "2".into();
        let applied = stage.apply(&config).await;
        assert!(!applied.text().contains("Error"), "{}", applied.text());
        assert!(token(&plane, name).await.is_some_and(|token| token.starts_with("2+")));
    }
    plane.close().await;
}

#[tokio::test]
async fn a_move_is_requested_for_the_present_binding_and_leaves_the_next_plan_empty() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = made(&plane, &provider, &vm("mover")).await;
    // It has its host once it runs.
    done(&provider, RESTART, &json!({"name": "mover"})).await;
    let requested = async || {
        let object = plane.object("VM", "mover").await;
        object["metadata"]["annotations"]["berth.dev/move"].as_str().map(str::to_owned)
    };
    let config = |more: Json| {
        let mut config = json!({"name": "mover", "wait_for": "none"});
        more.as_object().expect("an object").iter().for_each(|(name, value)| config[name] = value.clone());
        config
    };
    let there = done(&provider, MOVE, &config(json!({"to": "host-a"}))).await;
    assert_eq!(there, ["VM default/mover: on host host-a already"]);
    assert_eq!(requested().await, None);
    let before = token(&plane, "mover").await;
    let messages = done(&provider, MOVE, &config(json!({"to": "host-b"}))).await;
    assert_eq!(
        messages.first().map(String::as_str),
        Some("VM default/mover: move from host host-a requested")
    );
    assert_eq!(requested().await.as_deref(), Some("1/host-b"));
    assert_eq!(token(&plane, "mover").await, before, "it runs on");
    done(&provider, MOVE, &config(json!({"restart": true}))).await;
    assert_eq!(requested().await.as_deref(), Some("1"));
    assert!(token(&plane, "mover").await != before, "it is restarted");
    let read = stage.read().await;
    assert!(read.is_empty(), "{}", text_of(&read));
    assert!(stage.plan_is_empty(&vm("mover")).await);
    plane.close().await;
}

#[tokio::test]
async fn the_power_of_a_vm_that_no_configuration_declares_changes() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    prepared(&plane, "free").await;
    create(&plane, "VM", "free", json!({"class": "small", "disks": [{"name": "free", "boot": true}]})).await;
    for power in ["Stopped", "Stopped", "Paused", "Running"] {
        let config = json!({"name": "free", "power": power});
        let planned = action(&provider, POWER).plan(request(&config, &CancellationToken::new())).await;
        assert!(planned.diagnostics.is_empty(), "{}", text_of(&planned.diagnostics));
        let messages = done(&provider, POWER, &config).await;
        assert_eq!(messages.first(), Some(&format!("VM default/free: power is {power}")));
        assert_eq!(messages.last(), Some(&format!("VM default/free: {power}")));
        assert_eq!(plane.object("VM", "free").await["spec"]["power"], power);
    }
    plane.close().await;
}

#[tokio::test]
async fn the_power_that_a_resource_declares_changes_only_where_the_resource_ignores_it() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut config = vm("web");
    let mut stage = made(&plane, &provider, &config).await;
    let stop = json!({"name": "web", "power": "Stopped"});
    let planned = action(&provider, POWER).plan(request(&stop, &CancellationToken::new())).await;
    for text in [text_of(&planned.diagnostics), failed(&provider, POWER, &stop).await] {
        assert!(
            text.contains("\"terraform:default\" declares it") && text.contains("ignore_changes"),
            "{text}"
        );
        assert!(text.ends_with("[power]"), "{text}");
    }
    assert_eq!(plane.object("VM", "web").await["spec"]["power"], "Running");

    let forced = json!({"name": "web", "power": "Stopped", "force_conflicts": true});
    assert_eq!(done(&provider, POWER, &forced).await.last(), Some(&"VM default/web: Stopped".to_owned()));
    let read = stage.read().await;
    assert!(read.is_empty(), "{}", text_of(&read));
    // Terraform plans with the value of the state for an attribute that is ignored.
    config["power"] = stage.state.get("power").as_str().into();
    assert_eq!(config["power"], "Stopped");
    assert!(stage.plan_is_empty(&config).await);
    config["deletion_protection"] = true.into();
    let applied = stage.apply(&config).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert_eq!(plane.object("VM", "web").await["spec"]["power"], "Stopped");
    let back = json!({"name": "web", "power": "Running"});
    assert!(failed(&provider, POWER, &back).await.contains("declares it"), "the resource declares it still");
    plane.close().await;
}

#[tokio::test]
async fn what_cannot_be_done_is_an_error_with_its_remedy() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let text = failed(&provider, RESTART, &json!({"name": "absent"})).await;
    assert!(text.contains("no VM absent") && text.ends_with("[name]"), "{text}");

    for (name, power) in [("off", "Stopped"), ("still", "Paused")] {
        let mut config = vm(name);
        config["power"] = power.into();
        made(&plane, &provider, &config).await;
        let text = failed(&provider, RESTART, &json!({"name": name})).await;
        assert!(text.contains(&format!("while power is {power}: ")), "{text}");
        assert_eq!(token(&plane, name).await, None);
    }

    made(&plane, &provider, &vm("slow")).await;
    let text = failed(&provider, RESTART, &json!({"name": "slow", "timeout": "1s"})).await;
    assert!(text.contains("1s have passed") && text.contains("Pulling"), "{text}");
    let messages = done(&provider, RESTART, &json!({"name": "slow", "wait_for": "none"})).await;
    assert_eq!(messages, ["VM default/slow: restart requested"]);
    made(&plane, &provider, &vm("stalled")).await;
    let text = failed(&provider, RESTART, &json!({"name": "stalled", "timeout": "3s"})).await;
    assert!(text.contains("is not ready yet") || text.contains("cannot become ready"), "{text}");

    let cancel = CancellationToken::new();
    let (progress, _messages) = Progress::channel();
    let slow = action(&provider, RESTART);
    let invocation = slow.invoke(request(&json!({"name": "slow"}), &cancel), progress);
    let stop = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.cancel();
    };
    let (diagnostics, ()) = tokio::join!(invocation, stop);
    assert!(
        text_of(&diagnostics).contains("Stopped waiting for VM default/slow"),
        "{}",
        text_of(&diagnostics)
    );

    let offline = BerthProvider::default();
    assert!(failed(&offline, RESTART, &json!({"name": "web"})).await.contains("No control plane"));
    let unknown = json!({"name": "<unknown>", "power": "Stopped"});
    let planned = action(&offline, POWER).plan(request(&unknown, &CancellationToken::new())).await;
    assert!(planned.diagnostics.is_empty() && planned.deferred.is_none());
    plane.close().await;
}

#[tokio::test]
async fn a_restart_whose_response_is_lost_restarts_the_vm_once() {
    let plane = ControlPlane::in_memory().await;
    made(&plane, &provider(&plane.client, "default"), &vm("web")).await;
    let generation = async || plane.object("VM", "web").await["metadata"]["generation"].as_i64();
    let before = generation().await.expect("a number");
    let (client, line) = plane.line();
    line.lose_answer.store(true, Ordering::SeqCst);
    done(&provider(&client, "default"), RESTART, &json!({"name": "web"})).await;
    assert!(!line.lose_answer.load(Ordering::SeqCst), "it was lost");
    assert_eq!(generation().await, Some(before + 1), "there is one token");
    plane.close().await;
}

#[tokio::test]
async fn invalid_arguments_are_named() {
    let provider = BerthProvider::default();
    for (type_name, config, at) in [
        (RESTART, json!({"name": "We b"}), "name"),
        (RESTART, json!({"name": "web", "namespace": "a.b"}), "namespace"),
        (RESTART, json!({"name": "web", "timeout": "5 minutes"}), "timeout"),
        (POWER, json!({"name": "web", "power": "on"}), "power"),
        (MOVE, json!({"name": "web", "to": "kvm 2"}), "to"),
        (POWER, json!({"name": "web", "power": "Running", "wait_for": "ready"}), "wait_for"),
    ] {
        let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
        let request = ValidateRequest { config: value(&config), client, cancel };
        let text = text_of(&action(&provider, type_name).validate(request).await);
        assert!(
            text.contains(&format!("Invalid {at}")) && text.ends_with(&format!("[{at}]")),
            "{config}: {text}"
        );
    }
    let unknown =
        Value::object([("name", Value::UNKNOWN), ("power", Value::UNKNOWN), ("timeout", Value::UNKNOWN)]);
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    let request = ValidateRequest { config: unknown, client, cancel };
    assert!(action(&provider, POWER).validate(request).await.is_empty());
}
