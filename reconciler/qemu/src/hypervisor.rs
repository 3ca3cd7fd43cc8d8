//! The interface between decisions and actions: all operations of a host on QEMU processes.
//!
//! Two implementations: `process::LocalHypervisor` runs real processes, `fake::FakeHypervisor` runs fakes that speak
//! real QMP inside the current runtime.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::console::ConsoleStream;
use crate::guest_agent::{GuestAgent, GuestAgentError};
use crate::machine::{Architecture, LaunchSpec, MachinePaths, NicSpec, SpecError};
use crate::nics::LentTap;
use crate::qmp::{Events, Qmp, QmpError};

/// The identity of a QEMU process, which distinguishes it from a later process with the same pid.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: i32,
    /// Clock ticks between the host's boot and the start of the process (`/proc/PID/stat`, field 22).
    pub start_time: u64,
    /// `/proc/sys/kernel/random/boot_id`: a process of another boot has ended.
    pub boot_id: String,
}

/// The state of a process that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs, or waits for something that can end at any time.
    Running,
    /// A signal stopped it (SIGSTOP), or a debugger.
    Stopped,
    /// It waits in the kernel for a device or a network file system, and cannot be ended meanwhile.
    Blocked,
}

/// A QEMU process found on the host, foreign or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundQemu {
    pub identity: ProcessIdentity,
    /// The user that it runs as.
    pub uid: u32,
    /// Set if berth started it: [`MachineSpec::instance`](crate::machine::MachineSpec::instance).
    pub instance: Option<String>,
    /// The guest's name from `-name`; also set for a foreign process.
    pub name: Option<String>,
    pub argv: Vec<String>,
}

/// The limits of a launched machine. Not enforced on a host without cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of the whole process in bytes, including the guest's. Page cache counts, and is reclaimed first.
    pub memory_max: Option<u64>,
    pub cpu: CpuTime,
}

/// The CPU time of a machine, which can be changed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Thousandths of a CPU. None: no limit.
    pub limit: Option<u32>,
    /// The share when CPU time is scarce: 1 to 10,000.
    pub weight: u32,
}

impl Default for CpuTime {
    fn default() -> Self {
        Self { limit: None, weight: 100 }
    }
}

/// The file of a machine's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFile<'a> {
    /// Created, or emptied, and written.
    Empty(&'a Path),
    Saved(&'a Path),
}

impl<'a> StateFile<'a> {
    /// Its path.
    #[must_use]
    pub fn path(self) -> &'a Path {
        match self {
            Self::Empty(path) | Self::Saved(path) => path,
        }
    }
}

/// Why QEMU was not given a file.
#[derive(Debug, thiserror::Error)]
pub enum LendError {
    #[error("cannot open {}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("cannot open the tap interface {name}")]
    Tap { name: String, source: std::io::Error },
    #[error("cannot open a connection to QEMU")]
    Channel(#[source] std::io::Error),
    #[error("cannot pass the file to QEMU")]
    Pass(#[source] QmpError),
}

/// Why a machine did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the machine cannot be described to QEMU")]
    Spec(#[from] SpecError),
    #[error("{} is not installed: install QEMU ({})", binary.display(), Architecture::of_program(binary).qemu_packages())]
    NoBinary { binary: PathBuf },
    #[error("cannot prepare {}", path.display())]
    Prepare { path: PathBuf, source: std::io::Error },
    #[error("cannot open the tap interface {name}")]
    Tap { name: String, source: std::io::Error },
    #[error("cannot open /dev/vhost-vsock with the context id {cid}")]
    Vsock { cid: u32, source: std::io::Error },
    #[error("cannot confine QEMU to its own files")]
    Confine(#[source] std::io::Error),
    #[error("cannot start {}", binary.display())]
    Spawn { binary: PathBuf, source: std::io::Error },
    /// The process has neither the limit nor the right to raise it.
    #[error(
        "QEMU may not lock {bytes} bytes of memory, which PCI devices of the host need: give the agent CAP_SYS_RESOURCE, or a higher limit (LimitMEMLOCK of its service)"
    )]
    LockMemory { bytes: u64, source: std::io::Error },
    /// `stderr` contains QEMU's last output.
    #[error("QEMU ended at start ({status}): {stderr}")]
    Exited { status: String, stderr: String },
    /// `page` is the size of a page in bytes.
    #[error("the host has too few free huge pages of {}Mi for the guest's memory: {stderr}", page >> 20)]
    HugePages { page: u64, stderr: String },
    #[error("cannot bind the machine's threads to CPUs of the host")]
    Affinity(#[source] std::io::Error),
    #[error("QEMU did not answer within {after:?} of its start: {stderr}")]
    Unresponsive { after: Duration, stderr: String },
    #[error("QEMU runs, and its monitor cannot be used")]
    Monitor(#[source] QmpError),
    #[error("a process of instance {instance} is already running as pid {pid}")]
    AlreadyRunning { instance: String, pid: i32 },
}

/// Why an operation on a process failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot open process {pid}")]
    Open { pid: i32, source: std::io::Error },
    #[error("cannot signal process {pid}")]
    Signal { pid: i32, source: std::io::Error },
    #[error(
        "process {pid} is still there {after:?} after SIGKILL: it is likely to wait for a device or a network file system"
    )]
    Unkillable { pid: i32, after: Duration },
    #[error("cannot give {} to the user QEMU runs as", path.display())]
    Grant { path: PathBuf, source: std::io::Error },
    #[error(
        "the machine has no control group for CPU time: berth needs a writable cgroup hierarchy with the controller cpu"
    )]
    NoCpuController,
    #[error("cannot set the CPU time in {}", path.display())]
    CpuTime { path: PathBuf, source: std::io::Error },
    #[error("cannot set how much the OOM killer prefers process {pid}")]
    OomPreference { pid: i32, source: std::io::Error },
}

