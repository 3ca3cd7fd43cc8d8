//! Managed resources.

use bytes::Bytes;

use super::{
    Outcome, ProviderServer, convert, guarded,
    offered::{Compiled, Offer},
};
use crate::{
    codec::json,
    diagnostic::{Diagnostic, has_errors},
    proto::tfplugin6 as wire,
    resource::{
        ApplyRequest, GenerateConfigRequest, ImportRequest, ImportSource, MoveRequest, PlanRequest,
        ReadRequest, Resource, UpgradeRequest, ValidateRequest,
    },
    schema::conform::{conform, write_only_set},
    value::Value,
};

type Identity = Option<wire::ResourceIdentityData>;
type Offered = Offer<dyn Resource>;

impl ProviderServer {
    pub(super) async fn validate_resource(
        &self,
        sent: wire::validate_resource_config::Request,
    ) -> Outcome<Vec<Diagnostic>> {
        let resource = self.offered.resource(&sent.type_name)?;
        let Compiled { schema, ty } = resource.schema();
        let config = convert::value_from(sent.config.as_ref(), ty)?;
        let client = convert::client(sent.client_capabilities);
        if !client.write_only_attributes_allowed
            && let Some(name) = write_only_set(&schema.block, &config)
        {
            let detail = format!("{name} is never stored; that needs Terraform or OpenTofu 1.11 or later.");
            return Err(vec![Diagnostic::error("Write-only attribute not supported", detail)]);
        }
        let request = ValidateRequest { config, client, cancel: self.cancel() };
        guarded("validate", resource.it.type_name(), resource.it.validate(request)).await
    }

    pub(super) async fn plan(
        &self,
        sent: wire::plan_resource_change::Request,
    ) -> Outcome<wire::plan_resource_change::Response> {
        use wire::plan_resource_change::Response;
        let resource = self.offered.resource(&sent.type_name)?;
        let Compiled { schema, ty } = resource.schema();
        let proposed = state_from(resource, sent.proposed_new_state.as_ref())?;
        if proposed.is_null() && !resource.it.plans_destroy() {
            return Ok(Response {
                planned_state: convert::value_to(&Value::Null, ty)?,
                planned_private: sent.prior_private,
                planned_identity: sent.prior_identity,
                ..Response::default()
            });
        }
        let request = PlanRequest {
            prior: state_from(resource, sent.prior_state.as_ref())?,
            proposed,
            config: convert::value_from(sent.config.as_ref(), ty)?,
            private: sent.prior_private.to_vec(),
            identity: identity_from(resource, sent.prior_identity.as_ref())?,
            provider_meta: self.meta(sent.provider_meta.as_ref())?,
            client: convert::client(sent.client_capabilities),
            cancel: self.cancel(),
        };
        let destroy = request.is_destroy();
        let mut planned = guarded("plan", resource.it.type_name(), resource.it.plan(request)).await?;
        if planned.planned.is_null()
            && !destroy
            && planned.deferred.is_none()
            && !has_errors(&planned.diagnostics)
        {
            planned
                .diagnostics
                .push(Diagnostic::error("Provider bug", "Plan returned neither a state nor an error."));
        }
        let replace = planned.requires_replace.iter().map(|path| convert::up_to_set(path, ty));
        Ok(Response {
            planned_state: convert::value_to(&conform(&schema.block, planned.planned), ty)?,
            requires_replace: replace.map(|path| convert::attribute_path(&path)).collect(),
            planned_private: planned.private.map_or(sent.prior_private, Bytes::from),
            diagnostics: convert::diagnostics(planned.diagnostics),
            deferred: planned.deferred.map(convert::deferred),
            planned_identity: identity_to(resource, planned.identity, sent.prior_identity)?,
            ..Response::default()
        })
    }

