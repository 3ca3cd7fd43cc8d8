//! The parts of a resource that differ from kind to kind.

use async_trait::async_trait;
use serde_json::{Value as Json, json};
use tfplugin6::{Diagnostic, Value};

use crate::{
    api::{Address, Api, ApiError, RetryLimit},
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape, Source},
    form::Form,
    private::Private,
    readiness::{Condition, Outcome, Readiness},
    references::Named,
};

/// The constants of a kind.
#[derive(Debug, Clone, Copy)]
pub struct KindInfo {
    /// `berth_vm`
    pub type_name: &'static str,
    /// `VM`
    pub kind: &'static str,
    /// `vms`, as in URLs.
    pub plural: &'static str,
    /// The first paragraph of its documentation.
    pub description: &'static str,
    /// The HCL example of its documentation.
    pub example: &'static str,
    /// The attribute that the example of its data source shows, such as `status.interfaces`.
    pub shown: &'static str,
    /// The default timeouts in seconds: create, update, delete.
    pub timeouts: [u64; 3],
}

/// One kind of resource.
#[async_trait]
pub trait ResourceKind: Send + Sync + 'static {
    /// The constants of the kind.
    fn info(&self) -> KindInfo;

    /// The definition of the custom resource.
    fn definition(&self) -> Json {
        berth_api::manifests::definition(self.info().plural)
            .expect("a test compares the kinds with the definitions")
    }

    /// The attributes of this kind, without those common to all kinds.
    fn fields(&self) -> Vec<Field>;

    /// The attribute `name`.
    fn name_field(&self) -> Field {
        let text = "Name of the object. Cannot change. Set either `name` or `name_prefix`.";
        let mut field = Field::observed("name", "/metadata/name", text);
        field.shape = Shape::Text(Form::Name);
        field.presence(Presence::Kept).effect(Effect::Replace)
    }

    /// Whether the configuration must set `name` or `name_prefix`.
    fn needs_name(&self) -> bool {
        true
    }

    /// The finalizer to create the object with: one that the object needs before it is bound anyway.
    fn finalizer(&self) -> Option<&'static str> {
        None
    }

    /// The name when the configuration does not set one.
    fn default_name(&self, config: &Value) -> Value {
        let _ = config;
        Value::UNKNOWN
    }

    /// Whether another program creates and deletes the object, and the resource only declares some of its fields.
    fn is_adopted(&self) -> bool {
        false
    }

    /// Validates a configuration beyond the field table. Values may be unknown.
    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let _ = config;
        Vec::new()
    }

    /// Adds the rules of this kind to a planned change.
    fn refine(&self, change: &mut PlannedChange<'_>) {
        let _ = change;
    }

    /// Plans the values that this kind derives from files of this machine. Called after [`ResourceKind::refine`], at plan and again at
    /// apply.
    async fn derive(&self, change: &mut PlannedChange<'_>) {
        let _ = change;
    }

    /// Adds the rules that need the control plane to a planned change. Called at plan, when the control plane responds, and
    /// again at apply; a read that fails, for lack of a response or of permission, is skipped.
    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let _ = (api, change);
    }

    /// The names of objects in the planned values that have one user at a time.
    fn holds(&self, planned: &Value) -> Vec<Named> {
        let _ = planned;
        Vec::new()
    }

    /// The object as the field table reads it: values that the control plane has set are put where they could have been
    /// declared.
    fn view(&self, object: &Json) -> Json {
        object.clone()
    }

    /// Completes the object's status with values that so far only another object's status has.
    async fn complete(&self, api: &Api, object: Json) -> Json {
        let _ = api;
        object
    }

    /// Adds to `spec` the values that the field table does not map.
    fn declare(&self, spec: &mut Json, name: &str, planned: &Value, private: &Private) {
        let _ = (spec, name, planned, private);
    }

    /// Adds to the private data what an object determines that was declared before.
    fn private_of(&self, object: &Json, private: Private) -> Private {
        let _ = object;
        private
    }

    /// Whether the object has reached the point the configuration waits for.
    fn outcome(&self, object: &Json, planned: &Value) -> Outcome {
        let _ = planned;
        Readiness::of(object).outcome()
    }

    /// Warns if the object does not have, at the end of an update, what the plan announced for at once.
    fn check_updated(&self, object: &Json, prior: &Value, planned: &Value) -> Option<Diagnostic> {
        let _ = (object, prior, planned);
        None
    }

    /// Whether a data source can choose the object with the highest version, which is `spec.version`.
    fn has_versions(&self) -> bool {
        false
    }

    /// The fields with a text that field selectors of data sources name too, beyond those that the control plane selects by: the provider
    /// compares them.
    fn compared_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether destroying the object would lose anything.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        let _ = object;
        true
    }

    /// The condition that names why the guest does not release an object under deletion, if it needs a person's action.
    fn blocked_by_guest(&self, object: &Json) -> Option<Condition> {
        let _ = object;
        None
    }

    /// Whether [`ResourceKind::write_side_object`] has anything to write.
    fn has_side_object(&self, side_object: &SideObject<'_>) -> bool {
        let _ = side_object;
        false
    }

    /// Writes the dependent objects of this object. The object exists.
    ///
    /// Implementations must be idempotent.
    async fn write_side_object(&self, side_object: SideObject<'_>) -> Result<(), ApiError> {
        let _ = side_object;
        Ok(())
    }

    /// Sends the data that the object needs to become ready and that is not in the control plane. The object is declared; it may have
    /// the data already.
    ///
    /// Implementations must continue what an earlier call began.
    async fn supply(&self, supply: Supply<'_>) -> Result<(), Box<Diagnostic>> {
        let _ = supply;
        Ok(())
    }

    /// Fills in the values that a read of the object alone does not return.
    async fn read_side_object(
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

/// The arguments of [`ResourceKind::write_side_object`].
#[derive(Debug)]
pub struct SideObject<'a> {
    /// The client of the control plane.
    pub api: &'a Api,
    /// The field manager.
    pub manager: &'a str,
    /// The address of the object.
    pub at: &'a Address,
    /// The object.
    pub object: &'a Json,
    /// The plan.
    pub planned: &'a Value,
    /// The configuration, with its write-only values.
    pub config: &'a Value,
    /// The private data beside the state.
    pub private: &'a Private,
    /// The time for which the write is retried.
    pub retry_limit: RetryLimit,
}

