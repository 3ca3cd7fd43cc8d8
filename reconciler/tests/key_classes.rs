//! Admission of KeyClasses on the embedded control plane.

use berth::install;
use kube::Client;
use serde_json::{Value, json};

use crate::installed;

/// Applies the KeyClass `k`. Returns why it is refused; empty: it is not.
async fn apply(client: &Client, spec: Value) -> String {
    let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "KeyClass",
        "metadata": {"name": "k", "namespace": "default"}, "spec": spec});
    let refused = install::apply(client, &[object]).await.err();
    refused.map(|error| format!("{error:#}")).unwrap_or_default()
}

/// A class with a key in a Vault, with one change. Null: without that.
fn vault(name: &str, value: Value) -> Value {
    let mut vault =
        json!({"address": "https://vault.example:8200", "key": "berth", "tokenSecret": {"name": "t"}});
    match value {
        Value::Null => drop(vault.as_object_mut().and_then(|fields| fields.remove(name))),
        value => vault[name] = value,
    }
    json!({"vault": vault})
}

#[tokio::test]
async fn a_class_has_one_key_which_stays_and_one_way_to_it_which_may_change() {
    let installed::Copy { server: _server, admin: client, folder: _folder, .. } = installed::copy().await;
    let mut both = vault("key", json!("berth"));
    both["secret"] = json!({"name": "s"});
    let role = json!({"roleID": "r", "secret": {"name": "t"}});
    for (spec, words) in [
        (json!({}), "set either secret or vault"),
        (both, "set either secret or vault"),
        (vault("appRole", role.clone()), "set either tokenSecret or appRole"),
        (vault("tokenSecret", Value::Null), "set either tokenSecret or appRole"),
        (vault("address", json!("http://vault.example:8200")), "must begin with https://"),
        (vault("address", json!("https://vault.example/v1")), "spec.vault.address"),
        (vault("mount", json!("../sys")), "spec.vault.mount"),
        (vault("key", json!("a/b")), "spec.vault.key"),
        (vault("namespace", json!("team/")), "spec.vault.namespace"),
    ] {
        let refused = apply(&client, spec.clone()).await;
        assert!(refused.contains(words), "{spec}: {refused}");
    }
    for address in ["http://127.0.0.1:8200", "http://[::1]:8200", "https://vault.example:8200/"] {
        assert_eq!(apply(&client, vault("address", json!(address))).await, "");
    }
    for spec in
        [vault("mount", json!("other")), vault("key", json!("other")), vault("namespace", json!("team"))]
    {
        let refused = apply(&client, spec).await;
        assert!(refused.contains("mount, key and namespace cannot change"), "{refused}");
    }
    let refused = apply(&client, json!({"secret": {"name": "s"}})).await;
    assert!(refused.contains("cannot change"), "{refused}");
    let mut by_role = vault("tokenSecret", Value::Null);
    by_role["vault"]["appRole"] = role;
    assert_eq!(apply(&client, by_role).await, "");
}
