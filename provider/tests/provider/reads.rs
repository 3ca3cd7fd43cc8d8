//! The reads of a plan: their number, and objects without a status.

use std::sync::atomic::Ordering;

use futures::future::join_all;
use serde_json::json;
use tfplugin6::Severity;

use crate::{
    control_plane::ControlPlane,
    data_sources,
    lifecycle::{stories, with},
    stage::{Stage, provider, text_of},
};

#[tokio::test]
async fn a_refresh_of_what_is_not_ready_is_one_request_and_waits_for_nothing() {
    let plane = ControlPlane::in_memory().await;
    let (client, line) = plane.line();
    let provider = provider(&client, "default");
    let timeouts = json!({"create": "1s"});
    let source = json!({"url": "https://a.example/x", "sha256": "0".repeat(64)});
    let disks = json!([{"name": "root", "boot": true}]);
    for (type_name, config) in [
        ("berth_image", json!({"name": "slow", "source": source, "timeouts": timeouts})),
        (
            "berth_vm",
            json!({"name": "slow", "class": "small", "disks": disks, "wait_for": "guest", "timeouts": timeouts}),
        ),
    ] {
        let mut stage = Stage::new(&provider, type_name);
        let made = stage.apply(&config).await;
        assert!(made.text().contains("not ready yet"), "{type_name}: {}", made.text());
        let before = line.requests.load(Ordering::SeqCst);
        assert_eq!(text_of(&stage.read().await), "", "{type_name}");
        assert_eq!(line.requests.load(Ordering::SeqCst) - before, 1, "{type_name}");
        assert!(stage.plan_is_empty(&config).await, "{type_name}");
    }
    plane.close().await;
}

#[tokio::test]
async fn an_object_without_a_status_is_created_read_and_imported() {
    let plane = ControlPlane::without_controllers().await;
    let provider = provider(&plane.client, "default");
    join_all(stories().into_iter().map(async |(type_name, kind, config, _)| {
        let timeouts = json!({"create": "1s", "update": null, "delete": null, "read": null});
        let config = with(config, json!({"timeouts": timeouts}));
        let mut stage = Stage::new(&provider, type_name);
        let made = stage.apply(&config).await;
        let only_warns = made.diagnostics.iter().all(|found| found.severity == Severity::Warning);
        assert!(only_warns && !made.tainted, "{type_name}: {}", made.text());
        assert_eq!(text_of(&stage.read().await), "", "{type_name}");
        assert!(stage.plan_is_empty(&config).await, "{type_name}: plan after create");
        let name = stage.state.get("name").as_str().expect("it has a name").to_owned();
        let status = plane.object(kind, &name).await["status"].clone();
        assert!(status.get("conditions").is_none(), "{type_name}: {status}");
        let mut imported = Stage::new(&provider, type_name);
        let id = stage.state.get("id").as_str().expect("it has an ID").to_owned();
        assert_eq!(text_of(&imported.import(&id).await), "", "{type_name}");
        assert!(imported.plan_is_empty(&config).await, "{type_name}: plan after import");
        let found = data_sources::read(&provider, type_name, &json!({"name": name})).await;
        assert_eq!(found.get("ready").as_bool(), Some(false), "{type_name}");
    }))
    .await;
    plane.close().await;
}

#[tokio::test]
async fn many_objects_are_refreshed_with_few_requests_and_a_write_is_seen_at_once() {
    const COUNT: usize = 60;
    let plane = ControlPlane::in_memory().await;
    let (client, line) = plane.line();
    let provider = provider(&client, "default");
    let class =
        |number: usize, cpus: u32| json!({"name": format!("c-{number}"), "cpus": cpus, "memory": "64Mi"});
    let mut stages = join_all((0..COUNT).map(async |number| {
        let mut stage = Stage::new(&provider, "berth_vm_class");
        assert!(!stage.apply(&class(number, 1)).await.tainted);
        stage
    }))
    .await;
    let before = line.requests.load(Ordering::SeqCst);
    for stage in &mut stages {
        assert_eq!(text_of(&stage.read().await), "");
        assert_eq!(stage.state.get("cpus").as_i64(), Some(1));
    }
    let requests = line.requests.load(Ordering::SeqCst) - before;
    assert!(requests <= 18, "{requests} requests for {COUNT} objects");
    // The list is still recent; the change makes it void.
    assert!(!stages[7].apply(&class(7, 2)).await.tainted);
    for stage in &mut stages {
        assert_eq!(text_of(&stage.read().await), "");
    }
    assert_eq!(stages[7].state.get("cpus").as_i64(), Some(2), "the change is not lost");
    // A missing object is never the answer of a list.
    let classes = plane.objects("VMClass");
    classes.delete("c-9", &kube::api::DeleteParams::default()).await.expect("it is deleted");
    tokio::time::sleep(std::time::Duration::from_millis(2_100)).await;
    assert_eq!(text_of(&stages[9].read().await), "");
    assert!(stages[9].state.is_null(), "it is gone");
    plane.close().await;
}
