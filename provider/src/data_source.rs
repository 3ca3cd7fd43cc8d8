//! Data sources: objects that are read, one by name or many by namespace, selectors and readiness; the same for all kinds.
//!
//! Their attributes come from two tables: the fields of the resource, and the schema of the custom resource for everything that
//! the fields leave out. So an attribute that a kind gains is in its data sources too.

mod choice;
mod list;
pub(crate) mod listing;
mod object;

use std::sync::OnceLock;

use berth_api::redacted_url;
use serde_json::Value as Json;
use tfplugin6::{Attribute, Diagnostic, Value, schema::Nesting};

pub use list::ListDataSource;
pub use object::ObjectDataSource;

use crate::{
    api::{Address, ApiError},
    fact::{self, Fact},
    field::{Field, Shape, Source},
    form::Form,
    kind::KindInfo,
    mapping,
    readiness::Readiness,
    resource::KindResource,
    session::Settings,
};

/// The time for which a read is retried while the control plane is away, in seconds: a plan should not hang.
const RETRIES: u64 = 5;
const REDACTED: &str = "Without user name, password and query string, which may be secrets.";

/// The attributes of an object. They are derived when they are first needed: most runs of a provider need none of them.
#[derive(Debug, Default)]
pub struct ObjectAttributes {
    derived: OnceLock<Derived>,
}

#[derive(Debug)]
struct Derived {
    /// Those of the resource's field table.
    fields: Vec<Field>,
    /// Fields of `spec` that the resource does not have.
    spec: Vec<Fact>,
    status: Vec<Fact>,
}

impl ObjectAttributes {
    fn of(&self, resource: &KindResource) -> &Derived {
        self.derived.get_or_init(|| Derived::new(resource))
    }
}

impl Derived {
    fn new(resource: &KindResource) -> Self {
        let part = |part: &str| {
            let pointer = format!("/spec/versions/0/schema/openAPIV3Schema/properties/{part}");
            resource.definition().pointer(&pointer).unwrap_or(&Json::Null)
        };
        let known = resource.fields().iter().filter_map(|field| match &field.source {
            Source::Spec(key) => Some(key.as_ref()),
            _ => None,
        });
        let known: Vec<&str> = known.collect();
        // Annotations are notes of programs, some of them about a whole object.
        let shown = resource.fields().iter().filter(|field| !matches!(field.shape, Shape::Annotations));
        let mut fields: Vec<Field> = shown.filter_map(Field::shown).collect();
        fields.iter_mut().for_each(describe_redacted);
        for field in fields.iter_mut().filter(|field| field.name == "labels") {
            field.text = "Labels of the object.".into();
        }
        Self { fields, spec: fact::facts(part("spec"), &known), status: fact::facts(part("status"), &[]) }
    }

    /// All attributes, computed.
    fn attributes(&self) -> Vec<Attribute> {
        let status = self.status.iter().map(Fact::attribute).collect();
        let mut attributes =
            vec![Attribute::string("id").computed().description("`namespace/name`, or the name.")];
        attributes.extend(self.fields.iter().map(Field::attribute));
        attributes.extend(self.spec.iter().map(Fact::attribute));
        attributes.push(Attribute::bool("ready").computed().description(
            "Whether the object is converged: its condition `Ready` is `True` and belongs to its current `spec`.",
        ));
        attributes.push(
            Attribute::nested("status", Nesting::Single, status)
                .computed()
                .description("The status of the object, as the control plane reports it."),
        );
        attributes
    }

    /// The values of an object.
    fn value(&self, resource: &KindResource, object: &Json) -> Value {
        let mut values = mapping::from_object(&self.fields, &resource.kind().view(object));
        for field in &self.fields {
            if let Some(value) = values.get_mut(field.name) {
                redact(&field.shape, value);
            }
        }
        let mut value = Value::Map(values);
        if value.get("labels").is_null() {
            value.set("labels", Value::Map(std::collections::BTreeMap::new()));
        }
        let spec = object.get("spec").unwrap_or(&Json::Null);
        for fact in &self.spec {
            value.set(&fact.name, fact.read(spec));
        }
        value.set("id", resource.address(&value).id());
        value.set("ready", is_ready(object));
        value.set("status", fact::read_all(&self.status, object.get("status").unwrap_or(&Json::Null)));
        value
    }
}

