//! The use of the host's resources by its VMs, and its forms: metrics for Prometheus, JSON.
//!
//! Plain data. It must not know how it is read: `measure` does that.

mod history;
mod metrics;
mod reconciles;
mod verifications;

use std::sync::Arc;

use berth_host::{HostUse, InterfaceUse, MachineUse};
use berth_qemu::balloon::GuestMemory;
use berth_qemu::block::OperationUse;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Mutex;
use tokio::time::Instant;

pub use history::{History, HostPoint, VmHistory, VmPoint};
pub(crate) use metrics::{AgentMetrics, render};
pub(crate) use reconciles::Reconciles;
pub(crate) use verifications::Verifications;

/// A reading of a host and its running VMs. Counters count from the start of the machine that they belong to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// The Host.
    pub host: String,
    pub time: Timestamp,
    /// That of the whole machine, of programs that are not berth's too.
    pub machine: HostUse,
    /// Sorted by namespace and name.
    pub vms: Vec<VmUsage>,
    /// Sorted by name. Older agents have none.
    #[serde(default)]
    pub pools: Vec<PoolUsage>,
}

/// The space of a storage pool on the host, as the status of the Host has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolUsage {
    pub name: String,
    pub size_bytes: u64,
    pub free_bytes: u64,
    /// The sizes of its disks together.
    pub promised_bytes: u64,
    pub is_away: bool,
}

/// The use of the host by a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmUsage {
    pub namespace: String,
    pub name: String,
    pub cpus: i64,
    pub memory_bytes: u64,
    pub restarts: i64,
    /// The memory that the guest reports, cut to what it can have. None: it reports none, or QEMU does not answer.
    #[serde(default)]
    pub guest_memory: Option<GuestMemory>,
    /// The memory of the guest that is in its balloon: the host has it back.
    #[serde(default)]
    pub ballooned_bytes: u64,
    pub process: MachineUse,
    /// By the name of the interface.
    pub interfaces: Vec<(String, InterfaceUse)>,
    /// Empty if QEMU does not answer.
    pub disks: Vec<DiskUsage>,
}

/// The use of a disk by its VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskUsage {
    /// The Disk.
    pub name: String,
    pub read: OperationUse,
    pub write: OperationUse,
    pub flush: OperationUse,
}

/// The last reading.
#[derive(Debug, Default)]
pub(crate) struct UsageCache(pub(crate) Mutex<Option<(Instant, Arc<Usage>)>>);

/// Where an agent serves the use of its host.
#[derive(Debug, Default)]
pub struct UsageServer {
    /// A socket for this machine's root.
    pub local: Option<UnixListener>,
    /// A socket for every client of its address.
    pub tcp: Option<TcpListener>,
}
