//! Ports of a public address that are given out: in plans and in the state.

use serde_json::{Value as Json, json};
use tfplugin6::Value;

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

fn entry(name: &str) -> Json {
    json!({"name": name, "target_port": 22, "targets": ["web"]})
}

fn ip(ports: &[Json]) -> Json {
    json!({"name": "web", "ports": ports})
}

fn assigned(state: &Value, name: &str) -> Option<String> {
    state.get("assigned_ports").get(name).as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_port_is_unknown_only_for_an_entry_that_is_new() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_public_ip");
    let web = json!({"name": "web", "port": 80, "targets": ["web"]});
    let first = ip(&[entry("ssh"), web.clone()]);
    let planned = stage.plan(&first).await.planned;
    assert!(planned.get("assigned_ports").get("ssh").is_unknown(), "{planned:?}");
    assert_eq!(assigned(&planned, "web").as_deref(), Some("80"), "it is declared");
    let made = stage.apply(&first).await;
    assert!(made.is_clean(), "{}", made.text());
    assert_eq!(assigned(&stage.state, "ssh").as_deref(), Some("30000"));
    assert!(stage.state.get("ports").index(0).get("port").is_null(), "the configuration has none");
    assert_eq!(stage.plan(&first).await.planned, stage.state, "no difference");

    let more = ip(&[entry("new"), web, entry("ssh")]);
    let planned = stage.plan(&more).await.planned;
    assert!(planned.get("assigned_ports").get("new").is_unknown(), "{planned:?}");
    assert_eq!(assigned(&planned, "ssh").as_deref(), Some("30000"), "wherever the entry is");
    let made = stage.apply(&more).await;
    assert!(made.is_clean(), "{}", made.text());
    assert_eq!(assigned(&stage.state, "ssh").as_deref(), Some("30000"));
    assert_eq!(assigned(&stage.state, "new").as_deref(), Some("30001"));

    let fewer = ip(&[entry("new")]);
    let planned = stage.plan(&fewer).await.planned;
    assert!(planned.is_wholly_known(), "{planned:?}");
    assert_eq!(assigned(&planned, "ssh"), None);
    plane.close().await;
}

#[tokio::test]
async fn a_declared_port_that_another_entry_keeps_is_reported_by_the_plan() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut stage = Stage::new(&provider, "berth_public_ip");
    let made = stage.apply(&ip(&[entry("ssh")])).await;
    assert!(made.is_clean(), "{}", made.text());
    let declared = json!({"name": "web", "port": 30_000, "targets": ["web"]});
    let plan = stage.plan(&ip(&[entry("ssh"), declared.clone()])).await;
    let text = text_of(&plan.diagnostics);
    assert!(text.contains("ports[1].port: port 30000 is allocated to the entry \"ssh\""), "{text}");
    let other = json!({"name": "web", "port": 30_000, "protocol": "udp", "targets": ["web"]});
    let plan = stage.plan(&ip(&[entry("ssh"), other])).await;
    assert_eq!(text_of(&plan.diagnostics), "", "a port of another protocol is another port");
    let plan = stage.plan(&ip(&[declared])).await;
    assert_eq!(text_of(&plan.diagnostics), "", "the entry that had it goes");
    plane.close().await;
}
