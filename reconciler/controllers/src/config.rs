//! The configuration of the controllers.

use std::{sync::Arc, time::Duration};

use berth_engine::{Clock, Identities, SystemClock};

use crate::{metrics::Metrics, scheduler::PlacementPolicy};

/// The configuration of the controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The source of the times in conditions.
    pub clock: Arc<dyn Clock>,
    /// The source of fresh identities.
    pub identities: Identities,
    /// How long a host may be silent before its VMs' state is reported as unknown.
    pub host_silence: Duration,
    /// How the scheduler chooses among several hosts that can take a VM.
    pub placement: PlacementPolicy,
    /// The limits on tenants' Networks.
    pub tenants: TenantNetworks,
    /// Counts what they do.
    pub metrics: Metrics,
}

/// The limits on Networks outside of `berth-shared`, which is the administrator's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantNetworks {
    /// A Network's range must lie within one of these. Empty: any free range.
    pub ranges: Vec<ipnet::Ipv4Net>,
    /// The shortest prefix a range may have.
    pub shortest_prefix: u8,
    /// The maximum number of Networks per namespace.
    pub per_namespace: usize,
    /// The range from which the Network `default` of each namespace gets its part.
    pub default_range: ipnet::Ipv4Net,
    /// The prefix length of these parts, not shorter than the range's own.
    pub default_prefix: u8,
}

/// Private addresses that few sites use themselves: with [`DEFAULT_PREFIX`], Networks for 1,024 namespaces.
pub const DEFAULT_RANGE: &str = "10.64.0.0/10";
/// Room for 4,093 VMs per namespace.
pub const DEFAULT_PREFIX: u8 = 20;

impl TenantNetworks {
    /// Whether a range is one that the controllers assign to a namespace.
    pub(crate) fn is_default_range(&self, range: ipnet::Ipv4Net) -> bool {
        range.prefix_len() == self.default_prefix && self.default_range.contains(&range)
    }
}

impl Default for TenantNetworks {
    fn default() -> Self {
        let default_range = DEFAULT_RANGE.parse().expect("a constant range");
        Self {
            ranges: Vec::new(),
            shortest_prefix: 16,
            per_namespace: 32,
            default_range,
            default_prefix: DEFAULT_PREFIX,
        }
    }
}

impl Config {
    /// Real time, real randomness; a host counts as silent after 40 s (four missed renewals).
    pub fn new() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            identities: Identities::random(),
            host_silence: Duration::from_secs(40),
            placement: PlacementPolicy::Balance,
            tenants: TenantNetworks::default(),
            metrics: Metrics::default(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}
