//! Copying between two connections, with an end when nothing is sent any more.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::Instant;

use super::session::write;

/// The bytes copied at a time.
const CHUNK: usize = 16 << 10;

/// The time of the last byte in either direction.
#[derive(Debug)]
pub(super) struct Activity {
    start: Instant,
    /// In seconds since the start.
    last: AtomicU64,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0) }
    }

    fn happens(&self) {
        self.last.store(self.start.elapsed().as_secs(), Ordering::Relaxed);
    }

    /// Waits until there was none for this time.
    pub(super) async fn ended(&self, idle: Duration) {
        loop {
            let last = self.start + Duration::from_secs(self.last.load(Ordering::Relaxed));
            if last.elapsed() >= idle {
                return;
            }
            tokio::time::sleep_until(last + idle).await;
        }
    }
}

/// Copies bytes to the end of the input.
pub(super) async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    activity: &Activity,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = from.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        activity.happens();
        write(&mut to, &chunk[..count]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{IDLE, STALLED};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_after_an_hour_without_a_byte() {
        let activity = Activity::new();
        let start = Instant::now();
        let used = async {
            tokio::time::sleep(IDLE / 2).await;
            activity.happens();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = used => {}
            () = activity.ended(IDLE) => {}
        }
        assert_eq!(start.elapsed().as_secs(), IDLE.as_secs() * 3 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let activity = Activity::new();
        let (near, _far) = tokio::io::duplex(CHUNK);
        let start = Instant::now();
        assert!(copy(tokio::io::repeat(1), near, &activity).await.is_err());
        assert_eq!(start.elapsed(), STALLED);
    }
}
