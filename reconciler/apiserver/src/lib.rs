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

mod clock;
mod config;
pub mod fields;
mod identity;
pub mod schema;
mod server;
mod store;

pub use clock::{Clock, RuntimeClock, SystemClock};
pub use config::{HistoryWindow, ServerConfig, Storage, WriterMode};
pub use identity::Identity;
pub use server::{ApiService, Listener, ServeError, Server};
pub use store::OpenError;
