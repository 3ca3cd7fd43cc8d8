//! A disk that has data of this host from the beginning: a full copy of its image or of a source in another pool, or a file system.
//!
//! ```text
//!   no file ──StartFill──▶ written under another name ──▶ file            a disk that was made before is never filled: see `plan`
//! ```

use berth_api::{Disk, DiskSource, Readiness, Reason, StoragePoolType};
use berth_host::{Fill, NewVolume};
use kube::ResourceExt;

use super::Step;
use super::source::new_owner;
use crate::context::Context;
use crate::converge::Plan;
use crate::details::Details;
use crate::index::{Tables, volume_of};
use crate::journal::new_filesystem;
use crate::key::{Key, ObjectName};
use crate::pulls::{Pull, Wanted, percent};

/// Returns the work that fills the Disks of this host that are not made yet.
pub(crate) fn wanted_fills(tables: &Tables) -> impl Iterator<Item = Wanted> + '_ {
    let unmade = tables.disks.all().map(|(_, disk)| disk).filter(|disk| {
        let is_made = disk.status.as_ref().is_some_and(|status| status.size.is_some());
        !is_made && disk.metadata.deletion_timestamp.is_none()
    });
    unmade.filter_map(move |disk| declared_work(disk, is_in_ceph(tables, disk)))
}

/// Returns the work as far as the Disk declares it, which distinguishes it from other work.
fn declared_work(disk: &Disk, is_in_ceph: bool) -> Option<Wanted> {
    let new = NewVolume {
        pool: disk.target_pool().to_string(),
        id: volume_of(disk)?.to_owned(),
        size: None,
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner: new_owner(disk),
        encryption: None,
    };
    let is_copy = disk.spec.source.as_ref().is_some_and(|of| of.disk.is_some() || of.snapshot.is_some());
    // Of a copy it depends on the source whether there is such work.
    let fill = of(disk, is_in_ceph)
        .or_else(|| is_copy.then(|| Fill::Snapshot { pool: String::new(), id: String::new() }));
    Some(work(disk, new, fill?))
}

/// Whether the pool of a disk that is not made yet is in Ceph, or that of a disk whose file another host has left.
pub(super) fn is_in_ceph(tables: &Tables, disk: &Disk) -> bool {
    let is_left = disk.status.as_ref().is_some_and(|status| status.former_host.is_some());
    let pool = if is_left { disk.pool() } else { disk.target_pool() };
    let pool = tables.pools.get(&ObjectName::new("", pool.as_str()));
    pool.is_some_and(|pool| pool.spec.pool_type == StoragePoolType::Rbd)
}

/// Returns the data that a new disk gets. None: it is an overlay, empty, or a file that is taken over. In Ceph, a clone of an image would
/// not be encrypted.
pub(super) fn of(disk: &Disk, is_in_ceph: bool) -> Option<Fill> {
    let is_encrypted_copy = is_in_ceph && disk.spec.encryption.is_some() && disk.spec.image.is_some();
    if disk.is_full_clone() || is_encrypted_copy {
        return Some(Fill::Image);
    }
    if let Some(file) = disk.spec.source.as_ref().and_then(DiskSource::raw_file) {
        return Some(Fill::RawFile(file.into()));
    }
    disk.spec.filesystem.as_deref().map(|declared| Fill::Filesystem(new_filesystem(declared)))
}

/// Returns the work that makes a volume with this data.
pub(super) fn work(disk: &Disk, new: NewVolume, fill: Fill) -> Wanted {
    Wanted::Fill(disk.namespace().unwrap_or_default(), new.id.clone(), Details(Box::new((new, fill))))
}

/// Looks at the work. None: it has not begun, or the disk has no such data.
pub(super) fn observe(ctx: &Context, disk: &Disk) -> Option<Pull> {
    let is_in_ceph = is_in_ceph(&ctx.index.read(), disk);
    ctx.pulls.state(&declared_work(disk, is_in_ceph)?, &Key::of(disk))
}

/// Returns the plan for a disk that has no file yet, whose work is in this state. Pure.
pub(super) fn plan(disk: &Disk, new: NewVolume, fill: Fill, pull: Option<&Pull>) -> Plan<Step> {
    let done = match pull {
        Some(Pull::Running { done, total, .. }) => percent(*done, *total),
        _ => None,
    };
    let done = done.map(|percent| format!(" ({percent} %)")).unwrap_or_default();
    let text = match &fill {
        Fill::Image => format!("its image is being copied{done}"),
        Fill::Snapshot { pool, .. } => {
            format!("the data of its source is being copied from the pool {pool}{done}")
        }
        Fill::Filesystem(_) => "it is being formatted".to_owned(),
        Fill::RawFile(file) => format!("the data of {} is being copied{done}", file.display()),
    };
    let filling = Readiness::Reconciling(Reason::Provisioning, text);
    let wanted = work(disk, new, fill);
    match pull {
        None => Plan::steps(vec![Step::StartFill(wanted)], filling),
        Some(Pull::Running { followed: false, .. }) => Plan::steps(vec![Step::FollowFill(wanted)], filling),
        Some(Pull::Failed { readiness, again }) => {
            Plan::without_steps(readiness.clone()).requeue_for_retry(*again)
        }
        Some(_) => Plan::without_steps(filling),
    }
}
