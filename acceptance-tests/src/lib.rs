//! Drives the real binaries (berth, its Terraform provider, terraform, kubectl, QEMU, kube-apiserver, etcd) as a user does,
//! and checks the results from outside: over HTTP to the guest, in the process list, in nftables.
//!
//! It must not know how berth works inside: it links none of its crates, so that nothing here can agree with a bug.

pub mod access;
pub mod api;
pub mod bench;
pub mod berth;
pub mod cache;
pub mod ceph;
pub mod cgroups;
pub mod clock;
pub mod control_plane;
pub mod differential;
pub mod fleet;
pub mod footprint;
pub mod foreign_packages;
pub mod garbage_collector;
pub mod guests;
pub mod http;
pub mod image_server;
pub mod kube_rs;
pub mod kubectl;
pub mod machine;
pub mod manifests;
pub mod namespace;
pub mod next_version;
pub mod oci_registry;
pub mod package_source;
pub mod platform;
pub mod prerequisites;
pub mod proc;
pub mod process;
pub mod progress;
pub mod report;
pub mod scratch;
pub mod segment;
pub mod suites;
pub mod terraform;
pub mod tools;
pub mod undo;
pub mod vault;
pub mod wait;
pub mod workspace;
