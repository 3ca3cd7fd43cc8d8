//! The kinds that this agent makes real. Each has a folder with the same four parts: `observe` (the only reader), `plan`
//! (pure), `apply` (the only writer) and `status` (pure).

pub(crate) mod disk;
pub(crate) mod host;
pub(crate) mod hotswap_disk_attachment;
pub(crate) mod image;
pub(crate) mod network;
pub(crate) mod vm;

use crate::context::Context;
use crate::converge::{Requeue, converge};
use crate::error::Error;
use crate::key::Key;
use hotswap_disk_attachment::AttachmentReconciler;
use image::ImageReconciler;

pub(crate) fn span(key: &Key) -> tracing::Span {
    let (kind, name) = match key {
        Key::Network => ("Network", None),
        Key::Host => ("Host", None),
        Key::Disk(name) => ("Disk", Some(name)),
        Key::Vm(name) => ("VM", Some(name)),
        Key::Attachment(name) => ("HotswapDiskAttachment", Some(name)),
        Key::Image(name) => ("Image", Some(name)),
    };
    match name {
        Some(name) => tracing::info_span!("reconcile", kind, namespace = name.namespace, name = name.name),
        None => tracing::info_span!("reconcile", kind),
    }
}

/// Reconciles one object.
pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Result<Requeue, Error> {
    // Objects no longer bound to this host are not in the index and need nothing.
    match key {
        Key::Network => network::reconcile(ctx).await,
        Key::Host => host::reconcile(ctx).await,
        Key::Disk(name) => disk::reconcile(ctx, name).await,
        Key::Vm(name) => vm::reconcile(ctx, name).await,
        Key::Attachment(name) => {
            let found = ctx.index.read().attachments.get(name);
            match found {
                Some(attachment) => converge::<AttachmentReconciler>(ctx, &attachment).await,
                None => Ok(Requeue::OnChange),
            }
        }
        Key::Image(name) => {
            let found = ctx.index.read().images.get(name);
            match found {
                Some(image) => converge::<ImageReconciler>(ctx, &image).await,
                None => Ok(Requeue::OnChange),
            }
        }
    }
}
