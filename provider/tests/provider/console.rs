//! The ephemeral resource `berth_console`: the ticket and where it is used, and its errors.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;
use tfplugin6::{
    CancellationToken, Diagnostic, EphemeralResource, Provider as _, Value,
    ephemeral::{OpenRequest, OpenResponse},
    provider::ClientCapabilities,
    resource::ValidateRequest,
};

use crate::{
    control_plane::ControlPlane,
    stage::{provider, text_of, value},
    token::create_account,
};

fn resource(provider: &BerthProvider) -> Arc<dyn EphemeralResource> {
    let mut offered = provider.ephemeral_resources().into_iter();
    offered.find(|one| one.type_name() == "berth_console").expect("the provider has it")
}

fn config(given: &Json) -> Value {
    let mut config = value(&json!({"namespace": null, "vm": null, "uid": null, "use": null, "address": null,
        "certificate_sha256": null, "path": null, "token": null, "expiration": null}));
    for (name, given) in given.as_object().expect("an object") {
        config.set(name, value(given));
    }
    config
}

async fn open(provider: &BerthProvider, given: &Json) -> OpenResponse {
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    resource(provider).open(OpenRequest { config: config(given), client, cancel }).await
}

async fn refused(provider: &BerthProvider, given: &Json) -> String {
    let opened = open(provider, given).await;
    assert!(opened.result.is_none(), "{given}: {:?}", opened.result);
    text_of(&opened.diagnostics)
}

async fn invalid(provider: &BerthProvider, given: &Json) -> Vec<Diagnostic> {
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    resource(provider).validate(ValidateRequest { config: config(given), client, cancel }).await
}

/// A VM, and waits until it has a host.
async fn vm(plane: &ControlPlane, name: &str) -> String {
    let spec = json!({"cpus": 1, "disks": [{"name": "root", "boot": true}]});
    plane.declare_as("others", "VM", name, spec).await;
    while plane.object("VM", name).await.pointer("/status/binding").is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    plane.object("VM", name).await["metadata"]["uid"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn a_ticket_is_for_one_use_of_one_vm_at_the_address_beside_it() {
    let plane = ControlPlane::in_memory().await;
    create_account(&plane, "default", "berth-console").await;
    let uid = vm(&plane, "web").await;
    let provider = provider(&plane.client, "default");
    for (given, wanted) in
        [(json!({"vm": "web"}), "console"), (json!({"vm": "web", "uid": uid, "use": "vnc"}), "vnc")]
    {
        let opened = open(&provider, &given).await;
        assert!(opened.diagnostics.is_empty(), "{}", text_of(&opened.diagnostics));
        assert!(opened.renew_at.is_none() && opened.private.is_none(), "there is nothing to renew");
        let result = opened.result.expect("a ticket");
        let text = |name: &str| result.get(name).as_str().expect("a text").to_owned();
        assert_eq!(text("address"), "192.0.2.7:7444");
        assert_eq!(text("certificate_sha256"), "ab".repeat(32));
        assert_eq!(text("path"), format!("/v1/namespaces/default/vms/web/{wanted}"));
        assert_eq!(
            (text("namespace"), text("uid"), text("use")),
            ("default".into(), uid.clone(), wanted.into())
        );
        let token = text("token");
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).expect("a token")).expect("base64");
        let claims: Json = serde_json::from_slice(&claims).expect("JSON");
        assert_eq!(claims["aud"], json!([format!("{wanted}.berth.dev/default/web/{uid}")]));
        assert_eq!(claims["sub"], "system:serviceaccount:default:berth-console");
        let end: Timestamp = text("expiration").parse().expect("a time");
        assert_eq!(Some(end.as_second()), claims["iat"].as_i64().map(|issued| issued + 60));
    }
    plane.close().await;
}

#[tokio::test]
async fn an_open_waits_for_the_account_that_follows_the_first_vm() {
    let plane = ControlPlane::in_memory().await;
    vm(&plane, "web").await;
    let provider = provider(&plane.client, "default");
    let given = json!({"vm": "web"});
    let (opened, ()) = tokio::join!(open(&provider, &given), async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        create_account(&plane, "default", "berth-console").await;
    });
    assert!(opened.result.is_some(), "{}", text_of(&opened.diagnostics));
    plane.close().await;
}

#[tokio::test]
async fn no_ticket_is_a_reason_and_a_remedy() {
    let plane = ControlPlane::in_memory().await;
    create_account(&plane, "default", "berth-console").await;
    let uid = vm(&plane, "web").await;
    vm(&plane, "mute").await;
    let provider = provider(&plane.client, "default");
    let text = refused(&provider, &json!({"vm": "absent"})).await;
    assert!(text.contains("uid = berth_vm.NAME.uid") && text.ends_with("[vm]"), "{text}");
    let text = refused(&provider, &json!({"vm": "web", "uid": "former"})).await;
    assert!(text.contains(&format!("has uid {uid}, not former")) && text.ends_with("[uid]"), "{text}");
    let text = refused(&provider, &json!({"vm": "mute"})).await;
    assert!(text.contains("host host-a serves none") && text.contains("--no-console"), "{text}");
    let stranger = crate::stage::provider(&plane.without_roles(), "default");
    let text = refused(&stranger, &json!({"vm": "web"})).await;
    assert!(text.contains("the verb get on vms in namespace default"), "{text}");
    plane.close().await;

    let plane = ControlPlane::without_controllers().await;
    plane
        .declare_as("others", "VM", "web", json!({"cpus": 1, "disks": [{"name": "root", "boot": true}]}))
        .await;
    let text = refused(&crate::stage::provider(&plane.client, "default"), &json!({"vm": "web"})).await;
    assert!(text.contains("It has no host yet: not observed yet.") && text.ends_with("[vm]"), "{text}");
    plane.close().await;
}

#[tokio::test]
async fn bad_arguments_are_refused_at_their_path() {
    let provider = BerthProvider::default();
    for (given, at) in [
        (json!({"vm": "We b"}), "vm"),
        (json!({"vm": "web", "namespace": "a.b"}), "namespace"),
        (json!({"vm": "web", "uid": ""}), "uid"),
        (json!({"vm": "web", "use": "screen"}), "use"),
    ] {
        let text = text_of(&invalid(&provider, &given).await);
        assert!(
            text.contains(&format!("Invalid {at}")) && text.ends_with(&format!("[{at}]")),
            "{given}: {text}"
        );
    }
    let unknown = json!({"vm": "<unknown>", "uid": "<unknown>", "use": "<unknown>"});
    assert!(invalid(&provider, &unknown).await.is_empty());
}
