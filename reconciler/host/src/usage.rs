//! The use of the host's resources, by its machines and in total, as counters since the start.

use serde::{Deserialize, Serialize};

/// The use of the host by one machine since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineUse {
    /// Time on the host's processors, of all its threads, in seconds.
    pub cpu_seconds: f64,
    /// Time that its threads were ready to run and waited for a processor, in seconds: steal, as its guest sees it.
    pub waited_seconds: f64,
    /// Time that it was stopped by a limit of its CPU time, in seconds. None: no cgroup.
    pub throttled_seconds: Option<f64>,
    /// Memory of the host.
    pub resident_bytes: u64,
    /// Memory that the host has swapped out.
    pub swapped_bytes: u64,
    /// In the order of the request.
    pub interfaces: Vec<InterfaceUse>,
}

/// The packets of a network interface of a machine, as its guest counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceUse {
    pub received_bytes: u64,
    pub received_packets: u64,
    /// Packets for the guest that were dropped: it does not fetch them fast enough.
    pub received_dropped: u64,
    pub sent_bytes: u64,
    pub sent_packets: u64,
    pub sent_dropped: u64,
}

/// The use of the whole host since its start, and its memory now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostUse {
    pub cpus: u32,
    /// Seconds of all processors together.
    pub cpu_busy_seconds: f64,
    pub cpu_idle_seconds: f64,
    /// Time that this machine, itself a guest, waited for its own host.
    pub cpu_steal_seconds: f64,
    pub memory_bytes: u64,
    pub memory_available_bytes: u64,
    /// The part of its memory that is in huge pages, in use or not.
    #[serde(default)]
    pub huge_page_bytes: u64,
    pub swap_bytes: u64,
    pub swap_free_bytes: u64,
    /// Time in which some process waited for a processor, for memory, or for a disk. None: the kernel does not count it.
    pub cpu_pressure_seconds: Option<f64>,
    pub memory_pressure_seconds: Option<f64>,
    pub io_pressure_seconds: Option<f64>,
}
