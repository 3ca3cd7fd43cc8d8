//! The public server handle: opens, serves in process or on sockets, and shuts down.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use base64::Engine as _;
use berth_store::{Storage, Store, write_private};
use bytes::Bytes;
use http::{Request, Response};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::BoxError;

use crate::audit::Audit;
use crate::authenticate::{Credential, Tokens};
use crate::config::ServerConfig;
use crate::core::Core;
use crate::credentials::{Credentials, certified_name, keep_current};
use crate::http::Front;
use crate::identity::Identity;
use crate::ids::Ids;
use crate::listen;
use crate::service_account::{Accounts, SigningKey};
use crate::{backups, bootstrap, housekeeping};

/// Why serving ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Plain HTTP was requested on an address that other machines can reach.
    #[error("refusing to listen on {0} without TLS: only loopback addresses may go without")]
    PlainOnPublicAddress(SocketAddr),
    /// The listener failed.
    #[error("listening")]
    Listen(#[from] io::Error),
    /// TLS could not be set up.
    #[error("setting up TLS")]
    Tls(#[source] io::Error),
}

/// A socket to serve on.
#[derive(Debug)]
pub enum Listener {
    /// TLS with the server's own certificate.
    Tls(TcpListener),
    /// Plain HTTP; refused unless the address is loopback.
    Plain(TcpListener),
}

/// Why a server could not be opened. Guarantees: a database that is refused has not been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The database, or a file beside it.
    #[error(transparent)]
    Store(#[from] berth_store::OpenError),
    /// Keys, certificates or tokens beside the database could not be read or made.
    #[error("credentials: {0}")]
    Credentials(String),
    /// A stored definition cannot be served.
    #[error("stored objects: {0}")]
    Content(String),
}

/// An open server. Cheap to clone; all clones are the same server.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    core: Arc<Core>,
    front: Arc<Front>,
    subject_alt_names: Vec<String>,
    background: TaskTracker,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a shutdown the background work must still end with the last handle.
        self.core.stopping.cancel();
    }
}

impl Server {
    /// Opens the state, creates the objects that every cluster has (such as the `default` namespace) and
    /// starts the background tasks.
    ///
    /// Assumptions: called inside a tokio runtime; the background tasks run on it.
    ///
    /// # Errors
    /// See [`OpenError`]; a database that is refused has not been changed.
    pub async fn open(config: ServerConfig) -> Result<Self, OpenError> {
        let store = Store::open(&config.storage, config.writer)?;
        let failed = |error: io::Error| OpenError::Credentials(error.to_string());
        let (credentials, signing) = match &config.storage {
            Storage::Memory => (None, SigningKey::ephemeral().map_err(failed)?),
            Storage::Directory(directory) => {
                let opened = Credentials::open(directory).map_err(failed)?;
                (Some(opened), SigningKey::open(directory).map_err(failed)?)
            }
        };
        let ids = Ids::new(config.seed);
        let accounts = Accounts::new(signing, Arc::clone(&store), Arc::clone(&config.clock));
        let tokens = Tokens { given: credentials, accounts };
        let mut core = Core::new(store, config.clock, ids, config.event_ttl, tokens);
        if let Some(path) = config.audit_log {
            core.audit = Some(
                Audit::open(&path).map_err(|source| berth_store::OpenError::Directory { path, source })?,
            );
        }
        let core = Arc::new(core);
        bootstrap::ensure(&core).await.map_err(OpenError::Content)?;
        // A policy or a full disk may refuse these writes. Housekeeping retries them, and the server opens
        // regardless so that an administrator can fix the cause.
        if let Err(why) = housekeeping::settle(&core).await {
            tracing::warn!(why, "default accounts and gathered roles are not complete");
        }
        let background = TaskTracker::new();
        background.spawn(housekeeping::run(Arc::clone(&core), config.history));
        if let (Some(schedule), Storage::Directory(directory)) = (config.backups, &config.storage) {
            background.spawn(backups::run(
                Arc::clone(&core.backups),
                core.stopping.clone(),
                directory.clone(),
                schedule,
            ));
        }
        let front = Arc::new(Front::new(Arc::clone(&core)));
        let subject_alt_names = config.subject_alt_names;
        Ok(Self { inner: Arc::new(Inner { core, front, subject_alt_names, background }) })
    }

    /// Returns the API as a tower service for the administrator:
    /// `kube::Client::new(server.service(), "default")`.
    pub fn service(&self) -> ApiService {
        self.service_as(Identity::admin())
    }

    /// Returns the API as a tower service for the given identity.
    pub fn service_as(&self, identity: Identity) -> ApiService {
        ApiService { front: Arc::clone(&self.inner.front), identity, credential: None, _server: self.clone() }
    }

    /// Returns the API as a tower service for the holder of a token, or `None` if the token is not valid. As
    /// over a socket, requests made after the token becomes invalid are refused, and watches end.
    pub fn service_with_token(&self, token: &str) -> Option<ApiService> {
        let credential = Credential::new(token);
        let identity = credential.identity(&self.inner.core.tokens)?;
        Some(ApiService { credential: Some(credential), ..self.service_as(identity) })
    }

