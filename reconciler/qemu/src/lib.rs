//! QEMU, driven over QMP: what its command line is, what runs, what disks it holds, how fast the accelerator is.
//!
//! Knows files, processes, sockets and QEMU's own words (`node-name`, `device`, `blockdev`). Must not know
//! Kubernetes, nor any of berth's kinds: callers translate those into [`machine::MachineSpec`] and
//! [`machine::DiskSpec`].
//!
//! Everything that touches a process goes through the [`hypervisor::Hypervisor`] trait, so that a whole host can
//! be run on [`fake::FakeHypervisor`] (feature `fake`) inside one runtime with paused time. Everything that talks
//! to a machine goes through [`qmp::Qmp`], which cannot tell the two apart.

pub mod block;
#[cfg(feature = "fake")]
pub mod fake;
pub mod guest_agent;
pub mod hypervisor;
pub mod installation;
pub mod machine;
pub mod passes;
pub mod power;
pub mod probe;
pub mod process;
pub mod qcow2;
pub mod qmp;
