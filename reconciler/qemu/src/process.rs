//! QEMU as a process: started so that it outlives us, found again, watched, ended.
//!
//! A process is known by [`ProcessIdentity`] (number, start time and boot), never by its number or name alone, and
//! signalled through a pidfd, so a number that was given to somebody else is never hit.
//! The only module with `unsafe` besides the accelerator probe: each use says why it is sound.

mod cgroup;
mod identity;
mod launch;
mod local;
mod log;
mod pidfd;
mod scan;
mod tap;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::SpecError;
use crate::qmp::QmpError;

pub use crate::hypervisor::ProcessIdentity;
pub use cgroup::Cgroups;
pub use local::LocalHypervisor;
pub use log::{last_lines, truncate_log};
pub use scan::list_qemu;

/// The user QEMU runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
}

/// Why a machine did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the machine cannot be described to QEMU")]
    Spec(#[from] SpecError),
    #[error("{} is not installed: install QEMU (Debian, Ubuntu: apt install qemu-system-x86; Fedora: dnf install qemu-kvm)", binary.display())]
    NoBinary { binary: PathBuf },
    #[error("cannot prepare {}", path.display())]
    Prepare { path: PathBuf, source: std::io::Error },
    #[error("cannot open the tap interface {name}")]
    Tap { name: String, source: std::io::Error },
    #[error("cannot start {}", binary.display())]
    Spawn { binary: PathBuf, source: std::io::Error },
    /// `stderr` are QEMU's last words.
    #[error("QEMU ended at start ({status}): {stderr}")]
    Exited { status: String, stderr: String },
    #[error("QEMU did not answer within {after:?} of its start: {stderr}")]
    Unresponsive { after: Duration, stderr: String },
    #[error("QEMU runs, and its monitor cannot be used")]
    Monitor(#[source] QmpError),
    #[error("a process of instance {instance} is already running as pid {pid}")]
    AlreadyRunning { instance: String, pid: i32 },
}

/// Why something could not be learnt of, or done to, a process.
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
}
