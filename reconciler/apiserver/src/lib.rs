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

pub mod admission;
mod authorize;
mod bootstrap;
mod builtin;
mod catalog;
mod clock;
mod config;
mod core;
mod crd;
mod credentials;
mod discovery;
mod error;
mod event;
mod fields;
mod housekeeping;
mod http;
mod identity;
mod listen;
mod meta;
mod metrics;
mod request;
mod resource;
mod review;
mod schema;
mod selector;
mod server;
mod store;
mod verbs;

mod admission {
    //! Placeholder until the policies module is in place.
    use serde_json::Value;
    #[derive(Debug)]
    pub(crate) struct Policies;
    #[derive(Debug)]
    pub(crate) struct Denied { pub(crate) code: u16, pub(crate) reason: String, pub(crate) message: String }
    #[allow(dead_code)]
    pub(crate) struct Request<'a> {
        pub operation: &'a str, pub group: &'a str, pub version: &'a str, pub resource: &'a str, pub kind: &'a str,
        pub subresource: &'a str, pub namespace: &'a str, pub name: &'a str, pub object: Option<&'a Value>,
        pub old_object: Option<&'a Value>, pub user: &'a str, pub groups: &'a [String], pub dry_run: bool,
        pub namespace_object: Option<&'a Value>,
    }
    impl Policies {
        pub(crate) fn new(_: &[Value], _: &[Value]) -> Self { Self }
        pub(crate) fn is_empty(&self) -> bool { true }
        pub(crate) fn check(&self, _: &Request<'_>) -> Result<Vec<String>, Denied> { Ok(Vec::new()) }
    }
}

pub use clock::{Clock, RuntimeClock, SystemClock};
pub use config::{HistoryWindow, ServerConfig, Storage, WriterMode};
pub use identity::Identity;
pub use server::{ApiService, Listener, ServeError, Server};
pub use store::OpenError;
