//! A copy of the file of an image to another host, once the host's ticket is accepted: see [`berth_api::image_copy`].
//!
//! ```text
//!  ticket of the host's account ─▶ the control plane: it needs the image ─▶ the image is complete here ─▶ its bytes
//! ```
//!
//! The image is bound here, or it has a URL, was verified, and this host has its file too.
//!
//! A host needs an image while a Disk without a file, a VM with the image in a drive, or a copy of the image is bound to it, also one in
//! another namespace that the image is shared with. The bindings
//! are read from the control plane for each request: hosts cannot change them, and the word of the host that asks counts for nothing.

use std::sync::Arc;
use std::time::Duration;

use berth_api::console::{copy_audience, further_copy_audience};
use berth_api::image_copy::{CopyMessage, of_query};
use berth_api::{Disk, Image, JsonKind, SHARED_NAMESPACE, VM};
use berth_host::ImageFile;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::places::Place;
use super::refusal::ConsoleRefusal;
use super::session::write;
use super::{COPIES, COPIES_OF_HOST, Consoles, STALLED};
use crate::context::Context;
use crate::key::ObjectName;
use crate::kinds::image::{is_copy_of, wanted_by};
use crate::pulls::Wanted;
use crate::typed_api::TypedApi;

/// The bytes that are sent at a time.
const BLOCK: usize = 1 << 20;
/// The time for the host to take so many.
const BLOCK_TIME: Duration = Duration::from_secs(60);

/// A copy to send.
pub(super) struct FileCopy {
    ctx: Arc<Context>,
    name: ObjectName,
    uid: String,
    /// The host that copies.
    host: String,
    file: ImageFile,
    offset: u64,
    _place: Place<String>,
}

impl FileCopy {
    /// Verifies the ticket for a copy and opens the file.
    ///
    /// *Errors*: the ticket is not that of the host in the query and for this image; the host does not need the image; the image is
    /// not complete here.
    pub(super) async fn open(
        ctx: &Arc<Context>,
        consoles: &Consoles,
        name: ObjectName,
        query: Option<&str>,
        ticket: &str,
    ) -> Result<Self, ConsoleRefusal> {
        let (host, offset) = query.and_then(of_query).ok_or(ConsoleRefusal::NoCopyQuery)?;
        let image = ctx.index.read().images.get(&name);
        // Only a ticket's holder learns which images are here.
        let uid = image.as_ref().and_then(|image| image.metadata.uid.clone()).unwrap_or_default();
        let audience = copy_audience(&name.namespace, &name.name, &uid);
        let audience = match image.as_deref().is_some_and(|image| is_bound_to(image, ctx.host())) {
            true => audience,
            // Others that serve the image cannot use the tickets that they get.
            false => further_copy_audience(&audience, ctx.host()),
        };
        consoles.tickets.redeem_of_host(&ctx.client, ctx.now(), ticket, host, audience).await?;
        if !is_needed(ctx, host, &name).await? {
            return Err(ConsoleRefusal::NotNeeded { host: host.to_owned() });
        }
        let place = consoles.copies.take(host.to_owned()).ok_or_else(|| ConsoleRefusal::TooManyCopies {
            host: host.to_owned(),
            most: COPIES,
            most_of_host: COPIES_OF_HOST,
        })?;
        let image = image.filter(|_| is_served(ctx, &name, &uid)).ok_or(ConsoleRefusal::NoImage)?;
        let file = opened(ctx, &image, offset).await?.ok_or(ConsoleRefusal::NoImage)?;
        tracing::info!(
            namespace = name.namespace,
            image = name.name,
            host,
            offset,
            "copy of an image opened"
        );
        Ok(Self { ctx: ctx.clone(), name, uid, host: host.to_owned(), file, offset, _place: place })
    }

    /// Sends the file to its end.
    pub(super) async fn run(mut self, stream: TokioIo<Upgraded>) {
        let (_, mut to_host) = tokio::io::split(stream);
        if let Err(detail) = self.send(&mut to_host).await {
            tracing::info!(image = %self.name.name, host = %self.host, detail, "a copy of an image ended early");
        }
        let _ = timeout(STALLED, to_host.shutdown()).await;
    }

    async fn send(&mut self, to_host: &mut (impl AsyncWrite + Unpin)) -> Result<(), String> {
        let (ctx, name, uid) = (&self.ctx, &self.name, &self.uid);
        send_file(&mut self.file, self.offset, || is_served(ctx, name, uid), to_host).await
    }
}

