//! The use of the host's resources by its VMs, and its forms: metrics for Prometheus, JSON.
//!
//! Plain data. It must not know how it is read: `measure` does that.

mod metrics;
mod reconciles;
mod verifications;

use std::sync::Arc;

use berth_host::{HostUse, InterfaceUse, MachineUse};
use berth_qemu::block::OperationUse;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Mutex;
use tokio::time::Instant;

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
