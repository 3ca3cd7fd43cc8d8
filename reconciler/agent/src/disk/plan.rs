//! What to do about a disk. Pure.

use std::time::Duration;

use berth_api::{DeletionPolicy, Disk, Quantity, Readiness, Reason, former_uid};
use kube::ResourceExt;

use super::observe::{ImageSeen, Observed};
use super::{Step, volume_of};
use crate::converge::Plan;
use crate::pulls::Pull;
use crate::system::{NewVolume, VolumeFacts, VolumeOwner};

pub(super) fn plan(disk: &Disk, observed: &Observed) -> Plan<Step> {
    let Some(volume) = volume_of(disk) else {
        return Plan::stands(Readiness::Reconciling(Reason::Bound, "bound without a volume identity".into()));
    };
    if disk.metadata.deletion_timestamp.is_some() {
        return delete(disk, volume, observed);
    }
    match &observed.volume {
        Some(facts) => match owner(disk, facts) {
            Owner::ThisDisk => keep(disk, volume, facts, observed),
            Owner::Former => take_over(disk, facts),
            Owner::Other(uid) => {
                let text = format!(
                    "volume {volume} was made for another Disk of this name, with the uid {uid}: it is left alone"
                );
                Plan::stands(Readiness::Stalled(Reason::NotSupported, text))
            }
        },
        None => make(disk, volume, observed),
    }
}

/// Whose a volume is, by the note beside it.
enum Owner<'a> {
    ThisDisk,
    /// This disk's under the uid it had before.
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
    if let Some(user) = observed.users.first() {
        let text = format!("waits for VM {} to let go of it", user.vm);
        return Plan::stands(Readiness::Reconciling(Reason::Deleting, text));
    }
    if observed.open_size.is_some() {
        let text = "waits for the machine that has its file open".to_owned();
        return Plan::stands(Readiness::Reconciling(Reason::Deleting, text));
    }
    let mut steps = Vec::new();
    let is_its_own = |facts: &VolumeFacts| !matches!(owner(disk, facts), Owner::Other(_));
    if observed.volume.as_ref().is_some_and(is_its_own) && disk.spec.deletion_policy == DeletionPolicy::Delete
    {
        steps.push(Step::Trash { pool: disk.spec.pool.to_string(), volume: volume.to_owned() });
    }
    steps.push(Step::Release);
    Plan::steps(steps, Readiness::Reconciling(Reason::Deleting, "being deleted".into()))
}

fn keep(disk: &Disk, volume: &str, facts: &VolumeFacts, observed: &Observed) -> Plan<Step> {
    let ready = Plan::stands(Readiness::Ready(Reason::Available, String::new()));
    let wanted = match wanted_size(disk) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => return ready,
        Err(plan) => return plan,
    };
    let growing = |step| {
        let text = format!("growing to {}", Quantity::from_bytes(wanted));
        Plan::steps(vec![step], Readiness::Reconciling(Reason::Growing, text))
    };
    match observed.open_size {
        Some(size) if size < wanted => growing(Step::GrowOnline { volume: volume.to_owned(), bytes: wanted }),
        Some(_) => ready,
        None if facts.size < wanted => {
            let (pool, volume) = (facts.pool.clone(), volume.to_owned());
            growing(Step::GrowOffline { pool, volume, bytes: wanted })
        }
        None => ready,
    }
}

fn wanted_size(disk: &Disk) -> Result<Option<u64>, Plan<Step>> {
    let Some(size) = &disk.spec.size else { return Ok(None) };
    match size.bytes() {
        // A disk has whole sectors of 512 bytes.
        Ok(bytes) => Ok(Some(bytes.next_multiple_of(512))),
        Err(error) => Err(Plan::stands(Readiness::Stalled(Reason::InvalidSpec, error.to_string()))),
    }
}

