//! Plan for a disk. Pure.

use std::path::PathBuf;
use std::time::Duration;

use berth_api::{DeletionPolicy, Disk, ExpandPolicy, Provisioning, Quantity, Readiness, Reason, former_uid};
use berth_host::{Fill, NewRestore, NewSnapshot, NewTake, NewVolume, VolumeFacts, VolumeOwner};
use berth_qemu::machine::{Backing, Format};
use kube::ResourceExt;

use super::Step;
use super::backup;
use super::device;
use super::encryption;
use super::fetch::{self, DiskCopy};
use super::fill;
use super::mirror;
use super::observe::Observed;
use super::source::{self, Copied};
use crate::converge::{Plan, waiting_for};
use crate::index::volume_of;
use crate::kinds::image::local::{self, Fetch, LocalImage};
use crate::moves::Move;
use crate::plugging::io_limits;
use crate::pulls::{Pull, Wanted, percent};
use crate::restores::Restore;

/// Interval at which it is seen whether the pool of the disk is back.
const LOOK_FOR_POOL: Duration = Duration::from_secs(30);
/// Interval at which it is seen whether the VM of a disk that is back has removed the file of an earlier stay.
const LOOK_FOR_EARLIER: Duration = Duration::from_secs(2);

pub(super) fn plan(disk: &Disk, observed: &Observed) -> Plan<Step> {
    let Some(volume) = volume_of(disk) else {
        return Plan::without_steps(Readiness::Reconciling(
            Reason::Bound,
            "bound without a volume identity".into(),
        ));
    };
    if let Some(text) = &observed.away {
        // Nothing is made, removed or taken for lost.
        return Plan::without_steps(Readiness::Stalled(Reason::PoolAway, text.clone()))
            .requeue_after(LOOK_FOR_POOL);
    }
    // Whoever began it: until it is finished the file below may still be the one that is written.
    if let Some(pending) = &observed.pending_snapshot {
        let new = NewSnapshot {
            pool: pending.pool.clone(),
            id: pending.id.clone(),
            volume: pending.volume.clone(),
            owner: pending.owner.clone(),
        };
        let text = format!("snapshot {} of it is being taken", pending.id);
        let readiness = Readiness::Reconciling(Reason::Provisioning, text);
        if observed.pending_with_others {
            return Plan::without_steps(readiness);
        }
        return Plan::steps(vec![Step::TakeSnapshot(new)], readiness);
    }
    if disk.metadata.deletion_timestamp.is_some() {
        return delete(disk, volume, observed);
    }
    match &observed.volume {
        Some(facts) if is_given_back(disk, facts) => {
            let step = Step::TakeOver {
                pool: facts.pool.clone(),
                volume: facts.id.clone(),
                owner: source::new_owner(disk),
            };
            let text = "the retained file becomes its own".to_owned();
            Plan::steps(vec![step], Readiness::Reconciling(Reason::Provisioning, text))
        }
        Some(facts) => match owner(disk, facts) {
            Owner::ThisDisk => {
                encryption::of_file(keep(disk, volume, facts, observed), disk, facts, observed)
            }
            Owner::Former => take_over(disk, facts),
            Owner::Other(uid) => {
                let text = format!(
                    "volume {volume} was made for another Disk of this name, with the uid {uid}: it is left alone"
                );
                Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text))
            }
        },
        None => make(disk, volume, observed),
    }
}

/// Whether the disk is to get a file of its namespace that is retained without a Disk.
fn is_given_back(disk: &Disk, facts: &VolumeFacts) -> bool {
    let restored = disk.annotations().get(berth_api::RESTORE_ANNOTATION);
    let names_it = restored.and_then(|text| text.split_once('/')).is_some_and(|(_, id)| id == facts.id);
    facts.retained && names_it && disk.metadata.namespace.as_ref() == Some(&facts.owner.namespace)
}

/// The owner of a volume according to the record beside it.
enum Owner<'a> {
    ThisDisk,
    /// This disk, under the uid it had before.
    Former,
    Other(&'a str),
}

