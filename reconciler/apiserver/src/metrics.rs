//! A few Prometheus metrics; no label names an object.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::core::Core;
use crate::credentials::Credentials;
use crate::request::{Sub, Target};

/// The media type of the metrics.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// The purpose of a request. Resources are those the server serves, which limits the number of labels.
#[derive(Clone, Debug)]
pub(crate) struct Purpose {
    pub(crate) verb: &'static str,
    /// `vms`, `vms/status`.
    resource: String,
}

impl Purpose {
    pub(crate) fn new(verb: &'static str, target: &Target) -> Self {
        let plural = &target.resource.plural;
        let resource = match target.sub {
            Sub::None => plural.clone(),
            sub => format!("{plural}/{}", sub.name()),
        };
        Self { verb, resource }
    }

    /// Returns the purpose of a request that reached no resource: documents, reviews, invalid paths.
    pub(crate) fn other(method: &Method) -> Self {
        Self { verb: if method.is_safe() { "get" } else { "create" }, resource: String::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    verb: &'static str,
    resource: String,
    /// The class of the status.
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResource {
    resource: String,
}

/// Answered requests, by purpose and class of status. A watch counts when it begins.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    answered: Family<Answered, Counter>,
    /// Requests refused with 429 because of overload.
    shed: Counter,
    connections: Gauge,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Requests {
    pub(crate) fn shed(&self) {
        self.shed.inc();
    }

    pub(crate) fn connected(&self) -> Connected {
        self.connections.inc();
        Connected(self.connections.clone())
    }

    pub(crate) fn count(&self, of: Purpose, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(2, 5) - 2;
        let Purpose { verb, resource } = of;
        self.answered.get_or_create(&Answered { verb, resource, code: CLASSES[class] }).inc();
    }
}

/// Renders the metrics. `load`: requests being processed, requests waiting for a turn, and bodies being
/// received.
pub(crate) fn render(core: &Core, requests: &Requests, load: [usize; 3]) -> String {
    let mut registry = Registry::with_prefix("berth_apiserver");
    registry.register("requests", "Requests answered", requests.answered.clone());
    registry.register("connections", "Connections open", requests.connections.clone());
    let shed = "Requests refused because too much was in progress";
    registry.register("requests_shed", shed, requests.shed.clone());
    let (store, backups) = (&core.store, &core.backups);
    let counters = &store.counters;
    let dropped = core.audit.as_ref().map_or(0, |audit| audit.dropped.load(Ordering::Relaxed));
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let last_backup = AtomicI64::load(&backups.last_success, Ordering::Relaxed).unsigned_abs();
    let ca_expires = core.tokens.given.as_ref().and_then(Credentials::ca_expires);
    let ca_expires = ca_expires.map_or(0, |at| at.as_second().unsigned_abs());
    let state = store.state();
    let (events, bytes) = state.longest_queue();
    let [in_flight, waiting, receiving] = load.map(|count| count as u64);
    for (name, help, value) in [
        ("writes", "Objects written", read(&counters.writes)),
        ("commits", "Transactions committed", read(&counters.commits)),
        ("failed_writes", "Writes the database refused", read(&counters.failed)),
        ("watches_cut_off", "Watchers that were too slow", state.cut_off),
        ("audit_dropped", "Lines the audit log lost", dropped),
        ("backups", "Backups made by schedule", read(&backups.made)),
        ("failed_backups", "Backups that failed", read(&backups.failed)),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    for (name, help, value) in [
        ("requests_in_flight", "Requests being answered", in_flight),
        ("requests_waiting", "Requests that wait for their turn", waiting),
        ("bodies_received", "Bodies that are being received", receiving),
        ("watches", "Watches open", state.watcher_count() as u64),
        ("watch_queue_events", "Events that wait for the slowest watcher", events as u64),
        ("watch_queue_bytes", "Bytes of them", bytes as u64),
        ("write_queue", "Writes that wait to be committed", store.queued() as u64),
        ("store_bytes", "Size of the database and its log", store.size()),
        ("backup_failing", "1 from a failed backup until the next that succeeds", read(&backups.failing)),
        (
            "backup_last_success_timestamp_seconds",
            "When this process made its last backup; 0 before",
            last_backup,
        ),
        ("ca_expires_timestamp_seconds", "When the CA of this server expires; 0 without one", ca_expires),
        ("revision", "The last revision", state.revision),
    ] {
        registry.register(name, help, ConstGauge::new(value));
    }
    let objects = Family::<OfResource, Gauge>::default();
    for resource in state.resources() {
        let count = i64::try_from(state.count(&resource)).unwrap_or(i64::MAX);
        objects.get_or_create(&OfResource { resource: resource.to_string() }).set(count);
    }
    drop(state);
    registry.register("objects", "Objects stored", objects);
    let latency = "From the submission of a write until it is durable, without renewals of Leases, which wait for each other";
    registry.register("write_duration_seconds", latency, counters.latency.clone());
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing into a String cannot fail");
    text
}
