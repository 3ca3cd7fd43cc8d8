use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::body::Body;
use berth_apiserver::{Identity, Server, ServerConfig};
use bytes::Bytes;
use futures::stream;
use http::Request;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::Service as _;

use crate::sockets::{client, serve_with};

fn parse<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of that type")
}

/// Splits the log into the server's own lines and those of users, once there are `users` of the latter.
fn lines(path: &Path, users: usize) -> (Vec<Value>, Vec<Value>) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let (own, others): (Vec<_>, Vec<_>) = whole.partition(|line| line["user"] == "system:apiserver");
        if others.len() >= users {
            return (own, others);
        }
        assert!(Instant::now() < end, "{users} lines of users in {text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn every_request_that_would_write_is_one_line_without_its_body() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("audit.log");
    let config = ServerConfig {
        audit_log: Some(path.clone()),
        ..ServerConfig::in_directory(place.path().join("state"))
    };
    let (server, url, _stop) = serve_with(config).await;
    let outside = client(&server.kubeconfig(&url).unwrap()).await;
    let secrets: Api<Secret> = Api::default_namespaced(outside);
    let secret = Secret {
        metadata: ObjectMeta { name: Some("s".into()), ..ObjectMeta::default() },
        string_data: Some([("a".to_owned(), "canary-in-a-body".to_owned())].into()),
        ..Secret::default()
    };
    let made = secrets.create(&PostParams::default(), &secret).await.unwrap();
    secrets.get("s").await.unwrap();
    let eve = Client::new(server.service_as(Identity::new("eve", [])), "default");
    let refused = Api::<Secret>::default_namespaced(eve).delete("s", &DeleteParams::default()).await;
    assert!(refused.is_err());
    // The server itself creates the accounts of its namespaces and aggregates the rules of its roles, meanwhile too.
    let (own, reported) = lines(&path, 2);
    assert!(own.iter().all(|line| line["verb"] == "create" || line["verb"] == "patch"), "{own:?}");
    assert_eq!(reported.len(), 2, "{reported:?}");
    let of = |line: &Value, names: &[&str]| {
        names.iter().map(|name| line[name].to_string()).collect::<Vec<_>>().join(" ")
    };
    let names = ["user", "verb", "path", "name", "code"];
    assert_eq!(of(&reported[0], &names), r#""admin" "create" "/api/v1/namespaces/default/secrets" "s" 201"#);
    assert_eq!(reported[0]["revision"], made.metadata.resource_version.unwrap());
    assert!(reported[0]["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{}", reported[0]);
    assert_eq!(
        of(&reported[1], &["user", "verb", "path", "code", "revision", "from"]),
        r#""eve" "delete" "/api/v1/namespaces/default/secrets/s" 403 null "in process""#
    );
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("canary") && !text.contains("Y2FuYXJ5"), "{text}");
    server.shutdown().await;
    let unwritable =
        ServerConfig { audit_log: Some("/no/such/audit.log".into()), ..ServerConfig::in_memory() };
    assert!(Server::open(unwritable).await.is_err(), "what cannot be written is told at the start");
}

/// The ways into a guest have accounts of their own.
#[tokio::test]
async fn a_right_to_tokens_of_one_account_is_none_to_those_of_another_and_each_request_is_a_line() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("audit.log");
    let config = ServerConfig {
        audit_log: Some(path.clone()),
        ..ServerConfig::in_directory(place.path().join("state"))
    };
    let (server, url, _stop) = serve_with(config).await;
    let admin = client(&server.kubeconfig(&url).unwrap()).await;
    let ways = ["berth-exec", "berth-port-forward", "berth-vsock"];
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    for way in ways {
        let account = parse(json!({"metadata": {"name": way}}));
        accounts.create(&PostParams::default(), &account).await.unwrap();
    }
    let role: Role = parse(json!({"metadata": {"name": "by-vsock"}, "rules": [{"apiGroups": [""],
        "resources": ["serviceaccounts/token"], "resourceNames": ["berth-vsock"], "verbs": ["create"]}]}));
    Api::<Role>::default_namespaced(admin.clone()).create(&PostParams::default(), &role).await.unwrap();
    let group = "rbac.authorization.k8s.io";
    let binding: RoleBinding = parse(json!({"metadata": {"name": "by-vsock"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "by-vsock"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "eve"}]}));
    Api::<RoleBinding>::default_namespaced(admin).create(&PostParams::default(), &binding).await.unwrap();

    let eve = Client::new(server.service_as(Identity::new("eve", [])), "default");
    let accounts: Api<ServiceAccount> = Api::default_namespaced(eve);
    let request: TokenRequest = parse(json!({"spec": {"audiences": ["canary-of-a-use"]}}));
    let mut given = Vec::new();
    for way in ways {
        given.push(accounts.create_token_request(way, &PostParams::default(), &request).await.is_ok());
    }
    assert_eq!(given, [false, false, true]);
    let (_, reported) = lines(&path, ways.len() + 2 + ways.len());
    let hers = reported.iter().filter(|line| line["user"] == "eve");
    let hers: Vec<String> =
        hers.map(|line| format!("{} {} {}", line["verb"], line["path"], line["code"])).collect();
    let expected = ways.iter().zip([403, 403, 201]).map(|(way, code)| {
        format!(r#""create" "/api/v1/namespaces/default/serviceaccounts/{way}/token" {code}"#)
    });
    assert_eq!(hers, expected.collect::<Vec<_>>());
    assert!(!std::fs::read_to_string(&path).unwrap().contains("canary"), "no body is logged");
    server.shutdown().await;
}

