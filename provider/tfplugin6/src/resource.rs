//! A managed resource: its requests and responses, in the order of its life.
//!
//! Every response is built with `new` (it worked) or made from diagnostics (it did not): `return
//! PlanResponse::failed(vec![…])`, or with `?`-style code `body(request).await.unwrap_or_else(PlanResponse::failed)`.
//! Warnings go with [`PlanResponse::warn`] and its like.

use async_trait::async_trait;

use crate::{
    CancellationToken, codec,
    codec::ValueError,
    diagnostic::Diagnostic,
    identity::IdentitySchema,
    path::AttributePath,
    provider::{ClientCapabilities, Deferred},
    schema::Schema,
    value::Value,
};

/// One kind of resource.
///
/// The server asks for [`Self::schema`] once. Values in requests hold every attribute of the schema (null when it is
/// not set) and no write-only value, except `config`, which does. Values in responses may leave null attributes out;
/// write-only values are removed from them.
#[async_trait]
pub trait Resource: Send + Sync + 'static {
    /// `berth_vm`
    fn type_name(&self) -> &str;

    /// What it looks like.
    fn schema(&self) -> Schema;

    /// What identifies one of these (Terraform 1.12 and later).
    fn identity_schema(&self) -> Option<IdentitySchema> {
        None
    }

    /// Whether [`Self::plan`] is to be called for a destroy also. If not, every destroy is planned as it is.
    fn plans_destroy(&self) -> bool {
        false
    }

    /// Says what is wrong with a configuration. Values may be unknown. Nothing is configured yet.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Says what an apply would do. Changes nothing.
    ///
    /// Terraform's rules: a configured attribute is planned as configured (or, if it means the same, as it is in the
    /// prior state); only computed attributes may differ; what is planned known is what apply returns. See
    /// [`crate::plan::mark_computed_unknown`].
    async fn plan(&self, request: PlanRequest) -> PlanResponse;

    /// Makes it so: creates, updates or (planned is null) destroys.
    async fn apply(&self, request: ApplyRequest) -> ApplyResponse;

    /// Brings a state up to date. A state of null says that the resource is gone.
    async fn read(&self, request: ReadRequest) -> ReadResponse;

    /// Finds an existing one. What it returns is completed by [`Self::read`].
    async fn import(&self, request: ImportRequest) -> ImportResponse {
        let _ = request;
        let detail = format!("{} does not support import.", self.type_name());
        ImportResponse::failed(vec![Diagnostic::error("Resource import not supported", detail)])
    }

    /// Turns a state of another schema version into one of this version. A state of this version never gets here:
    /// attributes that no longer exist are ignored, absent ones are null.
    async fn upgrade(&self, request: UpgradeRequest) -> UpgradeResponse {
        let detail = format!(
            "The state of this {} was written with schema version {}, which this provider cannot read. \
             Use the provider version that wrote it, or a newer one.",
            self.type_name(),
            request.version
        );
        UpgradeResponse::failed(vec![Diagnostic::error("Unable to upgrade resource state", detail)])
    }

    /// Turns an identity of another version into one of this version.
    async fn upgrade_identity(&self, request: UpgradeRequest) -> UpgradeResponse {
        let detail = format!("This provider cannot read identities of version {}.", request.version);
        UpgradeResponse::failed(vec![Diagnostic::error("Unable to upgrade resource identity", detail)])
    }

    /// Takes over a resource of another type (a `moved` block).
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

/// For [`Resource::validate`] and its like.
#[derive(Debug, Clone)]
pub struct ValidateRequest {
    /// As written, write-only values included.
    pub config: Value,
    /// What this Terraform can do.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

/// For [`Resource::plan`].
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// The state before; null for a create.
    pub prior: Value,
    /// Terraform's proposal: the configuration, completed from the state where it says nothing; null for a destroy.
    pub proposed: Value,
    /// As written, write-only values included; null for a destroy.
    pub config: Value,
    /// What the provider stored with the state.
    pub private: Vec<u8>,
    /// What identifies it, if known.
    pub identity: Option<Value>,
    /// The `provider_meta` of the module.
    pub provider_meta: Value,
    /// What this Terraform can do.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

impl PlanRequest {
    /// There is none yet.
    #[must_use]
    pub fn is_create(&self) -> bool {
        self.prior.is_null()
    }

    /// There is to be none.
    #[must_use]
    pub fn is_destroy(&self) -> bool {
        self.proposed.is_null()
    }
}

/// From [`Resource::plan`].
#[derive(Debug, Clone, Default)]
pub struct PlanResponse {
    /// The planned state.
    pub planned: Value,
    /// Attributes whose change needs a new resource. Only what differs from the prior state counts.
    pub requires_replace: Vec<AttributePath>,
    /// To hand to apply; none: what was there before.
    pub private: Option<Vec<u8>>,
    /// What will identify it; none: what was there before.
    pub identity: Option<Value>,
    /// Too much is unknown to plan.
    pub deferred: Option<Deferred>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}

/// For [`Resource::apply`].
#[derive(Debug, Clone)]
pub struct ApplyRequest {
    /// The state before; null for a create.
    pub prior: Value,
    /// The planned state; null for a destroy. Only what is unknown in it may be filled.
    pub planned: Value,
    /// As written, write-only values included; null for a destroy.
    pub config: Value,
    /// What plan returned.
    pub private: Vec<u8>,
    /// What plan returned.
    pub identity: Option<Value>,
    /// The `provider_meta` of the module.
    pub provider_meta: Value,
    /// Cancelled when Terraform is told to stop: return soon, with the state as it is.
    pub cancel: CancellationToken,
}

impl ApplyRequest {
    /// There is none yet.
    #[must_use]
    pub fn is_create(&self) -> bool {
        self.prior.is_null()
    }

