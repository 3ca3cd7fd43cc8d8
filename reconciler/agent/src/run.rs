//! Runs one agent, from its start until it is stopped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_api::VM;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::arrivals;
use crate::balloons;
use crate::config::AgentConfig;
use crate::console;
use crate::context::Context;
use crate::converge::Requeue;
use crate::error::{AgentError, RETRY_SPACE_EVERY};
use crate::firmware_copies;
use crate::heartbeat;
use crate::index::instance_of;
use crate::key::Key;
use crate::kinds::{self, host};
use crate::measure;
use crate::mirrors;
use crate::networking::tap_prefix;
use crate::recorder::{self, Recorder};
use crate::snapshots;
use crate::stop_guests;
use berth_engine::queue::LONGEST_BACK_OFF;
use berth_host::System;

const RETRY_INVENTORY: Duration = Duration::from_secs(2);

/// Runs the agent of one host until `stop` is cancelled or the future is dropped; both leave the VMs running. Only the first lets a guest
/// go on that is frozen or paused for a snapshot.
///
/// *Expected flow:* waits until it holds the Lease of its host, takes inventory of the host, waits until all watches
/// are synced, then reconciles every object and keeps it reconciled. It waits while the control plane is unreachable, and meanwhile only
/// restarts guests that end by themselves.
///
/// *Assumptions:* works on a current-thread runtime with paused time: it starts no thread, and everything it spawns
/// ends with it.
///
/// *Errors:* only failures that a retry cannot fix, see [`AgentError`].
pub async fn run(
    config: AgentConfig,
    client: Client,
    system: Arc<dyn System>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    config.validate()?;
    let (recorder, events) = Recorder::new(&config.host_name, config.clock.clone());
    let ctx = Arc::new(Context::new(config, client.clone(), system, recorder));
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        () = recorder::publish(client, events) => Ok(()),
        error = ctx.lease.renew_forever(&ctx.index) => Err(error),
        () = watch_all(&ctx) => Ok(()),
        () = ctx.lease_watcher.run() => Ok(()),
        () = ctx.system.rotate_logs() => Ok(()),
        () = restore_firewall(&ctx) => Ok(()),
        () = read_senders(&ctx) => Ok(()),
        () = follow_leases(&ctx) => Ok(()),
        () = restore_servers(&ctx) => Ok(()),
        () = console::serve(&ctx) => Ok(()),
        () = measure::serve(&ctx) => Ok(()),
        () = Box::pin(measure::remember(&ctx)) => Ok(()),
        () = stop_guests::run(&ctx) => Ok(()),
        () = Box::pin(balloons::run(&ctx)) => Ok(()),
        () = heartbeat::run(&ctx) => Ok(()),
        () = Box::pin(firmware_copies::run(&ctx)) => Ok(()),
        () = work(&ctx) => Ok(()),
    };
    // No save goes on without the agent, which would let its guest go on.
    let resumed = Box::pin(let_guests_go_on(&ctx));
    if tokio::time::timeout(RESUME_AT_END, resumed).await.is_err() {
        tracing::warn!("guests that were paused for a moment may stay paused until the agent runs again");
    }
    // The control plane has sent this agent away: a later one must not act for it while that is not reachable.
    if ended.is_err() {
        let forgets = Box::pin(kinds::vm::forget_restarts(&ctx));
        if tokio::time::timeout(FORGET_AT_END, forgets).await.is_err() {
            tracing::warn!("how guests are restarted without the control plane may stay recorded");
        }
    }
    if ended.is_ok() {
        tracing::info!("the agent ends; what runs goes on");
    }
    ended
}

/// How long an agent that ends waits for guests that are paused for a moment to go on.
const RESUME_AT_END: Duration = Duration::from_secs(15);
/// How long an agent that was sent away may take to remove the records of restarts.
const FORGET_AT_END: Duration = Duration::from_secs(15);
/// The pause between two restorations of the firewall.
const BETWEEN_RESTORATIONS: Duration = Duration::from_secs(1);
const RETRY_LISTENING: Duration = Duration::from_secs(300);
const RETRY_SERVERS: Duration = Duration::from_secs(10);
/// The interval at which the addresses that guests send from are read.
const READ_SENDERS_EVERY: Duration = Duration::from_secs(10);
/// The pause between two changes of leases: a network with many of them does not have the rules written all the time.
const BETWEEN_LEASES: Duration = Duration::from_secs(1);

async fn watch_all(ctx: &Arc<Context>) {
    let mut watches: FuturesUnordered<_> = kinds::watch_all(ctx).collect();
    while watches.next().await.is_some() {}
    // Watches end only with the agent.
    std::future::pending::<()>().await;
}

/// Lets the guests go on that were frozen or paused for snapshots, or paused for the switch of a disk to another pool.
async fn let_guests_go_on(ctx: &Context) {
    let paused = async {
        snapshots::resume_paused(ctx).await;
        mirrors::finish_interrupted(ctx).await;
    };
    // A guest that does not thaw its file systems holds up none that is paused.
    tokio::join!(snapshots::thaw_left(ctx), paused);
}

