//! The image cache: files named by their digest, each verified before it gets its name.
//!
//! ```text
//!  <digest>-<source>.partial ──bytes──▶ checksum ──▶ unpacked, converted, if encoded
//!                                ──▶ format, size, no second file ──▶ <digest>.json ──rename──▶ <digest>
//! ```
//!
//! An image is in the cache iff both `<digest>` and `<digest>.json` exist; the rename comes last. All namespaces share
//! the bytes; a namespace proves its access to them by a download of its own, recorded in `<digest>.json`. An image that is made
//! from a snapshot (`make`) gets its name in the same way, once its digest is known. The bytes of an upload (`upload`) come from a
//! client instead of a source, those of a copy (`copy`) from another host.

mod attempts;
mod cache;
mod checksums;
mod copy;
mod download;
mod file;
mod http;
mod job;
mod make;
mod oci;
mod ova;
mod partial;
mod rules;
mod signature;
mod unpack;
mod unpack_file;
mod upload;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use ipnet::IpNet;
use tokio::sync::watch;

use super::files::{self, blocking};
use super::layout::{Layout, check_digest, is_digest};
use crate::{
    ChecksumSource, Credentials, ImageFacts, ImageSource, Progress, RemoteImage, ResolvedImage, SystemError,
};
use cache::Cache;
use download::Access;
pub(super) use http::without_url;
use job::Job;
pub(super) use make::{Input, SnapshotContent};
use partial::{Partial, Place};
pub use rules::ImageRules;
use rules::{Guard, Rules};
pub(super) use unpack::Unpacker;
pub use unpack_file::{Archive, unpack};

type Result<T> = std::result::Result<T, SystemError>;
/// Bytes so far, and the total if known.
type Seen = (u64, Option<u64>);
type Pulled = std::result::Result<ImageFacts, Arc<SystemError>>;

#[derive(Debug)]
pub(super) struct LinuxImages {
    cache: Cache,
    max_bytes: u64,
    rules: Arc<Rules>,
    http: http::Client,
    unpacker: Unpacker,
    /// In the names of this process's unfinished files. Process numbers repeat.
    process: String,
    running: Mutex<HashMap<ImageSource, Running>>,
}

/// A download in progress. Its callers poll it together; it stops when the last of them drops it.
#[derive(Debug)]
struct Running {
    result: WeakShared<BoxFuture<'static, Pulled>>,
    seen: watch::Receiver<Seen>,
}

impl LinuxImages {
    pub(super) fn open(layout: Layout, unpacker: Unpacker, rules: ImageRules) -> Result<Self> {
        let max_bytes = unpacker.max_bytes;
        files::ensure_folder(&layout.images())?;
        partial::forget_old(&layout.images())?;
        let rules = Arc::new(Rules::new(rules));
        let http = http::Client::new(Arc::clone(&rules));
        let (cache, process) = (Cache::new(layout), format!("{:016x}", rand::random::<u64>()));
        Ok(Self { cache, max_bytes, rules, http, unpacker, process, running: Mutex::default() })
    }

    /// Returns the image if the source's namespace has proved its access.
    pub(super) async fn image(&self, source: &ImageSource) -> Result<Option<ImageFacts>> {
        let facts = self.cached(&source.stored_digest()).await?;
        let is_declared =
            |facts: &ImageFacts| (facts.format, facts.encoding) == (source.format, source.encoding);
        Ok(facts.filter(|facts| is_declared(facts) && cache::may_read(facts, source)))
    }

    /// Returns the image without checking the namespace.
    pub(super) async fn cached(&self, digest: &str) -> Result<Option<ImageFacts>> {
        check_digest(digest)?;
        let (cache, digest) = (self.cache.clone(), digest.to_owned());
        blocking(move || cache.get(&digest)).await
    }

    pub(super) async fn images(&self) -> Result<Vec<ImageFacts>> {
        let cache = self.cache.clone();
        blocking(move || cache.all()).await
    }

    pub(super) async fn remove(&self, digest: &str) -> Result<()> {
        check_digest(digest)?;
        let (cache, digest) = (self.cache.clone(), digest.to_owned());
        blocking(move || cache.remove(&digest)).await
    }

