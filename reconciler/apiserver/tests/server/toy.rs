//! A test kind and a server that serves it.

use berth_apiserver::{Server, ServerConfig};
use berth_engine::RuntimeClock;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) use crate::definition::crd_json;

/// See [`crd_json`].
pub(crate) fn crd() -> CustomResourceDefinition {
    serde_json::from_value(crd_json()).expect("a valid CRD")
}

pub(crate) async fn server() -> Server {
    let config = ServerConfig {
        clock: Arc::new(RuntimeClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"))),
        seed: Some(1),
        ..ServerConfig::in_memory()
    };
    Server::open(config).await.expect("a new server opens")
}

/// A server that serves boats, and a client of it.
pub(crate) async fn harbour() -> (Server, Client) {
    let server = server().await;
    let client = Client::new(server.service(), "default");
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &crd()).await.expect("the CRD is accepted");
    (server, client)
}

pub(crate) fn kind() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("toys.example", "v1", "Boat"), "boats")
}

pub(crate) fn boats(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &kind())
}

pub(crate) fn boat(name: &str, spec: Value) -> DynamicObject {
    let mut boat = DynamicObject::new(name, &kind());
    boat.data = json!({"spec": spec});
    boat
}

pub(crate) fn revision(object: &DynamicObject) -> u64 {
    object.resource_version().expect("stored objects have one").parse().expect("a number")
}

/// Returns the code and reason of a failed call.
pub(crate) fn reason<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason),
        other => panic!("expected the server to refuse: {other:?}"),
    }
}
