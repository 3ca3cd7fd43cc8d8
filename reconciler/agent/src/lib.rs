//! The host agent: realises what is bound to this host and keeps it so.
//!
//! ```text
//!  run ─▶ lease ─▶ site              one agent a host, one control plane a site
//!   │
//!   ├─▶ watch ──▶ index ──keys──▶ queue ──one at a time per object──▶ kinds/<kind>: observe ▸ plan ▸ apply ▸ status
//!   │    ▲ control plane            ▲                                       │          (run by converge)
//!   │    └───────── status ─────────┼───────────────────────────────────────┤
//!   │                               │ keys                                  ▼
//!   └───────────────────────────────┴── context: machine     one driver task per running QEMU
//!                                                pulls       downloads in the background, and copies from other hosts (copies)
//!                                                merges      merges of snapshots' files in the background
//!                                                networking  what is applied of the host's networks
//!                                                console     serial consoles, for clients with a ticket
//!                                                usage       the use of the host by its VMs (read by measure)
//!                                                packet_trace  the way of a packet, for a client with a ticket
//!                                                admission   capacity reserved for VMs
//!                                                lease_watcher, overhead, definitions, recorder
//! ```
//!
//! `typed_api` is how all of them, and the commands of the binary, read and write objects.
//!
//! `kinds` is the table of the kinds. Each that the agent makes real has a folder with the same four parts: `observe` only
//! reads, `plan` decides and is pure, `apply` takes one step, `status` is pure. `converge` runs them. A reconcile knows
//! *which* object to reconcile, never *why*.
//!
//! `context` holds what the kinds share; its parts do not know it, nor any kind. Everything outside the control plane goes
//! through the [`berth_host::System`] trait; clock and randomness are injected.
//!
//! The agent must not know how a host implements the trait, what other hosts do, or how objects are bound to hosts.

mod admission;
pub mod config;
mod console;
mod console_server;
mod context;
mod converge;
mod copies;
mod credentials;
mod definitions;
mod departed;
mod details;
mod disk_keys;
mod error;
mod hardware;
mod held_statuses;
mod hooks;
mod huge_pages;
mod index;
mod journal;
mod key;
mod kinds;
mod lease;
mod lease_watcher;
mod machine;
mod measure;
mod merges;
mod networking;
mod offline_restart;
mod overhead;
mod packet_trace;
mod plugging;
mod probes;
mod pulls;
mod recorder;
mod restores;
mod run;
mod saved_machine;
mod sealing;
pub mod site;
mod snapshots;
mod ssh_keys;
mod start_order;
mod typed_api;
mod unlocking;
mod usage;
mod watch;

pub use berth_qemu::block::OperationUse;
pub use config::AgentConfig;
pub use console_server::ConsoleServer;
pub use error::AgentError;
pub use packet_trace::PacketTrace;
pub use run::run;
pub use typed_api::TypedApi;
pub use usage::{DiskUsage, Usage, UsageServer, VmUsage};
