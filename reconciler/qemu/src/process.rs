//! QEMU as a process: launched so that it outlives the caller, found again, watched, terminated.
//!
//! A process is identified by [`ProcessIdentity`] (pid, start time and boot), never by its pid or name alone, and
//! signalled through a pidfd, so that a signal never reaches a process that has reused the pid.
//! The only module of this crate with `unsafe` besides the accelerator probe: each use documents why it is sound.

mod affinity;
mod cgroup;
mod filter;
mod helper;
mod identity;
mod key_file;
mod landlock;
mod launch;
mod lent_folder;
mod local;
mod log;
mod nbd_server;
mod oom;
mod pidfd;
mod scan;
mod swtpm;
mod tap;
#[cfg(test)]
mod tests;
mod vfork;
mod virtiofsd;
mod vsock;

pub use crate::hypervisor::{LaunchError, ProcessError, ProcessIdentity};
pub use crate::machine::RunAs;
pub use affinity::{cpus_of_thread, vcpu_threads};
pub use cgroup::{Cgroups, shared_unit};
pub use filter::{FileLock, Filter, FilterError};
pub use key_file::TOOL_KEY;
pub use local::{Claims, LocalHypervisor};
pub use log::{cut_log, last_bytes, last_lines};
pub use nbd_server::{NbdExport, NbdServer, end_nbd_servers};
pub use scan::list_qemu;
pub use vsock::{VHOST_VSOCK, connect_to_vsock, free_cid, has_vhost_vsock};
