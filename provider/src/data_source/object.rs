//! One object, by name.

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
    ObjectAttributes, RETRIES, name_problem, namespace, namespace_argument, read_diagnostics, summary,
};
use crate::{
    api::{Address, Api, RetryLimit},
    field::Shape,
    form::Form,
    resource::KindResource,
};

/// The largest number of other objects that the error for a missing object lists.
const LISTED: usize = 10;
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
                    *attribute = Attribute::string("name").required().description("Name of the object.")
                }
                "namespace" => *attribute = namespace_argument().computed(),
                _ => {}
            }
        }
        let info = self.resource.info();
        Schema::new(attributes).description(format!("Reads one {}. {}", info.kind, summary(&info)))
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let forms = [("name", self.name_form()), ("namespace", Form::Name)];
        forms.iter().filter_map(|(name, form)| name_problem(&request.config, name, *form)).collect()
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
        let name = request.config.get("name").as_str().unwrap_or_default();
        // An empty name would address the list of all objects.
        if name.is_empty() {
            return Diagnostic::error("Missing name", "Set the name of the object.").at("name").into();
        }
        let at = Address::berth(self.resource.info().plural, &namespace, name);
        let retry_limit = RetryLimit::seconds(RETRIES, &request.cancel);
        match settings.read(api, &at, &retry_limit).await {
            Ok(Some(object)) => {
                let object = self.resource.kind().complete(api, object).await;
                let state: Value = self.attributes.of(&self.resource).value(&self.resource, &object);
                ReadDataResponse::new(state)
            }
            Ok(None) => self.missing(api, &at, &retry_limit).await.into(),
            Err(error) => ReadDataResponse::failed(read_diagnostics(&self.resource, &error, &at)),
        }
    }
}
