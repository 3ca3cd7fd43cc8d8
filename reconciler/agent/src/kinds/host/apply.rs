//! Applies the steps of the host's plan.

use std::time::Duration;

use berth_api::Disk;

use super::left::CopiedVolume;
use super::{Step, cache};
use crate::context::Context;
use crate::error::Error;
use crate::firmware_copies;
use crate::journal::Journal;
use crate::key::Key;
use crate::kinds::vm::forget_restart;
use crate::networking::tap_prefix;

pub(super) async fn apply(ctx: &Context, step: &Step) -> Result<(), Error> {
    match step {
        Step::RemoveImage(digest) => ctx.system.remove_image(digest).await?,
        Step::ShrinkCache(excess) => cache::shrink(ctx, excess).await?,
        Step::ForgetReader { digest, namespace } => ctx.system.forget_reader(digest, namespace).await?,
        Step::PurgeTrash { pool, older_than } => {
            let purged = ctx.system.purge_trash(pool, *older_than).await?;
            tracing::info!(?purged, "deleted for good");
        }
        Step::FinishInstance(instance) => {
            let journal = ctx.system.read_journal(instance).await?;
            // A running guest may have begun to come to it since it was looked at.
            let journal = journal.and_then(|journal| Journal::parse(journal).ok());
            if journal.as_ref().is_some_and(|journal| journal.arrival.is_some()) {
                return Ok(());
            }
            ctx.system.kill(instance, Duration::from_secs(5)).await?;
            let prefix = tap_prefix(instance);
            for tap in ctx.system.taps().await?.iter().filter(|tap| tap.name.starts_with(&prefix)) {
                ctx.system.remove_tap(&tap.name).await?;
            }
            // Before the journal is gone.
            if let Some(journal) = &journal {
                Box::pin(firmware_copies::remove_lost(ctx, instance, journal)).await?;
            }
            ctx.system.remove_instance(instance).await?;
            ctx.machines.forget(instance);
            wake_disks(ctx);
        }
        Step::ForgetRestart(instance) => forget_restart(ctx, instance).await?,
        Step::RecordOverhead { most, known } => ctx.overhead.measured(*most, *known, ctx.now()),
        Step::RemoveCopied(CopiedVolume { pool, id, uid, seen }) => {
            ctx.system.remove_left_volume(pool, id, uid.as_deref(), seen.as_ref()).await?;
        }
        Step::RemoveMemory(id) => ctx.system.remove_kept_state(id).await?,
        Step::TrashVolume { pool, volume } => ctx.system.trash_volume(pool, volume).await?,
    }
    Ok(())
}

/// Enqueues disks used by a VM that is no longer bound here: they may be free now.
pub(super) fn wake_disks(ctx: &Context) {
    let tables = ctx.index.read();
    let is_here = |uid: &str| tables.vms.all().any(|(_, vm)| vm.metadata.uid.as_deref() == Some(uid));
    let left = |disk: &Disk| disk.status.iter().flat_map(|s| &s.used_by).any(|user| !is_here(&user.vm_uid));
    let keys =
        tables.disks.all().filter(|(_, disk)| left(disk)).map(|(name, _)| Key::new::<Disk>(name.clone()));
    keys.for_each(|key| ctx.queue.add(key));
}
