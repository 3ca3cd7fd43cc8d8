//! Keys of Secure Boot: read from a Secret when they are due, and enrolled once for each value.

use berth_api::VM;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::fixture::{Fixture, is_ready, vm_reason};

/// The outer form of a certificate: nothing here verifies a signature.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMAIwAA==\n-----END CERTIFICATE-----\n";

fn declared(token: &str) -> Value {
    json!({"secureBootKeys": {"secretName": "boot", "token": token}})
}

async fn set_secret(fixture: &Fixture, text: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot"},
        "stringData": {"PK": text, "KEK": text, "db": text}});
    let params = PatchParams::apply("test").force();
    fixture.api::<Secret>().patch("boot", &params, &Patch::Apply(&object)).await.expect("applied");
}

/// Waits until the guest runs after this many launches.
async fn launched(fixture: &Fixture, launches: u64) {
    let hypervisor = fixture.system.hypervisor();
    fixture.until::<VM>("web", |vm| is_ready(vm, "Running") && hypervisor.launches() == launches).await;
}

#[tokio::test(start_paused = true)]
async fn keys_are_waited_for_and_the_secret_is_needed_only_when_they_are_enrolled() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    let mut spec = declared("1");
    spec["firmware"] = json!("UEFISecureBoot");
    fixture.make_vm(spec).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "WaitingForSecret").await;
    set_secret(&fixture, "canary").await;
    let vm = fixture.until::<VM>("web", |vm| vm_reason(vm) == "InvalidSpec").await;
    assert!(!format!("{vm:?}").contains("canary"), "{vm:?}");
    set_secret(&fixture, CERTIFICATE).await;
    launched(&fixture, 1).await;

    fixture.api::<Secret>().delete("boot", &Default::default()).await.expect("deleted");
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    launched(&fixture, 2).await;

    fixture.change::<VM>("web", declared("2")).await;
    let pending = |vm: &VM| vm.status.as_ref().is_some_and(|s| s.pending_power_cycle == ["secureBootKeys"]);
    fixture.until::<VM>("web", pending).await;
    fixture.change::<VM>("web", json!({"restartToken": "2"})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "WaitingForSecret").await;
    set_secret(&fixture, CERTIFICATE).await;
    launched(&fixture, 3).await;
    fixture.assert_quiet().await;
}
