//! The ephemeral resource `berth_token`: what it issues, and its errors.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    core::v1::{Namespace, ServiceAccount},
};
use kube::{Api, api::PostParams};
use serde_json::{Value as Json, json};
use terraform_provider_berth::{
    BerthProvider,
    connection::{self, ConnectionSettings},
};
use tfplugin6::{
    CancellationToken, Diagnostic, EphemeralResource, Provider, Value,
    ephemeral::{HeldRequest, OpenRequest, OpenResponse},
    provider::{ClientCapabilities, ConfigureRequest},
    resource::ValidateRequest,
};

use crate::{
    control_plane::ControlPlane,
    stage::{provider, text_of, value},
};

fn resource(provider: &BerthProvider) -> Arc<dyn EphemeralResource> {
    let mut offered = provider.ephemeral_resources().into_iter();
    offered.find(|one| one.type_name() == "berth_token").expect("the provider has it")
}

fn config(given: &Json) -> Value {
    let mut config =
        value(&json!({"namespace": null, "service_account": null, "audiences": null, "token": null,
        "expiration_seconds": null, "expiration": null, "host": null, "ca_certificate": null}));
    for (name, given) in given.as_object().expect("an object") {
        config.set(name, value(given));
    }
    config
}

async fn open(provider: &BerthProvider, given: &Json) -> OpenResponse {
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    resource(provider).open(OpenRequest { config: config(given), client, cancel }).await
}

async fn invalid(provider: &BerthProvider, given: &Json) -> Vec<Diagnostic> {
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    resource(provider).validate(ValidateRequest { config: config(given), client, cancel }).await
}

pub(crate) async fn create_account(plane: &ControlPlane, namespace: &str, name: &str) {
    let account: ServiceAccount =
        serde_json::from_value(json!({"metadata": {"name": name}})).expect("an account");
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.client.clone(), namespace);
    accounts.create(&PostParams::default(), &account).await.expect("it is valid");
}

#[tokio::test]
async fn a_token_is_that_of_its_service_account_at_the_address_beside_it() {
    let directory = tempfile::tempdir().expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    create_account(&plane, "default", "deploy").await;

    let provider = BerthProvider::default();
    let request = ConfigureRequest {
        config: Value::object([("kubeconfig", Value::from(kubeconfig.display().to_string()))]),
        terraform_version: "1.15.0".into(),
        client: ClientCapabilities::default(),
        cancel: CancellationToken::new(),
    };
    let configured = provider.configure(request).await;
    assert!(configured.is_empty(), "{}", text_of(&configured));
    let opened = open(&provider, &json!({"service_account": "deploy", "expiration_seconds": 900})).await;
    assert!(opened.diagnostics.is_empty(), "{}", text_of(&opened.diagnostics));
    let result = opened.result.expect("a token");
    assert_eq!(result.get("namespace").as_str(), Some("default"));
    assert_eq!(result.get("expiration_seconds").as_i64(), Some(900));

    let text = |name: &str| result.get(name).as_str().map(str::to_owned);
    let settings = ConnectionSettings {
        host: text("host"),
        token: text("token"),
        ca_certificate: text("ca_certificate"),
        ..ConnectionSettings::default()
    };
    let (client, _) = connection::connect(&settings).await.expect("the results are a connection");
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    let review =
        reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.expect("an answer");
    let user = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
    assert_eq!(user.as_deref(), Some("system:serviceaccount:default:deploy"));

    let left =
        opened.renew_at.expect("it warns before its end").duration_since(SystemTime::now()).expect("later");
    assert!(left > Duration::from_secs(780) && left < Duration::from_secs(900), "{left:?}");
    let private = opened.private.expect("what renew needs");
    let held = HeldRequest { private, cancel: CancellationToken::new() };
    let renewed = resource(&provider).renew(held).await;
    let warned = text_of(&renewed.diagnostics);
    assert!(warned.starts_with("Warning: A token ends before this run"), "{warned}");
    assert!(
        warned.contains("default/deploy") && !warned.contains(&text("token").expect("a token")),
        "{warned}"
    );
    assert!(renewed.renew_at.is_none());
    plane.close().await;
}

#[tokio::test]
async fn audiences_and_another_namespace_are_requested() {
    let plane = ControlPlane::in_memory().await;
    let team: Namespace = serde_json::from_value(json!({"metadata": {"name": "team"}})).expect("a namespace");
    let namespaces: Api<Namespace> = Api::all(plane.client.clone());
    namespaces.create(&PostParams::default(), &team).await.expect("it is valid");
    create_account(&plane, "team", "ci").await;
    let provider = provider(&plane.client, "default");
    let given = json!({"namespace": "team", "service_account": "ci", "audiences": ["vault"]});
    let opened = open(&provider, &given).await;
    assert!(opened.diagnostics.is_empty(), "{}", text_of(&opened.diagnostics));
    let token = opened.result.expect("a token").get("token").as_str().expect("a text").to_owned();
    let claims = token.split('.').nth(1).expect("the second part of a token");
    let claims = {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).expect("base64")
    };
    let claims: Json = serde_json::from_slice(&claims).expect("JSON");
    assert_eq!(claims["aud"], json!(["vault"]));
    plane.close().await;
}

#[tokio::test]
async fn what_is_refused_names_the_argument_and_the_remedy() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let opened = open(&provider, &json!({"service_account": "absent"})).await;
    let text = text_of(&opened.diagnostics);
    assert!(
        text.contains("no ServiceAccount default/absent") && text.ends_with("[service_account]"),
        "{text}"
    );
    assert!(opened.result.is_none());
    create_account(&plane, "default", "deploy").await;
    let many: Vec<String> = (0..17).map(|i| format!("a{i}")).collect();
    let opened = open(&provider, &json!({"service_account": "deploy", "audiences": many})).await;
    let text = text_of(&opened.diagnostics);
    assert!(text.contains("at most 16") && text.ends_with("[audiences]"), "{text}");

    for (given, at) in [
        (json!({"service_account": "deploy", "expiration_seconds": 599}), "expiration_seconds"),
        (json!({"service_account": "deploy", "expiration_seconds": 900.5}), "expiration_seconds"),
        (json!({"service_account": "De ploy"}), "service_account"),
        (json!({"service_account": "deploy", "namespace": "a.b"}), "namespace"),
    ] {
        let text = text_of(&invalid(&provider, &given).await);
        assert!(
            text.contains(&format!("Invalid {at}")) && text.ends_with(&format!("[{at}]")),
            "{given}: {text}"
        );
    }
    let unknown = json!({"service_account": "<unknown>", "expiration_seconds": "<unknown>"});
    assert!(invalid(&provider, &unknown).await.is_empty());
    plane.close().await;
}