fn owner<'a>(disk: &Disk, facts: &'a VolumeFacts) -> Owner<'a> {
    let noted = &facts.owner;
    let Some(uid) = noted.uid.as_deref().filter(|uid| Some(*uid) != disk.metadata.uid.as_deref()) else {
        return Owner::ThisDisk;
    };
    let same_name = Some(&noted.namespace) == disk.metadata.namespace.as_ref()
        && Some(&noted.name) == disk.metadata.name.as_ref();
    if same_name && former_uid(disk) == Some(uid) { Owner::Former } else { Owner::Other(uid) }
}

fn take_over(disk: &Disk, facts: &VolumeFacts) -> Plan<Step> {
    let owner = VolumeOwner { uid: disk.uid(), ..facts.owner.clone() };
    let step = Step::TakeOver { pool: facts.pool.clone(), volume: facts.id.clone(), owner };
    let text = "taken over from the uid it had before".to_owned();
    Plan::steps(vec![step], Readiness::Reconciling(Reason::Bound, text))
}

fn delete(disk: &Disk, volume: &str, observed: &Observed) -> Plan<Step> {
    // Also while a VM uses it, whose guest may be paused for the switch.
    if let Some(plan) = observed.volume.as_ref().and_then(|facts| mirror::ongoing(disk, facts, observed)) {
        return plan;
    }
    if let Some(user) = observed.users.first() {
        let text = format!("deleted, and held until nothing uses it: used by VM {}", user.vm);
        return Plan::without_steps(Readiness::Reconciling(Reason::InUse, text));
    }
    if observed.open_size.is_some() {
        let text = "waits for the machine that has its file open".to_owned();
        return Plan::without_steps(Readiness::Reconciling(Reason::Deleting, text));
    }
    if observed.is_restoring {
        let text = "the work on its file is being ended".to_owned();
        let readiness = Readiness::Reconciling(Reason::Deleting, text);
        return Plan::steps(vec![Step::CancelRestore(volume.to_owned())], readiness);
    }
    if observed.has_stray_move {
        let readiness = Readiness::Reconciling(Reason::Deleting, "its move is being ended".to_owned());
        return Plan::steps(vec![Step::CancelMove(volume.to_owned())], readiness);
    }
    if observed.volume.is_none() && is_elsewhere(disk) {
        return deleted_elsewhere(disk);
    }
    let mut steps = Vec::new();
    let is_its_own = |facts: &VolumeFacts| !matches!(owner(disk, facts), Owner::Other(_));
    // The record of a lost one would keep its image and its snapshots.
    if observed.volume.as_ref().map_or(observed.is_lost, is_its_own) {
        let pool =
            observed.volume.as_ref().map_or_else(|| disk.pool().to_string(), |facts| facts.pool.clone());
        let volume = volume.to_owned();
        let is_device = observed.volume.as_ref().is_some_and(VolumeFacts::is_device);
        steps.push(match disk.spec.deletion_policy {
            // A block device is only given up.
            DeletionPolicy::Retain if !is_device => Step::Retain { pool, volume },
            DeletionPolicy::Delete | DeletionPolicy::Retain => Step::Trash { pool, volume },
        });
    }
    steps.push(Step::Release);
    Plan::steps(steps, Readiness::Reconciling(Reason::Deleting, "being deleted".into()))
}

/// Whether another host has the data of a disk, in its folder of a shared pool or in a pool of its own.
fn is_elsewhere(disk: &Disk) -> bool {
    let status = disk.status.as_ref();
    let here = status.and_then(|status| status.binding.as_ref()).map(|binding| &binding.host);
    let former = status.and_then(|status| status.former_host.as_ref());
    former.is_some_and(|former| Some(former) != here)
}

/// Returns the plan for a deleted disk whose data was not copied or taken here: the controllers bind it to the host that has it, and that
/// one decides what becomes of its file.
fn deleted_elsewhere(disk: &Disk) -> Plan<Step> {
    let from = disk.status.as_ref().and_then(|status| status.former_host.as_deref()).unwrap_or_default();
    let text = format!("deleted: host {from} has its data still, and removes it");
    Plan::without_steps(Readiness::Reconciling(Reason::Deleting, text))
}

