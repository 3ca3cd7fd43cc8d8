//! The memory of responses that clients have not read yet: a client may request many long ones and read none.
//!
//! A list that is assembled from stored texts as it is read has no memory of its own and does not count.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shares::{Caller, Permits, Shares};

/// The size in bytes from which a response counts.
const LARGE: u64 = 64 << 10;
/// The maximum size of all of them together, in units of [`UNIT`].
const MAX_UNREAD: usize = 512 << 10;
const UNIT: u64 = 1 << 10;
/// The number of bytes that are handed out at once.
const PIECE: usize = 64 << 10;

/// Marks a response that is assembled as it is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Assembled;

/// Too much is unread: in total, or by this user.
#[derive(Debug)]
pub(super) struct TooMuchUnread;

/// The memory for unread responses, divided among users.
#[derive(Debug)]
pub(super) struct UnreadBudget {
    size: usize,
    all: Arc<Semaphore>,
    shares: Shares,
}

impl Default for UnreadBudget {
    fn default() -> Self {
        Self::of(MAX_UNREAD)
    }
}

impl UnreadBudget {
    fn of(size: usize) -> Self {
        Self { size, all: Arc::new(Semaphore::new(size)), shares: Shares::of(size) }
    }

    /// Returns the response, whose memory counts until it has been read.
    pub(super) fn hold(
        &self,
        response: Response<Body>,
        caller: &Caller,
    ) -> Result<Response<Body>, TooMuchUnread> {
        let size = response.body().size_hint().exact().filter(|size| *size >= LARGE);
        let is_assembled = response.extensions().get::<Assembled>().is_some();
        let Some(size) = size.filter(|_| !is_assembled) else { return Ok(response) };
        // One that is larger than everything is sent while it is the only one.
        let units = usize::try_from(size.div_ceil(UNIT)).unwrap_or(usize::MAX).min(self.size);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let own = self.shares.try_take_many(caller, units).map_err(|_| TooMuchUnread)?;
        let all = Arc::clone(&self.all).try_acquire_many_owned(units).map_err(|_| TooMuchUnread)?;
        Ok(response.map(|body| Body::new(HeldBody { body, rest: Bytes::new(), _held: (own, all) })))
    }
}

/// A body that counts as long as it is not read. It is handed out piece by piece: what is handed out at once is as good as read.
struct HeldBody {
    body: Body,
    rest: Bytes,
    _held: (Permits, OwnedSemaphorePermit),
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
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
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn response(bytes: usize) -> Response<Body> {
        Response::new(Body::from(vec![b'x'; bytes]))
    }

    #[tokio::test]
    async fn what_a_user_does_not_read_is_bounded_and_leaves_memory_for_others() {
        let budget = UnreadBudget::of(256);
        let [greedy, modest] = ["greedy", "modest"].map(Caller::named);
        let mut held: Vec<_> =
            (0..4).filter_map(|_| budget.hold(response(LARGE as usize), &greedy).ok()).collect();
        assert_eq!(held.len(), 3);
        let other = budget.hold(response(LARGE as usize), &modest).expect("there is memory for others");
        let read = other.into_body().collect().await.expect("it is read").to_bytes();
        assert_eq!(read.len(), LARGE as usize);
        drop(held.pop());
        assert!(budget.hold(response(LARGE as usize), &greedy).is_ok(), "one was read");
    }

    #[test]
    fn short_and_assembled_responses_do_not_count_and_a_longest_one_is_sent_alone() {
        let budget = UnreadBudget::of(64);
        let caller = Caller::named("user");
        let small: Vec<_> =
            (0..100).map(|_| budget.hold(response(LARGE as usize - 1), &caller).is_ok()).collect();
        assert!(small.into_iter().all(|sent| sent));
        let mut assembled = response(1 << 20);
        assembled.extensions_mut().insert(Assembled);
        assert!(budget.hold(assembled, &caller).is_ok());
        let longest = budget.hold(response(1 << 20), &caller).expect("it is the only one");
        assert!(budget.hold(response(1 << 20), &caller).is_err());
        assert_eq!(longest.body().size_hint().exact(), Some(1 << 20));
    }
}
