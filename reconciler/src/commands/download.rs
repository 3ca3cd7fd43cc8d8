//! `berth image download`, `berth disk download`, `berth snapshot download`: files with the data of a site.
//!
//! ```text
//!  Disk, DiskSnapshot ─▶ Image that is made for the download ─▶ FILE.part ──verified, renamed──▶ FILE
//!                        deleted at the end                     stays if it is interrupted, and is made raw if that is asked for
//! ```
//!
//! *Guarantees:* `FILE.part` is locked from before the first byte until `FILE` has its name.

mod files;
mod origin;
mod raw;

use std::io::Write;

use anyhow::{Context, bail};
use async_trait::async_trait;
use berth_agent::TypedApi;
use berth_api::{
    Image, Quantity, condition,
    console::{DOWNLOAD_ACCOUNT, download_audience, download_path},
};
use berth_console_client::{DownloadPlace, Expected, FetchError, PartFile, Target, fetch};
use kube::{Client, ResourceExt};

use crate::{
    cli::{DiskFileFormat, DownloadOptions, OriginDownloadOptions},
    commands::{connect, console::connection::ticket, progress::Progress, resources},
    one_connection::client_of,
    requests::is_outage,
};
use origin::{Origin, OriginKind};

/// Downloads the file of an Image.
///
/// *Errors:* there is no such Image, or it has no file to download; the file here exists; the download failed, and the same command
/// continues it.
pub(super) async fn image(options: DownloadOptions) -> anyhow::Result<()> {
    let (site, name) = (Site::of(&options).await?, options.name.as_str());
    let image = site.images.get_opt(name).await.with_context(|| format!("reading Image {name}"))?;
    let Some(image) = image else {
        bail!("there is no Image {name} in namespace {} (see -n)", site.namespace)
    };
    let expected = expected(&image)?;
    let part = site.download(&image, &expected, files::part_of(&options.file)?, &options).await?;
    files::finish(part, &options)?;
    let (file, digest) = (options.file.display(), &expected.digest);
    writeln!(std::io::stdout(), "image/{name} is in {file}, checksum {digest}").context("printing")
}

/// Downloads the data of a Disk.
pub(super) async fn disk(options: OriginDownloadOptions) -> anyhow::Result<()> {
    of_origin(OriginKind::Disk, &options).await
}

/// Downloads the data of a DiskSnapshot.
pub(super) async fn snapshot(options: OriginDownloadOptions) -> anyhow::Result<()> {
    of_origin(OriginKind::Snapshot, &options).await
}

/// Has an Image made, downloads its file, and deletes the Image.
///
/// *Errors:* those of the Image, which is deleted if its host cannot make it; those of the download, and the Image stays.
async fn of_origin(kind: OriginKind, options: &OriginDownloadOptions) -> anyhow::Result<()> {
    let download = &options.download;
    let site = Site::of(download).await?;
    let uid = kind.uid(&site, &download.name).await?;
    let part = files::part_of(&download.file)?;
    if options.anew {
        // Bytes of the data of then: the checksum would show it, and only once all have come.
        part.clear()?;
    }
    let origin = Origin::new(kind, &download.name, &uid, &files::id_of(&download.file)?);
    let image = origin::made(&site, &origin, options).await?;
    let done = async {
        let part = site.download(&image, &expected(&image)?, part, download).await?;
        match options.format {
            DiskFileFormat::Qcow2 => files::finish(part, download),
            DiskFileFormat::Raw => files::finish_raw(part, size_of_disk(&image), download).await,
        }
    };
    done.await.with_context(|| origin::stays(&site, &image.name_any()))?;
    let (word, name, file) = (kind.word(), &download.name, download.file.display());
    let printed = writeln!(std::io::stdout(), "{word}/{name} is in {file}");
    origin::discard(&site, &image).await;
    printed.context("printing")
}

/// Returns the size of the disk that is in an Image's file.
fn size_of_disk(image: &Image) -> Option<u64> {
    let size = image.status.as_ref()?.virtual_size.clone()?;
    Quantity(size).bytes().ok()
}

/// The control plane, and the namespace of a download.
struct Site {
    client: Client,
    images: TypedApi<Image>,
    namespace: String,
}

impl Site {
    /// Checks the names and the file before anything is requested.
    async fn of(options: &DownloadOptions) -> anyhow::Result<Self> {
        let namespace = resources::checked(&options.namespace)?;
        resources::checked(&options.name)?;
        files::check(&options.file, options.force)?;
        let client = client_of(connect::admin(&options.connection, &options.state.state_dir).await?)?;
        let images = TypedApi::namespaced(client.clone(), namespace);
        Ok(Self { client, images, namespace: namespace.to_owned() })
    }

