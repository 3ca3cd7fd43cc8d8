//! A few Prometheus metrics; no label names an object.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::{Method, StatusCode};

use crate::http::Front;
use crate::request::{Sub, Target};
use crate::store::{Counters, LATENCIES};

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// What a request was for. Resources are those the server serves, so there are only so many.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct What {
    verb: &'static str,
    /// `vms`, `vms/status`.
    resource: String,
}

impl What {
    pub(crate) fn new(verb: &'static str, target: &Target) -> Self {
        let plural = &target.resource.plural;
        let resource = match target.sub {
            Sub::None => plural.clone(),
            sub => format!("{plural}/{}", sub.name()),
        };
        Self { verb, resource }
    }

    pub(crate) fn verb(&self) -> &'static str {
        self.verb
    }

    /// Of a request that came to no resource: documents, reviews, nonsense.
    pub(crate) fn other(method: &Method) -> Self {
        Self { verb: if method.is_safe() { "get" } else { "create" }, resource: String::new() }
    }
}

/// Requests answered, by what they were for and class of status. A watch counts when it begins.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    counts: Mutex<BTreeMap<What, [u64; CLASSES.len()]>>,
    /// Told to come again because too much was under way.
    shed: AtomicU64,
    /// Connections open.
    connections: AtomicU64,
}

/// A connection, for as long as it is open.
#[derive(Debug)]
pub(crate) struct Connected<'a>(&'a AtomicU64);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Requests {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<What, [u64; CLASSES.len()]>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shed(&self) {
        self.shed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connected(&self) -> Connected<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Connected(&self.connections)
    }

    pub(crate) fn count(&self, what: What, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(2, 5) - 2;
        self.counts().entry(what).or_default()[class] += 1;
    }
}

pub(crate) fn render(front: &Front) -> String {
    let store = &front.core.store;
    let counters = &store.counters;
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let of = |counter: &AtomicU64| vec![(String::new(), counter.load(Ordering::Relaxed))];
    let labelled = |what: &What, class: &str| {
        format!("{{verb=\"{}\",resource=\"{}\",code=\"{class}\"}}", what.verb, what.resource)
    };
    let requests: Vec<_> = front
        .metrics
        .counts()
        .iter()
        .flat_map(|(what, counts)| {
            CLASSES.iter().zip(counts).map(move |(class, count)| (what, class, *count))
        })
        .filter(|(_, _, count)| *count > 0)
        .map(|(what, class, count)| (labelled(what, class), count))
        .collect();
    metric("berth_apiserver_requests_total", "counter", "Requests answered.", &requests);
    let [answered, waiting, received] = front.load().map(|count| [(String::new(), count as u64)]);
    metric("berth_apiserver_connections", "gauge", "Connections open.", &of(&front.metrics.connections));
    metric("berth_apiserver_requests_in_flight", "gauge", "Requests being answered.", &answered);
    metric("berth_apiserver_requests_waiting", "gauge", "Requests that wait for their turn.", &waiting);
    metric("berth_apiserver_bodies_received", "gauge", "Bodies that are being received.", &received);
    metric(
        "berth_apiserver_requests_shed_total",
        "counter",
        "Requests told to come again because too much was under way.",
        &of(&front.metrics.shed),
    );
    metric("berth_apiserver_writes_total", "counter", "Objects written.", &of(&counters.writes));
    metric("berth_apiserver_commits_total", "counter", "Transactions committed.", &of(&counters.commits));
    metric(
        "berth_apiserver_failed_writes_total",
        "counter",
        "Writes the database refused.",
        &of(&counters.failed),
    );
    let state = store.state();
    let objects: Vec<_> = state
        .resources()
        .iter()
        .map(|resource| (format!("{{resource=\"{resource}\"}}"), state.count(resource) as u64))
        .collect();
    metric("berth_apiserver_objects", "gauge", "Objects stored.", &objects);
    let watchers = [(String::new(), state.watcher_count() as u64)];
    metric("berth_apiserver_watches", "gauge", "Watches open.", &watchers);
    let (events, bytes) = state.longest_queue();
    let gauge = |value: u64| [(String::new(), value)];
    metric(
        "berth_apiserver_watch_queue_events",
        "gauge",
        "Events that wait for the slowest watcher.",
        &gauge(events as u64),
    );
    metric("berth_apiserver_watch_queue_bytes", "gauge", "Bytes of them.", &gauge(bytes as u64));
    metric(
        "berth_apiserver_watches_cut_off_total",
        "counter",
        "Watchers that were too slow.",
        &gauge(state.cut_off),
    );
    metric(
        "berth_apiserver_write_queue",
        "gauge",
        "Writes that wait to be committed.",
        &gauge(store.queued() as u64),
    );
    metric("berth_apiserver_store_bytes", "gauge", "Size of the database and its log.", &gauge(store.size()));
    let dropped = front.core.audit.as_ref().map_or(0, |audit| audit.dropped.load(Ordering::Relaxed));
    metric("berth_apiserver_audit_dropped_total", "counter", "Lines the audit log lost.", &gauge(dropped));
    let backups = &front.core.backups;
    metric("berth_apiserver_backups_total", "counter", "Backups made by schedule.", &of(&backups.made));
    metric("berth_apiserver_failed_backups_total", "counter", "Backups that failed.", &of(&backups.failed));
    metric(
        "berth_apiserver_backup_failing",
        "gauge",
        "1 from a failed backup until the next that succeeds.",
        &of(&backups.failing),
    );
    let last = backups.last_success.load(Ordering::Relaxed).unsigned_abs();
    metric(
        "berth_apiserver_backup_last_success_timestamp_seconds",
        "gauge",
        "When this process made its last backup; 0 before.",
        &[(String::new(), last)],
    );
    metric("berth_apiserver_revision", "gauge", "The last revision.", &[(String::new(), state.revision)]);
    drop(state);
    write_durations(&mut out, counters);
    out
}

/// A histogram, as Prometheus has it: each bucket counts what the ones before it do too.
fn write_durations(out: &mut String, counters: &Counters) {
    const NAME: &str = "berth_apiserver_write_duration_seconds";
    // Writing into a String cannot fail.
    let _ = writeln!(
        out,
        "# HELP {NAME} From a write's submission to its being durable.\n# TYPE {NAME} histogram"
    );
    let bounds = LATENCIES.iter().map(|bound| (*bound as f64 / 1e3).to_string()).chain(["+Inf".to_owned()]);
    let mut count = 0;
    for (bound, bucket) in bounds.zip(&counters.latency.buckets) {
        count += bucket.load(Ordering::Relaxed);
        let _ = writeln!(out, "{NAME}_bucket{{le=\"{bound}\"}} {count}");
    }
    let sum = counters.latency.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
    let _ = writeln!(out, "{NAME}_sum {sum}\n{NAME}_count {count}");
}
