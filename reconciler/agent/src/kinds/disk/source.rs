//! The source of a copy: a snapshot, or the snapshot that is taken of another disk for it. In the pool of the source, the copy is based on
//! the snapshot; in another pool it has a full copy of its data.

use berth_api::{Disk, Quantity, Readiness, Reason};
use berth_host::{DeclaredSource, NewSnapshot, SnapshotFacts, SystemError, VolumeFacts, VolumeOwner};
use kube::ResourceExt;

use super::Step;
use crate::context::Context;
use crate::converge::Plan;
use crate::error::Error;
use crate::index::{left_on, volume_of};
use crate::key::ObjectName;
use crate::pools;
use crate::snapshots::identity_for_copy;
use crate::unlocking::Held;

/// A disk's source, as it is on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LocalSource {
    /// None: there is none here, or it is not taken yet.
    Snapshot(Option<SnapshotFacts>),
    /// The other disk's volume, and the snapshot of it for this copy.
    Disk { volume: Option<Box<VolumeFacts>>, snapshot: Option<SnapshotFacts> },
}

impl LocalSource {
    /// Returns the key that a copy of it has.
    pub(super) fn held(&self) -> Held<'_> {
        match self {
            Self::Snapshot(Some(facts)) | Self::Disk { snapshot: Some(facts), .. } => {
                Held::Copy(facts.encryption.as_deref())
            }
            Self::Disk { volume: Some(facts), .. } => Held::Copy(facts.encryption.as_deref()),
            // It is not known yet.
            Self::Snapshot(None) | Self::Disk { .. } => Held::New,
        }
    }
}

pub(super) async fn observe(ctx: &Context, disk: &Disk) -> Result<Option<LocalSource>, Error> {
    let Some(source) = &disk.spec.source else { return Ok(None) };
    let own = disk.namespace().unwrap_or_default();
    let name = |name: &str| ObjectName::new(source.namespace(&own), name);
    if let Some(snapshot) = &source.snapshot {
        let object = ctx.index.read().disk_snapshots.get(&name(snapshot.as_str()));
        // The host looks at the grant itself: it does not depend on what the controllers have written for the copy.
        let object = object.filter(|object| object.is_shared_with(&own));
        let status = object.and_then(|object| object.status.clone()).unwrap_or_default();
        let (Some(pool), Some(id)) = (status.pool, status.snapshot_id) else {
            return Ok(Some(LocalSource::Snapshot(None)));
        };
        return Ok(Some(LocalSource::Snapshot(match ctx.system.snapshot(pool.as_str(), &id).await {
            // Its data is gone.
            Err(SystemError::SnapshotLost { .. }) => None,
            found => found?,
        })));
    }
    let Some(other) = &source.disk else { return Ok(None) };
    let pool = disk.target_pool().as_str();
    let other = ctx.index.read().disks.get(&name(other.as_str()));
    let other = other.filter(|other| other.is_shared_with(&own));
    // A file that is here is an earlier one while another host has the data of the disk.
    let here = other.as_deref().filter(|other| left_on(other, ctx.host()).is_none());
    let volume = match here.and_then(|other| Some((other, volume_of(other)?))) {
        Some((other, volume)) => pools::present(ctx, other.pool().as_str(), volume).await?,
        None => None,
    };
    // A snapshot that was taken while the other disk was shared is of no use afterwards.
    let is_granted = other.is_some() || source.namespace(&own) == own;
    let its_pool = volume.as_ref().map_or(pool, |volume| volume.pool.as_str());
    let snapshot = match volume_of(disk).filter(|_| is_granted) {
        Some(volume) => ctx.system.snapshot(its_pool, &identity_for_copy(volume)).await?,
        None => None,
    };
    Ok(Some(LocalSource::Disk { volume: volume.map(Box::new), snapshot }))
}

/// The snapshot that a new volume has the data of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) pool: String,
    pub(super) id: String,
}

impl Copied {
    fn of(facts: &SnapshotFacts) -> Self {
        Self { pool: facts.pool.clone(), id: facts.id.clone() }
    }
}

