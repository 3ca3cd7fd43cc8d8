//! The networks that could not be made, the DHCP and DNS servers of networks that have ended by themselves, and the pauses before they
//! are started again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A server that has run for so long counts as one that never ended.
const STEADY: Duration = Duration::from_secs(600);
/// Ends within that time, from which on the condition of the Host names the network.
const REPEATED: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// By bridge.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    ends: Mutex<BTreeMap<String, Ends>>,
}

#[derive(Debug)]
struct Ends {
    times: u32,
    last: Instant,
    /// Why the network or its server could not be made at the last attempt.
    problem: Option<String>,
}

impl Ends {
    /// Whether it counts no longer: the server runs, and has not ended for long.
    fn is_over(&self) -> bool {
        self.problem.is_none() && self.last.elapsed() >= STEADY
    }
}

impl Servers {
    fn ends(&self) -> MutexGuard<'_, BTreeMap<String, Ends>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a server has ended. Returns the pause before it is started again: none at the first time.
    pub(crate) fn ended(&self, bridge: &str) -> Duration {
        let mut all = self.ends();
        all.retain(|_, ends| !ends.is_over());
        let now = Instant::now();
        let ends = all.entry(bridge.to_owned()).or_insert(Ends { times: 0, last: now, problem: None });
        ends.times = ends.times.saturating_add(1);
        ends.last = now;
        match ends.times {
            1 => Duration::ZERO,
            times => Duration::from_secs(1 << (times - 1).min(10)).min(LONGEST_PAUSE),
        }
    }

    /// Records the outcome of an attempt to make a network with its server. Returns whether the condition of the Host may be another.
    pub(crate) fn started(&self, bridge: &str, problem: Option<String>) -> bool {
        let mut all = self.ends();
        if problem.is_some() {
            let never = Ends { times: 0, last: Instant::now(), problem: None };
            all.entry(bridge.to_owned()).or_insert(never);
        }
        let Some(ends) = all.get_mut(bridge) else { return false };
        let is_changed = ends.problem != problem;
        ends.problem = problem;
        if ends.problem.is_none() && ends.times == 0 {
            all.remove(bridge);
        }
        is_changed
    }

    /// Forgets a network that is not on this host any more. Returns whether the condition of the Host may be another.
    pub(crate) fn forget(&self, bridge: &str) -> bool {
        self.ends().remove(bridge).is_some()
    }

    /// Describes the networks (`namespace/name` → bridge) that could not be made, and those whose servers end again and again, or cannot
    /// be started again.
    pub(crate) fn failing(&self, bridges: &BTreeMap<String, String>) -> Vec<String> {
        let all = self.ends();
        let describe = |(network, bridge): (&String, &String)| {
            let ends = all.get(bridge).filter(|ends| !ends.is_over())?;
            match &ends.problem {
                Some(problem) if ends.times == 0 => Some(format!(
                    "Network {network} is not served: {problem}: correct that on the host, which tries again at least every five minutes; \
                     its VMs start from then on"
                )),
                Some(problem) => Some(format!(
                    "the DHCP and DNS server of Network {network} has ended and cannot be started again: {problem}"
                )),
                None if ends.times >= REPEATED => Some(format!(
                    "the DHCP and DNS server of Network {network} (dnsmasq on {bridge}) has ended {} times within minutes, and is started \
                     again after pauses: the log of the host's kernel may name the cause",
                    ends.times
                )),
                None => None,
            }
        };
        bridges.iter().filter_map(describe).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: &str = "bth-00004d";

    fn bridges() -> BTreeMap<String, String> {
        BTreeMap::from([("ns/lan".to_owned(), BRIDGE.to_owned())])
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_ends_again_and_again_is_started_after_longer_and_longer_pauses() {
        let servers = Servers::default();
        let seconds = |pause: Duration| pause.as_secs();
        assert_eq!(seconds(servers.ended(BRIDGE)), 0);
        assert_eq!(seconds(servers.ended(BRIDGE)), 2);
        assert!(servers.failing(&bridges()).is_empty());
        assert_eq!(seconds(servers.ended(BRIDGE)), 4);
        assert!(servers.failing(&bridges())[0].contains("Network ns/lan"));
        for _ in 0..8 {
            servers.ended(BRIDGE);
        }
        assert_eq!(seconds(servers.ended(BRIDGE)), 60);
        assert_eq!(seconds(servers.ended("bth-000050")), 0, "each has its own");
        tokio::time::advance(STEADY).await;
        assert!(servers.failing(&bridges()).is_empty());
        assert_eq!(seconds(servers.ended(BRIDGE)), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_cannot_be_started_again_is_named_with_the_cause() {
        let servers = Servers::default();
        servers.ended(BRIDGE);
        assert!(servers.started(BRIDGE, Some("port 53 is in use".to_owned())));
        assert!(servers.failing(&bridges())[0].ends_with("cannot be started again: port 53 is in use"));
        tokio::time::advance(STEADY).await;
        servers.ended("bth-000050");
        assert_eq!(servers.failing(&bridges()).len(), 1, "as long as it does not run");
        assert!(servers.started(BRIDGE, None));
        assert!(servers.failing(&bridges()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_that_could_not_be_made_is_named_until_it_is_or_is_not_wanted() {
        let servers = Servers::default();
        assert!(!servers.started(BRIDGE, None), "nothing to report");
        let problem = || Some("dnsmasq failed: port 53 is in use".to_owned());
        assert!(servers.started(BRIDGE, problem()));
        assert!(!servers.started(BRIDGE, problem()), "as before");
        let text = servers.failing(&bridges()).remove(0);
        assert!(
            text.starts_with("Network ns/lan is not served: dnsmasq failed: port 53 is in use:"),
            "{text}"
        );
        tokio::time::advance(STEADY).await;
        assert_eq!(servers.failing(&bridges()).len(), 1, "as long as it is so");
        assert!(servers.started(BRIDGE, None));
        assert!(servers.failing(&bridges()).is_empty() && servers.ends().is_empty());
        servers.started(BRIDGE, problem());
        assert!(servers.forget(BRIDGE));
        assert!(servers.failing(&bridges()).is_empty());
    }
}
