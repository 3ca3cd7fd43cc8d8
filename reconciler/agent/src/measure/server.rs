//! Serves the use of a host over HTTP: `/metrics` for Prometheus, `/usage` and `/history` as JSON.
//!
//! On a socket of the state directory, which only root can open, and on a TCP address if one is configured. The address is read-only
//! and has no authentication: every client of it learns names and sizes of the host's VMs. The socket also takes requests about
//! the [shutdown of the host](crate::host_shutdown), at `/guests`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::past::history;
use super::usage;
use crate::context::Context;
use crate::host_shutdown::AtShutdown;
use crate::kinds::backup::damaged_backups;
use crate::stop_guests;
use crate::usage::{AgentMetrics, render};

/// The media type of the metrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Where requests about the shutdown of the host are.
const GUESTS: &str = "/guests";
/// The limit of connections of each listener; further ones wait.
const CONNECTIONS: usize = 16;
/// The time for a whole connection: a client asks once.
const CONNECTION: Duration = Duration::from_secs(30);
/// The time for the headers of a request.
const HEADERS: Duration = Duration::from_secs(5);
/// The limit of a request's headers in bytes.
const MAX_HEADERS: usize = 16 << 10;

/// A client, by the socket that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// This machine's root.
    Root,
    Any,
}

/// Serves for as long as it is polled; never, if the agent has no listener.
pub(crate) async fn serve(ctx: &Arc<Context>) {
    let Some(server) = ctx.config.usage.clone() else { return std::future::pending().await };
    let (local, tcp) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(CONNECTIONS)));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, place) = accept_local(server.local.as_ref(), &local) => {
                connections.spawn(connection(ctx.clone(), stream, place, Client::Root));
            }
            (stream, place) = accept_tcp(server.tcp.as_ref(), &tcp) => {
                connections.spawn(connection(ctx.clone(), stream, place, Client::Any));
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn accept_local(
    listener: Option<&UnixListener>,
    places: &Arc<Semaphore>,
) -> (UnixStream, OwnedSemaphorePermit) {
    let Some(listener) = listener else { return std::future::pending().await };
    let place = place(places).await;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_tcp(
    listener: Option<&TcpListener>,
    places: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let Some(listener) = listener else { return std::future::pending().await };
    let place = place(places).await;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => pause(&error).await,
        }
    }
}

async fn place(places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    places.clone().acquire_owned().await.expect("the semaphore is never closed")
}

/// The process is out of file descriptors, or the client disconnected.
async fn pause(error: &std::io::Error) {
    tracing::debug!(%error, "accepting a client of the host's metrics failed");
    sleep(Duration::from_millis(50)).await;
}

async fn connection(
    ctx: Arc<Context>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    place: OwnedSemaphorePermit,
    client: Client,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let ctx = ctx.clone();
        async move { Ok::<_, Infallible>(answer(&ctx, client, request.method(), request.uri().path()).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(MAX_HEADERS).keep_alive(false);
    if timeout(CONNECTION, http.serve_connection(TokioIo::new(stream), service)).await.is_err() {
        tracing::debug!("a client of the host's metrics was too slow");
    }
    drop(place);
}

/// Returns a value as the answer to a request.
fn json<T: Serialize>(value: &T) -> (StatusCode, &'static str, Bytes) {
    match serde_json::to_vec(value) {
        Ok(json) => (StatusCode::OK, "application/json", json.into()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", error.to_string().into()),
    }
}

async fn answer(ctx: &Context, client: Client, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (status, media, body) = match (method, path) {
        (_, path) if client == Client::Root && path.starts_with(GUESTS) => guests(ctx, method, path).await,
        (&Method::GET, "/metrics") => {
            let usage = usage(ctx).await;
            let of_agent = AgentMetrics {
                reconciles: &ctx.reconciles,
                verifications: &ctx.pulls.verifications,
                damaged_backups: damaged_backups(&ctx.index.read(), ctx.host()),
                queue: ctx.queue.len(),
            };
            let text = render(usage, &of_agent);
            (StatusCode::OK, OPEN_METRICS, Bytes::from(text))
        }
        (&Method::GET, "/usage") => json(&*usage(ctx).await),
        (&Method::GET, "/history") => json(&history(ctx)),
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "text/plain", "/metrics, /usage or /history\n".into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".into()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// Answers a request about the shutdown of the host with the guests that run.
async fn guests(ctx: &Context, method: &Method, path: &str) -> (StatusCode, &'static str, Bytes) {
    let shutdown = &ctx.config.shutdown;
    match (method, path.strip_prefix(GUESTS).unwrap_or_default()) {
        (&Method::GET, "") => {}
        (&Method::POST, "/stop") => shutdown.stop(AtShutdown::Stop),
        (&Method::POST, "/suspend") => shutdown.stop(AtShutdown::Suspend),
        (&Method::POST, "/hurry") => {
            shutdown.stop(AtShutdown::Stop);
            shutdown.hurry();
        }
        (&Method::POST, "/start") => shutdown.start(),
        _ => {
            let known = "/guests, /guests/stop, /suspend, /hurry, /start\n";
            return (StatusCode::NOT_FOUND, "text/plain", known.into());
        }
    }
    let left = stop_guests::left(ctx).await.map_err(|error| error.chain());
    match left.and_then(|left| serde_json::to_vec(&left).map_err(|error| error.to_string())) {
        Ok(json) => (StatusCode::OK, "application/json", json.into()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", error.into()),
    }
}