/// Returns the plan for a disk that has a file.
fn keep(disk: &Disk, volume: &str, facts: &VolumeFacts, observed: &Observed) -> Plan<Step> {
    if facts.restoring {
        let step = Step::FinishRestore { pool: facts.pool.clone(), volume: facts.id.clone() };
        let text = "its restore from a snapshot is being finished".to_owned();
        return Plan::steps(vec![step], Readiness::Reconciling(Reason::Provisioning, text));
    }
    if let Some(plan) = mirror::ongoing(disk, facts, observed) {
        return plan;
    }
    if observed.has_stray_move {
        let text = "its move to another pool is being ended".to_owned();
        let readiness = Readiness::Reconciling(Reason::Moving, text);
        return Plan::steps(vec![Step::CancelMove(volume.to_owned())], readiness);
    }
    if disk.is_read_write_many() && !facts.is_shared() {
        let text = format!(
            "the file of volume {volume} is for one VM at a time: declare access ReadWriteOnce, or create another Disk"
        );
        return Plan::without_steps(Readiness::Stalled(Reason::NotSupported, text));
    }
    let declared = match wanted_size(disk) {
        Ok(declared) => declared,
        Err(plan) => return plan,
    };
    if let Some(plan) = device::unusable(disk, facts, declared) {
        return plan;
    }
    let waits = match (&observed.restore, &observed.opener) {
        (Restore::Due { snapshot, declared: of }, None) => {
            return Plan::steps(
                vec![Step::RestoreSnapshot(NewRestore {
                    pool: facts.pool.clone(),
                    volume: facts.id.clone(),
                    snapshot: snapshot.clone(),
                    declared: of.clone(),
                    size: declared.unwrap_or_default(),
                })],
                Readiness::Reconciling(Reason::Provisioning, "being restored from its snapshot".to_owned()),
            );
        }
        (Restore::Due { declared: of, .. }, Some(vm)) => {
            let text = format!(
                "it has the data of DiskSnapshot {} once no VM has it open: stop VM {vm} (power: Stopped), or restart it",
                of.name
            );
            Some(Readiness::Reconciling(Reason::PowerCycleNeeded, text))
        }
        (Restore::Waits(text), _) => Some(Readiness::Reconciling(Reason::WaitingForSnapshot, text.clone())),
        (Restore::Refused(text), _) => Some(Readiness::Stalled(Reason::RestoreRefused, text.clone())),
        (Restore::Done, _) => None,
    };
    let (moves, again) = match moving(facts, observed) {
        Ok(plan) => return plan,
        Err(waits) => waits,
    };
    let waits = waits.or(moves);
    // The guest has all of a block device, also when that has grown.
    let wanted = declared.filter(|_| !facts.is_device()).unwrap_or(facts.size);
    let plan = device::looked_at_again(facts, adjust(disk, volume, facts, observed, wanted));
    match waits {
        Some(waits) if matches!(plan.readiness, Readiness::Ready(..)) => {
            let plan = Plan { readiness: waits, ..plan };
            match again {
                Some(again) => plan.requeue_after(again),
                None => plan,
            }
        }
        _ => plan,
    }
}

/// Returns the plan for a disk that is being moved, or to be moved now. The error is what else it reports, and when it is looked at again.
fn moving(
    facts: &VolumeFacts,
    observed: &Observed,
) -> Result<Plan<Step>, (Option<Readiness>, Option<Duration>)> {
    let waits = |to: &str, text: String| {
        let text = format!("it moves to the pool {to} when {text}");
        Readiness::Reconciling(Reason::MoveWaits, text)
    };
    let (to, wanted, pull) = match &observed.moving {
        Move::Done => return Err((None, None)),
        Move::Waits { to, text } => {
            return Err((Some(waits(to, format!("this has ended: {text}"))), Some(LOOK_FOR_POOL)));
        }
        Move::Refused { text, again } => {
            let again = again.map(|again| again.max(Duration::from_millis(1)));
            return Err((Some(Readiness::Stalled(Reason::MoveRefused, text.clone())), again));
        }
        Move::Due { to, wanted, pull } => (to, wanted, pull),
    };
    if let (Some(vm), Wanted::Move(_, new)) = (&observed.opener, wanted.as_ref()) {
        let begun = mirror::begin(new, vm, facts, observed);
        return begun.map_err(|(readiness, again)| (Some(readiness), again));
    }
    let progress = |percent: Option<i64>| {
        let done = percent.map(|percent| format!(" ({percent} %)")).unwrap_or_default();
        let text = format!("being moved from the pool {} to the pool {to}{done}", facts.pool);
        Readiness::Reconciling(Reason::Moving, text)
    };
    Ok(match pull {
        Some(Pull::Running { done, total, followed, .. }) => {
            let follow = (!followed).then(|| Step::FollowMove(wanted.as_ref().clone()));
            Plan::steps(follow.into_iter().collect(), progress(percent(*done, *total)))
        }
        _ => Plan::steps(vec![Step::StartMove(wanted.as_ref().clone())], progress(None)),
    })
}

