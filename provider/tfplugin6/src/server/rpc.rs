//! The generated service trait. RPCs that are not implemented here, those of state stores, return `Unimplemented`.

use futures::{StreamExt as _, stream};
use tonic::{Request, Response, Status, codegen::BoxStream};

use super::{Outcome, ProviderServer, convert};
use crate::{
    diagnostic::Diagnostic,
    proto::tfplugin6::{self as wire, provider_server::Provider},
};

/// The diagnostics of a response that holds nothing else, or of one that failed.
fn diagnostics_of(outcome: Outcome<Vec<Diagnostic>>) -> Vec<wire::Diagnostic> {
    convert::diagnostics(outcome.unwrap_or_else(|diagnostics| diagnostics))
}

macro_rules! reply {
    ($module:ident, $outcome:expr) => {{
        let response = $outcome.unwrap_or_else(|diagnostics| wire::$module::Response {
            diagnostics: convert::diagnostics(diagnostics),
            ..wire::$module::Response::default()
        });
        Ok(Response::new(response))
    }};
}

#[tonic::async_trait]
impl Provider for ProviderServer {
    async fn get_metadata(
        &self,
        _: Request<wire::get_metadata::Request>,
    ) -> Result<Response<wire::get_metadata::Response>, Status> {
        Ok(Response::new(self.metadata()))
    }

    async fn get_provider_schema(
        &self,
        _: Request<wire::get_provider_schema::Request>,
    ) -> Result<Response<wire::get_provider_schema::Response>, Status> {
        Ok(Response::new(self.schemas()))
    }

    async fn get_resource_identity_schemas(
        &self,
        _: Request<wire::get_resource_identity_schemas::Request>,
    ) -> Result<Response<wire::get_resource_identity_schemas::Response>, Status> {
        Ok(Response::new(self.identity_schemas()))
    }

    async fn get_functions(
        &self,
        _: Request<wire::get_functions::Request>,
    ) -> Result<Response<wire::get_functions::Response>, Status> {
        Ok(Response::new(self.functions()))
    }

    async fn validate_provider_config(
        &self,
        request: Request<wire::validate_provider_config::Request>,
    ) -> Result<Response<wire::validate_provider_config::Response>, Status> {
        let diagnostics = diagnostics_of(self.validate_provider(request.into_inner()).await);
        Ok(Response::new(wire::validate_provider_config::Response { diagnostics }))
    }

    async fn configure_provider(
        &self,
        request: Request<wire::configure_provider::Request>,
    ) -> Result<Response<wire::configure_provider::Response>, Status> {
        let diagnostics = diagnostics_of(self.configure(request.into_inner()).await);
        Ok(Response::new(wire::configure_provider::Response { diagnostics }))
    }

    async fn validate_resource_config(
        &self,
        request: Request<wire::validate_resource_config::Request>,
    ) -> Result<Response<wire::validate_resource_config::Response>, Status> {
        let diagnostics = diagnostics_of(self.validate_resource(request.into_inner()).await);
        Ok(Response::new(wire::validate_resource_config::Response { diagnostics }))
    }

    async fn plan_resource_change(
        &self,
        request: Request<wire::plan_resource_change::Request>,
    ) -> Result<Response<wire::plan_resource_change::Response>, Status> {
        reply!(plan_resource_change, self.plan(request.into_inner()).await)
    }

    async fn apply_resource_change(
        &self,
        request: Request<wire::apply_resource_change::Request>,
    ) -> Result<Response<wire::apply_resource_change::Response>, Status> {
        let request = request.into_inner();
        // For failures before the provider has returned: nothing is known to have changed.
        let (prior, private) = (request.prior_state.clone(), request.planned_private.clone());
        let identity = request.planned_identity.clone();
        let response =
            self.apply(request).await.unwrap_or_else(|diagnostics| wire::apply_resource_change::Response {
                new_state: prior,
                private,
                new_identity: identity,
                diagnostics: convert::diagnostics(diagnostics),
                ..wire::apply_resource_change::Response::default()
            });
        Ok(Response::new(response))
    }

    async fn read_resource(
        &self,
        request: Request<wire::read_resource::Request>,
    ) -> Result<Response<wire::read_resource::Response>, Status> {
        let request = request.into_inner();
        let (state, private) = (request.current_state.clone(), request.private.clone());
        let response = self.read(request).await.unwrap_or_else(|diagnostics| wire::read_resource::Response {
            new_state: state,
            private,
            diagnostics: convert::diagnostics(diagnostics),
            ..wire::read_resource::Response::default()
        });
        Ok(Response::new(response))
    }

    async fn import_resource_state(
        &self,
        request: Request<wire::import_resource_state::Request>,
    ) -> Result<Response<wire::import_resource_state::Response>, Status> {
        reply!(import_resource_state, self.import(request.into_inner()).await)
    }

    async fn upgrade_resource_state(
        &self,
        request: Request<wire::upgrade_resource_state::Request>,
    ) -> Result<Response<wire::upgrade_resource_state::Response>, Status> {
        reply!(upgrade_resource_state, self.upgrade_state(request.into_inner()).await)
    }

