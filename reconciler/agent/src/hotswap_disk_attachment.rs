//! HotswapDiskAttachment: a disk plugged into a running machine.
//!
//! ```text
//!               VM runs, disk is ours            deleted: guest asked, nothing mounted (or force)
//!  Requested ───────── Plug ─────────▶ Attached ─────────────── Unplug ───────────────▶ Released ─Release─▶ (gone)
//!      ▲ ▲                                │                        │ guest still thinks: Detaching, asked again
//!      │ └────────── VM stopped ──────────┘                        └ mounted: GuestBusy, asked again
//! ```
//!
//! Nothing here is remembered: what QEMU has, and what the Disk says of its users, is the state. So each step may be
//! cut off anywhere and taken again.

mod plan;

use std::sync::Arc;

use async_trait::async_trait;
use berth_api::condition::set_bool;
use berth_api::{
    AttachmentState, Binding, ConditionType, Conditions, Disk, HotswapDiskAttachment,
    HotswapDiskAttachmentStatus, ObjectUse, Readiness, Reason, VM,
};
use berth_qemu::machine::DiskSpec;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::context::Context;
use crate::converge::{Kind, Plan, release};
use crate::disk::volume_of;
use crate::error::Error;
use crate::index::instance_of;
use crate::machine::{GuestFacts, Look};
use crate::queue::ObjectName;
use crate::system::VolumeFacts;
use crate::vm::disk_spec;

/// What is so about an attachment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) vm: Option<Arc<VM>>,
    pub(crate) disk: Option<Arc<Disk>>,
    pub(crate) volume: Option<VolumeFacts>,
    /// None: no QEMU, or one that does not answer (see `unreachable`).
    pub(crate) look: Option<Look>,
    /// A QEMU may be there that cannot be asked.
    pub(crate) unreachable: bool,
    pub(crate) guest: GuestFacts,
    /// Where the guest has something of the disk mounted; only asked when it is to go. None: nobody to ask.
    pub(crate) mounts: Option<Vec<String>>,
}

/// One thing to do about an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Plug {
        instance: String,
        pool: String,
        disk: DiskSpec,
    },
    Unplug {
        instance: String,
        volume: String,
    },
    /// Lets go of the object.
    Release,
}

#[derive(Debug)]
pub(crate) struct AttachmentKind;

/// Whether the disk's user is this very attachment.
pub(crate) fn uses(user: &ObjectUse, attachment: &str, vm_uid: &str) -> bool {
    user.attachment.as_deref() == Some(attachment) && user.vm_uid == vm_uid
}

impl Observed {
    pub(crate) fn plugged(&self) -> Option<&berth_qemu::block::ObservedDisk> {
        let volume = volume_of(self.disk.as_deref()?)?;
        self.look.as_ref()?.disks.iter().find(|d| d.id == volume)
    }

    fn user(&self) -> Option<&ObjectUse> {
        self.disk.as_ref()?.status.as_ref()?.used_by.first()
    }
}

