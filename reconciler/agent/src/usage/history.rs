//! The use of a host and its VMs over the last hour: a reading each minute, in rings of a fixed size. Pure.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Usage, VmUsage};

/// The most readings of a host, or of a VM: those of an hour, and the one before.
const MOST_POINTS: usize = 61;
/// How long a VM that no longer runs is kept, in seconds.
const KEPT: i64 = 3600;

/// Readings of a host and its VMs, the oldest first. Counters count from the start of the machine that they belong to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct History {
    /// The Host. Empty before the first reading.
    pub host: String,
    /// Readings of the whole machine.
    pub points: VecDeque<HostPoint>,
    /// Sorted by namespace and name.
    pub vms: Vec<VmHistory>,
}

/// A reading of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPoint {
    /// When it was read.
    pub time: Timestamp,
    /// Time that its processors worked, in seconds.
    pub cpu_busy_seconds: f64,
    /// Time that they did not, or could not, in seconds.
    pub cpu_other_seconds: f64,
    /// Memory that programs cannot get.
    pub memory_used_bytes: u64,
}

/// The readings of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmHistory {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its readings, the oldest first.
    pub points: VecDeque<VmPoint>,
}

/// A reading of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmPoint {
    /// When it was read.
    pub time: Timestamp,
    /// Time on the host's processors, in seconds.
    pub cpu_seconds: f64,
    /// Memory of the host.
    pub resident_bytes: u64,
    /// Of all disks.
    pub read_bytes: u64,
    /// Of all disks.
    pub written_bytes: u64,
    /// Of all interfaces, as the guest sees it.
    pub received_bytes: u64,
    /// Of all interfaces, as the guest sees it.
    pub sent_bytes: u64,
}

impl VmPoint {
    fn of(vm: &VmUsage, time: Timestamp) -> Self {
        Self {
            time,
            cpu_seconds: vm.process.cpu_seconds,
            resident_bytes: vm.process.resident_bytes,
            read_bytes: vm.disks.iter().map(|disk| disk.read.bytes).sum(),
            written_bytes: vm.disks.iter().map(|disk| disk.write.bytes).sum(),
            received_bytes: vm.interfaces.iter().map(|(_, interface)| interface.received_bytes).sum(),
            sent_bytes: vm.interfaces.iter().map(|(_, interface)| interface.sent_bytes).sum(),
        }
    }
}

impl History {
    /// Adds a reading. Those of a later time, from before the clock was set back, are dropped.
    pub(crate) fn add(&mut self, usage: &Usage) {
        let time = usage.time;
        self.host.clone_from(&usage.host);
        let machine = &usage.machine;
        let point = HostPoint {
            time,
            cpu_busy_seconds: machine.cpu_busy_seconds,
            cpu_other_seconds: machine.cpu_idle_seconds + machine.cpu_steal_seconds,
            memory_used_bytes: machine.memory_bytes.saturating_sub(machine.memory_available_bytes),
        };
        self.points.retain(|point| point.time < time);
        push(&mut self.points, point);
        for vm in &usage.vms {
            let key = (vm.namespace.as_str(), vm.name.as_str());
            let found =
                self.vms.binary_search_by(|has| (has.namespace.as_str(), has.name.as_str()).cmp(&key));
            let index = found.unwrap_or_else(|index| {
                let (namespace, name) = (vm.namespace.clone(), vm.name.clone());
                self.vms.insert(index, VmHistory { namespace, name, points: VecDeque::new() });
                index
            });
            let points = &mut self.vms[index].points;
            points.retain(|point| point.time < time);
            push(points, VmPoint::of(vm, time));
        }
        let is_recent = |point: &VmPoint| (0..=KEPT).contains(&time.duration_since(point.time).as_secs());
        self.vms.retain(|vm| vm.points.back().is_some_and(is_recent));
    }
}

fn push<T>(points: &mut VecDeque<T>, point: T) {
    while points.len() >= MOST_POINTS {
        points.pop_front();
    }
    points.push_back(point);
}

#[cfg(test)]
mod tests {
    use berth_host::{HostUse, MachineUse};

    use super::*;

    fn usage(minute: i64, vms: &[&str]) -> Usage {
        let vm = |name: &&str| VmUsage {
            namespace: "ns".to_owned(),
            name: (*name).to_owned(),
            cpus: 1,
            memory_bytes: 1 << 30,
            restarts: 0,
            guest_memory: None,
            ballooned_bytes: 0,
            process: MachineUse::default(),
            interfaces: Vec::new(),
            disks: Vec::new(),
        };
        Usage {
            host: "h1".to_owned(),
            time: Timestamp::from_second(minute * 60).expect("a time"),
            machine: HostUse::default(),
            vms: vms.iter().map(vm).collect(),
            pools: Vec::new(),
        }
    }

    fn lengths(history: &History) -> Vec<(&str, usize)> {
        history.vms.iter().map(|vm| (vm.name.as_str(), vm.points.len())).collect()
    }

    #[test]
    fn a_history_has_a_fixed_size_and_forgets_vms_that_are_gone_for_an_hour() {
        let mut history = History::default();
        for minute in 0..200 {
            history.add(&usage(minute, &["b", "a"]));
        }
        assert_eq!((history.points.len(), lengths(&history)), (61, vec![("a", 61), ("b", 61)]));
        for minute in 200..259 {
            history.add(&usage(minute, &["b"]));
        }
        assert_eq!(lengths(&history), [("a", 61), ("b", 61)]);
        for minute in 259..262 {
            history.add(&usage(minute, &["b"]));
        }
        assert_eq!(lengths(&history), [("b", 61)]);
    }

    #[test]
    fn a_clock_that_is_set_back_drops_what_is_later() {
        let mut history = History::default();
        for minute in 100..110 {
            history.add(&usage(minute, &["a"]));
        }
        history.add(&usage(104, &["a"]));
        assert_eq!((history.points.len(), lengths(&history)), (5, vec![("a", 5)]));
        history.add(&usage(50, &[]));
        assert_eq!((history.points.len(), lengths(&history)), (1, Vec::new()));
    }
}
