//! Observation of an image.

use berth_api::vm::ConsoleAddress;
use berth_api::{Disk, DiskSnapshot, Image, Readiness, Reason, ResourceName, former_uid};
use berth_host::{ImageFacts, ImageSource, ResolvedImage, SnapshotFacts, SystemError};
use kube::ResourceExt;

use super::local::{self, LocalImage};
use super::wanted_by;
use crate::context::Context;
use crate::error::{Error, is_stalled, reason_of};
use crate::index::{left_on, volume_of};
use crate::key::{Key, ObjectName};
use crate::pulls::{Pull, Wanted};

/// Everything an image's plan is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) cached: Option<ImageFacts>,
    pub(crate) pull: Option<Pull>,
    /// The snapshot that it is made from. Only observed until it is made.
    pub(crate) snapshot: Option<SnapshotFacts>,
    /// Its upload. Only observed while the file is not in the cache and not being verified.
    pub(crate) upload: Option<Upload>,
    /// The image that it is a copy of: `Missing` also if that one has other content by now, or is of another namespace that does not share
    /// it. Only observed while the file is not in the cache.
    pub(crate) original: Option<LocalImage>,
    /// Whether the volume that this snapshot is to be taken of is there. Only observed until it is taken.
    pub(crate) has_volume: bool,
    /// The reason if the file of the snapshot, or of the volume that it is to be taken of, is gone from this host.
    pub(crate) lost: Option<Reason>,
    /// Whether the snapshot, or the volume that it is to be taken of, is encrypted.
    pub(crate) is_encrypted: bool,
    /// The server that other hosts copy it from. `None`: it is not in the cache, its file has other bytes than its checksum is of, or this
    /// host has no server.
    pub(crate) server: Option<ConsoleAddress>,
    /// The server that clients download it from. `None`: as for other hosts, and if it has a URL; but a server on a loopback address has
    /// clients too.
    pub(crate) download: Option<ConsoleAddress>,
}

/// The upload of an image.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Upload {
    /// The number of bytes that are here.
    pub(crate) bytes: u64,
    /// Why this host cannot take the rest.
    pub(crate) obstacle: Option<Readiness>,
    /// The server that takes it. `None`: this host has none.
    pub(crate) server: Option<ConsoleAddress>,
}

pub(super) async fn observe(ctx: &Context, image: &Image) -> Result<Observed, Error> {
    let Some(wanted) = wanted_by(image) else { return Ok(Observed::default()) };
    let pull = || ctx.pulls.state(&wanted, &Key::of(image));
    match &wanted {
        Wanted::Image(source) => {
            let cached = ctx.system.image(source).await?;
            let pull = if cached.is_some() { None } else { pull() };
            let is_awaited = cached.is_none() && !matches!(pull, Some(Pull::Running { .. }));
            let upload = match image.spec.source.upload.filter(|_| is_awaited) {
                Some(upload) => Some(observe_upload(ctx, source, upload.size).await?),
                None => None,
            };
            let original = match image.original().filter(|_| cached.is_none()) {
                Some((namespace, name)) => {
                    Some(observe_original(ctx, image, namespace, name.as_str()).await?)
                }
                None => None,
            };
            let own = ctx.config.console.as_ref().filter(|_| cached.is_some() && image.is_copyable());
            let server = own.filter(|own| own.is_for_hosts).map(|own| own.published());
            let download = own.filter(|_| image.is_local()).map(|own| own.published());
            Ok(Observed { cached, pull, upload, original, server, download, ..Observed::default() })
        }
        Wanted::Checksum(_) => Ok(Observed { pull: pull(), ..Observed::default() }),
        Wanted::Made(new) => {
            if let Some(digest) = made(ctx, image).await? {
                // Before a crash, or before its status was lost.
                let found = Pull::Found(ResolvedImage { digest, media_type: None });
                return Ok(Observed { pull: Some(found), ..Observed::default() });
            }
            if !is_shared(ctx, image) {
                return Ok(Observed { pull: pull(), ..Observed::default() });
            }
            let (snapshot, lost) = match ctx.system.snapshot(&new.pool, &new.snapshot).await {
                Err(SystemError::SnapshotLost { .. }) => (None, Some(Reason::SnapshotLost)),
                found => (found?, None),
            };
            let is_taken = snapshot.as_ref().is_some_and(|found| found.taken.is_some());
            let volume = image.status.as_ref().and_then(|status| status.volume_id.as_deref());
            let volume = match volume.filter(|volume| !is_taken && lost.is_none() && has_data(ctx, volume)) {
                Some(volume) => match ctx.system.volume(&new.pool, volume).await {
                    Err(SystemError::VolumeLost { .. }) => Err(Reason::DiskLost),
                    found => Ok(found?),
                },
                None => Ok(None),
            };
            let lost = lost.or(volume.as_ref().err().copied());
            let volume = volume.unwrap_or_default();
            let of_snapshot = snapshot.as_ref().and_then(|found| found.encryption.as_ref());
            let key = of_snapshot.or_else(|| volume.as_ref()?.encryption.as_ref());
            Ok(Observed {
                pull: pull(),
                is_encrypted: key.is_some(),
                has_volume: volume.is_some(),
                lost,
                snapshot,
                ..Observed::default()
            })
        }
        // Of no image.
        _ => Ok(Observed::default()),
    }
}

