//! What the shared mechanics of a resource need to know of one kind.

use async_trait::async_trait;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value as Json, json};
use tfplugin6::{Diagnostic, Value};

use crate::{
    api::{Address, Api, ApiError},
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape, Source},
    form::Form,
    private::Private,
    readiness::{Condition, Outcome, Readiness},
};

/// What is constant of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// `berth_vm`
    pub type_name: &'static str,
    /// `VM`
    pub kind: &'static str,
    /// `vms`, as in URLs.
    pub plural: &'static str,
    /// The paragraph its documentation begins with.
    pub description: &'static str,
    /// HCL for its documentation.
    pub example: &'static str,
    /// How long each operation may take, in seconds: create, update, delete.
    pub timeouts: [u64; 3],
}

/// One kind of resource.
#[async_trait]
pub trait Kind: Send + Sync + 'static {
    /// What is constant.
    fn facts(&self) -> Facts;

    /// The definition of the custom resource.
    fn definition(&self) -> CustomResourceDefinition;

    /// Its own attributes, beside those of every kind.
    fn fields(&self) -> Vec<Field>;

    /// The attribute `name`.
    fn name_field(&self) -> Field {
        let mut field = Field::observed("name", "/metadata/name", "Name of the object. Cannot change.");
        field.shape = Shape::Text(Form::Name);
        field.presence(Presence::Required).effect(Effect::Replace)
    }

    /// The name when the configuration does not say one.
    fn default_name(&self, config: &Value) -> Value {
        let _ = config;
        Value::UNKNOWN
    }

    /// What is wrong with a configuration, beyond what the field table says. Values may be unknown.
    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let _ = config;
        Vec::new()
    }

    /// Adds to a planned change what only this kind knows.
    fn refine(&self, change: &mut PlannedChange<'_>) {
        let _ = change;
    }

    /// The object as the field table is to see it: what the control plane decided stands where it could have been
    /// declared.
    fn view(&self, object: &Json) -> Json {
        object.clone()
    }

    /// Adds to `spec` what the field table does not say.
    fn declare(&self, spec: &mut Json, name: &str, planned: &Value, private: &Private) {
        let _ = (spec, name, planned, private);
    }

    /// Whether what was declared is there, to the point the configuration wants to wait for.
    fn outcome(&self, object: &Json, wishes: &Value) -> Outcome {
        let _ = wishes;
        Readiness::of(object).outcome()
    }

    /// Whether something came into being that destroying would lose.
    fn has_lived(&self, object: &Json) -> bool {
        let _ = object;
        true
    }

    /// Why the guest does not let go of what is being deleted, if a person must do something about it.
    fn held_by_guest(&self, object: &Json) -> Option<Condition> {
        let _ = object;
        None
    }

    /// Writes what belongs to the object but stands beside it. The object exists.
    ///
    /// *Guarantees asked for:* idempotent.
    async fn write_beside(&self, beside: Beside<'_>) -> Result<(), ApiError> {
        let _ = beside;
        Ok(())
    }

    /// Fills what a read of the object alone cannot tell.
    async fn read_beside(
        &self,
        api: &Api,
        object: &Json,
        private: &Private,
        state: &mut Value,
    ) -> Result<Private, ApiError> {
        let _ = (api, object, state);
        Ok(private.clone())
    }
}

/// For [`Kind::write_beside`].
#[derive(Debug)]
pub struct Beside<'a> {
    /// The control plane.
    pub api: &'a Api,
    /// The field manager.
    pub manager: &'a str,
    /// Where the object is.
    pub at: &'a Address,
    /// The object.
    pub object: &'a Json,
    /// The plan.
    pub planned: &'a Value,
    /// The configuration, write-only values included.
    pub config: &'a Value,
    /// What is kept beside the state.
    pub private: &'a Private,
}

/// The attributes every kind has.
#[must_use]
pub fn common_fields(kind: &dyn Kind) -> Vec<Field> {
    let mut id = Field::observed("id", "/metadata/name", "`namespace/name`.");
    id.source = Source::Local;
    let uid = "The object's uid. A later object of the same name is another object.";
    let mut namespace = Field::observed(
        "namespace",
        "/metadata/namespace",
        "Namespace of the object. Default: the provider's `namespace`. Cannot change.",
    );
    namespace.shape = Shape::Text(Form::Name);
    let mut labels = Field::observed(
        "labels",
        "/metadata/labels",
        "Labels of the object. Labels that others add are left alone.",
    );
    labels.shape = Shape::TextMap;
    vec![
        id,
        kind.name_field(),
        namespace.presence(Presence::Kept).effect(Effect::Replace),
        labels.presence(Presence::Optional),
        Field::observed("uid", "/metadata/uid", uid),
    ]
}

/// The attributes of every kind that tell the provider how to go about it.
#[must_use]
pub fn common_wishes() -> Vec<Field> {
    vec![
        Field::local(
            "on_timeout",
            Shape::Text(Form::Any),
            "What a timeout while waiting is: `warn` (default) keeps what was made and says so; `fail` is an error, \
             which on create makes Terraform replace the resource next time.",
        )
        .one_of(&["warn", "fail"])
        .default("warn"),
        Field::local(
            "force_conflicts",
            Shape::Bool,
            "Take over fields that another program (GitOps, another owner) applies. Default false: an error that \
             names it.",
        )
        .default(false),
    ]
}

/// `apiVersion` and `kind` of an object of a kind.
#[must_use]
pub fn type_meta(facts: &Facts) -> Json {
    json!({"apiVersion": format!("{}/{}", berth_api::GROUP, berth_api::VERSION), "kind": facts.kind})
}
