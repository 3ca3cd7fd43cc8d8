//! List resources and generated configuration: what `terraform query` finds, and that adopting it changes nothing.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use serde_json::{Map, Value as Json, json};
use terraform_provider_berth::BerthProvider;
use tfplugin6::{
    CancellationToken, ListResource, Provider, Resource, Value,
    list_resource::{ListRequest, ListResponse},
    provider::ClientCapabilities,
    resource::{GenerateConfigRequest, GenerateConfigResponse, ValidateRequest},
};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of, value},
};

fn list_of(provider: &BerthProvider, type_name: &str) -> Arc<dyn ListResource> {
    let found = provider.list_resources().into_iter().find(|list| list.type_name() == type_name);
    found.unwrap_or_else(|| panic!("no list of {type_name}"))
}

async fn list(provider: &BerthProvider, type_name: &str, config: &Json, limit: usize) -> ListResponse {
    let config = value(config);
    let cancel = CancellationToken::new();
    list_of(provider, type_name).list(ListRequest { config, include_resource: true, limit, cancel }).await
}

async fn names(provider: &BerthProvider, type_name: &str, config: &Json) -> Vec<String> {
    let listed = list(provider, type_name, config, 100).await;
    assert!(listed.diagnostics.is_empty(), "{}", text_of(&listed.diagnostics));
    listed.results.into_iter().map(|result| result.display_name).collect()
}

async fn generate(provider: &BerthProvider, type_name: &str, state: Value) -> GenerateConfigResponse {
    let resource = provider.resources().into_iter().find(|resource| resource.type_name() == type_name);
    let resource: Arc<dyn Resource> = resource.expect("the provider has it");
    assert!(resource.generates_config(), "{type_name}");
    resource.generate_config(GenerateConfigRequest { state, cancel: CancellationToken::new() }).await
}

/// A configuration as JSON.
fn json_of(config: &Value) -> Json {
    match config {
        Value::Null => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => serde_json::from_str(&number.to_string()).expect("a number"),
        Value::String(text) => text.as_str().into(),
        Value::List(elements) => elements.iter().map(json_of).collect(),
        Value::Map(entries) => {
            let entries = entries.iter().map(|(name, value)| (name.clone(), json_of(value)));
            Json::Object(entries.collect::<Map<_, _>>())
        }
        Value::Unknown(_) | Value::Dynamic(_) => panic!("{config:?} in a configuration"),
    }
}

/// The configuration as a person would write it.
fn without_nulls(config: Json) -> Json {
    match config {
        Json::Array(elements) => elements.into_iter().map(without_nulls).collect(),
        Json::Object(entries) => {
            let entries = entries.into_iter().filter(|(_, value)| !value.is_null());
            Json::Object(entries.map(|(name, value)| (name, without_nulls(value))).collect())
        }
        other => other,
    }
}

async fn create(plane: &ControlPlane, kind: &str, metadata: Json, spec: Json) {
    let object =
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
    let object = serde_json::from_value(object).expect("an object");
    plane.objects(kind).create(&PostParams::default(), &object).await.expect("it is valid");
}

