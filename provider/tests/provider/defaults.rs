//! The attributes `pool`, `network` and `host_selector` of the `provider` block: new disks, interfaces and VMs have them where they
//! declare none, and those that exist keep what they have.

use serde_json::{Value as Json, json};
use terraform_provider_berth::{BerthProvider, defaults::Defaults};
use tfplugin6::{
    CancellationToken, Diagnostic, Provider as _, Value, diagnostic,
    provider::{ClientCapabilities, ConfigureRequest},
    resource::ValidateRequest,
};

use crate::{
    control_plane::ControlPlane,
    lifecycle::with,
    stage::{Stage, provider, text_of, value},
};

/// The `provider` block with other defaults.
fn set(provider: &BerthProvider, defaults: Defaults) {
    let session = provider.kinds()[0].session();
    session.configure(session.settings().with_defaults(defaults));
}

/// The `provider` block with another pool, or without one.
fn configure(provider: &BerthProvider, pool: Option<&str>) {
    set(provider, Defaults { pool: pool.map(str::to_owned), ..Defaults::default() });
}

fn network(name: Option<&str>) -> Defaults {
    Defaults { network: name.map(str::to_owned), ..Defaults::default() }
}

fn zone(name: Option<&str>) -> Defaults {
    let labels = name.map(|name| ("zone".to_owned(), name.to_owned()));
    Defaults { host_selector: labels.into_iter().collect(), ..Defaults::default() }
}

fn vm() -> Json {
    json!({"name": "web", "class": "small", "disks": [{"name": "root", "boot": true}],
        "timeouts": {"create": "20s", "update": "20s", "delete": "5s", "read": null}})
}

fn disk() -> Json {
    json!({"name": "data", "size": "1Gi"})
}

#[tokio::test]
async fn another_pool_of_the_provider_neither_moves_nor_replaces_a_disk() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut pool = Stage::new(&provider, "berth_storage_pool");
    let made = pool.apply(&json!({"name": "fast"})).await;
    assert!(!diagnostic::has_errors(&made.diagnostics), "{}", made.text());
    configure(&provider, Some("fast"));
    let mut stage = Stage::new(&provider, "berth_disk");
    let made = stage.apply(&disk()).await;
    assert!(!diagnostic::has_errors(&made.diagnostics), "{}", made.text());
    assert_eq!(stage.state.get("pool").as_str(), Some("fast"));
    assert_eq!(plane.object("Disk", "data").await["spec"]["pool"], "fast");
    stage.read().await;
    for pool in [Some("fast"), Some("slow"), None] {
        configure(&provider, pool);
        assert!(stage.plan_is_empty(&disk()).await, "{pool:?}");
    }

    // An imported disk stays where it is too, and a change of the rest is made in place.
    let mut imported = Stage::new(&provider, "berth_disk");
    assert_eq!(text_of(&imported.import("data").await), "");
    let larger = with(disk(), json!({"size": "2Gi"}));
    let changed = imported.apply(&larger).await;
    assert!(!diagnostic::has_errors(&changed.diagnostics), "{}", changed.text());
    assert_eq!(imported.state.get("pool").as_str(), Some("fast"));
    assert_eq!(imported.state.get("uid"), stage.state.get("uid"), "the same disk");

    // Another pool that is named is where it moves.
    let plan = imported.plan(&with(larger, json!({"pool": "slow"}))).await;
    assert!(plan.requires_replace.is_empty(), "it stays the same disk");
    assert_eq!(plan.planned.get("pool").as_str(), Some("slow"));
    assert!(imported.destroy().await.is_clean());
    plane.close().await;
}

#[tokio::test]
async fn a_disk_without_a_pool_is_in_the_pool_default() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_disk");
    let made = stage.apply(&disk()).await;
    assert!(!diagnostic::has_errors(&made.diagnostics), "{}", made.text());
    assert_eq!(stage.state.get("pool").as_str(), Some("default"));
    assert!(stage.destroy().await.is_clean());
    plane.close().await;
}

