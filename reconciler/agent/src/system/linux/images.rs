//! The image cache: files named by their SHA-256, each verified before it got its name.
//!
//! ```text
//!  <sha>.partial ──bytes──▶ checksum ──▶ format, size, no second file ──▶ <sha>.json ──rename──▶ <sha>
//! ```
//!
//! What is in the cache is an image iff both `<sha>` and `<sha>.json` are there; the rename comes last.

mod download;
mod file;
mod http;
mod partial;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use berth_qemu::machine::Format;
use berth_qemu::process::RunAs;
use berth_qemu::qcow2::{self, InspectError};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::files::{self, blocking, failed};
use super::layout::{Layout, check_sha256, is_sha256};
use crate::system::{ImageFacts, ImageSource, Progress, SystemError};

type Result<T> = std::result::Result<T, SystemError>;
/// Bytes so far, and of how many.
type Seen = (u64, Option<u64>);
type Pulled = std::result::Result<ImageFacts, Arc<SystemError>>;

/// Downloads nobody came back for.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often a caller joins somebody else's download from another source before giving up for now.
const TURNS: usize = 8;

/// What is kept beside an image.
#[derive(Debug, Serialize, Deserialize)]
struct Sidecar {
    format: Format,
    virtual_size: u64,
    bytes: u64,
}

#[derive(Debug)]
pub(super) struct Images {
    layout: Layout,
    reader: Option<RunAs>,
    max_bytes: u64,
    http: http::Client,
    running: Mutex<HashMap<String, Running>>,
}

/// A download under way. Its callers drive it together; when the last of them goes away, it stops.
#[derive(Debug)]
struct Running {
    source: ImageSource,
    result: WeakShared<BoxFuture<'static, Pulled>>,
    seen: watch::Receiver<Seen>,
}

impl Images {
    pub(super) fn open(layout: Layout, reader: Option<RunAs>, max_bytes: u64) -> Result<Self> {
        files::ensure_folder(&layout.images())?;
        forget_old_downloads(&layout.images())?;
        Ok(Self { layout, reader, max_bytes, http: http::Client::default(), running: Mutex::default() })
    }

    pub(super) async fn image(&self, sha256: &str) -> Result<Option<ImageFacts>> {
        check_sha256(sha256)?;
        let (layout, sha256) = (self.layout.clone(), sha256.to_owned());
        blocking(move || cached(&layout, &sha256)).await
    }

    pub(super) async fn images(&self) -> Result<Vec<ImageFacts>> {
        let layout = self.layout.clone();
        blocking(move || {
            let names = files::names(&layout.images())?;
            let mut images = Vec::new();
            for name in names.iter().filter(|n| is_sha256(n)) {
                images.extend(cached(&layout, name)?);
            }
            Ok(images)
        })
        .await
    }

