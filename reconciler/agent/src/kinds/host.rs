//! Host: this machine as the control plane sees it, and the host's housekeeping.
//!
//! Unlike the other kinds, the agent creates the object itself and never deletes it. Housekeeping covers what no object
//! requests any more: unreferenced images, unused ones while the disk is short of room, expired trash, files of deleted snapshots, partly deleted instances. Foreign
//! objects, which berth did not create, and orphans, which no object owns, are reported and left alone until an
//! administrator releases them.

mod apply;
mod cache;
mod devices;
mod disk_use;
mod images;
mod left;
mod memory;
mod observe;
mod plan;
mod pools;
mod ranges;
mod status;

use std::collections::BTreeSet;
use std::sync::{PoisonError, atomic::Ordering};
use std::time::Duration;

use berth_api::condition::find;
use berth_api::{Disk, DiskSnapshot, Host, VM};
use kube::Resource;
use kube::api::PostParams;

use apply::wake_disks;
use cache::Excess;
use left::CopiedVolume;
use observe::Observed;

use crate::config::AgentConfig;
use crate::context::Context;
use crate::converge::{Requeue, post};
use crate::error::Error;
use crate::index::{Indexed, Table, Tables};
use crate::journal::Journal;
use crate::key::{Key, ObjectName};
use crate::snapshots::{keep_needed, merge_deleted, wake_merged};
use crate::typed_api::TypedApi;
use crate::unlocking::forget_departed;
use berth_host::InstanceFacts;

/// Interval at which state without change events (free space, foreign processes and files, trash) is observed.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Minimum time between two reports of a host: the start of each VM changes several of its figures. A change of the Host's
/// spec is answered at once.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The same for a report of nothing but amounts: nothing is decided by them, and each VM that comes or goes changes them.
const AMOUNTS_EVERY: Duration = Duration::from_secs(30);

/// How long an orphan's monitor may take to answer during a reconcile of the host.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// How long the start of the agent waits for the machines that it finds. A QEMU that a guest has taken over may answer each question late.
const INVENTORY_LIMIT: Duration = Duration::from_secs(85);

/// A released guest is stopped in one round; its files are moved in the next.
const ROUNDS: usize = 2;

/// A step of the host's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Removes a cached image that nothing refers to.
    RemoveImage(String),
    /// Removes cached images that nothing uses, until the disk is not short of room.
    ShrinkCache(Excess),
    /// Removes a namespace, which has no Image of this digest any more, from the readers of a cached image.
    ForgetReader { digest: String, namespace: String },
    /// Permanently deletes what has been in a pool's trash for longer than this.
    PurgeTrash { pool: String, older_than: Duration },
    /// Removes the file of a volume that another host has copied.
    RemoveCopied(CopiedVolume),
    /// Stops an instance without a VM and removes what is left of it.
    FinishInstance(String),
    /// Removes the record of how the guest of an instance without a VM is restarted without the control plane.
    ForgetRestart(String),
    /// Records the most memory that a VM was measured to take above its guest memory.
    RecordOverhead { most: u64, known: u64 },
    /// Removes the memory of a guest that is kept for a snapshot which is gone.
    RemoveMemory(String),
    /// Moves a file that no Disk owns to the trash.
    TrashVolume { pool: String, volume: String },
}

impl Indexed for Host {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.hosts
    }

    fn keys_of(_: &ObjectName, _: &Self, _: &Tables) -> Vec<Key> {
        vec![Key::host()]
    }
}

