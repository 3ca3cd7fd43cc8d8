//! How the CPUs and the memory of a VM are divided among the NUMA nodes that its guest sees. Pure.

use crate::{CpuTopology, HugePages, Quantity};

/// Why CPUs and memory cannot be divided among NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumaError {
    /// CPUs are left over.
    #[error(
        "{cpus} CPUs cannot be divided evenly among {nodes} NUMA nodes: set a number of CPUs that is a multiple of {nodes}"
    )]
    Cpus {
        /// All of the VM.
        cpus: i64,
        /// The nodes declared.
        nodes: i64,
    },
    /// A node would have a part of a core, or parts of several sockets.
    #[error(
        "{} sockets with {} cores each cannot be divided among {nodes} NUMA nodes: a node has whole sockets, or whole cores of one socket",
        topology.sockets,
        topology.cores
    )]
    Topology {
        /// The arrangement declared.
        topology: CpuTopology,
        /// The nodes declared.
        nodes: i64,
    },
    /// Memory is left over.
    #[error(
        "memory {} cannot be divided evenly among {nodes} NUMA nodes: set a multiple of {}",
        Quantity::from_bytes(*memory),
        Quantity::from_bytes(*unit)
    )]
    Memory {
        /// Bytes.
        memory: u64,
        /// The nodes declared.
        nodes: i64,
        /// The bytes that it has to be a multiple of.
        unit: u64,
    },
}

/// Checks that each of this many nodes has the same number of CPUs, in whole sockets or in whole cores of one socket. `topology` is the declared one.
///
/// # Errors
/// When it has not.
pub fn check_cpus(nodes: i64, cpus: i64, topology: Option<CpuTopology>) -> Result<(), NumaError> {
    if nodes <= 1 {
        return Ok(());
    }
    if cpus % nodes != 0 {
        return Err(NumaError::Cpus { cpus, nodes });
    }
    match topology {
        Some(topology) if !is_divisible(topology, nodes) => Err(NumaError::Topology { topology, nodes }),
        _ => Ok(()),
    }
}

/// Checks that each of this many nodes has the same number of bytes of memory, in whole MiB or in whole huge pages.
///
/// # Errors
/// When it has not.
pub fn check_memory(nodes: i64, memory: u64, pages: HugePages) -> Result<(), NumaError> {
    if nodes <= 1 {
        return Ok(());
    }
    let unit = pages.bytes().unwrap_or(1 << 20).saturating_mul(nodes.unsigned_abs());
    if memory.is_multiple_of(unit) { Ok(()) } else { Err(NumaError::Memory { memory, nodes, unit }) }
}

/// The arrangement of CPUs where none is declared: one socket for each node, as on real machines.
pub(crate) fn default_topology(nodes: i64, cpus: i64) -> CpuTopology {
    let nodes = nodes.max(1);
    CpuTopology { sockets: nodes, cores: cpus / nodes, threads: 1 }
}

fn is_divisible(topology: CpuTopology, nodes: i64) -> bool {
    let CpuTopology { sockets, cores, .. } = topology;
    sockets > 0 && (sockets % nodes == 0 || nodes % sockets == 0 && cores % (nodes / sockets) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_whole_sockets_or_whole_cores_of_one_socket() {
        let check = |nodes, sockets, cores, threads| {
            let topology = CpuTopology { sockets, cores, threads };
            check_cpus(nodes, topology.cpus(), Some(topology))
        };
        for good in [(1, 3, 1, 1), (2, 2, 2, 1), (2, 4, 1, 2), (2, 1, 4, 2), (4, 2, 2, 1), (8, 8, 16, 1)] {
            let (nodes, sockets, cores, threads) = good;
            assert_eq!(check(nodes, sockets, cores, threads), Ok(()), "{good:?}");
        }
        let several = check(3, 2, 3, 1).expect_err("a node would be of two sockets").to_string();
        assert_eq!(
            several,
            "2 sockets with 3 cores each cannot be divided among 3 NUMA nodes: a node has whole sockets, or whole cores of one socket"
        );
        let threads = check(4, 1, 2, 2);
        assert!(matches!(threads, Err(NumaError::Topology { .. })), "threads of a core stay together");
        let left = check_cpus(3, 4, None).expect_err("one is left over").to_string();
        assert_eq!(
            left,
            "4 CPUs cannot be divided evenly among 3 NUMA nodes: set a number of CPUs that is a multiple of 3"
        );
        assert_eq!(check_cpus(0, 4, None), Ok(()), "the schema refuses it");
    }

    #[test]
    fn memory_is_divided_in_whole_pages() {
        assert_eq!(check_memory(1, 1, HugePages::None), Ok(()));
        assert_eq!(check_memory(4, 1 << 30, HugePages::None), Ok(()));
        assert_eq!(check_memory(2, 4 << 20, HugePages::TwoMebibytes), Ok(()));
        let error = check_memory(3, 1 << 30, HugePages::None).expect_err("1 MiB is left over");
        assert_eq!(
            error.to_string(),
            "memory 1Gi cannot be divided evenly among 3 NUMA nodes: set a multiple of 3Mi"
        );
        let error = check_memory(2, 3 << 30, HugePages::OneGibibyte).expect_err("a page is left over");
        assert_eq!(
            error.to_string(),
            "memory 3Gi cannot be divided evenly among 2 NUMA nodes: set a multiple of 2Gi"
        );
    }

    #[test]
    fn without_a_topology_each_node_is_a_socket() {
        assert_eq!(default_topology(1, 4), CpuTopology::of_cores(4));
        assert_eq!(default_topology(2, 4), CpuTopology { sockets: 2, cores: 2, threads: 1 });
    }
}
