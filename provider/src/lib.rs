//! The Terraform and OpenTofu provider of berth: HCL values to and from custom resources.
//!
//! ```text
//!   provider ─▶ session (client, owner, namespace) ◀─ connection (kubeconfig, credentials)
//!      │
//!      ▼
//!   resource: plan, create, read, update, delete, import; the same for all kinds
//!      │
//!      ├─▶ kind ◀─ vm  vm_class  vm_group  vm_snapshot  disk  key_class  hotswap_disk_attachment  image  public_ip  placement_group
//!      │           network  ip_pool  storage_pool  quota  host
//!      │            (one file per kind: its table of fields and its own rules)
//!      ├─▶ planning, change, mapping, readiness: pure, by the table ─▶ field ─▶ form
//!      ├─▶ references, run: the objects that others name, and what one run creates
//!      ├─▶ replacement: of objects that others name
//!      ├─▶ name_prefix: generated names
//!      ├─▶ moved: states of other providers, for moved blocks
//!      ├─▶ private, timeouts: data stored with the state and with the object
//!      └─▶ api ─▶ the control plane
//!           └─▶ failure: why a connection fails, in words
//!
//!   data_source: one object by name, or many; from the same tables, and from the custom resource's schema (fact, selector)
//!
//!   remote_images: the images of a server or a registry, which the provider reads itself
//!
//!   list_resource: the objects of each kind for `terraform query`, selected as by data sources
//!
//!   action: restart and power of a VM
//!
//!   ephemeral: a token of a ServiceAccount, a ticket for a console, a join string of a host
//!
//!   functions: pure; of quantities, addresses and cloud-configs
//!
//!   export: configuration with import blocks, of the objects that exist
//!
//!   docs: the registry pages, from the same tables
//! ```
//!
//! It uses only the Kubernetes API. It must not know whether a cluster or `berth up` serves that API, nor how a host makes an
//! object real.

pub mod action;
pub mod api;
pub mod backup;
pub mod backup_repository;
pub mod change;
pub mod connection;
pub mod data_source;
pub mod defaults;
pub mod disk;
pub mod disk_snapshot;
pub mod docs;
pub mod ephemeral;
pub mod export;
pub mod fact;
pub mod failure;
pub mod field;
pub mod form;
pub mod functions;
pub mod host;
mod host_labels;
pub mod hotswap_disk_attachment;
pub mod image;
pub mod ip_pool;
pub mod key_class;
pub mod kind;
pub mod list_resource;
pub mod mapping;
pub mod moved;
pub mod name_prefix;
pub mod network;
pub mod placement_group;
pub mod planning;
pub mod private;
pub mod provider;
pub mod public_ip;
pub mod quota;
pub mod readiness;
pub mod references;
pub mod remote_images;
pub mod replacement;
pub mod resource;
mod restore;
pub mod run;
pub mod security_group;
pub mod selector;
pub mod session;
mod shared_with;
pub mod snapshot_schedule;
pub mod storage_pool;
pub mod timeouts;
pub mod vm;
pub mod vm_class;
pub mod vm_group;
pub mod vm_snapshot;

pub use provider::BerthProvider;

/// The provider's address.
pub const ADDRESS: &str = "registry.terraform.io/berth-vms/berth";