#[async_trait]
impl Kind for AttachmentKind {
    type Object = HotswapDiskAttachment;
    type Status = HotswapDiskAttachmentStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, attachment: &HotswapDiskAttachment) -> Result<Observed, Error> {
        let name = ObjectName::new(attachment.namespace().unwrap_or_default(), attachment.name_any());
        let (vm, disk) = {
            let tables = ctx.index.read();
            let vm = tables.vms.get(&name.beside(attachment.spec.vm.as_str()));
            (vm, tables.disks.get(&name.beside(attachment.spec.disk.as_str())))
        };
        let mut observed = Observed { vm, disk, ..Observed::default() };
        if let Some(disk) = observed.disk.clone()
            && let Some(volume) = volume_of(&disk)
        {
            observed.volume = ctx.system.volume(disk.spec.pool.as_str(), volume).await?;
        }
        let instance = observed.vm.as_deref().and_then(instance_of).map(str::to_owned);
        let Some(instance) = instance else { return Ok(observed) };
        let Some(machine) = ctx.machines.get(&instance) else {
            observed.unreachable = ctx.system.process(&instance).await?.is_some();
            return Ok(observed);
        };
        match machine.look().await {
            Ok(look) => observed.look = Some(look),
            Err(error) => {
                tracing::debug!(error = %error.chain(), "the machine does not answer");
                observed.unreachable = true;
            }
        }
        observed.guest = machine.guest();
        if attachment.metadata.deletion_timestamp.is_some()
            && let Some(plugged) = observed.plugged()
        {
            observed.mounts = machine.mounts(&plugged.serial, plugged.target).await;
        }
        Ok(observed)
    }

    fn plan(attachment: &HotswapDiskAttachment, observed: &Observed) -> Plan<Step> {
        plan::plan(attachment, observed)
    }

    async fn apply(ctx: &Context, attachment: &HotswapDiskAttachment, step: &Step) -> Result<(), Error> {
        let machine = |instance: &str| ctx.machines.get(instance).ok_or(Error::MachineGone);
        match step {
            Step::Plug { instance, pool, disk } => {
                take(ctx, attachment, instance, &disk.id)?;
                let machine = machine(instance)?;
                ctx.system.grant_volume(pool, &disk.id).await?;
                machine.plug(disk.clone()).await?;
            }
            Step::Unplug { instance, volume } => {
                crate::vm::unplug(ctx, instance, volume).await?;
                settle_disk(ctx, attachment);
            }
            Step::Release => {
                release(ctx, attachment).await?;
                settle_disk(ctx, attachment);
            }
        }
        Ok(())
    }

    fn status(
        attachment: &HotswapDiskAttachment,
        observed: &Observed,
        readiness: &Readiness,
        now: Timestamp,
    ) -> HotswapDiskAttachmentStatus {
        status(attachment, observed, readiness, now)
    }

    fn binding(attachment: &HotswapDiskAttachment) -> Option<&Binding> {
        attachment.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &HotswapDiskAttachmentStatus) -> &Conditions {
        &status.conditions
    }
}

fn settle_disk(ctx: &Context, attachment: &HotswapDiskAttachment) {
    let name = ObjectName::new(attachment.namespace().unwrap_or_default(), attachment.spec.disk.as_str());
    ctx.concern(crate::queue::Key::Disk(name));
}

/// Takes the volume for the machine, if the control plane still says that it is this attachment's.
fn take(
    ctx: &Context,
    attachment: &HotswapDiskAttachment,
    instance: &str,
    volume: &str,
) -> Result<(), Error> {
    let name = ObjectName::new(attachment.namespace().unwrap_or_default(), attachment.name_any());
    let vm_name = name.beside(attachment.spec.vm.as_str());
    let vm = ctx.index.read().vms.get(&vm_name).ok_or(Error::Conflict)?;
    let vm_uid = vm.uid().unwrap_or_default();
    ctx.machines.reserve(instance, &vm_uid, volume)?;
    let disk = ctx.index.read().disks.get(&name.beside(attachment.spec.disk.as_str()));
    let ours = disk.and_then(|d| d.status.as_ref()?.used_by.first().cloned());
    if ours.is_some_and(|user| uses(&user, &name.name, &vm_uid)) {
        return Ok(());
    }
    ctx.machines.unreserve(instance, volume);
    Err(Error::Conflict)
}

pub(super) fn status(
    attachment: &HotswapDiskAttachment,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> HotswapDiskAttachmentStatus {
    let mut status = attachment.status.clone().unwrap_or_default();
    let generation = attachment.metadata.generation.unwrap_or(0);
    let deleting = attachment.metadata.deletion_timestamp.is_some();
    status.observed_generation = generation;
    readiness.write(&mut status.conditions, generation, now);
    let plugged = observed.plugged();
    let reason = if plugged.is_some() { Reason::Attached } else { readiness.reason() };
    let reason = if reason == Reason::Attached && plugged.is_none() { Reason::Attaching } else { reason };
    let text = if plugged.is_some() { "" } else { readiness.message() };
    let conditions = &mut status.conditions;
    set_bool(conditions, ConditionType::Attached, plugged.is_some(), reason, text, generation, now);
    status.serial = plugged.map(|d| d.serial.clone());
    status.device = plugged.map(|d| device(&d.serial, &observed.guest));
    status.state = Some(match (deleting, plugged.is_some(), readiness) {
        (true, true, _) => AttachmentState::Detaching,
        (true, false, _) => AttachmentState::Released,
        (false, true, _) => AttachmentState::Attached,
        (false, false, Readiness::Stalled(..)) => AttachmentState::Failed,
        (false, false, _) => AttachmentState::Requested,
    });
    status
}

/// Where the guest finds a disk: what its agent says, else the path udev makes of the serial number.
pub(crate) fn device(serial: &str, guest: &GuestFacts) -> String {
    match guest.devices.get(serial) {
        Some(device) => device.clone(),
        None => format!("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}"),
    }
}
