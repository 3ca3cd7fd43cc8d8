//! `berth host list|cordon|uncordon|drain|recover|forget|adopt|release`: an administrator's operations on hosts.

mod live;
mod orphans;

use std::{
    collections::BTreeSet,
    io::Write,
    slice,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{
    Backup, ConditionType, Disk, DiskSnapshot, Host, HotswapDiskAttachment, Image, JsonKind,
    SYSTEM_NAMESPACE, Unparsed, VM, condition, manifests::access,
};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::ServiceAccount,
        rbac::v1::{Role, RoleBinding},
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cli::{HostAction, HostOptions},
    one_connection::client_of,
    printable::printable,
};

use super::{connect, outage::Outage, resources, token};

/// The polling interval of a drain.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a Host with no bound objects may take to report that it has no users.
const SAID_WITHIN: Duration = Duration::from_secs(15);
/// How long the controllers may take to remove a deleted Host with no bound objects.
const GONE_WITHIN: Duration = Duration::from_secs(90);
/// The agent of a Lease renewed within this time is alive.
const ALIVE: SignedDuration = SignedDuration::from_secs(40);

pub(super) async fn run(options: &HostOptions, action: &HostAction) -> anyhow::Result<()> {
    let config = connect::admin(&options.connection, &options.state.state_dir).await?;
    act(&client_of(config)?, action).await
}

/// Performs the action with an administrator's client.
///
/// *Errors:* the control plane does not respond, or rejects a request; the action is refused, with the reason and
/// the remedy.
pub async fn act(client: &Client, action: &HostAction) -> anyhow::Result<()> {
    check_names(action)?;
    match action {
        HostAction::List => list(client).await,
        HostAction::Cordon { host } => {
            declare(client, host, &json!({"cordoned": true})).await?;
            notice!("Host {host} takes no new VMs. `berth host uncordon {host}` ends that.");
            Ok(())
        }
        HostAction::Uncordon { host } => {
            declare(client, host, &json!({"cordoned": false, "draining": false})).await?;
            notice!("Host {host} takes VMs again, and starts those that were stopped to empty it.");
            Ok(())
        }
        HostAction::Drain { host, timeout, no_wait } => {
            let waits = DrainWaits::new(Instant::now(), timeout.0);
            if !*no_wait {
                declare(client, host, &json!({"cordoned": true})).await?;
                live::move_away(client, &bound::<VM>(client, host).await?, waits.for_moves).await?;
            }
            declare(client, host, &json!({"cordoned": true, "draining": true})).await?;
            if *no_wait { Ok(()) } else { until_empty(client, host, &waits).await }
        }
        HostAction::Recover { hosts, all, end } => {
            let hosts = if *all { names(client).await? } else { hosts.clone() };
            recover(client, &hosts, *end).await
        }
        HostAction::Forget { host, lost } => forget(client, host, *lost).await,
        HostAction::Adopt { host, orphans } => orphans::adopt(client, host, orphans).await,
        HostAction::Release { host, orphans } => orphans::release(client, host, orphans).await,
    }
}

/// Refuses what is no name: requests would be about a part of it, and the check for objects that are bound to the host about all of it.
fn check_names(action: &HostAction) -> anyhow::Result<()> {
    let hosts: &[String] = match action {
        HostAction::List => &[],
        HostAction::Recover { hosts, .. } => hosts.as_slice(),
        HostAction::Cordon { host }
        | HostAction::Uncordon { host }
        | HostAction::Drain { host, .. }
        | HostAction::Forget { host, .. }
        | HostAction::Adopt { host, .. }
        | HostAction::Release { host, .. } => slice::from_ref(host),
    };
    hosts.iter().try_for_each(|host| resources::checked(host).map(drop))
}

async fn names(client: &Client) -> anyhow::Result<Vec<String>> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let hosts = hosts.list(&ListParams::default()).await.context("listing hosts")?;
    Ok(hosts.iter().map(ResourceExt::name_any).collect())
}

