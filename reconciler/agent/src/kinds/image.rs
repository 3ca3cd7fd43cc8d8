//! Image: a verified file in this host's cache.
//!
//! This host verifies the image for the whole site; other hosts copy it from here when a disk needs it, at the server in its status, and
//! download one with a URL if the copy fails. The host's housekeeping, not this module, removes unused images. One with a URL that was
//! verified is not downloaded again for its own sake: an object that needs it does that. The controllers hold a deleted Image. One that
//! is made from a disk or a snapshot is made once, and is never made again: its bytes might be others. The bytes of one that is uploaded
//! come from a client (`console`), and are verified as those of a download. One that is a copy of another Image has its checksum, and
//! therefore its file: that is downloaded only if it is not in the cache any more. If that one is of another namespace, and shared with this
//! one, the namespace becomes a reader of the file here.
//!
//! ```text
//!  checksumUrl, trustOnFirstUse ─Pull─▶ status.checksum ─┐
//!  sha256, sha512 ──────────────────────┴─Pull─▶ cached
//!  upload: all bytes are here ────────────Pull─▶ cached
//!  disk ─TakeSnapshot─▶ snapshot ─Pull─▶ cached, status.checksum
//!  image ─(Pull of that one, AddReader)─▶ cached
//!  on another host (local) ─Pull: a copy, or else a download─▶ cached
//! ```

mod apply;
pub(crate) mod local;
mod observe;
mod plan;
mod status;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use berth_api::console::{copy_audience, copy_path};
use berth_api::{
    Architecture, Binding, Conditions, Disk, Image, ImageCompression, ImageFormat, ImageStatus, Readiness,
    Reason, SHARED_NAMESPACE, VM, former_uid, redacted_url,
};
use berth_host::{
    ChecksumSource, Compression, DownloadLimits, Encoding, ImageSource, NewImage, NewSnapshot, SourceHost,
    copy_url, upload_url,
};
use berth_qemu::machine::{self, ForeignFormat, Format};
use jiff::Timestamp;
use kube::ResourceExt;

use observe::Observed;

use crate::context::Context;
use crate::converge::{Plan, Reconciler};
use crate::error::Error;
use crate::hardware::architecture_of;
use crate::index::{Indexed, Table, Tables, boot_image};
use crate::key::{Key, ObjectName};
use crate::pulls::Wanted;
use crate::recorder::EventType;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Takes the snapshot of a disk that the image is made from, or finishes one that was begun.
    TakeSnapshot(NewSnapshot),
    /// Starts the download and verification of the image, or first of its checksum, or makes it from its snapshot; continues in the
    /// background.
    Pull(Wanted),
    /// Has the object enqueued on the progress of a download that another object started.
    FollowPull(Wanted),
    /// Lets the namespace of a copy read the file of its original, which is here and of another namespace that shares it.
    AddReader { digest: String, namespace: String },
}

impl Indexed for Image {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.images
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let uses = |disk: &Disk| disk.spec.image.as_ref().is_some_and(|i| i.as_str() == name.name);
        let disks = tables.disks.all().filter(|(_, disk)| uses(disk));
        let mut keys: Vec<Key> = disks.map(|(name, _)| Key::new::<Disk>(name.clone())).collect();
        let inserts = |vm: &VM| {
            vm.spec.cdroms.iter().any(|c| c.image.as_ref().is_some_and(|i| i.as_str() == name.name))
        };
        let is_booted = |vm_name: &ObjectName, vm: &VM| {
            boot_image(tables, vm_name, vm).as_deref() == Some(name.name.as_str())
        };
        let vms = tables.vms.all().filter(|(vm_name, vm)| inserts(vm) || is_booted(vm_name, vm));
        keys.extend(vms.map(|(name, _)| Key::new::<VM>(name.clone())));
        let copies = tables.images.all().filter(|(_, image)| is_copy_of(image, name));
        keys.extend(copies.map(|(name, _)| Key::new::<Image>(name.clone())));
        keys.extend([Key::new::<Image>(name.clone()), Key::host()]);
        keys
    }
}

#[derive(Debug)]
pub(crate) struct ImageReconciler;

