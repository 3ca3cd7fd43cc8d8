//! The rights of a host on the embedded control plane, and everything it may not do, as requests.
//!
//! `host_access/requests.json` is a table without code so that it can be sent to any control plane: each entry has
//! the sender `who`, the request, and the expected status code. `h1` is the host's own token; `revoked` is one of a
//! host with a deleted ServiceAccount; `forged` is `h1`'s with another body; `admin` is an administrator, or the
//! user that the impersonation headers name. `host_access/objects.json` contains the objects that must exist
//! before: each object, the status that an administrator writes to it, and whether it is deleted then (a finalizer
//! holds it).

use std::collections::BTreeMap;

use berth::{credential, install};
use berth_api::manifests::access;
use berth_apiserver::{ApiService, Server, ServerConfig};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use kube::Client;
use serde::Deserialize;
use serde_json::Value;
use tower::ServiceExt;

const REQUESTS: &str = include_str!("host_access/requests.json");
const OBJECTS: &str = include_str!("host_access/objects.json");

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    what: String,
    who: String,
    method: String,
    path: String,
    status: u16,
    content_type: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Thing {
    object: Value,
    status: Option<Value>,
    #[serde(default)]
    delete: bool,
}

async fn send(service: &ApiService, case: &Case) -> (u16, String) {
    let mut request =
        Request::builder().method(Method::from_bytes(case.method.as_bytes()).expect("a method"));
    request = request.uri(&case.path).header("accept", "application/json");
    if let Some(kind) = &case.content_type {
        request = request.header("content-type", kind);
    }
    for (name, value) in &case.headers {
        request = request.header(name, value);
    }
    let body = case.body.as_ref().map(Value::to_string).unwrap_or_default();
    let request = request.body(Full::new(bytes::Bytes::from(body))).expect("a request");
    let response = service.clone().oneshot(request).await.expect("the server answers");
    let code = response.status().as_u16();
    let text = response.into_body().collect().await.expect("a whole answer").to_bytes();
    (code, String::from_utf8_lossy(&text).into_owned())
}

fn request(what: &str, method: &str, path: &str, kind: &str, body: &Value) -> Case {
    Case {
        what: what.into(),
        who: "admin".into(),
        method: method.into(),
        path: path.into(),
        status: 200,
        content_type: Some(kind.into()),
        headers: BTreeMap::new(),
        body: Some(body.clone()),
    }
}

/// The path of an object's collection.
fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let place = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}"),
        None => root,
    };
    format!("{place}/{}s", text(&object["kind"]).to_lowercase())
}

async fn prepare(server: &Server) {
    let client = Client::new(server.service(), "default");
    install::manifests(&client).await.expect("the manifests apply");
    let admin = server.service();
    let things: Vec<Thing> = serde_json::from_str(OBJECTS).expect("a table of objects");
    for thing in &things {
        let place = collection(&thing.object);
        let made = send(&admin, &request("made", "POST", &place, "application/json", &thing.object)).await;
        assert_eq!(made.0, 201, "{}: {}", thing.object, made.1);
        let path = format!("{place}/{}", thing.object["metadata"]["name"].as_str().expect("a name"));
        if let Some(status) = &thing.status {
            let body = serde_json::json!({"status": status});
            let path = format!("{path}/status");
            let written =
                send(&admin, &request("status", "PATCH", &path, "application/merge-patch+json", &body)).await;
            assert_eq!(written.0, 200, "{path}: {}", written.1);
        }
        if thing.delete {
            let options = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
            let deleted =
                send(&admin, &request("deleted", "DELETE", &path, "application/json", &options)).await;
            assert_eq!(deleted.0, 200, "{path}: {}", deleted.1);
        }
    }
    for host in ["h1", "h2", "h9"] {
        install::apply(&client, &access::host(host)).await.expect("the host's account applies");
    }
    install::apply(&client, &access::secrets("h1", "team", &["mine"]))
        .await
        .expect("the host's role applies");
}

#[tokio::test]
async fn a_host_may_do_what_is_its_own_and_nothing_else() {
    let server = Server::open(ServerConfig::in_memory()).await.expect("an in-memory server opens");
    prepare(&server).await;
    let client = Client::new(server.service(), "default");
    let life = std::time::Duration::from_secs(3600);
    let h1 = credential::request(&client, "h1", life).await.expect("a token");
    let revoked = credential::request(&client, "h9", life).await.expect("a token");
    assert!(server.service_with_token(&revoked).is_some(), "good until its account goes");
    let gone = "/api/v1/namespaces/berth-system/serviceaccounts/host-h9";
    let options = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    send(&server.service(), &request("gone", "DELETE", gone, "application/json", &options)).await;
    let forged = forge(&h1, &revoked);

    let cases: Vec<Case> = serde_json::from_str(REQUESTS).expect("a table of requests");
    let mut wrong = Vec::new();
    for case in &cases {
        let sender = match case.who.as_str() {
            "admin" => Some(server.service()),
            "h1" => server.service_with_token(&h1),
            "revoked" => server.service_with_token(&revoked),
            "forged" => server.service_with_token(&forged),
            other => panic!("{other:?} is no user of this test"),
        };
        let (code, text) = match sender {
            Some(service) => send(&service, case).await,
            None => (401, "not authenticated".into()),
        };
        if code != case.status {
            wrong.push(format!("{}: expected {}, answered {code}: {text}", case.what, case.status));
        }
    }
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Combines the signature of one token with the contents of another.
fn forge(signed: &str, words: &str) -> String {
    let (_, signature) = signed.rsplit_once('.').expect("a token has three parts");
    let (words, _) = words.rsplit_once('.').expect("a token has three parts");
    format!("{words}.{signature}")
}
