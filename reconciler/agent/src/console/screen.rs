//! A client's session with the screen of a VM: the bytes of VNC between the client and QEMU, unchanged.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_qemu::console::ConsoleStream;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::places::Place;
use super::session::write;
use super::{IDLE, STALLED};

/// The bytes copied at a time.
const CHUNK: usize = 16 << 10;

/// A connection to the VNC server of a machine, and its place.
#[derive(Debug)]
pub(super) struct Screen {
    stream: ConsoleStream,
    _place: Place<String>,
}

impl Screen {
    pub(super) fn new(stream: ConsoleStream, place: Place<String>) -> Self {
        Self { stream, _place: place }
    }

    /// Runs the session until either side ends it, or nothing is sent for [`IDLE`].
    pub(super) async fn run(self, client: TokioIo<Upgraded>) {
        let (shown, used) = self.stream.into_parts();
        let (from_client, mut to_client) = tokio::io::split(client);
        let activity = Activity { start: Instant::now(), last: AtomicU64::new(0) };
        // A failure is the end of a connection.
        tokio::select! {
            _ = copy(shown, &mut to_client, &activity) => {}
            _ = copy(from_client, used, &activity) => {}
            () = activity.ended(IDLE) => {}
        }
        let _ = timeout(STALLED, to_client.shutdown()).await;
    }
}

/// The time of the last byte in either direction.
#[derive(Debug)]
struct Activity {
    start: Instant,
    /// In seconds since the start.
    last: AtomicU64,
}

impl Activity {
    fn happens(&self) {
        self.last.store(self.start.elapsed().as_secs(), Ordering::Relaxed);
    }

    /// Waits until there was none for this time.
    async fn ended(&self, idle: Duration) {
        loop {
            let last = self.start + Duration::from_secs(self.last.load(Ordering::Relaxed));
            if last.elapsed() >= idle {
                return;
            }
            tokio::time::sleep_until(last + idle).await;
        }
    }
}

async fn copy(
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_after_an_hour_without_a_byte() {
        let activity = Activity { start: Instant::now(), last: AtomicU64::new(0) };
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
        let activity = Activity { start: Instant::now(), last: AtomicU64::new(0) };
        let (near, _far) = tokio::io::duplex(CHUNK);
        let start = Instant::now();
        assert!(copy(tokio::io::repeat(1), near, &activity).await.is_err());
        assert_eq!(start.elapsed(), STALLED);
    }
}
