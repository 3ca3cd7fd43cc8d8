//! Moves hosts from one control plane to another: each finds its own ticket on the source and follows it.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{Host, SYSTEM_NAMESPACE, Unparsed, manifests::access, site::TermRecord};
use berth_engine::Clock;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Secret, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    credential, install,
    join::{Join, TokenTimes},
};

/// The agent of a Lease renewed within this time is alive.
const ALIVE: SignedDuration = SignedDuration::from_secs(40);
/// Lifetime of a host's first token on the target: a host that is off is expected back by then.
const LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The interval between checks for arrived hosts.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// On a host's Lease: the term of the control plane that takes charge.
const MOVED_TO: &str = "berth.dev/moved-to-term";

/// The control plane hosts move to, as they reach it.
#[derive(Clone, Debug)]
pub struct Destination {
    /// `https://host:port`
    pub server: String,
    /// The CA certificates, in PEM; none if the public ones suffice.
    pub ca: Option<String>,
}

/// Returns the hosts that can move: those that are not fenced.
pub(super) async fn all(client: &Client) -> anyhow::Result<BTreeSet<String>> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let hosts = hosts.list(&ListParams::default()).await.context("listing hosts")?;
    Ok(hosts.iter().filter(|host| !host.spec.fenced).map(ResourceExt::name_any).collect())
}

/// Returns the hosts with a recently renewed Lease.
pub(super) async fn alive(client: &Client, now: Timestamp) -> anyhow::Result<BTreeSet<String>> {
    let leases: TypedApi<Lease> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let leases = leases.list(&ListParams::default()).await.context("listing the hosts' Leases")?;
    let lives = |lease: &&Lease| {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
        renewed.is_some_and(|at| now.duration_since(at.0) < ALIVE)
    };
    Ok(leases.iter().filter(lives).map(ResourceExt::name_any).collect())
}

/// Gives each host an account on the target, and leaves a ticket for it on the source.
///
/// *Errors:* a control plane's.
pub(super) async fn invite(
    from: &Client,
    to: &Client,
    destination: &Destination,
    next: &TermRecord,
    now: Timestamp,
) -> anyhow::Result<()> {
    let secrets: TypedApi<Secret> = TypedApi::namespaced(from.clone(), SYSTEM_NAMESPACE);
    for host in all(from).await? {
        install::apply(to, &access::host(&host)).await.with_context(|| format!("letting host {host} in"))?;
        let known = secrets.get_opt(&access::ticket_name(&host)).await.context("reading a host's ticket")?;
        if known.is_some_and(|known| leads_to(&known, destination, next, now)) {
            continue;
        }
        let token =
            credential::request(to, &host, LIFE).await.with_context(|| format!("a token for {host}"))?;
        let join = Join {
            server: destination.server.clone(),
            ca: destination.ca.clone(),
            token,
            host: host.clone(),
        };
        install::apply(from, &access::ticket(&host, &join.encode(), next.term))
            .await
            .with_context(|| format!("leaving host {host} its ticket"))?;
    }
    Ok(())
}

/// Makes each host check at once which control plane is in charge: its Lease is not as it wrote it.
///
/// *Errors:* a control plane's.
pub(super) async fn nudge(from: &Client, next: &TermRecord) -> anyhow::Result<()> {
    let leases: TypedApi<Lease> = TypedApi::namespaced(from.clone(), SYSTEM_NAMESPACE);
    let hosts = all(from).await?;
    let term = next.term.to_string();
    for lease in leases.list(&ListParams::default()).await.context("listing the hosts' Leases")? {
        let name = lease.name_any();
        if !hosts.contains(&name) || lease.annotations().get(MOVED_TO) == Some(&term) {
            continue;
        }
        let patch = Patch::Merge(json!({"metadata": {"annotations": {MOVED_TO: &term}}}));
        match leases.patch(&name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other.with_context(|| format!("telling host {name} that the site has moved"))?),
        }
    }
    Ok(())
}

fn text(secret: &Secret, field: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(field)?;
    String::from_utf8(value.0.clone()).ok()
}

/// Whether a ticket is for this move, and does not expire too soon.
fn leads_to(ticket: &Secret, destination: &Destination, next: &TermRecord, now: Timestamp) -> bool {
    let Some(join) = text(ticket, "join").and_then(|join| Join::decode(&join).ok()) else { return false };
    let of_this_move = text(ticket, "term") == Some(next.term.to_string());
    let soon = TokenTimes::of(&join.token).is_some_and(|times| times.renew_at() < now);
    of_this_move && join.server == destination.server && join.ca == destination.ca && !soon
}

/// Reads a host's ticket with the host's own rights.
///
/// *Errors:* there is none for it; the control plane's.
pub async fn ticket(client: &Client, host: &str) -> anyhow::Result<Join> {
    let secrets: TypedApi<Secret> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let name = access::ticket_name(host);
    let Some(secret) = secrets.get_opt(&name).await.context("reading this host's ticket")? else {
        bail!(
            "the site has moved, and there is nothing here for host {host} to go on with: join it there by hand"
        )
    };
    let join = text(&secret, "join").context("this host's ticket is empty")?;
    let join = Join::decode(&join).context("this host's ticket")?;
    if join.host != host {
        bail!("this host's ticket is for host {}", join.host);
    }
    Ok(join)
}

/// Removes the tickets.
///
/// *Errors:* the control plane's.
pub(super) async fn revoke(client: &Client) -> anyhow::Result<()> {
    let ours = ListParams::default().labels(access::HOST_LABEL);
    let secrets: TypedApi<Secret> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let untyped =
        |resource: ApiResource| Api::<Unparsed>::namespaced_with(client.clone(), SYSTEM_NAMESPACE, &resource);
    let roles = untyped(Unparsed::resource::<Role>());
    let bindings = untyped(Unparsed::resource::<RoleBinding>());
    for secret in secrets.list(&ours).await.context("listing tickets")? {
        let name = secret.name_any();
        let params = DeleteParams::default();
        for gone in [
            bindings.delete(&name, &params).await.map(drop),
            roles.delete(&name, &params).await.map(drop),
            secrets.delete(&name, &params).await,
        ] {
            match gone {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => other.context("taking a ticket away")?,
            }
        }
    }
    Ok(())
}

/// Removes from each host what [`invite`] gave it.
///
/// *Errors:* a control plane's.
pub(super) async fn shut_out(from: &Client, to: &Client) -> anyhow::Result<()> {
    let accounts: TypedApi<ServiceAccount> = TypedApi::namespaced(to.clone(), SYSTEM_NAMESPACE);
    for host in all(from).await? {
        match accounts.delete(&access::account_name(&host), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => other.context("ending a host's access")?,
        }
    }
    Ok(())
}

/// Waits until these hosts have renewed their Leases on this control plane; returns those that have not.
///
/// *Errors:* the control plane's.
pub(super) async fn arrived(
    client: &Client,
    mut awaited: BTreeSet<String>,
    limit: Duration,
    clock: &dyn Clock,
) -> anyhow::Result<BTreeSet<String>> {
    let begun = Instant::now();
    loop {
        let here = alive(client, clock.now()).await?;
        awaited.retain(|host| !here.contains(host));
        if awaited.is_empty() || begun.elapsed() >= limit {
            return Ok(awaited);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
