//! The Terraform and OpenTofu provider of berth: HCL values to and from custom resources.
//!
//! ```text
//! provider ─▶ session ─▶ resource (plan, create, read, update, delete, import; the same for all kinds)
//!                            ├─ kind: one file a kind, named after it ─▶ field (the table)
//!                            ├─ planning, mapping: pure, by the table
//!                            └─ api ─▶ the control plane
//! ```
//!
//! It speaks to the Kubernetes API only, and must not know whether a cluster or `berth up` answers.

pub mod api;
pub mod change;
pub mod connection;
pub mod disk;
pub mod docs;
pub mod field;
pub mod form;
pub mod hotswap_disk_attachment;
pub mod image;
pub mod kind;
pub mod mapping;
pub mod placement_group;
pub mod planning;
pub mod private;
pub mod provider;
pub mod public_ip;
pub mod readiness;
pub mod resource;
pub mod session;
pub mod timeouts;
pub mod vm;
pub mod vm_class;

pub use provider::BerthProvider;

/// The provider's address.
pub const ADDRESS: &str = "registry.terraform.io/berth-vms/berth";
