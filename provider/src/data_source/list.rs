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

use super::{ObjectAttributes, listing, plural, summary};
use crate::resource::KindResource;

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
}

#[async_trait]
impl DataSource for ListDataSource {
    fn type_name(&self) -> &str {
        &self.type_name
    }

    fn schema(&self) -> Schema {
        let info = self.resource.info();
        let each = self.attributes.of(&self.resource).attributes();
        let mut attributes = listing::arguments(&self.resource);
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
        listing::problems(&self.resource, &request.config)
    }

    async fn read(&self, request: ReadDataRequest) -> ReadDataResponse {
        let (resource, config) = (&self.resource, &request.config);
        let settings = resource.session().settings();
        let api = match resource.reader(&settings, &resource.any()).await {
            Ok(api) => api,
            Err(diagnostics) => return ReadDataResponse::failed(diagnostics),
        };
        let objects = match listing::objects(resource, api, config, usize::MAX, &request.cancel).await {
            Ok(objects) => objects,
            Err(diagnostics) => return ReadDataResponse::failed(diagnostics),
        };
        let completed = stream::iter(objects).map(|object| resource.kind().complete(api, object));
        let objects: Vec<Json> = completed.buffered(AT_ONCE).collect().await;
        let attributes = self.attributes.of(resource);
        let values: Vec<Value> = objects.iter().map(|object| attributes.value(resource, object)).collect();
        let mut state = config.clone();
        state.set(self.objects(), Value::List(values));
        ReadDataResponse::new(state)
    }
}
