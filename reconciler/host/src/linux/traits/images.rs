//! The images of the host: [`Images`].

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;

use crate::linux::LinuxSystem;
use crate::linux::images::SnapshotContent;
use crate::{
    ChecksumSource, Credentials, ImageFacts, ImageFile, ImageSource, Images, NewImage, Progress, RemoteImage,
    ResolvedImage, Result, SystemError,
};

#[async_trait]
impl Images for LinuxSystem {
    async fn image(&self, source: &ImageSource) -> Result<Option<ImageFacts>> {
        self.images.image(source).await
    }

    async fn pull(
        &self,
        source: &ImageSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        self.images.pull(source, credentials, progress).await
    }

    async fn copy_image(
        &self,
        source: &ImageSource,
        from: Arc<dyn RemoteImage>,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        self.images.copy(source, from, progress).await
    }

    async fn open_image(&self, source: &ImageSource, offset: u64) -> Result<Option<ImageFile>> {
        self.images.open_file(source, offset).await
    }

    async fn make_image(&self, new: &NewImage) -> Result<ImageFacts> {
        if let Some(made) = self.images.made(new).await? {
            return Ok(made);
        }
        if let Some(rbd) = self.rbd.get(&new.pool) {
            let (facts, disk) = rbd.snapshot_node(&new.snapshot).await?;
            let bytes = rbd.data_bytes(&facts.volume, &facts.id).await?;
            let made = self.images.make(new, SnapshotContent::Raw { disk, bytes }).await?;
            rbd.remove_used(&new.snapshot).await;
            return Ok(made);
        }
        let pool = self.present_pool(&new.pool, &new.snapshot).await?;
        let (of_pool, snapshot) = (pool.clone(), new.snapshot.clone());
        let chain = self.on_pool(&pool, move |v| v.chain_of_snapshot(&of_pool, &snapshot)).await?;
        let new = &NewImage { pool, ..new.clone() };
        self.images.make(new, SnapshotContent::Files(chain)).await
    }

    async fn uploaded(&self, source: &ImageSource, size: u64) -> Result<u64> {
        self.images.uploaded(source, size).await
    }

    async fn append_upload(&self, source: &ImageSource, offset: u64, bytes: Vec<u8>) -> Result<()> {
        self.images.append_upload(source, offset, bytes).await
    }

    async fn resolve(&self, source: &ChecksumSource, credentials: &Credentials) -> Result<ResolvedImage> {
        self.images.resolve(source, credentials).await
    }

    async fn compute_checksum(
        &self,
        source: &ChecksumSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<String> {
        self.images.compute(source, credentials, progress).await
    }

    async fn images(&self) -> Result<Vec<ImageFacts>> {
        self.images.images().await
    }

    async fn remove_image(&self, digest: &str) -> Result<()> {
        let _nobody_makes_a_volume = self.bases.write().await;
        let wanted = digest.to_owned();
        let user = self.on_all_pools(move |v| v.based_on(&wanted)).await?;
        match user {
            Some(volume) => Err(SystemError::ImageInUse { digest: digest.to_owned(), volume }),
            None => self.images.remove(digest).await,
        }
    }

    async fn add_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        self.images.add_reader(digest, namespace).await
    }

    async fn forget_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        self.images.forget_reader(digest, namespace).await
    }

    async fn forget_downloads(&self, but: &BTreeSet<ImageSource>) -> Result<()> {
        self.images.forget_downloads(but).await
    }

    fn refuse_addresses(&self, ranges: BTreeSet<IpNet>) {
        self.images.refuse_addresses(ranges);
    }
}
