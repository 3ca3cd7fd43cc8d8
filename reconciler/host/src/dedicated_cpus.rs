//! CPUs of a host for one machine alone: lists of CPUs, and the choice for a machine. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

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
}

impl DedicatedCpus {
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

/// Chooses CPUs for a machine with this many virtual CPUs: of one NUMA node if one has enough, and of those the node with the fewest,
/// so that the others keep room for larger machines. None: too few are free.
///
/// *Guarantees:* all of them are free ones, and each is chosen once.
pub(crate) fn choose(
    free: &BTreeSet<u32>,
    nodes: &BTreeMap<u32, BTreeSet<u32>>,
    vcpus: usize,
    request: DedicatedRequest,
) -> Option<DedicatedCpus> {
    let needed = vcpus + usize::from(request.isolate_emulator_thread);
    let of_node = |cpus: &BTreeSet<u32>| -> Vec<u32> { free.intersection(cpus).copied().collect() };
    let by_node: Vec<(u32, Vec<u32>)> = nodes.iter().map(|(node, cpus)| (*node, of_node(cpus))).collect();
    let one = by_node
        .iter()
        .filter(|(_, cpus)| cpus.len() >= needed)
        .min_by_key(|(node, cpus)| (cpus.len(), *node));
    let (numa_node, mut cpus) = match one {
        Some((node, cpus)) => (Some(*node), cpus.clone()),
        None => {
            // As few nodes as possible: the fullest first, then CPUs that no node lists.
            let mut by_node = by_node;
            by_node.sort_by_key(|(node, cpus)| (std::cmp::Reverse(cpus.len()), *node));
            let listed: Vec<u32> = by_node.into_iter().flat_map(|(_, cpus)| cpus).collect();
            let others = free.iter().copied().filter(|cpu| !listed.contains(cpu));
            (None, listed.iter().copied().chain(others).collect())
        }
    };
    if cpus.len() < needed {
        return None;
    }
    cpus.truncate(needed);
    let emulator = request.isolate_emulator_thread.then(|| cpus.pop()).flatten();
    Some(DedicatedCpus { vcpus: cpus, emulator, numa_node })
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

    #[test]
    fn the_cpus_of_a_machine_are_of_one_node_that_keeps_the_others_free() {
        let nodes = nodes(&["0-7", "8-15"]);
        let plain = DedicatedRequest::default();
        let chosen = choose(&set("2-7,8-10"), &nodes, 3, plain).expect("enough");
        let expected = DedicatedCpus { vcpus: vec![8, 9, 10], emulator: None, numa_node: Some(1) };
        assert_eq!(chosen, expected, "the larger one stays free");
        let isolated = DedicatedRequest { isolate_emulator_thread: true };
        let chosen = choose(&set("2-7,8-10"), &nodes, 3, isolated).expect("enough");
        let expected = DedicatedCpus { vcpus: vec![2, 3, 4], emulator: Some(5), numa_node: Some(0) };
        assert_eq!(chosen, expected);
        let spread = choose(&set("2-4,8-11"), &nodes, 5, plain).expect("enough");
        let expected = DedicatedCpus { vcpus: vec![8, 9, 10, 11, 2], emulator: None, numa_node: None };
        assert_eq!(spread, expected, "of two nodes");
        assert_eq!(choose(&set("2-4,8-11"), &nodes, 8, plain), None);
        assert_eq!(choose(&set("2"), &nodes, 1, isolated), None);
        let unknown = choose(&set("2,3"), &BTreeMap::new(), 2, plain).expect("enough");
        assert_eq!(unknown, DedicatedCpus { vcpus: vec![2, 3], emulator: None, numa_node: None });
    }

    proptest! {
        #[test]
        fn cpus_are_free_and_chosen_once(free in prop::collection::btree_set(0u32..32, 0..20), vcpus in 1usize..12, isolate: bool) {
            let nodes = nodes(&["0-9", "10-19", "20-27"]);
            let request = DedicatedRequest { isolate_emulator_thread: isolate };
            let needed = vcpus + usize::from(isolate);
            match choose(&free, &nodes, vcpus, request) {
                None => prop_assert!(free.len() < needed),
                Some(chosen) => {
                    let all: BTreeSet<u32> = chosen.all().collect();
                    prop_assert_eq!(all.len(), needed);
                    prop_assert_eq!(chosen.vcpus.len(), vcpus);
                    prop_assert!(all.is_subset(&free));
                    if let Some(node) = chosen.numa_node {
                        prop_assert!(all.is_subset(&nodes[&node]));
                    }
                }
            }
            prop_assert_eq!(parse_cpu_list(&cpu_list(&free)), Some(free));
        }
    }
}