fn make(disk: &Disk, volume: &str, observed: &Observed) -> Plan<Step> {
    let pool = disk.spec.pool.to_string();
    if disk.status.as_ref().is_some_and(|status| status.size.is_some()) {
        let text = format!(
            "volume {volume} was on this host and its file is gone: bring the file back, or replace the Disk"
        );
        return Plan::stands(Readiness::Stalled(Reason::DiskLost, text));
    }
    let owner = VolumeOwner {
        namespace: disk.namespace().unwrap_or_default(),
        name: disk.name_any(),
        uid: disk.uid(),
        image: disk.spec.image.as_ref().map(ToString::to_string),
    };
    if disk.annotations().contains_key(berth_api::RESTORE_ANNOTATION) {
        if !observed.in_trash {
            let text = format!("volume {volume} is not in the trash of this host (any more)");
            return Plan::stands(Readiness::Stalled(Reason::DiskLost, text));
        }
        let restore = Step::Restore { pool, volume: volume.to_owned(), owner };
        let text = "being brought back from the trash".into();
        return Plan::steps(vec![restore], Readiness::Reconciling(Reason::Provisioning, text));
    }
    let size = match wanted_size(disk) {
        Ok(size) => size,
        Err(plan) => return plan,
    };
    let base = match base(disk, size, &observed.image) {
        Ok(base) => base,
        Err(plan) => return plan,
    };
    if observed.user_waits {
        let text = "its VM was not taken on by this host yet".to_owned();
        return Plan::stands(Readiness::Reconciling(Reason::WaitingForVM, text));
    }
    let create = NewVolume { pool, id: volume.to_owned(), size, base, owner };
    Plan::steps(vec![Step::Create(create)], Readiness::Reconciling(Reason::Provisioning, "being made".into()))
}

/// What the new file is an overlay on, or why that cannot be said yet.
fn base(disk: &Disk, size: Option<u64>, image: &ImageSeen) -> Result<Option<String>, Plan<Step>> {
    let name = disk.spec.image.as_ref().map(ToString::to_string).unwrap_or_default();
    match image {
        ImageSeen::NotNeeded if size.is_some() => Ok(None),
        ImageSeen::NotNeeded => {
            let text = "size is required for a disk without an image".into();
            Err(Plan::stands(Readiness::Stalled(Reason::InvalidSpec, text)))
        }
        ImageSeen::Missing => {
            let text = format!("Image {name} does not exist (yet)");
            Err(Plan::stands(Readiness::Reconciling(Reason::WaitingForImage, text)))
        }
        ImageSeen::Absent(source) => {
            let text = format!("Image {name} is being downloaded");
            let readiness = Readiness::Reconciling(Reason::Pulling, text);
            Err(Plan::steps(vec![Step::Pull(source.clone())], readiness))
        }
        ImageSeen::Pulling(source, Pull::Running { .. }) => {
            let _ = source;
            let text = format!("Image {name} is being downloaded");
            Err(Plan::stands(Readiness::Reconciling(Reason::Pulling, text)))
        }
        ImageSeen::Pulling(_, Pull::Failed { readiness, again }) => {
            let mut plan = Plan::stands(prefixed(&name, readiness));
            if let Some(again) = again {
                plan = plan.look_again((*again).max(Duration::from_millis(1)));
            }
            Err(plan)
        }
        ImageSeen::Cached(facts) => match size {
            Some(size) if size < facts.virtual_size => {
                let image = Quantity::from_bytes(facts.virtual_size);
                let text = format!(
                    "the disk has {}, its image {name} needs at least {image}",
                    Quantity::from_bytes(size)
                );
                Err(Plan::stands(Readiness::Stalled(Reason::DiskSmallerThanImage, text)))
            }
            _ => Ok(Some(facts.sha256.clone())),
        },
    }
}

fn prefixed(image: &str, readiness: &Readiness) -> Readiness {
    let text = format!("Image {image}: {}", readiness.message());
    match readiness {
        Readiness::Stalled(reason, _) => Readiness::Stalled(*reason, text),
        other => Readiness::Reconciling(other.reason(), text),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