#[tokio::test]
async fn another_network_of_the_provider_moves_no_interface() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    set(&provider, network(Some("lan")));
    let mut stage = Stage::new(&provider, "berth_vm");
    let planned = stage.plan(&vm()).await;
    assert!(text_of(&planned.diagnostics).contains("Network lan does not exist"), "it is looked up");
    let made = stage.apply(&vm()).await;
    assert!(made.is_clean(), "{}", made.text());
    assert_eq!(plane.object("VM", "web").await["spec"]["networkInterfaces"][0]["network"], "lan");
    stage.read().await;
    let mut imported = Stage::new(&provider, "berth_vm");
    assert_eq!(text_of(&imported.import("web").await), "");
    let unnamed = with(vm(), json!({"network_interfaces": [{}]}));
    for default in [Some("lan"), Some("dmz"), None] {
        set(&provider, network(default));
        for (stage, config) in [(&stage, vm()), (&stage, unnamed.clone()), (&imported, vm())] {
            assert!(stage.plan_is_empty(&config).await, "{default:?}");
        }
    }

    // A further interface is a new one.
    set(&provider, network(Some("dmz")));
    let further = with(vm(), json!({"network_interfaces": [{}, {}, {"network": "default"}]}));
    let planned = stage.plan(&further).await.planned;
    let networks: Vec<Option<&str>> = planned
        .get("network_interfaces")
        .elements()
        .iter()
        .map(|interface| interface.get("network").as_str())
        .collect();
    assert_eq!(networks, [Some("lan"), Some("dmz"), Some("default")]);
    assert!(stage.destroy().await.is_clean());
    plane.close().await;
}

#[tokio::test]
async fn another_selector_of_the_provider_changes_no_vm() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("host-a", json!({"zone": "a"})).await;
    set(&provider, zone(Some("a")));
    let mut stage = Stage::new(&provider, "berth_vm");
    let made = stage.apply(&vm()).await;
    assert!(made.is_clean(), "{}", made.text());
    assert_eq!(plane.object("VM", "web").await["spec"]["placement"], json!({"hostSelector": {"zone": "a"}}));
    stage.read().await;
    let mut imported = Stage::new(&provider, "berth_vm");
    assert_eq!(text_of(&imported.import("web").await), "");
    for default in [Some("a"), Some("b"), None] {
        set(&provider, zone(default));
        assert!(stage.plan_is_empty(&vm()).await, "{default:?}");
        assert!(imported.plan_is_empty(&vm()).await, "{default:?}");
    }

    // It is kept with another change, and removed by a placement that selects nothing.
    set(&provider, zone(Some("b")));
    let described = with(vm(), json!({"labels": {"tier": "web"}}));
    let changed = stage.apply(&described).await;
    assert!(changed.is_clean(), "{}", changed.text());
    assert!(stage.plan_is_empty(&described).await);
    assert_eq!(plane.object("VM", "web").await["spec"]["placement"]["hostSelector"]["zone"], "a");
    let nowhere = with(vm(), json!({"placement": {}}));
    let changed = stage.apply(&nowhere).await;
    assert!(changed.is_clean(), "{}", changed.text());
    assert!(plane.object("VM", "web").await["spec"]["placement"]["hostSelector"].is_null());
    stage.read().await;
    assert!(stage.plan_is_empty(&nowhere).await);
    let changed = stage.apply(&vm()).await;
    assert!(changed.is_clean(), "{}", changed.text());
    let object = plane.object("VM", "web").await;
    assert!(object["spec"]["placement"]["hostSelector"].is_null(), "it exists: it is not a new VM");

    // A VM that is replaced is planned once more without a prior state.
    let anew = stage.plan_from(Value::Null, &vm()).await.planned;
    assert_eq!(anew.get("placement").get("host_selector").get("zone").as_str(), Some("b"));
    let planned = Stage::new(&provider, "berth_disk").plan(&disk()).await.planned;
    assert!(planned.get("placement").is_null(), "the placement of a disk has no default");
    plane.close().await;
}

