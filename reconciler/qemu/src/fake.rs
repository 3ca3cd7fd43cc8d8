//! A host of fake QEMUs that speak real QMP inside the current tokio runtime: no threads, sockets or processes, so it
//! works with paused time and a thousand machines cost next to nothing.
//!
//! Commands and their arguments are checked as strictly as by QEMU: unknown ones are refused with QEMU's error classes
//! and texts, so a client with an invalid command fails here as well. [`FakeHypervisor`] holds the state of a machine,
//! not its connections: dropping every handle and connecting again looks to QEMU like a restart of the caller.
//!
//! ```text
//!   Qmp ◀─duplex─▶ server ──▶ commands ──▶ machine (state, transitions) ──▶ later: delayed transitions
//!   GuestAgent ◀─▶ server ──▶ guest
//! ```

mod balloon;
mod behaviour;
mod blocks;
mod cdroms;
mod command_error;
mod commands;
mod files;
mod guest;
mod guest_programs;
mod guest_users;
mod host;
mod hypervisor;
mod machine;
mod migration;
mod mirrors;
mod model;
mod nics;
mod saved_states;
mod server;
#[cfg(test)]
mod tests;

pub use behaviour::{Behaviour, GuestAddress, GuestFacts};
pub use files::{ImageFiles, LocalFiles};
pub use host::{FakeHypervisor, MachineView, NicView};
