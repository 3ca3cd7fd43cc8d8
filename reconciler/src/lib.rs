//! The one binary `berth`: its commands, and what only they need.
//!
//! The controllers (`berth-controllers`) decide which host and which address; the host agent (`berth-agent`) realizes the
//! decisions; the embedded control plane (`berth-apiserver`) is for sites without Kubernetes. They communicate only
//! through objects.
//!
//! ```text
//!  cli ─▶ commands ─▶ install, join, leader, recovery, site      one file a command; what several commands need
//!            │   ╲
//!            │    graduate, import      moves a site to another control plane; HCL for libvirt's domains
//!            │    why, doctor, top      explanations of an object and of a machine; the use of hosts
//!            │    net_trace             the way of a packet over hosts, as text
//!            │    service, deployment   the units of systemd; the Deployment of the controllers
//!            │    health, controllers_metrics   what the controllers answer over HTTP
//!            ▼
//!  requests, credential, one_connection ─▶ too_many_requests, api_limits, log, failure, notice, printable   clients, credentials, output
//! ```
//!
//! It must not decide placement, run a guest or interpret a request of the API: those are the other crates'.

#![warn(clippy::print_stderr, reason = "it panics when there is no reader: `notice` does not")]

// First: its macro is for those that follow.
#[macro_use]
mod notice;

pub mod api_limits;
pub mod cli;
pub mod commands;
mod controllers_metrics;
pub mod credential;
mod deployment;
mod doctor;
pub mod failure;
pub mod graduate;
pub mod health;
pub mod import;
pub mod install;
pub mod join;
pub mod leader;
pub mod log;
pub mod memory;
mod net_trace;
pub mod one_connection;
pub mod printable;
pub mod recovery;
mod requests;
mod service;
pub mod site;
mod too_many_requests;
mod top;
mod why;
