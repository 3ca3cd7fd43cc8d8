//! The life cycle of a resource of any kind: plan, create, read, update, delete, import.
//!
//! Everything here is the same for all kinds; the differences come from [`ResourceKind`] and its field table.

mod apply;
mod conflict;
mod create;
mod delete;
mod diagnose;
mod generate;
mod import;
mod in_use;
mod list;
mod moved;
mod plan;
mod read;
mod references;
mod rename;
mod update;
mod wait;

pub(crate) use conflict::{appliers, other_applier};

use std::{
    any::TypeId,
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use serde_json::{Map, Value as Json, json};
use tfplugin6::{
    AttributePath, Diagnostic, IdentitySchema, Resource, Schema, Value, diagnostic,
    identity::IdentityAttribute,
    resource::{
        ApplyRequest, ApplyResponse, GenerateConfigRequest, GenerateConfigResponse, ImportRequest,
        ImportResponse, MoveRequest, MoveResponse, PlanRequest, PlanResponse, ReadRequest, ReadResponse,
        ValidateRequest,
    },
};

use crate::{
    api::Address,
    field::Field,
    kind::{self, KindInfo, ResourceKind},
    mapping, name_prefix, planning,
    private::Private,
    session::Session,
    timeouts,
};

/// A resource of one kind.
pub struct KindResource {
    kind: Box<dyn ResourceKind>,
    info: KindInfo,
    definition: Arc<Json>,
    is_namespaced: bool,
    fields: Vec<Field>,
    session: Arc<Session>,
}

impl fmt::Debug for KindResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KindResource").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Returns the definition of a kind. It is parsed once in a process.
fn definition_of<K: ResourceKind>(kind: &K) -> Arc<Json> {
    static PARSED: Mutex<BTreeMap<TypeId, Arc<Json>>> = Mutex::new(BTreeMap::new());
    let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    let parse = || Arc::new(kind.definition());
    Arc::clone(parsed.entry(TypeId::of::<K>()).or_insert_with(parse))
}

impl KindResource {
    /// A resource of a kind.
    #[must_use]
    pub fn new(kind: impl ResourceKind, session: Arc<Session>) -> Self {
        let definition = definition_of(&kind);
        let spec = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
        let is_namespaced = definition.pointer("/spec/scope").and_then(Json::as_str) == Some("Namespaced");
        let mut fields = kind::common_fields(&kind, is_namespaced);
        // The field table refers to fields of `spec`; the schema of `spec` has their descriptions.
        let mut own = kind.fields();
        own.iter_mut().for_each(|field| field.fill_from_schema(spec.unwrap_or(&Json::Null)));
        fields.extend(own);
        fields.extend(kind::provider_only_fields());
        Self { info: kind.info(), kind: Box::new(kind), definition, is_namespaced, fields, session }
    }

    /// The parts that differ from kind to kind.
    #[must_use]
    pub fn kind(&self) -> &dyn ResourceKind {
        &*self.kind
    }

    /// The definition of the custom resource.
    pub(crate) fn definition(&self) -> &Json {
        &self.definition
    }

    /// Whether objects of this kind are in a namespace.
    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.is_namespaced
    }

    /// The session that the provider's resources share.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The constants of the kind.
    #[must_use]
    pub fn info(&self) -> KindInfo {
        self.info
    }

    /// The field table.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The object to declare.
    ///
    /// `uid` guards an update: the apply conflicts if the object has another uid.
    fn object(&self, planned: &Value, config: &Value, private: &Private, uid: Option<&str>) -> Json {
        let name = planned.get("name").as_str().unwrap_or_default();
        let mut metadata = json!({ "name": name });
        let mut set = |key: &str, value: Json| {
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert(key.to_owned(), value);
            }
        };
        if let Some(namespace) = planned.get("namespace").as_str() {
            set("namespace", namespace.into());
        }
        if let Some(uid) = uid {
            set("uid", uid.into());
        }
        if let Some(labels) = planned.get("labels").as_map() {
            let labels = labels.iter().map(|(name, value)| (name.clone(), Json::from(value.as_str())));
            set("labels", Json::Object(labels.collect::<Map<_, _>>()));
        }
        if let Some(finalizer) = self.kind.finalizer() {
            // Declared with every apply: an apply without it would remove it.
            set("finalizers", json!([finalizer]));
        }
        let annotations = planned.get("annotations").as_map().into_iter().flatten();
        let annotations = annotations.map(|(name, value)| (name.clone(), Json::from(value.as_str())));
        let timeouts = timeouts::to_annotation(planned.get("timeouts"));
        let timeouts = timeouts.map(|timeouts| (timeouts::ANNOTATION.to_owned(), Json::from(timeouts)));
        let annotations: Map<_, _> = annotations.chain(timeouts).collect();
        if !annotations.is_empty() {
            set("annotations", Json::Object(annotations));
        }
        let mut spec = Json::Object(mapping::to_spec(&self.fields, planned, config, &private.pinned));
        self.kind.declare(&mut spec, name, planned, private);
        let mut object = kind::type_meta(&self.info);
        if let Some(object) = object.as_object_mut() {
            object.insert("metadata".into(), metadata);
            object.insert("spec".into(), spec);
        }
        object
    }

    /// The address of a state's object.
    pub(crate) fn address(&self, state: &Value) -> Address {
        let text = |name| state.get(name).as_str().unwrap_or_default();
        Address::berth(self.info.plural, text("namespace"), text("name"))
    }

    /// The address of no particular object of the kind.
    pub(crate) fn any(&self) -> Address {
        Address::berth(self.info.plural, "", "")
    }

    /// The observed values of an object, in the form of a state.
    fn observed(&self, object: &Json) -> Value {
        let mut observed = Value::Map(mapping::from_object(&self.fields, &self.kind.view(object)));
        let id = self.address(&observed).id();
        observed.set("id", id);
        observed
    }

    /// The state after an apply, and the private data beside it.
    fn state_after(&self, planned: &Value, object: &Json, private: &Private) -> (Value, Private) {
        let state = mapping::fill(planned.clone(), &self.observed(object)).unknown_as_null();
        let pinned = mapping::pinned_fields(&self.fields, object);
        let private = Private { pinned, moved_from: None, ..private.clone().after_change() };
        (state, private)
    }

    /// The identity of a state's object, once it is known.
    fn identity(&self, state: &Value) -> Option<Value> {
        let names: &[&str] = if self.is_namespaced { &["namespace", "name"] } else { &["name"] };
        let is_known = names.iter().all(|name| state.get(name).as_str().is_some());
        is_known.then(|| Value::object(names.iter().map(|&name| (name, state.get(name).clone()))))
    }

    /// `VM default/web`
    pub(crate) fn title(&self, at: &Address) -> String {
        if at.name.is_empty() { self.info.kind.to_owned() } else { format!("{} {}", self.info.kind, at.id()) }
    }
}