    /// There is to be none.
    #[must_use]
    pub fn is_destroy(&self) -> bool {
        self.planned.is_null()
    }
}

/// From [`Resource::apply`].
#[derive(Debug, Clone, Default)]
pub struct ApplyResponse {
    /// The state afterwards; null when it is destroyed. None with an error: the state is what it was before, which for
    /// a create means there is none. Some with an error is a partial state: unknown values in it become null, and a
    /// created resource is tainted.
    pub state: Option<Value>,
    /// To store with the state; none: what was there before.
    pub private: Option<Vec<u8>>,
    /// What identifies it; none: as planned.
    pub identity: Option<Value>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}

/// For [`Resource::read`].
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The state so far.
    pub state: Value,
    /// What the provider stored with it.
    pub private: Vec<u8>,
    /// What identifies it, if known.
    pub identity: Option<Value>,
    /// The `provider_meta` of the module.
    pub provider_meta: Value,
    /// What this Terraform can do.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

/// From [`Resource::read`].
#[derive(Debug, Clone, Default)]
pub struct ReadResponse {
    /// The state now; null when the resource is gone. None: as it was.
    pub state: Option<Value>,
    /// To store with the state; none: what was there before.
    pub private: Option<Vec<u8>>,
    /// What identifies it; none: what was there before.
    pub identity: Option<Value>,
    /// Too much is unknown to read.
    pub deferred: Option<Deferred>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}

/// For [`Resource::import`].
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// What to import.
    pub source: ImportSource,
    /// What this Terraform can do.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

/// What names the thing to import.
#[derive(Debug, Clone, PartialEq)]
pub enum ImportSource {
    /// `terraform import ADDRESS ID`, or `id` of an import block.
    Id(String),
    /// `identity` of an import block (Terraform 1.12 and later).
    Identity(Value),
}

/// From [`Resource::import`].
#[derive(Debug, Clone, Default)]
pub struct ImportResponse {
    /// What was found: as much state as read needs to do the rest.
    pub state: Option<Value>,
    /// To store with the state.
    pub private: Vec<u8>,
    /// What identifies it; none: what was asked for.
    pub identity: Option<Value>,
    /// Too much is unknown to import.
    pub deferred: Option<Deferred>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}

/// For [`Resource::upgrade`] and [`Resource::upgrade_identity`].
#[derive(Debug, Clone)]
pub struct UpgradeRequest {
    /// The version it was written with.
    pub version: i64,
    /// The state or identity as stored: JSON.
    pub json: String,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

impl UpgradeRequest {
    /// Reads the JSON by a schema: usually that of the version it was written with. Attributes the schema does not
    /// have are ignored, absent ones are null.
    ///
    /// # Errors
    /// When a value does not fit the schema.
    pub fn decode(&self, schema: &Schema) -> Result<Value, ValueError> {
        codec::json::decode_state(self.json.as_bytes(), &schema.ty())
    }
}

/// From [`Resource::upgrade`] and [`Resource::upgrade_identity`].
#[derive(Debug, Clone, Default)]
pub struct UpgradeResponse {
    /// The state or identity of today's version.
    pub state: Option<Value>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}

/// For [`Resource::move_state`].
#[derive(Debug, Clone)]
pub struct MoveRequest {
    /// `HOST/hashicorp/null`
    pub source_provider_address: String,
    /// `null_resource`
    pub source_type_name: String,
    /// The version of its schema.
    pub source_schema_version: i64,
    /// Its state as stored: JSON.
    pub source_json: String,
    /// What its provider stored with the state.
    pub source_private: Vec<u8>,
    /// Its identity as stored, if it has one: JSON.
    pub source_identity_json: Option<String>,
    /// The version of its identity.
    pub source_identity_schema_version: i64,
    /// Cancelled when Terraform is told to stop.
    pub cancel: CancellationToken,
}

/// From [`Resource::move_state`].
#[derive(Debug, Clone, Default)]
pub struct MoveResponse {
    /// The state of this type.
    pub state: Option<Value>,
    /// To store with it.
    pub private: Vec<u8>,
    /// What identifies it.
    pub identity: Option<Value>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
}

impl PlanResponse {
    /// This state is planned.
    #[must_use]
    pub fn new(planned: Value) -> Self {
        Self { planned, ..Self::default() }
    }
}

macro_rules! with_state {
    ($($response:ident),*) => {$(
        impl $response {
            /// It worked: this is the state.
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
            /// It did not work.
            #[must_use]
            pub fn failed(diagnostics: Vec<Diagnostic>) -> Self {
                Self { diagnostics, ..Self::default() }
            }

            /// The same, saying something more.
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
