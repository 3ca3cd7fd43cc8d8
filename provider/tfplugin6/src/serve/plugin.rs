//! The services that go-plugin requires of every plugin beside its own service.

use std::pin::Pin;

use futures::{Stream, StreamExt as _, stream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::proto::{
    health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server},
    plugin::{
        ConnInfo, Empty, StdioData, grpc_broker_server::GrpcBroker, grpc_controller_server::GrpcController,
        grpc_stdio_server::GrpcStdio,
    },
};

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A stream without messages that ends with the server: an open stream would delay the shutdown.
fn silent<T: Send + 'static>(end: &CancellationToken) -> Messages<T> {
    stream::pending().take_until(end.clone().cancelled_owned()).boxed()
}

/// Ends the plugin on Terraform's request.
#[derive(Debug)]
pub(super) struct Controller {
    shutdown: CancellationToken,
}

impl Controller {
    pub(super) const fn new(shutdown: CancellationToken) -> Self {
        Self { shutdown }
    }
}

#[tonic::async_trait]
impl GrpcController for Controller {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.shutdown.cancel();
        Ok(Response::new(Empty {}))
    }
}

/// The plugin's standard output. Always empty: the plugin logs to stderr.
#[derive(Debug)]
pub(super) struct Stdio {
    shutdown: CancellationToken,
}

impl Stdio {
    pub(super) const fn new(shutdown: CancellationToken) -> Self {
        Self { shutdown }
    }
}

#[tonic::async_trait]
impl GrpcStdio for Stdio {
    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Messages<StdioData>>, Status> {
        Ok(Response::new(silent(&self.shutdown)))
    }
}

/// Additional connections between host and plugin, which Terraform never requests.
#[derive(Debug)]
pub(super) struct Broker {
    shutdown: CancellationToken,
}

impl Broker {
    pub(super) const fn new(shutdown: CancellationToken) -> Self {
        Self { shutdown }
    }
}

#[tonic::async_trait]
impl GrpcBroker for Broker {
    async fn start_stream(
        &self,
        _: Request<Streaming<ConnInfo>>,
    ) -> Result<Response<Messages<ConnInfo>>, Status> {
        Ok(Response::new(silent(&self.shutdown)))
    }
}

/// The health check.
#[derive(Debug)]
pub(super) struct Health;

impl Health {
    fn status(request: &HealthCheckRequest) -> Option<HealthCheckResponse> {
        // go-plugin sends `plugin`, the standard's tools send the empty name.
        let known = matches!(request.service.as_str(), "" | "plugin");
        known.then(|| HealthCheckResponse { status: ServingStatus::Serving.into() })
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = Self::status(request.get_ref());
        status.map(Response::new).ok_or_else(|| Status::not_found("no such service"))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Messages<HealthCheckResponse>>, Status> {
        let unknown = HealthCheckResponse { status: ServingStatus::ServiceUnknown.into() };
        let status = Self::status(request.get_ref()).unwrap_or(unknown);
        Ok(Response::new(stream::iter([Ok(status)]).boxed()))
    }
}
