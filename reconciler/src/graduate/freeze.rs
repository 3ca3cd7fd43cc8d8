//! A control plane that takes no more writes of berth's kinds: an admission policy, the same on both.

use std::time::Duration;

use anyhow::{Context, bail};
use berth_api::GROUP;
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    install,
    requests::{has_code, send},
};

/// The policy and its binding.
pub(super) const NAME: &str = "berth-moving";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
/// How long a control plane may take until it goes by a new policy.
const IN_FORCE: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(200);

fn policy(other: &str) -> [Value; 2] {
    let api_version = "admissionregistration.k8s.io/v1";
    let text = format!(
        "this site moves to {other}: nothing can be changed here any more. Use that control plane once `berth graduate` \
         has ended; while it has not, `berth graduate --abort` gives the move up"
    );
    [
        json!({"apiVersion": api_version, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME}, "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": [GROUP], "apiVersions": ["*"], "resources": ["*/*"],
                "operations": ["CREATE", "UPDATE", "DELETE"]}]},
            "validations": [{"expression": "false", "message": text, "reason": "Forbidden"}],
        }}),
        json!({"apiVersion": api_version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": NAME},
            "spec": {"policyName": NAME, "validationActions": ["Deny"]}}),
    ]
}

/// Makes the control plane refuse every write of berth's kinds, and waits until it does.
///
/// *Errors:* it does not take the policy, or does not go by it in time.
pub(super) async fn freeze(client: &Client, other: &str) -> anyhow::Result<()> {
    install::apply(client, &policy(other)).await?;
    let begun = Instant::now();
    while !refuses(client).await? {
        if begun.elapsed() > IN_FORCE {
            bail!(
                "the control plane does not go by the admission policy {NAME}: does it have ValidatingAdmissionPolicy?"
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Waits until the control plane takes writes again.
///
/// *Errors:* it does not in time.
pub(super) async fn until_thawed(client: &Client) -> anyhow::Result<()> {
    let begun = Instant::now();
    while refuses(client).await? {
        if begun.elapsed() > IN_FORCE {
            bail!("the control plane still goes by the admission policy {NAME}, which was taken away");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Whether a write that would change nothing is refused by the policy.
async fn refuses(client: &Client) -> anyhow::Result<bool> {
    let probe = json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "StoragePool",
        "metadata": {"generateName": "berth-moving-"}, "spec": {"type": "Local"}});
    let path = format!("/apis/{GROUP}/v1alpha1/storagepools?dryRun=All");
    match send(client, Method::POST, &path, "application/json", &probe).await {
        Ok(_) => Ok(false),
        Err(kube::Error::Api(status)) if status.message.contains(NAME) => Ok(true),
        Err(error) => Err(error).context("asking whether writes are refused"),
    }
}

/// Takes that back.
///
/// *Errors:* the control plane's.
pub(super) async fn thaw(client: &Client) -> anyhow::Result<()> {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
    let bindings = POLICIES.replace("policies", "policybindings");
    for path in [bindings.as_str(), POLICIES] {
        match send(client, Method::DELETE, &format!("{path}/{NAME}"), "application/json", &options).await {
            Err(error) if has_code(&error, 404) => {}
            other => drop(other.context("lifting the freeze")?),
        }
    }
    Ok(())
}