    pub(super) async fn add_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        check_digest(digest)?;
        let (cache, digest, namespace) = (self.cache.clone(), digest.to_owned(), namespace.to_owned());
        blocking(move || cache.add_reader(&digest, &namespace)).await
    }

    pub(super) async fn forget_reader(&self, digest: &str, namespace: &str) -> Result<()> {
        check_digest(digest)?;
        let (cache, digest, namespace) = (self.cache.clone(), digest.to_owned(), namespace.to_owned());
        blocking(move || cache.forget_reader(&digest, &namespace)).await
    }

    pub(super) async fn forget_downloads(&self, but: &BTreeSet<ImageSource>) -> Result<()> {
        let folder = self.cache.folder();
        let (layout, process) = (self.cache.layout().clone(), self.process.clone());
        let but = but.clone();
        let cache = self.cache.clone();
        blocking(move || {
            let mut kept: BTreeSet<String> = but.iter().map(partial::name).collect();
            for source in &but {
                // The bytes that its checksum was computed of, until the download has taken them.
                if is_digest(&source.digest) && cache.get(&source.stored_digest())?.is_none() {
                    kept.insert(partial::name(&source.with_no_digest()));
                }
            }
            partial::forget(&folder, |name, _| !kept.contains(name))?;
            make::forget_others(&layout, &process)
        })
        .await
    }

    pub(super) fn refuse_addresses(&self, ranges: BTreeSet<IpNet>) {
        self.rules.refuse(ranges);
    }

    /// Whether this host may connect to the address in a URL that a tenant has declared. A name is checked by [`LinuxImages::resolver`].
    pub(super) fn allows_url(&self, url: &str) -> bool {
        reqwest::Url::parse(url).is_ok_and(|url| self.rules.allows_url(&url))
    }

    /// Resolves names to addresses that this host may connect to for a tenant.
    pub(super) fn resolver(&self) -> Arc<dyn reqwest::dns::Resolve> {
        Arc::new(Guard(Arc::clone(&self.rules)))
    }

    pub(super) async fn resolve(
        &self,
        source: &ChecksumSource,
        credentials: &Credentials,
    ) -> Result<ResolvedImage> {
        let client = self.client(credentials, &source.image_url, &source.shown)?;
        if source.url.starts_with("oci://") {
            return oci::resolve(&client, source).await;
        }
        let digest = checksums::find(&client, source).await?;
        Ok(ResolvedImage { digest, media_type: None })
    }

    /// Returns the SHA-256 of the bytes that a URL has now, which are kept for the download of the image.
    pub(super) async fn compute(
        &self,
        source: &ChecksumSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<String> {
        let client = self.client(credentials, &source.image_url, &source.shown)?;
        let Some(unknown) = source.computed_from() else {
            let (what, value) = ("checksum source", source.shown.clone());
            return Err(SystemError::Invalid { what, value, why: "its checksum is not to be computed" });
        };
        let place = Place::of(&self.cache.folder(), &unknown);
        let (report, mut seen) = watch::channel((0, None));
        let (max_bytes, rules) = (self.max_bytes, &self.rules);
        let job = Job { source: &unknown, place: &place, stored: true, max_bytes, rules, report: &report };
        let mut work = std::pin::pin!(download::digest(&job, &client));
        loop {
            tokio::select! {
                biased;
                digest = &mut work => return digest,
                // The sender lives as long as the work.
                Ok(()) = seen.changed() => {
                    let (bytes, of) = *seen.borrow_and_update();
                    progress(bytes, of);
                }
            }
        }
    }

    pub(super) async fn pull(
        self: &Arc<Self>,
        source: &ImageSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        check_digest(&source.digest)?;
        if let Some(facts) = self.image(source).await? {
            return Ok(facts);
        }
        let client = self.client(credentials, &source.url, &source.shown)?;
        let (result, seen) = self.join(source, Access::Url(client));
        follow(result, seen, progress).await.map_err(unshare)
    }

    /// As [`LinuxImages::pull`], with the bytes of another host.
    pub(super) async fn copy(
        self: &Arc<Self>,
        source: &ImageSource,
        from: Arc<dyn RemoteImage>,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        check_digest(&source.digest)?;
        if let Some(facts) = self.image(source).await? {
            return Ok(facts);
        }
        let (result, seen) = self.join(source, Access::Host(from));
        follow(result, seen, progress).await.map_err(unshare)
    }

    /// Returns the client for a source. `shown`: the URL for messages.
    fn client(&self, credentials: &Credentials, url: &str, shown: &str) -> Result<http::Client> {
        if *credentials == Credentials::default() {
            return Ok(self.http.clone());
        }
        let is_registry = url.starts_with("oci://");
        let server = if is_registry { oci::registry(url) } else { reqwest::Url::parse(url).ok() };
        let invalid =
            || SystemError::Invalid { what: "image URL", value: shown.to_owned(), why: "not a URL" };
        let client = self.http.with(credentials, server.ok_or_else(invalid)?, is_registry);
        client.map_err(|detail| SystemError::Download { url: shown.to_owned(), detail })
    }

    /// Joins the running download of this source, or starts a new one.
    fn join(
        self: &Arc<Self>,
        source: &ImageSource,
        access: Access,
    ) -> (Shared<BoxFuture<'static, Pulled>>, watch::Receiver<Seen>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // A finished download is not joined, even if some of its callers have not taken the result yet.
        let under_way = |r: &Running| r.result.upgrade().filter(|result| result.peek().is_none());
        running.retain(|_, r| under_way(r).is_some());
        if let Some(found) = running.get(source)
            && let Some(result) = under_way(found)
        {
            return (result, found.seen.clone());
        }
        let (report, seen) = watch::channel((0, None));
        let (images, wanted) = (Arc::clone(self), source.clone());
        let work = async move { images.fetch(&wanted, &access, &report).await.map_err(Arc::new) };
        let result = work.boxed().shared();
        let weak = result.downgrade().expect("it has not been polled yet");
        running.insert(source.clone(), Running { result: weak, seen: seen.clone() });
        (result, seen)
    }

    async fn fetch(
        &self,
        source: &ImageSource,
        access: &Access,
        report: &watch::Sender<Seen>,
    ) -> Result<ImageFacts> {
        let place = Place::of(&self.cache.folder(), source);
        // If the image is already cached, the download only proves that this namespace may read it; the bytes are not
        // stored again. Those of an upload are.
        let stored = source.upload().is_some() || self.cached(&source.stored_digest()).await?.is_none();
        let (folder, wanted) = (self.cache.folder(), source.clone());
        blocking(move || partial::take_computed(&folder, &wanted, stored)).await?;
        let job =
            Job { source, place: &place, stored, max_bytes: self.max_bytes, rules: &self.rules, report };
        let verified = download::run(&job, access).await?;
        let (made, verified) = self.unpack(source, verified).await?;
        let (cache, source) = (self.cache.clone(), source.clone());
        let facts = blocking(move || cache.admit(&source, verified, made.as_deref())).await?;
        tracing::info!(digest = facts.digest, bytes = facts.bytes, stored, "image verified");
        Ok(facts)
    }

    /// Makes the image from the bytes, if they were stored and are encoded.
    async fn unpack(&self, source: &ImageSource, verified: Partial) -> Result<(Option<PathBuf>, Partial)> {
        if !verified.is_stored() {
            return Ok((None, verified));
        }
        match self.unpacker.run(source, verified.place()).await {
            Ok(made) => Ok((made, verified)),
            Err(error) => {
                let is_useless = match &error {
                    SystemError::ImageRefused { .. } | SystemError::ImageTooLarge { .. } => true,
                    // A person would have to upload them again.
                    SystemError::NoSpace { .. } => source.upload().is_none(),
                    _ => false,
                };
                match is_useless {
                    // Bytes that never become an image, or that fill the disk, are not kept.
                    true => verified.discard()?,
                    false => verified.place().discard_made()?,
                }
                Err(error)
            }
        }
    }
}