async fn recover(client: &Client, hosts: &[String], end: bool) -> anyhow::Result<()> {
    for host in hosts {
        declare(client, host, &crate::recovery::spec((!end).then(Timestamp::now))).await?;
        if end {
            notice!("Host {host} is not in a recovery: its report of VMs and disks is not accepted.");
        } else {
            notice!(
                "Host {host} is in a recovery: the guests and disks that it reports are returned to their objects. It takes new VMs \
                 once that is done; `kubectl get host {host} -o yaml` shows status.orphans."
            );
        }
    }
    Ok(())
}

async fn declare(client: &Client, host: &str, spec: &serde_json::Value) -> anyhow::Result<()> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let params = PatchParams { field_manager: Some("berth".into()), ..PatchParams::default() };
    match hosts.patch(host, &params, &Patch::Merge(json!({"spec": spec}))).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            bail!("there is no host {host}: see `berth host list`")
        }
        Err(error) => Err(error).with_context(|| format!("changing Host {host}")),
    }
}

async fn list(client: &Client) -> anyhow::Result<()> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let hosts = hosts.list(&ListParams::default()).await.context("listing hosts")?;
    let mut out = std::io::stdout().lock();
    let mut line = |columns: [&str; 6]| {
        let [name, state, zone, vms, free, address] = columns;
        let text = format!("{name:<24} {state:<18} {zone:<12} {vms:>5} {free:>10}  {address}");
        writeln!(out, "{}", printable(&text)).context("printing")
    };
    line(["NAME", "STATE", "ZONE", "VMS", "FREE", "ADDRESS"])?;
    for host in hosts {
        let status = host.status.clone().unwrap_or_default();
        let zone = host.labels().get("topology.kubernetes.io/zone").cloned().unwrap_or_default();
        let free = status.free.map(|free| free.memory).unwrap_or_default();
        let address = status.address.clone().unwrap_or_default();
        let vms = status.vms.to_string();
        line([&host.name_any(), &state(&host), &zone, &vms, &free, &address])?;
    }
    Ok(())
}

/// Returns the host's state in one or two words.
fn state(host: &Host) -> String {
    let conditions = host.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    let ready = match condition::find(conditions, ConditionType::Ready.as_str()).map(|c| c.status.as_str()) {
        Some("True") => "Ready",
        Some("Unknown") => "Silent",
        _ => "NotReady",
    };
    let spec = &host.spec;
    match (spec.fenced, spec.draining, spec.cordoned) {
        (true, ..) => "Fenced".into(),
        _ if spec.recovery.is_some() => format!("{ready},Recovering"),
        (_, true, _) => format!("{ready},Draining"),
        (_, _, true) => format!("{ready},Cordoned"),
        _ => ready.into(),
    }
}

/// Returns the objects of a kind that are bound to a host.
async fn bound<K: JsonKind>(client: &Client, host: &str) -> anyhow::Result<Vec<K>> {
    let api: TypedApi<K> = TypedApi::all(client.clone());
    let params = ListParams::default().fields(&format!("status.binding.host={host}"));
    let listed = api.list(&params).await;
    Ok(listed.with_context(|| format!("listing each {} of host {host}", K::kind(&())))?.items)
}

/// Returns the Disks whose data is on this host still, while they are bound to another one.
async fn left_on(client: &Client, host: &str) -> anyhow::Result<Vec<Disk>> {
    let api: TypedApi<Disk> = TypedApi::all(client.clone());
    let listed = api.list(&ListParams::default()).await;
    let mut disks = listed.with_context(|| format!("listing the Disks that left host {host}"))?.items;
    disks.retain(|disk| {
        let status = disk.status.as_ref();
        let is_bound = status.and_then(|status| status.binding.as_ref()).is_some_and(|to| to.host == host);
        !is_bound && status.is_some_and(|status| status.former_host.as_deref() == Some(host))
    });
    Ok(disks)
}

