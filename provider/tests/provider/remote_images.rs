//! The data source `berth_remote_images`: against a server on a loopback address.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use terraform_provider_berth::remote_images::RemoteImages;
use tfplugin6::{
    CancellationToken, DataSource, Value,
    data_source::{ReadDataRequest, ReadDataResponse},
    provider::ClientCapabilities,
    resource::ValidateRequest,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::{
    control_plane::ControlPlane,
    host_token::plane_address,
    stage::{text_of, value},
};

/// The head of an answer, and its body.
type Page = (String, String);

fn ok(body: impl Into<String>) -> Page {
    ("200 OK".to_owned(), body.into())
}

/// A server that answers each request, of which it sees the path and the head. Returns its address.
async fn server(answer: impl Fn(&str, &str) -> Page + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut buffer).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => request.extend_from_slice(&buffer[..read]),
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let path = request.split_whitespace().nth(1).unwrap_or_default();
                let (head, body) = answer(path, &request);
                let text = format!(
                    "HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                // The client may have seen enough.
                let _ = stream.write_all(text.as_bytes()).await;
            });
        }
    });
    address
}

/// A server with a file of checksums. Returns its address.
pub(crate) async fn checksums() -> String {
    let address = server(|_, _| ok(format!("{}  a.iso\n", "a1".repeat(32)))).await;
    format!("http://{address}/SHA256SUMS")
}

fn config(given: &Json) -> Value {
    let mut config = value(&json!({"url": null, "name_filter": null, "username": null, "password": null,
        "ca_certificate": null, "images": null}));
    for (name, given) in given.as_object().expect("an object") {
        config.set(name, value(given));
    }
    config
}

async fn read(given: &Json) -> ReadDataResponse {
    let request = ReadDataRequest {
        config: config(given),
        provider_meta: Value::Null,
        client: ClientCapabilities::default(),
        cancel: CancellationToken::new(),
    };
    RemoteImages.read(request).await
}

/// The names and the addresses of the images.
async fn images(given: &Json) -> Vec<(String, String)> {
    let read = read(given).await;
    assert!(read.diagnostics.is_empty(), "{}", text_of(&read.diagnostics));
    let state = read.state.expect("it was read");
    let text = |image: &Value, name: &str| image.get(name).as_str().unwrap_or_default().to_owned();
    state.get("images").elements().iter().map(|image| (text(image, "name"), text(image, "url"))).collect()
}

async fn problem(given: &Json) -> String {
    text_of(&read(given).await.diagnostics)
}

#[tokio::test]
async fn a_file_of_checksums_lists_images_beside_it() {
    let (a, b) = ("a1".repeat(32), "b2".repeat(64));
    let sums = format!("{a}  debian.qcow2\n{b} *debian.iso\n{a}  sub/other.iso\n");
    let address = server(move |path, _| match path {
        "/images/SHA256SUMS" => ok(sums.clone()),
        "/latest" => ("302 Found\r\nLocation: /images/SHA256SUMS".to_owned(), String::new()),
        _ => ("404 Not Found".to_owned(), String::new()),
    })
    .await;
    let url = format!("http://{address}/images/SHA256SUMS");
    let isos = images(&json!({"url": url, "name_filter": "*.iso"})).await;
    let at = |name: &str| (name.to_owned(), format!("http://{address}/images/{name}"));
    assert_eq!(isos, [at("debian.iso"), at("sub/other.iso")]);
    assert_eq!(images(&json!({"url": url})).await.len(), 3);
    assert!(images(&json!({"url": url, "name_filter": "*.vmdk"})).await.is_empty());
    // The files lie beside the address that is configured.
    let redirected = images(&json!({"url": format!("http://{address}/latest")})).await;
    assert_eq!(redirected[0].1, format!("http://{address}/debian.iso"));
    let state = read(&json!({"url": url, "name_filter": "debian.*"})).await.state.expect("it was read");
    let found = state.get("images");
    assert_eq!(found.index(0).get("sha512").as_str(), Some(b.as_str()));
    assert!(found.index(0).get("sha256").is_null());
    assert_eq!(found.index(1).get("sha256").as_str(), Some(a.as_str()));
    let missing = problem(&json!({"url": format!("http://{address}/none")})).await;
    assert!(
        missing.contains("HTTP 404") && missing.contains("on the machine that runs Terraform"),
        "{missing}"
    );
}

