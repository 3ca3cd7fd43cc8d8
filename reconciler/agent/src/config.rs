//! The agent's configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::host::Reserved;
use berth_host::{Earlier, HostFacts, Start};
use ipnet::IpNet;

use crate::console_server::ConsoleServer;
use crate::error::AgentError;
use crate::host_shutdown::HostShutdown;
use crate::huge_pages;
use crate::usage::UsageServer;
use berth_engine::{Clock, SystemClock};

/// Everything decided before the agent starts. The host's capabilities are read from the system instead.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Name of the Host object: one DNS label, or several joined by dots.
    pub host_name: String,
    /// Distinguishes this agent from any other that claims the same host; stored with the host's machines. Empty: the
    /// host's name.
    pub identity: String,
    /// Identifies this start of the agent. None: agents differ by `identity` alone.
    pub start: Option<Start>,
    /// Whether the control plane is stored in the same state directory. A copy of the directory then contains its own
    /// control plane, and no other agent with this identity can reach this one.
    pub beside_control_plane: bool,
    /// Labels the Host is created with. `kubernetes.io/hostname` is added.
    pub labels: BTreeMap<String, String>,
    /// Virtual CPUs offered per physical CPU. Default 4: guests are idle most of the time, and a busy host slows them
    /// down evenly. Memory is overcommitted only by VMs that declare that less of it is kept for them.
    pub cpu_overcommit: u32,
    /// Memory reserved for the host itself unless its Host declares it, in bytes. Default 512 MiB, capped at half of the
    /// total.
    pub reserved_memory: u64,
    /// Maximum number of objects reconciled concurrently. Default 32.
    pub concurrency: usize,
    /// Destinations guests may reach although they are closed to guests by default: addresses of hosts, of the control
    /// plane, link-local ones. Default: none.
    pub guest_allow: Vec<IpNet>,
    /// The control plane's addresses, as seen from this host.
    pub control_plane: Vec<IpNet>,
    /// Serves the consoles of the host's machines. None: they have none.
    pub console: Option<Arc<ConsoleServer>>,
    /// Serves the use of the host. None: no metrics.
    pub usage: Option<Arc<UsageServer>>,
    /// Whether the host is being shut down, which others ask for.
    pub shutdown: Arc<HostShutdown>,
    /// Source of wall-clock time.
    pub clock: Arc<dyn Clock>,
    /// Seed for jitter and ids; None uses the operating system's randomness.
    pub seed: Option<u64>,
}

impl AgentConfig {
    /// Returns the default configuration for the host of this name.
    pub fn new(host_name: impl Into<String>) -> Self {
        Self {
            host_name: host_name.into(),
            identity: String::new(),
            start: None,
            beside_control_plane: false,
            labels: BTreeMap::new(),
            cpu_overcommit: 4,
            reserved_memory: 512 << 20,
            concurrency: 32,
            guest_allow: Vec::new(),
            control_plane: Vec::new(),
            console: None,
            usage: None,
            shutdown: Arc::default(),
            clock: Arc::new(SystemClock),
            seed: None,
        }
    }

    /// Returns the holder identity for the host's Lease: the state directory's identity and this start.
    pub(crate) fn holder(&self) -> String {
        match &self.start {
            Some(start) => format!("{}_{}", self.identity(), start.text()),
            None => self.identity().to_owned(),
        }
    }

    /// Whether a Lease with this holder can be taken without waiting to see if it is renewed: the holder is this start,
    /// or an earlier one that has ended.
    pub(crate) fn is_own(&self, holder: &str) -> bool {
        // Earlier agents wrote no start into the Lease, and the earliest only the host's name.
        if holder == self.holder() || [self.identity(), &self.host_name, ""].contains(&holder) {
            return true;
        }
        let same = holder.strip_prefix(self.identity()).and_then(|rest| rest.strip_prefix('_'));
        match (same, &self.start) {
            (Some(_), _) if self.beside_control_plane => true,
            (Some(other), Some(start)) => start.judge(other) == Earlier::Ended,
            _ => false,
        }
    }

