//! The controllers: they decide placement, addresses and everything else that one host cannot decide alone.
//!
//! ```text
//!             ┌─────────────────────── lib: one task ────────────────────────┐
//!             ▼                                                              │
//!  watch ─▶ pipeline ─▶ kinds ─▶ scheduler   which host       writer ◀───────┘
//!             │ queue     │ │    topology    claims of groups    │  up to 32 decisions at a time
//!             │           │ └──▶ batch, plan, placement_hold,    │
//!             │           │      inherited                       │
//!             ▼           ▼                                      ▼
//!           cache: every object, with indices  ◀──── decisions, then responses
//!             ▼
//!           object, key, metrics           events ◀─ transitions that a person may have to act on
//! ```
//!
//! One task holds the [`cache`] of all objects and processes a queue of keys one at a time, so that no two decisions can
//! allocate the same address or the same memory. A reconcile takes no reason and reads only the cache. A decision enters
//! the cache at once and is written concurrently with the writes of other decisions ([`pipeline`]).
//!
//! It must not know QEMU, files or networks: those are the agent's.

mod batch;
mod cache;
mod config;
mod events;
mod inherited;
mod key;
mod kinds;
mod metrics;
mod object;
mod pipeline;
mod placement_hold;
mod plan;
mod scheduler;
mod topology;
mod watch;
mod writer;

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use kube::Client;
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use config::{Config, DEFAULT_PREFIX, DEFAULT_RANGE, TenantNetworks};
pub use metrics::{Leading, Metrics};
pub use scheduler::PlacementPolicy;

use events::Events;
use pipeline::{Job, Pipeline, Progress};
use writer::{WriteResult, Writer};

/// The interval between checks for silent hosts.
const HOST_CHECK: Duration = Duration::from_secs(5);
/// The maximum number of events processed before the next reconcile.
const EVENT_BURST: usize = 256;
/// The maximum number of decisions written concurrently.
const MAX_IN_FLIGHT: usize = 32;

/// Runs all controllers until cancelled. An error of the control plane never ends it: watches and writes are
/// retried.
pub async fn run(client: Client, config: Config, cancel: CancellationToken) {
    let (events, transitions) = Events::new();
    tokio::select! {
        biased;
        () = decide(client.clone(), config, events, cancel) => {}
        () = events::publish(client, transitions) => {}
    }
}

async fn decide(client: Client, config: Config, to_publish: Events, cancel: CancellationToken) {
    let metrics = config.metrics.clone();
    let mut pipeline = Pipeline::new(config);
    let mut events = kinds::watch_all(&client);
    let writer = Writer::new(client);
    // Dropping a write midway is safe: each write is independent.
    let mut in_flight: JoinSet<(Job, WriteResult)> = JoinSet::new();
    let mut host_check = tokio::time::interval(HOST_CHECK);
    host_check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !cancel.is_cancelled() {
        for _ in 0..EVENT_BURST {
            let Some(Some(change)) = events.next().now_or_never() else { break };
            pipeline.take(change, Instant::now());
        }
        while let Some(done) = in_flight.try_join_next() {
            finish(&mut pipeline, &to_publish, done);
        }
        let may_decide = pipeline.cache.is_synced() && in_flight.len() < MAX_IN_FLIGHT;
        if may_decide {
            match pipeline.decide(Instant::now()) {
                Progress::Idle => {}
                Progress::Settled => {
                    tokio::task::consume_budget().await;
                    continue;
                }
                Progress::Write(job) => {
                    let writer = writer.clone();
                    in_flight.spawn(async move {
                        let written = writer.run(&job.writes).await;
                        (job, written)
                    });
                    continue;
                }
            }
        }
        metrics.set_lengths(pipeline.queue.len(), in_flight.len());
        let wake = pipeline.queue.next_deadline().filter(|_| may_decide);
        tokio::select! {
            () = cancel.cancelled() => return,
            change = events.next() => if let Some(change) = change { pipeline.take(change, Instant::now()) },
            Some(done) = in_flight.join_next() => finish(&mut pipeline, &to_publish, done),
            _ = host_check.tick() => pipeline.check_hosts(Instant::now()),
            () = sleep_until(wake), if wake.is_some() => {}
        }
    }
}

fn finish(pipeline: &mut Pipeline, events: &Events, done: Result<(Job, WriteResult), JoinError>) {
    match done {
        Ok((job, written)) => {
            if written.error.is_none() {
                job.transitions().for_each(|transition| events.send(transition));
            }
            pipeline.finish(job, written, Instant::now());
        }
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Happens only when the runtime shuts down.
        Err(_) => {}
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
