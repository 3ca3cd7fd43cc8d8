//! Data sources: objects that are read, never changed.

use async_trait::async_trait;

use crate::{
    CancellationToken,
    client::{ClientCapabilities, Deferred},
    diagnostic::Diagnostic,
    resource::ValidateRequest,
    schema::Schema,
    value::Value,
};

/// One data source type.
#[async_trait]
pub trait DataSource: Send + Sync + 'static {
    /// `berth_image`
    fn type_name(&self) -> &str;

    /// The schema of the data source.
    fn schema(&self) -> Schema;

    /// Validates a configuration. Values may be unknown. The provider is not configured yet.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Reads the data source. The configuration is wholly known.
    async fn read(&self, request: ReadDataRequest) -> ReadDataResponse;
}

/// The request of [`DataSource::read`].
#[derive(Debug, Clone)]
pub struct ReadDataRequest {
    /// The configuration.
    pub config: Value,
    /// The `provider_meta` of the module.
    pub provider_meta: Value,
    /// The capabilities of the Terraform client.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

/// The response of [`DataSource::read`].
#[derive(Debug, Clone, Default)]
pub struct ReadDataResponse {
    /// The configuration, with its computed attributes filled in.
    pub state: Option<Value>,
    /// Set if too much is unknown to read.
    pub deferred: Option<Deferred>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

impl ReadDataResponse {
    /// A successful response with this state.
    #[must_use]
    pub fn new(state: Value) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// A failed response.
    #[must_use]
    pub fn failed(diagnostics: Vec<Diagnostic>) -> Self {
        Self { diagnostics, ..Self::default() }
    }
}

impl From<Diagnostic> for ReadDataResponse {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::failed(vec![diagnostic])
    }
}
