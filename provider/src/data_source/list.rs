//! Many objects, by namespace, selectors and readiness.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use serde_json::Value as Json;
use tfplugin6::{
    Attribute, DataSource, Diagnostic, Schema, Value,
    data_source::{ReadDataRequest, ReadDataResponse},
    resource::ValidateRequest,
    schema::Nesting,
};

use super::{
    ObjectAttributes, RETRIES, is_ready, name_problem, namespace, plural, read_diagnostics, summary,
};
use crate::{
    api::{Address, RetryLimit, Selection},
    form::Form,
    resource::{KindResource, no_control_plane},
    selector,
};

/// The number of objects that are completed at the same time.
const AT_ONCE: usize = 16;

/// A data source that lists objects.
pub struct ListDataSource {
    resource: Arc<KindResource>,
    attributes: Arc<ObjectAttributes>,
    type_name: String,
}

impl fmt::Debug for ListDataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListDataSource").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl ListDataSource {
    /// A data source with the attributes of a resource, many times.
    #[must_use]
    pub fn new(resource: Arc<KindResource>, attributes: Arc<ObjectAttributes>) -> Self {
        let type_name = plural(resource.info().type_name);
        Self { resource, attributes, type_name }
    }

    /// The resource with the same attributes.
    #[must_use]
    pub fn resource(&self) -> &KindResource {
        &self.resource
    }

    /// The attribute with the objects, such as `vms`.
    #[must_use]
    pub fn objects(&self) -> &str {
        self.type_name.trim_start_matches("berth_")
    }

    /// The fields that a field selector can name.
    fn selectable(&self) -> Vec<String> {
        let fields = self.resource.definition().pointer("/spec/versions/0/selectableFields");
        let fields = fields.and_then(Json::as_array).into_iter().flatten();
        let paths = fields.filter_map(|field| field.get("jsonPath").and_then(Json::as_str));
        let mut names = vec!["metadata.name".to_owned()];
        names.extend(paths.map(|path| path.trim_start_matches('.').to_owned()));
        names
    }

    fn arguments(&self) -> Vec<Attribute> {
        let mut arguments = Vec::new();
        if self.resource.is_namespaced() {
            arguments.push(
                Attribute::string("namespace")
                    .optional()
                    .description("Namespace of the objects. Default: the provider's `namespace`."),
            );
            arguments.push(
                Attribute::bool("all_namespaces")
                    .optional()
                    .description("Whether to list the objects of all namespaces. Default false."),
            );
        }
        arguments.push(Attribute::string("label_selector").optional().description(
            "Labels of the objects, in the syntax of Kubernetes: `tier=web,env in (test, prod),!legacy`.",
        ));
        let fields: Vec<String> = self.selectable().iter().map(|field| format!("`{field}`")).collect();
        arguments.push(Attribute::string("field_selector").optional().description(format!(
            "Fields of the objects, in the syntax of Kubernetes: `metadata.name!=web`. These can be selected: {}.",
            fields.join(", ")
        )));
        arguments.push(
            Attribute::bool("ready")
                .optional()
                .description("Lists only the objects whose attribute `ready` has this value. Default: all."),
        );
        arguments
    }
}

#[async_trait]
impl DataSource for ListDataSource {
    fn type_name(&self) -> &str {
        &self.type_name
    }

    fn schema(&self) -> Schema {
        let info = self.resource.info();
        let each = self.attributes.of(&self.resource).attributes();
        let mut attributes = self.arguments();
        attributes.push(Attribute::nested(self.objects(), Nesting::List, each).computed().description(format!(
            "The objects, sorted by name, within all namespaces by namespace and name. Each has the attributes of the data source \
             `{}`.",
            info.type_name
        )));
        Schema::new(attributes).description(format!(
            "Lists objects of the kind {}, by labels, fields or readiness. {}",
            info.kind,
            summary(&info)
        ))
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let text = |name: &str| config.get(name).as_str();
        let mut found: Vec<Diagnostic> = name_problem(config, "namespace", Form::Name).into_iter().collect();
        if text("namespace").is_some() && config.get("all_namespaces").as_bool() == Some(true) {
            let detail = "Set either namespace or all_namespaces.";
            found.push(Diagnostic::error("One namespace and all of them", detail).at("all_namespaces"));
        }
        let problems = [
            ("label_selector", text("label_selector").and_then(selector::label_problem)),
            (
                "field_selector",
                text("field_selector").and_then(|text| selector::field_problem(text, &self.selectable())),
            ),
        ];
        for (name, problem) in problems {
            found.extend(
                problem.map(|problem| Diagnostic::error(format!("Invalid {name}"), problem).at(name)),
            );
        }
        found
    }

    async fn read(&self, request: ReadDataRequest) -> ReadDataResponse {
        let (resource, config) = (&self.resource, &request.config);
        let settings = resource.session().settings();
        let api = match &settings.api {
            Ok(api) => api,
            Err(problem) => return no_control_plane(problem).into(),
        };
        let namespace = match namespace(resource, config, &settings) {
            _ if config.get("all_namespaces").as_bool() == Some(true) => String::new(),
            Ok(namespace) => namespace,
            Err(diagnostic) => return diagnostic.into(),
        };
        let text = |name: &str| config.get(name).as_str().unwrap_or_default().trim().to_owned();
        let selection = Selection { labels: text("label_selector"), fields: text("field_selector") };
        let at = Address::berth(resource.info().plural, &namespace, "");
        let retry_limit = RetryLimit::seconds(RETRIES, &request.cancel);
        let mut objects = match api.list(&at, &selection, &retry_limit).await {
            Ok(objects) => objects,
            Err(error) => return ReadDataResponse::failed(read_diagnostics(resource, &error, &at)),
        };
        if let Some(ready) = config.get("ready").as_bool() {
            objects.retain(|object| is_ready(object) == ready);
        }
        objects.sort_by_cached_key(sort_key);
        let completed = stream::iter(objects).map(|object| resource.kind().complete(api, object));
        let objects: Vec<Json> = completed.buffered(AT_ONCE).collect().await;
        let attributes = self.attributes.of(resource);
        let values: Vec<Value> = objects.iter().map(|object| attributes.value(resource, object)).collect();
        let mut state = config.clone();
        state.set(self.objects(), Value::List(values));
        ReadDataResponse::new(state)
    }
}

fn sort_key(object: &Json) -> (String, String) {
    let text = |pointer| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default().to_owned();
    (text("/metadata/namespace"), text("/metadata/name"))
}