/// Returns the VMs whose firmware variables and TPM are on this host still, while they are bound to another one.
async fn firmware_left_on(client: &Client, host: &str) -> anyhow::Result<Vec<VM>> {
    let api: TypedApi<VM> = TypedApi::all(client.clone());
    let listed = api.list(&ListParams::default()).await;
    let mut vms = listed.with_context(|| format!("listing the VMs that left host {host}"))?.items;
    vms.retain(|vm| {
        let binding = vm.status.as_ref().and_then(|status| status.binding.as_ref());
        vm.firmware_state_on() == Some(host) && binding.is_none_or(|to| to.host != host)
    });
    Ok(vms)
}

/// Whether the host of a Backup makes it, or deletes its data. One whose data is in its repository leaves a Host that is deleted.
fn is_at_work(backup: &Backup) -> bool {
    let is_whole = backup.is_complete() || backup.spec.existing.is_some();
    backup.metadata.deletion_timestamp.is_some() || !is_whole
}

/// Whether an Image has its file from its host only, where it was made or uploaded: no other host can download it again.
fn is_only_on_its_host(image: &Image) -> bool {
    let is_verified = image.status.as_ref().is_some_and(|status| status.virtual_size.is_some());
    image.is_local() && is_verified && image.metadata.deletion_timestamp.is_none()
}

fn named<K: Resource<DynamicType = ()>>(objects: &[K]) -> impl Iterator<Item = String> {
    objects.iter().map(|object| {
        format!("{} {}/{}", K::kind(&()), object.namespace().unwrap_or_default(), object.name_any())
    })
}

/// How long a drain waits: the limit is that of both waits together.
struct DrainWaits {
    limit: Duration,
    /// For guests that move while they run. The rest of the time is for those that are shut down.
    for_moves: Instant,
    until: Instant,
}

impl DrainWaits {
    fn new(begun: Instant, limit: Duration) -> Self {
        Self { limit, for_moves: begun + limit / 2, until: begun + limit }
    }
}

