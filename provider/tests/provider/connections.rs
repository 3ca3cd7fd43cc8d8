//! A control plane that cannot be reached: one error with the cause within 5 s, however many resources a plan reads.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;
use tfplugin6::{
    CancellationToken, Diagnostic, Provider, provider::ClientCapabilities, provider::ConfigureRequest,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, text_of, value},
};

const RESOURCES: usize = 20;

/// The errors of a refresh of many resources.
async fn refresh(block: &Json) -> Vec<Diagnostic> {
    let provider = BerthProvider::default();
    let request = ConfigureRequest {
        config: value(block),
        terraform_version: "1.11.4".into(),
        client: ClientCapabilities::default(),
        cancel: CancellationToken::new(),
    };
    let mut found = provider.configure(request).await;
    let mut stages: Vec<Stage> = (0..RESOURCES)
        .map(|i| {
            let mut stage = Stage::new(&provider, "berth_disk");
            let name = format!("d{i}");
            stage.state = value(&json!({"name": name, "namespace": "default", "uid": "u"}));
            stage
        })
        .collect();
    found.extend(join_all(stages.iter_mut().map(Stage::read)).await.into_iter().flatten());
    found
}

/// Asserts that one error has these words, that the others refer to it, and that they come in time.
async fn fails(block: &Json, words: &[&str]) {
    let began = Instant::now();
    let found = refresh(block).await;
    assert!(began.elapsed() < Duration::from_millis(5500), "{block}: {:?}", began.elapsed());
    let text = text_of(&found);
    assert_eq!(found.len(), RESOURCES, "{block}: {text}");
    assert!(found.iter().all(Diagnostic::is_error), "{block}: {text}");
    let (short, full): (Vec<_>, Vec<_>) =
        found.iter().partition(|found| found.detail == "Another error of this run describes the cause.");
    assert_eq!((full.len(), short.len()), (1, RESOURCES - 1), "{block}: {text}");
    for word in words {
        assert!(full[0].detail.contains(word), "{block}: {word}: {text}");
    }
    assert!(short.iter().all(|short| short.summary.starts_with("Disk default/d")), "{text}");
    assert!(!text.contains("canary"), "{text}");
}

/// A server that answers every connection with these bytes, or with silence.
async fn server(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut some = [0; 512];
                let _ = socket.read(&mut some).await;
                match answer {
                    Some(text) => drop(socket.write_all(text.as_bytes()).await),
                    None => tokio::time::sleep(Duration::from_secs(60)).await,
                }
            });
        }
    });
    address
}

fn kubeconfig(path: &Path, server: &str) -> Json {
    let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "mine",
        "clusters": [{"name": "a", "cluster": {"server": server}}],
        "users": [{"name": "a", "user": {"token": "canary-token"}}],
        "contexts": [{"name": "mine", "context": {"cluster": "a", "user": "a"}}]});
    fs::write(path, text.to_string()).expect("the directory is ours");
    json!({"kubeconfig": path.display().to_string()})
}

#[tokio::test]
async fn a_connection_that_fails_is_one_error_with_its_cause() {
    let directory = tempfile::tempdir().expect("a new directory");
    let file = directory.path().join("kubeconfig");
    let by_host = |host: &str| json!({"host": host, "token": "canary-token"});
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = closed.local_addr().expect("it is bound").to_string();
    drop(closed);
    let shown = file.display().to_string();
    fails(&kubeconfig(&file, &format!("https://{address}")), &["Nothing listens at", &address, &shown]).await;
    fails(&by_host("https://no-such-host.invalid:7443"), &["cannot be resolved", "no-such-host.invalid"])
        .await;
    let plain = server(Some("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")).await;
    fails(&by_host(&format!("https://{plain}")), &["speaks no TLS on this port", &plain]).await;
    let silent = server(None).await;
    fails(&by_host(&format!("https://{silent}")), &["does not answer in time", &silent]).await;
    let go = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    let mut loopback = by_host(&format!("http://{}", server(Some(go)).await));
    loopback["allow_loopback_http"] = true.into();
    fails(&loopback, &["expects TLS: write https://"]).await;
}

#[tokio::test]
async fn a_wrong_authority_scheme_or_token_is_one_error_with_the_remedy() {
    let directory = tempfile::tempdir().expect("a new directory");
    let theirs = directory.path().join("theirs");
    let plane = ControlPlane::listening(&directory.path().join("state"), &theirs).await;
    let text = fs::read_to_string(&theirs).expect("it was written");
    let server = text.lines().find_map(|line| line.trim().strip_prefix("server: ")).expect("it has a server");
    let server = server.trim_matches('"').to_owned();
    let (_, certificate) = plane.credentials();
    let unknown = json!({"host": server, "token": "canary-token"});
    fails(&unknown, &["an authority that this provider does not know", "ca_certificate", &server]).await;
    let mut plain = json!({"host": server.replace("https:", "http:"), "token": "canary-token"});
    plain["allow_loopback_http"] = true.into();
    fails(&plain, &["expects TLS: write https://"]).await;
    let wrong = json!({"host": server, "token": "canary-token", "ca_certificate": certificate});
    fails(&wrong, &["invalid or expired", "sudo berth kubeconfig"]).await;
    plane.close().await;
}

#[tokio::test]
async fn a_kubeconfig_that_is_missing_or_malformed_or_lacks_the_context_is_one_error() {
    let directory = tempfile::tempdir().expect("a new directory");
    let file = directory.path().join("kubeconfig");
    let shown = file.display().to_string();
    let block = json!({"kubeconfig": shown});
    fails(&block, &[&shown, "does not exist"]).await;
    fs::write(&file, "- canary-token\n").expect("the directory is ours");
    fails(&block, &[&shown, "not a valid kubeconfig"]).await;
    fs::write(&file, "{}").expect("the directory is ours");
    fails(&block, &[&shown, "no current-context"]).await;
    let mut wrong = kubeconfig(&file, "https://127.0.0.1:1");
    wrong["context"] = "other".into();
    fails(&wrong, &[&shown, "no context \"other\"; its contexts: mine"]).await;
}