/// Reconciles the Host and does the host's housekeeping.
pub(crate) async fn reconcile(ctx: &Context) -> Result<Requeue, Error> {
    enqueue_vms_on_change(ctx);
    wake_merged(ctx);
    if let Some(left) = too_early(ctx) {
        return Ok(Requeue::After(left));
    }
    ctx.definitions.refresh(&ctx.client).await;
    // A failure prevents neither the remaining steps nor the report: without a report nothing is scheduled here, and a
    // recovery waits. The error is returned at the end, so the reconcile is retried with back-off.
    let mut failure = images::prune_downloads(ctx).await.err();
    let mut observed = observe::observe(ctx).await?;
    for _ in 0..ROUNDS {
        let steps = plan::plan(&observed);
        if steps.is_empty() {
            break;
        }
        for step in &steps {
            tracing::info!(?step, "applying");
            if let Err(error) = apply::apply(ctx, step).await {
                tracing::info!(?step, error = %error.chain(), "a step failed");
                failure.get_or_insert(error);
            }
        }
        observed = observe::observe(ctx).await?;
        if failure.is_some() {
            break;
        }
    }
    wake_networks_on_change(ctx, &observed.disconnected);
    wake_disks_on_change(ctx, pools::away(&observed.facts.pool_folders));
    observed.changed_images.iter().for_each(|key| ctx.enqueue(key.clone()));
    forget_departed(ctx);
    disk_use::measure(ctx).await;
    observed.used = observe::used(ctx, &observed);
    match observed.has_chains {
        true => merge_deleted(ctx),
        false => keep_needed(ctx),
    }
    let next_report = report(ctx, &observed).await?;
    forget_ended(ctx, &observed);
    reconnect_orphans(ctx, &observed).await?;
    let again = next_report.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
    failure.map_or(Ok(Requeue::After(again)), Err)
}

/// Reconciles the networks once a bridge or an interface of the host has vanished or is back.
fn wake_networks_on_change(ctx: &Context, disconnected: &[String]) {
    let before = std::mem::replace(&mut ctx.networks.applied().disconnected, disconnected.to_vec());
    if before != disconnected {
        ctx.enqueue(Key::networks());
    }
}

/// Reconciles the disks and snapshots of pools that have gone away or are back.
fn wake_disks_on_change(ctx: &Context, away: BTreeSet<String>) {
    let mut known = ctx.away_pools.lock().unwrap_or_else(PoisonError::into_inner);
    let changed: BTreeSet<String> = known.symmetric_difference(&away).cloned().collect();
    *known = away;
    drop(known);
    if changed.is_empty() {
        return;
    }
    tracing::info!(pools = ?changed, "pools have gone away or are back");
    let tables = ctx.index.read();
    let disks = tables.disks.all().filter(|(_, disk)| changed.contains(disk.pool().as_str()));
    disks.for_each(|(name, _)| ctx.queue.add(Key::new::<Disk>(name.clone())));
    let is_there = |snapshot: &DiskSnapshot| {
        let pool = snapshot.status.as_ref().and_then(|status| status.pool.as_ref());
        pool.is_some_and(|pool| changed.contains(pool.as_str()))
    };
    let snapshots = tables.disk_snapshots.all().filter(|(_, snapshot)| is_there(snapshot));
    snapshots.for_each(|(name, _)| ctx.queue.add(Key::new::<DiskSnapshot>(name.clone())));
}

/// Returns how long the next observation waits because it could not be reported: the start of each VM changes what a host
/// reports. A host whose spec has changed, or in a recovery, does not wait.
fn too_early(ctx: &Context) -> Option<Duration> {
    let host = ctx.index.read().hosts.get(&ObjectName::new("", ctx.host()))?;
    let is_answered = is_answered(&host) && host.spec.recovery.is_none();
    if !is_answered {
        return None;
    }
    ctx.host_reports.left(REPORT_EVERY).max(ctx.host_looks.left(REPORT_EVERY))
}

fn is_answered(host: &Host) -> bool {
    host.status.as_ref().map(|s| s.observed_generation) == host.metadata.generation
}

