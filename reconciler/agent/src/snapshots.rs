//! Takes a snapshot of a volume, whether a machine has it open or not. Disks and DiskSnapshots take them the same way.
//!
//! ```text
//!   begin: the volume's file is an overlay ──▶ freeze ──▶ switch QEMU to it ──▶ thaw ──▶ finish
//!                                              (with an agent in the guest)
//! ```
//!
//! Each step can be repeated: after a crash anywhere, the whole is taken again from the start under the same identity.

use berth_host::{NewSnapshot, SystemError, Taken, VolumeFacts};
use berth_qemu::power::RunState;

use crate::context::Context;
use crate::error::Error;
use crate::machine::Machine;
use crate::plugging::disk_spec;

/// How often a guest that was frozen is asked to go on.
const THAW_ATTEMPTS: usize = 3;

/// Takes a snapshot, or finishes one that was begun.
///
/// *Errors:* [`SystemError::VolumeBusy`] while it is not known which machine has the volume open: the caller retries.
pub(crate) async fn take(ctx: &Context, new: &NewSnapshot) -> Result<(), Error> {
    let _still = ctx.machines.hold_still(&new.volume)?;
    let holders = ctx.machines.holders(&new.volume);
    let mut instances =
        holders.iter().filter(|holder| holder.is_certain).map(|holder| holder.instance.as_str());
    let instance = instances.next();
    let machine = instance.and_then(|instance| ctx.machines.get(instance));
    // One that is being started has no machine yet, and one that does not answer may have any volume open.
    if machine.is_none() && !holders.is_empty() {
        let detail = "a machine that may have it open does not answer yet";
        return Err(SystemError::VolumeBusy { id: new.volume.clone(), detail }.into());
    }
    let volume = ctx.system.begin_snapshot(new).await?;
    if volume.pending_snapshot.as_deref() != Some(new.id.as_str()) {
        return Ok(());
    }
    let frozen = match (instance, machine) {
        (Some(instance), Some(machine)) => switch(ctx, instance, &machine, &volume).await?,
        _ => false,
    };
    let taken = Taken { at: ctx.now(), frozen };
    ctx.system.finish_snapshot(&new.pool, &new.id, &taken).await?;
    Ok(())
}

/// Has a running machine continue in the volume's new file. Returns whether the guest's file systems were frozen meanwhile.
async fn switch(
    ctx: &Context,
    instance: &str,
    machine: &Machine,
    volume: &VolumeFacts,
) -> Result<bool, Error> {
    let state = machine.state().await?;
    let disk = state.disks.iter().find(|disk| disk.id == volume.id);
    if disk.is_some_and(|disk| disk.read_only) {
        // It is open for reading, in whichever file.
        return Ok(false);
    }
    let overlay = berth_qemu::machine::DiskSpec { backing: None, ..disk_spec(volume, "", false, None) };
    let overlay = ctx.system.grant_disk(instance, &overlay).await?;
    let freezes = state.run_state == RunState::Running;
    let frozen = freezes && freeze(machine).await;
    let switched = machine.continue_in_overlay(overlay).await;
    // Also after a failure to freeze, and after a crash in between: whether the guest is frozen is not known then.
    if freezes {
        thaw(machine).await;
    }
    Ok(switched? && frozen)
}

async fn freeze(machine: &Machine) -> bool {
    match machine.exchange(|agent| Box::pin(agent.freeze())).await {
        Ok(filesystems) => filesystems > 0,
        Err(error) => {
            tracing::debug!(%error, "the guest's file systems are not frozen");
            false
        }
    }
}

async fn thaw(machine: &Machine) {
    for _ in 0..THAW_ATTEMPTS {
        match machine.exchange(|agent| Box::pin(agent.thaw())).await {
            Ok(()) | Err(crate::machine::GuestError::NoAgent | crate::machine::GuestError::Gone) => return,
            Err(error) => tracing::warn!(%error, "the guest's agent does not thaw its file systems"),
        }
    }
}