#[tokio::test]
async fn the_tags_of_a_repository_are_listed_by_pages_with_a_token() {
    let at = server(|path, request| {
        let authorized =
            request.lines().any(|line| line.eq_ignore_ascii_case("authorization: bearer secret"));
        // me:canary
        let known =
            request.lines().any(|line| line.eq_ignore_ascii_case("authorization: basic bwu6y2fuyxj5"));
        let host =
            request.lines().find_map(|line| line.to_lowercase().strip_prefix("host: ").map(str::to_owned));
        let host = host.unwrap_or_default();
        match path {
            path if path.starts_with("/token?")
                && known
                && path.contains("scope=repository%3Aa%2Fb%3Apull") =>
            {
                ok(json!({"token": "secret"}).to_string())
            }
            path if path.starts_with("/v2/a/b/tags/list") && !authorized => {
                let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"r\"");
                (format!("401 Unauthorized\r\nWWW-Authenticate: {challenge}"), String::new())
            }
            "/v2/a/b/tags/list?n=1000" => {
                let head = "200 OK\r\nLink: </v2/a/b/tags/list?last=2.0>; rel=\"next\"".to_owned();
                (head, json!({"tags": ["2.0", "1.0", "not a tag"]}).to_string())
            }
            "/v2/a/b/tags/list?last=2.0" => ok(json!({"tags": ["latest"]}).to_string()),
            _ => ("404 Not Found".to_owned(), String::new()),
        }
    })
    .await;
    let url = format!("oci://{at}/a/b");
    let tags = images(&json!({"url": url, "username": "me", "password": "canary"})).await;
    let tag = |name: &str| (name.to_owned(), format!("{url}:{name}"));
    assert_eq!(tags, [tag("1.0"), tag("2.0"), tag("latest")]);
    let refused = problem(&json!({"url": url, "username": "me", "password": "wrong"})).await;
    assert!(refused.contains("gives no token") && !refused.contains("wrong"), "{refused}");
    let refused = problem(&json!({"url": format!("oci://{at}/none")})).await;
    assert!(refused.contains("no such repository"), "{refused}");
}

#[tokio::test]
async fn credentials_go_to_no_other_server() {
    let has_login = |request: &str| request.to_lowercase().contains("authorization:");
    let sums = format!("{}  a.iso\n", "a1".repeat(32));
    let other = server(move |_, request| {
        if has_login(request) { ("400 Bad Request".to_owned(), String::new()) } else { ok(sums.clone()) }
    })
    .await;
    let address = server(move |_, request| {
        let redirect = format!("302 Found\r\nLocation: http://{other}/SHA256SUMS");
        let head = if has_login(request) { redirect } else { "401 Unauthorized".to_owned() };
        (head, String::new())
    })
    .await;
    let url = format!("http://{address}/SHA256SUMS");
    let found = images(&json!({"url": url, "username": "me", "password": "canary"})).await;
    assert_eq!(found, [("a.iso".to_owned(), format!("http://{address}/a.iso"))]);
    let refused = problem(&json!({"url": url})).await;
    assert!(refused.contains("HTTP 401"), "{refused}");
}

#[tokio::test]
async fn pages_of_tags_are_of_one_server_and_not_endless() {
    let address = server(|path, _| {
        let next = if path.starts_with("/v2/away/") { "http://127.0.0.1:1/v2/away/tags/list" } else { path };
        (format!("200 OK\r\nLink: <{next}>; rel=\"next\""), json!({"tags": ["1"]}).to_string())
    })
    .await;
    for (name, expected) in [("away", "on another server"), ("endless", "more than 100 pages")] {
        let refused = problem(&json!({"url": format!("oci://{address}/{name}")})).await;
        assert!(refused.contains(expected), "{name}: {refused}");
    }
}

#[tokio::test]
async fn answers_and_redirects_are_bounded() {
    let address = server(|path, _| match path {
        "/large" => ok("x".repeat((1 << 20) + 1)),
        "/loop" => ("302 Found\r\nLocation: /loop".to_owned(), String::new()),
        "/away" => ("302 Found\r\nLocation: http://192.0.2.1/SUMS".to_owned(), String::new()),
        _ => ("404 Not Found".to_owned(), String::new()),
    })
    .await;
    for (path, expected) in
        [("large", "1048576 bytes"), ("loop", "redirects more than 5"), ("away", "over http")]
    {
        let refused = problem(&json!({"url": format!("http://{address}/{path}")})).await;
        assert!(refused.contains(expected), "{path}: {refused}");
    }
}

#[tokio::test]
async fn a_server_is_verified_by_the_authorities_of_the_argument() {
    let directory = tempfile::tempdir().expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    let (_, authority) = plane.credentials();
    let url = format!("{}/SHA256SUMS", plane_address(&kubeconfig));
    let known = problem(&json!({"url": url, "ca_certificate": authority})).await;
    assert!(known.contains("HTTP 4"), "it answers: {known}");
    let unknown = problem(&json!({"url": url})).await;
    assert!(!unknown.is_empty() && !unknown.contains("HTTP 4"), "{unknown}");
    plane.close().await;
}

#[tokio::test]
async fn arguments_that_no_server_can_have_are_refused() {
    let long = "x".repeat(257);
    for (given, at) in [
        (json!({"url": "http://images.example.org/SHA256SUMS"}), "url"),
        (json!({"url": "SHA256SUMS"}), "url"),
        (json!({"url": "oci://registry.example.org/a:1"}), "url"),
        (json!({"url": "https://me:canary@images.example.org/SHA256SUMS"}), "url"),
        (json!({"url": "https://a.example/S", "name_filter": long}), "name_filter"),
        (json!({"url": "https://a.example/S", "password": "canary"}), "password"),
        (json!({"url": "https://a.example/S", "username": "a:b"}), "username"),
    ] {
        let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
        let found = RemoteImages.validate(ValidateRequest { config: config(&given), client, cancel }).await;
        let text = text_of(&found);
        assert!(text.ends_with(&format!("[{at}]")) && !text.contains("canary"), "{given}: {text}");
    }
    let refused = problem(&json!({"url": "https://a.example/S", "ca_certificate": "/nonexistent"})).await;
    assert!(refused.ends_with("[ca_certificate]"), "{refused}");
}
