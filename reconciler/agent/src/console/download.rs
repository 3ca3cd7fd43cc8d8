//! A client's download of the file of an image, once its ticket is accepted: see [`berth_api::image_download`].
//!
//! The file is read and sent; nothing is stored. A session ends with its client, and with its image.

use std::sync::Arc;

use berth_api::Image;
use berth_api::console::{DOWNLOAD_ACCOUNT, download_audience};
use berth_api::image_download::of_query;
use berth_host::ImageFile;
use http::StatusCode;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::file_copy::{is_bound_here, opened, send_file};
use super::places::Place;
use super::refusal::ConsoleRefusal;
use super::ticket::Claim;
use super::{Consoles, DOWNLOADS, DOWNLOADS_OF_IMAGE, DOWNLOADS_OF_NAMESPACE, STALLED};
use crate::context::Context;
use crate::key::ObjectName;

/// A download to send.
pub(super) struct DownloadSession {
    ctx: Arc<Context>,
    name: ObjectName,
    uid: String,
    file: ImageFile,
    offset: u64,
    /// Among the downloads of the image, and of its namespace.
    _places: [Place<String>; 2],
}

impl DownloadSession {
    /// Verifies the ticket for a download and opens the file.
    ///
    /// *Errors*: the ticket is not for this image; the query has no offset; the image is deleted or not complete here, or its file has other
    /// bytes than its checksum is of.
    pub(super) async fn open(
        ctx: &Arc<Context>,
        consoles: &Consoles,
        name: ObjectName,
        query: Option<&str>,
        ticket: &str,
    ) -> Result<Self, ConsoleRefusal> {
        let image = ctx.index.read().images.get(&name);
        // Only a ticket's holder learns which images are here.
        let uid = image.as_ref().and_then(|image| image.metadata.uid.clone()).unwrap_or_default();
        let audience = download_audience(&name.namespace, &name.name, &uid);
        let claim = Claim { namespace: &name.namespace, audience, accounts: &[DOWNLOAD_ACCOUNT] };
        consoles.tickets.redeem(&ctx.client, ctx.now(), ticket, &claim).await?;
        let offset = query.and_then(of_query).ok_or(ConsoleRefusal::NoOffset)?;
        let image = image.filter(|_| is_bound_here(ctx, &name, &uid)).ok_or(ConsoleRefusal::NoImage)?;
        if !image.is_local() || !image.is_copyable() {
            return Err(other_bytes(&image));
        }
        let too_many = || ConsoleRefusal::TooManyDownloads {
            most: DOWNLOADS_OF_IMAGE,
            most_of_namespace: DOWNLOADS_OF_NAMESPACE,
            most_of_host: DOWNLOADS,
        };
        let of_image = consoles.downloads.take(uid.clone()).ok_or_else(too_many)?;
        let of_namespace = consoles.downloads_by_namespace.take(name.namespace.clone());
        let of_namespace = of_namespace.ok_or_else(too_many)?;
        let file = opened(ctx, &image, offset).await?.ok_or(ConsoleRefusal::NoImage)?;
        tracing::info!(namespace = name.namespace, image = name.name, offset, "download of an image opened");
        let places = [of_image, of_namespace];
        Ok(Self { ctx: ctx.clone(), name, uid, file, offset, _places: places })
    }

    /// Sends the file to its end.
    pub(super) async fn run(mut self, stream: TokioIo<Upgraded>) {
        let (mut from_client, mut to_client) = tokio::io::split(stream);
        let (ctx, name, uid) = (&self.ctx, &self.name, &self.uid);
        // A deleted one is not downloaded, even while disks need its file.
        let served = || is_bound_here(ctx, name, uid);
        let sent = tokio::select! {
            sent = send_file(&mut self.file, self.offset, served, &mut to_client) => sent,
            // The client sends nothing: this is its end, also while nothing can be written.
            _ = from_client.read_u8() => Err("the client has disconnected".to_owned()),
        };
        match sent {
            Ok(()) => {
                tracing::info!(namespace = name.namespace, image = name.name, "an image was downloaded");
            }
            Err(detail) => tracing::info!(image = name.name, detail, "a download of an image ended early"),
        }
        let _ = timeout(STALLED, to_client.shutdown()).await;
    }
}

fn other_bytes(image: &Image) -> ConsoleRefusal {
    let detail = match image.is_local() {
        true => {
            "the host has decompressed or converted this image, and has other bytes than its checksum is of"
        }
        false => "this image has a URL: download it from there",
    };
    ConsoleRefusal::Image { status: StatusCode::BAD_REQUEST, detail: detail.to_owned() }
}