/// Returns the plan for the ceilings, the space and the size of a disk.
fn adjust(disk: &Disk, volume: &str, facts: &VolumeFacts, observed: &Observed, wanted: u64) -> Plan<Step> {
    let mut steps = Vec::new();
    let own = disk.spec.limits.as_deref();
    let limits = own.map_or(observed.default_limits, |own| io_limits(Some(own)));
    if observed.open_limits.is_some_and(|open| open != limits) {
        steps.push(Step::SetLimits { volume: volume.to_owned(), limits });
    }
    // Before the disk grows: one that grew would be full before it is full.
    let reserved = facts.reserved.unwrap_or_default();
    if disk.spec.provisioning == Provisioning::Thick && reserved < wanted {
        steps.push(Step::Reserve { pool: facts.pool.clone(), volume: volume.to_owned(), bytes: wanted });
    }
    let ready = match steps.is_empty() {
        true => Readiness::Ready(Reason::Available, String::new()),
        false => Readiness::Reconciling(Reason::Provisioning, "its settings are being changed".to_owned()),
    };
    let mut plan = grow(disk, facts, observed, wanted).unwrap_or_else(|| Plan::without_steps(ready));
    plan.steps.splice(0..0, steps);
    // Last, and no state of the disk: its data is the same with any of them.
    let files = facts.backing.as_ref().map_or(0, Backing::files);
    if observed.files_below.is_some_and(|open| open > files) {
        plan.steps.push(Step::ShortenChain { pool: facts.pool.clone(), volume: volume.to_owned() });
    }
    plan
}

/// Returns the plan for a disk that is smaller than declared.
fn grow(disk: &Disk, facts: &VolumeFacts, observed: &Observed, wanted: u64) -> Option<Plan<Step>> {
    let (pool, volume) = (facts.pool.clone(), facts.id.clone());
    let growing = |step| {
        let text = format!("growing to {}", Quantity::from_bytes(wanted));
        Plan::steps(vec![step], Readiness::Reconciling(Reason::Growing, text))
    };
    let is_offline = disk.spec.expand_policy == ExpandPolicy::Offline;
    match observed.open_size {
        Some(size) if size < wanted && disk.is_read_write_many() => {
            let text = format!(
                "grows to {} while no VM has it open: stop all its VMs (power: Stopped), as each QEMU has the size of its start",
                Quantity::from_bytes(wanted)
            );
            Some(Plan::without_steps(Readiness::Reconciling(Reason::PowerCycleNeeded, text)))
        }
        Some(size) if size < wanted && (is_offline || observed.is_read_only) => {
            let why = if is_offline { "expandPolicy is Offline" } else { "its VM can only read it" };
            let text =
                format!("grows to {} at the next power cycle of its VM: {why}", Quantity::from_bytes(wanted));
            Some(Plan::without_steps(Readiness::Reconciling(Reason::PowerCycleNeeded, text)))
        }
        Some(size) if size < wanted => Some(growing(Step::GrowOnline { volume, bytes: wanted })),
        Some(_) => None,
        // When an orphan ends, the host forgets it and enqueues its disks.
        None if facts.size < wanted && observed.has_orphan => {
            let text = "grows once the machine that may have its file open answers or ends".to_owned();
            Some(Plan::without_steps(Readiness::Reconciling(Reason::Growing, text)))
        }
        None if facts.size < wanted => Some(growing(Step::GrowOffline { pool, volume, bytes: wanted })),
        None => None,
    }
}

fn wanted_size(disk: &Disk) -> Result<Option<u64>, Plan<Step>> {
    let Some(size) = &disk.spec.size else { return Ok(None) };
    match size.bytes() {
        // A disk consists of whole 512-byte sectors.
        Ok(bytes) => Ok(Some(bytes.next_multiple_of(512))),
        Err(error) => Err(Plan::without_steps(Readiness::Stalled(Reason::InvalidSpec, error.to_string()))),
    }
}

