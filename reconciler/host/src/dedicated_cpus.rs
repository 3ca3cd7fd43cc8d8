//! CPUs of a host for one machine alone: lists of CPUs, and the choice for a machine. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use berth_qemu::machine::MachineSpec;
use serde::{Deserialize, Serialize};

/// The maximum number of a CPU.
const MOST_CPU: u32 = 8191;

/// CPUs that a machine needs for itself, beside one for each of its virtual CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DedicatedRequest {
    /// Whether QEMU's other threads have a CPU of their own, too.
    pub isolate_emulator_thread: bool,
}

/// CPUs of the host that no other machine uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DedicatedCpus {
    /// The CPU for each virtual CPU, in the order of their numbers.
    pub vcpus: Vec<u32>,
    /// The CPU for QEMU's other threads. None: they run on those that machines share.
    pub emulator: Option<u32>,
    /// The NUMA node of all of them. None: they are of several.
    pub numa_node: Option<u32>,
    /// The NUMA node of the host for each one of a guest with several: `vcpus` are divided evenly among those of the guest, in their
    /// order. None: its CPUs are of several. Empty: the guest has one node.
    #[serde(default)]
    pub guest_nodes: Vec<Option<u32>>,
}

impl DedicatedCpus {
    /// Returns the NUMA node of the host for each one of the guest.
    pub(crate) fn host_nodes(&self) -> Vec<Option<u32>> {
        if self.guest_nodes.is_empty() { vec![self.numa_node] } else { self.guest_nodes.clone() }
    }

    /// Returns all of them.
    pub fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.vcpus.iter().copied().chain(self.emulator)
    }
}

/// The CPUs that a host has for single machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedicatedFacts {
    /// Those that are declared.
    pub cpus: BTreeSet<u32>,
    /// Those of them that no machine has.
    pub free: BTreeSet<u32>,
}

/// Parses a list of CPUs in the kernel's form: `2-7,12`. None: it is no such list.
pub fn parse_cpu_list(text: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if first > last || last > MOST_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Returns a list of CPUs in the kernel's form.
pub fn cpu_list(cpus: &BTreeSet<u32>) -> String {
    let mut text = String::new();
    let mut cpus = cpus.iter().copied().peekable();
    while let Some(first) = cpus.next() {
        let mut last = first;
        while let Some(next) = cpus.next_if_eq(&(last + 1)) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match last {
            _ if last == first => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}-{last}"),
        };
    }
    text
}

/// The CPUs of a guest that needs CPUs of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestCpus {
    pub(crate) vcpus: usize,
    /// The NUMA nodes that the guest sees, at least 1, among which they are divided evenly.
    pub(crate) numa_nodes: usize,
}

impl GuestCpus {
    pub(crate) fn of(machine: &MachineSpec) -> Self {
        Self { vcpus: machine.cpus.into(), numa_nodes: machine.numa_nodes.into() }
    }
}

/// Chooses CPUs for a machine with these virtual CPUs: of one NUMA node if one has enough, and of those the node with the fewest,
/// so that the others keep room for larger machines. A guest with several NUMA nodes gets those of each from one node, and of different ones if
/// it can. None: too few are free.
///
/// *Guarantees:* all of them are free ones, and each is chosen once.
pub(crate) fn choose(
    free: &BTreeSet<u32>,
    nodes: &BTreeMap<u32, BTreeSet<u32>>,
    guest: GuestCpus,
    request: DedicatedRequest,
) -> Option<DedicatedCpus> {
    let needed = guest.vcpus + usize::from(request.isolate_emulator_thread);
    if free.len() < needed {
        return None;
    }
    if guest.numa_nodes > 1 {
        return Some(choose_for_nodes(free, nodes, guest, request));
    }
    let counts = nodes.iter().map(|(node, cpus)| (free.intersection(cpus).count(), *node));
    let numa_node = counts.filter(|(count, _)| *count >= needed).min().map(|(_, node)| node);
    let mut cpus = by_node(free, nodes, numa_node);
    cpus.truncate(needed);
    let emulator = request.isolate_emulator_thread.then(|| cpus.pop()).flatten();
    Some(DedicatedCpus { vcpus: cpus, emulator, numa_node, guest_nodes: Vec::new() })
}