    /// Serves until `stop` is cancelled or the server shuts down, then lets running requests finish.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn serve(&self, listener: Listener, stop: CancellationToken) -> Result<(), ServeError> {
        let (listener, tls) = match listener {
            Listener::Plain(listener) => {
                let address = listener.local_addr()?;
                if !address.ip().is_loopback() {
                    return Err(ServeError::PlainOnPublicAddress(address));
                }
                (listener, None)
            }
            Listener::Tls(listener) => {
                let names = self.names(listener.local_addr()?);
                let config = self.credentials().and_then(|c| c.tls(&names)).map_err(ServeError::Tls)?;
                (listener, Some((watch::Sender::new(config), names)))
            }
        };
        let both = stop.child_token();
        let (ends, stopping) = (both.clone(), self.inner.core.stopping.clone());
        let current = tls.as_ref().map(|(tls, _)| tls.subscribe());
        let renewing = async {
            match &tls {
                Some((tls, names)) => {
                    let renewal = keep_current(tls, || self.credentials()?.renewed(names));
                    let authority = async {
                        if let Ok(credentials) = self.credentials() {
                            credentials.watch_ca().await;
                        }
                    };
                    tokio::join!(renewal, authority);
                }
                None => std::future::pending().await,
            }
        };
        let serving = listen::serve(self.front(), listener, current, both);
        tokio::pin!(serving);
        tokio::select! {
            ended = &mut serving => return Ok(ended?),
            () = renewing => {}
            () = stopping.cancelled() => ends.cancel(),
        }
        Ok(serving.await?)
    }

    pub(crate) fn front(&self) -> Arc<Front> {
        Arc::clone(&self.inner.front)
    }

    /// The names and addresses that the server certificate must be valid for.
    fn names(&self, address: SocketAddr) -> Vec<String> {
        let mut names: Vec<String> =
            ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default"].map(str::to_owned).into();
        if let Ok(host) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
            names.extend(certified_name(&host).map(str::to_owned));
        }
        if !address.ip().is_unspecified() {
            names.push(address.ip().to_string());
        }
        names.extend(self.inner.subject_alt_names.iter().cloned());
        names.retain(|name| !name.is_empty());
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }

    fn credentials(&self) -> io::Result<&Credentials> {
        let none = || io::Error::other("a server in memory has no credentials");
        self.inner.core.tokens.given.as_ref().ok_or_else(none)
    }

    /// The certificate of the server's own CA, in PEM.
    ///
    /// # Errors
    /// A server in memory has none.
    pub fn ca_certificate(&self) -> io::Result<String> {
        Ok(self.credentials()?.ca_pem().to_owned())
    }

    /// A kubeconfig for the administrator at `url` (`https://host:port`).
    ///
    /// # Errors
    /// A server in memory has no credentials, so clients cannot log in to it.
    pub fn kubeconfig(&self, url: &str) -> io::Result<String> {
        let credentials = self.credentials()?;
        let ca = base64::engine::general_purpose::STANDARD.encode(credentials.ca_pem());
        let mut cluster = json!({"server": url});
        if url.starts_with("https:") {
            cluster["certificate-authority-data"] = ca.into();
        }
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "berth", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": credentials.admin_token()}}],
            "contexts": [{"name": "berth", "context": {"cluster": "berth", "user": "admin", "namespace": "default"}}],
            "current-context": "berth",
        });
        serde_saphyr::to_string(&config).map_err(io::Error::other)
    }

    /// Writes [`Self::kubeconfig`] to a file that only its owner can read, replacing it atomically. A file with this
    /// content stays: a server starts on a full disk, too.
    ///
    /// # Errors
    /// See [`Self::kubeconfig`]; or the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path, url: &str) -> io::Result<()> {
        let wanted = self.kubeconfig(url)?;
        let is_private =
            || std::fs::metadata(path).is_ok_and(|facts| facts.permissions().mode() & 0o077 == 0);
        if std::fs::read_to_string(path).is_ok_and(|there| there == wanted) && is_private() {
            return Ok(());
        }
        write_private(path, wanted.as_bytes())
    }

    /// Ends watches, sockets and background work, and returns once every accepted write is durable and in the audit log.
    pub async fn shutdown(&self) {
        self.inner.core.stopping.cancel();
        self.inner.background.close();
        self.inner.background.wait().await;
        self.inner.core.store.close();
        if let Some(audit) = &self.inner.core.audit {
            audit.flush().await;
        }
    }
}

/// The API in process, with a fixed identity or a token. Keeps the server open.
#[derive(Debug, Clone)]
pub struct ApiService {
    front: Arc<Front>,
    identity: Identity,
    credential: Option<Credential>,
    _server: Server,
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
        let (front, identity) = (Arc::clone(&self.front), self.identity.clone());
        let mut request = request.map(Body::new);
        let Some(credential) = self.credential.clone() else {
            return Box::pin(async move { Ok(front.answer(request, Some(identity)).await) });
        };
        let identity = credential.identity(&front.core.tokens);
        request.extensions_mut().insert(credential);
        Box::pin(async move { Ok(front.answer(request, identity).await) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_is_written_when_it_has_changed_only() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::open(ServerConfig::in_directory(folder.path().join("state"))).await.unwrap();
        let path = folder.path().join("kubeconfig");
        let write = |url: &str| {
            server.write_kubeconfig(&path, url).unwrap();
            std::fs::metadata(&path).unwrap()
        };
        let first = write("https://127.0.0.1:1");
        // Each file that is written is a new one.
        let kept = std::fs::File::open(&path).unwrap();
        assert_eq!(write("https://127.0.0.1:1").ino(), first.ino());
        assert_ne!(write("https://127.0.0.1:2").ino(), first.ino());
        drop(kept);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(write("https://127.0.0.1:2").mode() & 0o777, 0o600, "others could read it");
        server.shutdown().await;
    }
}
