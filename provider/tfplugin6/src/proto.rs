//! The wire as generated from `proto/`: for [`crate::ProviderServer`] and for tests that play Terraform's part.
//!
//! A provider never needs this module.

/// `tfplugin6`: the provider service.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]
pub mod tfplugin6 {
    tonic::include_proto!("tfplugin6");
}

/// `plugin`: what a go-plugin host expects of every plugin.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]
pub mod plugin {
    tonic::include_proto!("plugin");
}

/// `grpc.health.v1`: how the host asks whether the plugin still serves.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}
