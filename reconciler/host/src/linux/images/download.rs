//! Downloads a source to a file with the right checksum.

use reqwest::Url;

use super::super::files::blocking;
use super::http::Request;
use super::job::Job;
use super::partial::Partial;
use super::{Result, file, http, oci};
use crate::SystemError;

/// Downloads all bytes and verifies their checksum.
pub(super) async fn run(job: &Job<'_>, client: &http::Client) -> Result<Partial> {
    match transfer(job, client).await {
        Err(error @ (SystemError::NoSpace { .. } | SystemError::ImageTooLarge { .. })) => {
            // A partial image must not keep the disk full for others.
            let place = job.place.clone();
            blocking(move || place.discard_unused()).await?;
            Err(error)
        }
        other => other,
    }
}

async fn transfer(job: &Job<'_>, client: &http::Client) -> Result<Partial> {
    let url = Url::parse(&job.source.url).map_err(|_| job.unusable("not a URL"))?;
    let partial = job.partial().await?;
    let taken_up = partial.len() > 0;
    let partial = match url.scheme() {
        "file" => file::copy(job, &url, partial).await?,
        "http" | "https" => {
            http::download(job, client, &Request { url, authorization: None }, partial).await?
        }
        // Clients have sent the bytes.
        "upload" => partial,
        "oci" => http::download(job, client, &oci::blob(client, job.source).await?, partial).await?,
        _ => return Err(job.unusable("http://, https://, oci:// or file:/// is needed")),
    };
    if partial.is_right() {
        return Ok(partial);
    }
    blocking(move || partial.discard()).await?;
    if taken_up {
        // The bytes of an earlier attempt may be of another version: retry once, from the start.
        return Box::pin(transfer(job, client)).await;
    }
    Err(SystemError::ChecksumMismatch { url: job.source.shown.clone(), declared: job.source.digest.clone() })
}
