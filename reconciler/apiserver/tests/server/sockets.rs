use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use berth_apiserver::{Listener, ServeError, Server, ServerConfig};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::tokens::{robot, token as robot_token};
use crate::toy::reason;

/// Starts a server on a socket of its own; it ends with the runtime of its test.
pub(crate) async fn serve(directory: &Path) -> (Server, String, CancellationToken) {
    serve_with(ServerConfig::in_directory(directory)).await
}

pub(crate) async fn serve_with(config: ServerConfig) -> (Server, String, CancellationToken) {
    let server = Server::open(config).await.expect("it opens");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let stop = CancellationToken::new();
    let (serving, stopped) = (server.clone(), stop.clone());
    tokio::spawn(async move { serving.serve(Listener::Tls(listener), stopped).await });
    (server, url, stop)
}

pub(crate) async fn client(kubeconfig: &str) -> Client {
    let config = Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.expect("usable");
    Client::try_from(config).expect("a client")
}

#[tokio::test]
async fn a_token_opens_the_door_and_anything_else_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let (server, url, _stop) = serve(directory.path()).await;
    let admin = client(&server.kubeconfig(&url).unwrap()).await;
    let namespaces: Api<Namespace> = Api::all(admin);
    assert_eq!(namespaces.list(&ListParams::default()).await.unwrap().items.len(), 4);
    let token = std::fs::read_to_string(directory.path().join("admin.token")).unwrap();
    let with = |other: &str| server.kubeconfig(&url).unwrap().replace(token.trim(), other);
    for wrong in ["''", "wrong"] {
        let stranger = client(&with(wrong)).await;
        let namespaces: Api<Namespace> = Api::all(stranger);
        assert_eq!(reason(namespaces.list(&ListParams::default()).await), (401, "Unauthorized".into()));
    }
    let (_, accounts) = robot(&server).await;
    let robot = client(&with(&robot_token(&accounts, json!({})).await.unwrap())).await;
    let namespaces: Api<Namespace> = Api::all(robot);
    assert_eq!(reason(namespaces.list(&ListParams::default()).await), (403, "Forbidden".into()));
}

#[tokio::test]
async fn tokens_and_certificates_outlive_the_server_and_are_for_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let (server, url, stop) = serve(&state).await;
    server.write_kubeconfig(&state.join("kubeconfig"), &url).unwrap();
    let (before, first) = (server.kubeconfig(&url).unwrap(), server.ca_certificate().unwrap());
    stop.cancel();
    server.shutdown().await;
    drop(server);
    for file in std::fs::read_dir(&state).unwrap().map(Result::unwrap) {
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} is readable by others", file.path().display());
    }
    assert_eq!(std::fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
    let (server, url_now, _stop) = serve(&state).await;
    assert_eq!(server.ca_certificate().unwrap(), first);
    let admin = client(&before.replace(&url, &url_now)).await;
    let maps: Api<ConfigMap> = Api::all(admin);
    maps.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn plain_http_is_for_loopback_only() {
    let server = Server::open(ServerConfig::in_memory()).await.unwrap();
    let everywhere = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = server.serve(Listener::Plain(everywhere), CancellationToken::new()).await;
    assert!(matches!(refused, Err(ServeError::PlainOnPublicAddress(_))), "{refused:?}");
}

#[tokio::test]
async fn a_shutdown_ends_open_watches_and_the_listener() {
    use futures::StreamExt as _;
    let directory = tempfile::tempdir().unwrap();
    let server = Server::open(ServerConfig::in_directory(directory.path())).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = {
        let server = server.clone();
        tokio::spawn(async move { server.serve(Listener::Tls(listener), CancellationToken::new()).await })
    };
    let maps: Api<ConfigMap> = Api::all(client(&server.kubeconfig(&url).unwrap()).await);
    let mut events = maps.watch(&Default::default(), "0").await.unwrap().boxed();
    let watching = tokio::spawn(async move { while events.next().await.is_some() {} });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let limit = Duration::from_secs(8);
    tokio::time::timeout(limit, server.shutdown()).await.expect("it ends");
    tokio::time::timeout(limit, serving).await.expect("the listener ends").unwrap().unwrap();
    tokio::time::timeout(limit, watching).await.expect("the watch ends").unwrap();
}
