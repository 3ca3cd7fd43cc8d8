//! A client's session with a serial console or its log, once its ticket is accepted.

use std::io;

use bytes::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until, timeout};

use super::log_places::LogPlace;
use super::serial_line::Viewer;
use super::{IDLE, STALLED};

const CHUNK: usize = 4 << 10;
/// The bytes of the log's end that are searched for the end of the scroll-back.
const JOINT: usize = 256;

type Stream = TokioIo<Upgraded>;

/// A session to run.
#[derive(Debug)]
pub(super) struct SerialSession {
    /// The output from before the session.
    earlier: Vec<u8>,
    /// Held while `earlier` is in memory.
    place: Option<LogPlace>,
    viewer: Option<Viewer>,
    /// Whether the client types.
    types: bool,
}

impl SerialSession {
    /// The log, to its end.
    pub(super) fn log(log: Vec<u8>, place: LogPlace) -> Self {
        Self { earlier: log, place: Some(place), viewer: None, types: false }
    }

    /// The serial console.
    pub(super) fn console(mut viewer: Viewer) -> Self {
        let earlier = std::mem::take(&mut viewer.scroll_back);
        Self { earlier, place: None, viewer: Some(viewer), types: true }
    }

    /// The log, read after the viewer was added, and then the viewer's output.
    pub(super) fn follow(mut viewer: Viewer, log: &[u8], place: LogPlace) -> Self {
        let earlier = until_viewed(log, &std::mem::take(&mut viewer.scroll_back));
        Self { earlier, place: Some(place), viewer: Some(viewer), types: false }
    }

    /// Runs the session to its end.
    pub(super) async fn run(self, stream: Stream) {
        let (mut from_client, mut to_client) = tokio::io::split(stream);
        // A failure is the client's end of the connection.
        let _ = self.transfer(&mut from_client, &mut to_client).await;
        let _ = timeout(STALLED, to_client.shutdown()).await;
    }

    async fn transfer(
        self,
        from_client: &mut ReadHalf<Stream>,
        to_client: &mut WriteHalf<Stream>,
    ) -> io::Result<()> {
        let Self { earlier, place, viewer, types } = self;
        for part in earlier.chunks(64 << 10) {
            write(to_client, part).await?;
        }
        drop((earlier, place));
        let Some(mut viewer) = viewer else { return Ok(()) };
        let mut typed = vec![0; CHUNK];
        let mut last = Instant::now();
        // Typing waits for the guest, and must not keep the output from the client.
        let mut entering: Option<Bytes> = None;
        loop {
            tokio::select! {
                output = viewer.output.recv() => match output {
                    Ok(bytes) => write(to_client, &bytes).await?,
                    Err(RecvError::Lagged(_)) => {
                        write(to_client, b"\r\n[berth: output was lost: the client reads too slowly]\r\n").await?;
                    }
                    Err(RecvError::Closed) => {
                        return write(to_client, b"\r\n[berth: the VM no longer runs]\r\n").await;
                    }
                },
                read = from_client.read(&mut typed), if entering.is_none() => match read? {
                    0 => return Ok(()),
                    count if types => entering = Some(Bytes::copy_from_slice(&typed[..count])),
                    _ => {}
                },
                room = viewer.typed.reserve(), if entering.is_some() => {
                    if let (Ok(room), Some(bytes)) = (room, entering.take()) {
                        room.send(bytes);
                    }
                }
                () = sleep_until(last + IDLE) => {
                    return write(to_client, b"\r\n[berth: closed after an hour without input or output]\r\n").await;
                }
            }
            last = Instant::now();
        }
    }
}

pub(super) async fn write(client: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let written = async {
        client.write_all(bytes).await?;
        client.flush().await
    };
    timeout(STALLED, written).await?
}

/// Returns the log up to the end of the scroll-back, after which the viewer's output begins. The scroll-back itself, if the log does
/// not contain its end: QEMU could not write the log, or it was cut in between.
fn until_viewed(log: &[u8], scroll_back: &[u8]) -> Vec<u8> {
    let joint = &scroll_back[scroll_back.len().saturating_sub(JOINT)..];
    if joint.is_empty() {
        return Vec::new();
    }
    let found = log.windows(joint.len()).rposition(|part| part == joint);
    found.map_or_else(|| scroll_back.to_vec(), |at| log[..at + joint.len()].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_followed_log_continues_where_the_viewer_begins() {
        assert_eq!(until_viewed(b"boot\nlogin: root\n", b"boot\nlogin: "), b"boot\nlogin: ");
        assert_eq!(until_viewed(b"old\nboot\n", b"boot\n"), b"old\nboot\n");
        assert_eq!(until_viewed(b"other", b"boot\n"), b"boot\n");
        assert_eq!(until_viewed(b"boot\n", b""), b"");
    }
}
