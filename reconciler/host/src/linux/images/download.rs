//! Downloads a source to a file with the right checksum.

use std::sync::Arc;

use reqwest::Url;

use super::super::files::blocking;
use super::http::Request;
use super::job::Job;
use super::partial::Partial;
use super::{Result, copy, file, http, oci};
use crate::{RemoteImage, SystemError};

/// The way to the bytes of a source.
pub(super) enum Access {
    /// That of its URL, with this client.
    Url(http::Client),
    /// From another host.
    Host(Arc<dyn RemoteImage>),
}

/// Downloads all bytes and verifies their checksum.
pub(super) async fn run(job: &Job<'_>, access: &Access) -> Result<Partial> {
    match transfer(job, access).await {
        Err(error @ (SystemError::NoSpace { .. } | SystemError::ImageTooLarge { .. })) => {
            // A partial image must not keep the disk full for others.
            let place = job.place.clone();
            blocking(move || place.discard_unused()).await?;
            Err(error)
        }
        other => other,
    }
}

async fn transfer(job: &Job<'_>, access: &Access) -> Result<Partial> {
    let partial = job.partial().await?;
    let taken_up = partial.len() > 0;
    let partial = match access {
        Access::Url(client) => of_url(job, client, partial).await?,
        Access::Host(host) => copy::download(job, host.as_ref(), partial).await?,
    };
    if partial.is_right() {
        return Ok(partial);
    }
    blocking(move || partial.discard()).await?;
    if taken_up {
        // The bytes of an earlier attempt may be of another version: retry once, from the start.
        return Box::pin(transfer(job, access)).await;
    }
    Err(SystemError::ChecksumMismatch { url: job.source.shown.clone(), declared: job.source.digest.clone() })
}

/// Downloads all bytes, whatever their checksum, and returns it. They stay in the file of the download.
pub(super) async fn digest(job: &Job<'_>, client: &http::Client) -> Result<String> {
    let mut partial = job.partial().await?;
    // Those of an interrupted attempt may be of another version, which no checksum would show.
    let emptied = blocking(move || partial.restart().map(|()| partial));
    match of_url(job, client, emptied.await?).await {
        Ok(partial) => Ok(partial.digest()),
        Err(error) => {
            let place = job.place.clone();
            blocking(move || place.discard_unused()).await?;
            Err(error)
        }
    }
}

async fn of_url(job: &Job<'_>, client: &http::Client, partial: Partial) -> Result<Partial> {
    let url = Url::parse(&job.source.url).map_err(|_| job.unusable("not a URL"))?;
    match url.scheme() {
        "file" => file::copy(job, &url, partial).await,
        "http" | "https" => http::download(job, client, &Request { url, authorization: None }, partial).await,
        // Clients have sent the bytes.
        "upload" => Ok(partial),
        "oci" => http::download(job, client, &oci::blob(client, job.source).await?, partial).await,
        _ => Err(job.unusable("http://, https://, oci:// or file:/// is needed")),
    }
}
