//! The host's images and their sources.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::machine::Format;
use ipnet::IpNet;
use sha2::{Digest, Sha256};

use super::state::{Volume, image_path};
use super::{FakeSource, FakeSystem};
use crate::{
    ChecksumSource, Credentials, Encoding, ImageFacts, ImageSource, Images, NewImage, Progress,
    ResolvedImage, Result, SystemError,
};

/// Duration of a download, which arrives in `PULL_PIECES` pieces.
const PULL_TIME: Duration = Duration::from_secs(3);
const PULL_PIECES: u64 = 10;

impl FakeSystem {
    pub(super) async fn download(&self, source: &ImageSource, progress: Progress<'_>) -> Result<ImageFacts> {
        if let Some(facts) = self.known(source) {
            return Ok(facts);
        }
        let url = source.shown.clone();
        let found = {
            let mut state = self.state();
            state.pulls += 1;
            let any = |virtual_size| FakeSource {
                sha256: source.digest.clone(),
                format: source.format,
                virtual_size,
                bytes: virtual_size / 8,
                refused: None,
            };
            state.sources.get(&source.url).cloned().or_else(|| state.any_image.map(any))
        };
        let Some(found) = found else {
            return Err(SystemError::ImageNotFound { url, detail: "404 Not Found".to_owned() });
        };
        for piece in 1..=PULL_PIECES {
            tokio::time::sleep(PULL_TIME / u32::try_from(PULL_PIECES).unwrap_or(1)).await;
            progress(found.bytes * piece / PULL_PIECES, Some(found.bytes));
        }
        if found.sha256 != source.digest {
            return Err(SystemError::ChecksumMismatch { url, declared: source.digest.clone() });
        }
        if let Some(detail) = found.refused {
            return Err(SystemError::ImageRefused { url, detail });
        }
        let mut state = self.state();
        let facts = state.images.entry(source.digest.clone()).or_insert_with(|| ImageFacts {
            digest: source.digest.clone(),
            format: source.format,
            encoding: source.encoding,
            virtual_size: found.virtual_size,
            bytes: found.bytes,
            path: image_path(&source.digest),
            readers: BTreeSet::new(),
            made_for: BTreeSet::new(),
        });
        facts.readers.insert(source.namespace.clone());
        self.files.put(&facts.path, found.virtual_size);
        Ok(facts.clone())
    }

    /// The digest of an image is that of its snapshot's name: the same snapshot has the same bytes.
    async fn make(&self, new: &NewImage) -> Result<ImageFacts> {
        let is_its = |facts: &&ImageFacts| {
            facts.made_for.contains(&new.uid)
                || new.former_uid.as_ref().is_some_and(|uid| facts.made_for.contains(uid))
        };
        let found = self.state().images.values().find(is_its).map(|facts| facts.digest.clone());
        let digest = match found {
            Some(digest) => digest,
            None => {
                tokio::time::sleep(PULL_TIME).await;
                let taken = self.state().snapshots.get(&new.snapshot).and_then(|s| s.facts.taken.clone());
                taken.ok_or_else(|| SystemError::SnapshotLost { id: new.snapshot.clone() })?;
                let digest = Sha256::digest(new.snapshot.as_bytes());
                digest.iter().map(|byte| format!("{byte:02x}")).collect()
            }
        };
        let mut state = self.state();
        let virtual_size = state.snapshots.get(&new.snapshot).map(|s| s.facts.size).unwrap_or_default();
        let facts = state.images.entry(digest.clone()).or_insert_with(|| ImageFacts {
            path: image_path(&digest),
            digest,
            format: Format::Qcow2,
            encoding: Encoding::default(),
            virtual_size,
            bytes: virtual_size / 8,
            readers: BTreeSet::new(),
            made_for: BTreeSet::new(),
        });
        facts.readers.insert(new.namespace.clone());
        facts.made_for.insert(new.uid.clone());
        self.files.put(&facts.path, facts.virtual_size);
        Ok(facts.clone())
    }

    /// Returns the image if its namespace has downloaded it.
    pub(super) fn known(&self, source: &ImageSource) -> Option<ImageFacts> {
        let facts = self.state().images.get(&source.digest).cloned()?;
        let may_read = source.shared || facts.readers.contains(&source.namespace);
        may_read.then_some(facts)
    }
}

#[async_trait]
impl Images for FakeSystem {
    async fn image(&self, source: &ImageSource) -> Result<Option<ImageFacts>> {
        self.call("image", async { Ok(self.known(source)) }).await
    }

    async fn pull(
        &self,
        source: &ImageSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        self.state().credentials.clone_from(credentials);
        self.call("pull", self.download(source, progress)).await
    }

    async fn make_image(&self, new: &NewImage) -> Result<ImageFacts> {
        self.call("make_image", self.make(new)).await
    }

    async fn resolve(&self, source: &ChecksumSource, credentials: &Credentials) -> Result<ResolvedImage> {
        self.state().credentials.clone_from(credentials);
        let work = async {
            let found = self.state().checksums.get(&source.url).cloned();
            let (url, detail) = (source.shown.clone(), "404 Not Found".to_owned());
            let digest = found.ok_or(SystemError::ImageNotFound { url, detail })?;
            Ok(ResolvedImage { digest, media_type: None })
        };
        self.call("resolve", work).await
    }

    async fn images(&self) -> Result<Vec<ImageFacts>> {
        self.call("images", async { Ok(self.state().images.values().cloned().collect()) }).await
    }

    async fn remove_image(&self, digest: &str) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let based = |volume: &Volume| volume.facts.base.as_deref() == Some(digest);
            if state.volumes.values().any(based) || state.trash.values().any(|(v, ..)| based(v)) {
                state.violations.push(format!("image {digest} removed from below a volume"));
            }
            if let Some(facts) = state.images.remove(digest) {
                self.files.remove(&facts.path);
            }
            Ok(())
        };
        self.call("remove_image", work).await
    }

    async fn forget_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        let work = async {
            if let Some(facts) = self.state().images.get_mut(digest) {
                facts.readers.remove(namespace);
            }
            Ok(())
        };
        self.call("forget_reader", work).await
    }

    async fn forget_downloads(&self, _: &BTreeSet<ImageSource>) -> Result<()> {
        // An interrupted download leaves nothing behind here.
        Ok(())
    }

    fn refuse_addresses(&self, _: BTreeSet<IpNet>) {}
}
