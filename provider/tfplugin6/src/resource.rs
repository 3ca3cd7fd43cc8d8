//! Managed resources: requests and responses, in the order of a resource's life cycle.
//!
//! A successful response is built with `new`, a failed one from diagnostics: `return PlanResponse::failed(vec![…])`, or with
//! `?`-style code `body(request).await.unwrap_or_else(PlanResponse::failed)`. Warnings are added with [`PlanResponse::warn`]
//! and its counterparts.

use async_trait::async_trait;

use crate::{
    CancellationToken,
    client::{ClientCapabilities, Deferred},
    codec,
    codec::ValueError,
    diagnostic::Diagnostic,
    identity::IdentitySchema,
    path::AttributePath,
    schema::Schema,
    value::Value,
};

/// One resource type.
///
/// The server calls [`Self::schema`] once. Values in requests hold every attribute of the schema (null when it is not set) and
/// no write-only values, except `config`, which holds them. Values in responses may omit null attributes; write-only values
/// are removed from them.
#[async_trait]
pub trait Resource: Send + Sync + 'static {
    /// `berth_vm`
    fn type_name(&self) -> &str;

    /// The schema of the resource type.
    fn schema(&self) -> Schema;

    /// The schema of the resource identity (Terraform 1.12 and later).
    fn identity_schema(&self) -> Option<IdentitySchema> {
        None
    }

    /// Whether [`Self::plan`] is also called for a destroy. If not, every destroy is planned unchanged.
    fn plans_destroy(&self) -> bool {
        false
    }

    /// Validates a configuration. Values may be unknown. The provider is not configured yet.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Plans an apply. Changes nothing.
    ///
    /// Terraform's rules: a configured attribute is planned as configured (or, if it means the same, as it is in the prior
    /// state); only computed attributes may differ; apply returns every value that was planned as known. See
    /// [`crate::plan::mark_computed_unknown`].
    async fn plan(&self, request: PlanRequest) -> PlanResponse;

    /// Applies a plan: creates, updates or (planned is null) destroys the resource.
    async fn apply(&self, request: ApplyRequest) -> ApplyResponse;

    /// Refreshes a state. A null state means that the resource no longer exists.
    async fn read(&self, request: ReadRequest) -> ReadResponse;

    /// Imports an existing resource. [`Self::read`] completes the state that it returns.
    async fn import(&self, request: ImportRequest) -> ImportResponse {
        let _ = request;
        let detail = format!("{} does not support import.", self.type_name());
        ImportResponse::failed(vec![Diagnostic::error("Resource import not supported", detail)])
    }

    /// Upgrades a state of another schema version to this version. It is not called for a state of this version: there,
    /// attributes that no longer exist are ignored and absent ones are null.
    async fn upgrade(&self, request: UpgradeRequest) -> UpgradeResponse {
        let detail = format!(
            "The state of this {} was written with schema version {}, which this provider cannot read. \
             Use the provider version that wrote it, or a newer one.",
            self.type_name(),
            request.version
        );
        UpgradeResponse::failed(vec![Diagnostic::error("Unable to upgrade resource state", detail)])
    }

    /// Upgrades an identity of another version to this version.
    async fn upgrade_identity(&self, request: UpgradeRequest) -> UpgradeResponse {
        let detail = format!("This provider cannot read identities of version {}.", request.version);
        UpgradeResponse::failed(vec![Diagnostic::error("Unable to upgrade resource identity", detail)])
    }

    /// Whether [`Self::generate_config`] is implemented.
    fn generates_config(&self) -> bool {
        false
    }

    /// Generates the configuration of a resource that exists (Terraform 1.14 and later: `-generate-config-out`).
    async fn generate_config(&self, request: GenerateConfigRequest) -> GenerateConfigResponse {
        GenerateConfigResponse { config: request.state, diagnostics: Vec::new() }
    }

    /// Moves a resource of another type to this type (a `moved` block).
    async fn move_state(&self, request: MoveRequest) -> MoveResponse {
        let detail = format!(
            "A {} of provider {} cannot be moved to a {}.",
            request.source_type_name,
            request.source_provider_address,
            self.type_name()
        );
        MoveResponse::failed(vec![Diagnostic::error("Unable to move resource state", detail)])
    }
}

