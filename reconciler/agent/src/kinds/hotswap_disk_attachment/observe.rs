//! Observation of an attachment.

use std::sync::Arc;

use berth_api::{Disk, HotswapDiskAttachment, ObjectUse, VM};
use berth_host::VolumeFacts;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::group_turn;
use crate::index::{instance_of, left_on, volume_of};
use crate::key::ObjectName;
use crate::machine::{GuestFacts, MachineState};
use crate::moves;
use crate::pools;
use crate::restores;

/// Everything an attachment's plan is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) vm: Option<Arc<VM>>,
    pub(crate) disk: Option<Arc<Disk>>,
    pub(crate) volume: Option<VolumeFacts>,
    /// Why the pool of the disk is away: its volume is not known then.
    pub(crate) away: Option<String>,
    /// Whether the disk is to be restored from a snapshot before a machine opens it.
    pub(crate) restores_first: bool,
    /// Whether it is to be moved to another pool before a machine opens it.
    pub(crate) moves_first: bool,
    /// None: no QEMU, or one that does not answer (see `unreachable`).
    pub(crate) machine: Option<MachineState>,
    /// Whether a QEMU may be running that does not answer.
    pub(crate) unreachable: bool,
    pub(crate) guest: GuestFacts,
    /// Mount points of the disk in the guest; only queried when the attachment is being deleted. None: no guest agent
    /// answers.
    pub(crate) mounts: Option<Vec<String>>,
    /// Whether the machine, which does not have the disk, counts as if it had: since it was to be plugged in.
    pub(crate) is_reserved: bool,
}

impl Observed {
    pub(crate) fn plugged(&self) -> Option<&berth_qemu::block::ObservedDisk> {
        let volume = volume_of(self.disk.as_deref()?)?;
        self.machine.as_ref()?.disks.iter().find(|d| d.id == volume)
    }

    pub(super) fn user(&self) -> Option<&ObjectUse> {
        self.disk.as_ref()?.status.as_ref()?.used_by.first()
    }
}

pub(super) async fn observe(ctx: &Context, attachment: &HotswapDiskAttachment) -> Result<Observed, Error> {
    let name = ObjectName::new(attachment.namespace().unwrap_or_default(), attachment.name_any());
    let (vm, disk) = {
        let tables = ctx.index.read();
        let vm = tables.vms.get(&name.beside(attachment.spec.vm.as_str()));
        let vm = vm.map(|vm| group_turn::in_group(&tables, vm));
        (vm, tables.disks.get(&name.beside(attachment.spec.disk.as_str())))
    };
    let mut observed = Observed { vm, disk, ..Observed::default() };
    if let Some(disk) = observed.disk.clone()
        && let Some(volume) = volume_of(&disk)
    {
        let seen = pools::look(ctx, disk.pool().as_str(), volume).await?;
        // A file that is here is an earlier one while another host has the data of the disk.
        let has_data = left_on(&disk, ctx.host()).is_none();
        (observed.volume, observed.away) = (seen.facts.filter(|_| has_data), seen.away);
        if let Some(volume) = &observed.volume {
            observed.restores_first = restores::observe(ctx, &disk, volume).await?.is_due();
            let vm_uid = observed.vm.as_ref().and_then(|vm| vm.uid());
            observed.moves_first = moves::comes_first(ctx, &disk, volume, vm_uid.as_deref()).await?;
        }
    }
    let instance = observed.vm.as_deref().and_then(instance_of).map(str::to_owned);
    let Some(instance) = instance else { return Ok(observed) };
    let Some(machine) = ctx.machines.get(&instance) else {
        observed.unreachable = ctx.system.process(&instance).await?.is_some();
        return Ok(observed);
    };
    match machine.state().await {
        Ok(state) => observed.machine = Some(state),
        Err(error) => {
            tracing::debug!(error = %Error::from(error).chain(), "the machine does not answer");
            observed.unreachable = true;
        }
    }
    observed.guest = machine.guest();
    if attachment.metadata.deletion_timestamp.is_some()
        && let Some(plugged) = observed.plugged()
    {
        observed.mounts = machine.mounts(&plugged.serial, plugged.target).await;
    }
    if observed.machine.is_some() && observed.plugged().is_none() {
        let volume = observed.disk.as_deref().and_then(volume_of);
        observed.is_reserved = volume.is_some_and(|volume| ctx.machines.is_certain_holder(&instance, volume));
    }
    Ok(observed)
}
