//! HotswapDiskAttachment: a disk plugged into a running machine.
//!
//! ```text
//!               VM runs, disk is ours            deleted: guest asked, nothing mounted (or force)
//!  Requested ───────── Plug ─────────▶ Attached ─────────────── Unplug ───────────────▶ Released ─Release─▶ (gone)
//!      ▲ ▲                                │                        │ guest has not released it: Detaching, retried
//!      │ └────────── VM stopped ──────────┘                        └ mounted: GuestBusy, retried
//!      │                                                           └ no guest agent: MountsUnknown, until the VM is off
//! ```
//!
//! Nothing is stored here: the state is what QEMU has and which users the Disk's status lists. Each step may therefore
//! be interrupted anywhere and repeated.

mod apply;
mod observe;
mod plan;
mod status;

use async_trait::async_trait;
use berth_api::{
    Binding, Conditions, Disk, HotswapDiskAttachment, HotswapDiskAttachmentStatus, ObjectUse, Readiness, VM,
};
use berth_qemu::machine::DiskSpec;
use jiff::Timestamp;

use observe::Observed;

use crate::context::Context;
use crate::converge::{Plan, Reconciler};
use crate::error::Error;
use crate::index::{Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

/// A step of an attachment's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Plug {
        instance: String,
        disk: DiskSpec,
    },
    Unplug {
        instance: String,
        volume: String,
    },
    /// Removes this host's finalizer.
    Release,
}

impl Indexed for HotswapDiskAttachment {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.attachments
    }

    fn keys_of(name: &ObjectName, attachment: &Self, _: &Tables) -> Vec<Key> {
        vec![
            Key::new::<HotswapDiskAttachment>(name.clone()),
            Key::new::<VM>(name.beside(attachment.spec.vm.as_str())),
            Key::new::<Disk>(name.beside(attachment.spec.disk.as_str())),
        ]
    }
}

#[derive(Debug)]
pub(crate) struct AttachmentReconciler;

/// Whether the disk's user is exactly this attachment.
pub(crate) fn uses(user: &ObjectUse, attachment: &str, vm_uid: &str) -> bool {
    user.attachment.as_deref() == Some(attachment) && user.vm_uid == vm_uid
}

#[async_trait]
impl Reconciler for AttachmentReconciler {
    type Object = HotswapDiskAttachment;
    type Status = HotswapDiskAttachmentStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, attachment: &HotswapDiskAttachment) -> Result<Observed, Error> {
        observe::observe(ctx, attachment).await
    }

    fn plan(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Step> {
        plan::plan(attachment, observed)
    }

    async fn apply(ctx: &Context, attachment: &HotswapDiskAttachment, step: &Step) -> Result<(), Error> {
        apply::apply(ctx, attachment, step).await
    }

    fn status(
        attachment: &HotswapDiskAttachment,
        observed: &Observed,
        readiness: &Readiness,
        now: Timestamp,
    ) -> HotswapDiskAttachmentStatus {
        status::status(attachment, observed, readiness, now)
    }

    fn binding(attachment: &HotswapDiskAttachment) -> Option<&Binding> {
        attachment.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &HotswapDiskAttachmentStatus) -> &Conditions {
        &status.conditions
    }
}