/// A text value in an object.
fn text<'a>(object: &'a Json, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Json::as_str).unwrap_or_default()
}

/// Whether the object is being deleted.
fn is_terminating(object: &Json) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

#[async_trait]
impl Resource for KindResource {
    fn type_name(&self) -> &str {
        self.info.type_name
    }

    fn schema(&self) -> Schema {
        Schema::new(self.fields.iter().map(Field::attribute).collect())
            .blocks(vec![timeouts::block(self.info.timeouts)])
            .description(self.info.description)
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        let namespace =
            IdentityAttribute::optional("namespace", "Namespace of the object. Default: the provider's.");
        let name = IdentityAttribute::required("name", "Name of the object.");
        Some(IdentitySchema::new(if self.is_namespaced { vec![namespace, name] } else { vec![name] }))
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        self.session.settings().run.saw_configuration();
        let problems = planning::problems(&self.fields, config)
            .into_iter()
            .map(|(path, problem)| Diagnostic::error(format!("Invalid {path}"), problem).at(path));
        let mut found: Vec<Diagnostic> = problems.collect();
        if !self.kind.is_adopted() {
            found.extend(name_prefix::check(config, self.kind.needs_name()));
        }
        found.extend(timeouts::check(config));
        found.extend(self.kind.check(config));
        found.into_iter().map(with_path).collect()
    }

    /// Always true: protected resources are refused at plan, before anything else is destroyed.
    fn plans_destroy(&self) -> bool {
        true
    }

    async fn plan(&self, request: PlanRequest) -> PlanResponse {
        self.plan_change(request).await
    }

    async fn apply(&self, request: ApplyRequest) -> ApplyResponse {
        let run = self.session.settings().run;
        let apply = run.begin_apply();
        let response = if request.is_destroy() {
            self.destroy(request).await
        } else if request.is_create() {
            let at = self.address(&request.planned);
            let created = self.create(request).await;
            if created.state.is_none() {
                run.retract(&at);
            }
            created
        } else {
            self.update(request).await
        };
        if !diagnostic::has_errors(&response.diagnostics) {
            apply.succeeded();
        }
        response
    }

    async fn read(&self, request: ReadRequest) -> ReadResponse {
        self.refresh(request).await
    }

    async fn import(&self, request: ImportRequest) -> ImportResponse {
        self.adopt_by_name(&request)
    }

    async fn move_state(&self, request: MoveRequest) -> MoveResponse {
        self.take_over(&request)
    }

    fn generates_config(&self) -> bool {
        true
    }

    async fn generate_config(&self, request: GenerateConfigRequest) -> GenerateConfigResponse {
        self.generated(&request.state)
    }
}

/// Adds the attribute's path to a text without it: Terraform shows the line on which the outermost attribute begins, which may be
/// far from the value.
fn with_path(diagnostic: Diagnostic) -> Diagnostic {
    let Some(path) = diagnostic.attribute.as_ref().map(ToString::to_string) else { return diagnostic };
    if diagnostic.summary.contains(&path) || diagnostic.detail.contains(&path) {
        return diagnostic;
    }
    Diagnostic { detail: format!("{path}: {}", diagnostic.detail), ..diagnostic }
}

/// The path of a top-level attribute.
fn at(name: &str) -> AttributePath {
    AttributePath::root(name)
}
