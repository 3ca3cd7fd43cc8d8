//! The host's images and their sources.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::machine::Format;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use super::state::{Volume, image_path};
use super::{FakeSource, FakeSystem};
use crate::{
    ChecksumSource, Credentials, Encoding, ImageFacts, ImageFile, ImageSource, Images, NewImage, Progress,
    RemoteError, RemoteImage, ResolvedImage, Result, SystemError,
};

/// Duration of a download, which arrives in `PULL_PIECES` pieces.
const PULL_TIME: Duration = Duration::from_secs(3);
const PULL_PIECES: u64 = 10;
/// The first bytes of a qcow2 image.
const QCOW2: &[u8] = b"QFI\xfb";
/// The virtual size of every image that is uploaded, or copied from another host.
const UPLOADED_SIZE: u64 = 1 << 30;
/// The largest upload.
const MAX_UPLOAD: u64 = 256 << 30;

impl FakeSystem {
    pub(super) async fn download(&self, source: &ImageSource, progress: Progress<'_>) -> Result<ImageFacts> {
        if let Some(facts) = self.known(source) {
            return Ok(facts);
        }
        if source.upload().is_some() {
            return self.verify_upload(source).await;
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
        let digest = source.stored_digest();
        let facts = state.images.entry(digest.clone()).or_insert_with(|| ImageFacts {
            path: image_path(&digest),
            digest,
            format: source.format,
            encoding: source.encoding,
            virtual_size: found.virtual_size,
            bytes: found.bytes,
            readers: BTreeSet::new(),
            made_for: BTreeSet::new(),
        });
        facts.readers.insert(source.namespace.clone());
        self.files.put(&facts.path, found.virtual_size);
        let facts = facts.clone();
        if let Some(bytes) = state.served.get(&source.digest).cloned() {
            state.contents.insert(facts.digest.clone(), bytes);
        }
        Ok(facts)
    }

    /// Makes an upload an image, as a real host does with bytes that need no conversion.
    async fn verify_upload(&self, source: &ImageSource) -> Result<ImageFacts> {
        tokio::time::sleep(PULL_TIME).await;
        let mut state = self.state();
        let bytes = state.uploads.get(&source.url).cloned().unwrap_or_default();
        let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let url = source.shown.clone();
        if found != source.digest {
            state.uploads.remove(&source.url);
            return Err(SystemError::ChecksumMismatch { url, declared: source.digest.clone() });
        }
        if source.format == Format::Qcow2 && !bytes.starts_with(QCOW2) {
            state.uploads.remove(&source.url);
            return Err(SystemError::ImageRefused { url, detail: "not a qcow2 image".to_owned() });
        }
        let uid = source.upload().unwrap_or_default();
        let facts = state.images.entry(found.clone()).or_insert_with(|| ImageFacts {
            path: image_path(&found),
            digest: found,
            format: source.format,
            encoding: source.encoding,
            virtual_size: UPLOADED_SIZE,
            bytes: bytes.len() as u64,
            readers: BTreeSet::new(),
            made_for: BTreeSet::new(),
        });
        facts.readers.insert(source.namespace.clone());
        facts.made_for.insert(uid.to_owned());
        let facts = facts.clone();
        self.files.put(&facts.path, facts.virtual_size);
        state.uploads.remove(&source.url);
        state.contents.insert(facts.digest.clone(), bytes);
        Ok(facts)
    }

    /// Makes the bytes of another host an image.
    async fn copy(
        &self,
        source: &ImageSource,
        from: &dyn RemoteImage,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        if let Some(facts) = self.known(source) {
            return Ok(facts);
        }
        let url = source.shown.clone();
        let failed = |detail: String| SystemError::Download { url: url.clone(), detail };
        let file = from.open(0).await.map_err(|error| match error {
            RemoteError::Unreachable(detail) | RemoteError::Refused(detail) => failed(detail),
        })?;
        let mut bytes = Vec::new();
        let read = file.bytes.take(file.size).read_to_end(&mut bytes).await;
        read.map_err(|error| failed(error.to_string()))?;
        progress(bytes.len() as u64, Some(file.size));
        if bytes.len() as u64 != file.size {
            return Err(failed("the connection was closed in the middle".to_owned()));
        }
        let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if found != source.digest {
            return Err(SystemError::ChecksumMismatch { url, declared: source.digest.clone() });
        }
        let mut state = self.state();
        state.copies += 1;
        let facts = state.images.entry(found.clone()).or_insert_with(|| ImageFacts {
            path: image_path(&found),
            digest: found.clone(),
            format: source.format,
            encoding: source.encoding,
            virtual_size: UPLOADED_SIZE,
            bytes: file.size,
            readers: BTreeSet::new(),
            made_for: BTreeSet::new(),
        });
        facts.readers.insert(source.namespace.clone());
        let facts = facts.clone();
        self.files.put(&facts.path, facts.virtual_size);
        state.contents.insert(found, bytes);
        Ok(facts)
    }

    fn append(&self, source: &ImageSource, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.state();
        let free = state.facts.storage_free_bytes;
        let upload = state.uploads.entry(source.url.clone()).or_default();
        let found = upload.len() as u64;
        if found != offset {
            let detail = format!("the host has {found} bytes, and these follow {offset}");
            return Err(SystemError::Upload { detail });
        }
        let needed = found + bytes.len() as u64;
        if needed > free {
            return Err(SystemError::NoSpace { what: "an upload".to_owned(), needed, free });
        }
        upload.extend_from_slice(bytes);
        Ok(())
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
        let facts = facts.clone();
        state.contents.insert(facts.digest.clone(), new.snapshot.clone().into_bytes());
        Ok(facts)
    }

    /// Returns the image if its namespace has downloaded it.
    pub(super) fn known(&self, source: &ImageSource) -> Option<ImageFacts> {
        let facts = self.state().images.get(&source.stored_digest()).cloned()?;
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

    async fn copy_image(
        &self,
        source: &ImageSource,
        from: Arc<dyn RemoteImage>,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        self.call("copy_image", self.copy(source, from.as_ref(), progress)).await
    }

    async fn open_image(&self, source: &ImageSource, offset: u64) -> Result<Option<ImageFile>> {
        let work = async {
            let Some(facts) = self.known(source) else { return Ok(None) };
            let bytes = self.state().contents.get(&facts.digest).cloned().unwrap_or_default();
            let size = bytes.len() as u64;
            let from = usize::try_from(offset.min(size)).unwrap_or_default();
            Ok(Some(ImageFile { size, bytes: Box::new(std::io::Cursor::new(bytes[from..].to_vec())) }))
        };
        self.call("open_image", work).await
    }

    async fn make_image(&self, new: &NewImage) -> Result<ImageFacts> {
        self.call("make_image", self.make(new)).await
    }

    async fn uploaded(&self, source: &ImageSource, size: u64) -> Result<u64> {
        let work = async {
            let state = self.state();
            if size > MAX_UPLOAD {
                let detail = format!("more than the {MAX_UPLOAD} bytes this host allows for an image");
                return Err(SystemError::ImageTooLarge { url: source.shown.clone(), detail });
            }
            let free = state.facts.storage_free_bytes;
            if size > free {
                return Err(SystemError::NoSpace { what: "an upload".to_owned(), needed: size, free });
            }
            Ok(state.uploads.get(&source.url).map_or(0, |bytes| bytes.len() as u64))
        };
        self.call("uploaded", work).await
    }

    async fn append_upload(&self, source: &ImageSource, offset: u64, bytes: Vec<u8>) -> Result<()> {
        self.call("append_upload", async { self.append(source, offset, &bytes) }).await
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

    async fn compute_checksum(
        &self,
        source: &ChecksumSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<String> {
        self.state().credentials.clone_from(credentials);
        let work = async {
            let found = self.state().sources.get(&source.image_url).cloned();
            let (url, detail) = (source.shown.clone(), "404 Not Found".to_owned());
            let found = found.ok_or(SystemError::ImageNotFound { url, detail })?;
            tokio::time::sleep(PULL_TIME).await;
            progress(found.bytes, Some(found.bytes));
            Ok(found.sha256)
        };
        self.call("compute_checksum", work).await
    }

    async fn images(&self) -> Result<Vec<ImageFacts>> {
        self.call("images", async { Ok(self.state().images.values().cloned().collect()) }).await
    }

    async fn remove_image(&self, digest: &str) -> Result<()> {
        let work = async {
            let mut state = self.state();
            let mut snapshots = state.snapshots.iter();
            if let Some((id, _)) = snapshots.find(|(_, snapshot)| snapshot.base.as_deref() == Some(digest)) {
                return Err(SystemError::ImageInUse { digest: digest.to_owned(), volume: id.clone() });
            }
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

    async fn add_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        let work = async {
            if let Some(facts) = self.state().images.get_mut(digest) {
                facts.readers.insert(namespace.to_owned());
            }
            Ok(())
        };
        self.call("add_reader", work).await
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

    async fn forget_downloads(&self, but: &BTreeSet<ImageSource>) -> Result<()> {
        // An interrupted download leaves nothing behind here, but an upload does.
        self.state().uploads.retain(|url, _| but.iter().any(|source| source.url == *url));
        Ok(())
    }

    fn refuse_addresses(&self, _: BTreeSet<IpNet>) {}
}
