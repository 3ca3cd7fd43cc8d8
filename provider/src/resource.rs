//! The life of a resource of any kind: plan, create, read, update, delete, import.
//!
//! Everything here is the same for all kinds; what differs comes from [`Kind`] and its field table.

mod conflict;
mod create;
mod delete;
mod diagnose;
mod import;
mod in_use;
mod plan;
mod read;
mod update;
mod wait;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use serde_json::{Map, Value as Json, json};
use tfplugin6::{
    AttributePath, Diagnostic, IdentitySchema, Resource, Schema, Value,
    identity::IdentityAttribute,
    resource::{
        ApplyRequest, ApplyResponse, ImportRequest, ImportResponse, PlanRequest, PlanResponse, ReadRequest,
        ReadResponse, ValidateRequest,
    },
};

use crate::{
    api::Address,
    field::Field,
    kind::{self, Facts, Kind},
    mapping, planning,
    private::Private,
    session::Session,
    timeouts,
};

/// A resource of one kind.
pub struct KindResource {
    kind: Box<dyn Kind>,
    facts: Facts,
    fields: Vec<Field>,
    session: Arc<Session>,
}

impl fmt::Debug for KindResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KindResource").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl KindResource {
    /// Of a kind.
    #[must_use]
    pub fn new(kind: impl Kind, session: Arc<Session>) -> Self {
        let definition = serde_json::to_value(kind.definition()).unwrap_or_default();
        let spec = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
        let mut fields = kind::common_fields(&kind);
        // The field table speaks of `spec`'s fields; the schema of `spec` is where their texts are.
        let mut own = kind.fields();
        own.iter_mut().for_each(|field| field.learn(spec.unwrap_or(&Json::Null)));
        fields.extend(own);
        fields.extend(kind::common_wishes());
        Self { facts: kind.facts(), kind: Box::new(kind), fields, session }
    }

    /// What is constant of its kind.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Its field table.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The object to declare.
    ///
    /// `uid` guards an update: the object of that uid, or a conflict.
    fn object(&self, planned: &Value, config: &Value, private: &Private, uid: Option<&str>) -> Json {
        let name = planned.get("name").as_str().unwrap_or_default();
        let mut metadata = json!({"name": name, "namespace": planned.get("namespace").as_str()});
        let mut set = |key: &str, value: Json| {
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert(key.to_owned(), value);
            }
        };
        if let Some(uid) = uid {
            set("uid", uid.into());
        }
        if let Some(labels) = planned.get("labels").as_map() {
            let labels = labels.iter().map(|(name, value)| (name.clone(), Json::from(value.as_str())));
            set("labels", Json::Object(labels.collect::<Map<_, _>>()));
        }
        if let Some(timeouts) = timeouts::to_annotation(planned.get("timeouts")) {
            set("annotations", json!({ timeouts::ANNOTATION: timeouts }));
        }
        let mut spec = Json::Object(mapping::to_spec(&self.fields, planned, config, &private.held));
        self.kind.declare(&mut spec, name, planned, private);
        let mut object = kind::type_meta(&self.facts);
        if let Some(object) = object.as_object_mut() {
            object.insert("metadata".into(), metadata);
            object.insert("spec".into(), spec);
        }
        object
    }

    /// Where the object of a state is.
    fn address(&self, state: &Value) -> Address {
        let text = |name| state.get(name).as_str().unwrap_or_default();
        Address::berth(self.facts.plural, text("namespace"), text("name"))
    }

    /// What is observed of an object, as a state would hold it.
    fn observed(&self, object: &Json) -> Value {
        let mut observed = Value::Map(mapping::from_object(&self.fields, &self.kind.view(object)));
        let id = format!(
            "{}/{}",
            observed.get("namespace").as_str().unwrap_or_default(),
            observed.get("name").as_str().unwrap_or_default()
        );
        observed.set("id", id);
        observed
    }

    /// The state after an apply, and what is kept beside it.
    fn state_after(&self, planned: &Value, object: &Json, private: &Private) -> (Value, Private) {
        let state = mapping::fill(planned.clone(), &self.observed(object)).unknown_as_null();
        let private = Private {
            uid: text(object, "/metadata/uid").to_owned(),
            held: mapping::held(&self.fields, object),
            ..private.clone()
        };
        (state, private)
    }

    /// What identifies a state's object, once it is known.
    fn identity(state: &Value) -> Option<Value> {
        let (namespace, name) = (state.get("namespace"), state.get("name"));
        let known = namespace.as_str().is_some() && name.as_str().is_some();
        known.then(|| Value::object([("namespace", namespace.clone()), ("name", name.clone())]))
    }

    /// `VM default/web`
    fn title(&self, at: &Address) -> String {
        format!("{} {}/{}", self.facts.kind, at.namespace, at.name)
    }
}

/// A text in an object.
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
        self.facts.type_name
    }

    fn schema(&self) -> Schema {
        Schema::new(self.fields.iter().map(Field::attribute).collect())
            .blocks(vec![timeouts::block(self.facts.timeouts)])
            .description(self.facts.description)
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        Some(IdentitySchema::new(vec![
            IdentityAttribute::optional("namespace", "Namespace of the object. Default: the provider's."),
            IdentityAttribute::required("name", "Name of the object."),
        ]))
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let problems = planning::problems(&self.fields, config).into_iter().map(|(path, problem)| {
            let leaf = path.steps().iter().rev().find_map(|step| match step {
                tfplugin6::Step::Attribute(name) => Some(name.as_str()),
                _ => None,
            });
            Diagnostic::error(format!("Invalid {}", leaf.unwrap_or("value")), problem).at(path.clone())
        });
        let mut found: Vec<Diagnostic> = problems.collect();
        found.extend(timeouts::check(config));
        found.extend(self.kind.check(config));
        found
    }

    async fn plan(&self, request: PlanRequest) -> PlanResponse {
        self.plan_change(request).await
    }

    async fn apply(&self, request: ApplyRequest) -> ApplyResponse {
        if request.is_destroy() {
            self.destroy(request).await
        } else if request.is_create() {
            self.create(request).await
        } else {
            self.update(request).await
        }
    }

    async fn read(&self, request: ReadRequest) -> ReadResponse {
        self.refresh(request).await
    }

    async fn import(&self, request: ImportRequest) -> ImportResponse {
        self.adopt_by_name(&request)
    }
}

/// The path of a top-level attribute.
fn at(name: &str) -> AttributePath {
    AttributePath::root(name)
}
