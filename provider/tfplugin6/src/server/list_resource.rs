//! List resources.

use super::{Outcome, ProviderServer, convert, guarded};
use crate::{
    diagnostic::{Diagnostic, has_errors},
    list_resource::{ListRequest, ListResult},
    proto::tfplugin6 as wire,
    schema::conform::conform,
};

impl ProviderServer {
    pub(super) async fn validate_list(
        &self,
        sent: wire::validate_list_resource_config::Request,
    ) -> Outcome<Vec<Diagnostic>> {
        let list = self.offered.list_resource(&sent.type_name)?;
        let request = self.validate_request(sent.config.as_ref(), &list.schema().ty)?;
        guarded("validate", list.it.type_name(), list.it.validate(request)).await
    }

    /// The events of a list. An error is the only event.
    pub(super) async fn list(&self, sent: wire::list_resource::Request) -> Vec<wire::list_resource::Event> {
        self.listed(sent).await.unwrap_or_else(|diagnostics| vec![event(diagnostics)])
    }

    async fn listed(&self, sent: wire::list_resource::Request) -> Outcome<Vec<wire::list_resource::Event>> {
        let list = self.offered.list_resource(&sent.type_name)?;
        let request = ListRequest {
            config: convert::value_from(sent.config.as_ref(), &list.schema().ty)?,
            include_resource: sent.include_resource_object,
            limit: usize::try_from(sent.limit).unwrap_or(0),
            cancel: self.cancel(),
        };
        let limit = request.limit;
        let listed = guarded("list", list.it.type_name(), list.it.list(request)).await?;
        if has_errors(&listed.diagnostics) {
            return Err(listed.diagnostics);
        }
        // Terraform accepts an event without an identity only if it has diagnostics.
        let mut events = Vec::new();
        if !listed.diagnostics.is_empty() {
            events.push(event(listed.diagnostics));
        }
        for result in listed.results.into_iter().take(limit) {
            events.push(self.list_event(&sent.type_name, result)?);
        }
        Ok(events)
    }

    fn list_event(&self, type_name: &str, result: ListResult) -> Outcome<wire::list_resource::Event> {
        let resource = self.offered.resource(type_name)?;
        let Some(identity) = resource.identity() else {
            let detail = format!("A {type_name} has no identity. This is a bug in the provider.");
            return Err(vec![Diagnostic::error("No identity", detail)]);
        };
        let compiled = resource.schema();
        let resource_object = match result.resource {
            Some(state) => convert::value_to(&conform(&compiled.schema.block, state), &compiled.ty)?,
            None => None,
        };
        let identity_data = convert::value_to(&result.identity, &identity.ty)?;
        Ok(wire::list_resource::Event {
            identity: Some(wire::ResourceIdentityData { identity_data }),
            display_name: result.display_name,
            resource_object,
            diagnostic: Vec::new(),
        })
    }
}

fn event(diagnostics: Vec<Diagnostic>) -> wire::list_resource::Event {
    wire::list_resource::Event {
        diagnostic: convert::diagnostics(diagnostics),
        ..wire::list_resource::Event::default()
    }
}
