//! The shutdown of the host: its guests are stopped before, in the reverse order of their starts.
//!
//! ```text
//!            stop                 the group has ended, or was waited for long enough
//!  (guests run) ─▶ no group yet ─▶ those without an order ─▶ the highest order ─▶ … ─▶ the lowest
//!       ▲                                                                                │
//!       └──────────────────────── start, or the next boot ──────────────────────────────┘
//! ```
//!
//! Plain data and a decision. It must not know how a guest is stopped: the reconcile of its VM does that, as in a drain. Nothing of it
//! is written anywhere, so that after a boot everything is started as declared.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// The lowest order: its group is the last one, and with it all are stopped.
const FIRST: i64 = i64::MIN;

/// How the guests of a host that is shut down are stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtShutdown {
    /// They are asked to shut down, as by `stop` of their VMs.
    #[default]
    Stop,
    /// Their memory is saved, and they go on after the boot. Those for which that is not possible are asked to shut down.
    Suspend,
}

/// The guests of a host, as far as its shutdown goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestsLeft {
    /// Whether guests are being stopped.
    pub under_way: bool,
    /// Whether the agent looks after guests yet: it waits for its control plane when it starts.
    pub is_working: bool,
    /// `namespace/name` of the VMs that have a QEMU, those that end first in front.
    pub vms: Vec<String>,
}

/// Whether the host is being shut down. The agent and whatever asks it for that share one.
#[derive(Debug)]
pub struct HostShutdown(watch::Sender<Option<Stopping>>);

impl Default for HostShutdown {
    fn default() -> Self {
        Self(watch::channel(None).0)
    }
}

impl HostShutdown {
    /// Has the guests stopped, and no guest started any more. One that is under way goes on from where it is.
    pub fn stop(&self, how: AtShutdown) {
        self.0.send_if_modified(|current| {
            let before = *current;
            *current = Some(Stopping { how, ..before.unwrap_or(Stopping::BEGUN) });
            *current != before
        });
    }

    /// Has those that are left stopped at once, whatever their order.
    pub fn hurry(&self) {
        self.0.send_if_modified(|current| {
            current.as_mut().is_some_and(|stopping| stopping.group.replace(FIRST) != Some(FIRST))
        });
    }

    /// Has the guests started again, as declared.
    pub fn start(&self) {
        self.0.send_if_modified(|current| current.take().is_some());
    }

    pub(crate) fn current(&self) -> Option<Stopping> {
        *self.0.borrow()
    }

    pub(crate) async fn begun(&self) {
        // The sender is in `self`, so it cannot be dropped.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }

    /// Goes on to the next group if it is due. Returns the state if it has changed.
    pub(crate) fn advance(&self, running: &[RunningVm], now: Timestamp) -> Option<Stopping> {
        let mut changed = None;
        self.0.send_if_modified(|current| {
            let next = current.map(|stopping| stopping.next(running, now));
            changed = next.filter(|_| next != *current);
            *current = next;
            changed.is_some()
        });
        changed
    }
}

/// A shutdown that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopping {
    pub(crate) how: AtShutdown,
    /// The order of the VMs that are being stopped; those with a higher one were before. None: no VM is yet.
    group: Option<i64>,
    since: Timestamp,
}

/// A VM with a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunningVm {
    pub(crate) order: i64,
    /// How long others wait for its end.
    pub(crate) patience: SignedDuration,
}

impl Stopping {
    const BEGUN: Self = Self { how: AtShutdown::Stop, group: None, since: Timestamp::UNIX_EPOCH };

    /// Whether a VM of this order is to be off.
    pub(crate) fn includes(self, order: i64) -> bool {
        self.group.is_some_and(|group| order >= group)
    }

