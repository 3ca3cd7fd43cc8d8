//! Copies of images between hosts: the bytes that another host sends, and the file that this host sends.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::super::files::{blocking, failed};
use super::attempts::{self, Begun, STALL_TIMEOUT, Stop, Transport};
use super::job::Job;
use super::partial::Partial;
use super::{LinuxImages, Result};
use crate::{ImageFile, ImageSource, RemoteError, RemoteImage};

/// The bytes that are read at a time.
const BLOCK: u64 = 256 << 10;

/// A source on another host.
struct Host<'a>(&'a dyn RemoteImage);

#[async_trait]
impl Transport for Host<'_> {
    async fn begin(&self, job: &Job<'_>, partial: &mut Partial) -> std::result::Result<Begun, Stop> {
        let have = partial.len();
        let file = self.0.open(have).await.map_err(|error| match error {
            // There is another way to the bytes: a host that is gone delays them once.
            RemoteError::Unreachable(detail) if job.source.is_downloadable() => {
                Stop::Final(job.failed(detail))
            }
            RemoteError::Unreachable(detail) => Stop::Cut(detail),
            RemoteError::Refused(detail) => Stop::Final(job.failed(detail)),
        })?;
        if file.size < have {
            partial.restart()?;
            return Err(Stop::Cut("the host has fewer bytes than were copied before".to_owned()));
        }
        job.check_size(file.size, have)?;
        if file.size == have {
            return Ok(Begun::Complete);
        }
        Ok(Begun::Stream { total: Some(file.size), blocks: blocks(file.bytes, file.size - have) })
    }
}

/// Returns so many bytes, or fewer if they end before. More are not read.
pub(super) fn blocks(
    bytes: Box<dyn AsyncRead + Send + Unpin>,
    missing: u64,
) -> BoxStream<'static, std::result::Result<Bytes, String>> {
    let next = |(mut bytes, missing): (Box<dyn AsyncRead + Send + Unpin>, u64)| async move {
        let mut block = Vec::<u8>::with_capacity(usize::try_from(missing.min(BLOCK)).unwrap_or_default());
        let read = timeout(STALL_TIMEOUT, (&mut bytes).take(missing.min(BLOCK)).read_buf(&mut block)).await;
        match read {
            Err(_) => Err("nothing came in time".to_owned()),
            Ok(Err(error)) => Err(format!("the transfer failed: {error}")),
            Ok(Ok(0)) => Ok(None),
            Ok(Ok(count)) => Ok(Some((Bytes::from(block), (bytes, missing - count as u64)))),
        }
    };
    stream::try_unfold((bytes, missing), next).boxed()
}

/// Copies the missing part of the file.
pub(super) async fn download(job: &Job<'_>, from: &dyn RemoteImage, partial: Partial) -> Result<Partial> {
    attempts::download(job, &Host(from), partial).await
}

impl LinuxImages {
    /// Opens the file of an image for another host.
    pub(in super::super) async fn open_file(
        &self,
        source: &ImageSource,
        offset: u64,
    ) -> Result<Option<ImageFile>> {
        let Some(facts) = self.image(source).await? else { return Ok(None) };
        let (path, size) = (facts.path, facts.bytes);
        let opened = blocking(move || -> Result<File> {
            let mut file = File::open(&path).map_err(failed("read", &path))?;
            file.seek(SeekFrom::Start(offset.min(size))).map_err(failed("read", &path))?;
            Ok(file)
        });
        let file = tokio::fs::File::from_std(opened.await?);
        Ok(Some(ImageFile { size, bytes: Box::new(file) }))
    }
}
