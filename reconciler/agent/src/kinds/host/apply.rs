//! Applies the steps of the host's plan.

use std::time::Duration;

use berth_api::{Disk, VM};

use super::left::CopiedVolume;
use super::{Step, cache};
use crate::context::Context;
use crate::error::Error;
use crate::firmware_copies;
use crate::index::{Tables, instance_of, volume_of};
use crate::journal::Journal;
use crate::key::Key;
use crate::kinds::vm::forget_restart;
use crate::networking::tap_prefix;

pub(super) async fn apply(ctx: &Context, step: &Step) -> Result<(), Error> {
    if !is_still_due(&ctx.index.read(), step) {
        return Ok(());
    }
    match step {
        Step::RemoveImage(digest) => {
            cache::remove_image(ctx, digest).await?;
        }
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
            ctx.departures.forget(instance);
            wake_disks(ctx);
        }
        Step::ForgetRestart(instance) => forget_restart(ctx, instance).await?,
        Step::RecordOverhead { most, known } => ctx.overhead.measured(*most, *known, ctx.now()),
        Step::RemoveCopied(CopiedVolume { pool, id, uid, seen }) => {
            ctx.system.remove_left_volume(pool, id, uid.as_deref(), seen.as_ref()).await?;
        }
        Step::RemoveMemory(id) => ctx.system.remove_kept_state(id).await?,
        // A machine may have opened it since it was looked at.
        Step::TrashVolume { volume, .. } if ctx.machines.is_open(volume) => {}
        Step::TrashVolume { pool, volume } => ctx.system.trash_volume(pool, volume).await?,
    }
    Ok(())
}

/// Whether what a step removes is still owned by no object. The steps before it may have taken long: a VM that has moved on may be back here
/// by then, with the only copy of its firmware state, and an orphan may have been adopted.
fn is_still_due(tables: &Tables, step: &Step) -> bool {
    match step {
        Step::FinishInstance(instance) | Step::ForgetRestart(instance) => {
            let is_its = |vm: &VM| instance_of(vm) == Some(instance.as_str());
            let mut departed = tables.departed_vms.all();
            !tables.vms.all().any(|(_, vm)| is_its(vm)) && !departed.any(|vm| is_its(vm))
        }
        Step::TrashVolume { volume, .. } => {
            let is_its = |disk: &Disk| volume_of(disk) == Some(volume.as_str());
            let mut departed = tables.departed_disks.all();
            !tables.disks.all().any(|(_, disk)| is_its(disk)) && !departed.any(|disk| is_its(disk))
        }
        _ => true,
    }
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

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::index::Index;

    #[test]
    fn nothing_is_removed_that_an_object_has_again_since_it_was_looked_at() {
        let index = Index::default();
        let finish = |instance: &str| Step::FinishInstance(instance.to_owned());
        let trash = |volume: &str| Step::TrashVolume { pool: "default".into(), volume: volume.into() };
        let is_due = |step: &Step| is_still_due(&index.read(), step);
        assert!(is_due(&finish("i-1")) && is_due(&trash("v-1")));
        let vm: VM = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
            "spec": {"disks": [{"name": "root", "boot": true}]}, "status": {"instanceID": "i-1"},
        }))
        .expect("a VM");
        index.apply::<VM>(Event::Apply(vm));
        let disk: Disk = serde_json::from_value(json!({
            "metadata": {"name": "root", "namespace": "ns", "uid": "u2", "resourceVersion": "1"},
            "spec": {"size": "1Gi"}, "status": {"volumeID": "v-1"},
        }))
        .expect("a Disk");
        index.apply::<Disk>(Event::Apply(disk));
        assert!(!is_due(&finish("i-1")), "the VM has moved back");
        assert!(!is_due(&Step::ForgetRestart("i-1".into())), "its own reconcile writes the journal");
        assert!(!is_due(&trash("v-1")), "the orphan was adopted");
        assert!(is_due(&finish("i-2")) && is_due(&trash("v-2")));
    }
}