/// Enqueues every VM here when a drain or a recovery begins or ends, or when another amount is reserved.
fn enqueue_vms_on_change(ctx: &Context) {
    let tables = ctx.index.read();
    let host = tables.hosts.get(&ObjectName::new("", ctx.host()));
    let draining = host.as_ref().is_some_and(|host| host.spec.draining);
    let recovering = host.as_ref().is_some_and(|host| host.spec.recovery.is_some());
    let drain_changed = ctx.draining.swap(draining, Ordering::Relaxed) != draining;
    let recovery_changed = ctx.recovering.swap(recovering, Ordering::Relaxed) != recovering;
    let reserved = host.as_ref().and_then(|host| host.spec.reserved.clone());
    let before = std::mem::replace(
        &mut *ctx.reserved.lock().unwrap_or_else(PoisonError::into_inner),
        reserved.clone(),
    );
    if !drain_changed && !recovery_changed && before == reserved {
        return;
    }
    tracing::info!(draining, recovering, ?reserved, "what this host is asked for has changed");
    let vms = tables.vms_where(|_, _| true);
    drop(tables);
    vms.into_iter().for_each(|key| ctx.queue.add(key));
}

/// Releases the disks of orphans that have ended. For VMs bound here, the VM's own reconcile does this.
fn forget_ended(ctx: &Context, observed: &Observed) {
    let ended = observed.orphan_instances.iter().filter(|lost| lost.pid.is_none());
    let freed = ended.filter(|lost| ctx.machines.forget_ended(&lost.instance)).count();
    if freed > 0 {
        wake_disks(ctx);
    }
}

/// Connects again to orphans that did not answer when they were found: until they do, they count as having every disk
/// of their namespace open.
async fn reconnect_orphans(ctx: &Context, observed: &Observed) -> Result<(), Error> {
    let running = observed.orphan_instances.iter().filter(|lost| lost.pid.is_some());
    let silent: Vec<&str> = running
        .map(|lost| lost.instance.as_str())
        .filter(|instance| ctx.machines.get(instance).is_none())
        .collect();
    if silent.is_empty() {
        return Ok(());
    }
    let found = ctx.system.instances().await?;
    let found = found.into_iter().filter(|found| silent.contains(&found.instance.as_str()));
    let asked = futures::future::join_all(found.map(|found| adopt(ctx, found)));
    let _ = tokio::time::timeout(ANSWER_WAIT, asked).await;
    if silent.iter().any(|instance| ctx.machines.get(instance).is_some()) {
        wake_disks(ctx);
    }
    Ok(())
}

/// Reports the host if its status has changed. Returns when the next report is possible, if this one comes too early.
async fn report(ctx: &Context, observed: &Observed) -> Result<Option<Duration>, Error> {
    let api: TypedApi<Host> = TypedApi::all(ctx.client.clone());
    let known = ctx.index.read().hosts.get(&ObjectName::new("", ctx.host()));
    let host = match known {
        Some(host) => (*host).clone(),
        None => ensure(&ctx.config, &api).await?,
    };
    match report_as(ctx, &api, observed, host).await {
        // The controllers write to a new Host at once; a host that is ready must not wait for a back-off.
        Err(Error::Conflict) => {
            let host = api.get(ctx.host()).await.map_err(Error::api("read the Host"))?;
            report_as(ctx, &api, observed, host).await
        }
        reported => reported,
    }
}

