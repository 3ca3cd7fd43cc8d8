//! The order in which VMs are started after their host has booted.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_api::condition::is_true;
use berth_api::gates::power_on_gate;
use berth_api::{ConditionType, Power, VM};
use jiff::{SignedDuration, Timestamp};

use crate::group_turn::{self, GroupTurn};
use crate::index::{Tables, instance_of};

/// How long VMs of one order that do not start hold back those of a higher one.
const HELD_AT_MOST: SignedDuration = SignedDuration::from_secs(300);
/// How often a VM that is held back looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The order of a VM without one.
pub(crate) const LAST: i64 = i64::MAX;

/// The longest delay of a VM, in seconds.
const LONGEST_DELAY: i64 = 3600;

/// Returns the order of a VM.
pub(crate) fn of(vm: &VM) -> i64 {
    vm.spec.start_order.unwrap_or(LAST)
}

/// Returns the other VMs of the host that are started after a boot. `started`: when the QEMU of an instance was started, if it
/// runs.
pub(crate) fn others(tables: &Tables, vm: &VM, started: impl Fn(&str) -> Option<Timestamp>) -> Vec<Other> {
    let others = tables.vms.all().map(|(_, other)| other).filter(|other| {
        other.metadata.uid != vm.metadata.uid
            && of(other) < of(vm)
            && is_started_by_itself(other)
            && group_turn::of(tables, other) == GroupTurn::Free
    });
    let other = |other: &VM| Other {
        order: of(other),
        started: instance_of(other).and_then(&started),
        delay_seconds: other.spec.start_delay_seconds,
    };
    others.map(|vm| other(vm)).collect()
}

/// Whether a VM ran before and is started again without a person.
fn is_started_by_itself(vm: &VM) -> bool {
    let has_run = vm.status.as_ref().is_some_and(|status| status.hardware.is_some());
    let is_stalled =
        vm.status.as_ref().is_some_and(|status| is_true(&status.conditions, ConditionType::Stalled));
    let is_wanted = matches!(vm.spec.power, Power::Running | Power::Paused)
        && vm.metadata.deletion_timestamp.is_none()
        && power_on_gate(vm).is_none();
    has_run && is_wanted && !is_stalled
}

/// Another VM of the host that is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) order: i64,
    /// When its QEMU was started; None: it has none.
    pub(crate) started: Option<Timestamp>,
    pub(crate) delay_seconds: i64,
}

/// Why a VM is not started yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The order of the VMs that it waits for.
    pub(crate) behind: i64,
    pub(crate) look_again: Duration,
}

/// The order whose VMs are being started, and since when.
///
/// *Guarantees:* VMs of one order hold back others for [`HELD_AT_MOST`] and their delay at most, whatever the clock does.
#[derive(Debug, Default)]
pub(crate) struct StartOrder(Mutex<Option<(i64, Timestamp)>>);

impl StartOrder {
    /// Returns what holds back a VM of this order.
    pub(crate) fn held(&self, order: i64, others: &[Other], now: Timestamp) -> Option<Held> {
        let mut before: Vec<&Other> = others.iter().filter(|other| other.order < order).collect();
        before.sort_by_key(|other| other.order);
        for other in before {
            match other.started {
                None if self.is_waited_for(other.order, now) => {
                    return Some(Held { behind: other.order, look_again: LOOK_AGAIN });
                }
                None => {}
                Some(started) => {
                    let left = left(started, other.delay_seconds, now);
                    if !left.is_zero() {
                        return Some(Held { behind: other.order, look_again: left.min(LOOK_AGAIN * 10) });
                    }
                }
            }
        }
        None
    }

    /// Whether VMs of this order, which have not started, still hold back others.
    fn is_waited_for(&self, order: i64, now: Timestamp) -> bool {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *current {
            Some((of, since)) if *of == order => {
                // The clock may have been set back.
                *since = (*since).min(now);
                now.duration_since(*since) < HELD_AT_MOST
            }
            // VMs of a lower order have started, or were given up, since.
            Some((of, _)) if *of < order => {
                *current = Some((order, now));
                true
            }
            // It was given up before.
            Some(_) => false,
            None => {
                *current = Some((order, now));
                true
            }
        }
    }
}

