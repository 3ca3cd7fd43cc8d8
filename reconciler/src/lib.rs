//! The reconciler: controllers that bind what users declare to hosts, and the one binary `berth`.
//!
//! [`controllers`] decide (which host, which address); the host agent (`berth-agent`) makes it real; the embedded
//! control plane (`berth-apiserver`) stands where there is no Kubernetes. They meet only through objects.

pub mod cli;
pub mod clock;
pub mod commands;
pub mod controllers;
pub mod credential;
pub mod graduate;
pub mod install;
pub mod join;
pub mod leader;
pub mod log;
pub mod one_connection;
mod requests;
pub mod site;