#[tokio::test]
async fn the_generated_configuration_of_every_kind_plans_empty() {
    let plane = ControlPlane::in_memory().await;
    plane.host("h1", json!({"disk": "ssd"})).await;
    let provider = provider(&plane.client, "default");
    // Made by others, and by another owner of the provider.
    create(&plane, "Disk", json!({"name": "root", "labels": {"tier": "web"}}), json!({"size": "1Gi"})).await;
    create(&plane, "Disk", json!({"name": "data"}), json!({"size": "2Gi", "deletionProtection": true})).await;
    create(&plane, "VMClass", json!({"name": "small"}), json!({"cpus": 1, "memory": "512Mi"})).await;
    create(&plane, "Network", json!({"name": "backend"}), json!({"cidr": "10.80.0.0/24"})).await;
    create(&plane, "PlacementGroup", json!({"name": "web"}), json!({"policy": "Spread"})).await;
    create(
        &plane,
        "VM",
        json!({"name": "plain"}),
        json!({"class": "small", "disks": [{"name": "root", "boot": true}]}),
    )
    .await;
    let other = crate::stage::provider(&plane.client, "other");
    for (type_name, config) in [
        ("berth_ip_pool", json!({"name": "segment", "cidrs": ["192.0.2.64/27"], "mode": "l2"})),
        ("berth_public_ip", json!({"name": "web", "pool": "segment"})),
        (
            "berth_security_group",
            json!({"name": "web", "ingress": [{"protocol": "tcp", "ports": ["22"], "security_groups": ["web"]}], "egress": []}),
        ),
        ("berth_storage_pool", json!({"name": "fast", "trash_retention_seconds": 5})),
        (
            "berth_image",
            json!({"name": "debian", "source": {"url": "https://example.org/d.qcow2", "sha256": "0".repeat(64)},
            "timeouts": {"create": "5s"}}),
        ),
        ("berth_key_class", json!({"name": "default", "secret": {"name": "disk-key"}})),
        (
            "berth_key_class",
            json!({"name": "vault", "vault": {"address": "https://vault.example:8200", "key": "berth",
                "app_role": {"role_id": "r", "secret": {"name": "vault"}}}}),
        ),
        ("berth_disk", json!({"name": "second", "size": "1Gi", "encryption": {"key_class": "default"}})),
        ("berth_disk_snapshot", json!({"name": "before", "disk": "second"})),
        (
            "berth_backup_repository",
            json!({"name": "offsite", "s3": {"endpoint": "https://s3.example.org", "bucket": "backups", "prefix": "a/b"},
                "credentials_secret_name": "s3-login", "password_secret_name": "backup-password"}),
        ),
        ("berth_backup", json!({"name": "second-1", "repository": "offsite", "snapshot": "before"})),
        (
            "berth_vm",
            json!({"name": "full", "class": "small", "disks": [{"name": "second", "boot": true}],
            "network_interfaces": [{"name": "lan", "network": "backend", "public_ip": "web"}], "labels": {"a": "b"},
            "placement": {"group": "web", "host_selector": {"disk": "ssd"}}, "restart_policy": "Always",
            "bootstrap": {"ssh_authorized_keys": ["ssh-ed25519 AAAA me"], "hostname": "full"},
            "stop": {"mode": "Hard"}, "restart_token": "1", "timeouts": {"create": "20s"}}),
        ),
        ("berth_vm_group", json!({"name": "app", "boot_order": [{"vms": ["full"]}]})),
        ("berth_hotswap_disk_attachment", json!({"vm": "full", "disk": "data"})),
        ("berth_vm_snapshot", json!({"name": "before", "vm": "full"})),
        (
            "berth_snapshot_schedule",
            json!({"name": "nightly", "schedule": "@daily", "vms": ["full"], "keep": {"daily": 7},
                "backup": {"repository": "offsite", "keep": {"daily": 30}}}),
        ),
        ("berth_quota", json!({"name": "team", "hard": {"disk_size": "1Ti", "vms": 99}})),
    ] {
        let made = Stage::new(&other, type_name).apply(&config).await;
        assert!(!text_of(&made.diagnostics).contains("Error"), "{type_name}: {}", made.text());
    }

    let lists = provider.list_resources();
    assert_eq!(lists.len(), provider.resources().len());
    for resource in lists {
        let type_name = resource.type_name();
        let listed = list(&provider, type_name, &json!({}), 100).await;
        assert!(listed.diagnostics.is_empty(), "{type_name}: {}", text_of(&listed.diagnostics));
        assert!(!listed.results.is_empty(), "{type_name}");
        for result in listed.results {
            let mut stage = Stage::new(&provider, type_name);
            let read = stage.import(&result.display_name).await;
            assert!(read.is_empty(), "{type_name} {}: {}", result.display_name, text_of(&read));
            let state = result.resource.expect("it was requested");
            assert_eq!(state, stage.state, "{type_name} {}", result.display_name);
            assert_eq!(result.identity.get("name"), state.get("name"));
            let generated = generate(&provider, type_name, state).await;
            assert!(generated.diagnostics.is_empty(), "{}", text_of(&generated.diagnostics));
            let config = json_of(&generated.config);
            let problems = stage.validate(&config).await;
            assert!(problems.is_empty(), "{config}: {}", text_of(&problems));
            assert!(stage.plan_is_empty(&config).await, "{type_name}: {config:#}");
        }
    }

    let plain = list(&provider, "berth_vm", &json!({"field_selector": "metadata.name=plain"}), 100).await;
    let state = plain.results.into_iter().next().and_then(|result| result.resource).expect("it is listed");
    let config = without_nulls(json_of(&generate(&provider, "berth_vm", state).await.config));
    insta::assert_json_snapshot!(config, @r#"
    {
      "class": "small",
      "disks": [
        {
          "boot": true,
          "name": "root"
        }
      ],
      "name": "plain",
      "namespace": "default"
    }
    "#);
    plane.close().await;
}

#[tokio::test]
async fn user_data_is_left_out_with_a_warning() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    create(&plane, "VMClass", json!({"name": "small"}), json!({"cpus": 1, "memory": "512Mi"})).await;
    create(&plane, "Disk", json!({"name": "root"}), json!({"size": "1Gi"})).await;
    let vm = json!({"name": "web", "class": "small", "disks": [{"name": "root", "boot": true}],
        "bootstrap": {"user_data": "#cloud-config\npassword: canary\n"}});
    let made = Stage::new(&provider, "berth_vm").apply(&vm).await;
    assert!(made.is_clean(), "{}", made.text());
    let listed = list(&provider, "berth_vm", &json!({}), 100).await;
    let state = listed.results.into_iter().next().and_then(|result| result.resource).expect("it is listed");
    let generated = generate(&provider, "berth_vm", state).await;
    let text = text_of(&generated.diagnostics);
    assert!(text.contains("Warning: bootstrap.user_data is left out") && !text.contains("canary"), "{text}");
    plane.close().await;
}

