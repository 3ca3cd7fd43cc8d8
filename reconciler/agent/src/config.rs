//! What an agent is started with.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::error::AgentError;

/// Everything that is decided before an agent starts. What the host can do is asked of the system instead.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The name of the Host object; a DNS label or several joined by dots.
    pub host_name: String,
    /// What tells this agent from any other that calls itself the same host: kept where its machines are kept. Empty:
    /// the host's name.
    pub identity: String,
    /// Labels the Host gets when it is made. `kubernetes.io/hostname` is added.
    pub labels: BTreeMap<String, String>,
    /// Virtual CPUs offered for each real one. Default 4: guests are idle most of the time, and a busy host slows
    /// them down evenly. Memory is never offered twice.
    pub cpu_overcommit: u32,
    /// Memory kept back for the host itself, in bytes. Default 512 MiB, at most half of what there is.
    pub reserved_memory: u64,
    /// How many objects are worked on at the same time. Default 32.
    pub concurrency: usize,
    /// Where the time of day comes from.
    pub clock: Arc<dyn Clock>,
    /// Seed of jitter and ids; None takes the operating system's randomness.
    pub seed: Option<u64>,
}

impl AgentConfig {
    /// The defaults, for the host of this name.
    pub fn new(host_name: impl Into<String>) -> Self {
        Self {
            host_name: host_name.into(),
            identity: String::new(),
            labels: BTreeMap::new(),
            cpu_overcommit: 4,
            reserved_memory: 512 << 20,
            concurrency: 32,
            clock: Arc::new(SystemClock),
            seed: None,
        }
    }

    /// Who holds the host's Lease.
    pub(crate) fn identity(&self) -> &str {
        if self.identity.is_empty() { &self.host_name } else { &self.identity }
    }

    /// What VMs may use of this much memory.
    pub(crate) fn offered_memory(&self, total: u64) -> u64 {
        total - self.reserved_memory.min(total / 2)
    }

    pub(crate) fn validate(&self) -> Result<(), AgentError> {
        let label = |part: &str| berth_api::ResourceName::is_dns_label(part);
        if self.host_name.len() > 253 || !self.host_name.split('.').all(label) {
            return Err(AgentError::HostName { name: self.host_name.clone() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_is_dns_labels_joined_by_dots() {
        for good in ["h1", "kvm-1.rack2.example"] {
            assert!(AgentConfig::new(good).validate().is_ok(), "{good}");
        }
        for bad in ["", "Host", "a..b", "a/b", "-a"] {
            assert!(AgentConfig::new(bad).validate().is_err(), "{bad}");
        }
    }
}
