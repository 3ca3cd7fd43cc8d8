//! One object, by name or by labels.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use berth_api::SHARED_NAMESPACE;
use serde_json::Value as Json;
use tfplugin6::{
    Attribute, DataSource, Diagnostic, Schema, Value,
    data_source::{ReadDataRequest, ReadDataResponse},
    resource::ValidateRequest,
};

use super::choice::{Choice, LISTED, MATCHES, choose};
use super::{
    ObjectAttributes, RETRIES, listing, name_problem, namespace, namespace_argument, read_diagnostics,
    summary,
};
use crate::{
    api::{Address, Api, RetryLimit},
    field::Shape,
    form::Form,
    resource::KindResource,
};

/// The largest number of other objects that are read for it.
const READ: usize = 500;

/// A data source that reads one object.
pub struct ObjectDataSource {
    resource: Arc<KindResource>,
    attributes: Arc<ObjectAttributes>,
}

impl fmt::Debug for ObjectDataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectDataSource").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl ObjectDataSource {
    /// A data source with the attributes of a resource.
    #[must_use]
    pub fn new(resource: Arc<KindResource>, attributes: Arc<ObjectAttributes>) -> Self {
        Self { resource, attributes }
    }

    /// The resource with the same attributes.
    #[must_use]
    pub fn resource(&self) -> &KindResource {
        &self.resource
    }

    fn name_form(&self) -> Form {
        match self.resource.kind().name_field().shape {
            Shape::Text(form) => form,
            _ => Form::Any,
        }
    }

    /// The arguments that choose one of several objects.
    fn choices(&self) -> impl Iterator<Item = &'static str> {
        let versions = self.resource.kind().has_versions().then_some("latest_version");
        SELECTORS.into_iter().chain(["most_recent"]).chain(versions)
    }

    async fn state(&self, api: &Api, object: Json, config: &Value) -> Value {
        let object = self.resource.kind().complete(api, object).await;
        let mut state: Value = self.attributes.of(&self.resource).value(&self.resource, &object);
        for argument in self.choices() {
            state.set(argument, config.get(argument).clone());
        }
        state
    }

    /// Reads the object that the selectors of the configuration select.
    async fn by_selectors(&self, api: &Api, request: &ReadDataRequest) -> ReadDataResponse {
        let config = &request.config;
        let found = listing::objects(&self.resource, api, config, MATCHES, &request.cancel).await;
        let found = match found {
            Ok(found) => found,
            Err(diagnostics) => return ReadDataResponse::failed(diagnostics),
        };
        match choose(found, Choice::of(config)) {
            Ok(object) => ReadDataResponse::new(self.state(api, object, config).await),
            Err(detail) => {
                let summary = format!("No single {} is selected", self.resource.info().kind);
                let at = SELECTORS.into_iter().find(|name| !config.get(name).is_null());
                Diagnostic::error(summary, detail).at(at.unwrap_or("label_selector")).into()
            }
        }
    }

    /// The error for a missing object, with the names there are.
    async fn missing(&self, api: &Api, at: &Address, retry_limit: &RetryLimit) -> Diagnostic {
        let kind = self.resource.info().kind;
        let mut detail = String::new();
        let shared = Address { namespace: SHARED_NAMESPACE.into(), ..at.clone() };
        let is_elsewhere = !at.namespace.is_empty() && at.namespace != SHARED_NAMESPACE;
        if is_elsewhere && matches!(api.get(&shared, retry_limit).await, Ok(Some(_))) {
            detail = format!("There is one in {SHARED_NAMESPACE}: set namespace = {SHARED_NAMESPACE:?}. ");
        }
        if let Ok(others) = api.list_first(at, READ, retry_limit).await {
            let place = if at.namespace.is_empty() {
                "This control plane".to_owned()
            } else {
                format!("Namespace {}", at.namespace)
            };
            detail.push_str(&nearby(&place, kind, &others));
        }
        detail.push_str(
            "If this configuration creates it, name its resource in depends_on, so that it is read afterwards, or use the resource's \
             own attributes.",
        );
        Diagnostic::error(format!("{} does not exist", self.resource.title(at)), detail).at("name")
    }
}

/// The arguments that select objects.
const SELECTORS: [&str; 2] = ["label_selector", "field_selector"];

