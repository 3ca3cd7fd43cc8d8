//! Hosts: adopted, reserved, and withdrawn from.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::with;
use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

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
