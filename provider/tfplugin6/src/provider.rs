//! The provider itself: its configuration and the types it offers.

use std::sync::Arc;

use async_trait::async_trait;

pub use crate::client::{ClientCapabilities, Deferred};
use crate::{
    CancellationToken,
    action::Action,
    data_source::DataSource,
    diagnostic::Diagnostic,
    ephemeral::EphemeralResource,
    function::Function,
    list_resource::ListResource,
    resource::{Resource, ValidateRequest},
    schema::Schema,
    value::Value,
};

/// A provider.
///
/// The provider shares the results of [`Self::configure`] (a client, for example) with its resources itself: the server
/// requests the resources once, before configure, and they are usually built around one `Arc`.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// The schema of a `provider` block.
    fn schema(&self) -> Schema;

    /// The schema of a `provider_meta` block.
    fn meta_schema(&self) -> Option<Schema> {
        None
    }

    /// Validates a configuration. Values may be unknown.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Configures the provider. Called again for another configuration when Terraform keeps the process (debugging). Values
    /// may be unknown while planning. Should be quick, and must not require the configured service to be reachable.
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

    /// The lists of resources (Terraform 1.14 and later).
    fn list_resources(&self) -> Vec<Arc<dyn ListResource>> {
        Vec::new()
    }

    /// The actions (Terraform 1.14 and later).
    fn actions(&self) -> Vec<Arc<dyn Action>> {
        Vec::new()
    }

    /// The functions (Terraform 1.8 and later).
    fn functions(&self) -> Vec<Arc<dyn Function>> {
        Vec::new()
    }
}

/// The request of [`Provider::configure`].
#[derive(Debug, Clone)]
pub struct ConfigureRequest {
    /// The configuration.
    pub config: Value,
    /// `1.11.4`
    pub terraform_version: String,
    /// The capabilities of the Terraform client.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}
