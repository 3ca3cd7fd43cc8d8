//! The Terraform plugin protocol 6, as a server.
//!
//! ```text
//!   Terraform ─▶ serve (handshake, TLS, log) ─▶ server (gRPC, panics, cancellation)
//!                                                  │
//!                                                  ▼
//!                              provider ─▶ resource  data_source  ephemeral  list_resource  action  function
//!                                          (the traits that a provider implements)
//!                                                  │
//!                                                  ▼
//!                          plan (rules of planned states) ─▶ schema   identity   diagnostic
//!                                                  │
//!                                                  ▼
//!                         codec (MessagePack, JSON) ─▶ value ─▶ ty   number   path
//!
//!   proto: the generated messages      client: the capabilities of Terraform
//! ```
//!
//! A provider implements [`Provider`] and, for each of its resources, [`Resource`] (and, where it has them, [`DataSource`],
//! [`EphemeralResource`], [`ListResource`], [`Action`], [`Function`]); [`serve`] does the rest.
//!
//! ```no_run
//! # use tfplugin6::{Provider, ServeOptions, Schema};
//! # struct Mine;
//! # impl Provider for Mine { fn schema(&self) -> Schema { Schema::default() } }
//! fn main() -> std::process::ExitCode {
//!     tfplugin6::serve(|| Mine, ServeOptions::new("me/mine"))
//! }
//! ```
//!
//! This crate must not know any resource, nor Kubernetes, nor any other service that a provider uses.

pub mod action;
pub mod client;
mod codec;
pub mod data_source;
pub mod diagnostic;
pub mod ephemeral;
pub mod function;
pub mod identity;
pub mod list_resource;
pub mod number;
pub mod path;
pub mod plan;
pub mod proto;
pub mod provider;
pub mod resource;
pub mod schema;
mod serve;
mod server;
pub mod ty;
pub mod value;

pub use action::Action;
pub use codec::{ValueError, ValueProblem};
pub use data_source::DataSource;
pub use diagnostic::{Diagnostic, Severity};
pub use ephemeral::EphemeralResource;
pub use function::{Function, FunctionError};
pub use identity::IdentitySchema;
pub use list_resource::ListResource;
pub use number::Number;
pub use path::{AttributePath, Step};
pub use provider::Provider;
pub use resource::Resource;
pub use schema::{Attribute, Block, NestedAttribute, NestedBlock, Schema};
pub use serve::{ServeOptions, serve};
pub use server::ProviderServer;
pub use ty::Type;
pub use value::{Refinement, Value};

/// Re-exported: requests carry one, and [`Provider::configure`] may need its own.
pub use tokio_util::sync::CancellationToken;
