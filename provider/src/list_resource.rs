//! List resources: the objects of a kind, for `terraform query` and the configuration that it generates.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use tfplugin6::{
    Diagnostic, ListResource, Schema,
    list_resource::{ListRequest, ListResponse},
    resource::ValidateRequest,
};

use crate::{data_source::listing, resource::KindResource};

/// The number of objects whose state is completed at the same time.
const AT_ONCE: usize = 16;

/// The list of one kind.
pub struct KindList {
    resource: Arc<KindResource>,
}

impl fmt::Debug for KindList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KindList").field("resource", &self.resource).finish()
    }
}

impl KindList {
    /// The list of a resource.
    #[must_use]
    pub fn new(resource: Arc<KindResource>) -> Self {
        Self { resource }
    }

    /// The HCL example of the documentation of a type.
    #[must_use]
    pub fn example(type_name: &str) -> String {
        include_str!("../../examples/list-resources/berth_vm/list-resource.tfquery.hcl")
            .replace("berth_vm", type_name)
    }
}

#[async_trait]
impl ListResource for KindList {
    fn type_name(&self) -> &str {
        self.resource.info().type_name
    }

    fn schema(&self) -> Schema {
        let kind = self.resource.info().kind;
        Schema::new(listing::arguments(&self.resource)).description(format!(
            "Lists objects of the kind {kind} for `terraform query`, by labels, fields or readiness. Terraform 1.14 and \
             later.\n\n`terraform query -generate-config-out=FILE` writes import blocks and the configuration of the objects: \
             without defaults; a plan with it changes nothing. Sensitive values are left out, with a warning.\n\nTerraform \
             lists 100 objects, sorted by namespace and name, unless `limit` is another number. With `include_resource` each has \
             the attributes of the resource."
        ))
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        listing::problems(&self.resource, &request.config)
    }

    async fn list(&self, request: ListRequest) -> ListResponse {
        let resource = &self.resource;
        let settings = resource.session().settings();
        let api = match resource.reader(&settings, &resource.any()).await {
            Ok(api) => api,
            Err(diagnostics) => return ListResponse::failed(diagnostics),
        };
        let objects = listing::objects(resource, api, &request.config, request.limit, &request.cancel).await;
        let objects = match objects {
            Ok(objects) => objects,
            Err(diagnostics) => return ListResponse::failed(diagnostics),
        };
        if !request.include_resource {
            return ListResponse::new(objects.iter().map(|object| resource.found(object)).collect());
        }
        let read = stream::iter(objects).map(|object| resource.found_with_state(api, object));
        let (results, warnings): (Vec<_>, Vec<_>) = read.buffered(AT_ONCE).unzip().await;
        ListResponse { results, diagnostics: warnings.into_iter().flatten().collect() }
    }
}