/// Waits until no VM of the host runs, and prints the progress.
async fn until_empty(client: &Client, host: &str, waits: &DrainWaits) -> anyhow::Result<()> {
    let (mut running, mut silent, outage) = (BTreeSet::new(), "", Outage::default());
    loop {
        if let Some((vms, state)) = outage.answer(drained(client, host).await)? {
            let runs = |vm: &VM| vm.status.as_ref().is_some_and(|s| s.process.is_some());
            let now: BTreeSet<String> =
                vms.iter().filter(|vm| runs(vm)).map(|vm| named(slice::from_ref(vm)).collect()).collect();
            if now.is_empty() {
                notice!(
                    "Host {host} is empty: none of its {} VMs runs. `berth host uncordon {host}` starts them again.",
                    vms.len()
                );
                return Ok(());
            }
            if now != running {
                let names: Vec<&str> = now.iter().take(8).map(String::as_str).collect();
                let more = if now.len() > 8 { ", …" } else { "" };
                notice!("{} of {} still run: {}{more}", now.len(), vms.len(), names.join(", "));
                running = now;
            }
            if !state.spec.draining {
                bail!("host {host} is no longer drained: another client uncordoned it");
            }
            silent = if self::state(&state).starts_with("Silent") { " (its agent is silent)" } else { "" };
        }
        if Instant::now() >= waits.until {
            if running.is_empty() {
                bail!(
                    "the control plane did not say in time which VMs of host {host} still run; the drain continues"
                );
            }
            bail!(
                "{} VMs of host {host} still run after {} seconds{silent}; the drain continues. See their stop settings, or `berth why vm/NAME`",
                running.len(),
                waits.limit.as_secs()
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the VMs that are bound to a host which is drained, and the Host.
async fn drained(client: &Client, host: &str) -> anyhow::Result<(Vec<VM>, Host)> {
    let vms = bound::<VM>(client, host).await?;
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let state = hosts.get(host).await.with_context(|| format!("reading Host {host}"))?;
    Ok((vms, state))
}

async fn forget(client: &Client, host: &str, lost: bool) -> anyhow::Result<()> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let known = hosts.get_opt(host).await.with_context(|| format!("reading Host {host}"))?;
    let mut left: Vec<String> = named(&bound::<VM>(client, host).await?).collect();
    left.extend(named(&bound::<Disk>(client, host).await?));
    left.extend(named(&bound::<HotswapDiskAttachment>(client, host).await?));
    left.extend(named(&bound::<DiskSnapshot>(client, host).await?));
    let mut backups = bound::<Backup>(client, host).await?;
    backups.retain(is_at_work);
    left.extend(named(&backups));
    let mut images = bound::<Image>(client, host).await?;
    images.retain(is_only_on_its_host);
    left.extend(named(&images));
    left.extend(named(&left_on(client, host).await?));
    left.extend(named(&firmware_left_on(client, host).await?));
    if !lost && !left.is_empty() {
        bail!(
            "{} objects are bound to host {host}, or have their data there: {}. Delete them first, or use --lost if the machine is gone for \
             good with everything on it",
            left.len(),
            some(&left)
        );
    }
    let accounts: TypedApi<ServiceAccount> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let account =
        accounts.get_opt(&access::account_name(host)).await.context("reading the host's account")?;
    if account.is_none() && is_alive(client, host).await? {
        bail!(
            "the agent of host {host} uses the credentials of an administrator and would create the Host again: stop the agent first"
        );
    }
    if known.is_none() && account.is_none() {
        bail!("there is no host {host}: see `berth host list`");
    }
    if known.is_some() && left.is_empty() {
        said_unused(&hosts, host).await?;
    }
    if lost && is_alive(client, host).await? {
        notice!(
            "Host {host} has reported within the last minute. Its guests go on until its machine is turned off: do \
             that now."
        );
    }
    // Access is revoked first: a forgotten host must not register itself again.
    token::end_access(client, host).await?;
    remove_roles(client, host).await?;
    if known.is_some() && !left.is_empty() {
        let spec = json!({"fenced": true, "cordoned": true});
        declare(client, host, &spec).await?;
        notice!(
            "Host {host} is given up, and with it {} objects: {}. VMs with all disks in shared pools start on another \
             host if they can; the others say so until they are deleted. The Host goes with the last one.",
            left.len(),
            some(&left)
        );
        return Ok(());
    }
    gone(hosts.delete(host, &DeleteParams::default()).await).context("deleting the Host")?;
    until_gone(&hosts, host).await?;
    let leases: TypedApi<Lease> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    gone(leases.delete(host, &DeleteParams::default()).await).context("deleting the Lease")?;
    notice!("Host {host} is forgotten.");
    Ok(())
}

/// Waits a moment for the Host's agent to report that the host has no users: without its access the agent no longer
/// can.
async fn said_unused(hosts: &TypedApi<Host>, host: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let known = hosts.get_opt(host).await.with_context(|| format!("reading Host {host}"))?;
        let users = known.and_then(|known| known.status).map(|status| status.used_by).unwrap_or_default();
        // Backups whose data is in their repositories leave the Host once it is deleted.
        let used = users.iter().any(|user| user.kind != Backup::kind(&()));
        if !used || begun.elapsed() > SAID_WITHIN {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until the controllers have removed the Host. Its bound objects are gone; the controllers may take a moment
/// to see that.
async fn until_gone(hosts: &TypedApi<Host>, host: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    while hosts.get_opt(host).await.with_context(|| format!("reading Host {host}"))?.is_some() {
        if begun.elapsed() > GONE_WITHIN {
            bail!(
                "Host {host} is marked for deletion, and still exists: check that the controllers run (berth up, or berth controllers)"
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

fn some(names: &[String]) -> String {
    let more = if names.len() > 8 { ", …" } else { "" };
    format!("{}{more}", names.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", "))
}

fn gone(result: kube::Result<()>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

async fn is_alive(client: &Client, host: &str) -> anyhow::Result<bool> {
    let leases: TypedApi<Lease> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let lease = leases.get_opt(host).await.context("reading the host's Lease")?;
    let renewed = lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time);
    Ok(renewed.is_some_and(|at| Timestamp::now().duration_since(at.0) < ALIVE))
}

/// Removes every role of the host, in every namespace.
async fn remove_roles(client: &Client, host: &str) -> anyhow::Result<()> {
    let params = ListParams::default().labels(&format!("{}={host}", access::HOST_LABEL));
    let kinds =
        [(Unparsed::resource::<RoleBinding>(), "role binding"), (Unparsed::resource::<Role>(), "role")];
    for (resource, kind) in kinds {
        let all: Api<Unparsed> = Api::all_with(client.clone(), &resource);
        for object in all.list(&params).await.with_context(|| format!("listing the host's {kind}s"))? {
            let namespace = object.namespace().unwrap_or_default();
            let api: Api<Unparsed> = Api::namespaced_with(client.clone(), &namespace, &resource);
            gone(api.delete(&object.name_any(), &DeleteParams::default()).await.map(drop))
                .with_context(|| format!("deleting a {kind} of the host"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_of_a_drain_is_that_of_its_moves_and_shutdowns_together() {
        let (begun, limit) = (Instant::now(), Duration::from_secs(900));
        let waits = DrainWaits::new(begun, limit);
        assert_eq!(waits.for_moves - begun, Duration::from_secs(450));
        assert_eq!(waits.until - begun, limit);
    }

    #[test]
    fn a_host_is_needed_for_backups_that_it_makes_and_images_that_were_made_there() {
        let backup = |spec: serde_json::Value, status: serde_json::Value| -> bool {
            let object = json!({"metadata": {"name": "b", "namespace": "n"}, "spec": spec, "status": status});
            is_at_work(&serde_json::from_value(object).expect("a Backup"))
        };
        let of_snapshot = || json!({"repository": "r", "snapshot": "s"});
        assert!(backup(of_snapshot(), json!({"backupID": "b-1"})));
        assert!(!backup(of_snapshot(), json!({"backupID": "b-1", "completedAt": "2026-01-01T00:00:00Z"})));
        assert!(!backup(json!({"repository": "r", "existing": "v-1/b-1"}), json!(null)));
        let image = |source: serde_json::Value, size: Option<&str>| -> bool {
            let object = json!({"metadata": {"name": "i", "namespace": "n"}, "spec": {"source": source},
                "status": {"observedGeneration": 1, "virtualSize": size}});
            is_only_on_its_host(&serde_json::from_value(object).expect("an Image"))
        };
        assert!(image(json!({"disk": "golden"}), Some("1Gi")));
        assert!(!image(json!({"disk": "golden"}), None), "it has no file yet");
        assert!(!image(json!({"url": "https://a/b", "sha256": "ab"}), Some("1Gi")));
    }

    #[test]
    fn a_host_is_named_and_not_guessed_from_a_part_of_the_text() {
        let forget = |host: &str| HostAction::Forget { host: host.to_owned(), lost: false };
        assert!(check_names(&HostAction::List).is_ok() && check_names(&forget("kvm-1.rack2")).is_ok());
        for wrong in ["", "h1?", "h1/status", "h1,metadata.name=x", "h 1", ".."] {
            assert!(check_names(&forget(wrong)).is_err(), "{wrong}");
            let hosts = vec!["h1".to_owned(), wrong.to_owned()];
            assert!(check_names(&HostAction::Recover { hosts, all: false, end: false }).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_hosts_state_is_what_matters_most_of_it() {
        let host = |spec: serde_json::Value, ready: &str| -> String {
            let host: Host = serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": {"name": "h"}, "spec": spec,
                "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "x", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            }))
            .expect("a host");
            state(&host)
        };
        assert_eq!(host(json!({}), "True"), "Ready");
        assert_eq!(host(json!({"cordoned": true}), "Unknown"), "Silent,Cordoned");
        assert_eq!(host(json!({"cordoned": true, "draining": true}), "True"), "Ready,Draining");
        assert_eq!(host(json!({"fenced": true}), "True"), "Fenced");
    }
}