    /// Downloads the file of an Image, and returns it, locked and without its name.
    async fn download(
        &self,
        image: &Image,
        expected: &Expected,
        part: PartFile,
        options: &DownloadOptions,
    ) -> anyhow::Result<PartFile> {
        let place = Place {
            site: self,
            name: image.name_any(),
            uid: image.uid().unwrap_or_default(),
            progress: Progress::new(expected.size, "downloaded"),
        };
        let done = fetch(&place, part, expected).await.map_err(into_error);
        place.progress.end();
        done.with_context(|| {
            format!("downloading {}; the same command continues a download", options.file.display())
        })
    }
}

/// Returns the size and the checksum of an Image's file.
///
/// *Errors:* the Image is not ready, or its host has no file with this checksum.
fn expected(image: &Image) -> anyhow::Result<Expected> {
    let name = image.name_any();
    let status = image.status.clone().unwrap_or_default();
    let ready = condition::find(&status.conditions, "Ready");
    if ready.is_none_or(|ready| ready.status != "True") {
        let why = ready.map(|ready| format!(": {} ({})", ready.message, ready.reason)).unwrap_or_default();
        bail!("Image {name} is not ready{why}");
    }
    if !image.is_local() {
        bail!("Image {name} comes from a URL (spec.source.url): download it from that URL");
    }
    if !image.is_copyable() {
        bail!(
            "Image {name} was decompressed or converted on its host, so that its file there does not match the checksum: use the file \
             that was uploaded"
        );
    }
    if status.download.is_none() {
        let host = status.binding.map_or_else(|| "?".to_owned(), |binding| binding.host);
        bail!(
            "host {host} serves no download of Image {name}: its agent has not reported the Image yet, is older than this command, or \
             runs with --no-console"
        );
    }
    let size = status.bytes.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
    let measured = size.zip(image.digest());
    let (size, digest) = measured.with_context(|| format!("Image {name} has no size or checksum yet"))?;
    Ok(Expected { size, digest: digest.to_owned() })
}

/// The Image that is downloaded.
struct Place<'a> {
    site: &'a Site,
    name: String,
    uid: String,
    progress: Progress,
}

#[async_trait]
impl DownloadPlace for Place<'_> {
    type Error = anyhow::Error;

    async fn target(&self) -> anyhow::Result<Target> {
        let (name, namespace) = (&self.name, &self.site.namespace);
        let found = self.site.images.get_opt(name).await.with_context(|| format!("reading Image {name}"))?;
        let same = found.filter(|found| found.metadata.uid.as_deref() == Some(&self.uid));
        let image = same.filter(|found| found.metadata.deletion_timestamp.is_none());
        let image = image.with_context(|| format!("Image {name} was deleted meanwhile"))?;
        expected(&image)?;
        let server = image.status.and_then(|status| status.download);
        let server =
            server.with_context(|| format!("the host of Image {name} serves no download any more"))?;
        let audience = download_audience(namespace, name, &self.uid);
        let ticket = ticket(&self.site.client, namespace, DOWNLOAD_ACCOUNT, audience).await?;
        Ok(Target { server, path: download_path(namespace, name), ticket })
    }

    fn is_passing(&self, error: &anyhow::Error) -> bool {
        is_outage(error)
    }

    fn progress(&self, done: u64) {
        self.progress.show(done);
    }
}

fn into_error(error: FetchError<anyhow::Error>) -> anyhow::Error {
    match error {
        FetchError::Place(error) => error,
        FetchError::Download(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn image(source: Value, status: Value) -> Image {
        serde_json::from_value(json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Image",
            "metadata": {"name": "golden"}, "spec": {"source": source}, "status": status}))
        .expect("an image")
    }

    fn status(ready: &str) -> Value {
        json!({"binding": {"host": "h1", "epoch": 1}, "bytes": 7, "checksum": "ab",
            "download": {"address": "192.0.2.1:7444", "certificateSha256": "0".repeat(64)},
            "conditions": [{"type": "Ready", "status": ready, "reason": "Creating", "message": "it is made",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    }

    #[test]
    fn an_image_without_a_file_to_download_is_refused_with_the_reason() {
        let made = json!({"disk": "d"});
        let found = expected(&image(made.clone(), status("True"))).expect("it is complete");
        assert_eq!(found, Expected { size: 7, digest: "ab".to_owned() });
        let refused = |source: Value, status: Value| {
            expected(&image(source, status)).expect_err("it cannot be downloaded").to_string()
        };
        let waiting = refused(made.clone(), status("False"));
        assert_eq!(waiting, "Image golden is not ready: it is made (Creating)");
        let from_url = refused(json!({"url": "https://a.example/b", "sha256": "ab"}), status("True"));
        assert!(from_url.contains("comes from a URL"), "{from_url}");
        let mut unserved = status("True");
        unserved["download"] = Value::Null;
        let unserved = refused(made.clone(), unserved);
        assert!(
            unserved.contains("host h1 serves no download") && unserved.contains("--no-console"),
            "{unserved}"
        );
        let mut unmeasured = status("True");
        unmeasured["bytes"] = 0.into();
        assert!(refused(made, unmeasured).contains("no size or checksum"));
    }
}
