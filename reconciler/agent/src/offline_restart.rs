//! How a guest is restarted by an agent that no control plane has answered yet: recorded in the journal of its instance by an agent that
//! knew the objects.

use berth_api::RestartPolicy;
use berth_qemu::hypervisor::CpuTime;
use berth_qemu::machine::MachineSpec;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A restart as the objects declared it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OfflineRestart {
    /// The holder of the host's Lease that recorded it.
    pub(crate) holder: String,
    pub(crate) policy: RestartPolicy,
    /// The machine as it was launched, with the disks and network cards that are declared; the disks without their chains of files, which
    /// change while it runs.
    pub(crate) machine: MachineSpec,
    /// The volumes of its disks.
    pub(crate) volumes: Vec<OfflineVolume>,
    pub(crate) cpu: CpuTime,
    /// The network cards whose links are down.
    pub(crate) links_down: Vec<String>,
}

/// The volume of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OfflineVolume {
    pub(crate) id: String,
    pub(crate) pool: String,
    /// Its last restore: after another one, its data is not that of the other disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored_at: Option<Timestamp>,
}
