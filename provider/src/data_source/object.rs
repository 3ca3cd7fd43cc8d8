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

use super::{
    ObjectAttributes, RETRIES, is_ready, listing, name_problem, namespace, namespace_argument,
    read_diagnostics, summary,
};
use crate::{
    api::{Address, Api, RetryLimit},
    field::Shape,
    form::Form,
    resource::KindResource,
    selector,
};

/// The largest number of other objects that the error for a missing object lists.
const LISTED: usize = 10;
/// The largest number of objects with the labels that are read.
const MATCHES: usize = 10_000;
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

    async fn state(&self, api: &Api, object: Json, config: &Value) -> Value {
        let object = self.resource.kind().complete(api, object).await;
        let mut state: Value = self.attributes.of(&self.resource).value(&self.resource, &object);
        for argument in ["label_selector", "most_recent"] {
            state.set(argument, config.get(argument).clone());
        }
        state
    }

    /// Reads the object with the labels of the configuration.
    async fn by_labels(&self, api: &Api, request: &ReadDataRequest) -> ReadDataResponse {
        let config = &request.config;
        let found = listing::objects(&self.resource, api, config, MATCHES, &request.cancel).await;
        let found = match found {
            Ok(found) => found,
            Err(diagnostics) => return ReadDataResponse::failed(diagnostics),
        };
        let chosen = choose(found, config.get("most_recent").as_bool() == Some(true));
        match chosen {
            Ok(object) => ReadDataResponse::new(self.state(api, object, config).await),
            Err(detail) => {
                let summary = format!("No single {} with these labels", self.resource.info().kind);
                Diagnostic::error(summary, detail).at("label_selector").into()
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

/// The problem with what selects the object.
fn selection_problem(config: &Value) -> Option<Diagnostic> {
    let (name, labels) = (config.get("name"), config.get("label_selector"));
    if name.is_unknown() || labels.is_unknown() {
        return None;
    }
    match (name.is_null(), labels.is_null()) {
        (true, true) => {
            let detail = "Set the name of the object, or a label_selector that it has.";
            Some(Diagnostic::error("Missing name", detail).at("name"))
        }
        (false, false) => {
            let detail = "Set either name or label_selector.";
            Some(Diagnostic::error("A name and a label_selector", detail).at("label_selector"))
        }
        (true, false) => {
            let problem = labels.as_str().and_then(selector::label_problem)?;
            Some(Diagnostic::error("Invalid label_selector", problem).at("label_selector"))
        }
        (false, true) if config.get("most_recent").as_bool() == Some(true) => {
            let detail = "It chooses among the objects with a label_selector; a name has one object only.";
            Some(Diagnostic::error("most_recent without a label_selector", detail).at("most_recent"))
        }
        (false, true) => None,
    }
}

/// Chooses one of the objects. *Errors*: why there is none, for people.
fn choose(mut found: Vec<Json>, most_recent: bool) -> Result<Json, String> {
    if most_recent {
        let all = found.len();
        found.retain(is_ready);
        // Of those of one second, the last by name: the order of the list.
        let newest = found.into_iter().max_by_key(|object| {
            object.pointer("/metadata/creationTimestamp").and_then(Json::as_str).map(str::to_owned)
        });
        return newest.ok_or_else(|| match all {
            0 => "No object has them.".to_owned(),
            all => format!("{all} objects have them, and none is ready."),
        });
    }
    match found.len() {
        0 => Err("No object has them.".to_owned()),
        1 => Ok(found.remove(0)),
        several => {
            let names = found.iter().filter_map(|object| object.pointer("/metadata/name")?.as_str());
            let names: Vec<&str> = names.take(LISTED).collect();
            let number = if several < MATCHES { several.to_string() } else { format!("At least {MATCHES}") };
            Err(format!(
                "{number} objects have them, among them {}: add labels until one is left, or set most_recent = true.",
                names.join(", ")
            ))
        }
    }
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
                    *attribute = Attribute::string("name").optional().computed().description(
                        "Name of the object. Exactly one of `name` and `label_selector` is needed.",
                    )
                }
                "namespace" => *attribute = namespace_argument().computed(),
                _ => {}
            }
        }
        attributes.push(Attribute::string("label_selector").optional().description(
            "Labels of the object, in the syntax of Kubernetes: `family=debian,version in (12, 13)`. One object must have them, or \
             `most_recent` chooses.",
        ));
        attributes.push(Attribute::bool("most_recent").optional().description(
            "Whether to choose, of several objects with the labels, the one that was created last among those that are ready. \
             Default false.",
        ));
        let info = self.resource.info();
        Schema::new(attributes).description(format!("Reads one {}. {}", info.kind, summary(&info)))
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let config = &request.config;
        let forms = [("name", self.name_form()), ("namespace", Form::Name)];
        let mut found: Vec<Diagnostic> =
            forms.iter().filter_map(|(name, form)| name_problem(config, name, *form)).collect();
        found.extend(selection_problem(config));
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
        if !request.config.get("label_selector").is_null() {
            return self.by_labels(api, &request).await;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, created: &str, ready: &str) -> Json {
        json!({"metadata": {"name": name, "creationTimestamp": created, "generation": 1}, "status": {
            "observedGeneration": 1, "conditions": [{"type": "Ready", "status": ready, "observedGeneration": 1}]}})
    }

    fn name(chosen: Result<Json, String>) -> String {
        let object = chosen.expect("an object");
        object.pointer("/metadata/name").and_then(Json::as_str).unwrap_or_default().to_owned()
    }

    #[test]
    fn the_newest_that_is_ready_is_chosen() {
        let all = vec![
            object("a", "2026-01-02T00:00:00Z", "True"),
            object("b", "2026-01-03T00:00:00Z", "True"),
            object("c", "2026-01-04T00:00:00Z", "False"),
        ];
        assert_eq!(name(choose(all.clone(), true)), "b");
        let error = choose(all[2..].to_vec(), true).expect_err("not ready");
        assert!(error.contains("none is ready"), "{error}");
    }

    #[test]
    fn without_most_recent_exactly_one_has_the_labels() {
        let all =
            vec![object("a", "2026-01-02T00:00:00Z", "True"), object("b", "2026-01-03T00:00:00Z", "True")];
        assert_eq!(name(choose(all[..1].to_vec(), false)), "a");
        let error = choose(all, false).expect_err("two");
        assert!(error.starts_with("2 objects have them, among them a, b"), "{error}");
        assert!(choose(Vec::new(), false).is_err());
    }
}
