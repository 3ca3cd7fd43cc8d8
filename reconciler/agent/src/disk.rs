//! Disk: a volume in a pool of this host.
//!
//! ```text
//!  (image cached) ─Create─▶ file ─GrowOnline / GrowOffline─▶ file …   deleted, unused: ─Trash─▶ trash ─Release─▶ (gone)
//!  restore annotation: trash ─Restore─▶ file                          Retain: file stays ─Release─▶ (gone)
//! ```
//!
//! A file that was there once and is missing is never made anew: that would be an empty disk in the place of data.

mod claims;
mod observe;
mod plan;
mod status;

use async_trait::async_trait;
use berth_api::{Binding, Conditions, Disk, DiskStatus, Readiness};
use jiff::Timestamp;

use crate::context::Context;
use crate::converge::{Kind, Plan, release};
use crate::error::Error;
use crate::queue::{Key, ObjectName};
use crate::system::{ImageSource, NewVolume, VolumeOwner};
use kube::ResourceExt;

pub(crate) use observe::{Observed, source_of};

/// One thing to do about a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Has its image downloaded; goes on by itself.
    Pull(ImageSource),
    Create(NewVolume),
    Restore {
        pool: String,
        volume: String,
        owner: VolumeOwner,
    },
    /// Notes beside the file that it is this disk's, which had another uid before.
    TakeOver {
        pool: String,
        volume: String,
        owner: VolumeOwner,
    },
    GrowOffline {
        pool: String,
        volume: String,
        bytes: u64,
    },
    /// Through the machine that has it open.
    GrowOnline {
        volume: String,
        bytes: u64,
    },
    Trash {
        pool: String,
        volume: String,
    },
    /// Lets go of the object.
    Release,
}

#[derive(Debug)]
pub(crate) struct DiskKind;

#[async_trait]
impl Kind for DiskKind {
    type Object = Disk;
    type Status = DiskStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, disk: &Disk) -> Result<Observed, Error> {
        observe::observe(ctx, disk).await
    }

    fn plan(disk: &Disk, observed: &Observed) -> Plan<Step> {
        plan::plan(disk, observed)
    }

    async fn apply(ctx: &Context, disk: &Disk, step: &Step) -> Result<(), Error> {
        let key = || Key::Disk(ObjectName::new(disk.namespace().unwrap_or_default(), disk.name_any()));
        match step {
            Step::Pull(source) => ctx.pulls.start(source, key()),
            Step::Create(volume) => {
                ctx.system.create_volume(volume).await?;
            }
            Step::Restore { pool, volume, owner } => {
                ctx.system.restore_volume(pool, volume, owner).await?;
            }
            Step::TakeOver { pool, volume, owner } => {
                ctx.system.hand_over_volume(pool, volume, owner).await?;
            }
            Step::GrowOffline { pool, volume, bytes } => {
                ctx.system.grow_volume(pool, volume, *bytes).await?;
            }
            Step::GrowOnline { volume, bytes } => match ctx.machines.holder(volume) {
                Some(machine) => machine.resize(volume, *bytes).await?,
                None => return Err(Error::MachineGone),
            },
            Step::Trash { pool, volume } => ctx.system.trash_volume(pool, volume).await?,
            Step::Release => release(ctx, disk).await?,
        }
        Ok(())
    }

    fn status(disk: &Disk, observed: &Observed, readiness: &Readiness, now: Timestamp) -> DiskStatus {
        status::status(disk, observed, readiness, now)
    }

    fn binding(disk: &Disk) -> Option<&Binding> {
        disk.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &DiskStatus) -> &Conditions {
        &status.conditions
    }
}

/// The volume of a disk that is bound.
pub(crate) fn volume_of(disk: &Disk) -> Option<&str> {
    disk.status.as_ref()?.volume_id.as_deref()
}

/// One reconcile. While it goes on nobody takes the volume; after one whose change of users could not be reported
/// nobody does until one could be: only then it is known what the control plane holds.
pub(crate) async fn reconcile(ctx: &Context, disk: &Disk) -> Result<crate::queue::Again, Error> {
    let volume = volume_of(disk).unwrap_or_default();
    ctx.machines.settle(volume);
    let done = crate::converge::converge::<DiskKind>(ctx, disk).await;
    // Without a change of users there is nothing the control plane could hold but what we know it holds.
    let same = || disk.status.as_ref().is_some_and(|s| s.used_by == observe::users(ctx, disk, volume));
    if done.is_ok() || same() {
        ctx.machines.settled(volume);
    }
    done
}