    async fn upgrade_resource_identity(
        &self,
        request: Request<wire::upgrade_resource_identity::Request>,
    ) -> Result<Response<wire::upgrade_resource_identity::Response>, Status> {
        reply!(upgrade_resource_identity, self.upgrade_identity(request.into_inner()).await)
    }

    async fn move_resource_state(
        &self,
        request: Request<wire::move_resource_state::Request>,
    ) -> Result<Response<wire::move_resource_state::Response>, Status> {
        reply!(move_resource_state, self.move_state(request.into_inner()).await)
    }

    async fn validate_data_resource_config(
        &self,
        request: Request<wire::validate_data_resource_config::Request>,
    ) -> Result<Response<wire::validate_data_resource_config::Response>, Status> {
        let diagnostics = diagnostics_of(self.validate_data(request.into_inner()).await);
        Ok(Response::new(wire::validate_data_resource_config::Response { diagnostics }))
    }

    async fn read_data_source(
        &self,
        request: Request<wire::read_data_source::Request>,
    ) -> Result<Response<wire::read_data_source::Response>, Status> {
        reply!(read_data_source, self.read_data(request.into_inner()).await)
    }

    async fn validate_ephemeral_resource_config(
        &self,
        request: Request<wire::validate_ephemeral_resource_config::Request>,
    ) -> Result<Response<wire::validate_ephemeral_resource_config::Response>, Status> {
        let diagnostics = diagnostics_of(self.validate_ephemeral(request.into_inner()).await);
        Ok(Response::new(wire::validate_ephemeral_resource_config::Response { diagnostics }))
    }

    async fn open_ephemeral_resource(
        &self,
        request: Request<wire::open_ephemeral_resource::Request>,
    ) -> Result<Response<wire::open_ephemeral_resource::Response>, Status> {
        reply!(open_ephemeral_resource, self.open(request.into_inner()).await)
    }

    async fn renew_ephemeral_resource(
        &self,
        request: Request<wire::renew_ephemeral_resource::Request>,
    ) -> Result<Response<wire::renew_ephemeral_resource::Response>, Status> {
        reply!(renew_ephemeral_resource, self.renew(request.into_inner()).await)
    }

    async fn close_ephemeral_resource(
        &self,
        request: Request<wire::close_ephemeral_resource::Request>,
    ) -> Result<Response<wire::close_ephemeral_resource::Response>, Status> {
        let diagnostics = diagnostics_of(self.close(request.into_inner()).await);
        Ok(Response::new(wire::close_ephemeral_resource::Response { diagnostics }))
    }

    async fn generate_resource_config(
        &self,
        request: Request<wire::generate_resource_config::Request>,
    ) -> Result<Response<wire::generate_resource_config::Response>, Status> {
        reply!(generate_resource_config, self.generate_config(request.into_inner()).await)
    }

    async fn validate_list_resource_config(
        &self,
        request: Request<wire::validate_list_resource_config::Request>,
    ) -> Result<Response<wire::validate_list_resource_config::Response>, Status> {
        let diagnostics = diagnostics_of(self.validate_list(request.into_inner()).await);
        Ok(Response::new(wire::validate_list_resource_config::Response { diagnostics }))
    }

    async fn list_resource(
        &self,
        request: Request<wire::list_resource::Request>,
    ) -> Result<Response<BoxStream<wire::list_resource::Event>>, Status> {
        let events = self.list(request.into_inner()).await;
        Ok(Response::new(Box::pin(stream::iter(events.into_iter().map(Ok)))))
    }

    async fn validate_action_config(
        &self,
        request: Request<wire::validate_action_config::Request>,
    ) -> Result<Response<wire::validate_action_config::Response>, Status> {
        let diagnostics = diagnostics_of(self.validate_action(request.into_inner()).await);
        Ok(Response::new(wire::validate_action_config::Response { diagnostics }))
    }

    async fn plan_action(
        &self,
        request: Request<wire::plan_action::Request>,
    ) -> Result<Response<wire::plan_action::Response>, Status> {
        reply!(plan_action, self.planned_action(request.into_inner()).await)
    }

    async fn invoke_action(
        &self,
        request: Request<wire::invoke_action::Request>,
    ) -> Result<Response<BoxStream<wire::invoke_action::Event>>, Status> {
        Ok(Response::new(Box::pin(self.invoke(request.into_inner()).map(Ok))))
    }

    async fn call_function(
        &self,
        request: Request<wire::call_function::Request>,
    ) -> Result<Response<wire::call_function::Response>, Status> {
        Ok(Response::new(self.call(request.into_inner()).await))
    }

    async fn stop_provider(
        &self,
        _: Request<wire::stop_provider::Request>,
    ) -> Result<Response<wire::stop_provider::Response>, Status> {
        self.stop();
        Ok(Response::new(wire::stop_provider::Response::default()))
    }
}
