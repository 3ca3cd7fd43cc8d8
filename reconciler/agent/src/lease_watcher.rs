//! Finds guests that were just started by their DHCP leases: one read of a bridge's leases serves all guests waiting
//! there, instead of a query per machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::VM;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;

use crate::key::{Key, ObjectName};
use berth_engine::{Clock, Queue};
use berth_host::{LeaseTaken, System};

/// Interval between two reads of the leases.
const READ_EVERY: Duration = Duration::from_secs(1);
/// After this time, a guest is only looked for by the periodic reconcile of its VM.
const WATCH_FOR: SignedDuration = SignedDuration::from_secs(300);

/// An interface with an address that the guest has not requested yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingLease {
    pub(crate) bridge: String,
    pub(crate) mac: String,
    /// Start time of the machine: an earlier lease belongs to a previous run.
    pub(crate) since: Timestamp,
}

impl PendingLease {
    /// Whether this lease was taken by this interface's guest.
    pub(crate) fn is_found(&self, lease: &LeaseTaken) -> bool {
        // DHCP servers record whole seconds.
        lease.mac.eq_ignore_ascii_case(&self.mac) && lease.taken_at.as_second() >= self.since.as_second()
    }

    /// Whether the machine was started recently enough to wait for its lease.
    pub(crate) fn is_young(&self, now: Timestamp) -> bool {
        now.duration_since(self.since) < WATCH_FOR
    }
}

/// Watches for the first lease of each guest that was just started.
#[derive(Debug)]
pub(crate) struct LeaseWatcher {
    system: Arc<dyn System>,
    queue: Arc<Queue<Key>>,
    clock: Arc<dyn Clock>,
    pending: Mutex<BTreeMap<ObjectName, Vec<PendingLease>>>,
    changed: Notify,
}

impl LeaseWatcher {
    fn pending(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Vec<PendingLease>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>, clock: Arc<dyn Clock>) -> Self {
        Self { system, queue, clock, pending: Mutex::default(), changed: Notify::new() }
    }

    /// Watches for the leases of exactly these interfaces of a VM from now on; an empty list ends the watch.
    pub(crate) fn watch(&self, vm: &ObjectName, interfaces: Vec<PendingLease>) {
        if interfaces.is_empty() {
            self.pending().remove(vm);
        } else {
            self.pending().insert(vm.clone(), interfaces);
            self.changed.notify_one();
        }
    }

    /// Whether the leases of exactly these interfaces are watched for, whatever the start of their machine.
    pub(crate) fn is_watching(&self, vm: &ObjectName, interfaces: &[PendingLease]) -> bool {
        let pending = self.pending();
        let watched = pending.get(vm).map(Vec::as_slice).unwrap_or_default();
        let is_same = |(a, b): (&PendingLease, &PendingLease)| a.bridge == b.bridge && a.mac == b.mac;
        watched.len() == interfaces.len() && watched.iter().zip(interfaces).all(is_same)
    }

    /// Enqueues VMs once their guests have taken a lease. Never returns.
    pub(crate) async fn run(&self) {
        loop {
            for bridge in self.bridges(|| self.clock.now()).await {
                match self.system.leases_taken(&bridge).await {
                    Ok(leases) => {
                        let found = self.found(&bridge, &leases);
                        found.into_iter().for_each(|name| self.queue.add(Key::new::<VM>(name)));
                    }
                    Err(error) => tracing::debug!(error = error.chain(), bridge, "leases cannot be read"),
                }
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// Waits until there is a guest to look for, then returns the bridges to read.
    async fn bridges(&self, now: impl Fn() -> Timestamp) -> BTreeSet<String> {
        loop {
            {
                let (mut pending, now) = (self.pending(), now());
                pending.retain(|_, interfaces| interfaces.iter().any(|one| one.is_young(now)));
                if !pending.is_empty() {
                    return pending.values().flatten().map(|one| one.bridge.clone()).collect();
                }
            }
            self.changed.notified().await;
        }
    }

    /// Returns the VMs that these leases belong to, and ends the search for them.
    fn found(&self, bridge: &str, leases: &[LeaseTaken]) -> Vec<ObjectName> {
        let is_found =
            |one: &PendingLease| one.bridge == bridge && leases.iter().any(|lease| one.is_found(lease));
        let mut pending = self.pending();
        let found = pending.iter().filter(|(_, interfaces)| interfaces.iter().any(is_found));
        let found: Vec<ObjectName> = found.map(|(name, _)| name.clone()).collect();
        found.iter().for_each(|name| drop(pending.remove(name)));
        found
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use berth_engine::RuntimeClock;
    use rand::{SeedableRng, rngs::StdRng};

    const FIRST_BACK_OFF: Duration = Duration::from_millis(250);
    use berth_host::fake::FakeSystem;

    fn watcher() -> LeaseWatcher {
        let clock = Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH));
        LeaseWatcher::new(
            Arc::new(FakeSystem::new(clock.clone())),
            Arc::new(Queue::new(FIRST_BACK_OFF, StdRng::seed_from_u64(1))),
            clock,
        )
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn pending(mac: &str, since: i64) -> PendingLease {
        PendingLease { bridge: "bth-1".into(), mac: mac.into(), since: at(since) }
    }

    fn lease(mac: &str, taken_at: i64) -> LeaseTaken {
        LeaseTaken { mac: mac.into(), address: Ipv4Addr::new(10, 0, 0, 2).into(), taken_at: at(taken_at) }
    }

    #[tokio::test]
    async fn a_guest_is_found_once_by_a_lease_of_this_run_on_its_own_bridge() {
        let (watcher, vm) = (watcher(), ObjectName::new("ns", "web"));
        watcher.watch(&vm, vec![pending("52:54:00:00:00:0A", 100)]);
        assert_eq!(watcher.bridges(|| at(100)).await, BTreeSet::from(["bth-1".to_owned()]));
        let found = |bridge, mac, taken_at| watcher.found(bridge, &[lease(mac, taken_at)]);
        assert!(found("bth-1", "52:54:00:00:00:0b", 101).is_empty(), "another's");
        assert!(found("bth-1", "52:54:00:00:00:0a", 99).is_empty(), "of the run before");
        assert!(found("bth-2", "52:54:00:00:00:0a", 101).is_empty(), "on another network");
        assert_eq!(found("bth-1", "52:54:00:00:00:0a", 100), [vm]);
        assert!(found("bth-1", "52:54:00:00:00:0a", 101).is_empty(), "found already");
    }

    #[tokio::test]
    async fn the_watch_for_a_guest_that_takes_no_lease_ends() {
        let (watcher, vm) = (watcher(), ObjectName::new("ns", "web"));
        watcher.watch(&vm, vec![pending("52:54:00:00:00:0a", 100)]);
        let waits = async |now: i64| {
            let bridges = watcher.bridges(|| at(now));
            tokio::select! { biased; _ = bridges => false, () = tokio::task::yield_now() => true }
        };
        assert!(!waits(399).await);
        assert!(waits(400).await);
        watcher.watch(&vm, vec![pending("52:54:00:00:00:0a", 390)]);
        assert!(!waits(400).await, "it was started again");
        watcher.watch(&vm, Vec::new());
        assert!(waits(400).await, "it was seen by other means");
    }
}
