//! Metrics of the controllers, in the format of OpenMetrics. They have no labels of single objects.

use std::time::Duration;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// The upper limits of the classes of duration, in seconds.
const LIMITS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

/// The result of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reconciled {
    Success,
    /// Another write came first: it is repeated with what that has changed.
    Conflict,
    Error,
}

/// The metrics of controllers. Copies share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    reconciles: Family<Labels, Counter>,
    durations: Family<OfKind, Histogram, fn() -> Histogram>,
    queue: Gauge,
    writing: Gauge,
    leader: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            reconciles: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(LIMITS)),
            queue: Gauge::default(),
            writing: Gauge::default(),
            leader: Gauge::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn reconciled(&self, kind: &'static str, result: Reconciled, took: Duration) {
        let result = match result {
            Reconciled::Success => "success",
            Reconciled::Conflict => "conflict",
            Reconciled::Error => "error",
        };
        self.reconciles.get_or_create(&Labels { kind, result }).inc();
        self.durations.get_or_create(&OfKind { kind }).observe(took.as_secs_f64());
    }

    pub(crate) fn set_lengths(&self, queue: usize, writing: usize) {
        self.queue.set(i64::try_from(queue).unwrap_or(i64::MAX));
        self.writing.set(i64::try_from(writing).unwrap_or(i64::MAX));
    }

    /// Shows this process as the one that decides, until the result is dropped.
    pub fn leading(&self) -> Leading {
        self.leader.set(1);
        Leading { of: self.clone() }
    }

    /// Renders them.
    pub fn render(&self) -> String {
        let mut registry = Registry::with_prefix("berth_controllers");
        let help = "Reconciles of objects, by kind and result";
        registry.register("reconciles", help, self.reconciles.clone());
        let help = "Durations of reconciles with their writes, by kind";
        registry.register("reconcile_duration_seconds", help, self.durations.clone());
        registry.register("queue_length", "Keys that wait to be reconciled", self.queue.clone());
        registry.register("writes_in_flight", "Decisions that are being written", self.writing.clone());
        registry.register("leader", "Whether this process is the one that decides", self.leader.clone());
        let mut text = String::new();
        encode(&mut text, &registry).expect("writing into a String cannot fail");
        text
    }
}

/// A process that decides; see [`Metrics::leading`].
#[derive(Debug)]
pub struct Leading {
    of: Metrics,
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.of.leader.set(0);
        self.of.set_lengths(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_show_reconciles_lengths_and_the_leader() {
        let metrics = Metrics::default();
        let leading = metrics.leading();
        metrics.reconciled("VM", Reconciled::Success, Duration::from_millis(3));
        metrics.reconciled("VM", Reconciled::Conflict, Duration::from_millis(3));
        metrics.set_lengths(7, 2);
        let text = metrics.clone().render();
        for line in [
            "berth_controllers_reconciles_total{kind=\"VM\",result=\"success\"} 1",
            "berth_controllers_reconciles_total{kind=\"VM\",result=\"conflict\"} 1",
            "berth_controllers_reconcile_duration_seconds_count{kind=\"VM\"} 2",
            "berth_controllers_queue_length 7",
            "berth_controllers_writes_in_flight 2",
            "berth_controllers_leader 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        drop(leading);
        let text = metrics.render();
        assert!(text.contains("berth_controllers_leader 0\n"), "{text}");
        assert!(text.contains("berth_controllers_queue_length 0\n"), "{text}");
    }
}
