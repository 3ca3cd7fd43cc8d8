//! The provider's configuration, data sources, ephemeral resources and functions.

use super::{Outcome, ProviderServer, convert, guarded};
use crate::{
    CancellationToken,
    client::ClientCapabilities,
    data_source::ReadDataRequest,
    diagnostic::Diagnostic,
    ephemeral::{HeldRequest, OpenRequest},
    function::FunctionError,
    proto::tfplugin6 as wire,
    provider::ConfigureRequest,
    resource::ValidateRequest,
    ty::Type,
    value::Value,
};

impl ProviderServer {
    pub(super) async fn validate_provider(
        &self,
        sent: wire::validate_provider_config::Request,
    ) -> Outcome<Vec<Diagnostic>> {
        self.begin();
        let request = self.validate_request(sent.config.as_ref(), &self.provider_schema().ty)?;
        guarded("validate", "provider", self.provider.validate(request)).await
    }

    pub(super) async fn configure(
        &self,
        sent: wire::configure_provider::Request,
    ) -> Outcome<Vec<Diagnostic>> {
        self.begin();
        let request = ConfigureRequest {
            config: convert::value_from(sent.config.as_ref(), &self.provider_schema().ty)?,
            terraform_version: sent.terraform_version,
            client: convert::client(sent.client_capabilities),
            cancel: self.cancel(),
        };
        guarded("configure", "provider", self.provider.configure(request)).await
    }

    pub(super) async fn validate_data(
        &self,
        sent: wire::validate_data_resource_config::Request,
    ) -> Outcome<Vec<Diagnostic>> {
        let source = self.offered.data_source(&sent.type_name)?;
        let request = self.validate_request(sent.config.as_ref(), &source.schema().ty)?;
        guarded("validate", source.it.type_name(), source.it.validate(request)).await
    }

    pub(super) async fn read_data(
        &self,
        sent: wire::read_data_source::Request,
    ) -> Outcome<wire::read_data_source::Response> {
        let source = self.offered.data_source(&sent.type_name)?;
        let ty = &source.schema().ty;
        let meta = self.meta_schema();
        let request = ReadDataRequest {
            config: convert::value_from(sent.config.as_ref(), ty)?,
            provider_meta: meta
                .map_or(Ok(Value::Null), |meta| convert::value_from(sent.provider_meta.as_ref(), &meta.ty))?,
            client: convert::client(sent.client_capabilities),
            cancel: self.cancel(),
        };
        let read = guarded("read", source.it.type_name(), source.it.read(request)).await?;
        let state = match read.state {
            Some(state) => convert::value_to(&state, ty)?,
            None => None,
        };
        Ok(wire::read_data_source::Response {
            state,
            diagnostics: convert::diagnostics(read.diagnostics),
            deferred: read.deferred.map(convert::deferred),
        })
    }

    pub(super) async fn validate_ephemeral(
        &self,
        sent: wire::validate_ephemeral_resource_config::Request,
    ) -> Outcome<Vec<Diagnostic>> {
        let resource = self.offered.ephemeral_resource(&sent.type_name)?;
        let request = self.validate_request(sent.config.as_ref(), &resource.schema().ty)?;
        guarded("validate", resource.it.type_name(), resource.it.validate(request)).await
    }

    pub(super) async fn open(
        &self,
        sent: wire::open_ephemeral_resource::Request,
    ) -> Outcome<wire::open_ephemeral_resource::Response> {
        let resource = self.offered.ephemeral_resource(&sent.type_name)?;
        let ty = &resource.schema().ty;
        let request = OpenRequest {
            config: convert::value_from(sent.config.as_ref(), ty)?,
            client: convert::client(sent.client_capabilities),
            cancel: self.cancel(),
        };
        let opened = guarded("open", resource.it.type_name(), resource.it.open(request)).await?;
        let result = match opened.result {
            Some(result) => convert::value_to(&result, ty)?,
            None => None,
        };
        Ok(wire::open_ephemeral_resource::Response {
            diagnostics: convert::diagnostics(opened.diagnostics),
            renew_at: opened.renew_at.map(convert::timestamp),
            result,
            private: opened.private.map(Into::into),
            deferred: opened.deferred.map(convert::deferred),
        })
    }

    pub(super) async fn renew(
        &self,
        sent: wire::renew_ephemeral_resource::Request,
    ) -> Outcome<wire::renew_ephemeral_resource::Response> {
        let resource = self.offered.ephemeral_resource(&sent.type_name)?;
        let private = sent.private.unwrap_or_default().to_vec();
        let request = HeldRequest { private, cancel: self.cancel() };
        let renewed = guarded("renew", resource.it.type_name(), resource.it.renew(request)).await?;
        Ok(wire::renew_ephemeral_resource::Response {
            diagnostics: convert::diagnostics(renewed.diagnostics),
            renew_at: renewed.renew_at.map(convert::timestamp),
            private: renewed.private.map(Into::into),
        })
    }

    pub(super) async fn close(
        &self,
        sent: wire::close_ephemeral_resource::Request,
    ) -> Outcome<Vec<Diagnostic>> {
        let resource = self.offered.ephemeral_resource(&sent.type_name)?;
        // Terraform closes ephemeral resources after StopProvider: the stop must not cancel the close.
        let cancel = CancellationToken::new();
        let request = HeldRequest { private: sent.private.unwrap_or_default().to_vec(), cancel };
        guarded("close", resource.it.type_name(), resource.it.close(request)).await
    }

    pub(super) async fn call(&self, sent: wire::call_function::Request) -> wire::call_function::Response {
        let (result, error) = match self.result_of(sent).await {
            Ok(result) => (result, None),
            Err(error) => (None, Some(error)),
        };
        let error = error.map(|error| wire::FunctionError {
            text: error.text,
            function_argument: error.argument.and_then(|argument| i64::try_from(argument).ok()),
        });
        wire::call_function::Response { result, error }
    }

    async fn result_of(
        &self,
        sent: wire::call_function::Request,
    ) -> Result<Option<wire::DynamicValue>, FunctionError> {
        let failed = |argument: Option<usize>| {
            move |diagnostics: Vec<Diagnostic>| FunctionError {
                text: diagnostics
                    .into_iter()
                    .map(|diagnostic| diagnostic.detail)
                    .collect::<Vec<_>>()
                    .join("\n"),
                argument,
            }
        };
        let Some(function) = self.offered.functions.get(&sent.name) else {
            return Err(FunctionError { text: format!("no function {:?}", sent.name), argument: None });
        };
        let signature = function.signature();
        let mut arguments = Vec::new();
        for (i, argument) in sent.arguments.iter().enumerate() {
            let Some(parameter) = signature.parameters.get(i).or(signature.variadic.as_ref()) else {
                return Err(FunctionError { text: "too many arguments".to_owned(), argument: Some(i) });
            };
            arguments.push(convert::value_from(Some(argument), &parameter.ty).map_err(failed(Some(i)))?);
        }
        if arguments.len() < signature.parameters.len() {
            return Err(FunctionError { text: "not enough arguments".to_owned(), argument: None });
        }
        let result = guarded("call", function.it.name(), function.it.call(arguments))
            .await
            .map_err(failed(None))??;
        convert::value_to(&result, &signature.returns).map_err(failed(None))
    }

    pub(super) fn validate_request(
        &self,
        sent: Option<&wire::DynamicValue>,
        ty: &Type,
    ) -> Outcome<ValidateRequest> {
        let config = convert::value_from(sent, ty)?;
        Ok(ValidateRequest { config, client: ClientCapabilities::default(), cancel: self.cancel() })
    }
}
