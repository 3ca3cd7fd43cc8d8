//! An embedded Kubernetes API server over SQLite: a drop-in for the part of kube-apiserver that custom
//! resources need.
//!
//! It serves custom resources and the few built-in kinds they stand on, to `kubectl`, kube-rs and anything else
//! that speaks the Kubernetes API. It must not know any custom resource: kinds, rules and access come to it as
//! objects, the same ones a Kubernetes cluster would be given.
//!
//! ```text
//! HTTP or in-process call ─▶ authenticate ─▶ authorize ─▶ verb ─▶ schema, fields, admission ─▶ store ─▶ watchers
//! ```

mod admission;
mod audit;
mod authenticate;
mod authorize;
mod backups;
mod bootstrap;
mod builtin;
mod catalog;
mod changes;
mod clock;
mod conduct;
mod config;
mod core;
mod crd;
mod credentials;
mod discovery;
mod error;
mod event;
mod fields;
mod history;
mod housekeeping;
mod http;
mod identity;
mod listen;
mod meta;
mod metrics;
mod openapi;
mod replicas;
mod request;
mod resource;
mod review;
mod schema;
mod selector;
mod server;
mod service_account;
mod stall;
mod store;
mod table;
mod verbs;

pub use changes::{FieldChange, changes};
pub use clock::{Clock, RuntimeClock, SystemClock};
pub use config::{BackupSchedule, HistoryWindow, ServerConfig, Storage, WriterMode};
pub use identity::Identity;
pub use server::{ApiService, Listener, ServeError, Server};
pub use store::{
    Backup, BackupError, OpenError, RestoreError, RestoreOptions, Restored, Rotated, backup, restore,
    rotate_key,
};
