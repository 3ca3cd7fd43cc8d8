//! The seam between deciding and doing: everything a host does with QEMU processes.
//!
//! Two implementations: `process::LocalHypervisor` runs real processes,
//! `fake::FakeHypervisor` runs fakes that speak real QMP inside the current runtime.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::guest_agent::{GuestAgent, GuestAgentError};
use crate::machine::{MachinePaths, MachineSpec};
use crate::process::{LaunchError, ProcessError};
use crate::qmp::{Events, Qmp, QmpError};

/// A QEMU process, in a way that a later process with the same number is not mistaken for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: i32,
    /// Clock ticks between the host's boot and the start of the process (`/proc/PID/stat`, field 22).
    pub start_time: u64,
    /// `/proc/sys/kernel/random/boot_id`: a process of another boot is gone.
    pub boot_id: String,
}

/// A QEMU process found on the host, ours or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundQemu {
    pub identity: ProcessIdentity,
    /// Who it runs as.
    pub uid: u32,
    /// Present when berth started it: [`MachineSpec::instance`].
    pub instance: Option<String>,
    /// The guest's name from `-name`, whoever started it.
    pub name: Option<String>,
    pub argv: Vec<String>,
}

/// What a launched machine may use of the host. Not enforced on a host without cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of the whole process in bytes, the guest's included. Page cache counts, and is reclaimed first.
    pub memory_max: Option<u64>,
    /// Hundredths of a core: 150 is one and a half.
    pub cpu_max_percent: Option<u32>,
}

/// What the host does with QEMU. Object safe, so that a caller can wrap it (to inject faults, say).
#[async_trait]
pub trait Hypervisor: Send + Sync + fmt::Debug {
    /// Starts a machine, stopped before its first instruction, and returns once its monitor answers.
    ///
    /// *Guarantees*: on error no process is left behind. The process outlives the caller; a caller that dies (or
    /// drops the future) in the middle may leave one, which [`Hypervisor::find`] then finds.
    /// *Errors*: when QEMU gives up, [`LaunchError::Exited`] carries the last lines it said.
    async fn launch(&self, spec: &MachineSpec, limits: Limits) -> Result<ProcessIdentity, LaunchError>;

    /// Says that the machine runs, since `just_now` or longer: where the processors are wanted by many, a start goes before
    /// what runs, and what has just begun after it.
    async fn has_started(&self, _instance: &str, _just_now: bool) {}

    /// Every QEMU on the host, foreign ones included.
    async fn list(&self) -> Result<Vec<FoundQemu>, ProcessError>;

    /// The process of this instance, if one is alive.
    async fn find(&self, instance: &str) -> Result<Option<ProcessIdentity>, ProcessError> {
        let all = self.list().await?;
        Ok(all.into_iter().find(|q| q.instance.as_deref() == Some(instance)).map(|q| q.identity))
    }

    async fn is_alive(&self, process: &ProcessIdentity) -> Result<bool, ProcessError>;

    /// Waits until the process is gone. Cancel safe.
    async fn exited(&self, process: &ProcessIdentity) -> Result<(), ProcessError>;

    /// Ends the process: SIGTERM, then SIGKILL after `grace`. Returns when it is gone; already gone is fine.
    async fn kill(&self, process: &ProcessIdentity, grace: Duration) -> Result<(), ProcessError>;

    /// Opens the machine's main monitor.
    async fn connect(&self, paths: &MachinePaths) -> Result<(Qmp, Events), QmpError>;

    /// Opens the channel to the guest's agent. Succeeds also when nobody listens inside the guest.
    async fn guest_agent(&self, paths: &MachinePaths) -> Result<GuestAgent, GuestAgentError>;

    /// Makes a file usable for the user QEMU runs as. Needed before a disk is plugged in; [`Hypervisor::launch`]
    /// does it for what the spec names.
    async fn grant(&self, file: &Path, writable: bool) -> Result<(), ProcessError>;
}
