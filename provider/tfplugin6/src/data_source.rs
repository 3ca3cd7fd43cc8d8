//! A data source: something read, never changed.

use async_trait::async_trait;

use crate::{
    CancellationToken,
    diagnostic::Diagnostic,
    provider::{ClientCapabilities, Deferred},
    resource::ValidateRequest,
    schema::Schema,
    value::Value,
};

/// One kind of data source.
#[async_trait]
pub trait DataSource: Send + Sync + 'static {
    /// `berth_image`
    fn type_name(&self) -> &str;

    /// What it looks like.
    fn schema(&self) -> Schema;

    /// Says what is wrong with a configuration. Values may be unknown. Nothing is configured yet.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Reads. The configuration is wholly known.
    async fn read(&self, request: ReadDataRequest) -> ReadDataResponse;
}

/// For [`DataSource::read`].
#[derive(Debug, Clone)]
pub struct ReadDataRequest {
    /// As written.
    pub config: Value,
    /// The `provider_meta` of the module.
    pub provider_meta: Value,
    /// What this Terraform can do.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

/// From [`DataSource::read`].
#[derive(Debug, Clone, Default)]
pub struct ReadDataResponse {
    /// The configuration, completed.
    pub state: Option<Value>,
    /// Too much is unknown to read.
    pub deferred: Option<Deferred>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}

impl ReadDataResponse {
    /// It worked: this is the state.
    #[must_use]
    pub fn new(state: Value) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// It did not work.
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
