//! Recoveries: after a restore the control plane may not know what hosts hold. An administrator opens a recovery for
//! each host; until the hosts have reported, nothing is placed that one of them may already hold.
//!
//! ```text
//! opened ──▶ Awaited: it is alive, and its inventory is pending      holds back every placement
//!    │          │ silent, or no inventory for five minutes
//!    │          ▼
//!    │       Absent: its objects are unknown                         holds back what was created before the recovery
//!    └──────▶ Reported: what it holds is given back, then closed     holds back nothing
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_api::Host;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

/// How long all placement waits for the inventory of a living host.
const PATIENCE: Duration = Duration::from_secs(300);

/// The standing of a host in a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryState {
    Awaited,
    Absent,
    Reported,
}

/// When this process first saw each host in its recovery, by the local clock.
#[derive(Debug, Default)]
pub(crate) struct Recoveries {
    seen: BTreeMap<String, Instant>,
    /// The hosts with an overdue inventory.
    overdue: BTreeSet<String>,
}

/// Returns when the host's recovery was opened, if it is in one.
pub(crate) fn since(host: &Host) -> Option<Timestamp> {
    host.spec.recovery.as_ref().filter(|_| !host.spec.fenced).map(|recovery| recovery.since)
}

/// Whether a host in a recovery has reported an inventory since it was opened, complete or not.
pub(crate) fn has_reported(host: &Host) -> bool {
    let generation = host.metadata.generation.unwrap_or_default();
    let reported = |s: &berth_api::HostStatus| s.inventory.is_some() && s.observed_generation >= generation;
    since(host).is_some() && host.status.as_ref().is_some_and(reported)
}

impl Recoveries {
    /// Records a host (`None`: gone).
    pub(crate) fn set(&mut self, name: &str, host: Option<&Host>, now: Instant) {
        if host.and_then(since).is_some() {
            self.seen.entry(name.to_owned()).or_insert(now);
        } else {
            self.seen.remove(name);
            self.overdue.remove(name);
        }
    }

    /// Returns the hosts in a recovery.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &String> {
        self.seen.keys()
    }

    /// Returns this host's standing; `None` if it is in no recovery.
    pub(crate) fn state(&self, host: &Host, is_alive: bool) -> Option<RecoveryState> {
        since(host)?;
        let complete = host.status.as_ref().and_then(|s| s.inventory.as_ref()).is_some_and(|i| i.complete);
        let overdue = host.metadata.name.as_ref().is_some_and(|name| self.overdue.contains(name));
        Some(match (has_reported(host) && complete, is_alive && !overdue) {
            (true, _) => RecoveryState::Reported,
            (false, true) => RecoveryState::Awaited,
            (false, false) => RecoveryState::Absent,
        })
    }

    /// Returns the hosts with an inventory that has become overdue by now.
    pub(crate) fn changes(&mut self, now: Instant) -> Vec<String> {
        let is_late = |at: &Instant| now.duration_since(*at) >= PATIENCE;
        let late = self.seen.iter().filter(|(name, at)| is_late(at) && !self.overdue.contains(*name));
        let late: Vec<String> = late.map(|(name, _)| name.clone()).collect();
        self.overdue.extend(late.iter().cloned());
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn host(generation: i64, seen: i64, inventory: serde_json::Value) -> Host {
        let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host",
            "metadata": {"name": "h1", "generation": generation}, "spec": {"recovery": {"since": "2026-01-01T00:00:00Z"}},
            "status": {"observedGeneration": seen, "inventory": inventory}});
        serde_json::from_value(host).expect("a host")
    }

    #[test]
    fn a_host_is_awaited_while_it_lives_and_not_for_ever() {
        let start = Instant::now();
        let mut recoveries = Recoveries::default();
        let old = host(2, 1, json!({"complete": true}));
        recoveries.set("h1", Some(&old), start);
        assert_eq!(recoveries.state(&old, true), Some(RecoveryState::Awaited), "its report is from before");
        assert_eq!(recoveries.state(&old, false), Some(RecoveryState::Absent));
        let some = host(2, 2, json!({"complete": false}));
        assert_eq!(recoveries.state(&some, true), Some(RecoveryState::Awaited));
        let all = host(2, 2, json!({"complete": true}));
        assert_eq!(recoveries.state(&all, true), Some(RecoveryState::Reported));
        assert!(recoveries.changes(start + PATIENCE - Duration::from_secs(1)).is_empty());
        assert_eq!(recoveries.changes(start + PATIENCE), ["h1"]);
        assert!(recoveries.changes(start + PATIENCE).is_empty(), "once");
        assert_eq!(recoveries.state(&some, true), Some(RecoveryState::Absent), "it withholds its inventory");
        assert_eq!(recoveries.state(&all, true), Some(RecoveryState::Reported));
        let mut closed = all.clone();
        closed.spec.recovery = None;
        assert_eq!(recoveries.state(&closed, true), None);
    }
}