/// Chooses CPUs for a guest with several NUMA nodes, of which enough are free. Those of each of its nodes are of one node of the host that has
/// enough: of the nodes with the fewest of the guest's, the one with the fewest free CPUs.
fn choose_for_nodes(
    free: &BTreeSet<u32>,
    nodes: &BTreeMap<u32, BTreeSet<u32>>,
    guest: GuestCpus,
    request: DedicatedRequest,
) -> DedicatedCpus {
    let of_each = guest.vcpus / guest.numa_nodes;
    let mut free = free.clone();
    let mut vcpus = Vec::with_capacity(guest.vcpus);
    let mut guest_nodes: Vec<Option<u32>> = Vec::with_capacity(guest.numa_nodes);
    for _ in 0..guest.numa_nodes {
        let of_guest = |node: u32| guest_nodes.iter().filter(|other| **other == Some(node)).count();
        let counts = nodes.iter().map(|(node, cpus)| (*node, free.intersection(cpus).count()));
        let node = counts
            .filter(|(_, count)| *count >= of_each)
            .min_by_key(|(node, count)| (of_guest(*node), *count, *node))
            .map(|(node, _)| node);
        let mut chosen = by_node(&free, nodes, node);
        chosen.truncate(of_each);
        free.retain(|cpu| !chosen.contains(cpu));
        vcpus.extend(chosen);
        guest_nodes.push(node);
    }
    let first = guest_nodes.first().copied().flatten();
    let isolated = request.isolate_emulator_thread.then(|| by_node(&free, nodes, first));
    let emulator = isolated.and_then(|cpus| cpus.first().copied());
    let is_of = |node: &u32| {
        let mut all = vcpus.iter().copied().chain(emulator);
        nodes.get(node).is_some_and(|cpus| all.all(|cpu| cpus.contains(&cpu)))
    };
    DedicatedCpus { numa_node: first.filter(is_of), vcpus, emulator, guest_nodes }
}