    pub(super) async fn remove(&self, sha256: &str) -> Result<()> {
        check_sha256(sha256)?;
        let image = self.layout.image(sha256);
        blocking(move || {
            // The image itself first: what is left after a crash is then no image.
            for path in
                [image.clone(), beside(&image, "json"), partial::path(&image), partial::origin(&image)]
            {
                files::remove_if_there(&path).map_err(failed("remove", &path))?;
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn pull(
        self: &Arc<Self>,
        source: &ImageSource,
        progress: Progress<'_>,
    ) -> Result<ImageFacts> {
        check_sha256(&source.sha256)?;
        for _ in 0..TURNS {
            if let Some(facts) = self.image(&source.sha256).await? {
                return as_declared(facts, source);
            }
            let (result, seen, whose) = self.join(source);
            let outcome = follow(result, seen, progress).await;
            if whose == *source {
                return outcome.map_err(unshare);
            }
            // It was tried from elsewhere or as another format: if that worked, the cache has it now; if not, it
            // is this caller's turn.
        }
        Err(SystemError::Download {
            url: download::shown(&source.url),
            detail: "others keep downloading the same checksum from other sources".to_owned(),
        })
    }

    /// The download of this checksum that is under way, or a new one; and what it downloads.
    fn join(
        self: &Arc<Self>,
        source: &ImageSource,
    ) -> (Shared<BoxFuture<'static, Pulled>>, watch::Receiver<Seen>, ImageSource) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended is not joined, even while some of its callers have not taken its result yet.
        let under_way = |r: &Running| r.result.upgrade().filter(|result| result.peek().is_none());
        running.retain(|_, r| under_way(r).is_some());
        if let Some(found) = running.get(&source.sha256)
            && let Some(result) = under_way(found)
        {
            return (result, found.seen.clone(), found.source.clone());
        }
        let (report, seen) = watch::channel((0, None));
        let (images, wanted) = (Arc::clone(self), source.clone());
        let work = async move { images.fetch(&wanted, &report).await.map_err(Arc::new) };
        let result = work.boxed().shared();
        let weak = result.downgrade().expect("it has not been polled yet");
        running.insert(
            source.sha256.clone(),
            Running { source: source.clone(), result: weak, seen: seen.clone() },
        );
        (result, seen, source.clone())
    }

    async fn fetch(&self, source: &ImageSource, report: &watch::Sender<Seen>) -> Result<ImageFacts> {
        let image = self.layout.image(&source.sha256);
        let job = download::Job { source, image: &image, max_bytes: self.max_bytes, report };
        job.run(&self.http).await?;
        let (source, reader) = (source.clone(), self.reader.clone());
        let facts = blocking(move || admit(&source, &image, reader.as_ref())).await?;
        tracing::info!(sha256 = facts.sha256, bytes = facts.bytes, "image verified");
        Ok(facts)
    }
}

/// Checks a download whose checksum is right, and gives it its name.
fn admit(source: &ImageSource, image: &Path, reader: Option<&RunAs>) -> Result<ImageFacts> {
    let partial = partial::path(image);
    let mut file = File::open(&partial).map_err(failed("read", &partial))?;
    let info = match qcow2::inspect(&mut file, source.format) {
        Ok(info) => info,
        Err(InspectError::Read(error)) => return Err(failed("read", &partial)(error)),
        Err(error) => {
            // These very bytes will never do: no reason to keep them.
            partial::discard(image)?;
            return Err(refused(source, &error));
        }
    };
    let sidecar = Sidecar { format: info.format, virtual_size: info.virtual_size, bytes: info.file_size };
    files::write_json(&beside(image, "json"), &sidecar, 0o644)?;
    files::lend(&partial, reader)?;
    file.sync_all().map_err(failed("write", &partial))?;
    fs::rename(&partial, image).map_err(failed("name", image))?;
    partial::discard(image)?;
    files::sync_parent(image).map_err(failed("write", image))?;
    Ok(facts(&source.sha256, image, &sidecar))
}

fn refused(source: &ImageSource, error: &InspectError) -> SystemError {
    let (url, detail) = (download::shown(&source.url), error.to_string());
    match error {
        InspectError::TooLarge { .. } => SystemError::ImageTooLarge { url, detail },
        _ => SystemError::ImageRefused { url, detail },
    }
}

fn cached(layout: &Layout, sha256: &str) -> Result<Option<ImageFacts>> {
    let image = layout.image(sha256);
    let Ok(metadata) = fs::metadata(&image) else {
        return Ok(None);
    };
    match files::read_json::<Sidecar>(&beside(&image, "json"))? {
        Some(Ok(sidecar)) if sidecar.bytes == metadata.len() => Ok(Some(facts(sha256, &image, &sidecar))),
        // Damaged from outside: not an image any more; a pull replaces it.
        _ => Ok(None),
    }
}

fn facts(sha256: &str, image: &Path, sidecar: &Sidecar) -> ImageFacts {
    ImageFacts {
        sha256: sha256.to_owned(),
        format: sidecar.format,
        virtual_size: sidecar.virtual_size,
        bytes: sidecar.bytes,
        path: image.to_owned(),
    }
}

fn as_declared(facts: ImageFacts, source: &ImageSource) -> Result<ImageFacts> {
    if facts.format == source.format {
        return Ok(facts);
    }
    let (declared, found) = (source.format.driver(), facts.format.driver());
    let detail = format!("the image is declared as {declared} and is {found}");
    Err(SystemError::ImageRefused { url: download::shown(&source.url), detail })
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

/// Callers that shared a download share its error; most often there is one caller, who gets it as it is.
fn unshare(error: Arc<SystemError>) -> SystemError {
    Arc::try_unwrap(error).unwrap_or_else(|shared| match &*shared {
        SystemError::ImageNotFound { url, detail } => {
            SystemError::ImageNotFound { url: url.clone(), detail: detail.clone() }
        }
        SystemError::ChecksumMismatch { url, declared, actual } => SystemError::ChecksumMismatch {
            url: url.clone(),
            declared: declared.clone(),
            actual: actual.clone(),
        },
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

fn beside(image: &Path, extension: &str) -> PathBuf {
    image.with_extension(extension)
}

fn forget_old_downloads(folder: &Path) -> Result<()> {
    for name in files::names(folder)? {
        let Some(sha256) = name.strip_suffix(".partial").filter(|s| is_sha256(s)) else {
            continue;
        };
        let image = folder.join(sha256);
        let modified = fs::metadata(partial::path(&image)).and_then(|m| m.modified());
        let age = modified.ok().and_then(|m| SystemTime::now().duration_since(m).ok());
        if age.is_some_and(|a| a > FORGOTTEN) {
            partial::discard(&image)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