#[tokio::test]
async fn a_deletion_that_is_only_tried_is_marked_although_its_body_says_so() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("audit.log");
    let config = ServerConfig { audit_log: Some(path.clone()), ..ServerConfig::in_memory() };
    let server = Server::open(config).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(Client::new(server.service(), "default"));
    let map = parse(json!({"metadata": {"name": "m"}}));
    maps.create(&PostParams::default(), &map).await.unwrap();
    let tried = DeleteParams { dry_run: true, ..DeleteParams::default() };
    maps.delete("m", &tried).await.unwrap();
    maps.delete_collection(&tried, &ListParams::default()).await.unwrap();
    maps.delete("m", &DeleteParams::default()).await.unwrap();
    let (_, reported) = lines(&path, 4);
    let marks: Vec<String> =
        reported.iter().map(|line| format!("{} {}", line["verb"], line["dryRun"])).collect();
    let expected =
        [r#""create" false"#, r#""delete" true"#, r#""deletecollection" true"#, r#""delete" false"#];
    assert_eq!(marks, expected);
    server.shutdown().await;
}

/// The write may have been on its way to the disk.
#[tokio::test]
async fn a_request_whose_client_goes_away_before_the_answer_is_a_line() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("audit.log");
    let config = ServerConfig { audit_log: Some(path.clone()), ..ServerConfig::in_memory() };
    let server = Server::open(config).await.unwrap();
    let body = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    let request = Request::post("/api/v1/namespaces/default/configmaps").body(body).unwrap();
    let answer = server.service().call(request);
    assert!(tokio::time::timeout(Duration::from_millis(20), answer).await.is_err(), "its body does not come");
    let (_, reported) = lines(&path, 1);
    assert_eq!((&reported[0]["method"], &reported[0]["code"]), (&json!("POST"), &Value::Null));
    server.shutdown().await;
}

#[tokio::test]
async fn long_names_are_cut_and_what_only_looks_like_a_dry_run_is_none() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("audit.log");
    let config = ServerConfig { audit_log: Some(path.clone()), ..ServerConfig::in_memory() };
    let server = Server::open(config).await.unwrap();
    let client = crate::client::Client(server.service());
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str| json!({"metadata": {"name": name}});
    assert_eq!(client.post(maps, &map(&"n".repeat(1 << 20))).await.code, 422);
    assert_eq!(client.post(&format!("{maps}?fieldManager=dryRun=All"), &map("real")).await.code, 201);
    assert_eq!(client.post(&format!("{maps}?dryRun=All"), &map("tried")).await.code, 201);
    // Nothing that was answered is lost.
    server.shutdown().await;
    let (_, reported) = lines(&path, 3);
    let of: Vec<(usize, Value)> = reported
        .iter()
        .map(|line| (line["name"].as_str().unwrap_or_default().len(), line["dryRun"].clone()))
        .collect();
    assert_eq!(of, [(256, json!(false)), (4, json!(false)), (5, json!(true))]);
}