/// The request of [`Resource::validate`] and its counterparts.
#[derive(Debug, Clone)]
pub struct ValidateRequest {
    /// The configuration, with its write-only values.
    pub config: Value,
    /// The capabilities of the Terraform client.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

/// The request of [`Resource::plan`].
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// The prior state; null for a create.
    pub prior: Value,
    /// Terraform's proposed state: the configuration, with unset attributes taken from the prior state; null for a destroy.
    pub proposed: Value,
    /// The configuration, with its write-only values; null for a destroy.
    pub config: Value,
    /// The private bytes stored with the state.
    pub private: Vec<u8>,
    /// The identity, if it is known.
    pub identity: Option<Value>,
    /// The `provider_meta` of the module.
    pub provider_meta: Value,
    /// The capabilities of the Terraform client.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

impl PlanRequest {
    /// Whether the resource does not exist yet.
    #[must_use]
    pub fn is_create(&self) -> bool {
        self.prior.is_null()
    }

    /// Whether the resource is to be destroyed.
    #[must_use]
    pub fn is_destroy(&self) -> bool {
        self.proposed.is_null()
    }
}

/// The response of [`Resource::plan`].
#[derive(Debug, Clone, Default)]
pub struct PlanResponse {
    /// The planned state.
    pub planned: Value,
    /// Attributes that require replacement when they change. Only those that differ from the prior state count.
    pub requires_replace: Vec<AttributePath>,
    /// Private bytes to pass to apply; none keeps the prior ones.
    pub private: Option<Vec<u8>>,
    /// The planned identity; none keeps the prior one.
    pub identity: Option<Value>,
    /// Set if too much is unknown to plan.
    pub deferred: Option<Deferred>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

/// The request of [`Resource::apply`].
#[derive(Debug, Clone)]
pub struct ApplyRequest {
    /// The prior state; null for a create.
    pub prior: Value,
    /// The planned state; null for a destroy. Apply may set only the values that are unknown in it.
    pub planned: Value,
    /// The configuration, with its write-only values; null for a destroy.
    pub config: Value,
    /// The private bytes that plan returned.
    pub private: Vec<u8>,
    /// The identity that plan returned.
    pub identity: Option<Value>,
    /// The `provider_meta` of the module.
    pub provider_meta: Value,
    /// Cancelled when Terraform sends StopProvider: return soon, with the current state.
    pub cancel: CancellationToken,
}

impl ApplyRequest {
    /// Whether the resource does not exist yet.
    #[must_use]
    pub fn is_create(&self) -> bool {
        self.prior.is_null()
    }