#[tokio::test]
async fn a_refused_placement_that_is_taken_back_leaves_the_one_of_the_provider() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("host-a", json!({"zone": "a"})).await;
    set(&provider, zone(Some("a")));
    let mut stage = Stage::new(&provider, "berth_vm");
    let made = stage.apply(&vm()).await;
    assert!(made.is_clean(), "{}", made.text());
    stage.read().await;
    let elsewhere = with(vm(), json!({"placement": {"host": "host-b"}}));
    let plan = stage.plan(&elsewhere).await;
    // Terraform stores the planned data beside the state of a failed apply that returns none.
    stage.private = plan.private.clone().expect("it is planned");
    stage.announce_named(&plan.planned);
    let refused = stage.apply_plan(plan, &elsewhere).await;
    assert!(diagnostic::has_errors(&refused.diagnostics), "{}", refused.text());
    assert!(stage.plan_is_empty(&vm()).await);
    plane.close().await;
}

#[tokio::test]
async fn a_placement_that_was_declared_goes_with_its_declaration() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("host-a", json!({"zone": "a"})).await;
    set(&provider, zone(Some("b")));
    let mut stage = Stage::new(&provider, "berth_vm");
    let declared = with(vm(), json!({"placement": {"host_selector": {"zone": "a"}}}));
    let made = stage.apply(&declared).await;
    assert!(made.is_clean(), "{}", made.text());
    stage.read().await;
    assert!(stage.plan_is_empty(&declared).await);
    assert!(stage.plan(&vm()).await.planned.get("placement").is_null());
    let changed = stage.apply(&vm()).await;
    assert!(changed.is_clean(), "{}", changed.text());
    assert!(plane.object("VM", "web").await["spec"]["placement"].is_null());
    stage.read().await;
    assert!(stage.plan_is_empty(&vm()).await);
    plane.close().await;
}

/// The diagnostics of a `provider` block, at validation and at configuration.
async fn diagnostics(block: Json) -> [Vec<Diagnostic>; 2] {
    let provider = BerthProvider::default();
    let config = value(&block);
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    let request = ValidateRequest { config: config.clone(), client, cancel: cancel.clone() };
    let validated = provider.validate(request).await;
    let client = ClientCapabilities::default();
    let request = ConfigureRequest { config, terraform_version: "1.11.4".into(), client, cancel };
    [validated, provider.configure(request).await]
}

#[tokio::test]
async fn defaults_that_are_no_names_or_labels_are_refused() {
    let many: Json =
        (0..65).map(|i| (format!("label-{i}"), json!("a"))).collect::<serde_json::Map<_, _>>().into();
    for (mut block, words) in [
        (json!({"network": "Lan"}), "The name of a Network is"),
        (json!({"pool": "a_b"}), "The name of a StoragePool is"),
        (json!({"host_selector": {"-a": "b"}}), "\"-a\" is not the key of a label"),
        (json!({"host_selector": {"a": "b c"}}), "\"b c\" is not the value of a label"),
        (json!({"host_selector": {"a": null}}), "\"a\" has no value"),
        (json!({"host_selector": many}), "at most 64"),
    ] {
        block["kubeconfig"] = json!("/nowhere");
        for found in diagnostics(block.clone()).await {
            assert!(text_of(&found).contains(words), "{block}: {}", text_of(&found));
        }
    }
    for (mut block, words) in [
        (json!({"network": "<unknown>"}), "The network is not known yet"),
        (json!({"host_selector": "<unknown>"}), "The host_selector is not known yet"),
        (json!({"host_selector": {"zone": "<unknown>"}}), "The host_selector is not known yet"),
    ] {
        block["kubeconfig"] = json!("/nowhere");
        let [validated, configured] = diagnostics(block.clone()).await;
        assert_eq!(text_of(&validated), "", "{block}: it may be known later");
        assert!(text_of(&configured).contains(words), "{block}: {}", text_of(&configured));
    }
}
