//! A client's session with the screen of a VM: the bytes of VNC between the client and QEMU, unchanged.

use berth_qemu::console::ConsoleStream;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::copying::{Activity, copy};
use super::places::Place;
use super::{IDLE, STALLED};

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
        let activity = Activity::new();
        // A failure is the end of a connection.
        tokio::select! {
            _ = copy(shown, &mut to_client, &activity) => {}
            _ = copy(from_client, used, &activity) => {}
            () = activity.ended(IDLE) => {}
        }
        let _ = timeout(STALLED, to_client.shutdown()).await;
    }
}
