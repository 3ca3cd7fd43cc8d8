//! The controllers: what decides where things go and which addresses they get.
//!
//! One task holds a [`World`] (every object, kept by watches and by the answers to its own writes) and works off a
//! queue of keys, one at a time, so that no two decisions can give out the same address or the same memory twice.
//! A reconcile is given no reason and reads nothing but the world. What it decided is in the world at once, and is
//! written beside what others decided ([`pipeline`]):
//!
//! ```text
//! watches ─▶ World ─▶ queue ─▶ observe ─▶ plan ─▶ status ─▶ writes, up to 32 decisions' at a time
//!              ▲                (World)   (pure)   (pure)     │
//!              └──────────── what was decided, then answers ──┘
//! ```
//!
//! It must not know QEMU, files or networks: those are the agent's.

mod access;
mod addresses;
mod apply;
mod claims;
mod disk;
mod draft;
mod fenced;
mod fleet;
mod host;
mod hotswap_disk_attachment;
mod image;
mod index;
mod ip_pool;
mod key;
mod network;
mod pipeline;
mod placement_group;
mod plan;
mod public_ip;
mod queue;
mod scheduler;
mod storage_pool;
mod topology_claims;
mod underlay;
mod users;
mod vm;
mod vm_class;
mod watches;
mod world;

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use kube::Client;
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use key::{Key, Kind};
pub use scheduler::Filling;
pub use world::World;

use crate::clock::{Clock, Identities};
use apply::{Writer, Written};
use draft::Draft;
use pipeline::{Job, Pipeline, Turn};
use plan::Outcome;

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

/// How often silent hosts are looked for.
const HOST_CHECK: Duration = Duration::from_secs(5);
/// How many events are taken before the next reconcile gets its turn.
const EVENT_BURST: usize = 256;
/// How many decisions are written at a time.
const UNDER_WAY: usize = 32;

/// Runs all controllers until cancelled. Never returns because of the control plane: watches and writes are retried.
pub async fn run(client: Client, config: Config, cancel: CancellationToken) {
    let mut pipeline = Pipeline::new(config);
    let mut events = watches::all(&client);
    let writer = Writer::new(client);
    // A write that is given up midway is safe: each stands for itself.
    let mut under_way: JoinSet<(Job, Written)> = JoinSet::new();
    let mut host_check = tokio::time::interval(HOST_CHECK);
    host_check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !cancel.is_cancelled() {
        for _ in 0..EVENT_BURST {
            let Some(Some(change)) = events.next().now_or_never() else { break };
            pipeline.take(change, Instant::now());
        }
        while let Some(done) = under_way.try_join_next() {
            finish(&mut pipeline, done);
        }
        let may_decide = pipeline.world.is_synced() && under_way.len() < UNDER_WAY;
        if may_decide {
            match pipeline.decide(Instant::now()) {
                Turn::Idle => {}
                Turn::Settled => {
                    tokio::task::consume_budget().await;
                    continue;
                }
                Turn::Write(job) => {
                    let writer = writer.clone();
                    under_way.spawn(async move {
                        let written = writer.run(&job.writes).await;
                        (job, written)
                    });
                    continue;
                }
            }
        }
        let wake = pipeline.queue.next_deadline().filter(|_| may_decide);
        tokio::select! {
            () = cancel.cancelled() => return,
            change = events.next() => if let Some(change) = change { pipeline.take(change, Instant::now()) },
            Some(done) = under_way.join_next() => finish(&mut pipeline, done),
            _ = host_check.tick() => pipeline.check_hosts(Instant::now()),
            () = sleep_until(wake), if wake.is_some() => {}
        }
    }
}

fn finish(pipeline: &mut Pipeline, done: Result<(Job, Written), JoinError>) {
    match done {
        Ok((job, written)) => pipeline.finish(job, written, Instant::now()),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Only when the runtime ends.
        Err(_) => {}
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What is to become of one object: what is to be written goes into the draft; returns what it waits for.
fn decide(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let reconcile = match key.kind {
        Kind::VM => vm::reconcile,
        Kind::Disk => disk::reconcile,
        Kind::HotswapDiskAttachment => hotswap_disk_attachment::reconcile,
        Kind::Image => image::reconcile,
        Kind::PublicIP => public_ip::reconcile,
        Kind::PlacementGroup => placement_group::reconcile,
        Kind::VMClass => vm_class::reconcile,
        Kind::Network => network::reconcile,
        Kind::IPPool => ip_pool::reconcile,
        Kind::StoragePool => storage_pool::reconcile,
        Kind::Host => host::reconcile,
        Kind::Role => access::reconcile,
        Kind::Lease | Kind::ServiceAccount => return Outcome::Settled,
    };
    reconcile(world, config, key, draft)
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
