//! What a client does with its connection. One that asks nothing, or takes nothing of an answer, is not kept.
//!
//! HTTP/1 has limits of its own: how long a head may take, and how long a write may wait ([`crate::stall`]). In HTTP/2 a client
//! can leave single answers where they are, by giving their streams no window, while its connection goes on.

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

/// How long a piece of an answer may lie before it is taken.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much is given at once: that much a stream without window holds.
const PIECE: usize = 16 << 10;

/// One connection's.
#[derive(Debug)]
pub(crate) struct Conduct {
    state: Mutex<State>,
    /// How long nothing may be asked.
    idle: Duration,
}

#[derive(Debug)]
struct State {
    is_http1: bool,
    /// Requests whose answers are under way.
    open: usize,
    /// Since when none is.
    quiet: Instant,
    /// Answers of which something was given, and not asked for more since.
    left: HashMap<u64, Instant>,
    next: u64,
}

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    /// Nothing was asked for long.
    Idle,
    /// Something is left where it is for long.
    Stuck,
}

impl Conduct {
    /// Of a new connection, on which nothing may be asked for so long.
    pub(crate) fn new(idle: Duration) -> Arc<Self> {
        let state = State { is_http1: false, open: 0, quiet: Instant::now(), left: HashMap::new(), next: 0 };
        Arc::new(Self { state: Mutex::new(state), idle })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request came; `None` where the protocol has its own limits.
    pub(crate) fn request(self: &Arc<Self>, version: Version) -> Option<Answering> {
        let mut state = self.state();
        state.is_http1 = version != Version::HTTP_2;
        if state.is_http1 {
            return None;
        }
        state.open += 1;
        state.next += 1;
        Some(Answering { id: state.next, conduct: Arc::clone(self) })
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let (state, now) = (self.state(), Instant::now());
        if state.left.values().any(|since| now - *since > PATIENCE) {
            Verdict::Stuck
        } else if !state.is_http1 && state.open == 0 && now - state.quiet > self.idle {
            Verdict::Idle
        } else {
            Verdict::Fine
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Answering {
    conduct: Arc<Conduct>,
    id: u64,
}

impl Answering {
    /// The answer, which tells how it is taken.
    pub(crate) fn with(self, response: Response<Body>) -> Response<Body> {
        self.gave();
        response.map(|body| Body::new(Given { body, rest: Bytes::new(), answering: self }))
    }

    fn gave(&self) {
        self.conduct.state().left.insert(self.id, Instant::now());
    }

    fn asked(&self) {
        self.conduct.state().left.remove(&self.id);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.conduct.state();
        state.left.remove(&self.id);
        state.open -= 1;
        state.quiet = Instant::now();
    }
}

/// A body that is given piece by piece.
struct Given {
    body: Body,
    rest: Bytes,
    answering: Answering,
}

impl http_body::Body for Given {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.answering.asked();
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
        self.answering.gave();
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
