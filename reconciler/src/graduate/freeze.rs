//! Freezes a control plane: it rejects writes of berth's kinds, and of the Secrets that its objects name. This takes
//! two admission policies, the same on both control planes.

use std::time::Duration;

use anyhow::{Context, bail};
use berth_api::{GROUP, SYSTEM_NAMESPACE, VERSION};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kinds::SecretNames;
use crate::{
    install,
    requests::{has_code, send},
};

/// The policy of berth's kinds, and its binding.
const KINDS: &str = "berth-moving";
/// The policy of Secrets, and its binding.
const SECRETS: &str = "berth-moving-secrets";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
/// A Secret that is frozen with the others and never exists: a write of it shows whether Secrets are frozen.
const PROBE: &str = "berth-moving";
/// Bytes of one expression; the limit is 32 KiB here and 100,000 characters in Kubernetes.
const MAX_EXPRESSION: usize = 16 * 1024;
/// How long a control plane may take to enforce a new policy.
const IN_FORCE: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Returns a policy that rejects objects that do not fulfil all of `demands`, and its binding.
fn policy(name: &str, group: &str, resources: &str, demands: &[String], other: &str) -> [Value; 2] {
    let api_version = "admissionregistration.k8s.io/v1";
    let text = format!(
        "this site moves to {other}: nothing can be changed here any more. Use that control plane once `berth graduate` \
         has ended; while it has not, `berth graduate --abort` gives the move up"
    );
    let validations: Vec<Value> = demands
        .iter()
        .map(|demand| json!({"expression": demand, "message": text, "reason": "Forbidden"}))
        .collect();
    [
        json!({"apiVersion": api_version, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": [resources],
                "operations": ["CREATE", "UPDATE", "DELETE"]}]},
            "validations": validations,
        }}),
        json!({"apiVersion": api_version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]}}),
    ]
}

/// Returns expressions that hold for every Secret except these. A text is searched, so that ten thousand names are
/// parsed as one.
fn excluding(named: &SecretNames) -> Vec<String> {
    let mut texts = vec![format!(" {SYSTEM_NAMESPACE}/{PROBE} ")];
    for (namespace, name) in named {
        let entry = format!("{namespace}/{name} ");
        match texts.last_mut().filter(|text| text.len() + entry.len() <= MAX_EXPRESSION) {
            Some(text) => text.push_str(&entry),
            None => texts.push(format!(" {entry}")),
        }
    }
    let name = "(object == null ? oldObject : object).metadata.name";
    let demand = |text| format!("!'{text}'.contains(' ' + request.namespace + '/' + {name} + ' ')");
    texts.into_iter().map(demand).collect()
}

/// Makes the control plane reject every write of berth's kinds, and waits until it does.
///
/// *Errors:* it rejects the policy, or does not enforce it in time.
pub(super) async fn freeze(client: &Client, other: &str) -> anyhow::Result<()> {
    install::apply(client, &policy(KINDS, GROUP, "*/*", &["false".to_owned()], other)).await?;
    until(client, KINDS, true).await
}

/// Makes it reject the creation, change or deletion of these Secrets, and waits until it does. Frozen objects name
/// no others.
///
/// *Errors:* see [`freeze`].
pub(super) async fn hold(client: &Client, named: &SecretNames, other: &str) -> anyhow::Result<()> {
    install::apply(client, &policy(SECRETS, "", "secrets", &excluding(named), other)).await?;
    until(client, SECRETS, true).await
}

/// Waits until the control plane accepts writes again.
///
/// *Errors:* it does not in time.
pub(super) async fn until_thawed(client: &Client) -> anyhow::Result<()> {
    until(client, KINDS, false).await?;
    until(client, SECRETS, false).await
}

async fn until(client: &Client, name: &str, in_force: bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while refuses(client, name).await? != in_force {
        if begun.elapsed() > IN_FORCE {
            let why = match in_force {
                true => "is not gone by: does the control plane have ValidatingAdmissionPolicy?",
                false => "was taken away, and the control plane still goes by it",
            };
            bail!("admission policy {name} {why}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Whether the policy rejects a write that would change nothing.
async fn refuses(client: &Client, name: &str) -> anyhow::Result<bool> {
    let (path, probe) = if name == SECRETS {
        let probe = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": PROBE}});
        (format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"), probe)
    } else {
        let probe = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "StoragePool",
            "metadata": {"generateName": "berth-moving-"}, "spec": {"type": "Local"}});
        (format!("/apis/{GROUP}/{VERSION}/storagepools"), probe)
    };
    match send(client, Method::POST, &format!("{path}?dryRun=All"), "application/json", &probe).await {
        Ok(_) => Ok(false),
        Err(kube::Error::Api(status)) if status.message.contains(&format!("'{name}'")) => Ok(true),
        Err(error) => Err(error).context("asking whether writes are refused"),
    }
}

/// Removes the policies.
///
/// *Errors:* the control plane's.
pub(super) async fn thaw(client: &Client) -> anyhow::Result<()> {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
    let bindings = POLICIES.replace("policies", "policybindings");
    for name in [SECRETS, KINDS] {
        for path in [bindings.as_str(), POLICIES] {
            match send(client, Method::DELETE, &format!("{path}/{name}"), "application/json", &options).await
            {
                Err(error) if has_code(&error, 404) => {}
                other => drop(other.context("lifting the freeze")?),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_of_ten_thousand_secrets_is_held_and_no_other() {
        let config = berth_apiserver::ServerConfig::in_memory();
        let server = berth_apiserver::Server::open(config).await.expect("an in-memory server opens");
        let client = Client::new(server.service(), "default");
        install::manifests(&client).await.expect("the manifests apply");
        let named: SecretNames = (0..10_000)
            .map(|n| ("default".to_owned(), format!("vm-{n}-with-a-long-name-bootstrap")))
            .collect();
        hold(&client, &named, "https://other:6443").await.expect("they are held");
        let make = async |name: &str| {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
            let path = "/api/v1/namespaces/default/secrets";
            send(&client, Method::POST, path, "application/json", &secret).await
        };
        for (_, name) in named.iter().step_by(97).chain(named.last()) {
            let refused = make(name).await.expect_err(name).to_string();
            assert!(refused.contains("moves to https://other:6443"), "{refused}");
        }
        for name in ["other", "vm-1", "vm-10-with-a-long-name-bootstrap2", "bootstrap"] {
            make(name).await.expect("it is not named");
        }
    }

    #[test]
    fn every_secret_is_named_once_and_no_expression_is_too_long() {
        let named: SecretNames =
            (0..10_000).map(|n| (format!("ns-{}", n % 7), format!("vm-{n}-bootstrap"))).collect();
        let demands = excluding(&named);
        let texts: Vec<&str> = demands.iter().filter_map(|demand| demand.split('\'').nth(1)).collect();
        assert!(texts.len() > 1 && texts.len() == demands.len());
        assert!(demands.iter().all(|demand| demand.len() < 32 * 1024));
        assert!(texts.iter().all(|text| text.starts_with(' ') && text.ends_with(' ')), "each has both ends");
        let mut found: Vec<&str> = texts.iter().flat_map(|text| text.split_whitespace()).collect();
        found.sort_unstable();
        let mut wanted: Vec<String> =
            named.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        wanted.push(format!("{SYSTEM_NAMESPACE}/{PROBE}"));
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        let stored = policy(SECRETS, "", "secrets", &demands, "https://other:6443")[0].to_string();
        assert!(stored.len() < 1 << 20, "a control plane stores 1.5 MiB: {}", stored.len());
    }
}
