//! Guests that were just started and are looked for: one look at a network's leases for all that wait there, instead of
//! a look at each machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;

use crate::context::Context;
use crate::queue::{Key, ObjectName};
use crate::system::LeaseTaken;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Who was not seen by then is only looked for with the rest of its VM.
const LOOK_FOR: SignedDuration = SignedDuration::from_secs(300);

/// An interface whose guest has not asked for its address yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sought {
    pub(crate) bridge: String,
    pub(crate) mac: String,
    /// When the machine was started: a lease from before is of another run.
    pub(crate) since: Timestamp,
}

impl Sought {
    /// Whether this lease is its guest's.
    pub(crate) fn is_found(&self, lease: &LeaseTaken) -> bool {
        // DHCP servers count in whole seconds.
        lease.mac.eq_ignore_ascii_case(&self.mac) && lease.taken_at.as_second() >= self.since.as_second()
    }

    fn is_young(&self, now: Timestamp) -> bool {
        now.duration_since(self.since) < LOOK_FOR
    }
}

/// Who is looked for.
#[derive(Debug, Default)]
pub(crate) struct Seekers {
    sought: Mutex<BTreeMap<ObjectName, Vec<Sought>>>,
    changed: Notify,
}

impl Seekers {
    fn sought(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Vec<Sought>>> {
        self.sought.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for the guest of this VM from now on, by these interfaces only; by none: it is not looked for.
    pub(crate) fn seek(&self, vm: &ObjectName, interfaces: Vec<Sought>) {
        if interfaces.is_empty() {
            self.sought().remove(vm);
        } else {
            self.sought().insert(vm.clone(), interfaces);
            self.changed.notify_one();
        }
    }

    /// The bridges there is somebody to look for on, once there is one.
    async fn bridges(&self, now: impl Fn() -> Timestamp) -> BTreeSet<String> {
        loop {
            {
                let (mut sought, now) = (self.sought(), now());
                sought.retain(|_, interfaces| interfaces.iter().any(|one| one.is_young(now)));
                if !sought.is_empty() {
                    return sought.values().flatten().map(|one| one.bridge.clone()).collect();
                }
            }
            self.changed.notified().await;
        }
    }

    /// The VMs whose guests have these leases. They are looked for no longer.
    fn found(&self, bridge: &str, leases: &[LeaseTaken]) -> Vec<ObjectName> {
        let is_found = |one: &Sought| one.bridge == bridge && leases.iter().any(|lease| one.is_found(lease));
        let mut sought = self.sought();
        let found = sought.iter().filter(|(_, interfaces)| interfaces.iter().any(is_found));
        let found: Vec<ObjectName> = found.map(|(name, _)| name.clone()).collect();
        found.iter().for_each(|name| drop(sought.remove(name)));
        found
    }
}

/// Wakes VMs whose guests have asked for their addresses. Never ends.
pub(crate) async fn watch(ctx: &Context) {
    loop {
        for bridge in ctx.seekers.bridges(|| ctx.now()).await {
            match ctx.system.leases_taken(&bridge).await {
                Ok(leases) => {
                    let found = ctx.seekers.found(&bridge, &leases);
                    found.into_iter().for_each(|name| ctx.queue.add(Key::Vm(name)));
                }
                Err(error) => tracing::debug!(error = error.chain(), bridge, "leases cannot be read"),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn sought(mac: &str, since: i64) -> Sought {
        Sought { bridge: "bth-1".into(), mac: mac.into(), since: at(since) }
    }

    fn lease(mac: &str, taken_at: i64) -> LeaseTaken {
        LeaseTaken { mac: mac.into(), address: Ipv4Addr::new(10, 0, 0, 2), taken_at: at(taken_at) }
    }

    #[tokio::test]
    async fn a_guest_is_found_once_by_a_lease_of_this_run_on_its_own_bridge() {
        let (seekers, vm) = (Seekers::default(), ObjectName::new("ns", "web"));
        seekers.seek(&vm, vec![sought("52:54:00:00:00:0A", 100)]);
        assert_eq!(seekers.bridges(|| at(100)).await, BTreeSet::from(["bth-1".to_owned()]));
        let found = |bridge, mac, taken_at| seekers.found(bridge, &[lease(mac, taken_at)]);
        assert!(found("bth-1", "52:54:00:00:00:0b", 101).is_empty(), "another's");
        assert!(found("bth-1", "52:54:00:00:00:0a", 99).is_empty(), "of the run before");
        assert!(found("bth-2", "52:54:00:00:00:0a", 101).is_empty(), "on another network");
        assert_eq!(found("bth-1", "52:54:00:00:00:0a", 100), [vm]);
        assert!(found("bth-1", "52:54:00:00:00:0a", 101).is_empty(), "found already");
    }

    #[tokio::test]
    async fn who_does_not_come_is_not_looked_for_for_ever() {
        let (seekers, vm) = (Seekers::default(), ObjectName::new("ns", "web"));
        seekers.seek(&vm, vec![sought("52:54:00:00:00:0a", 100)]);
        let waits = async |now: i64| {
            let bridges = seekers.bridges(|| at(now));
            tokio::select! { biased; _ = bridges => false, () = tokio::task::yield_now() => true }
        };
        assert!(!waits(399).await);
        assert!(waits(400).await);
        seekers.seek(&vm, vec![sought("52:54:00:00:00:0a", 390)]);
        assert!(!waits(400).await, "it was started again");
        seekers.seek(&vm, Vec::new());
        assert!(waits(400).await, "it was seen by other means");
    }
}