#[tokio::test]
async fn a_list_is_selected_as_in_data_sources_and_ends_at_its_limit() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let team: Namespace = serde_json::from_value(json!({"metadata": {"name": "team"}})).expect("a namespace");
    let namespaces: Api<Namespace> = Api::all(plane.client.clone());
    namespaces.create(&PostParams::default(), &team).await.expect("it is valid");
    for i in 0..12 {
        let tier = if i % 2 == 0 { "web" } else { "db" };
        let metadata = json!({"name": format!("c{i:02}"), "labels": {"tier": tier}});
        create(&plane, "VMClass", metadata, json!({"cpus": 1, "memory": "512Mi"})).await;
    }
    for name in ["slow1", "slow2", "slow3"] {
        create(&plane, "VMClass", json!({"name": name}), json!({"cpus": 1, "memory": "512Mi"})).await;
    }
    let other = json!({"name": "elsewhere", "namespace": "team", "cpus": 1, "memory": "512Mi"});
    let made = Stage::new(&provider, "berth_vm_class").apply(&other).await;
    assert!(made.is_clean(), "{}", made.text());

    for (limit, count) in [(0, 0), (1, 1), (7, 7), (12, 12)] {
        let listed = list(&provider, "berth_vm_class", &json!({}), limit).await;
        let names: Vec<&str> = listed.results.iter().map(|result| result.display_name.as_str()).collect();
        assert_eq!(names.len(), count, "limit {limit}");
        let expected: Vec<String> = (0..count).map(|i| format!("default/c{i:02}")).collect();
        assert_eq!(names, expected, "limit {limit}");
    }
    let listed = |config: Json| {
        let provider = &provider;
        async move { names(provider, "berth_vm_class", &config).await }
    };
    assert_eq!(listed(json!({})).await.len(), 15);
    assert_eq!(listed(json!({"label_selector": "tier=db"})).await.len(), 6);
    assert_eq!(listed(json!({"field_selector": "metadata.name=c07"})).await, ["default/c07"]);
    assert_eq!(listed(json!({"namespace": "team"})).await, ["team/elsewhere"]);
    let all = list(&provider, "berth_vm_class", &json!({"all_namespaces": true}), 1000).await;
    assert_eq!(all.results.len(), 16);
    // Pages of two, of which the first have nothing that is wanted once all of these are ready.
    while listed(json!({"ready": true})).await.len() < 12 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let unready = list(&provider, "berth_vm_class", &json!({"ready": false}), 2).await;
    let unready: Vec<&str> = unready.results.iter().map(|result| result.display_name.as_str()).collect();
    assert_eq!(unready, ["default/slow1", "default/slow2"]);
    assert_eq!(all.results.last().expect("the last").identity.get("namespace").as_str(), Some("team"));
    plane.close().await;
}

#[tokio::test]
async fn what_cannot_be_listed_is_an_error_with_its_place() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    let config = value(&json!({"namespace": "team", "all_namespaces": true, "label_selector": "a b"}));
    let found = list_of(&provider, "berth_vm").validate(ValidateRequest { config, client, cancel }).await;
    let text = text_of(&found);
    assert!(text.contains("[all_namespaces]") && text.contains("[label_selector]"), "{text}");
    let attributes = list_of(&provider, "berth_host").schema().block.attributes;
    assert!(attributes.iter().all(|attribute| attribute.name != "namespace"), "a Host has no namespace");

    let offline = BerthProvider::default();
    let failed = list(&offline, "berth_vm", &json!({}), 100).await;
    assert!(text_of(&failed.diagnostics).contains("No control plane") && failed.results.is_empty());
    plane.close().await;
}
