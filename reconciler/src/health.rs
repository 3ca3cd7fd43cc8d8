//! The health of `berth controllers` over HTTP, for the probes of a Deployment.
//!
//! `/livez`: the process answers. A control plane that is away is no reason to restart it. `/readyz`: it has reached the control plane
//! lately, as the leader or as one that waits for its turn. Every client of the address may read both, and learns nothing else.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tracing::debug;

/// How long after the last answer of the control plane the process is ready. The Lease is looked at every four seconds.
const RECENT: Duration = Duration::from_secs(60);
/// The limit of connections; further ones wait.
const CONNECTIONS: usize = 16;
/// The time for a whole connection: a probe asks once.
const CONNECTION: Duration = Duration::from_secs(10);
/// The time for the headers of a request.
const HEADERS: Duration = Duration::from_secs(5);
/// The limit of a request's headers in bytes.
const MAX_HEADERS: usize = 16 << 10;

/// The health of this process.
#[derive(Debug, Default)]
pub struct Health {
    reached: Mutex<Option<Instant>>,
}

impl Health {
    /// Records that the control plane has answered.
    pub fn reached(&self) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether the control plane has answered lately.
    pub fn is_ready(&self) -> bool {
        let reached = *self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached.is_some_and(|reached| reached.elapsed() <= RECENT)
    }
}

/// The answer to a request with this method and path.
pub(crate) type Answer = dyn Fn(&Method, &str) -> Response<Full<Bytes>> + Send + Sync;

/// Returns the answers to probes.
pub(crate) fn probes(health: Arc<Health>) -> Arc<Answer> {
    Arc::new(move |method: &Method, path: &str| answer(&health, method, path))
}

/// Serves for as long as it is polled.
pub(crate) async fn serve(listener: TcpListener, answer: Arc<Answer>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let answer = answer.clone();
                tokio::spawn(async move {
                    connection(stream, answer.as_ref()).await;
                    drop(place);
                });
            }
            Err(error) => {
                // The process is out of file descriptors, or the client disconnected.
                debug!(%error, "accepting a client failed");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, answer: &Answer) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(MAX_HEADERS).keep_alive(false);
    if timeout(CONNECTION, http.serve_connection(TokioIo::new(stream), service)).await.is_err() {
        debug!("a client was too slow");
    }
}

fn answer(health: &Health, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (status, text) = match (method, path) {
        (&Method::GET, "/livez") => (StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz") if health.is_ready() => (StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz") => {
            (StatusCode::SERVICE_UNAVAILABLE, "the control plane has not answered lately\n")
        }
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "/livez or /readyz\n"),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "GET only\n"),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_for_a_while_after_the_control_plane_has_answered() {
        let health = Health::default();
        assert!(!health.is_ready());
        health.reached();
        assert!(health.is_ready());
        tokio::time::advance(RECENT + Duration::from_secs(1)).await;
        assert!(!health.is_ready());
        assert_eq!(answer(&health, &Method::GET, "/livez").status(), StatusCode::OK);
        assert_eq!(answer(&health, &Method::GET, "/readyz").status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer(&health, &Method::GET, "/").status(), StatusCode::NOT_FOUND);
        assert_eq!(answer(&health, &Method::POST, "/livez").status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[tokio::test]
    async fn a_probe_gets_its_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let health = Arc::new(Health::default());
        let server = tokio::spawn(serve(listener, probes(health.clone())));
        health.reached();
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request = b"GET /readyz HTTP/1.1\r\nHost: probe\r\n\r\n";
        stream.write_all(request).await.expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("ok\n"), "{text}");
        server.abort();
    }
}
