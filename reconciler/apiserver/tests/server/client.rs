//! A client that exposes what kube-rs hides: status codes, headers, messages.

use axum::body::Body;
use berth_apiserver::Server;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::toy;

pub(crate) const BOATS: &str = "/apis/toys.example/v1/namespaces/default/boats";
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

/// A response of the server.
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) warnings: Vec<String>,
    pub(crate) content_type: String,
    pub(crate) text: Bytes,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.text).expect("JSON")
    }

    pub(crate) fn reason(&self) -> (u16, String) {
        (self.code, self.json()["reason"].as_str().unwrap_or_default().to_owned())
    }
}

/// An in-process client.
pub(crate) struct Client(pub(crate) berth_apiserver::ApiService);

impl Client {
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        accept: &str,
        body: impl Into<Body>,
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header("user-agent", "test/1");
        for (name, value) in [("content-type", kind), ("accept", accept)] {
            if !value.is_empty() {
                request = request.header(name, value);
            }
        }
        let request = request.body(body.into()).expect("a request");
        let response = self.0.clone().oneshot(request).await.expect("the server answers");
        let header = |name: &str| -> Vec<String> {
            response.headers().get_all(name).iter().map(|v| v.to_str().expect("text").to_owned()).collect()
        };
        Reply {
            code: response.status().as_u16(),
            warnings: header("warning"),
            content_type: header("content-type").join(","),
            text: response.into_body().collect().await.expect("a whole body").to_bytes(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, "", "", Body::empty()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(Method::POST, path, JSON, "", body.to_string()).await
    }

    pub(crate) async fn patch(&self, path: &str, kind: &str, body: &Value) -> Reply {
        self.send(Method::PATCH, path, kind, "", body.to_string()).await
    }

    pub(crate) async fn watch(&self, path: &str) -> Vec<Value> {
        let reply = self.get(path).await;
        assert_eq!(reply.code, 200, "{path}");
        reply
            .text
            .split(|b| *b == b'\n')
            .filter(|l| !l.is_empty())
            .map(|l| serde_json::from_slice(l).expect("each line is JSON"))
            .collect()
    }
}

pub(crate) fn boat(name: &str) -> Value {
    json!({"apiVersion": "toys.example/v1", "kind": "Boat", "metadata": {"name": name}, "spec": {"harbour": "kiel"}})
}

/// Returns a server that serves boats, and a client of its administrator.
pub(crate) async fn harbour() -> (Server, Client) {
    let server = toy::server().await;
    let client = Client(server.service());
    assert_eq!(client.post(CRDS, &toy::crd_json()).await.code, 201);
    (server, client)
}
