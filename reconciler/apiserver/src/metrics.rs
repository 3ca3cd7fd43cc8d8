//! A few Prometheus metrics; no label names an object.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::{Method, StatusCode};

use crate::http::Front;
use crate::request::{Sub, Target};

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

    /// Of a request that came to no resource: documents, reviews, nonsense.
    pub(crate) fn other(method: &Method) -> Self {
        Self { verb: if method.is_safe() { "get" } else { "create" }, resource: String::new() }
    }
}

/// Requests answered, by what they were for and class of status. A watch counts when it begins.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    counts: Mutex<BTreeMap<What, [u64; CLASSES.len()]>>,
}

impl Requests {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<What, [u64; CLASSES.len()]>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
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
    out
}
