//! List resources: the objects of a resource type that exist, for `terraform query`.

use async_trait::async_trait;

use crate::{
    CancellationToken, diagnostic::Diagnostic, resource::ValidateRequest, schema::Schema, value::Value,
};

/// The list of one resource type (Terraform 1.14 and later).
#[async_trait]
pub trait ListResource: Send + Sync + 'static {
    /// `berth_vm`: the name of the resource type, which must have an identity.
    fn type_name(&self) -> &str;

    /// The schema of the block `config`.
    fn schema(&self) -> Schema;

    /// Validates a configuration. Values may be unknown. The provider is not configured yet.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Lists the resources. The configuration is wholly known.
    async fn list(&self, request: ListRequest) -> ListResponse;
}

/// The request of [`ListResource::list`].
#[derive(Debug, Clone)]
pub struct ListRequest {
    /// The configuration.
    pub config: Value,
    /// Whether the results need [`ListResult::resource`].
    pub include_resource: bool,
    /// The largest number of results that are read.
    pub limit: usize,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

/// The response of [`ListResource::list`].
#[derive(Debug, Clone, Default)]
pub struct ListResponse {
    /// The results, in order.
    pub results: Vec<ListResult>,
    /// Diagnostics to show. With an error, the results are not.
    pub diagnostics: Vec<Diagnostic>,
}

/// One resource that exists.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ListResult {
    /// The identity.
    pub identity: Value,
    /// The name to show.
    pub display_name: String,
    /// The state, as a read after an import returns it.
    pub resource: Option<Value>,
}

impl ListResponse {
    /// A successful response with these results.
    #[must_use]
    pub fn new(results: Vec<ListResult>) -> Self {
        Self { results, diagnostics: Vec::new() }
    }

    /// A failed response.
    #[must_use]
    pub fn failed(diagnostics: Vec<Diagnostic>) -> Self {
        Self { results: Vec::new(), diagnostics }
    }
}

impl From<Diagnostic> for ListResponse {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::failed(vec![diagnostic])
    }
}
