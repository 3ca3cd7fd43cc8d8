//! An ephemeral resource: something opened for one run and never stored, such as a token.

use std::time::SystemTime;

use async_trait::async_trait;

use crate::{
    CancellationToken,
    diagnostic::Diagnostic,
    provider::{ClientCapabilities, Deferred},
    resource::ValidateRequest,
    schema::Schema,
    value::Value,
};

/// One kind of ephemeral resource (Terraform 1.10 and later).
#[async_trait]
pub trait EphemeralResource: Send + Sync + 'static {
    /// `berth_console_token`
    fn type_name(&self) -> &str;

    /// What it looks like.
    fn schema(&self) -> Schema;

    /// Says what is wrong with a configuration. Values may be unknown. Nothing is configured yet.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Opens one.
    async fn open(&self, request: OpenRequest) -> OpenResponse;

    /// Keeps it open for longer. Only called when [`OpenResponse::renew_at`] was set.
    async fn renew(&self, request: HeldRequest) -> RenewResponse {
        RenewResponse { private: Some(request.private), ..RenewResponse::default() }
    }

    /// Gives it back.
    async fn close(&self, request: HeldRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }
}

/// For [`EphemeralResource::open`].
#[derive(Debug, Clone)]
pub struct OpenRequest {
    /// As written.
    pub config: Value,
    /// What this Terraform can do.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

/// From [`EphemeralResource::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenResponse {
    /// The configuration, completed.
    pub result: Option<Value>,
    /// When to renew it.
    pub renew_at: Option<SystemTime>,
    /// To hand to renew and close.
    pub private: Option<Vec<u8>>,
    /// Too much is unknown to open it.
    pub deferred: Option<Deferred>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}

impl OpenResponse {
    /// It worked: this is the result.
    #[must_use]
    pub fn new(result: Value) -> Self {
        Self { result: Some(result), ..Self::default() }
    }

    /// It did not work.
    #[must_use]
    pub fn failed(diagnostics: Vec<Diagnostic>) -> Self {
        Self { diagnostics, ..Self::default() }
    }
}

/// For [`EphemeralResource::renew`] and [`EphemeralResource::close`].
#[derive(Debug, Clone)]
pub struct HeldRequest {
    /// What open or the last renew returned.
    pub private: Vec<u8>,
    /// Cancelled when Terraform is told to stop; for close never, since Terraform closes after it stops.
    pub cancel: CancellationToken,
}

/// From [`EphemeralResource::renew`].
#[derive(Debug, Clone, Default)]
pub struct RenewResponse {
    /// When to renew it again.
    pub renew_at: Option<SystemTime>,
    /// To hand to renew and close.
    pub private: Option<Vec<u8>>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}
