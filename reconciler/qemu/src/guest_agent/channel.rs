//! The framing protocol of the guest agent's channel.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

use super::GuestAgentError;
use crate::qmp::{FrameError, Frames};

/// The maximum length of a guest's reply, unless the request allows a longer one.
pub(super) const MAX_MESSAGE: usize = 1 << 20;
/// The maximum number of stale replies skipped before the reply to our sync.
const MAX_STALE: usize = 64;
/// The most bytes of a stale reply that are discarded: an agent keeps up to 16 MiB of a program's output, twice, in base64.
const MAX_STALE_BYTES: usize = 64 << 20;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

pub(super) struct Channel {
    frames: Frames<ReadHalf<Box<dyn Stream>>>,
    writer: WriteHalf<Box<dyn Stream>>,
}

/// The identifier of the next synchronisation. It begins at the time, so that no earlier process has used it, and every channel of
/// this process takes another one: an answer to an earlier client of the same guest must not be taken for one's own.
static NEXT_SYNC: LazyLock<AtomicU64> = LazyLock::new(|| {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    AtomicU64::new(u64::try_from(since.as_micros()).unwrap_or_default())
});

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    pub(super) fn new<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream: Box<dyn Stream> = Box::new(stream);
        let (reader, writer) = tokio::io::split(stream);
        Self { frames: Frames::new(reader, MAX_MESSAGE), writer }
    }

    /// Synchronises the channel: the next reply then belongs to the next request.
    ///
    /// The 0xFF before the request makes the agent discard an incomplete request of an earlier client; the one before
    /// the agent's reply makes the client discard an incomplete reply.
    pub(super) async fn sync(&mut self) -> Result<(), GuestAgentError> {
        let id = NEXT_SYNC.fetch_add(1, Ordering::Relaxed);
        let mut line = vec![0xff];
        line.extend(
            json!({"execute": "guest-sync-delimited", "arguments": {"id": id}}).to_string().into_bytes(),
        );
        line.push(b'\n');
        self.write(&line).await?;
        self.frames.set_max(MAX_MESSAGE, MAX_STALE_BYTES);
        for _ in 0..MAX_STALE {
            match self.frames.next().await {
                Ok(answer) if answer.get("return").and_then(Value::as_u64) == Some(id) => return Ok(()),
                // A stale reply, or one without its beginning.
                Ok(_) | Err(FrameError::NotJson(_)) => {}
                Err(error) => return Err(broken(&error)),
            }
        }
        Err(GuestAgentError::Broken { detail: "it talks and never answers".to_owned() })
    }

    /// Sends a request, and returns its reply of at most `max` bytes.
    pub(super) async fn exchange(&mut self, message: &Value, max: usize) -> Result<Value, GuestAgentError> {
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        self.write(&line).await?;
        self.frames.set_max(max, 0);
        self.frames.next().await.map_err(|e| broken(&e))
    }

    async fn write(&mut self, line: &[u8]) -> Result<(), GuestAgentError> {
        self.writer.write_all(line).await.map_err(|e| GuestAgentError::Broken { detail: e.to_string() })
    }
}

fn broken(error: &FrameError) -> GuestAgentError {
    GuestAgentError::Broken { detail: error.to_string() }
}