/// Reports the host in this version of its object.
async fn report_as(
    ctx: &Context,
    api: &TypedApi<Host>,
    observed: &Observed,
    host: Host,
) -> Result<Option<Duration>, Error> {
    // An observation from before a recovery began must not be reported within it. The change of the Host enqueues it
    // again.
    if observed.generation.is_some() && observed.generation != host.metadata.generation {
        return Ok(None);
    }
    let mut status = status::status(&host, observed, &ctx.config, ctx.now());
    let skew = ctx.definitions.version_skew();
    status::write_definitions(&mut status, &skew, host.metadata.generation.unwrap_or(0), ctx.now());
    if host.status.as_ref() == Some(&status) {
        return Ok(None);
    }
    let only_amounts =
        host.status.as_ref().is_some_and(|stored| status::without_amounts(stored, &status) == *stored);
    let every = if only_amounts { AMOUNTS_EVERY } else { REPORT_EVERY };
    if is_answered(&host)
        && let Some(left) = ctx.host_reports.left(every)
    {
        ctx.host_looks.record();
        return Ok(Some(left));
    }
    ctx.lease.ensure_renewed().await?;
    let changed = Host { status: Some(status.clone()), ..host.clone() };
    let written = api.replace_status(ctx.host(), &post(), &changed).await;
    let mut answer = written.map_err(Error::api("write the Host's status"))?;
    ctx.host_reports.record();
    if ctx.definitions.check_response(&changed, &answer) {
        answer.status = Some(status.clone());
    }
    ctx.index.written(&host, answer);
    let before = host.status.as_ref().and_then(|s| find(&s.conditions, "Ready"));
    let ready = find(&status.conditions, "Ready").filter(|ready| ready.status != "True");
    if let Some(ready) = ready.filter(|ready| before.is_none_or(|before| before.reason != ready.reason)) {
        ctx.recorder.warn(host.object_ref(&()), &ready.reason, &ready.message);
    }
    Ok(None)
}

/// Returns the Host object, creating it if there is none.
async fn ensure(config: &AgentConfig, api: &TypedApi<Host>) -> Result<Host, Error> {
    let name = config.host_name.as_str();
    if let Some(host) = api.get_opt(name).await.map_err(Error::api("read the Host"))? {
        return Ok(host);
    }
    let mut host = Host::new(name, berth_api::HostSpec::default());
    let mut labels = config.labels.clone();
    labels.entry("kubernetes.io/hostname".to_owned()).or_insert_with(|| name.to_owned());
    host.metadata.labels = Some(labels);
    let params = PostParams { field_manager: post().field_manager, ..PostParams::default() };
    tracing::info!(name, "registering the host");
    api.create(&params, &host).await.map_err(Error::api("create the Host"))
}

/// Takes inventory when the agent starts: every QEMU process counts as having its disks open until its monitor has
/// answered, whether or not its VM still exists.
pub(crate) async fn inventory(ctx: &Context) -> Result<(), Error> {
    let found = ctx.system.instances().await?;
    let running = found.iter().filter_map(|found| Some((&found.instance, found.process.as_ref()?)));
    for (instance, process) in running {
        tracing::info!(instance, pid = process.identity.pid, "found running");
    }
    let adopted = futures::future::join_all(found.into_iter().map(|instance| adopt(ctx, instance)));
    if tokio::time::timeout(INVENTORY_LIMIT, adopted).await.is_err() {
        tracing::warn!(
            "the monitors of some machines do not answer: all disks of their namespaces count as open"
        );
    }
    Ok(())
}

/// The disks of a suspended machine count as open: it goes on with them.
fn hold_disks(ctx: &Context, instance: &str, journal: &Journal) {
    let key = Key::new::<VM>(ObjectName::new(&journal.namespace, &journal.name));
    ctx.machines.expect(instance, Some(&journal.uid), Some(&key));
    for disk in journal.suspension.iter().flat_map(|suspension| &suspension.machine.disks) {
        // Nothing blocks a reservation before the first reconcile.
        let _ = ctx.machines.reserve(instance, &journal.uid, &disk.id);
    }
}

async fn adopt(ctx: &Context, found: InstanceFacts) {
    let journal = found.journal.and_then(|value| Journal::parse(value).ok());
    let Some(process) = &found.process else {
        if let Some(journal) = journal.filter(Journal::is_suspended) {
            hold_disks(ctx, &found.instance, &journal);
        }
        return;
    };
    let uid = journal.as_ref().map(|j| j.uid.as_str());
    let key = journal.as_ref().map(|j| Key::new::<VM>(ObjectName::new(&j.namespace, &j.name)));
    // An unresponsive machine must not block the others; its VM's reconcile tries again.
    match ctx.machines.connect(&found.instance, uid, key, process).await {
        Ok(machine) => {
            let _ = machine.state().await;
        }
        Err(_) => tracing::warn!(instance = found.instance, "the monitor of a machine does not answer"),
    }
}
