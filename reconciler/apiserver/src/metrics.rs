//! A few Prometheus metrics; no label names an object.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, StatusCode};

use crate::http::Front;

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];
const KINDS: [&str; 2] = ["read", "write"];

/// Requests answered, by kind and class of status.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    counts: [[AtomicU64; 4]; 2],
}

impl Requests {
    pub(crate) fn count(&self, method: &Method, status: StatusCode) {
        let kind = usize::from(!method.is_safe());
        let class = usize::from(status.as_u16() / 100).clamp(2, 5) - 2;
        self.counts[kind][class].fetch_add(1, Ordering::Relaxed);
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
    let requests: Vec<_> = KINDS
        .iter()
        .zip(&front.metrics.counts)
        .flat_map(|(kind, counts)| {
            CLASSES.iter().zip(counts).map(move |(class, count)| {
                (format!("{{kind=\"{kind}\",code=\"{class}\"}}"), count.load(Ordering::Relaxed))
            })
        })
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
    metric("berth_apiserver_revision", "gauge", "The last revision.", &[(String::new(), state.revision)]);
    out
}
