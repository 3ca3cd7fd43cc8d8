//! The provider itself: its configuration and what it offers.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    CancellationToken,
    data_source::DataSource,
    diagnostic::Diagnostic,
    ephemeral::EphemeralResource,
    function::Function,
    resource::{Resource, ValidateRequest},
    schema::Schema,
    value::Value,
};

/// A provider.
///
/// What [`Self::configure`] learns (a client, say) is the provider's to share with its resources: they are asked for
/// once, before it, and are usually built around one `Arc`.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// What a `provider` block takes.
    fn schema(&self) -> Schema;

    /// What a `provider_meta` block takes.
    fn meta_schema(&self) -> Option<Schema> {
        None
    }

    /// Says what is wrong with a configuration. Values may be unknown.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Takes a configuration. Called again for another one when Terraform keeps the process (debugging). Values may be
    /// unknown while planning. Should be quick, and must not need what it configures to be reachable.
    async fn configure(&self, request: ConfigureRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// The resources.
    fn resources(&self) -> Vec<Arc<dyn Resource>> {
        Vec::new()
    }

    /// The data sources.
    fn data_sources(&self) -> Vec<Arc<dyn DataSource>> {
        Vec::new()
    }

    /// The ephemeral resources (Terraform 1.10 and later).
    fn ephemeral_resources(&self) -> Vec<Arc<dyn EphemeralResource>> {
        Vec::new()
    }

    /// The functions (Terraform 1.8 and later).
    fn functions(&self) -> Vec<Arc<dyn Function>> {
        Vec::new()
    }
}

/// For [`Provider::configure`].
#[derive(Debug, Clone)]
pub struct ConfigureRequest {
    /// As written.
    pub config: Value,
    /// `1.11.4`
    pub terraform_version: String,
    /// What this Terraform can do.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

/// What the Terraform at the other end can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// A response may be [`Deferred`].
    pub deferral_allowed: bool,
    /// The configuration may hold write-only values.
    pub write_only_attributes_allowed: bool,
    /// The private bytes of a plan are kept when it is planned again.
    pub store_planned_private: bool,
    /// Blocks may be computed.
    pub computed_blocks_allowed: bool,
}

/// Why something cannot be decided yet. Only for a client that allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deferred {
    /// The resource's configuration is unknown.
    ResourceConfigUnknown,
    /// The provider's configuration is unknown.
    ProviderConfigUnknown,
    /// Something it needs does not exist yet.
    AbsentPrerequisite,
}
