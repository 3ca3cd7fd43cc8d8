use std::sync::Arc;
use std::time::Duration;

use berth_apiserver::{HistoryWindow, Identity, Server, ServerConfig};
use berth_engine::RuntimeClock;
use http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, VersionMatch};
use serde_json::{Value, json};

use crate::toy::reason;

async fn ask(client: &Client, path: &str) -> Result<Value, kube::Error> {
    client.request(Request::get(path).body(Vec::new()).expect("a request")).await
}

fn lines(history: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = history["items"].as_array().expect("items").iter();
    items
        .map(|item| {
            let fields = item["fields"].as_array().into_iter().flatten();
            let fields: Vec<String> = fields
                .map(|field| format!("{} {} > {}", text(&field["path"]), field["from"], field["to"]))
                .collect();
            let who = [&item["user"], &item["manager"], &item["verb"], &item["change"]].map(text);
            format!("{} {}", who.join(" "), fields.join(", ")).trim_end().to_owned()
        })
        .collect()
}

fn map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        data: Some([("a".to_owned(), value.to_owned())].into()),
        ..ConfigMap::default()
    }
}

#[tokio::test]
async fn every_revision_says_who_when_how_and_what() {
    let server = Server::open(ServerConfig::in_memory()).await.unwrap();
    let admin = Client::new(server.service(), "default");
    let bob = Identity::new("bob", ["system:masters".to_owned()]);
    let bob: Api<ConfigMap> = Api::default_namespaced(Client::new(server.service_as(bob), "default"));
    let maps: Api<ConfigMap> = Api::default_namespaced(admin.clone());
    let by = |manager: &str| PostParams { field_manager: Some(manager.into()), ..PostParams::default() };
    let made = maps.create(&by("first"), &map("m", "1")).await.unwrap();
    let patch = json!({"data": {"a": "2", "b": "new"}});
    bob.patch(
        "m",
        &PatchParams { field_manager: Some("editor".into()), ..PatchParams::default() },
        &Patch::Merge(&patch),
    )
    .await
    .unwrap();
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"labels": {"l": "x"}}});
    maps.patch("m", &PatchParams::apply("applier"), &Patch::Apply(&applied)).await.unwrap();
    maps.delete("m", &DeleteParams::default()).await.unwrap();
    maps.create(&by("second"), &map("m", "3")).await.unwrap();
    let path = "/history/api/v1/namespaces/default/configmaps/m";
    let history = ask(&admin, path).await.unwrap();
    let wanted = [
        "admin second create created",
        "admin unknown delete deleted",
        "admin applier apply changed .metadata.labels.l null > \"x\"",
        "bob editor patch changed .data.a \"1\" > \"2\", .data.b null > \"new\"",
        "admin first create created",
    ];
    assert_eq!(lines(&history), wanted);
    assert_eq!(history["items"][4]["revision"], made.metadata.resource_version.unwrap());
    let few = ask(&admin, &format!("{path}?limit=2")).await.unwrap();
    assert_eq!(
        (lines(&few), &few["truncated"]),
        (wanted[..2].iter().map(|&l| l.into()).collect(), &json!(true))
    );
    let nobody = Client::new(server.service_as(Identity::new("eve", [])), "default");
    assert_eq!(
        reason(ask(&nobody, path).await),
        (403, "Forbidden".into()),
        "who may not read may not look back"
    );
    assert_eq!(reason(ask(&admin, &format!("{path}x")).await), (404, "NotFound".into()));
    assert_eq!(reason(ask(&admin, &format!("{path}?limit=0")).await), (400, "BadRequest".into()));
    assert_eq!(reason(ask(&admin, "/history/api/v1/namespaces/default/configmaps").await).0, 404);
}

#[tokio::test]
async fn a_secrets_history_tells_that_it_changed_and_no_value() {
    let server = Server::open(ServerConfig::in_memory()).await.unwrap();
    let client = Client::new(server.service(), "default");
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let secret = |value: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": value}}, "stringData": {"a": value}})
    };
    for value in ["canary-one", "canary-two"] {
        secrets.patch("s", &PatchParams::apply("x").force(), &Patch::Apply(&secret(value))).await.unwrap();
    }
    let text = ask(&client, "/history/api/v1/namespaces/default/secrets/s").await.unwrap().to_string();
    assert!(text.contains(".data.a") && text.contains("(hidden)"), "{text}");
    for hidden in ["canary", "Y2FuYXJ5"] {
        assert!(!text.contains(hidden), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_is_a_revision_and_one_that_is_compacted_is_410() {
    let window = HistoryWindow {
        keep_for: Duration::from_secs(3600),
        keep_revisions: 1_000_000,
        keep_bytes: u64::MAX,
        every: Duration::from_secs(60),
    };
    let clock = RuntimeClock::starting_at("2026-01-02T00:00:00Z".parse().unwrap());
    let config = ServerConfig { history: window, clock: Arc::new(clock), ..ServerConfig::in_memory() };
    let server = Server::open(config).await.unwrap();
    let client = Client::new(server.service(), "default");
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let mut revisions = Vec::new();
    for at in 0..4 {
        let made = maps.create(&PostParams::default(), &map(&format!("m{at}"), "1")).await.unwrap();
        revisions.push(made.metadata.resource_version.unwrap());
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
    let at = |minute: u32| format!("/history?at=2026-01-02T00:{minute:02}:00Z");
    assert_eq!(ask(&client, &at(15)).await.unwrap()["revision"], revisions[1]);
    assert_eq!(ask(&client, &at(39)).await.unwrap()["revision"], revisions[3]);
    let then = ListParams::default().at(&revisions[1]).matching(VersionMatch::Exact);
    assert_eq!(maps.list(&then).await.unwrap().items.len(), 2, "what there was then");
    assert_eq!(reason(ask(&client, "/history?at=2027-01-02T00:00:00Z").await), (400, "BadRequest".into()));
    assert_eq!(reason(ask(&client, "/history?at=2025-01-02T00:00:00Z").await), (410, "Expired".into()));
    tokio::time::sleep(Duration::from_secs(3500)).await;
    maps.create(&PostParams::default(), &map("last", "1")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(reason(ask(&client, &at(15)).await), (410, "Expired".into()), "the window has passed it");
    assert_eq!(reason(maps.list(&then).await), (410, "Expired".into()));
}

#[tokio::test]
async fn patches_of_a_large_map_do_not_fill_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let history = HistoryWindow { keep_bytes: 4 << 20, ..HistoryWindow::default() };
    let server =
        Server::open(ServerConfig { history, ..ServerConfig::in_directory(folder.path()) }).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(Client::new(server.service(), "default"));
    let filling = "x".repeat(1 << 20);
    maps.create(&PostParams::default(), &map("large", &filling[1024..])).await.unwrap();
    for round in 0..40 {
        let patch = json!({"data": {"round": round.to_string()}});
        maps.patch("large", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    server.shutdown().await;
    let size = std::fs::metadata(folder.path().join("berth.db")).unwrap().len();
    assert!(size < 24 << 20, "{size} bytes on disk");
}