    /// Whether the resource is to be destroyed.
    #[must_use]
    pub fn is_destroy(&self) -> bool {
        self.planned.is_null()
    }
}

/// The response of [`Resource::apply`].
#[derive(Debug, Clone, Default)]
pub struct ApplyResponse {
    /// The state after the apply; null when the resource is destroyed. None with an error: the prior state is kept, which for
    /// a create means that there is none. Some with an error is a partial state: unknown values in it become null, and a
    /// created resource is tainted.
    pub state: Option<Value>,
    /// Private bytes to store with the state; none keeps the planned ones, also with an error.
    pub private: Option<Vec<u8>>,
    /// The identity; none keeps the planned one.
    pub identity: Option<Value>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

/// The request of [`Resource::read`].
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The current state.
    pub state: Value,
    /// The private bytes stored with the state.
    pub private: Vec<u8>,
    /// The identity, if it is known.
    pub identity: Option<Value>,
    /// The `provider_meta` of the module.
    pub provider_meta: Value,
    /// The capabilities of the Terraform client.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

/// The response of [`Resource::read`].
#[derive(Debug, Clone, Default)]
pub struct ReadResponse {
    /// The refreshed state; null when the resource no longer exists. None keeps the current state.
    pub state: Option<Value>,
    /// Private bytes to store with the state; none keeps the prior ones.
    pub private: Option<Vec<u8>>,
    /// The identity; none keeps the prior one.
    pub identity: Option<Value>,
    /// Set if too much is unknown to read.
    pub deferred: Option<Deferred>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

/// The request of [`Resource::import`].
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// The ID or identity to import.
    pub source: ImportSource,
    /// The capabilities of the Terraform client.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

/// The identification of the resource to import.
#[derive(Debug, Clone, PartialEq)]
pub enum ImportSource {
    /// `terraform import ADDRESS ID`, or `id` of an import block.
    Id(String),
    /// `identity` of an import block (Terraform 1.12 and later).
    Identity(Value),
}

/// The response of [`Resource::import`].
#[derive(Debug, Clone, Default)]
pub struct ImportResponse {
    /// The imported state, with at least the attributes that read needs to complete it.
    pub state: Option<Value>,
    /// Private bytes to store with the state.
    pub private: Vec<u8>,
    /// The identity; none keeps the one in the request.
    pub identity: Option<Value>,
    /// Set if too much is unknown to import.
    pub deferred: Option<Deferred>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

/// The request of [`Resource::upgrade`] and [`Resource::upgrade_identity`].
#[derive(Debug, Clone)]
pub struct UpgradeRequest {
    /// The schema version that wrote the state or identity.
    pub version: i64,
    /// The stored state or identity, as JSON.
    pub json: String,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

impl UpgradeRequest {
    /// Decodes the JSON with a schema, usually that of the version that wrote it. Attributes that the schema does not have are
    /// ignored, absent ones are null.
    ///
    /// # Errors
    /// When a value does not fit the schema.
    pub fn decode(&self, schema: &Schema) -> Result<Value, ValueError> {
        codec::json::decode_state(self.json.as_bytes(), &schema.ty())
    }
}

/// The response of [`Resource::upgrade`] and [`Resource::upgrade_identity`].
#[derive(Debug, Clone, Default)]
pub struct UpgradeResponse {
    /// The state or identity in the current version.
    pub state: Option<Value>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

/// The request of [`Resource::move_state`].
#[derive(Debug, Clone)]
pub struct MoveRequest {
    /// `HOST/hashicorp/null`
    pub source_provider_address: String,
    /// `null_resource`
    pub source_type_name: String,
    /// The schema version of the source.
    pub source_schema_version: i64,
    /// The stored state of the source, as JSON.
    pub source_json: String,
    /// The private bytes that the source provider stored with the state.
    pub source_private: Vec<u8>,
    /// The stored identity of the source, if it has one, as JSON.
    pub source_identity_json: Option<String>,
    /// The identity schema version of the source.
    pub source_identity_schema_version: i64,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

/// The request of [`Resource::generate_config`].
#[derive(Debug, Clone)]
pub struct GenerateConfigRequest {
    /// The state, as a read after an import returned it.
    pub state: Value,
    /// Cancelled when Terraform sends StopProvider.
    pub cancel: CancellationToken,
}

/// The response of [`Resource::generate_config`].
#[derive(Debug, Clone, Default)]
pub struct GenerateConfigResponse {
    /// A configuration of which the plan has no changes: attributes that it leaves out are null.
    pub config: Value,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

/// The response of [`Resource::move_state`].
#[derive(Debug, Clone, Default)]
pub struct MoveResponse {
    /// The state in this resource type.
    pub state: Option<Value>,
    /// Private bytes to store with the state.
    pub private: Vec<u8>,
    /// The identity.
    pub identity: Option<Value>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

impl PlanResponse {
    /// A response with this planned state.
    #[must_use]
    pub fn new(planned: Value) -> Self {
        Self { planned, ..Self::default() }
    }
}

macro_rules! with_state {
    ($($response:ident),*) => {$(
        impl $response {
            /// A successful response with this state.
            #[must_use]
            pub fn new(state: Value) -> Self {
                Self { state: Some(state), ..Self::default() }
            }
        }
    )*};
}
with_state!(ApplyResponse, ReadResponse, ImportResponse, UpgradeResponse, MoveResponse);

macro_rules! with_diagnostics {
    ($($response:ident),*) => {$(
        impl $response {
            /// A failed response.
            #[must_use]
            pub fn failed(diagnostics: Vec<Diagnostic>) -> Self {
                Self { diagnostics, ..Self::default() }
            }

            /// Adds diagnostics.
            #[must_use]
            pub fn warn(mut self, diagnostics: impl IntoIterator<Item = Diagnostic>) -> Self {
                self.diagnostics.extend(diagnostics);
                self
            }
        }

        impl From<Diagnostic> for $response {
            fn from(diagnostic: Diagnostic) -> Self {
                Self::failed(vec![diagnostic])
            }
        }
    )*};
}
with_diagnostics!(PlanResponse, ApplyResponse, ReadResponse, ImportResponse, UpgradeResponse, MoveResponse);
