//! The provider's types and their schemas.

use super::{
    ProviderServer, convert,
    offered::{Compiled, Offered},
};
use crate::proto::tfplugin6 as wire;

impl ProviderServer {
    pub(super) fn provider_schema(&self) -> &Compiled {
        self.offered.provider.get_or_init(|| Compiled::new(self.provider.schema()))
    }

    pub(super) fn meta_schema(&self) -> Option<&Compiled> {
        self.offered.meta.get_or_init(|| self.provider.meta_schema().map(Compiled::new)).as_ref()
    }

    pub(super) fn metadata(&self) -> wire::get_metadata::Response {
        use wire::get_metadata::{
            ActionMetadata, DataSourceMetadata, EphemeralMetadata, FunctionMetadata, ListResourceMetadata,
            ResourceMetadata, Response,
        };
        let Offered {
            resources, data_sources, ephemeral_resources, list_resources, actions, functions, ..
        } = &*self.offered;
        let names = |name: &String| name.clone();
        Response {
            server_capabilities: Some(self.capabilities()),
            resources: resources.keys().map(names).map(|type_name| ResourceMetadata { type_name }).collect(),
            data_sources: data_sources
                .keys()
                .map(names)
                .map(|type_name| DataSourceMetadata { type_name })
                .collect(),
            ephemeral_resources: ephemeral_resources
                .keys()
                .map(names)
                .map(|type_name| EphemeralMetadata { type_name })
                .collect(),
            list_resources: list_resources
                .keys()
                .map(names)
                .map(|type_name| ListResourceMetadata { type_name })
                .collect(),
            actions: actions.keys().map(names).map(|type_name| ActionMetadata { type_name }).collect(),
            functions: functions.keys().map(names).map(|name| FunctionMetadata { name }).collect(),
            ..Response::default()
        }
    }

    pub(super) fn schemas(&self) -> wire::get_provider_schema::Response {
        let Offered { resources, data_sources, ephemeral_resources, list_resources, actions, .. } =
            &*self.offered;
        let schema = |compiled: &Compiled| convert::schema(&compiled.schema);
        wire::get_provider_schema::Response {
            provider: Some(schema(self.provider_schema())),
            provider_meta: self.meta_schema().map(schema),
            server_capabilities: Some(self.capabilities()),
            resource_schemas: resources
                .iter()
                .map(|(name, it)| (name.clone(), schema(it.schema())))
                .collect(),
            data_source_schemas: data_sources
                .iter()
                .map(|(name, it)| (name.clone(), schema(it.schema())))
                .collect(),
            ephemeral_resource_schemas: ephemeral_resources
                .iter()
                .map(|(name, it)| (name.clone(), schema(it.schema())))
                .collect(),
            list_resource_schemas: list_resources
                .iter()
                .map(|(name, it)| (name.clone(), schema(it.schema())))
                .collect(),
            action_schemas: actions
                .iter()
                .map(|(name, it)| (name.clone(), wire::ActionSchema { schema: Some(schema(it.schema())) }))
                .collect(),
            functions: self.functions().functions,
            ..wire::get_provider_schema::Response::default()
        }
    }

    pub(super) fn functions(&self) -> wire::get_functions::Response {
        let functions = self.offered.functions.iter();
        let functions =
            functions.map(|(name, it)| (name.clone(), convert::function(it.signature()))).collect();
        wire::get_functions::Response { functions, diagnostics: Vec::new() }
    }

    pub(super) fn identity_schemas(&self) -> wire::get_resource_identity_schemas::Response {
        let schemas = self.offered.resources.iter().filter_map(|(name, resource)| {
            resource.identity().map(|identity| (name.clone(), convert::identity_schema(&identity.schema)))
        });
        wire::get_resource_identity_schemas::Response {
            identity_schemas: schemas.collect(),
            diagnostics: Vec::new(),
        }
    }

    fn capabilities(&self) -> wire::ServerCapabilities {
        wire::ServerCapabilities {
            // Without it Terraform does not request a plan of a destroy at all, which saves a call each.
            plan_destroy: self.offered.resources.values().any(|resource| resource.it.plans_destroy()),
            // Schemas are compiled when they are first needed, so a Terraform that has cached them need not request them.
            get_provider_schema_optional: true,
            move_resource_state: true,
            // Terraform requests it of all resources or of none.
            generate_resource_config: !self.offered.resources.is_empty()
                && self.offered.resources.values().all(|resource| resource.it.generates_config()),
        }
    }
}
