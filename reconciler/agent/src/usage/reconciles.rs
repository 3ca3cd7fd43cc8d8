//! Counters of the reconcile loop.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The upper limits of the classes of duration, in seconds.
const LIMITS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    kind: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

/// The reconciles of this agent, by kind: there are few kinds.
#[derive(Clone, Debug)]
pub(crate) struct Reconciles {
    done: Family<Outcome, Counter>,
    durations: Family<OfKind, Histogram, fn() -> Histogram>,
}

impl Default for Reconciles {
    fn default() -> Self {
        Self { done: Family::default(), durations: Family::new_with_constructor(|| Histogram::new(LIMITS)) }
    }
}

impl Reconciles {
    pub(crate) fn count(&self, kind: &str, failed: bool, took: Duration) {
        let result = if failed { "error" } else { "success" };
        self.done.get_or_create(&Outcome { kind: kind.to_owned(), result }).inc();
        self.durations.get_or_create(&OfKind { kind: kind.to_owned() }).observe(took.as_secs_f64());
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("reconciles", "Reconciles of objects, by kind and result", self.done.clone());
        let help = "Durations of reconciles, by kind";
        registry.register("reconcile_duration_seconds", help, self.durations.clone());
    }
}
