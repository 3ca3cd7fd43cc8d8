//! QEMU, driven over QMP: command lines, processes, disks, and the speed of the accelerator.
//!
//! ```text
//!  machine      a machine as data, and its command line        qcow2         image files
//!     ▼                                                        probe         the accelerator and its speed
//!  hypervisor   the trait: launch, find, connect, kill         installation  the installed QEMU
//!     ▲     ▲                                                  single_flight shares one scan between callers
//!  process  fake
//!     ▼
//!  qmp ◀── block, cdrom, power, tpm    disks, media, power and TPM of a running machine
//!      ◀── shares          whether its folders of the host are served
//!      ◀── nics            its network cards
//!      ◀── saved_state     its memory and devices, saved to a file and loaded again
//!      ◀── live_move       the same, sent to another QEMU while the guest runs
//!  efi_variables   the file of UEFI variables, and the keys of Secure Boot in it
//!  nbd         a disk that QEMU or qemu-nbd exports, read and written
//!  guest_agent, console    the agent in the guest, its serial console and its screen
//! ```
//!
//! Knows files, processes, sockets and QEMU's own terms (`node-name`, `device`, `blockdev`). Must not know Kubernetes,
//! nor any of berth's kinds: callers translate those into [`machine::MachineSpec`] and [`machine::DiskSpec`].
//!
//! Sockets of programs that a guest may have taken over are reached by `socket` alone.
//!
//! All operations on processes go through the [`hypervisor::Hypervisor`] trait, so that a whole host can run on
//! [`fake::FakeHypervisor`] (feature `fake`) inside one runtime with paused time. All communication with a machine goes
//! through [`qmp::Qmp`], which cannot distinguish the two.

pub mod balloon;
pub mod block;
pub mod cdrom;
pub mod console;
pub mod cpu_models;
pub mod cpus;
mod devices;
pub mod efi_variables;
#[cfg(feature = "fake")]
pub mod fake;
pub mod guest_agent;
pub mod hypervisor;
pub mod installation;
pub mod live_move;
pub mod machine;
pub mod memory;
pub mod nbd;
pub mod nics;
pub mod power;
pub mod probe;
pub mod process;
pub mod qcow2;
pub mod qmp;
pub mod saved_state;
pub mod shares;
pub mod single_flight;
mod socket;
pub mod tpm;