/// The arguments of [`ResourceKind::supply`].
#[derive(Debug)]
pub struct Supply<'a> {
    /// The client of the control plane.
    pub api: &'a Api,
    /// The address of the object.
    pub at: &'a Address,
    /// The object.
    pub object: &'a Json,
    /// The plan.
    pub planned: &'a Value,
    /// The private data beside the state.
    pub private: &'a Private,
    /// The rest of the operation's timeout.
    pub limit: RetryLimit,
}

/// The attributes common to all kinds. Objects of a kind that is not namespaced have no namespace.
#[must_use]
pub fn common_fields(kind: &dyn ResourceKind, is_namespaced: bool) -> Vec<Field> {
    let id = if is_namespaced { "`namespace/name`." } else { "The name." };
    let mut id = Field::observed("id", "/metadata/name", id);
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
        "Labels of the object. Labels that other programs set are not changed.",
    );
    labels.shape = Shape::TextMap;
    let name = kind.name_field();
    let prefix = name_prefix_field(&name.shape);
    let mut fields = vec![id, name];
    if !kind.is_adopted() {
        fields.push(prefix);
    }
    if is_namespaced {
        fields.push(namespace.presence(Presence::Kept).effect(Effect::Replace));
    }
    fields.push(labels.presence(Presence::Optional));
    fields.push(Field::observed("uid", "/metadata/uid", uid));
    fields
}

fn name_prefix_field(name: &Shape) -> Field {
    let form = match name {
        Shape::Text(Form::DottedName) => Form::DottedNamePrefix,
        _ => Form::NamePrefix,
    };
    Field::local(
        "name_prefix",
        Shape::Text(form),
        "The beginning of a unique name that is generated when the object is created: ten characters are added. With a generated \
         name `create_before_destroy` works, as the new object and the one before have different names. An imported object \
         whose name begins with it is kept. A provider that is killed with SIGKILL while it creates the object leaves it: the next \
         apply creates another one, under another name.",
    )
    .presence(Presence::Kept)
    .effect(Effect::Replace)
}

/// The attributes common to all kinds that only affect the provider.
#[must_use]
pub fn provider_only_fields() -> Vec<Field> {
    vec![
        Field::local(
            "on_timeout",
            Shape::Text(Form::Any),
            "The result of a timeout while waiting: `warn` (default) keeps the object and reports a warning; `fail` \
             reports an error, which on create makes Terraform replace the resource in the next apply.",
        )
        .one_of(&["warn", "fail"])
        .default("warn"),
        Field::local(
            "force_conflicts",
            Shape::Bool,
            "Take over fields that another field manager (GitOps, another owner) applies. Default false: a conflict \
             is an error that names the manager.",
        )
        .default(false),
    ]
}

/// `apiVersion` and `kind` of an object of this kind.
#[must_use]
pub fn type_meta(info: &KindInfo) -> Json {
    json!({"apiVersion": format!("{}/{}", berth_api::GROUP, berth_api::VERSION), "kind": info.kind})
}
