//! The host agent: makes what is bound to this host real, and keeps it so.
//!
//! ```text
//!  control plane ──watch──▶ index ──keys──▶ queue ──one at a time per object──▶ observe ▸ plan ▸ apply ▸ status
//!        ▲                                    ▲                                    │             │
//!        └────────────── status ──────────────┼────────────────────────────────────┘             ▼
//!                                             └── machines (one driver task per running QEMU) ◀── System
//! ```
//!
//! A reconcile is told *which* object, never *why*. Everything outside the control plane goes through the
//! [`system::System`] trait; time and chance are handed in. The agent must not know how any of it is done on a real
//! host, what other hosts do, or how objects are bound to hosts.
//!
//! Every kind has one file named after it, with the same four functions: `observe` (the only reader), `plan` (pure),
//! `apply` (the only writer) and `status` (pure). [`converge`] runs them.

pub mod clock;
pub mod config;
mod context;
mod converge;
mod definitions;
mod disk;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod host;
mod hotswap_disk_attachment;
mod image;
mod index;
mod machine;
mod network;
mod pulls;
mod queue;
mod recorder;
mod run;
mod seekers;
pub mod site;
pub mod system;
mod vm;
mod watch;

pub use clock::{Clock, RuntimeClock, SystemClock};
pub use config::AgentConfig;
pub use error::AgentError;
pub use run::run;