#[async_trait]
impl Reconciler for ImageReconciler {
    type Object = Image;
    type Status = ImageStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, image: &Image) -> Result<Observed, Error> {
        observe::observe(ctx, image).await
    }

    fn plan(image: &Image, observed: &Observed) -> Plan<Step> {
        plan::plan(image, observed)
    }

    async fn apply(ctx: &Context, image: &Image, step: &Step) -> Result<(), Error> {
        apply::apply(ctx, image, step).await
    }

    fn status(image: &Image, observed: &Observed, readiness: &Readiness, now: Timestamp) -> ImageStatus {
        status::status(image, observed, readiness, now)
    }

    fn event(stored: Option<&ImageStatus>, status: &ImageStatus) -> Option<(EventType, Reason, String)> {
        status::event(stored, status)
    }

    fn binding(image: &Image) -> Option<&Binding> {
        image.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &ImageStatus) -> &Conditions {
        &status.conditions
    }
}

/// Whether an image is declared as a copy of the one of this name.
pub(crate) fn is_copy_of(image: &Image, name: &ObjectName) -> bool {
    let original = image.original();
    original
        .is_some_and(|(namespace, original)| namespace == name.namespace && original.as_str() == name.name)
}

/// Returns what this host needs for an Image: on the host that the Image is bound to, as [`wanted_by`]; or else a copy of the file, which
/// is a download from its URL while no host serves it. `None`: it is to be made, and is not yet.
pub(crate) fn wanted_on(host: &str, image: &Image) -> Option<Wanted> {
    match elsewhere(host, image) {
        Some(binding) if image.is_local() => copy_from(&binding.host, image).map(Wanted::Image),
        Some(_) => wanted_by(image).map(|wanted| copied_first(wanted, image)),
        None => wanted_by(image),
    }
}

/// Returns the binding of an image that is bound to another host.
fn elsewhere<'a>(host: &str, image: &'a Image) -> Option<&'a Binding> {
    let binding = image.status.as_ref()?.binding.as_ref()?;
    Some(binding).filter(|binding| binding.host != host)
}

/// Adds the host that has the image to what is downloaded otherwise.
fn copied_first(wanted: Wanted, image: &Image) -> Wanted {
    match wanted {
        Wanted::Image(source) => Wanted::Image(ImageSource { host: source_host(image), ..source }),
        other => other,
    }
}

/// Returns the host that other hosts copy the image from, with the request for its file. `None`: there is none.
fn source_host(image: &Image) -> Option<SourceHost> {
    let (namespace, name, uid) = (image.namespace().unwrap_or_default(), image.name_any(), image.uid()?);
    image.copied_from().map(|(host, server)| SourceHost {
        name: host.to_owned(),
        address: server.address.clone(),
        certificate_sha256: server.certificate_sha256.clone(),
        path: copy_path(&namespace, &name),
        audience: copy_audience(&namespace, &name, &uid),
    })
}

/// Returns the copy of an image from the host that has it; without that host while it serves none.
fn copy_from(host: &str, image: &Image) -> Option<ImageSource> {
    let namespace = image.namespace().unwrap_or_default();
    let (format, encoding) = encoding(image);
    Some(ImageSource {
        shared: namespace == SHARED_NAMESPACE,
        url: copy_url(&image.uid()?),
        shown: format!("the image from host {host}"),
        digest: image.digest()?.to_owned(),
        format,
        encoding,
        secret: None,
        host: source_host(image),
        limits: DownloadLimits::default(),
        namespace,
    })
}

/// Returns what must be downloaded for an Image, or made, on the host that it is bound to. `None`: it is to be made, or is a copy, and is
/// not bound to a host yet.
pub(crate) fn wanted_by(image: &Image) -> Option<Wanted> {
    let namespace = image.namespace().unwrap_or_default();
    if image.spec.source.upload.is_some() {
        return uploaded_to(image, namespace).map(Wanted::Image);
    }
    if let Some(original) = &image.spec.source.image {
        return on_host(image, namespace, format!("the copy of Image {original}")).map(Wanted::Image);
    }
    let Some(url) = image.spec.source.url.clone() else { return made_from(image, namespace) };
    let (secret, limits) = (image.spec.source.secret_name.clone(), limits(image));
    Some(match image.digest() {
        Some(digest) => {
            let (format, encoding) = encoding(image);
            // Only administrators can declare images in the shared namespace, and they declare them for all.
            let (shared, shown) = (namespace == SHARED_NAMESPACE, redacted_url(&url));
            let digest = digest.to_owned();
            let host = None;
            Wanted::Image(ImageSource {
                namespace,
                shared,
                url,
                shown,
                digest,
                format,
                encoding,
                secret,
                host,
                limits,
            })
        }
        None => {
            let at = image.spec.source.checksum_url.clone().unwrap_or_else(|| url.clone());
            let shown = redacted_url(&at);
            let is_computed = image.spec.source.trust_on_first_use;
            Wanted::Checksum(ChecksumSource {
                namespace,
                url: at,
                shown,
                image_url: url,
                secret,
                is_computed,
                architecture: declared_architecture(image),
                limits,
                token: image.status.as_ref().and_then(|status| status.token.clone()),
            })
        }
    })
}

