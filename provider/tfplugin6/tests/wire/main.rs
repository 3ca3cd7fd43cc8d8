//! The example provider's process, spoken to as Terraform speaks to one: what a Terraform of today does not ask for,
//! and what no honest one does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../toy/binary.rs"]
mod binary;
mod client;
mod handshake;
mod provider;
