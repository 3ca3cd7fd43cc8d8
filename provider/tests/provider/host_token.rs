//! The ephemeral resource `berth_host_token`: the join string, and its errors.

use std::sync::Arc;

use berth_api::join::Join;
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    rbac::v1::{ClusterRoleBinding, RoleBinding},
};
use kube::{Api, api::PostParams};
use serde_json::{Value as Json, json};
use terraform_provider_berth::{
    BerthProvider,
    connection::{self, ConnectionSettings},
};
use tfplugin6::{
    CancellationToken, EphemeralResource, Provider, Value,
    ephemeral::{OpenRequest, OpenResponse},
    provider::{ClientCapabilities, ConfigureRequest},
    resource::ValidateRequest,
};

use crate::{
    control_plane::ControlPlane,
    stage::{provider, text_of, value},
};

fn resource(provider: &BerthProvider) -> Arc<dyn EphemeralResource> {
    let mut offered = provider.ephemeral_resources().into_iter();
    offered.find(|one| one.type_name() == "berth_host_token").expect("the provider has it")
}

fn config(given: &Json) -> Value {
    let mut config = value(&json!({"host": null, "server": null, "expiration_seconds": null, "join": null,
        "expiration": null}));
    for (name, given) in given.as_object().expect("an object") {
        config.set(name, value(given));
    }
    config
}

async fn open(provider: &BerthProvider, given: &Json) -> OpenResponse {
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    resource(provider).open(OpenRequest { config: config(given), client, cancel }).await
}

async fn invalid(given: &Json) -> String {
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    let request = ValidateRequest { config: config(given), client, cancel };
    text_of(&resource(&BerthProvider::default()).validate(request).await)
}

#[tokio::test]
async fn a_join_string_leads_to_the_control_plane_as_the_host() {
    let directory = tempfile::tempdir().expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    let provider = BerthProvider::default();
    let request = ConfigureRequest {
        config: Value::object([("kubeconfig", Value::from(kubeconfig.display().to_string()))]),
        terraform_version: "1.15.0".into(),
        client: ClientCapabilities::default(),
        cancel: CancellationToken::new(),
    };
    let configured = provider.configure(request).await;
    assert!(configured.is_empty(), "{}", text_of(&configured));

    let opened = open(&provider, &json!({"host": "kvm-9"})).await;
    let text = text_of(&opened.diagnostics);
    assert!(text.contains("127.0.0.1") && text.ends_with("[server]"), "{text}");

    let server = "https://192.0.2.10:7443";
    // The second one finds the account that the first one has made.
    for seconds in [900, 600] {
        let given = json!({"host": "kvm-9", "server": server, "expiration_seconds": seconds});
        let opened = open(&provider, &given).await;
        assert!(opened.diagnostics.is_empty(), "{}", text_of(&opened.diagnostics));
        let result = opened.result.expect("a join string");
        assert!(result.get("expiration").as_str().is_some());
        assert_eq!(result.get("expiration_seconds").as_i64(), Some(seconds));
        let join = Join::decode(result.get("join").as_str().expect("a text")).expect("a join string");
        assert_eq!((join.host.as_str(), join.server.as_str()), ("kvm-9", server));
        let settings = ConnectionSettings {
            host: Some(plane_address(&kubeconfig)),
            token: Some(join.token.clone()),
            ca_certificate: join.ca.clone(),
            ..ConnectionSettings::default()
        };
        let (client, _) = connection::connect(&settings).await.expect("it is a connection");
        let reviews: Api<SelfSubjectReview> = Api::all(client);
        let review =
            reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.expect("an answer");
        let user = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
        assert_eq!(user.as_deref(), Some("system:serviceaccount:berth-system:host-kvm-9"));
    }
    let bindings: Api<ClusterRoleBinding> = Api::all(plane.client.clone());
    let binding = bindings.get("berth-host-kvm-9").await.expect("it was made");
    assert_eq!(binding.role_ref.name, "berth-host");
    let bindings: Api<RoleBinding> = Api::namespaced(plane.client.clone(), "berth-system");
    bindings.get("berth-host-kvm-9").await.expect("it was made");
    plane.close().await;
}

/// The server in a kubeconfig.
pub(crate) fn plane_address(kubeconfig: &std::path::Path) -> String {
    let text = std::fs::read_to_string(kubeconfig).expect("it was written");
    let server = text.split("server:").nth(1).and_then(|rest| rest.split_whitespace().next());
    server.expect("it has a server").trim_matches('"').to_owned()
}

#[tokio::test]
async fn a_join_string_needs_an_address_for_other_machines() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let opened = open(&provider, &json!({"host": "kvm-9"})).await;
    assert!(text_of(&opened.diagnostics).ends_with("[server]") && opened.result.is_none());
    plane.close().await;
}

#[tokio::test]
async fn arguments_that_no_join_string_can_have_are_refused() {
    for (given, at) in [
        (json!({"host": "KVM 9"}), "host"),
        (json!({"host": vec!["a".repeat(60); 4].join(".")}), "host"),
        (json!({"host": "kvm-9", "server": "http://192.0.2.10:7443"}), "server"),
        (json!({"host": "kvm-9", "server": "192.0.2.10"}), "server"),
        (json!({"host": "kvm-9", "expiration_seconds": 599}), "expiration_seconds"),
        (json!({"host": "kvm-9", "expiration_seconds": 31_536_001}), "expiration_seconds"),
    ] {
        let text = invalid(&given).await;
        assert!(
            text.contains(&format!("Invalid {at}")) && text.ends_with(&format!("[{at}]")),
            "{given}: {text}"
        );
    }
    let unknown = json!({"host": "<unknown>", "server": "<unknown>", "expiration_seconds": "<unknown>"});
    assert_eq!(invalid(&unknown).await, "");
}