/// Returns the free CPUs: those of the node `first`, then of as few nodes as possible, the one with the most first, and last those that no node
/// lists.
fn by_node(free: &BTreeSet<u32>, nodes: &BTreeMap<u32, BTreeSet<u32>>, first: Option<u32>) -> Vec<u32> {
    let of_node = |cpus: &BTreeSet<u32>| -> Vec<u32> { free.intersection(cpus).copied().collect() };
    let mut by_node: Vec<(u32, Vec<u32>)> = nodes.iter().map(|(node, cpus)| (*node, of_node(cpus))).collect();
    by_node.sort_by_key(|(node, cpus)| (Some(*node) != first, Reverse(cpus.len()), *node));
    let mut all: Vec<u32> = by_node.into_iter().flat_map(|(_, cpus)| cpus).collect();
    let others: Vec<u32> = free.iter().copied().filter(|cpu| !all.contains(cpu)).collect();
    all.extend(others);
    all
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn set(text: &str) -> BTreeSet<u32> {
        parse_cpu_list(text).expect("a list")
    }

    fn nodes(lists: &[&str]) -> BTreeMap<u32, BTreeSet<u32>> {
        (0..).zip(lists.iter().map(|list| set(list))).collect()
    }

    #[test]
    fn a_list_of_cpus_has_the_kernels_form() {
        assert_eq!(parse_cpu_list("2-4,7, 9\n"), Some([2, 3, 4, 7, 9].into()));
        assert_eq!(parse_cpu_list(""), Some(BTreeSet::new()));
        for bad in ["a", "3-", "-3", "4-2", "0-99999999", "1;2"] {
            assert_eq!(parse_cpu_list(bad), None, "{bad}");
        }
        assert_eq!(cpu_list(&[2, 3, 4, 7, 9, 10].into()), "2-4,7,9-10");
        assert_eq!(cpu_list(&BTreeSet::new()), "");
    }

    /// A guest with one node.
    fn guest(vcpus: usize) -> GuestCpus {
        GuestCpus { vcpus, numa_nodes: 1 }
    }

    fn chosen(vcpus: &[u32], emulator: Option<u32>, numa_node: Option<u32>) -> DedicatedCpus {
        DedicatedCpus { vcpus: vcpus.to_vec(), emulator, numa_node, guest_nodes: Vec::new() }
    }

    #[test]
    fn the_cpus_of_a_machine_are_of_one_node_that_keeps_the_others_free() {
        let nodes = nodes(&["0-7", "8-15"]);
        let plain = DedicatedRequest::default();
        let isolated = DedicatedRequest { isolate_emulator_thread: true };
        let choose = |free: &str, vcpus, request| choose(&set(free), &nodes, guest(vcpus), request);
        let smaller = choose("2-7,8-10", 3, plain);
        assert_eq!(smaller, Some(chosen(&[8, 9, 10], None, Some(1))), "the larger one stays free");
        assert_eq!(choose("2-7,8-10", 3, isolated), Some(chosen(&[2, 3, 4], Some(5), Some(0))));
        assert_eq!(
            choose("2-4,8-11", 5, plain),
            Some(chosen(&[8, 9, 10, 11, 2], None, None)),
            "of two nodes"
        );
        assert_eq!(choose("2-4,8-11", 8, plain), None);
        assert_eq!(choose("2", 1, isolated), None);
        let unknown = super::choose(&set("2,3"), &BTreeMap::new(), guest(2), plain);
        assert_eq!(unknown, Some(chosen(&[2, 3], None, None)));
    }

    #[test]
    fn each_numa_node_of_a_guest_has_cpus_of_one_node_of_the_host_if_one_has_enough() {
        let nodes = nodes(&["0-7", "8-15", "16-23"]);
        let two = GuestCpus { vcpus: 4, numa_nodes: 2 };
        let choose = |free: &str, isolate_emulator_thread| {
            let request = DedicatedRequest { isolate_emulator_thread };
            choose(&set(free), &nodes, two, request)
                .map(|c| (c.vcpus, c.emulator, c.numa_node, c.guest_nodes))
        };
        let apart = choose("0-7,8-10,16-17", false).expect("enough");
        assert_eq!(apart, (vec![16, 17, 8, 9], None, None, vec![Some(2), Some(1)]), "on different nodes");
        let (_, emulator, ..) = choose("0-7,8-10,16-17", true).expect("enough");
        assert_eq!(emulator, Some(0), "the first node has none left");
        let together = choose("0-3,8", false).expect("enough");
        assert_eq!(
            together,
            (vec![0, 1, 2, 3], None, Some(0), vec![Some(0), Some(0)]),
            "one has room for both"
        );
        let spread = choose("0-2,8,16", false).expect("enough");
        assert_eq!(spread, (vec![0, 1, 2, 8], None, None, vec![Some(0), None]), "a hint, not a condition");
        assert_eq!(choose("0-3", true), None);
    }

    proptest! {
        #[test]
        fn cpus_are_free_and_chosen_once(free in prop::collection::btree_set(0u32..32, 0..20), of_each in 1usize..6, numa_nodes in 1usize..4, isolate: bool) {
            let nodes = nodes(&["0-9", "10-19", "20-27"]);
            let request = DedicatedRequest { isolate_emulator_thread: isolate };
            let vcpus = of_each * numa_nodes;
            let needed = vcpus + usize::from(isolate);
            match choose(&free, &nodes, GuestCpus { vcpus, numa_nodes }, request) {
                None => prop_assert!(free.len() < needed),
                Some(chosen) => {
                    let all: BTreeSet<u32> = chosen.all().collect();
                    prop_assert_eq!(all.len(), needed);
                    prop_assert_eq!(chosen.vcpus.len(), vcpus);
                    prop_assert!(all.is_subset(&free));
                    if let Some(node) = chosen.numa_node {
                        prop_assert!(all.is_subset(&nodes[&node]));
                    }
                    prop_assert_eq!(chosen.guest_nodes.len(), if numa_nodes > 1 { numa_nodes } else { 0 });
                    for (cpus, node) in chosen.vcpus.chunks(of_each).zip(&chosen.guest_nodes) {
                        let is_there = |node: &u32| cpus.iter().all(|cpu| nodes[node].contains(cpu));
                        prop_assert!(node.as_ref().is_none_or(is_there));
                    }
                }
            }
            prop_assert_eq!(parse_cpu_list(&cpu_list(&free)), Some(free));
        }
    }
}
