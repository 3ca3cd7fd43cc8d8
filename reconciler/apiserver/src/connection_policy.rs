//! Detection of idle and stalled connections: a client that sends no requests, or does not read its responses,
//! is disconnected.
//!
//! HTTP/1 has limits of its own: for the arrival of a request head, and for a blocked write. In HTTP/2 a client can block single responses by giving their streams no window while
//! the connection stays active.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Response, Version};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

/// How long a piece of a response may wait to be read.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// The size of a piece in bytes: a stream without window buffers that much.
const PIECE: usize = 16 << 10;

/// The activity of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionPolicy {
    state: Mutex<State>,
    /// How long the connection may be without requests.
    idle: Duration,
}

#[derive(Debug)]
struct State {
    is_http1: bool,
    /// The number of requests in progress.
    open: usize,
    /// When the last request finished.
    quiet: Instant,
    /// Responses of which a piece was handed out and no further piece polled since, with the time.
    left: HashMap<u64, Instant>,
    next: u64,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Active,
    /// No requests for too long.
    Idle,
    /// A response has not been read for too long.
    Stalled,
}

impl ConnectionPolicy {
    /// Creates the state of a new connection, which may be without requests for `idle`.
    pub(crate) fn new(idle: Duration) -> Arc<Self> {
        let state = State { is_http1: false, open: 0, quiet: Instant::now(), left: HashMap::new(), next: 0 };
        Arc::new(Self { state: Mutex::new(state), idle })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request; `None` where the protocol has its own limits.
    pub(crate) fn request(self: &Arc<Self>, version: Version) -> Option<OpenResponse> {
        let mut state = self.state();
        state.is_http1 = version != Version::HTTP_2;
        if state.is_http1 {
            return None;
        }
        state.open += 1;
        state.next += 1;
        Some(OpenResponse { id: state.next, policy: Arc::clone(self) })
    }

    pub(crate) fn health(&self) -> Health {
        let (state, now) = (self.state(), Instant::now());
        if state.left.values().any(|since| now - *since > READ_TIMEOUT) {
            Health::Stalled
        } else if !state.is_http1 && state.open == 0 && now - state.quiet > self.idle {
            Health::Idle
        } else {
            Health::Active
        }
    }
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct OpenResponse {
    policy: Arc<ConnectionPolicy>,
    id: u64,
}

impl OpenResponse {
    /// Wraps the response so that it records how the client reads it.
    pub(crate) fn with(self, response: Response<Body>) -> Response<Body> {
        self.piece_sent();
        response.map(|body| Body::new(TrackedBody { body, rest: Bytes::new(), response: self }))
    }

    fn piece_sent(&self) {
        self.policy.state().left.insert(self.id, Instant::now());
    }

    fn piece_requested(&self) {
        self.policy.state().left.remove(&self.id);
    }
}

impl Drop for OpenResponse {
    fn drop(&mut self) {
        let mut state = self.policy.state();
        state.left.remove(&self.id);
        state.open -= 1;
        state.quiet = Instant::now();
    }
}

/// A body that is handed out piece by piece.
struct TrackedBody {
    body: Body,
    rest: Bytes,
    response: OpenResponse,
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.response.piece_requested();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(piece);
        self.response.piece_sent();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
