//! The Image that is made of a Disk or a DiskSnapshot for a download.
//!
//! Its name follows from the object's uid and from the identity that is kept beside the file, so that an interrupted download finds it
//! again, and another one does not.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use berth_agent::TypedApi;
use berth_api::{
    Disk, DiskSnapshot, Image, ImageFormat, ImageSource, ImageSpec, condition,
    image_download::{DOWNLOAD_LABEL, image_name},
};
use berth_console_client::{Awaited, Seen};
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use tokio::time::{Instant, sleep, timeout};

use super::Site;
use crate::{
    cli::OriginDownloadOptions,
    requests::{has_code, is_outage},
};

const PAUSE: Duration = Duration::from_millis(500);
/// How long the deletion of an Image is waited for.
const GONE: Duration = Duration::from_secs(60);
/// How long the control plane may give no answer while an Image is waited for.
const PATIENCE: Duration = Duration::from_secs(90);

/// The kind of the object whose data is downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OriginKind {
    Disk,
    Snapshot,
}

impl OriginKind {
    /// Its name, in messages and in the label of the Image.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Snapshot => "snapshot",
        }
    }

    fn source(self, name: &str) -> ImageSource {
        let name = Some(name.into());
        match self {
            Self::Disk => ImageSource { disk: name, ..ImageSource::default() },
            Self::Snapshot => ImageSource { snapshot: name, ..ImageSource::default() },
        }
    }

    /// Returns the uid of the object.
    ///
    /// *Errors:* there is no such object.
    pub(super) async fn uid(self, site: &Site, name: &str) -> anyhow::Result<String> {
        let namespace = &site.namespace;
        let uid = match self {
            Self::Disk => {
                let disks: TypedApi<Disk> = TypedApi::namespaced(site.client.clone(), namespace);
                disks.get_opt(name).await.map(|found| found.and_then(|disk| disk.uid()))
            }
            Self::Snapshot => {
                let snapshots: TypedApi<DiskSnapshot> = TypedApi::namespaced(site.client.clone(), namespace);
                snapshots.get_opt(name).await.map(|found| found.and_then(|snapshot| snapshot.uid()))
            }
        };
        let uid = uid.with_context(|| format!("reading {} {namespace}/{name}", self.word()))?;
        uid.with_context(|| format!("there is no {} {name} in namespace {namespace} (see -n)", self.word()))
    }
}

/// The object whose data is downloaded, and the name of the Image for it.
pub(super) struct Origin<'a> {
    kind: OriginKind,
    name: &'a str,
    image: String,
}

impl<'a> Origin<'a> {
    /// The object with this uid, for the download with this identity.
    pub(super) fn new(kind: OriginKind, name: &'a str, uid: &str, id: &str) -> Self {
        Self { kind, name, image: image_name(uid, id) }
    }

    fn wanted(&self) -> Image {
        let spec = ImageSpec {
            source: self.kind.source(self.name),
            format: ImageFormat::Qcow2,
            ..ImageSpec::default()
        };
        let mut wanted = Image::new(&self.image, spec);
        wanted.labels_mut().insert(DOWNLOAD_LABEL.to_owned(), self.kind.word().to_owned());
        wanted
    }

    /// Refuses an Image that was made for something else: it is neither used nor deleted.
    fn check(&self, found: &Image) -> anyhow::Result<()> {
        let wanted = self.wanted();
        let is_same = found.labels().get(DOWNLOAD_LABEL) == wanted.labels().get(DOWNLOAD_LABEL)
            && found.spec.source == wanted.spec.source
            && found.spec.format == wanted.spec.format;
        if !is_same {
            let (image, kind, name) = (&self.image, self.kind.word(), self.name);
            bail!("Image {image} was not made for a download of {kind} {name}: delete it first");
        }
        Ok(())
    }
}

/// Has the Image made, or finds that of an interrupted download, and waits until it is ready.
///
/// *Errors:* its host cannot make the Image or serves no downloads, and the Image is deleted then; the time is over, and it stays.
pub(super) async fn made(
    site: &Site,
    origin: &Origin<'_>,
    options: &OriginDownloadOptions,
) -> anyhow::Result<Image> {
    let image = origin.image.as_str();
    if let Some(found) = find(site, image).await? {
        origin.check(&found)?;
        if options.anew || found.metadata.deletion_timestamp.is_some() {
            delete_and_wait(site, &found).await?;
        }
    }
    let declared = declare(site, origin).await?;
    let awaited = Awaited::verified(Instant::now() + options.timeout.0);
    let (mut shown, mut answered) = (String::new(), Instant::now());
    loop {
        let found = match find(site, image).await {
            Err(error) if is_outage(&error) && answered.elapsed() < PATIENCE => {
                sleep(PAUSE).await;
                continue;
            }
            found => found.with_context(|| stays(site, image))?,
        };
        answered = Instant::now();
        let found = found.filter(|found| found.uid() == declared.uid());
        let found = found.with_context(|| format!("Image {image} was deleted meanwhile"))?;
        match awaited.look(&found) {
            Ok(Seen::Ready) => return served(site, found).await,
            Ok(_) => {
                let now = progress(&found);
                if now != shown {
                    notice!("{now}");
                    shown = now;
                }
                sleep(PAUSE).await;
            }
            Err(why) => return Err(failed(site, origin, &found, &why).await),
        }
    }
}

/// Returns an Image whose host serves downloads, and deletes any other: its copy of the data is of no use.
async fn served(site: &Site, image: Image) -> anyhow::Result<Image> {
    let status = image.status.as_ref();
    if status.is_some_and(|status| status.download.is_some()) {
        return Ok(image);
    }
    let binding = status.and_then(|status| status.binding.as_ref());
    let host = binding.map_or_else(|| "?".to_owned(), |binding| binding.host.clone());
    discard(site, &image).await;
    bail!("host {host} serves no downloads: its agent is older than this command, or runs with --no-console")
}

