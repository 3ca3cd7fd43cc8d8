//! A client's way to a console or into a guest: the VM's status, a ticket from the control plane, the VM's host.

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{VM, console::ConsoleUse, vm::ConsoleAddress};
use berth_console_client::{Connection, connect as connect_to};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, ResourceExt, api::PostParams};

use crate::{
    cli::ConsoleTarget,
    commands::{connect, resources},
    one_connection::client_of,
    requests::has_code,
};

/// The shortest lifetime in seconds that Kubernetes gives a token. Hosts accept a ticket for one minute only.
const TICKET_SECONDS: i64 = 600;

/// Opens a connection to the VM's host for this use, with more in the query of the request where the use needs it.
///
/// *Errors:* each step's, with its remedy.
pub(in crate::commands) async fn open(
    target: &ConsoleTarget,
    wanted: ConsoleUse,
    query: Option<&str>,
) -> anyhow::Result<Connection> {
    let (client, vm) = vm(target).await?;
    let (namespace, name) = (target.namespace.as_str(), target.vm.as_str());
    let console = address(&vm)?;
    let uid = vm.uid().unwrap_or_default();
    let ticket = ticket(&client, namespace, wanted.account(), wanted.audience(namespace, name, &uid)).await?;
    let mut path = wanted.path(namespace, name);
    if let Some(query) = query {
        path = format!("{path}?{query}");
    }
    let host = vm.status.as_ref().and_then(|s| s.binding.as_ref()).map_or("?", |b| b.host.as_str());
    let connected = connect_to(&console, &path, &ticket).await;
    connected.with_context(|| format!("VM {namespace}/{name} on host {host}, {}", console.address))
}

/// Reads the VM; returns the control plane too.
pub(in crate::commands) async fn vm(target: &ConsoleTarget) -> anyhow::Result<(Client, VM)> {
    let (namespace, name) = (resources::checked(&target.namespace)?, resources::checked(&target.vm)?);
    let client = client_of(connect::admin(&target.connection, &target.state.state_dir).await?)?;
    let vms: TypedApi<VM> = TypedApi::namespaced(client.clone(), namespace);
    let vm = vms.get_opt(name).await.with_context(|| format!("reading VM {namespace}/{name}"))?;
    let Some(vm) = vm else { bail!("there is no VM {name} in namespace {namespace} (see -n)") };
    Ok((client, vm))
}

/// Returns where the VM's console is.
fn address(vm: &VM) -> anyhow::Result<ConsoleAddress> {
    let status = vm.status.clone().unwrap_or_default();
    let name = vm.name_any();
    let Some(binding) = status.binding else {
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let why = ready.map(|ready| format!(": {} ({})", ready.message, ready.reason)).unwrap_or_default();
        bail!("VM {name} has no host yet, and no console{why}");
    };
    let Some(console) = status.console else {
        bail!(
            "host {} serves no console of VM {name}: its agent has not reported the VM yet, is older than this command, or \
             runs with --no-console",
            binding.host
        );
    };
    Ok(console)
}

/// Requests a ticket of this account.
///
/// *Errors:* there is no such account, or no right to its tokens.
pub(in crate::commands) async fn ticket(
    client: &Client,
    namespace: &str,
    account: &str,
    audience: String,
) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let spec = TokenRequestSpec {
        audiences: Some(vec![audience]),
        expiration_seconds: Some(TICKET_SECONDS),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
    let remedy = match &made {
        Err(error) if has_code(error, 404) => format!(
            "; the controllers create this account with the first VM, snapshot or complete backup of a namespace, or its first image that is made or \
             uploaded: try again in a moment, or kubectl create serviceaccount {account} -n {namespace}"
        ),
        Err(error) if has_code(error, 403) => format!(
            "; it takes the verb create on serviceaccounts/token of {account} (role berth-editor has it)"
        ),
        _ => String::new(),
    };
    let made = made.with_context(|| format!("requesting a ticket of {namespace}/{account}{remedy}"))?;
    Ok(made.status.and_then(|status| status.token).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vm(status: Value) -> VM {
        serde_json::from_value(
            json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "web"},
            "spec": {"class": "c", "disks": [{"name": "d", "boot": true}]}, "status": status}),
        )
        .expect("a VM")
    }

    #[test]
    fn a_vm_without_a_console_is_refused_with_the_reason() {
        let ready = json!({"type": "Ready", "status": "False", "reason": "NoCapacity", "message": "no host has room",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let waiting = address(&vm(json!({"conditions": [ready]}))).expect_err("it waits").to_string();
        assert_eq!(waiting, "VM web has no host yet, and no console: no host has room (NoCapacity)");
        let bound = json!({"host": "h1", "epoch": 1});
        let error = address(&vm(json!({"binding": bound}))).expect_err("not served").to_string();
        assert!(error.starts_with("host h1 serves no console of VM web"), "{error}");
        let console = json!({"address": "192.0.2.1:7444", "certificateSha256": "0".repeat(64)});
        let found = address(&vm(json!({"binding": bound, "console": console}))).expect("served");
        assert_eq!(found.address, "192.0.2.1:7444");
    }
}