    pub(super) async fn apply(
        &self,
        sent: wire::apply_resource_change::Request,
    ) -> Outcome<wire::apply_resource_change::Response> {
        let resource = self.offered.resource(&sent.type_name)?;
        let Compiled { schema, ty } = resource.schema();
        let prior = state_from(resource, sent.prior_state.as_ref())?;
        let request = ApplyRequest {
            prior: prior.clone(),
            planned: state_from(resource, sent.planned_state.as_ref())?,
            config: convert::value_from(sent.config.as_ref(), ty)?,
            private: sent.planned_private.to_vec(),
            identity: identity_from(resource, sent.planned_identity.as_ref())?,
            provider_meta: self.meta(sent.provider_meta.as_ref())?,
            cancel: self.cancel(),
        };
        let mut applied = guarded("apply", resource.it.type_name(), resource.it.apply(request)).await?;
        if applied.state.is_none() && !has_errors(&applied.diagnostics) {
            applied
                .diagnostics
                .push(Diagnostic::error("Provider bug", "Apply returned neither a state nor an error."));
        }
        let failed = has_errors(&applied.diagnostics);
        let state = match applied.state {
            None => prior,
            Some(state) if failed => state.unknown_as_null(),
            Some(state) => state,
        };
        Ok(wire::apply_resource_change::Response {
            new_state: convert::value_to(&conform(&schema.block, state), ty)?,
            private: applied.private.map_or(sent.planned_private, Bytes::from),
            diagnostics: convert::diagnostics(applied.diagnostics),
            new_identity: identity_to(resource, applied.identity, sent.planned_identity)?,
            ..wire::apply_resource_change::Response::default()
        })
    }

    pub(super) async fn read(
        &self,
        sent: wire::read_resource::Request,
    ) -> Outcome<wire::read_resource::Response> {
        let resource = self.offered.resource(&sent.type_name)?;
        let Compiled { schema, ty } = resource.schema();
        let state = state_from(resource, sent.current_state.as_ref())?;
        let request = ReadRequest {
            state: state.clone(),
            private: sent.private.to_vec(),
            identity: identity_from(resource, sent.current_identity.as_ref())?,
            provider_meta: self.meta(sent.provider_meta.as_ref())?,
            client: convert::client(sent.client_capabilities),
            cancel: self.cancel(),
        };
        let read = guarded("read", resource.it.type_name(), resource.it.read(request)).await?;
        Ok(wire::read_resource::Response {
            new_state: convert::value_to(&conform(&schema.block, read.state.unwrap_or(state)), ty)?,
            diagnostics: convert::diagnostics(read.diagnostics),
            private: read.private.map_or(sent.private, Bytes::from),
            deferred: read.deferred.map(convert::deferred),
            new_identity: identity_to(resource, read.identity, sent.current_identity)?,
        })
    }

    pub(super) async fn import(
        &self,
        sent: wire::import_resource_state::Request,
    ) -> Outcome<wire::import_resource_state::Response> {
        use wire::import_resource_state::{ImportedResource, Response};
        let resource = self.offered.resource(&sent.type_name)?;
        let Compiled { schema, ty } = resource.schema();
        let source = match identity_from(resource, sent.identity.as_ref())? {
            Some(identity) => ImportSource::Identity(identity),
            None => ImportSource::Id(sent.id),
        };
        let request = ImportRequest {
            source,
            client: convert::client(sent.client_capabilities),
            cancel: self.cancel(),
        };
        let imported = guarded("import", resource.it.type_name(), resource.it.import(request)).await?;
        let found = match imported.state {
            None => None,
            Some(state) => Some(ImportedResource {
                type_name: sent.type_name,
                state: convert::value_to(&conform(&schema.block, state), ty)?,
                private: imported.private.into(),
                identity: identity_to(resource, imported.identity, sent.identity)?,
            }),
        };
        Ok(Response {
            imported_resources: found.into_iter().collect(),
            diagnostics: convert::diagnostics(imported.diagnostics),
            deferred: imported.deferred.map(convert::deferred),
        })
    }

    pub(super) async fn upgrade_state(
        &self,
        sent: wire::upgrade_resource_state::Request,
    ) -> Outcome<wire::upgrade_resource_state::Response> {
        let resource = self.offered.resource(&sent.type_name)?;
        let Compiled { schema, ty } = resource.schema();
        let json = convert::state_from(sent.raw_state.as_ref())?;
        let (state, diagnostics) = if sent.version == schema.version {
            let state = json::decode_state(json.as_bytes(), ty)
                .map_err(|error| vec![convert::not_decodable(&error)])?;
            (Some(state), Vec::new())
        } else {
            let request = UpgradeRequest { version: sent.version, json, cancel: self.cancel() };
            let upgraded = guarded("upgrade", resource.it.type_name(), resource.it.upgrade(request)).await?;
            (upgraded.state, upgraded.diagnostics)
        };
        let upgraded_state = match state {
            Some(state) => convert::value_to(&conform(&schema.block, state), ty)?,
            None => None,
        };
        Ok(wire::upgrade_resource_state::Response {
            upgraded_state,
            diagnostics: convert::diagnostics(diagnostics),
        })
    }

