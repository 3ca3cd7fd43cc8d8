//! An embedded Kubernetes API server over SQLite: a drop-in replacement for the part of kube-apiserver that
//! custom resources need.
//!
//! It serves custom resources and the few built-in kinds they depend on to `kubectl`, kube-rs and any other
//! Kubernetes client. It must not know any custom resource: kinds, rules and access control arrive as
//! objects, the same ones a Kubernetes cluster would receive.
//!
//! Objects as values belong to `berth-apimachinery`, revisions to `berth-store`; this crate serves requests
//! and controls access. It must not know SQLite.
//!
//! ```text
//! HTTP or in-process call ─▶ authenticate ─▶ authorize ─▶ verb ─▶ schema, fields, admission ─▶ store ─▶ watchers
//!
//!  server, listen, connection_policy, http, metrics   sockets, bodies, responses
//!    verbs, review, discovery, openapi, history      processing of a request
//!    housekeeping, bootstrap                         background work of the server
//!      core                                          state shared by all of those
//!        authenticate ─ service_account, credentials, identity
//!        authorize ─ request ─ catalog ─ builtin, crd, event, admission ─ resource
//!        selection, store_error                      adapters between apimachinery and store
//!        backups, audit, clock, config
//! ```

mod admission;
mod audit;
mod authenticate;
mod authorize;
mod backups;
mod bootstrap;
mod builtin;
mod catalog;
mod config;
mod connection_policy;
mod core;
mod crd;
mod credentials;
mod discovery;
mod event;
mod history;
mod housekeeping;
mod http;
mod identity;
mod ids;
mod listen;
mod metrics;
mod openapi;
mod request;
mod resource;
mod review;
mod selection;
mod server;
mod service_account;
mod store_error;
mod verbs;

pub use backups::{backup, restore};
pub use berth_apimachinery::changes::{FieldChange, changes};
pub use berth_store::{
    Backup, BackupError, RESTORED, RestoreError, RestoreOptions, Restored, Rotated, Storage, WriterMode,
    rotate_key,
};
pub use config::{BackupSchedule, HistoryWindow, ServerConfig};
pub use identity::Identity;
pub use server::{ApiService, Listener, OpenError, ServeError, Server};
