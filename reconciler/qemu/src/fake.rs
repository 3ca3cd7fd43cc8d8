//! A host of fake QEMUs that speak real QMP, inside the current tokio runtime: no thread, no socket, no process, so
//! it works with paused time and a thousand machines cost next to nothing.
//!
//! Commands and their arguments are checked as strictly as QEMU checks them: unknown ones are refused with QEMU's
//! classes and words, so a client that works here by luck does not exist. The state of a machine lives in
//! [`FakeHypervisor`], not in a connection: dropping every handle and connecting again is what a restart of the
//! caller looks like to QEMU.
//!
//! ```text
//!   Qmp ◀─duplex─▶ server ──▶ commands ──▶ machine (state, transitions) ──▶ later: what happens by itself
//!   GuestAgent ◀─▶ server ──▶ guest
//! ```

mod behaviour;
mod blocks;
mod commands;
mod files;
mod guest;
mod host;
mod hypervisor;
mod machine;
mod server;
#[cfg(test)]
mod tests;

pub use behaviour::{Behaviour, GuestAddress, GuestFacts};
pub use files::{ImageFiles, LocalFiles};
pub use host::{FakeHypervisor, MachineView};