fn make(disk: &Disk, volume: &str, observed: &Observed) -> Plan<Step> {
    let pool = disk.target_pool().to_string();
    if let Some(device) = disk.block_device() {
        return match (device::lost(disk, volume, device), wanted_size(disk)) {
            (Some(lost), _) => lost,
            (None, Ok(_)) if observed.user_waits => user_waits(disk),
            (None, Ok(size)) => device::take(disk, volume, device, size),
            (None, Err(plan)) => plan,
        };
    }
    if let Some(from) = disk.status.as_ref().and_then(|status| status.former_host.clone()) {
        return match &observed.fetch {
            Some(fetch) => copy(disk, &from, fetch, observed),
            None => take(disk, volume, from, observed),
        };
    }
    if observed.is_lost || disk.status.as_ref().is_some_and(|status| status.size.is_some()) {
        let text = format!(
            "volume {volume} was on this host and its file is gone: bring the file back, or replace the Disk"
        );
        return Plan::without_steps(Readiness::Stalled(Reason::DiskLost, text));
    }
    let owner = source::new_owner(disk);
    if disk.annotations().contains_key(berth_api::RESTORE_ANNOTATION) {
        if !observed.in_trash {
            let text =
                format!("volume {volume} is neither in the trash of this host nor retained (any more)");
            return Plan::without_steps(Readiness::Stalled(Reason::DiskLost, text));
        }
        let restore = Step::Restore { pool, volume: volume.to_owned(), owner };
        let text = "being brought back from the trash".into();
        return Plan::steps(vec![restore], Readiness::Reconciling(Reason::Provisioning, text));
    }
    let size = match wanted_size(disk) {
        Ok(size) => size,
        Err(plan) => return plan,
    };
    let encryption = match encryption::of_new_file(observed) {
        Ok(key) => key,
        Err(plan) => return plan,
    };
    if let Some(local) = &observed.backup {
        return match observed.user_waits {
            true => user_waits(disk),
            false => backup::plan(disk, size, local, encryption),
        };
    }
    let file = disk.spec.source.as_ref().and_then(|source| source.file.as_ref()).map(PathBuf::from);
    let copied = observed.source.as_ref().map(|source| source::base(disk, volume, size, source)).transpose();
    let (base, copied) = match copied {
        Ok(Some(copied)) => (None, Some(copied)),
        Ok(None) if file.is_some() => (None, None),
        Ok(None) => match base(disk, size, observed.image.as_ref()) {
            Ok(base) => (base, None),
            Err(plan) => return plan,
        },
        Err(plan) => return plan,
    };
    // In another pool it cannot be based on the snapshot.
    let (snapshot, data) = match copied {
        Some(Copied { pool: its_pool, id }) if its_pool != pool => {
            (None, Some(Fill::Snapshot { pool: its_pool, id }))
        }
        Some(Copied { id, .. }) => (Some(id), None),
        None => (None, fill::of(disk, observed.is_in_ceph)),
    };
    if observed.user_waits {
        return user_waits(disk);
    }
    let thick = disk.spec.provisioning == Provisioning::Thick;
    let shared = disk.is_read_write_many();
    let id = volume.to_owned();
    let file = file.filter(|_| data.is_none());
    let create = NewVolume { encryption, pool, id, size, base, snapshot, file, thick, shared, owner };
    if let Some(data) = data {
        return fill::plan(disk, create, data, observed.filling.as_ref());
    }
    Plan::steps(vec![Step::Create(create)], Readiness::Reconciling(Reason::Provisioning, "being made".into()))
}

/// Returns the plan for a disk whose file is still in the folder of its former host: nothing else is ever made for it.
fn take(disk: &Disk, volume: &str, from: String, observed: &Observed) -> Plan<Step> {
    if let Some(pool) = &observed.earlier_in {
        // A later move to that pool would take it for the data of the disk.
        let text = format!(
            "its file of an earlier stay, in the pool {pool} of this host, is removed once its VM is bound here: the file of host {from} is taken after that"
        );
        return Plan::without_steps(Readiness::Reconciling(Reason::Moving, text))
            .requeue_after(LOOK_FOR_EARLIER);
    }
    let base = match base_of_moved(disk, observed) {
        Ok(base) => base,
        Err(plan) => return plan,
    };
    if observed.user_waits {
        return user_waits(disk);
    }
    let text = format!("its file is being taken from the folder of host {from}");
    let new = NewTake { pool: disk.pool().to_string(), id: volume.to_owned(), from, uid: disk.uid(), base };
    Plan::steps(vec![Step::Take(new)], Readiness::Reconciling(Reason::Moving, text))
}