fn is_url(shape: &Shape) -> bool {
    matches!(shape, Shape::Text(Form::ImageUrl | Form::HttpUrl))
}

fn describe_redacted(field: &mut Field) {
    if is_url(&field.shape) {
        field.text = format!("{} {REDACTED}", field.text).trim().to_owned().into();
    }
    if let Shape::Object(fields) | Shape::Keyed(fields) = &mut field.shape {
        fields.iter_mut().for_each(describe_redacted);
    }
}

/// Removes what may be secret from URLs.
fn redact(shape: &Shape, value: &mut Value) {
    match (shape, value) {
        (shape, Value::String(url)) if is_url(shape) => *url = redacted_url(url),
        (Shape::Object(fields), object) => {
            for field in fields {
                if let Some(value) = object.get_mut(field.name) {
                    redact(&field.shape, value);
                }
            }
        }
        (Shape::Keyed(fields), Value::List(elements)) => {
            let shape = Shape::Object(fields.clone());
            elements.iter_mut().for_each(|element| redact(&shape, element));
        }
        _ => {}
    }
}

/// Whether the object is converged.
fn is_ready(object: &Json) -> bool {
    let readiness = Readiness::of(object);
    readiness.current && readiness.ready.is_some_and(|ready| ready.status == "True")
}

/// The namespace to read in: the configured one, else the provider's.
fn namespace(resource: &KindResource, config: &Value, settings: &Settings) -> Result<String, Diagnostic> {
    if !resource.is_namespaced() {
        return Ok(String::new());
    }
    let configured = config.get("namespace").as_str().map(str::to_owned);
    configured.or_else(|| settings.namespace.clone()).ok_or_else(|| {
        let detail = "The provider's namespace is not known yet: it comes from a resource that does not exist yet. Set namespace \
                      here, or apply that resource first (terraform apply -target=…).";
        Diagnostic::error("Unknown namespace", detail).at("namespace")
    })
}

/// The diagnostics of a read that failed.
fn read_diagnostics(resource: &KindResource, error: &ApiError, at: &Address) -> Vec<Diagnostic> {
    let kind = resource.info().kind;
    match (error, error.code()) {
        (_, 403) => {
            let role = if at.namespace.is_empty() {
                "The role berth-viewer, bound for all namespaces, allows it.".to_owned()
            } else {
                format!("The role berth-viewer in namespace {} allows it.", at.namespace)
            };
            vec![Diagnostic::error(format!("Reading {kind}: not allowed"), format!("{error}. {role}"))]
        }
        (ApiError::Cancelled, _) => {
            vec![Diagnostic::error(format!("Stopped reading {kind}"), "Terraform was interrupted.")]
        }
        _ => resource.request_diagnostics(error, at),
    }
}

/// The first sentence about a kind.
fn summary(info: &KindInfo) -> String {
    let paragraph = info.description.split("\n\n").next().unwrap_or_default();
    let first = paragraph.split(". ").next().unwrap_or_default().trim_end_matches('.');
    format!("{first}.")
}

/// The problem with a configured name or namespace.
fn name_problem(config: &Value, attribute: &str, form: Form) -> Option<Diagnostic> {
    let problem = form.problem(config.get(attribute).as_str()?)?;
    Some(Diagnostic::error(format!("Invalid {attribute}"), problem).at(attribute))
}

/// `vm_classes`, the plural of a type's name.
fn plural(type_name: &str) -> String {
    match type_name.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if type_name.ends_with('s') => format!("{type_name}es"),
        None => format!("{type_name}s"),
    }
}

/// The attribute `namespace` of a configuration.
fn namespace_argument() -> Attribute {
    Attribute::string("namespace")
        .optional()
        .description("Namespace of the object. Default: the provider's `namespace`.")
}
