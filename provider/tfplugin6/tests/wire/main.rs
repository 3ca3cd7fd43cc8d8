//! Tests of the example provider's process over the protocol: requests that current Terraform versions do not send, and
//! requests that no honest client sends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../toy/binary.rs"]
mod binary;
mod client;
mod handshake;
mod newer;
mod provider;
