//! Ceilings for the operations and the bandwidth of a disk, which can be changed while the machine runs.

use serde_json::{Value, json};

/// Ceilings per second; 0 stands for none. QEMU accepts those for both directions together, or those for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoLimits {
    pub iops: u64,
    pub read_iops: u64,
    pub write_iops: u64,
    /// Bytes.
    pub bandwidth: u64,
    pub read_bandwidth: u64,
    pub write_bandwidth: u64,
    /// Operations per second during a burst; at least `iops`.
    pub burst_iops: u64,
    /// Bytes per second during a burst; at least `bandwidth`.
    pub burst_bandwidth: u64,
    /// The length of a burst at its full rate; 0 exactly without a burst.
    pub burst_seconds: u64,
}

/// QEMU's names of the ceilings, in a request and in the reply to `query-block`.
const RATES: [&str; 6] = ["iops", "iops_rd", "iops_wr", "bps", "bps_rd", "bps_wr"];

impl IoLimits {
    fn rates(&self) -> [u64; 6] {
        [
            self.iops,
            self.read_iops,
            self.write_iops,
            self.bandwidth,
            self.read_bandwidth,
            self.write_bandwidth,
        ]
    }

    /// Reads the ceilings from a node in the reply to `query-block`.
    pub(super) fn observed(inserted: &Value) -> Self {
        let number = |name: &str| inserted[name].as_u64().unwrap_or_default();
        let [iops, read_iops, write_iops, bandwidth, read_bandwidth, write_bandwidth] = RATES.map(number);
        let (burst_iops, burst_bandwidth) = (number("iops_max"), number("bps_max"));
        let burst_seconds = match (burst_iops, burst_bandwidth) {
            (0, 0) => 0,
            (0, _) => number("bps_max_length"),
            _ => number("iops_max_length"),
        };
        Self {
            iops,
            read_iops,
            write_iops,
            bandwidth,
            read_bandwidth,
            write_bandwidth,
            burst_iops,
            burst_bandwidth,
            burst_seconds,
        }
    }

    pub(super) fn arguments(&self, device: &str) -> Value {
        let mut arguments = json!({"id": device});
        for (name, rate) in RATES.into_iter().zip(self.rates()) {
            arguments[name] = json!(rate);
        }
        // A burst without a rate is an error in QEMU, even one of 0.
        for (name, rate) in [("iops", self.burst_iops), ("bps", self.burst_bandwidth)] {
            if rate > 0 {
                arguments[format!("{name}_max")] = json!(rate);
                arguments[format!("{name}_max_length")] = json!(self.burst_seconds.max(1));
            }
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_requested_is_what_is_observed() {
        let all = IoLimits {
            iops: 100,
            bandwidth: 1 << 20,
            burst_iops: 200,
            burst_bandwidth: 2 << 20,
            burst_seconds: 30,
            ..IoLimits::default()
        };
        let each = IoLimits {
            read_iops: 1,
            write_iops: 2,
            read_bandwidth: 3,
            write_bandwidth: 4,
            ..IoLimits::default()
        };
        let burst = IoLimits { iops: 1, burst_iops: 9, burst_seconds: 7, ..IoLimits::default() };
        for limits in [IoLimits::default(), all, each, burst] {
            assert_eq!(IoLimits::observed(&limits.arguments("d")), limits);
        }
    }

    #[test]
    fn without_a_burst_none_is_named() {
        let arguments = IoLimits { iops: 5, ..IoLimits::default() }.arguments("d");
        insta::assert_snapshot!(arguments, @r#"{"bps":0,"bps_rd":0,"bps_wr":0,"id":"d","iops":5,"iops_rd":0,"iops_wr":0}"#);
    }
}
