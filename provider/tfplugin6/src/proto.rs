//! The generated code for `proto/`: for [`crate::ProviderServer`] and for tests that act as Terraform.
//!
//! A provider never needs this module.

#![allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]

/// `tfplugin6`: the provider service.
pub mod tfplugin6 {
    tonic::include_proto!("tfplugin6");
}

/// `plugin`: the services that a go-plugin host expects of every plugin.
pub mod plugin {
    tonic::include_proto!("plugin");
}

/// `grpc.health.v1`: the host's health check of the plugin.
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}
