//! One agent, from its start until it is told to end.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::config::AgentConfig;
use crate::context::Context;
use crate::converge::{LOOK_FOR_ROOM, converge};
use crate::error::{AgentError, Error};
use crate::hotswap_disk_attachment::AttachmentKind;
use crate::image::ImageKind;
use crate::queue::{Again, Key};
use crate::recorder::{self, Recorder};
use crate::system::System;
use crate::vm::VmKind;
use crate::{disk, host, network, seekers, watch};

const TAKE_STOCK_AGAIN: Duration = Duration::from_secs(2);

/// Runs the agent of one host until `stop` is cancelled or the future is dropped; both leave the VMs running.
///
/// *Expected flow:* waits until it is the one agent of this host, finds what runs on the host, waits until it knows what is bound to it, then brings every object
/// to where it should be and keeps it there. A control plane that cannot be reached is waited for.
///
/// *Assumptions:* works on a current-thread runtime with paused time: it starts
/// no thread, and everything it spawns ends with it.
///
/// *Errors:* only what trying again cannot mend, see [`AgentError`].
pub async fn run(
    config: AgentConfig,
    client: Client,
    system: Arc<dyn System>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    config.validate()?;
    let (recorder, events) = Recorder::new(&config.host_name, config.clock.clone());
    let ctx = Arc::new(Context::new(config, client.clone(), system, recorder));
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = recorder::publish(client, events) => {}
        error = host::renew_for_ever(ctx.clone()) => return Err(error),
        () = watch_all(&ctx) => {}
        () = seekers::watch(&ctx) => {}
        () = work(&ctx) => {}
    }
    tracing::info!("the agent ends; what runs goes on");
    Ok(())
}

async fn watch_all(ctx: &Arc<Context>) {
    let mut watches: FuturesUnordered<_> = watch::all(ctx).into_iter().collect();
    while watches.next().await.is_some() {}
    // Watches end only with the agent.
    std::future::pending::<()>().await;
}

async fn work(ctx: &Arc<Context>) {
    ctx.sign_of_life.is_ours().await;
    while let Err(error) = host::take_stock(ctx).await {
        tracing::warn!(error = %error.chain(), "the host cannot be looked over yet");
        tokio::time::sleep(TAKE_STOCK_AGAIN).await;
    }
    // What is bound here must be known before anything is judged to be nobody's.
    ctx.synced().await;
    ctx.queue.add(Key::Host);
    ctx.queue.add(Key::Network);
    let mut workers = JoinSet::new();
    loop {
        while workers.len() >= ctx.config.concurrency.max(1) {
            workers.join_next().await;
        }
        let key = tokio::select! {
            biased;
            Some(_) = workers.join_next(), if !workers.is_empty() => continue,
            key = ctx.queue.next() => key,
        };
        workers.spawn(one(ctx.clone(), key));
    }
}

/// One reconcile of one object.
async fn one(ctx: Arc<Context>, key: Key) {
    let span = span(&key);
    let done = reconcile(&ctx, &key).instrument(span.clone()).await;
    let again = done.unwrap_or_else(|error| {
        let _entered = span.enter();
        if error.is_passing() {
            tracing::debug!(error = %error.chain(), "changed meanwhile, looking again");
        } else {
            tracing::warn!(error = %error.chain(), "reconcile failed, trying again later");
        }
        if error.waits_for_room() { Again::After(LOOK_FOR_ROOM) } else { Again::BackOff }
    });
    ctx.queue.done(&key, again);
}

fn span(key: &Key) -> tracing::Span {
    let (kind, name) = match key {
        Key::Network => ("Network", None),
        Key::Host => ("Host", None),
        Key::Disk(name) => ("Disk", Some(name)),
        Key::Vm(name) => ("VM", Some(name)),
        Key::Attachment(name) => ("HotswapDiskAttachment", Some(name)),
        Key::Image(name) => ("Image", Some(name)),
    };
    match name {
        Some(name) => tracing::info_span!("reconcile", kind, namespace = name.namespace, name = name.name),
        None => tracing::info_span!("reconcile", kind),
    }
}

async fn reconcile(ctx: &Context, key: &Key) -> Result<Again, Error> {
    // What is no longer bound to this host is none of its business.
    match key {
        Key::Network => network::reconcile(ctx).await,
        Key::Host => host::reconcile(ctx).await,
        Key::Disk(name) => {
            let found = ctx.index.read().disks.get(name);
            match found {
                Some(disk) => disk::reconcile(ctx, &disk).await,
                None => Ok(Again::OnChange),
            }
        }
        Key::Vm(name) => {
            let found = ctx.index.read().vms.get(name);
            match found {
                Some(vm) => converge::<VmKind>(ctx, &vm).await,
                None => Ok(Again::OnChange),
            }
        }
        Key::Attachment(name) => {
            let found = ctx.index.read().attachments.get(name);
            match found {
                Some(attachment) => converge::<AttachmentKind>(ctx, &attachment).await,
                None => Ok(Again::OnChange),
            }
        }
        Key::Image(name) => {
            let found = ctx.index.read().images.get(name);
            match found {
                Some(image) => converge::<ImageKind>(ctx, &image).await,
                None => Ok(Again::OnChange),
            }
        }
    }
}
