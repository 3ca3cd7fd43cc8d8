//! Ephemeral resources: opened for one run and never stored, such as a token.

use std::time::SystemTime;

use async_trait::async_trait;

use crate::{
    CancellationToken,
    client::{ClientCapabilities, Deferred},
    diagnostic::Diagnostic,
    resource::ValidateRequest,
    schema::Schema,
    value::Value,
};

/// One ephemeral resource type (Terraform 1.10 and later).
#[async_trait]
pub trait EphemeralResource: Send + Sync + 'static {
    /// `berth_console_token`
    fn type_name(&self) -> &str;

    /// The schema of the ephemeral resource.
    fn schema(&self) -> Schema;

    /// Validates a configuration. Values may be unknown. The provider is not configured yet.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Opens the resource.
    async fn open(&self, request: OpenRequest) -> OpenResponse;

    /// Renews the resource. Only called when [`OpenResponse::renew_at`] was set.
    async fn renew(&self, request: HeldRequest) -> RenewResponse {
        RenewResponse { private: Some(request.private), ..RenewResponse::default() }
    }

    /// Closes the resource.
    async fn close(&self, request: HeldRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }
}

/// The request of [`EphemeralResource::open`].
#[derive(Debug, Clone)]
pub struct OpenRequest {
    /// The configuration.
    pub config: Value,
    /// The capabilities of the Terraform client.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

/// The response of [`EphemeralResource::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenResponse {
    /// The configuration, with its computed attributes filled in.
    pub result: Option<Value>,
    /// The time to renew it.
    pub renew_at: Option<SystemTime>,
    /// Private bytes to pass to renew and close.
    pub private: Option<Vec<u8>>,
    /// Set if too much is unknown to open it.
    pub deferred: Option<Deferred>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

impl OpenResponse {
    /// A successful response with this result.
    #[must_use]
    pub fn new(result: Value) -> Self {
        Self { result: Some(result), ..Self::default() }
    }

    /// A failed response.
    #[must_use]
    pub fn failed(diagnostics: Vec<Diagnostic>) -> Self {
        Self { diagnostics, ..Self::default() }
    }
}

/// The request of [`EphemeralResource::renew`] and [`EphemeralResource::close`].
#[derive(Debug, Clone)]
pub struct HeldRequest {
    /// The private bytes that open or the last renew returned.
    pub private: Vec<u8>,
    /// Cancelled when Terraform sends StopProvider; never for close, since Terraform closes after StopProvider.
    pub cancel: CancellationToken,
}

/// The response of [`EphemeralResource::renew`].
#[derive(Debug, Clone, Default)]
pub struct RenewResponse {
    /// The time of the next renewal.
    pub renew_at: Option<SystemTime>,
    /// Private bytes to pass to renew and close.
    pub private: Option<Vec<u8>>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}
