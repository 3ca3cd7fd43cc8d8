//! A client's upload of the file of an image, once its ticket is accepted: see [`berth_api::image_upload`].
//!
//! The bytes go to the host's partial file and are neither read nor verified here: the image's reconcile does that once all have
//! arrived. A session that ends early loses nothing.

use std::sync::Arc;
use std::time::Duration;

use berth_api::Image;
use berth_api::image_upload::UploadMessage;
use berth_host::{ImageSource, SystemError};
use http::StatusCode;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::ResourceExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::STALLED;
use super::file_copy::is_bound_here;
use super::places::Place;
use super::refusal::ConsoleRefusal;
use super::session::write;
use crate::context::Context;
use crate::key::{Key, ObjectName};
use crate::kinds::image::uploaded_to;
use crate::pulls::{Pull, Wanted};

/// The bytes that are stored at a time.
const BLOCK: u64 = 1 << 20;
/// The time for the client to send so many.
const BLOCK_TIME: Duration = Duration::from_secs(60);
/// The least time between two reports of the progress.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// An upload to take.
pub(super) struct UploadSession {
    ctx: Arc<Context>,
    name: ObjectName,
    uid: String,
    source: ImageSource,
    size: u64,
    /// The bytes that are here.
    found: u64,
    place: Option<Place<String>>,
}

impl UploadSession {
    /// Prepares the upload of an image.
    ///
    /// *Errors*: it has another source or another host, is deleted, or does not fit.
    pub(super) async fn open(
        ctx: &Arc<Context>,
        name: ObjectName,
        image: &Image,
        place: Place<String>,
    ) -> Result<Self, ConsoleRefusal> {
        let refused = |status, detail: &str| ConsoleRefusal::Image { status, detail: detail.to_owned() };
        let uid = image.uid().unwrap_or_default();
        if !is_bound_here(ctx, &name, &uid) {
            return Err(refused(
                StatusCode::NOT_FOUND,
                "the image is not bound to this host any more, or is deleted",
            ));
        }
        let declared = image.spec.source.upload.zip(uploaded_to(image, name.namespace.clone()));
        let Some((upload, source)) = declared else {
            return Err(refused(StatusCode::BAD_REQUEST, "the image has another source than an upload"));
        };
        let size = u64::try_from(upload.size).unwrap_or_default();
        let wanted = Wanted::Image(source.clone());
        let running = matches!(ctx.pulls.state(&wanted, &Key::of(image)), Some(Pull::Running { .. }));
        let found = match running || ctx.system.image(&source).await?.is_some() {
            // It is being verified, or was.
            true => size,
            false => ctx.system.uploaded(&source, size).await.map_err(unfit)?.min(size),
        };
        if !running {
            ctx.pulls.forget_failure(&wanted);
        }
        Ok(Self { ctx: ctx.clone(), name, uid, source, size, found, place: Some(place) })
    }

    /// Runs the session to its end.
    pub(super) async fn run(mut self, stream: TokioIo<Upgraded>) {
        // The failure of an earlier upload is forgotten.
        self.report();
        let (mut from_client, mut to_client) = tokio::io::split(stream);
        let received = match write(&mut to_client, &line(&UploadMessage::Offset(self.found))).await {
            Ok(()) => self.receive(&mut from_client).await,
            Err(error) => Err(error.to_string()),
        };
        self.report();
        // The next upload does not wait for this client.
        self.place = None;
        let last = match received {
            Ok(()) => UploadMessage::Received,
            Err(detail) => {
                tracing::info!(image = %self.name.name, detail, "an upload ended early");
                UploadMessage::Error(detail)
            }
        };
        // The client may be gone.
        let _ = write(&mut to_client, &line(&last)).await;
        let _ = timeout(STALLED, to_client.shutdown()).await;
        // Bytes that the client still sends must not take the message from it.
        let mut rest = vec![0; 16 << 10];
        let drain = async { while from_client.read(&mut rest).await.is_ok_and(|count| count > 0) {} };
        let _ = timeout(STALLED, drain).await;
    }

    /// Stores what the client sends, up to the declared size. The error is for people.
    async fn receive(&self, from_client: &mut (impl AsyncRead + Unpin)) -> Result<(), String> {
        let (mut at, mut reported, mut reported_at) = (self.found, self.found, Instant::now());
        while at < self.size {
            let most = (self.size - at).min(BLOCK);
            let (block, end) = block(from_client, most).await;
            let count = block.len() as u64;
            if count > 0 {
                if !is_bound_here(&self.ctx, &self.name, &self.uid) {
                    return Err("the image was deleted, or is not bound to this host any more".to_owned());
                }
                let stored = self.ctx.system.append_upload(&self.source, at, block).await;
                stored.map_err(|error| error.chain())?;
                at += count;
            }
            if let Some(end) = end {
                return Err(format!("{end}; the host has {at} of {} bytes", self.size));
            }
            if at - reported >= self.size / 20 && reported_at.elapsed() >= REPORT_EVERY {
                (reported, reported_at) = (at, Instant::now());
                self.report();
            }
        }
        Ok(())
    }

    /// Has the progress reported, or the file verified.
    fn report(&self) {
        self.ctx.enqueue(Key::new::<Image>(self.name.clone()));
    }
}

fn unfit(error: SystemError) -> ConsoleRefusal {
    let status = match &error {
        SystemError::NoSpace { .. } => StatusCode::INSUFFICIENT_STORAGE,
        SystemError::ImageTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        _ => return error.into(),
    };
    ConsoleRefusal::Image { status, detail: error.chain() }
}

fn line(message: &UploadMessage) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("our own types are plain JSON");
    line.push(b'\n');
    line
}

/// Reads a block of this size, or what comes of it, and why no more came.
async fn block(from_client: &mut (impl AsyncRead + Unpin), most: u64) -> (Vec<u8>, Option<&'static str>) {
    let mut block = Vec::with_capacity(usize::try_from(most).unwrap_or(usize::MAX));
    let deadline = Instant::now() + BLOCK_TIME;
    let mut rest = from_client.take(most);
    while rest.limit() > 0 {
        match timeout_at(deadline, rest.read_buf(&mut block)).await {
            Ok(Ok(0) | Err(_)) => return (block, Some("the client has disconnected")),
            Ok(Ok(_)) => {}
            Err(_) => return (block, Some("the client sent less than 1 MiB in a minute")),
        }
    }
    (block, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_block_ends_with_its_size_with_the_client_or_after_a_minute() {
        let (mut near, mut far) = tokio::io::duplex(64);
        far.write_all(b"abcdef").await.expect("sent");
        assert_eq!(block(&mut near, 4).await, (b"abcd".to_vec(), None));
        let start = Instant::now();
        let (found, end) = block(&mut near, 4).await;
        assert_eq!((found.as_slice(), start.elapsed()), (b"ef".as_slice(), BLOCK_TIME));
        assert!(end.is_some_and(|end| end.contains("a minute")), "{end:?}");
        drop(far);
        assert_eq!(block(&mut near, 4).await, (Vec::new(), Some("the client has disconnected")));
    }
}
