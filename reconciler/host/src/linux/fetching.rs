//! The copy of a volume from another host: connects what comes with the file that it is written to.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::LinuxSystem;
use super::files::blocking;
use super::volumes::{Fetch, LeftFile, LinuxVolumes};
use crate::{
    CopiedFile, CopiedPart, ImageFacts, NewFetch, Progress, RemoteError, RemoteVolume, Result, SystemError,
    VolumeFacts, VolumeReader, Volumes,
};

/// How many times in a row a copy is continued without a whole part, and the first wait before that: each further one is twice as long.
const CUTS: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_secs(1);

impl LinuxSystem {
    /// Copies a volume from another host.
    pub(super) async fn fetch(
        &self,
        new: &NewFetch,
        from: Arc<dyn RemoteVolume>,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        self.base_of(new).await?;
        let wanted = new.clone();
        let begun = self.on_pool(&new.pool, move |v| v.begin_fetch(&wanted)).await?;
        if let Some(begun) = begun {
            let received = self.receive(new, begun, from.as_ref(), progress).await?;
            let fetch = self.with_fetch(new, received, |fetch| fetch.verify()).await?;
            let _no_image_goes = self.bases.read().await;
            let base = self.base_of(new).await?;
            self.on_pool(&new.pool, move |v| v.finish_fetch(&fetch, base.as_ref())).await?;
        }
        let found = Volumes::volume(self, &new.pool, &new.id).await?;
        found.ok_or_else(|| SystemError::VolumeLost { id: new.id.clone() })
    }

    async fn base_of(&self, new: &NewFetch) -> Result<Option<ImageFacts>> {
        let Some(digest) = &new.base else { return Ok(None) };
        let missing = || SystemError::ImageNotCached { digest: digest.clone() };
        self.images.cached(digest).await?.ok_or_else(missing).map(Some)
    }

    /// Receives all parts, also over several connections.
    async fn receive(
        &self,
        new: &NewFetch,
        mut fetch: Fetch,
        from: &dyn RemoteVolume,
        progress: Progress<'_>,
    ) -> Result<Fetch> {
        let mut cuts = 0;
        loop {
            let before = fetch.offset();
            let (back, ended) = self.receive_once(new, fetch, from, progress).await?;
            fetch = back;
            let detail = match ended {
                None => return Ok(fetch),
                Some(RemoteError::Refused(detail)) => return Err(fetch.refused(&detail)),
                Some(RemoteError::Unreachable(detail)) => detail,
            };
            cuts = if fetch.offset() > before { 1 } else { cuts + 1 };
            if cuts > CUTS {
                return Err(fetch.refused(&detail));
            }
            tokio::time::sleep(FIRST_WAIT.saturating_mul(1 << (cuts - 1))).await;
        }
    }

    /// Receives parts over one connection. Returns why it ended before the last one.
    async fn receive_once(
        &self,
        new: &NewFetch,
        fetch: Fetch,
        from: &dyn RemoteVolume,
        progress: Progress<'_>,
    ) -> Result<(Fetch, Option<RemoteError>)> {
        let opened = match from.open(fetch.offset()).await {
            Ok(opened) => opened,
            Err(error) => return Ok((fetch, Some(error))),
        };
        let mut parts = opened.parts;
        let mut fetch = self.with_fetch(new, fetch, move |fetch| fetch.begin(opened.about)).await?;
        loop {
            let part = match parts.next().await {
                Ok(Some(part)) => part,
                Ok(None) => return Ok((fetch, None)),
                Err(error) => return Ok((fetch, Some(error))),
            };
            fetch = self.with_fetch(new, fetch, move |fetch| fetch.write(&part)).await?;
            let (done, total) = fetch.progress();
            progress(done, total);
        }
    }

    async fn with_fetch(
        &self,
        new: &NewFetch,
        mut fetch: Fetch,
        work: impl FnOnce(&mut Fetch) -> Result<()> + Send + 'static,
    ) -> Result<Fetch> {
        let work = move |_: &LinuxVolumes| {
            work(&mut fetch)?;
            Ok(fetch)
        };
        self.on_pool(&new.pool, work).await
    }
}

/// The reader of a file that goes to another host.
#[derive(Debug)]
pub(super) struct LeftReader {
    about: CopiedFile,
    /// None: a read was given up.
    file: Option<LeftFile>,
}

impl LeftReader {
    pub(super) fn new(file: LeftFile) -> Self {
        Self { about: file.about().clone(), file: Some(file) }
    }
}

#[async_trait]
impl VolumeReader for LeftReader {
    fn about(&self) -> &CopiedFile {
        &self.about
    }

    async fn next(&mut self) -> Result<Option<CopiedPart>> {
        let Some(mut file) = self.file.take() else { return Ok(None) };
        let read = move || {
            let read = file.read();
            (file, read)
        };
        let (file, read) = blocking(read).await;
        self.file = Some(file);
        read
    }
}
