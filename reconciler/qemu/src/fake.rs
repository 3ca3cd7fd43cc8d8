//! A host of fake QEMUs that speak real QMP, inside the current tokio runtime: no thread, no socket, no process, so
//! it works with paused time and a thousand machines cost next to nothing.
//!
//! Commands and their arguments are checked as strictly as QEMU checks them: unknown ones are refused with QEMU's
//! classes and words, so a client that works here by luck does not exist. The state of a machine lives in
//! [`FakeHypervisor`], not in a connection: dropping every handle and connecting again is what a restart of the
//! real host agent looks like to QEMU.

mod behaviour;

pub use behaviour::{Behaviour, GuestAddress, GuestFacts};
