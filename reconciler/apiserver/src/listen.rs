//! Sockets: accepting, TLS, authentication, graceful end.

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
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::authenticate;
use crate::conduct::{Conduct, Verdict};
use crate::credentials::of_certificate;
use crate::http::{Front, bearer, from_socket};
use crate::identity::Identity;
use crate::stall::Stalling;

/// Connections open at once.
const MAX_CONNECTIONS: usize = 10_000;
/// How long a client may take for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a kept connection may wait for its next request, and how long the head of one may take. Longer than
/// clients keep one (90 s is usual): what is closed at this end may have a request under way.
const IDLE: Duration = Duration::from_secs(110);
/// How long running requests get to end when the server stops.
const GRACE: Duration = Duration::from_secs(5);
/// Requests one HTTP/2 connection may have open.
const MAX_STREAMS: u32 = 250;
/// Bytes of its requests' bodies that wait to be read, of one and of all together.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// How often it is looked at what a client does with its connection.
const LOOK: Duration = Duration::from_secs(20);

/// Accepts until `stop`, then waits a moment for what runs.
pub(crate) async fn serve(
    front: Arc<Front>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
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
                    // Out of descriptors, or the client left: neither ends the listener.
                    tracing::warn!(error = %error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let (front, tls, stop) = (Arc::clone(&front), tls.clone(), stop.clone());
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
    // Watch frames are small and must not wait for each other.
    let _ = stream.set_nodelay(true);
    let stream = Stalling::new(stream);
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
    by_certificate: Option<Identity>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let conduct = Conduct::new(IDLE);
    let noted = Arc::clone(&conduct);
    let service = service_fn(move |request: Request<Incoming>| {
        let answering = noted.request(request.version());
        let answer = answer(Arc::clone(&front), request.map(Body::new), peer, by_certificate.clone());
        async move {
            let response = answer.await;
            Ok::<_, Infallible>(match answering {
                Some(answering) => answering.with(response),
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
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let (mut looks, mut ending) = (interval_at(Instant::now() + LOOK, LOOK), false);
    loop {
        tokio::select! {
            ended = &mut connection => return log_end(ended),
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                return log_end(connection.await);
            }
            _ = looks.tick() => match conduct.verdict() {
                Verdict::Fine => {}
                Verdict::Idle if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                verdict => return tracing::debug!(?verdict, "connection closed"),
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
    mut request: Request<Body>,
    peer: SocketAddr,
    by_certificate: Option<Identity>,
) -> http::Response<Body> {
    // A wrong token is not overlooked because the certificate would do.
    let who = match bearer(&request) {
        Some(token) => authenticate::bearer(&front.core, token),
        None => by_certificate,
    };
    from_socket(&mut request, peer);
    front.answer(request, who).await
}

#[cfg(test)]
mod tests;