/// Returns the plan for a disk whose data is on its former host, which has the pool for itself: nothing else is ever made for it.
fn copy(disk: &Disk, from: &str, fetch: &DiskCopy, observed: &Observed) -> Plan<Step> {
    let base = match base_of_moved(disk, observed) {
        Ok(base) => base,
        Err(plan) => return plan,
    };
    let Some(wanted) = fetch.wanted.as_deref().filter(|_| !observed.user_waits) else {
        return user_waits(disk);
    };
    let copying = |percent: Option<i64>| {
        let done = percent.map(|percent| format!(" ({percent} %)")).unwrap_or_default();
        Readiness::Reconciling(Reason::Moving, format!("being copied from host {from}{done}"))
    };
    match &fetch.pull {
        None => Plan::steps(vec![Step::Fetch(fetch::with_base(wanted.clone(), base))], copying(None)),
        Some(Pull::Running { done, total, followed, .. }) => {
            let follow = (!followed).then(|| Step::FollowMove(wanted.clone()));
            Plan::steps(follow.into_iter().collect(), copying(percent(*done, *total)))
        }
        Some(Pull::Failed { readiness, again }) => {
            let why = readiness.message();
            let text = format!(
                "it is not copied from host {from} yet, which has its data: {why}. Its VM can move on, also back to host {from} (berth move)"
            );
            Plan::without_steps(waiting_for(readiness, text)).requeue_for_retry(*again)
        }
        Some(Pull::Found(_) | Pull::Stored(_) | Pull::Deleted | Pull::Verified(_)) => {
            Plan::without_steps(copying(None))
        }
    }
}

/// Returns the plan while the VM is not admitted. As the controllers reported it: that this host has not admitted the VM yet, or refuses
/// it, is in the VM's status.
fn user_waits(disk: &Disk) -> Plan<Step> {
    let binding = disk.status.as_ref().and_then(|status| status.binding.as_ref());
    let host = binding.map(|binding| binding.host.as_str()).unwrap_or_default();
    Plan::without_steps(Readiness::bound_to(host))
}

/// Returns the image below a file that comes from another host, if there is one. The file has its size, also if content of the image that was
/// made anew since is larger.
fn base_of_moved(disk: &Disk, observed: &Observed) -> Result<Option<String>, Plan<Step>> {
    match disk.image_below(observed.is_in_ceph) {
        Some(_) => base(disk, Some(u64::MAX), observed.image.as_ref()),
        None => Ok(None),
    }
}

/// Returns the base image of the new file's overlay, or the plan to wait until it is known.
fn base(disk: &Disk, size: Option<u64>, image: Option<&LocalImage>) -> Result<Option<String>, Plan<Step>> {
    let name = disk.spec.image.as_ref().map(ToString::to_string).unwrap_or_default();
    let stalled = |reason, text| Err(Plan::without_steps(Readiness::Stalled(reason, text)));
    let Some(image) = image else {
        return match size {
            Some(_) => Ok(None),
            None => stalled(Reason::InvalidSpec, "size is required for a disk without an image".into()),
        };
    };
    let facts = local::ready(&name, image, |fetch, source| match fetch {
        Fetch::Pull => Step::Pull(source),
        Fetch::FollowPull => Step::FollowPull(source),
    })?;
    if facts.format == Format::Iso {
        let text = format!(
            "Image {name} is an iso: it can be in a CD-ROM drive of a VM, and no disk is made from it"
        );
        return stalled(Reason::InvalidSpec, text);
    }
    match size {
        Some(size) if size < facts.virtual_size => {
            let image = Quantity::from_bytes(facts.virtual_size);
            let size = Quantity::from_bytes(size);
            let text = format!("the disk has {size}, its image {name} needs at least {image}");
            stalled(Reason::DiskSmallerThanImage, text)
        }
        _ => Ok(Some(facts.digest.clone())),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
