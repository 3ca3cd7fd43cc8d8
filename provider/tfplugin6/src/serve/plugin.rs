//! What go-plugin wants of every plugin beside its own service.

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

/// A stream that says nothing until the end: an open stream would hold the shutdown up.
fn silent<T: Send + 'static>(end: &CancellationToken) -> Messages<T> {
    stream::pending().take_until(end.clone().cancelled_owned()).boxed()
}

/// How Terraform ends the plugin.
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

/// What the plugin printed. Nothing: it logs to stderr.
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

/// Further connections between the two, which Terraform never asks for.
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

/// Whether the plugin still serves.
#[derive(Debug)]
pub(super) struct Health;

impl Health {
    fn status(request: &HealthCheckRequest) -> Option<HealthCheckResponse> {
        // go-plugin asks for `plugin`, the standard's tools for the empty name.
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
