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
//!                                                moves       which disks are to go to another pool
//!                                                firmware_copies  variables and TPMs, in shared pools for lost hosts
//!                                                live_moves  running guests that go to other hosts (and come, by arrivals)
//!                                                networking  what is applied of the host's networks
//!                                                console     serial consoles, for clients with a ticket
//!                                                usage       the use of the host by its VMs (read by measure)
//!                                                packet_trace  the way of a packet, for a client with a ticket
//!                                                host_shutdown  guests are stopped before their host (by stop_guests)
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
mod arrivals;
mod awaited;
mod balloons;
pub mod config;
mod console;
mod console_server;
mod context;
mod converge;
mod copied_firmware;
mod copies;
mod credentials;
mod definitions;
mod departed;
mod details;
mod disk_keys;
mod disk_places;
mod disk_use;
mod error;
mod firmware_copies;
mod group_turn;
mod guest_memory;
mod guest_packages;
mod hardware;
mod heartbeat;
mod held_statuses;
mod hooks;
mod host_shutdown;
mod huge_pages;
mod index;
mod journal;
mod key;
mod key_provider;
mod kinds;
mod lease;
mod lease_watcher;
mod live_moves;
mod machine;
mod measure;
mod merges;
mod mirror_attempts;
mod mirrors;
mod moves;
mod named_locks;
mod networking;
mod offline_restart;
mod overhead;
mod packet_trace;
mod plugging;
mod pools;
mod probes;
mod public_address;
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
mod stop_guests;
mod typed_api;
mod unlocking;
mod usage;
mod vault_requests;
mod walks;
mod watch;

pub use berth_qemu::balloon::GuestMemory;
pub use berth_qemu::block::OperationUse;
pub use config::AgentConfig;
pub use console_server::ConsoleServer;
pub use error::AgentError;
pub use host_shutdown::{AtShutdown, GuestsLeft, HostShutdown};
pub use packet_trace::PacketTrace;
pub use run::run;
pub use typed_api::TypedApi;
pub use usage::{DiskUsage, History, HostPoint, PoolUsage, Usage, UsageServer, VmHistory, VmPoint, VmUsage};
