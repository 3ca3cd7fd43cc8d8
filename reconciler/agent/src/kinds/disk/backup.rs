//! The backup that a disk is made from.

use berth_api::{Disk, Provisioning, Quantity, Readiness, Reason};
use berth_host::{NewVolume, SealedKey};

use super::Step;
use super::source::new_owner;
use crate::context::Context;
use crate::converge::{Plan, waiting_for};
use crate::details::Details;
use crate::index::{Tables, volume_of};
use crate::key::{Key, ObjectName};
use crate::kinds::backup::{id_of, repository_of};
use crate::pulls::{Pull, Wanted, percent};

/// A backup, and the work that makes a disk from it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LocalBackup {
    /// It does not exist, is not complete or is being deleted, or its repository does not exist: for people.
    Awaited(String),
    Complete {
        wanted: Box<Wanted>,
        size: u64,
        pull: Option<Pull>,
    },
}

/// Returns the work on repositories that the Disks of this host need.
pub(crate) fn wanted(tables: &Tables) -> impl Iterator<Item = Wanted> + '_ {
    let unmade = tables.disks.all().map(|(_, disk)| disk).filter(|disk| {
        let is_made = disk.status.as_ref().is_some_and(|status| status.size.is_some());
        !is_made && disk.metadata.deletion_timestamp.is_none()
    });
    unmade.filter_map(|disk| wanted_by(tables, disk)?.ok()).map(|(wanted, _)| wanted)
}

pub(super) fn observe(ctx: &Context, disk: &Disk) -> Option<LocalBackup> {
    let found = wanted_by(&ctx.index.read(), disk)?;
    Some(match found {
        Ok((wanted, size)) => {
            let pull = ctx.pulls.state(&wanted, &Key::of(disk));
            LocalBackup::Complete { wanted: Box::new(wanted), size, pull }
        }
        Err(text) => LocalBackup::Awaited(text),
    })
}

/// Returns the work, and the size of the backup in bytes; None for a disk that is made from none. The error is what it waits for.
fn wanted_by(tables: &Tables, disk: &Disk) -> Option<Result<(Wanted, u64), String>> {
    let name = disk.spec.source.as_ref()?.backup.as_ref()?;
    let volume = volume_of(disk)?;
    let Some(backup) = tables.backups.get(&ObjectName::of(disk).beside(name.as_str())) else {
        return Some(Err(format!("Backup {name} does not exist")));
    };
    if backup.metadata.deletion_timestamp.is_some() {
        return Some(Err(format!("Backup {name} is being deleted")));
    }
    let size = backup.status.as_ref().filter(|_| backup.is_complete()).and_then(|status| status.size.clone());
    let size = size.and_then(|size| Quantity(size).bytes().ok());
    let (Some(size), Some(id)) = (size, id_of(&backup)) else {
        return Some(Err(format!("Backup {name} is not complete yet")));
    };
    let Some(repository) = repository_of(tables, &backup) else {
        return Some(Err(format!(
            "BackupRepository {} of Backup {name} does not exist",
            backup.spec.repository
        )));
    };
    let declared = disk.spec.size.as_ref().and_then(|size| size.bytes().ok());
    let new = NewVolume {
        encryption: None,
        pool: disk.target_pool().to_string(),
        id: volume.to_owned(),
        // A disk consists of whole 512-byte sectors.
        size: Some(declared.unwrap_or(size).next_multiple_of(512)),
        base: None,
        snapshot: None,
        file: None,
        thick: disk.spec.provisioning == Provisioning::Thick,
        shared: false,
        owner: new_owner(disk),
    };
    Some(Ok((Wanted::Restore(repository, id, volume.to_owned(), Details(Box::new(new))), size)))
}

/// Returns the plan for a disk that has no file yet. Pure.
pub(super) fn plan(
    disk: &Disk,
    size: Option<u64>,
    local: &LocalBackup,
    encryption: Option<Box<SealedKey>>,
) -> Plan<Step> {
    let source = disk.spec.source.as_ref().and_then(|source| source.backup.as_ref());
    let name = source.map(ToString::to_string).unwrap_or_default();
    let (wanted, least, pull) = match local {
        LocalBackup::Awaited(text) => {
            return Plan::without_steps(Readiness::Reconciling(Reason::WaitingForBackup, text.clone()));
        }
        LocalBackup::Complete { wanted, size, pull } => (wanted, *size, pull),
    };
    if let Some(size) = size.filter(|size| *size < least) {
        let (size, least) = (Quantity::from_bytes(size), Quantity::from_bytes(least));
        let text = format!("the disk has {size}, Backup {name} needs at least {least}");
        return Plan::without_steps(Readiness::Stalled(Reason::DiskSmallerThanImage, text));
    }
    let restoring = |done, total| {
        let text = match percent(done, total) {
            Some(percent) => format!("{percent} % of Backup {name} written"),
            None => format!("the data of Backup {name} is being written"),
        };
        Readiness::Reconciling(Reason::Restoring, text)
    };
    match pull {
        None => {
            let wanted = with_key(wanted.as_ref().clone(), encryption);
            Plan::steps(vec![Step::StartRestore(wanted)], restoring(0, None))
        }
        Some(Pull::Running { done, total, followed, .. }) => {
            let follow = (!followed).then(|| Step::FollowRestore(wanted.as_ref().clone()));
            Plan::steps(follow.into_iter().collect(), restoring(*done, *total))
        }
        Some(Pull::Failed { readiness, again }) => {
            let text = format!("Backup {name}: {}", readiness.message());
            Plan::without_steps(waiting_for(readiness, text)).requeue_for_retry(*again)
        }
        Some(Pull::Found(_) | Pull::Stored(_) | Pull::Deleted | Pull::Verified(_)) => {
            Plan::without_steps(restoring(0, None))
        }
    }
}

/// Returns the work with the key that the new file is encrypted with.
fn with_key(wanted: Wanted, encryption: Option<Box<SealedKey>>) -> Wanted {
    match wanted {
        Wanted::Restore(repository, id, volume, Details(new)) => {
            Wanted::Restore(repository, id, volume, Details(Box::new(NewVolume { encryption, ..*new })))
        }
        other => other,
    }
}
