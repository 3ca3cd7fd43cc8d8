//! Host: this machine, as the control plane sees it, and the host's housekeeping.
//!
//! Unlike the other kinds it is made by the agent itself and never deleted by it. Housekeeping is what no object is
//! left to ask for: images nothing refers to, trash past its time, instances whose deletion was cut off.
//! What berth did not make, or what no object owns, is reported and left alone.

mod lease;
mod observe;
mod overhead;
mod plan;
mod status;

use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_api::Host;
use berth_api::condition::find;
use kube::api::PostParams;
use kube::{Api, Resource};

pub(crate) use lease::{SignOfLife, renew_for_ever};
use observe::Observed;
pub(crate) use overhead::Overhead;

use crate::context::Context;
use crate::converge::post;
use crate::error::Error;
use crate::queue::{Again, Key, ObjectName};
use crate::system::InstanceFacts;

/// Changes are gathered for this long before the host is looked at.
pub(crate) const GATHER: Duration = Duration::from_millis(500);
/// What nobody tells of (free space, strangers, trash) is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// One thing to do about the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Drops a cached image that nothing refers to.
    RemoveImage(String),
    /// Deletes for good what has been in a pool's trash for longer than this.
    PurgeTrash { pool: String, older_than: Duration },
    /// Finishes the deletion of an instance whose VM is gone.
    FinishInstance(String),
}

/// One reconcile of the Host and its housekeeping.
pub(crate) async fn reconcile(ctx: &Context) -> Result<Again, Error> {
    tell_vms_of_a_drain(ctx);
    ctx.definitions.look(&ctx.client).await;
    let mut observed = observe::observe(ctx).await?;
    let steps = plan::plan(&observed);
    if !steps.is_empty() {
        for step in &steps {
            tracing::info!(?step, "applying");
            apply(ctx, step).await?;
        }
        observed = observe::observe(ctx).await?;
    }
    report(ctx, &observed).await?;
    Ok(Again::After(LOOK_EVERY))
}

/// When emptying the host begins or ends, every VM here has to be looked at.
fn tell_vms_of_a_drain(ctx: &Context) {
    let tables = ctx.index.read();
    let draining = tables.hosts.get(&ObjectName::new("", ctx.host())).is_some_and(|host| host.spec.draining);
    if ctx.draining.swap(draining, Ordering::Relaxed) == draining {
        return;
    }
    tracing::info!(draining, "this host is to be emptied, or no longer");
    let vms: Vec<Key> = tables.vms.all().map(|(name, _)| Key::Vm(name.clone())).collect();
    drop(tables);
    vms.into_iter().for_each(|key| ctx.queue.add(key));
}

async fn apply(ctx: &Context, step: &Step) -> Result<(), Error> {
    match step {
        Step::RemoveImage(sha256) => ctx.system.remove_image(sha256).await?,
        Step::PurgeTrash { pool, older_than } => {
            let purged = ctx.system.purge_trash(pool, *older_than).await?;
            tracing::info!(?purged, "deleted for good");
        }
        Step::FinishInstance(instance) => {
            ctx.system.kill(instance, Duration::from_secs(5)).await?;
            let prefix = crate::network::tap_prefix(instance);
            for tap in ctx.system.taps().await?.iter().filter(|tap| tap.starts_with(&prefix)) {
                ctx.system.remove_tap(tap).await?;
            }
            ctx.system.remove_instance(instance).await?;
            ctx.machines.gone(instance);
        }
    }
    Ok(())
}

async fn report(ctx: &Context, observed: &Observed) -> Result<(), Error> {
    let api: Api<Host> = Api::all(ctx.client.clone());
    let known = ctx.index.read().hosts.get(&ObjectName::new("", ctx.host()));
    let host = match known {
        Some(host) => (*host).clone(),
        None => ensure(ctx, &api).await?,
    };
    let mut status = status::status(&host, observed, &ctx.config, ctx.now());
    let standing = ctx.definitions.standing();
    status::write_definitions(&mut status, &standing, host.metadata.generation.unwrap_or(0), ctx.now());
    if host.status.as_ref() == Some(&status) {
        return Ok(());
    }
    ctx.sign_of_life.is_given(ctx).await?;
    let changed = Host { status: Some(status.clone()), ..host.clone() };
    let written = api.replace_status(ctx.host(), &post(), &changed).await;
    let mut answer = written.map_err(Error::api("write the Host's status"))?;
    if ctx.definitions.are_older(&status, answer.status.as_ref()) {
        answer.status = Some(status.clone());
    }
    ctx.index.written(&host, answer);
    let ready = |conditions| find(conditions, "Ready").map(|c| c.reason.clone());
    let before = host.status.as_ref().and_then(|s| ready(&s.conditions));
    if let Some(reason) = ready(&status.conditions).filter(|reason| Some(reason) != before.as_ref()) {
        ctx.recorder.record(host.object_ref(&()), false, &reason, "the host agent reports");
    }
    Ok(())
}

/// The Host object, made if there is none.
async fn ensure(ctx: &Context, api: &Api<Host>) -> Result<Host, Error> {
    let name = ctx.host();
    if let Some(host) = api.get_opt(name).await.map_err(Error::api("read the Host"))? {
        return Ok(host);
    }
    let mut host = Host::new(name, berth_api::HostSpec::default());
    let mut labels = ctx.config.labels.clone();
    labels.entry("kubernetes.io/hostname".to_owned()).or_insert_with(|| name.to_owned());
    host.metadata.labels = Some(labels);
    let params = PostParams { field_manager: post().field_manager, ..PostParams::default() };
    tracing::info!(name, "registering the host");
    api.create(&params, &host).await.map_err(Error::api("create the Host"))
}

/// What an agent that starts finds on its host: every QEMU counts as holding its disks until it was asked, whether
/// or not its VM is still known.
pub(crate) async fn take_stock(ctx: &Context) -> Result<(), Error> {
    let found = ctx.system.instances().await?;
    futures::future::join_all(found.into_iter().map(|instance| adopt(ctx, instance))).await;
    Ok(())
}

async fn adopt(ctx: &Context, found: InstanceFacts) {
    let Some(process) = &found.process else { return };
    let journal = found.journal.and_then(|value| crate::vm::Journal::parse(value).ok());
    let uid = journal.as_ref().map(|j| j.uid.as_str());
    let key = journal.as_ref().map(|j| Key::Vm(ObjectName::new(&j.namespace, &j.name)));
    ctx.machines.expect(&found.instance, uid);
    tracing::info!(instance = found.instance, pid = process.identity.pid, "found running");
    // One that hangs must not keep the others from being looked after: its VM's reconcile tries again.
    match ctx.machines.open(&found.instance, uid, key, process).await {
        Ok(machine) => {
            let _ = machine.look().await;
        }
        Err(error) => {
            tracing::warn!(instance = found.instance, error = %error.chain(), "its monitor does not answer");
        }
    }
}
