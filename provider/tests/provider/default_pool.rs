//! The attribute `pool` of the `provider` block: new disks that name no pool are in it, and those that exist stay.

use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;
use tfplugin6::diagnostic;

use crate::{
    control_plane::ControlPlane,
    lifecycle::with,
    stage::{Stage, provider, text_of},
};

/// The `provider` block with another pool, or without one.
fn configure(provider: &BerthProvider, pool: Option<&str>) {
    let session = provider.kinds()[0].session();
    session.configure(session.settings().with_pool(pool.map(str::to_owned)));
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
