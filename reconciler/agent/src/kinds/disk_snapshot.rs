//! DiskSnapshot: the former file of a volume of this host.
//!
//! ```text
//!  (its disk has a file) ─Take─▶ taken …      deleted: ─RemoveMemory, Delete─▶ its file goes once nothing is based on it ─Release─▶ (gone)
//! ```
//!
//! One that was taken and is missing is never taken again: it would have the data of another moment.
//!
//! The parts of a VMSnapshot are taken together, at one moment, once all of them are here: by the first of them that is not taken.

mod apply;
mod observe;
mod parts;
mod plan;
mod status;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use berth_api::{Binding, Conditions, Disk, DiskSnapshot, DiskSnapshotStatus, Image, Readiness, VM};
use berth_host::{NewSnapshot, VolumeOwner};
use jiff::Timestamp;

use observe::Observed;

use crate::context::Context;
use crate::converge::{Plan, Reconciler, Requeue, converge, converge_named};
use crate::departed;
use crate::error::Error;
use crate::index::{Departed, Indexed, Table, Tables};
use crate::key::{Key, ObjectName};

/// A step of a snapshot's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Takes them at one moment.
    Take(Vec<NewSnapshot>),
    /// Takes them and the memory of their guest at one moment.
    TakeWithMemory(Vec<NewSnapshot>),
    /// Records beside the file that it belongs to this object, which had another uid before.
    TakeOver { pool: String, snapshot: String, owner: VolumeOwner },
    /// Removes the memory that is kept under this identity, if there is one.
    RemoveMemory(String),
    /// Deletes it. One that was begun is finished first.
    Delete(NewSnapshot),
    /// Removes this host's finalizer.
    Release,
}

impl Indexed for DiskSnapshot {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.disk_snapshots
    }

    fn departed(tables: &mut Tables) -> Option<&mut Departed<Self>> {
        Some(&mut tables.departed_snapshots)
    }

    fn keys_of(name: &ObjectName, snapshot: &Self, tables: &Tables) -> Vec<Key> {
        let disks = tables.disks.all().filter(|(disk_name, disk)| {
            let restored = disk.spec.restore.as_ref().is_some_and(|restore| {
                disk_name.namespace == name.namespace && restore.snapshot.as_str() == name.name
            });
            restored || disk.is_copy_of_snapshot(&name.namespace, &name.name)
        });
        let mut keys: Vec<Key> = disks.map(|(name, _)| Key::new::<Disk>(name.clone())).collect();
        // Those of other namespaces wait for the grant.
        let images = tables.images.all().filter(|(_, image)| {
            let source = &image.spec.source;
            image.foreign_data() == Some(name.namespace.as_str())
                && source.snapshot.as_ref().is_some_and(|snapshot| snapshot.as_str() == name.name)
        });
        keys.extend(images.map(|(name, _)| Key::new::<Image>(name.clone())));
        keys.push(Key::new::<DiskSnapshot>(name.clone()));
        let disk_name = name.beside(snapshot.spec.disk.as_str());
        let disk = tables.disks.get(&disk_name);
        let pool =
            disk.as_ref().and_then(|disk| tables.pools.get(&ObjectName::new("", disk.pool().as_str())));
        if snapshot.part_of().is_some() || pool.is_some_and(|pool| pool.spec.pool_type.is_shared()) {
            // It waits until the parts are taken, and reports whether it outlives this host.
            keys.push(Key::new::<Disk>(disk_name));
        }
        if let Some(whole) = snapshot.part_of() {
            // It lists its snapshots, and waits for the parts of the one that it is restored from.
            let users = disk.iter().flat_map(|disk| &disk.status).flat_map(|status| &status.used_by);
            keys.extend(users.map(|user| Key::new::<VM>(name.beside(&user.vm))));
            keys.extend(tables.vms_where(|vm_name, vm| {
                let restore = vm.spec.restore.as_ref();
                vm_name.namespace == name.namespace
                    && restore.is_some_and(|restore| restore.snapshot.as_str() == whole.name)
            }));
        }
        keys.extend(
            parts::beside(name, snapshot, tables).map(|(name, _)| Key::new::<DiskSnapshot>(name.clone())),
        );
        keys
    }

    fn reads_own_write(_: &Self, _: &Self) -> bool {
        false
    }
}

#[derive(Debug)]
pub(crate) struct SnapshotReconciler;

#[async_trait]
impl Reconciler for SnapshotReconciler {
    type Object = DiskSnapshot;
    type Status = DiskSnapshotStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, snapshot: &DiskSnapshot) -> Result<Observed, Error> {
        observe::observe(ctx, snapshot).await
    }

    fn plan(snapshot: &DiskSnapshot, observed: &Observed) -> Plan<Step> {
        let plan = plan::plan(snapshot, observed);
        match observed.look_again {
            Some(after) => plan.requeue_after(after),
            None => plan,
        }
    }

    async fn apply(ctx: &Context, snapshot: &DiskSnapshot, step: &Step) -> Result<(), Error> {
        apply::apply(ctx, snapshot, step).await
    }

    fn status(
        snapshot: &DiskSnapshot,
        observed: &Observed,
        readiness: &Readiness,
        now: Timestamp,
    ) -> DiskSnapshotStatus {
        status::status(snapshot, observed, readiness, now)
    }

    fn binding(snapshot: &DiskSnapshot) -> Option<&Binding> {
        snapshot.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &DiskSnapshotStatus) -> &Conditions {
        &status.conditions
    }
}

/// Reconciles the snapshot of this name, and deletes those of the same name that were deleted without their finalizer.
pub(crate) async fn reconcile(ctx: &Context, name: &ObjectName) -> Result<Requeue, Error> {
    let found = ctx.index.read().departed_snapshots.named(name);
    let mut again = Requeue::OnChange;
    for snapshot in found {
        let facts = observe::observe(ctx, &snapshot).await?.snapshot;
        let owner = facts.and_then(|facts| facts.owner).and_then(|owner| owner.uid);
        let here = owner.is_some() && owner == snapshot.metadata.uid;
        if !here || departed::exists(&ctx.client, snapshot.as_ref()).await? {
            ctx.index.read().departed_snapshots.forget(&snapshot);
            continue;
        }
        tracing::warn!(snapshot = %name, "deleted without its finalizer: its file is let go");
        let snapshot = departed::with_finalizer(snapshot.as_ref(), ctx.now());
        again = again.sooner(converge::<SnapshotReconciler>(ctx, &snapshot).await?);
    }
    Ok(again.sooner(converge_named::<SnapshotReconciler>(ctx, name).await?))
}
