//! Sockets: accepting, TLS, authentication, graceful shutdown.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, interval_at};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::authenticate::LastCredential;
use crate::connection_policy::{ConnectionPolicy, Health};
use crate::credentials::{Certified, of_certificate};
use crate::http::{Front, bearer, from_socket};

/// The maximum number of open connections.
const MAX_CONNECTIONS: usize = 10_000;
/// The timeout of the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a kept-alive connection may wait for its next request, and the head of a request may take. Longer
/// than clients keep idle connections (90 s is usual): a connection closed by the server may have a request
/// in transit.
const IDLE: Duration = Duration::from_secs(110);
/// How long a write may wait for the client to read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long running requests may take to finish when the server stops.
const GRACE: Duration = Duration::from_secs(5);
/// The maximum number of open requests per HTTP/2 connection.
const MAX_STREAMS: u32 = 250;
/// The bytes of request bodies that may wait to be read, of one stream and of the whole connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// How often a connection is checked for being idle or stalled.
const LOOK: Duration = Duration::from_secs(20);

/// Accepts connections until `stop`, then waits for running requests for a limited time.
pub(crate) async fn serve(
    front: Arc<Front>,
    listener: TcpListener,
    tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    stop: CancellationToken,
) -> io::Result<()> {
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = tokio::select! {
            () = stop.cancelled() => break,
            place = Arc::clone(&places).acquire_owned() => place.map_err(io::Error::other)?,
        };
        let (stream, peer) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The process is out of file descriptors, or the client disconnected: neither ends the
                    // listener.
                    tracing::warn!(error = %error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let tls = tls.as_ref().map(|current| TlsAcceptor::from(current.borrow().clone()));
        let (front, stop) = (Arc::clone(&front), stop.clone());
        connections.spawn(async move {
            let _connected = front.metrics.connected();
            connection(Arc::clone(&front), stream, peer, tls, stop).await;
            drop(place);
        });
    }
    connections.close();
    if tokio::time::timeout(GRACE, connections.wait()).await.is_err() {
        tracing::info!("requests were still running when the server stopped");
    }
    Ok(())
}

async fn connection(
    front: Arc<Front>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) {
    // Watch frames are small and must not be delayed to be combined.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return talk(front, stream, peer, None, stop).await;
    };
    match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => {
            let (_, session) = stream.get_ref();
            let by_certificate = session.peer_certificates().and_then(|chain| of_certificate(chain.first()?));
            talk(front, stream, peer, by_certificate, stop).await;
        }
        Ok(Err(error)) => tracing::debug!(error = %error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
}

async fn talk<S>(
    front: Arc<Front>,
    stream: S,
    peer: SocketAddr,
    by_certificate: Option<Certified>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let policy = ConnectionPolicy::new(IDLE);
    let observed = Arc::clone(&policy);
    let credentials = Arc::new(LastCredential::default());
    let service = service_fn(move |request: Request<Incoming>| {
        let open = observed.request(request.version());
        // On the heap, to be freed with the response head: the task of an open watch would keep the space of a
        // whole request.
        let (front, credentials) = (Arc::clone(&front), Arc::clone(&credentials));
        let request = request.map(Body::new);
        let answer = Box::pin(answer(front, credentials, request, peer, by_certificate.clone()));
        async move {
            let response = answer.await;
            Ok::<_, Infallible>(match open {
                Some(open) => open.with(response),
                None => response,
            })
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
    builder.http2().keep_alive_interval(Duration::from_secs(30)).keep_alive_timeout(Duration::from_secs(20));
    builder
        .http2()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = pin!(connection);
    let (mut looks, mut ending) = (interval_at(Instant::now() + LOOK, LOOK), false);
    loop {
        tokio::select! {
            ended = &mut connection => return log_end(ended),
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                return log_end(connection.await);
            }
            _ = looks.tick() => match policy.health() {
                Health::Active => {}
                Health::Idle if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                health => return tracing::debug!(?health, "connection closed"),
            },
        }
    }
}

fn log_end<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(error = %error, "connection ended");
    }
}

async fn answer(
    front: Arc<Front>,
    credentials: Arc<LastCredential>,
    mut request: Request<Body>,
    peer: SocketAddr,
    by_certificate: Option<Certified>,
) -> http::Response<Body> {
    // An invalid token is an error even if the client certificate is valid.
    let who = match bearer(&request).map(|token| credentials.with(token)) {
        Some(credential) => {
            let who = credential.identity(&front.core.tokens);
            request.extensions_mut().insert(credential);
            who
        }
        None => by_certificate.and_then(Certified::current),
    };
    from_socket(&mut request, peer);
    front.answer(request, who).await
}

#[cfg(test)]
mod tests;