/// Whether this host has the data of the Disk with a volume: a file that is here may be an earlier one, or one that another host copies.
fn has_data(ctx: &Context, volume: &str) -> bool {
    let tables = ctx.index.read();
    let mut disks = tables.disks.all().map(|(_, disk)| disk);
    disks.any(|disk| volume_of(disk) == Some(volume) && left_on(disk, ctx.host()).is_none())
}

async fn observe_upload(ctx: &Context, source: &ImageSource, size: i64) -> Result<Upload, Error> {
    let server = ctx.config.console.as_ref().map(|server| server.published());
    match ctx.system.uploaded(source, u64::try_from(size).unwrap_or_default()).await {
        Ok(bytes) => Ok(Upload { bytes, obstacle: None, server }),
        Err(error @ (SystemError::NoSpace { .. } | SystemError::ImageTooLarge { .. })) => {
            let readiness = match is_stalled(&error) {
                true => Readiness::Stalled(reason_of(&error), error.chain()),
                false => Readiness::Reconciling(reason_of(&error), error.chain()),
            };
            Ok(Upload { bytes: 0, obstacle: Some(readiness), server: None })
        }
        Err(error) => Err(error.into()),
    }
}

async fn observe_original(
    ctx: &Context,
    image: &Image,
    namespace: &str,
    name: &str,
) -> Result<LocalImage, Error> {
    let found = ctx.index.read().images.get(&ObjectName::new(namespace, name));
    // The host looks at the grant itself: it does not depend on what another one, or the controllers, have written for the copy.
    if found.is_none_or(|original| !is_given_to(&original, image)) {
        return Ok(LocalImage::Missing);
    }
    local::observe(ctx, namespace, name, &Key::of(image)).await
}

/// Whether the disk or the snapshot that an image is made from is of its namespace, or shared with it. The host looks at the grant itself.
fn is_shared(ctx: &Context, image: &Image) -> bool {
    let Some(namespace) = image.foreign_data() else { return true };
    let (source, index) = (&image.spec.source, ctx.index.read());
    let name = |name: &ResourceName| ObjectName::new(namespace, name.as_str());
    let disk = source.disk.as_ref().and_then(|disk| index.disks.get(&name(disk)));
    let snapshot = source.snapshot.as_ref().and_then(|snapshot| index.disk_snapshots.get(&name(snapshot)));
    is_granted(image, disk.as_deref(), snapshot.as_deref())
}

/// Whether one of the objects that an image of another namespace is made from is shared with its namespace.
pub(super) fn is_granted(image: &Image, disk: Option<&Disk>, snapshot: Option<&DiskSnapshot>) -> bool {
    let own = image.metadata.namespace.as_deref().unwrap_or_default();
    disk.is_some_and(|disk| disk.is_shared_with(own))
        || snapshot.is_some_and(|snapshot| snapshot.is_shared_with(own))
}

/// Whether a copy may have the content of this image, and has its checksum.
pub(super) fn is_given_to(original: &Image, copy: &Image) -> bool {
    original.digest() == copy.digest()
        && original.is_shared_with(copy.metadata.namespace.as_deref().unwrap_or_default())
}

/// Returns the digest of the image that was made for this object.
async fn made(ctx: &Context, image: &Image) -> Result<Option<String>, Error> {
    let uids = image.uid().into_iter().chain(former_uid(image).map(str::to_owned));
    let uids: Vec<String> = uids.map(|uid| image.content_id(&uid)).collect();
    let images = ctx.system.images().await?;
    let found = images.into_iter().find(|facts| uids.iter().any(|uid| facts.made_for.contains(uid)));
    Ok(found.map(|facts| facts.digest))
}