/// Returns the snapshot that the new volume has the data of, or the plan to wait until it is there. Pure.
pub(super) fn base(
    disk: &Disk,
    volume: &str,
    size: Option<u64>,
    source: &LocalSource,
) -> Result<Copied, Plan<Step>> {
    let declared = disk.spec.source.clone().unwrap_or_default();
    let name = match (&declared.snapshot, &declared.disk) {
        (Some(snapshot), _) => format!("DiskSnapshot {snapshot}"),
        (None, other) => format!("Disk {}", other.as_ref().map(ToString::to_string).unwrap_or_default()),
    };
    let of_snapshot = |facts: &SnapshotFacts| {
        fits(disk, &name, (facts.pool.as_str(), facts.encryption.is_some()), (size, facts.size))
            .map(|()| Copied::of(facts))
    };
    match source {
        LocalSource::Snapshot(found) => match found.as_ref().filter(|facts| facts.taken.is_some()) {
            Some(facts) => of_snapshot(facts),
            None => {
                let text = format!("{name} does not exist on this host, or is not taken yet");
                Err(Plan::without_steps(Readiness::Reconciling(Reason::WaitingForSnapshot, text)))
            }
        },
        LocalSource::Disk { snapshot: Some(facts), .. } if facts.taken.is_some() => of_snapshot(facts),
        LocalSource::Disk { volume: None, .. } => {
            let text = format!("{name} does not exist on this host, or has no file yet");
            Err(Plan::without_steps(Readiness::Reconciling(Reason::WaitingForDisk, text)))
        }
        LocalSource::Disk { volume: Some(other), .. } if other.is_device() => {
            let text = format!("{name} is a block device of its host: no copy is made of it");
            Err(Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text)))
        }
        LocalSource::Disk { volume: Some(other), .. } if other.is_shared() => {
            let text = format!("several VMs write to {name} (ReadWriteMany): no copy is made of it");
            Err(Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text)))
        }
        LocalSource::Disk { volume: Some(other), .. } => {
            fits(disk, &name, (other.pool.as_str(), other.encryption.is_some()), (size, other.size))?;
            let new = NewSnapshot {
                pool: other.pool.clone(),
                id: identity_for_copy(volume),
                volume: other.id.clone(),
                owner: None,
            };
            let text = format!("the data of {name} is being copied");
            Err(Plan::steps(
                vec![Step::TakeSnapshot(new)],
                Readiness::Reconciling(Reason::Provisioning, text),
            ))
        }
    }
}

/// Checks that a copy of a source in this pool, which is encrypted or not, can be made with this size.
fn fits(
    disk: &Disk,
    name: &str,
    (its_pool, is_encrypted): (&str, bool),
    (size, least): (Option<u64>, u64),
) -> Result<(), Plan<Step>> {
    let pool = disk.target_pool().as_str();
    if pool != its_pool && (is_encrypted || disk.spec.encryption.is_some()) {
        let text = format!(
            "{name} is in the pool {its_pool}, and the disk in the pool {pool}: an encrypted copy is made in the pool of its source. Replace the disk by one with pool {its_pool}"
        );
        return Err(Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text)));
    }
    match size {
        Some(size) if size < least => {
            let (size, least) = (Quantity::from_bytes(size), Quantity::from_bytes(least));
            let text = format!("the disk has {size}, {name} needs at least {least}");
            Err(Plan::without_steps(Readiness::Stalled(Reason::DiskSmallerThanImage, text)))
        }
        _ => Ok(()),
    }
}

/// Returns the owner of the disk's file, as it is recorded beside it.
pub(super) fn new_owner(disk: &Disk) -> VolumeOwner {
    VolumeOwner {
        namespace: disk.namespace().unwrap_or_default(),
        name: disk.name_any(),
        uid: disk.uid(),
        image: disk.spec.image.as_ref().map(ToString::to_string),
        source: declared_source(disk),
    }
}

fn declared_source(disk: &Disk) -> Option<DeclaredSource> {
    let filesystem = disk.spec.filesystem.as_deref();
    let (full_clone, label) = (disk.is_full_clone(), filesystem.and_then(|made| made.label.clone()));
    match &disk.spec.source {
        // The volume is never in the trash.
        Some(source) if source.device.is_some() => None,
        Some(source) => Some(DeclaredSource {
            disk: source.disk.as_ref().map(ToString::to_string),
            snapshot: source.snapshot.as_ref().map(ToString::to_string),
            namespace: source
                .disk_namespace
                .as_ref()
                .or(source.snapshot_namespace.as_ref())
                .map(ToString::to_string),
            file: source.file.clone(),
            raw: source.raw_file().is_some(),
            backup: source.backup.as_ref().map(ToString::to_string),
            ..DeclaredSource::default()
        }),
        None if full_clone || filesystem.is_some() => Some(DeclaredSource {
            full_clone,
            filesystem: filesystem.map(|made| made.filesystem_type.as_str().to_owned()),
            filesystem_label: label,
            ..DeclaredSource::default()
        }),
        None => None,
    }
}