/// Deletes an Image that its host cannot make: the next attempt could not use it.
async fn failed(site: &Site, origin: &Origin<'_>, image: &Image, why: &str) -> anyhow::Error {
    let (kind, name) = (origin.kind.word(), origin.name);
    let conditions = image.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    if condition::find(conditions, "Stalled").is_some_and(|stalled| stalled.status == "True") {
        discard(site, image).await;
        return anyhow!("the host of {kind} {name} cannot make an Image of it: {why}");
    }
    anyhow!("no Image of {kind} {name}: {why}").context(stays(site, &origin.image))
}

/// The Image that is left after an error, for people.
pub(super) fn stays(site: &Site, image: &str) -> String {
    let namespace = &site.namespace;
    format!(
        "Image {image} stays, and the same command continues with it; to give up: kubectl delete image {image} -n {namespace}"
    )
}

/// Returns how far its host is, for people.
fn progress(image: &Image) -> String {
    let conditions = image.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = condition::find(conditions, "Ready");
    ready.map(|ready| format!("{} ({})", ready.message, ready.reason)).unwrap_or_default()
}

async fn find(site: &Site, image: &str) -> anyhow::Result<Option<Image>> {
    site.images.get_opt(image).await.with_context(|| format!("reading Image {image}"))
}

async fn declare(site: &Site, origin: &Origin<'_>) -> anyhow::Result<Image> {
    let (image, kind, name) = (&origin.image, origin.kind.word(), origin.name);
    let created = site.images.create(&PostParams::default(), &origin.wanted()).await;
    match created {
        Err(error) if has_code(&error, 409) => {}
        made => {
            let made = made.with_context(|| format!("creating Image {image} of {kind} {name}"))?;
            notice!("the host of {kind}/{name} makes Image {image}");
            return Ok(made);
        }
    }
    let found = find(site, image).await?.with_context(|| format!("Image {image} was deleted meanwhile"))?;
    origin.check(&found)?;
    let begun = found.creation_timestamp().map(|at| at.0.to_string()).unwrap_or_default();
    notice!("continuing with Image {image} of {begun}; --anew begins with the data of now");
    Ok(found)
}

/// Has the Image deleted, with its file if nothing was made from it. An Image of its name that came later stays.
async fn delete(site: &Site, image: &Image) -> anyhow::Result<()> {
    let name = image.name_any();
    let preconditions = Preconditions { uid: image.uid(), resource_version: None };
    let params = DeleteParams::default().preconditions(preconditions);
    match site.images.delete(&name, &params).await {
        Err(error) if has_code(&error, 404) || has_code(&error, 409) => Ok(()),
        deleted => deleted.with_context(|| format!("deleting Image {name}")),
    }
}

/// As [`delete`], and waits until its name is free.
async fn delete_and_wait(site: &Site, image: &Image) -> anyhow::Result<()> {
    delete(site, image).await?;
    let name = image.name_any();
    let gone = async {
        while find(site, &name).await?.is_some_and(|found| found.uid() == image.uid()) {
            sleep(PAUSE).await;
        }
        Ok::<_, anyhow::Error>(())
    };
    match timeout(GONE, gone).await {
        Ok(gone) => gone,
        Err(_) => bail!("Image {name} is being deleted, and is not gone after {} seconds", GONE.as_secs()),
    }
}

/// As [`delete`]; an error is shown and no more: the outcome of the command is another one.
pub(super) async fn discard(site: &Site, image: &Image) {
    if let Err(error) = delete(site, image).await {
        let (name, namespace) = (image.name_any(), &site.namespace);
        notice!("warning: {error:#}; delete it: kubectl delete image {name} -n {namespace}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_a_download_is_of_one_object_and_is_found_by_its_label() {
        let image = Origin::new(OriginKind::Disk, "db", "u1", "0a").wanted();
        assert_eq!(image.name_any(), "download-u1-0a");
        assert_eq!(
            image.origin().map(|(kind, name)| (kind, name.to_string())),
            Some(("Disk", "db".to_owned()))
        );
        assert_eq!(image.labels().get(DOWNLOAD_LABEL).map(String::as_str), Some("disk"));
        assert!(image.is_copyable(), "its file has the bytes that its checksum is of");
        let other = Origin::new(OriginKind::Snapshot, "db", "u2", "0a").wanted();
        assert_eq!(other.origin().map(|(kind, _)| kind), Some("DiskSnapshot"));
        assert!(other.spec.source != image.spec.source);
    }

    #[test]
    fn an_image_that_was_made_for_something_else_is_refused() {
        let origin = Origin::new(OriginKind::Disk, "db", "u1", "0a");
        assert!(origin.check(&origin.wanted()).is_ok());
        let mut of_a_user = origin.wanted();
        of_a_user.labels_mut().clear();
        let mut of_snapshots = origin.wanted();
        of_snapshots.labels_mut().insert(DOWNLOAD_LABEL.to_owned(), "snapshot".to_owned());
        let mut of_another_disk = origin.wanted();
        of_another_disk.spec.source = OriginKind::Disk.source("other");
        let mut raw = origin.wanted();
        raw.spec.format = ImageFormat::Raw;
        for other in [of_a_user, of_snapshots, of_another_disk, raw] {
            let refused = origin.check(&other).expect_err("another").to_string();
            assert!(refused.contains("was not made for a download of disk db"), "{refused}");
        }
    }
}