/// The problem with what selects the object.
fn selection_problem(resource: &KindResource, config: &Value) -> Option<Diagnostic> {
    let name = config.get("name");
    if name.is_unknown() || SELECTORS.iter().any(|selector| config.get(selector).is_unknown()) {
        return None;
    }
    let selector = SELECTORS.into_iter().find(|selector| !config.get(selector).is_null());
    match (name.is_null(), selector) {
        (true, None) => {
            let detail = "Set the name of the object, or a label_selector or a field_selector that it has.";
            Some(Diagnostic::error("Missing name", detail).at("name"))
        }
        (false, Some(selector)) => {
            let detail = format!("Set either name or {selector}.");
            Some(Diagnostic::error(format!("Both name and {selector}"), detail).at(selector))
        }
        (true, Some(_)) => listing::selector_problem(resource, config).or_else(|| several_choices(config)),
        (false, None) => {
            let choice = ["most_recent", "latest_version"]
                .into_iter()
                .find(|choice| config.get(choice).as_bool() == Some(true))?;
            let detail = "It chooses one of the objects that a selector matches, and a name matches one only. Leave it out, or replace name by a selector.";
            Some(Diagnostic::error(format!("{choice} without a selector"), detail).at(choice))
        }
    }
}

fn several_choices(config: &Value) -> Option<Diagnostic> {
    let is_set = |name: &str| config.get(name).as_bool() == Some(true);
    (is_set("most_recent") && is_set("latest_version")).then(|| {
        let detail = "Set either most_recent or latest_version.";
        Diagnostic::error("Both most_recent and latest_version", detail).at("latest_version")
    })
}

/// `Namespace default has the VMs a and b. `
fn nearby(place: &str, kind: &str, others: &[Json]) -> String {
    let mut names: Vec<&str> =
        others.iter().filter_map(|object| object.pointer("/metadata/name").and_then(Json::as_str)).collect();
    names.sort_unstable();
    if names.is_empty() {
        return format!("{place} has no {kind}. ");
    }
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{place} has {kind} {}{more}. ", names.join(", "))
}

#[async_trait]
impl DataSource for ObjectDataSource {
    fn type_name(&self) -> &str {
        self.resource.info().type_name
    }

    fn schema(&self) -> Schema {
        let mut attributes = self.attributes.of(&self.resource).attributes();
        for attribute in &mut attributes {
            match attribute.name.as_str() {
                "name" => {
                    *attribute = Attribute::string("name")
                        .optional()
                        .computed()
                        .description("Name of the object. It, or a selector, is needed, and not both.")
                }
                "namespace" => *attribute = namespace_argument().computed(),
                _ => {}
            }
        }
        attributes.push(Attribute::string("label_selector").optional().description(
            "Labels of the object, in the syntax of Kubernetes: `family=debian,version in (12, 13)`. One object must have them, or \
             `most_recent` chooses.",
        ));
        attributes.push(Attribute::string("field_selector").optional().description(format!(
            "Fields of the object, in the syntax of Kubernetes: `metadata.name!=web`. One object must have them, and the labels, or \
             `most_recent` chooses. These can be selected: {}.",
            listing::selectable_fields(&self.resource)
        )));
        attributes.push(Attribute::bool("most_recent").optional().description(
            "Whether to choose, of several objects that are selected, the one that was created last among those that are ready. \
             Default false.",
        ));
        if self.resource.kind().has_versions() {
            attributes.push(Attribute::bool("latest_version").optional().description(
                "Whether to choose, of several objects that are selected, the one with the highest `version` among those that are \
                 ready and have one. Versions are ordered by their numbers: `4.10` is after `4.9`, and `4.9` after `4.9-rc1`. Not \
                 together with `most_recent`. Default false.",
            ));
        }
        let info = self.resource.info();
        Schema::new(attributes).description(format!("Reads one {}. {}", info.kind, summary(&info)))
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let forms = [("name", self.name_form()), ("namespace", Form::Name)];
        let mut found: Vec<Diagnostic> =
            forms.iter().filter_map(|(name, form)| name_problem(config, name, *form)).collect();
        found.extend(selection_problem(&self.resource, config));
        found
    }

    async fn read(&self, request: ReadDataRequest) -> ReadDataResponse {
        let settings = self.resource.session().settings();
        let api = match &settings.api {
            Ok(api) => api,
            Err(problem) => {
                return self.resource.no_control_plane(&settings, &self.resource.any(), problem).into();
            }
        };
        let namespace = match namespace(&self.resource, &request.config, &settings) {
            Ok(namespace) => namespace,
            Err(diagnostic) => return diagnostic.into(),
        };
        if SELECTORS.iter().any(|selector| !request.config.get(selector).is_null()) {
            return self.by_selectors(api, &request).await;
        }
        let name = request.config.get("name").as_str().unwrap_or_default();
        // An empty name would address the list of all objects.
        if name.is_empty() {
            return Diagnostic::error("Missing name", "Set the name of the object.").at("name").into();
        }
        let at = Address::berth(self.resource.info().plural, &namespace, name);
        let retry_limit = RetryLimit::seconds(RETRIES, &request.cancel);
        match settings.read(api, &at, &retry_limit).await {
            Ok(Some(object)) => ReadDataResponse::new(self.state(api, object, &request.config).await),
            Ok(None) => self.missing(api, &at, &retry_limit).await.into(),
            Err(error) => ReadDataResponse::failed(read_diagnostics(&self.resource, &error, &at)),
        }
    }
}