async fn work(ctx: &Arc<Context>) {
    // The control plane may be away for long, and these guests were running.
    Box::pin(let_guests_go_on(ctx)).await;
    Box::pin(kinds::vm::abandon_left(ctx)).await;
    let left = Box::pin(arrivals::settle_left(ctx)).await;
    let mut late = JoinSet::new();
    if !left.is_empty() {
        late.spawn(arrivals::settle_late(ctx.clone(), left));
    }
    Box::pin(kinds::vm::restart_until_answered(ctx)).await;
    ctx.lease.acquired().await;
    while let Err(error) = host::inventory(ctx).await {
        tracing::warn!(error = %error.chain(), "the host cannot be looked over yet");
        tokio::time::sleep(RETRY_INVENTORY).await;
    }
    // Objects bound here must be known before anything is judged to be an orphan.
    Box::pin(kinds::vm::restart_until_synced(ctx)).await;
    ctx.queue.add(Key::host());
    ctx.queue.add(Key::networks());
    ctx.is_working.store(true, Ordering::Relaxed);
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

/// Writes the firewall's rules again whenever another program has removed them, or the kernel the answers for public addresses.
async fn restore_firewall(ctx: &Context) {
    loop {
        match ctx.system.firewall_removed().await {
            // The agent itself removes the tables that are not needed any more.
            Ok(()) if ctx.networks.applied().has_no_rules() => {}
            Ok(()) => {
                tracing::warn!(
                    "the firewall rules, the interface of WireGuard, or the answers for public IPv6 addresses have been removed: they are made again"
                );
                ctx.networks.applied().lose_rules();
                ctx.queue.add(Key::networks());
            }
            Err(error) => {
                tracing::warn!(error = %error.chain(), "changes of the firewall are not noticed at once");
                tokio::time::sleep(RETRY_LISTENING).await;
            }
        }
        // A program that removes them again and again takes no more than this.
        tokio::time::sleep(BETWEEN_RESTORATIONS).await;
    }
}

/// Enqueues the VMs whose guests send from other addresses than before.
async fn read_senders(ctx: &Context) {
    loop {
        ctx.networks.senders.expected().await;
        match ctx.system.seen_addresses().await {
            Ok(read) => {
                // Addresses in a status that an earlier agent wrote may be gone by now.
                let is_first = !ctx.networks.senders.is_read();
                let changed = ctx.networks.senders.record(read);
                let is_of = |instance: &str| {
                    let prefix = tap_prefix(instance);
                    changed.iter().any(|tap| tap.starts_with(&prefix))
                };
                let was_seen =
                    |vm: &VM| vm.status.as_ref().is_some_and(|status| !status.observed_addresses.is_empty());
                let has_leases = ctx.networks.leases.has_any();
                let is_due = |vm: &VM| {
                    (is_first && (has_leases || was_seen(vm))) || instance_of(vm).is_some_and(is_of)
                };
                let vms = ctx.index.read().vms_where(|_, vm| is_due(vm));
                vms.into_iter().for_each(|vm| ctx.queue.add(vm));
            }
            Err(error) => tracing::debug!(error = error.chain(), "the addresses of guests cannot be read"),
        }
        tokio::time::sleep(READ_SENDERS_EVERY).await;
    }
}

/// Has the networks reconciled whenever a guest has another lease of a DHCP server that is not berth's.
async fn follow_leases(ctx: &Context) {
    loop {
        match ctx.system.external_leases_changed().await {
            Ok(()) => ctx.queue.add(Key::networks()),
            Err(error) => tracing::debug!(error = error.chain(), "changes of leases are not noticed"),
        }
        tokio::time::sleep(BETWEEN_LEASES).await;
    }
}

/// Has the DHCP and DNS server of a network started again when it has ended by itself: at once, and after a pause if it ends again.
async fn restore_servers(ctx: &Context) {
    let mut paused = FuturesUnordered::new();
    loop {
        tokio::select! {
            ended = ctx.system.network_server_ended() => match ended {
                Ok(bridge) => {
                    let pause = ctx.networks.servers.ended(&bridge);
                    tracing::warn!(bridge, ?pause, "the DHCP and DNS server of a network has ended: it is started again");
                    ctx.enqueue(Key::host());
                    paused.push(async move {
                        tokio::time::sleep(pause).await;
                        bridge
                    });
                }
                Err(error) => {
                    tracing::warn!(error = %error.chain(), "ends of DHCP servers are not noticed at once");
                    tokio::time::sleep(RETRY_SERVERS).await;
                }
            },
            Some(bridge) = paused.next() => {
                {
                    let mut applied = ctx.networks.applied();
                    applied.networks.remove(&bridge);
                    applied.bridged.remove(&bridge);
                }
                ctx.queue.add(Key::networks());
            }
        }
    }
}

/// Reconciles one object.
async fn one(ctx: Arc<Context>, key: Key) {
    let span = kinds::span(&key);
    let begun = Instant::now();
    let done = kinds::reconcile(&ctx, &key).instrument(span.clone()).await;
    let failed = done.as_ref().is_err_and(|error| !error.is_transient());
    ctx.reconciles.count(&key.kind, failed, begun.elapsed());
    let again = done.unwrap_or_else(|error| {
        let _entered = span.enter();
        if error.is_transient() {
            tracing::debug!(error = %error.chain(), "changed meanwhile, looking again");
        } else {
            tracing::warn!(error = %error.chain(), "reconcile failed, trying again later");
        }
        if error.is_no_space() { Requeue::After(RETRY_SPACE_EVERY) } else { Requeue::after_failure(&error) }
    });
    match again {
        Requeue::OnChange => ctx.queue.succeeded(&key),
        Requeue::After(delay) => {
            ctx.queue.succeeded(&key);
            ctx.queue.add_after(key, delay);
        }
        Requeue::BackOff => drop(ctx.queue.failed(&key, LONGEST_BACK_OFF)),
        Requeue::BackOffAtMost(longest) => drop(ctx.queue.failed(&key, longest)),
    }
}