async fn follow(
    mut result: Shared<BoxFuture<'static, Pulled>>,
    mut seen: watch::Receiver<Seen>,
    progress: Progress<'_>,
) -> Pulled {
    loop {
        tokio::select! {
            biased;
            outcome = &mut result => return outcome,
            changed = seen.changed() => {
                if changed.is_err() {
                    return result.await;
                }
                let (bytes, of) = *seen.borrow_and_update();
                progress(bytes, of);
            }
        }
    }
}

/// Callers that share a download share its error; usually there is one caller, which gets the original.
fn unshare(error: Arc<SystemError>) -> SystemError {
    Arc::try_unwrap(error).unwrap_or_else(|shared| match &*shared {
        SystemError::ImageNotFound { url, detail } => {
            SystemError::ImageNotFound { url: url.clone(), detail: detail.clone() }
        }
        SystemError::ChecksumMismatch { url, declared } => {
            SystemError::ChecksumMismatch { url: url.clone(), declared: declared.clone() }
        }
        SystemError::ImageNotAllowed { url, why } => SystemError::ImageNotAllowed { url: url.clone(), why },
        SystemError::ImageRefused { url, detail } => {
            SystemError::ImageRefused { url: url.clone(), detail: detail.clone() }
        }
        SystemError::ImageTooLarge { url, detail } => {
            SystemError::ImageTooLarge { url: url.clone(), detail: detail.clone() }
        }
        SystemError::NoSpace { what, needed, free } => {
            SystemError::NoSpace { what: what.clone(), needed: *needed, free: *free }
        }
        SystemError::Download { url, detail } => {
            SystemError::Download { url: url.clone(), detail: detail.clone() }
        }
        other => SystemError::Download { url: "the image".to_owned(), detail: other.chain() },
    })
}

#[cfg(test)]
mod tests;
