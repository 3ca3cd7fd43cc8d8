//! The Image that is made of a Disk or a DiskSnapshot for a download.
//!
//! Its name follows from the object's uid, so that an interrupted download finds it again.

use std::time::Duration;

use anyhow::{Context, bail};
use berth_api::{
    Disk, DiskSnapshot, Image, ImageFormat, ImageSource, ImageSpec, condition,
    image_download::{DOWNLOAD_LABEL, image_name},
};
use berth_console_client::{Awaited, Seen};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use tokio::time::{Instant, sleep, timeout};

use super::Site;
use crate::{cli::OriginDownloadOptions, requests::has_code};

const PAUSE: Duration = Duration::from_millis(500);
/// How long the deletion of an Image is waited for.
const GONE: Duration = Duration::from_secs(60);

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
    async fn uid(self, site: &Site, name: &str) -> anyhow::Result<String> {
        let namespace = &site.namespace;
        let uid = match self {
            Self::Disk => {
                let disks: Api<Disk> = Api::namespaced(site.client.clone(), namespace);
                disks.get_opt(name).await.map(|found| found.and_then(|disk| disk.uid()))
            }
            Self::Snapshot => {
                let snapshots: Api<DiskSnapshot> = Api::namespaced(site.client.clone(), namespace);
                snapshots.get_opt(name).await.map(|found| found.and_then(|snapshot| snapshot.uid()))
            }
        };
        let uid = uid.with_context(|| format!("reading {} {namespace}/{name}", self.word()))?;
        uid.with_context(|| format!("there is no {} {name} in namespace {namespace} (see -n)", self.word()))
    }
}

/// Has the Image made, or finds that of an interrupted download, and waits until it is ready.
///
/// *Errors:* there is no such object; its host cannot make the Image, which is deleted then.
pub(super) async fn made(
    site: &Site,
    kind: OriginKind,
    options: &OriginDownloadOptions,
) -> anyhow::Result<Image> {
    let name = &options.download.name;
    let image = image_name(&kind.uid(site, name).await?);
    if let Some(found) = find(site, &image).await?.filter(|found| options.anew || is_going(found)) {
        delete(site, &found).await?;
    }
    let declared = declare(site, kind, name, &image).await?;
    let awaited = Awaited::verified(Instant::now() + options.timeout.0);
    let mut shown = String::new();
    loop {
        let found = find(site, &image).await?.filter(|found| found.uid() == declared.uid());
        let found = found.with_context(|| format!("Image {image} was deleted meanwhile"))?;
        match awaited.look(&found) {
            Ok(Seen::Ready) => return Ok(found),
            Ok(_) => {
                let now = progress(&found);
                if now != shown {
                    eprintln!("{now}");
                    shown = now;
                }
                sleep(PAUSE).await;
            }
            Err(why) => {
                // Nothing was made that the next attempt could use.
                delete(site, &found).await?;
                bail!("the host of {} {name} cannot make an Image of it: {why}", kind.word());
            }
        }
    }
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

fn is_going(image: &Image) -> bool {
    image.metadata.deletion_timestamp.is_some()
}

async fn declare(site: &Site, kind: OriginKind, name: &str, image: &str) -> anyhow::Result<Image> {
    let wanted = wanted(kind, name, image);
    let created = site.images.create(&PostParams::default(), &wanted).await;
    match created {
        Err(error) if has_code(&error, 409) => {}
        made => {
            let made = made.with_context(|| format!("creating Image {image} of {} {name}", kind.word()))?;
            eprintln!("the host of {}/{name} makes Image {image}", kind.word());
            return Ok(made);
        }
    }
    let found = find(site, image).await?.with_context(|| format!("Image {image} was deleted meanwhile"))?;
    if found.spec.source != wanted.spec.source {
        bail!("Image {image} is not of {} {name}: delete it first", kind.word());
    }
    let begun = found.creation_timestamp().map(|at| at.0.to_string()).unwrap_or_default();
    eprintln!("continuing with Image {image} of {begun}; --anew begins with the data of now");
    Ok(found)
}

fn wanted(kind: OriginKind, name: &str, image: &str) -> Image {
    let spec = ImageSpec {
        source: kind.source(name),
        format: ImageFormat::Qcow2,
        compression: None,
        deletion_protection: false,
    };
    let mut wanted = Image::new(image, spec);
    wanted.labels_mut().insert(DOWNLOAD_LABEL.to_owned(), kind.word().to_owned());
    wanted
}

/// Deletes the Image, and waits until it is gone, with its file if nothing was made from it.
pub(super) async fn delete(site: &Site, image: &Image) -> anyhow::Result<()> {
    let name = image.name_any();
    let preconditions = Preconditions { uid: image.uid(), resource_version: None };
    let params = DeleteParams::default().preconditions(preconditions);
    match site.images.delete(&name, &params).await {
        Err(error) if has_code(&error, 404) || has_code(&error, 409) => return Ok(()),
        deleted => drop(deleted.with_context(|| format!("deleting Image {name}"))?),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_a_download_is_of_one_object_and_is_found_by_its_label() {
        let image = wanted(OriginKind::Disk, "db", "download-u1");
        assert_eq!(
            image.origin().map(|(kind, name)| (kind, name.to_string())),
            Some(("Disk", "db".to_owned()))
        );
        assert_eq!(image.labels().get(DOWNLOAD_LABEL).map(String::as_str), Some("disk"));
        assert!(image.is_copyable(), "its file has the bytes that its checksum is of");
        let other = wanted(OriginKind::Snapshot, "db", "download-u2");
        assert_eq!(other.origin().map(|(kind, _)| kind), Some("DiskSnapshot"));
        assert!(other.spec.source != image.spec.source);
    }
}