/// The host's operations on QEMU. Object safe, so that a caller can wrap it (to inject faults, for example).
#[async_trait]
pub trait Hypervisor: Send + Sync + fmt::Debug {
    /// Starts a machine with its CPUs stopped, and returns once its monitor replies.
    ///
    /// *Guarantees*: on error no process is left behind. The process outlives the caller; a caller that dies (or drops
    /// the future) in the middle may leave one, which [`Hypervisor::find`] then finds.
    /// *Errors*: when QEMU fails, [`LaunchError::Exited`] contains the last lines of its output.
    async fn launch(&self, spec: &LaunchSpec, limits: Limits) -> Result<ProcessIdentity, LaunchError>;

    /// Reports that the machine is running; `just_now` is true if it has just started. When CPU time is scarce,
    /// machines being launched come before running ones, and machines that have just started come last.
    async fn mark_started(&self, _instance: &str, _just_now: bool) {}

    /// Reads the CPU time that the machine has. Without a control group, that is the default. While a machine yields to others (see
    /// [`Hypervisor::mark_started`]), its weight is the one that it gets afterwards.
    async fn cpu_time(&self, instance: &str) -> Result<CpuTime, ProcessError>;

    /// Changes the CPU time of a running machine.
    async fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<(), ProcessError>;

    /// Returns how often the kernel's OOM killer has ended a process of the machine that was launched last under this name, also after
    /// its end. 0 on a host without control groups for memory.
    async fn oom_kills(&self, instance: &str) -> u64;

    /// Has the kernel's OOM killer prefer this process by a number from 0 to 1000, which is added to that of this program
    /// (`oom_score_adj`). Succeeds if the process has ended.
    async fn set_oom_preference(
        &self,
        process: &ProcessIdentity,
        preference: u16,
    ) -> Result<(), ProcessError>;

    /// Lists every QEMU on the host, including foreign ones.
    async fn list(&self) -> Result<Vec<FoundQemu>, ProcessError>;

    /// Returns the process of this instance if it is alive.
    async fn find(&self, instance: &str) -> Result<Option<ProcessIdentity>, ProcessError> {
        let all = self.list().await?;
        Ok(all.into_iter().find(|q| q.instance.as_deref() == Some(instance)).map(|q| q.identity))
    }

    async fn is_alive(&self, process: &ProcessIdentity) -> Result<bool, ProcessError>;

    /// Reads the state of a process. None: it has ended.
    async fn process_state(&self, process: &ProcessIdentity) -> Result<Option<ProcessState>, ProcessError>;

    /// Waits until the process has ended. Cancel safe.
    async fn exited(&self, process: &ProcessIdentity) -> Result<(), ProcessError>;

    /// Terminates the process: SIGTERM, then SIGKILL after `grace`. Returns when it has ended; succeeds if it had
    /// already.
    async fn kill(&self, process: &ProcessIdentity, grace: Duration) -> Result<(), ProcessError>;

    /// Opens the machine's main monitor.
    async fn connect(&self, paths: &MachinePaths) -> Result<(Qmp, Events), QmpError>;

    /// Opens the channel to the guest agent. Succeeds even if no agent listens in the guest.
    async fn guest_agent(&self, paths: &MachinePaths) -> Result<GuestAgent, GuestAgentError>;

    /// Connects to the machine's serial console.
    async fn serial(&self, paths: &MachinePaths) -> std::io::Result<ConsoleStream>;

    /// Connects to the machine's VNC server.
    ///
    /// *Errors*: `NotFound` if the machine has no graphics.
    async fn vnc(&self, paths: &MachinePaths) -> std::io::Result<ConsoleStream>;

    /// Ends the emulator of the TPM with this directory, if QEMU has left one behind. Returns when it has ended.
    async fn end_tpm(&self, _state: &Path) -> Result<(), ProcessError> {
        Ok(())
    }

    /// Ends the servers of the shares of the machine with this directory, if QEMU has left some behind. Returns when they have ended.
    async fn end_shares(&self, _directory: &Path) -> Result<(), ProcessError> {
        Ok(())
    }

    /// Opens the file for the machine's state and gives it to QEMU, which names it [`STATE_FILE`](crate::saved_state::STATE_FILE):
    /// an empty one to write, or a saved one to read. QEMU's user needs no access to it.
    async fn lend_state(&self, qmp: &Qmp, paths: &MachinePaths, file: StateFile<'_>)
    -> Result<(), LendError>;

    /// Gives QEMU one end of a new connection, which it names [`CHANNEL`](crate::live_move::CHANNEL), and returns the other one.
    async fn lend_channel(&self, qmp: &Qmp, paths: &MachinePaths) -> Result<ConsoleStream, LendError>;

    /// Opens the tap of a network card and gives it to QEMU, for [`nics::plug`](crate::nics::plug).
    ///
    /// *Assumptions*: the tap exists, and no other process has it open.
    async fn lend_tap(&self, qmp: &Qmp, paths: &MachinePaths, nic: &NicSpec) -> Result<LentTap, LendError>;

    /// Makes a file accessible to the user that QEMU runs as. Required before a disk is plugged in;
    /// [`Hypervisor::launch`] does it for the files of its spec.
    async fn grant(&self, file: &Path, writable: bool) -> Result<(), ProcessError>;
}