/// Returns the time until a delay is over; none if the clock was set back since.
fn left(started: Timestamp, delay_seconds: i64, now: Timestamp) -> Duration {
    let passed = now.duration_since(started);
    let delay = SignedDuration::from_secs(delay_seconds.clamp(0, LONGEST_DELAY));
    if passed.is_negative() { Duration::ZERO } else { Duration::try_from(delay - passed).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("small")
    }

    fn off(order: i64) -> Other {
        Other { order, started: None, delay_seconds: 0 }
    }

    fn on(order: i64, second: i64, delay_seconds: i64) -> Other {
        Other { order, started: Some(at(second)), delay_seconds }
    }

    fn behind(held: Option<Held>) -> Option<i64> {
        held.map(|held| held.behind)
    }

    #[test]
    fn a_vm_waits_for_those_of_a_lower_order_and_their_delay_and_for_no_other() {
        let orders = StartOrder::default();
        let now = at(1000);
        assert_eq!(behind(orders.held(2, &[off(1), off(2), off(3)], now)), Some(1));
        assert_eq!(orders.held(1, &[off(1), off(2)], now), None);
        assert_eq!(behind(orders.held(LAST, &[on(1, 900, 0), off(2)], now)), Some(2));
        assert_eq!(orders.held(LAST, &[on(1, 900, 0), off(LAST)], now), None);
        let delayed = orders.held(2, &[on(1, 990, 15)], now).expect("held");
        assert_eq!((delayed.behind, delayed.look_again), (1, Duration::from_secs(5)));
        assert_eq!(orders.held(2, &[on(1, 990, 15)], at(1005)), None);
        assert_eq!(orders.held(2, &[on(1, 990, -5)], now), None);
        assert_eq!(orders.held(2, &[on(1, 5000, 15)], now), None, "the clock was set back");
    }

    #[test]
    fn a_clock_that_was_set_back_holds_back_no_vm_for_longer() {
        let orders = StartOrder::default();
        assert_eq!(behind(orders.held(2, &[off(1)], at(7200))), Some(1));
        assert_eq!(behind(orders.held(2, &[off(1)], at(100))), Some(1));
        assert_eq!(orders.held(2, &[off(1)], at(400)), None);
    }

    #[test]
    fn a_vm_waits_only_for_those_that_are_started_without_a_person() {
        let index = Index::default();
        let vm = |name: &str, spec: serde_json::Value, status: serde_json::Value| -> VM {
            let mut vm = json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name},
                "spec": {"disks": [{"name": name, "boot": true}], "startOrder": 1},
                "status": {"instanceID": format!("i-{name}"), "hardware": {"cpus": 1, "memory": "1Gi", "firmware": "BIOS",
                    "machineType": "q35", "cpuModel": "max", "accelerator": "tcg", "uuid": "u"}},
            });
            for (part, change) in [("spec", spec), ("status", status)] {
                change.as_object().into_iter().flatten().for_each(|(k, v)| vm[part][k] = v.clone());
            }
            serde_json::from_value(vm).expect("a VM")
        };
        let stalled = json!([{"type": "Stalled", "status": "True", "reason": "GuestEnded", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let all = [
            vm("waits", json!({}), json!({})),
            vm("runs", json!({"startDelaySeconds": 9}), json!({})),
            vm("same", json!({"startOrder": 5}), json!({})),
            vm("later", json!({"startOrder": null}), json!({})),
            vm("off", json!({"power": "Stopped"}), json!({})),
            vm("new", json!({}), json!({"hardware": null})),
            vm("ended", json!({}), json!({"conditions": stalled})),
        ];
        all.into_iter().for_each(|vm| drop(index.apply(Event::Apply(vm))));
        let web = vm("web", json!({"startOrder": 5}), json!({}));
        let started = |instance: &str| (instance == "i-runs").then(|| at(7));
        let mut found = others(&index.read(), &web, started);
        found.sort_by_key(|other| other.started);
        assert_eq!(found, [off(1), on(1, 7, 9)]);
    }

    #[test]
    fn a_vm_that_does_not_start_holds_back_the_others_for_five_minutes_once() {
        let orders = StartOrder::default();
        let others = [off(1), off(2)];
        assert_eq!(behind(orders.held(3, &others, at(0))), Some(1));
        assert_eq!(behind(orders.held(3, &others, at(299))), Some(1));
        assert_eq!(orders.held(2, &others, at(300)), None, "1 is given up");
        assert_eq!(behind(orders.held(3, &others, at(300))), Some(2), "2 has 5 minutes of its own");
        assert_eq!(behind(orders.held(3, &others, at(599))), Some(2));
        assert_eq!(orders.held(3, &others, at(600)), None);
        assert_eq!(orders.held(3, &others, at(601)), None, "1 is not waited for again");
    }
}