    /// Returns the state with the next group, if all of the present one have ended or were waited for long enough.
    fn next(self, running: &[RunningVm], now: Timestamp) -> Self {
        // The clock may have been set back.
        let stopping = Self { since: self.since.min(now), ..self };
        let waited = now.duration_since(stopping.since);
        let is_awaited = |vm: &RunningVm| Some(vm.order) == self.group && waited < vm.patience;
        if running.iter().any(is_awaited) {
            return stopping;
        }
        match running.iter().map(|vm| vm.order).filter(|order| !self.includes(*order)).max() {
            Some(order) => Self { group: Some(order), since: now, ..self },
            None => stopping,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of a VM without one.
    const LAST: i64 = i64::MAX;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("small")
    }

    fn vm(order: i64, patience: i64) -> RunningVm {
        RunningVm { order, patience: SignedDuration::from_secs(patience) }
    }

    /// Advances, and returns the group.
    fn group(shutdown: &HostShutdown, running: &[RunningVm], second: i64) -> Option<i64> {
        let _ = shutdown.advance(running, at(second));
        shutdown.current().and_then(|stopping| stopping.group)
    }

    #[test]
    fn the_vms_that_start_last_are_stopped_first_and_each_group_waits_for_the_one_before() {
        let shutdown = HostShutdown::default();
        let (database, web, rest) = (vm(1, 90), vm(2, 90), vm(LAST, 90));
        assert_eq!(shutdown.advance(&[rest], at(0)), None, "nothing was asked for");
        shutdown.stop(AtShutdown::Stop);
        assert!(!shutdown.current().expect("begun").includes(LAST), "no VM before the first look");
        assert_eq!(group(&shutdown, &[database, web, rest, rest], 0), Some(LAST));
        assert_eq!(group(&shutdown, &[database, web, rest], 9), Some(LAST));
        assert_eq!(group(&shutdown, &[database, web], 10), Some(2));
        assert!(shutdown.current().is_some_and(|s| s.includes(LAST) && s.includes(2) && !s.includes(1)));
        assert_eq!(group(&shutdown, &[database], 11), Some(1));
        assert_eq!(group(&shutdown, &[], 12), Some(1));
        shutdown.start();
        assert_eq!(shutdown.current(), None);
    }

    #[test]
    fn a_vm_that_does_not_end_holds_back_the_others_for_its_patience_once() {
        let shutdown = HostShutdown::default();
        shutdown.stop(AtShutdown::Stop);
        let (hangs, web, database) = (vm(3, 100), vm(2, 50), vm(1, 50));
        assert_eq!(group(&shutdown, &[hangs, web, database], 0), Some(3));
        assert_eq!(group(&shutdown, &[hangs, web, database], 99), Some(3));
        assert_eq!(group(&shutdown, &[hangs, web, database], 100), Some(2));
        assert_eq!(group(&shutdown, &[hangs, database], 101), Some(1), "it is not waited for again");
    }

    #[test]
    fn a_clock_that_was_set_back_holds_back_no_group_for_longer() {
        let shutdown = HostShutdown::default();
        shutdown.stop(AtShutdown::Stop);
        let running = [vm(3, 100), vm(2, 50)];
        assert_eq!(group(&shutdown, &running, 7200), Some(3));
        assert_eq!(group(&shutdown, &running, 10), Some(3));
        assert_eq!(group(&shutdown, &running, 110), Some(2));
    }

    #[test]
    fn in_a_hurry_no_group_waits_for_another() {
        let shutdown = HostShutdown::default();
        shutdown.hurry();
        assert_eq!(shutdown.current(), None, "nothing was asked for");
        shutdown.stop(AtShutdown::Stop);
        let running = [vm(3, 100), vm(1, 50)];
        assert_eq!(group(&shutdown, &running, 0), Some(3));
        shutdown.hurry();
        shutdown.stop(AtShutdown::Stop);
        assert_eq!(group(&shutdown, &running, 1), Some(FIRST));
        assert!(shutdown.current().is_some_and(|stopping| stopping.includes(1)));
    }

    #[test]
    fn a_second_request_goes_on_from_where_the_first_is() {
        let shutdown = HostShutdown::default();
        shutdown.stop(AtShutdown::Suspend);
        let _ = group(&shutdown, &[vm(5, 60)], 0);
        shutdown.stop(AtShutdown::Stop);
        let now = shutdown.current().expect("under way");
        assert!(now.includes(5) && now.how == AtShutdown::Stop);
    }
}