    pub(super) async fn upgrade_identity(
        &self,
        sent: wire::upgrade_resource_identity::Request,
    ) -> Outcome<wire::upgrade_resource_identity::Response> {
        let resource = self.offered.resource(&sent.type_name)?;
        let Some(identity) = resource.identity() else {
            return Err(vec![Diagnostic::error(
                "No identity",
                format!("A {} has no identity.", sent.type_name),
            )]);
        };
        let json = convert::state_from(sent.raw_identity.as_ref())?;
        let (upgraded, diagnostics) = if sent.version == identity.schema.version {
            let same = json::decode_state(json.as_bytes(), &identity.ty);
            (Some(same.map_err(|error| vec![convert::not_decodable(&error)])?), Vec::new())
        } else {
            let request = UpgradeRequest { version: sent.version, json, cancel: self.cancel() };
            let upgraded =
                guarded("upgrade_identity", resource.it.type_name(), resource.it.upgrade_identity(request))
                    .await?;
            (upgraded.state, upgraded.diagnostics)
        };
        Ok(wire::upgrade_resource_identity::Response {
            upgraded_identity: identity_to(resource, upgraded, None)?,
            diagnostics: convert::diagnostics(diagnostics),
        })
    }

    pub(super) async fn generate_config(
        &self,
        sent: wire::generate_resource_config::Request,
    ) -> Outcome<wire::generate_resource_config::Response> {
        let resource = self.offered.resource(&sent.type_name)?;
        let ty = &resource.schema().ty;
        let state = state_from(resource, sent.state.as_ref())?;
        if state.is_null() {
            let config = convert::value_to(&Value::Null, ty)?;
            return Ok(wire::generate_resource_config::Response { config, diagnostics: Vec::new() });
        }
        let request = GenerateConfigRequest { state, cancel: self.cancel() };
        let call = resource.it.generate_config(request);
        let generated = guarded("generate_config", resource.it.type_name(), call).await?;
        Ok(wire::generate_resource_config::Response {
            config: convert::value_to(&generated.config, ty)?,
            diagnostics: convert::diagnostics(generated.diagnostics),
        })
    }

    pub(super) async fn move_state(
        &self,
        sent: wire::move_resource_state::Request,
    ) -> Outcome<wire::move_resource_state::Response> {
        let resource = self.offered.resource(&sent.target_type_name)?;
        let Compiled { schema, ty } = resource.schema();
        let source_identity_json = match &sent.source_identity {
            Some(identity) if !identity.json.is_empty() => Some(convert::state_from(Some(identity))?),
            _ => None,
        };
        let request = MoveRequest {
            source_provider_address: sent.source_provider_address,
            source_type_name: sent.source_type_name,
            source_schema_version: sent.source_schema_version,
            source_json: convert::state_from(sent.source_state.as_ref())?,
            source_private: sent.source_private.to_vec(),
            source_identity_json,
            source_identity_schema_version: sent.source_identity_schema_version,
            cancel: self.cancel(),
        };
        let moved = guarded("move_state", resource.it.type_name(), resource.it.move_state(request)).await?;
        let target_state = match moved.state {
            Some(state) => convert::value_to(&conform(&schema.block, state), ty)?,
            None => None,
        };
        Ok(wire::move_resource_state::Response {
            target_state,
            diagnostics: convert::diagnostics(moved.diagnostics),
            target_private: moved.private.into(),
            target_identity: identity_to(resource, moved.identity, None)?,
        })
    }

    fn meta(&self, sent: Option<&wire::DynamicValue>) -> Outcome<Value> {
        self.meta_schema().map_or(Ok(Value::Null), |meta| convert::value_from(sent, &meta.ty))
    }
}

/// Decodes a plan or state. Write-only values in it are set to null, also if Terraform sent them.
fn state_from(resource: &Offered, sent: Option<&wire::DynamicValue>) -> Outcome<Value> {
    let Compiled { schema, ty } = resource.schema();
    Ok(conform(&schema.block, convert::value_from(sent, ty)?))
}

fn identity_from(resource: &Offered, sent: Option<&wire::ResourceIdentityData>) -> Outcome<Option<Value>> {
    let (Some(identity), Some(sent)) = (resource.identity(), sent) else { return Ok(None) };
    let value = convert::value_from(sent.identity_data.as_ref(), &identity.ty)?;
    Ok(Some(value).filter(|value| !value.is_null()))
}

/// The identity that the provider returned, else the prior one.
fn identity_to(resource: &Offered, returned: Option<Value>, before: Identity) -> Outcome<Identity> {
    let (Some(identity), Some(returned)) = (resource.identity(), returned) else { return Ok(before) };
    Ok(Some(wire::ResourceIdentityData { identity_data: convert::value_to(&returned, &identity.ty)? }))
}