/// Sends the size of a file in a line, and the bytes from the offset that it was opened at to its end, for as long as they may be sent. The
/// error is for people.
pub(super) async fn send_file(
    file: &mut ImageFile,
    offset: u64,
    is_served: impl Fn() -> bool,
    to_client: &mut (impl AsyncWrite + Unpin),
) -> Result<(), String> {
    let mut line = serde_json::to_vec(&CopyMessage::Size(file.size)).expect("our own types are plain JSON");
    line.push(b'\n');
    write(to_client, &line).await.map_err(|error| error.to_string())?;
    let mut block = Vec::with_capacity(BLOCK);
    // It ends with the last byte: the client, which has all then, may be gone before the end of the file is read.
    let mut left = file.size.saturating_sub(offset);
    while left > 0 {
        block.clear();
        let most = left.min(u64::try_from(BLOCK).unwrap_or(u64::MAX));
        let read = (&mut file.bytes).take(most).read_to_end(&mut block).await;
        let read = read.map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("its file is shorter than it was".to_owned());
        }
        left = left.saturating_sub(read as u64);
        if !is_served() {
            return Err(
                "the image was deleted, or other hosts do not copy it from this one any more".to_owned()
            );
        }
        let sent = timeout(BLOCK_TIME, to_client.write_all(&block)).await;
        sent.map_err(|_| "less than 1 MiB was taken in a minute".to_owned())?
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Whether the image of this uid still exists, and other hosts may copy its file from this one: that it is bound to, or one that has the file
/// of a verified image with a URL. A deleted one is copied too: it stays for the disks that need it.
fn is_served(ctx: &Context, name: &ObjectName, uid: &str) -> bool {
    let image = ctx.index.read().images.get(name);
    image.as_deref().is_some_and(|image| {
        // Before that, a checksum proves no access to the bytes that it is of.
        let is_verified = image.status.as_ref().is_some_and(|status| status.virtual_size.is_some());
        let is_here = is_bound_to(image, ctx.host()) || (is_verified && !image.is_local());
        image.metadata.uid.as_deref() == Some(uid) && is_here && image.is_copyable()
    })
}

/// Whether the image of this uid still exists, is not being deleted, and is bound here.
pub(super) fn is_bound_here(ctx: &Context, name: &ObjectName, uid: &str) -> bool {
    let image = ctx.index.read().images.get(name);
    image.as_deref().is_some_and(|image| {
        image.metadata.uid.as_deref() == Some(uid)
            && image.metadata.deletion_timestamp.is_none()
            && is_bound_to(image, ctx.host())
    })
}

fn is_bound_to(image: &Image, host: &str) -> bool {
    let binding = image.status.as_ref().and_then(|status| status.binding.as_ref());
    binding.is_some_and(|binding| binding.host == host)
}

/// Opens the file of an image from this offset on. `None`: it is not complete here.
pub(super) async fn opened(
    ctx: &Context,
    image: &Image,
    offset: u64,
) -> Result<Option<ImageFile>, ConsoleRefusal> {
    match wanted_by(image) {
        Some(Wanted::Image(source)) => Ok(ctx.system.open_image(&source, offset).await?),
        _ => Ok(None),
    }
}

/// Whether an object that is bound to this host needs the image.
async fn is_needed(ctx: &Context, host: &str, image: &ObjectName) -> Result<bool, ConsoleRefusal> {
    let disks = bound::<Disk>(ctx, host, image).await?;
    let is_named = |namespace: Option<String>, name: &str| {
        let found = ctx.index.read().images.find(&namespace.unwrap_or_default(), name);
        name == image.name && found.is_some_and(|found| ObjectName::of(found.as_ref()) == *image)
    };
    let lacks_file = |disk: &&Disk| {
        // A disk whose data is on the host that its VM has left has no file there yet.
        let has_none =
            disk.status.as_ref().is_some_and(|status| status.size.is_none() || status.former_host.is_some());
        has_none && disk.metadata.deletion_timestamp.is_none()
    };
    let mut without_file = disks.iter().filter(lacks_file);
    let names =
        |disk: &Disk| disk.spec.image.as_ref().is_some_and(|name| is_named(disk.namespace(), name.as_str()));
    if without_file.any(names) {
        return Ok(true);
    }
    let vms = bound::<VM>(ctx, host, image).await?;
    let inserts = |vm: &VM| {
        vm.spec
            .cdroms
            .iter()
            .filter_map(|drive| drive.wanted_image())
            .any(|name| is_named(vm.namespace(), name))
    };
    if vms.iter().any(inserts) {
        return Ok(true);
    }
    let original = ctx.index.read().images.get(image);
    let Some(original) = original else { return Ok(false) };
    let is_shared = image.namespace == SHARED_NAMESPACE || !original.spec.shared_with.is_empty();
    let copies = bound_in::<Image>(ctx, host, image, is_shared).await?;
    let is_copy = |copy: &Image| {
        is_copy_of(copy, image) && original.is_shared_with(&copy.namespace().unwrap_or_default())
    };
    Ok(copies.iter().any(is_copy))
}

/// Lists the objects of a kind that are bound to a host and may name an image.
async fn bound<K>(ctx: &Context, host: &str, image: &ObjectName) -> Result<Vec<K>, ConsoleRefusal>
where
    K: JsonKind + Resource<Scope = NamespaceResourceScope>,
{
    bound_in(ctx, host, image, image.namespace == SHARED_NAMESPACE).await
}

/// Lists the objects of a kind that are bound to a host, of all namespaces or of that of the image.
async fn bound_in<K>(
    ctx: &Context,
    host: &str,
    image: &ObjectName,
    everywhere: bool,
) -> Result<Vec<K>, ConsoleRefusal>
where
    K: JsonKind + Resource<Scope = NamespaceResourceScope>,
{
    let objects: TypedApi<K> = match everywhere {
        true => TypedApi::all(ctx.client.clone()),
        false => TypedApi::namespaced(ctx.client.clone(), &image.namespace),
    };
    let here = ListParams::default().fields(&format!("status.binding.host={host}"));
    let list = objects.list(&here).await.map(|list| list.items);
    list.map_err(|error| ConsoleRefusal::CannotReadNeeds { detail: error.to_string() })
}