/// Returns the architecture that the image is declared to be of.
fn declared_architecture(image: &Image) -> Option<machine::Architecture> {
    let text = image.spec.os.as_ref()?.architecture.as_deref()?;
    Architecture::of_text(text).map(architecture_of)
}

fn limits(image: &Image) -> DownloadLimits {
    let (timeout, retries) = (image.spec.source.timeout_seconds, image.spec.source.retries);
    let number = |declared: Option<i64>| declared.and_then(|number| u32::try_from(number).ok());
    DownloadLimits { timeout_seconds: number(timeout), retries: number(retries) }
}

/// Returns the upload of an image.
pub(crate) fn uploaded_to(image: &Image, namespace: String) -> Option<ImageSource> {
    image.spec.source.upload?;
    let (format, encoding) = encoding(image);
    Some(ImageSource {
        shared: namespace == SHARED_NAMESPACE,
        namespace,
        url: upload_url(&image.uid()?),
        shown: "the uploaded file".to_owned(),
        digest: image.digest()?.to_owned(),
        format,
        encoding,
        secret: None,
        host: None,
        limits: DownloadLimits::default(),
    })
}

/// Returns what is made, or was made and is on the host that made it.
fn made_from(image: &Image, namespace: String) -> Option<Wanted> {
    let status = image.status.as_ref()?;
    let (kind, name) = image.origin()?;
    if image.digest().is_some() {
        return on_host(image, namespace, format!("the image of {kind} {name}")).map(Wanted::Image);
    }
    Some(Wanted::Made(NewImage {
        namespace,
        uid: image.content_id(&image.uid()?),
        former_uid: former_uid(image).map(|uid| image.content_id(uid)),
        shown: format!("{kind} {name}"),
        pool: status.pool.as_ref()?.to_string(),
        snapshot: status.snapshot_id.clone()?,
    }))
}

/// Returns the file of an image that is made of what the site has. `None`: its checksum is not known yet.
fn on_host(image: &Image, namespace: String, shown: String) -> Option<ImageSource> {
    let (format, encoding) = encoding(image);
    Some(ImageSource {
        shared: namespace == SHARED_NAMESPACE,
        namespace,
        // It is downloaded from nowhere.
        url: String::new(),
        shown,
        digest: image.digest()?.to_owned(),
        format,
        encoding,
        secret: None,
        host: None,
        limits: DownloadLimits::default(),
    })
}

/// Returns the format of the image on a host, and how its bytes are encoded at the source.
fn encoding(image: &Image) -> (Format, Encoding) {
    let (format, foreign) = match image.spec.format {
        ImageFormat::Qcow2 => (Format::Qcow2, None),
        ImageFormat::Raw => (Format::Raw, None),
        ImageFormat::Iso => (Format::Iso, None),
        ImageFormat::Vmdk => (Format::Qcow2, Some(ForeignFormat::Vmdk)),
        ImageFormat::Vdi => (Format::Qcow2, Some(ForeignFormat::Vdi)),
        ImageFormat::Vhdx => (Format::Qcow2, Some(ForeignFormat::Vhdx)),
        ImageFormat::Vhd => (Format::Qcow2, Some(ForeignFormat::Vhd)),
        ImageFormat::Ova => (Format::Qcow2, Some(ForeignFormat::Vmdk)),
    };
    let ova = (image.spec.format == ImageFormat::Ova).then(|| image.ova_number());
    let declared = image.spec.compression.map(|compression| match compression {
        ImageCompression::Gzip => Compression::Gzip,
        ImageCompression::Xz => Compression::Xz,
        ImageCompression::Zstd => Compression::Zstd,
        ImageCompression::Bzip2 => Compression::Bzip2,
    });
    let layer = image.status.as_ref().and_then(|status| status.media_type.as_deref());
    let (compression, archive) = layer.map_or((declared, false), of_layer);
    (format, Encoding { compression, archive, ova, foreign })
}

/// Reads the encoding of a layer from its media type (OCI Image Specification, and Docker's before it).
fn of_layer(media_type: &str) -> (Option<Compression>, bool) {
    let (rest, compression) = match media_type.rsplit_once(['+', '.']) {
        Some((rest, "gzip")) => (rest, Some(Compression::Gzip)),
        Some((rest, "zstd")) => (rest, Some(Compression::Zstd)),
        _ => (media_type, None),
    };
    (compression, rest.ends_with(".tar"))
}
