//! A Kubernetes API's operations on objects: schemas, expressions, field ownership, metadata, patches,
//! selectors, tables.
//!
//! Functions over values. This crate must not know a store, a clock, a socket, an HTTP request, an identity,
//! or the served resources: times, schemas and options are arguments. Of HTTP it uses only the status codes.
//!
//! ```text
//!  fields            patch      selector     table      changes      apply and ownership; patches; lists and tables
//!    │                             │           │
//!    │      builtin               meta         │                     schemas of the built-in kinds; `metadata`
//!    ╰────────┴──────────┬─────────┴───────────╯
//!                      schema ── expression                          structural schemas: prune, default, validate; CEL
//!
//!  time: timestamps in objects
//!  error: the error of a request as clients receive it, a `Status`
//! ```

pub mod builtin;
pub mod changes;
pub mod error;
pub mod fields;
pub mod meta;
pub mod patch;
pub mod schema;
pub mod selector;
pub mod table;
pub mod time;