    /// Whether the agent with this holder was on this state directory in this boot of this machine, and has ended.
    pub(crate) fn is_successor_of(&self, holder: &str) -> bool {
        let Some(start) = &self.start else { return holder == self.holder() };
        let other = holder.strip_prefix(self.identity()).and_then(|rest| rest.strip_prefix('_'));
        other.is_some_and(|other| start.judge(other) == Earlier::Ended)
    }

    fn identity(&self) -> &str {
        if self.identity.is_empty() { &self.host_name } else { &self.identity }
    }

    /// Returns the virtual CPUs and the bytes of memory in ordinary pages that VMs may use.
    pub(crate) fn offered(&self, facts: &HostFacts, reserved: Option<&Reserved>) -> (i64, u64) {
        let (cpus, memory) = self.reserved(facts, reserved);
        let overcommit = i64::from(self.cpu_overcommit.max(1));
        let cpus = self.shared_cpus(facts).saturating_sub(cpus).max(0);
        let ordinary = facts.memory_bytes.saturating_sub(huge_pages::reserved_bytes(facts));
        (cpus * overcommit, ordinary.saturating_sub(memory))
    }

    /// Returns the real CPUs without those for single VMs.
    pub(crate) fn shared_cpus(&self, facts: &HostFacts) -> i64 {
        let dedicated = i64::try_from(facts.dedicated.cpus.len()).unwrap_or(i64::MAX);
        i64::from(facts.cpus).saturating_sub(dedicated).max(0)
    }

    /// Returns the real CPUs and the bytes of memory that the host keeps for itself.
    pub(crate) fn reserved(&self, facts: &HostFacts, reserved: Option<&Reserved>) -> (i64, u64) {
        let cpus = reserved.and_then(|reserved| reserved.cpus).unwrap_or_default();
        (cpus, self.reserved_of(facts.memory_bytes, reserved))
    }

    /// Returns the bytes that a host keeps for itself of all of its memory.
    pub(crate) fn reserved_of(&self, memory_bytes: u64, reserved: Option<&Reserved>) -> u64 {
        let declared = reserved.and_then(|reserved| reserved.memory.as_ref()?.bytes().ok());
        declared.unwrap_or(self.reserved_memory.min(memory_bytes / 2))
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
    fn a_copy_of_a_state_directory_does_not_own_the_lease_of_another() {
        let agent = |start: &str, beside: bool| AgentConfig {
            identity: "h1_state".into(),
            start: Some(Start::of(start)),
            beside_control_plane: beside,
            ..AgentConfig::new("h1")
        };
        let (first, copy) = (agent("a-1", false), agent("a-2", false));
        assert!(first.is_own(&first.holder()) && first.is_own("h1_state") && first.is_own(""));
        assert!(!copy.is_own(&first.holder()), "another boot: it may run");
        assert!(!first.is_own("h1_other_a-1_1-2-3_n") && !first.is_own("h1_state2_a-1_1-2-3_n"));
        assert!(agent("a-2", true).is_own(&first.holder()), "after a restart, with its control plane");
    }

    #[test]
    fn an_agent_succeeds_only_one_that_has_ended_in_this_boot_of_this_machine() {
        let here = Start::here().expect("/proc is there");
        let text = here.text();
        let agent = AgentConfig { identity: "h1_state".into(), start: Some(here), ..AgentConfig::new("h1") };
        assert!(!agent.is_successor_of(&agent.holder()), "it runs");
        let mut parts = text.split('_');
        let (place, process) = (parts.next().expect("a place"), parts.next().expect("a process"));
        let namespace = process.split('-').next().expect("a namespace");
        // The number of a process that has ended is this process's now.
        let former = format!("{place}_{namespace}-{}-1_n", std::process::id());
        assert!(agent.is_successor_of(&format!("h1_state_{former}")));
        assert!(!agent.is_successor_of(&format!("h1_other_{former}")), "another state directory");
        assert!(!agent.is_successor_of("h1_state_a-1_1-2-3_n"), "another boot");
        assert!(!agent.is_successor_of("h1_state") && !agent.is_successor_of(""), "an earlier version's");
    }

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
