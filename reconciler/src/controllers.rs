//! The controllers: what decides where things go and which addresses they get.
//!
//! One task holds a [`World`] (every object, kept by watches and by the answers to its own writes) and works off a
//! queue of keys, one at a time, so that no two decisions can give out the same address or the same memory twice.
//! A reconcile is given no reason and reads nothing but the world:
//!
//! ```text
//! watches ─▶ World ─▶ queue ─▶ observe ─▶ plan ─▶ apply ─▶ status
//!              ▲                (World)   (pure)   (writes)   (pure, then one write if it differs)
//!              └───────────────────────────── answers to writes
//! ```
//!
//! It must not know QEMU, files or networks: those are the agent's.

mod access;
mod addresses;
mod apply;
mod disk;
mod fenced;
mod fleet;
mod host;
mod hotswap_disk_attachment;
mod image;
mod index;
mod ip_pool;
mod key;
mod network;
mod placement_group;
mod plan;
mod public_ip;
mod queue;
mod scheduler;
mod storage_pool;
mod underlay;
mod users;
mod vm;
mod vm_class;
mod watches;
mod world;

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info, info_span, warn};

pub use key::{Key, Kind};
pub use scheduler::Filling;
pub use world::World;

use crate::clock::{Clock, Identities};
use apply::Writer;
use plan::Outcome;
use queue::{LONGEST_DELAY, Queue};

/// What the controllers need.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the time in conditions comes from.
    pub clock: Arc<dyn Clock>,
    /// Where fresh identities come from.
    pub identities: Identities,
    /// How long a host may be silent before what runs there is called unknown.
    pub host_silence: Duration,
    /// Which of several hosts that can take a VM it goes to.
    pub filling: Filling,
}

impl Config {
    /// Real time, real randomness, hosts silent after 40 s (four missed renewals).
    pub fn new() -> Self {
        Self {
            clock: Arc::new(crate::clock::SystemClock),
            identities: Identities::random(),
            host_silence: Duration::from_secs(40),
            filling: Filling::Balance,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

/// The longest a write waits that found the control plane's disk full.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(10);
/// How often silent hosts are looked for.
const HOST_CHECK: Duration = Duration::from_secs(5);
/// How many events are taken before the next reconcile gets its turn.
const EVENT_BURST: usize = 256;
/// How many of those who wait for room are looked at each time hosts are.
const WAITING_BURST: usize = 64;

/// Runs all controllers until cancelled. Never returns because of the control plane: watches and writes are retried.
pub async fn run(client: Client, config: Config, cancel: CancellationToken) {
    let mut world = World::new(config.host_silence);
    let mut queue = Queue::new();
    let mut events = watches::all(&client);
    let writer = Writer::new(client, config);
    let mut host_check = tokio::time::interval(HOST_CHECK);
    host_check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        for _ in 0..EVENT_BURST {
            match events.next().now_or_never() {
                Some(Some(change)) => take(&mut world, &mut queue, change),
                Some(None) | None => break,
            }
        }
        let news = world.index.fleet.take_news();
        if news.hosts {
            queue.hosts_changed();
        }
        if news.freed {
            queue.room_freed();
        }
        for (used, at_once) in world.users.take_news() {
            if at_once { queue.add(used) } else { queue.gather(used) }
        }
        if world.is_synced()
            && let Some(key) = queue.next_ready(tokio::time::Instant::now())
        {
            // A cancelled reconcile is safe at any await: each write stands for itself.
            tokio::select! {
                () = cancel.cancelled() => return,
                () = reconcile(&mut world, &mut queue, &writer, key) => continue,
            }
        }
        let wake = queue.next_deadline();
        tokio::select! {
            () = cancel.cancelled() => return,
            change = events.next() => if let Some(change) = change { take(&mut world, &mut queue, change) },
            _ = host_check.tick() => {
                for key in world.silence_changes(tokio::time::Instant::now()) {
                    queue.changed(key);
                }
                queue.look_at_waiting(WAITING_BURST);
            }
            () = sleep_until(wake), if world.is_synced() && wake.is_some() => {}
        }
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn take(world: &mut World, queue: &mut Queue, change: watches::Change) {
    let own = change.key();
    for key in world.take(change, tokio::time::Instant::now()) {
        match key.kind {
            Kind::Network if own.as_ref() != Some(&key) => queue.gather(key),
            _ => queue.changed(key),
        }
    }
}

async fn reconcile(world: &mut World, queue: &mut Queue, writer: &Writer, key: Key) {
    let span =
        info_span!("reconcile", kind = key.kind.as_str(), namespace = key.namespace(), name = key.name);
    match reconcile_one(world, writer, &key).instrument(span.clone()).await {
        Ok((outcome, touched)) => {
            for other in touched {
                match other.kind {
                    Kind::Network if other != key => queue.gather(other),
                    _ => queue.changed(other),
                }
            }
            match outcome {
                Outcome::Settled => queue.settled(&key),
                Outcome::Blocked(needs) => queue.blocked(&key, needs),
            }
        }
        // Somebody wrote between our read and our write: the watch brings the newer object.
        Err(error) if error.is_conflict() => {
            queue.retry(&key, writer.jitter());
        }
        Err(error) => {
            // Whoever makes room on a full disk tells nobody.
            let longest = if error.is_full() { LOOK_FOR_ROOM } else { LONGEST_DELAY };
            let delay = queue.retry_within(&key, writer.jitter(), longest);
            span.in_scope(|| warn!(error = %ErrorChain(&error), retry_in = ?delay, "reconcile failed"));
        }
    }
}

/// One reconcile of one object; returns what it waits for and which keys its writes touched.
async fn reconcile_one(
    world: &mut World,
    writer: &Writer,
    key: &Key,
) -> Result<(Outcome, Vec<Key>), apply::WriteError> {
    let mut touched = Vec::new();
    let outcome = match key.kind {
        Kind::VM => vm::reconcile(world, writer, key, &mut touched).await?,
        Kind::Disk => disk::reconcile(world, writer, key, &mut touched).await?,
        Kind::HotswapDiskAttachment => {
            hotswap_disk_attachment::reconcile(world, writer, key, &mut touched).await?
        }
        Kind::Image => image::reconcile(world, writer, key, &mut touched).await?,
        Kind::PublicIP => public_ip::reconcile(world, writer, key, &mut touched).await?,
        Kind::PlacementGroup => placement_group::reconcile(world, writer, key, &mut touched).await?,
        Kind::VMClass => vm_class::reconcile(world, writer, key, &mut touched).await?,
        Kind::Network => network::reconcile(world, writer, key, &mut touched).await?,
        Kind::IPPool => ip_pool::reconcile(world, writer, key, &mut touched).await?,
        Kind::StoragePool => storage_pool::reconcile(world, writer, key, &mut touched).await?,
        Kind::Host => host::reconcile(world, writer, key, &mut touched).await?,
        Kind::Role => access::reconcile(world, writer, key, &mut touched).await?,
        Kind::Lease | Kind::ServiceAccount => Outcome::Settled,
    };
    if !touched.is_empty() {
        info!(writes = touched.len(), "reconciled");
    }
    Ok((outcome, touched))
}

struct ErrorChain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}
