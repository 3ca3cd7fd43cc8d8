//! Backup: the data of a snapshot of this host in a repository.
//!
//! ```text
//!  snapshot: (taken) ─BackUp─▶ complete …      existing: ─Find─▶ complete …      complete, requested: ─Verify─▶ complete
//!  deleted: ─Cancel─▶ ─Delete─▶ ─Release─▶ (gone)      Retain: ─Cancel─▶ ─Release─▶ (gone)
//! ```
//!
//! The work goes on in the background (`pulls`). A backup is complete once it was read back from the repository; from then on nothing
//! is read of it here, until a Disk is made from it, or it is verified or deleted. One that is deleted without its finalizer stays in the
//! repository.

mod apply;
mod observe;
mod plan;
mod status;
#[cfg(test)]
mod tests;
mod verification;

use async_trait::async_trait;
use berth_api::backup::declaration::VMDeclaration;
use berth_api::{Backup, BackupStatus, Binding, Conditions, DeletionPolicy, Disk, Readiness, Reason, VM};
use berth_host::{BackupId, BackupParent, NewBackup};
use jiff::Timestamp;

use observe::Observed;

use crate::context::Context;
use crate::converge::{Plan, Reconciler};
use crate::credentials::Repository;
use crate::details::Details;
use crate::error::Error;
use crate::index::{Change, Indexed, Table, Tables};
use crate::key::{Key, ObjectName};
use crate::pulls::Wanted;
use crate::recorder::EventType;
pub(crate) use verification::damaged_backups;

/// A step of a backup's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Starts the backup, its search, verification or deletion, which continues in the background.
    Start(Wanted),
    /// Has the object enqueued on the progress of work that goes on.
    Follow(Wanted),
    /// Ends a backup that is being made, so that nothing is written after its deletion.
    Cancel(Wanted),
    /// Removes this host's finalizer.
    Release,
}

impl Indexed for Backup {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.backups
    }

    fn keys_of(name: &ObjectName, _: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = vec![Key::new::<Backup>(name.clone()), Key::host()];
        keys.extend(disks_of(name, tables));
        keys
    }

    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        let both = [&change.old, &change.new].into_iter().flatten();
        let mut keys: Vec<Key> =
            both.flat_map(|backup| Self::keys_of(&change.name, backup, tables)).collect();
        if let Some(old) = &change.old
            && verification::gives_way(old, change.new.as_deref())
        {
            keys.extend(verification::waiting_beside(tables, old));
        }
        keys
    }

    fn reads_own_write(_: &Self, _: &Self) -> bool {
        false
    }
}

/// Returns the keys of the Disks that are made from this Backup.
pub(crate) fn disks_of<'a>(name: &'a ObjectName, tables: &'a Tables) -> impl Iterator<Item = Key> + 'a {
    let disks = tables.disks.in_namespace(&name.namespace).filter(|(_, disk)| {
        let source = disk.spec.source.as_ref().and_then(|source| source.backup.as_ref());
        source.is_some_and(|source| source.as_str() == name.name)
    });
    disks.map(|(disk, _)| Key::new::<Disk>(disk.clone()))
}

#[derive(Debug)]
pub(crate) struct BackupReconciler;

#[async_trait]
impl Reconciler for BackupReconciler {
    type Object = Backup;
    type Status = BackupStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, backup: &Backup) -> Result<Observed, Error> {
        Ok(observe::observe(ctx, backup))
    }

    fn plan(backup: &Backup, observed: &Observed) -> Plan<Step> {
        plan::plan(backup, observed)
    }

    async fn apply(ctx: &Context, backup: &Backup, step: &Step) -> Result<(), Error> {
        apply::apply(ctx, backup, step).await
    }

    fn status(backup: &Backup, observed: &Observed, readiness: &Readiness, now: Timestamp) -> BackupStatus {
        status::status(backup, observed, readiness, now)
    }

    fn event(stored: Option<&BackupStatus>, status: &BackupStatus) -> Option<(EventType, Reason, String)> {
        let (reason, note) = verification::event(stored, status)?;
        Some((EventType::Warning, reason, note))
    }

    fn binding(backup: &Backup) -> Option<&Binding> {
        backup.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &BackupStatus) -> &Conditions {
        &status.conditions
    }
}

/// Returns the repository that a Backup names.
pub(crate) fn repository_of(tables: &Tables, backup: &Backup) -> Option<Repository> {
    let name = ObjectName::of(backup).beside(backup.spec.repository.as_str());
    Repository::of(tables.backup_repositories.get(&name)?.as_ref())
}

/// Returns the identity that a backup has in its repository.
pub(crate) fn id_of(backup: &Backup) -> Option<BackupId> {
    backup.identity().map(|(disk, backup)| BackupId { disk, backup })
}

/// Returns the work on the repositories that the Backups of this host need.
pub(crate) fn wanted<'a>(tables: &'a Tables, host: &'a str) -> impl Iterator<Item = Wanted> + 'a {
    let backups = tables.backups.all().map(|(_, backup)| backup);
    let here = backups.filter(move |backup| {
        let binding = backup.status.as_ref().and_then(|status| status.binding.as_ref());
        binding.is_some_and(|binding| binding.host == host)
    });
    let others = here.filter(|backup| backup.requested_verification().is_none());
    others.filter_map(|backup| wanted_by(tables, backup)).chain(verification::all_wanted(tables, host))
}

/// Returns the work that a Backup needs. None: nothing, or its repository does not exist.
fn wanted_by(tables: &Tables, backup: &Backup) -> Option<Wanted> {
    if backup.metadata.deletion_timestamp.is_some() {
        let deletes = backup.spec.deletion_policy == DeletionPolicy::Delete;
        let (repository, id) = (repository_of(tables, backup)?, id_of(backup)?);
        let goes = deletes && !another_has(tables, &repository, &id);
        return goes.then_some(Wanted::Deletion(repository, id));
    }
    if backup.is_complete() { verification::wanted(tables, backup) } else { made_by(tables, backup) }
}

/// Whether another Backup, which is not deleted, is of the same data.
fn another_has(tables: &Tables, repository: &Repository, id: &BackupId) -> bool {
    let living = tables.backups.all().filter(|(_, backup)| backup.metadata.deletion_timestamp.is_none());
    let mut same = living.filter(|(_, backup)| id_of(backup).as_ref() == Some(id));
    same.any(|(_, backup)| repository_of(tables, backup).is_some_and(|other| other.place == repository.place))
}

/// Returns the work that completes a Backup.
fn made_by(tables: &Tables, backup: &Backup) -> Option<Wanted> {
    let (repository, id) = (repository_of(tables, backup)?, id_of(backup)?);
    if backup.spec.existing.is_some() {
        return Some(Wanted::Existing(repository, id));
    }
    let status = backup.status.as_ref()?;
    let new = NewBackup {
        id: id.clone(),
        pool: status.pool.as_ref()?.to_string(),
        snapshot: status.snapshot_id.clone()?,
        parents: parents(tables, backup, &id),
        declaration: declaration(tables, backup),
    };
    Some(Wanted::Backup(repository, id, Details(new)))
}

/// Returns the declaration of the VM that has the disk in its list, and of the disk.
fn declaration(tables: &Tables, backup: &Backup) -> Option<String> {
    let own = ObjectName::of(backup);
    let snapshot = tables.disk_snapshots.get(&own.beside(backup.spec.snapshot.as_ref()?.as_str()))?;
    let disk = tables.disks.get(&own.beside(snapshot.spec.disk.as_str()))?;
    let has_it = |vm: &VM| vm.spec.disks.iter().any(|of_vm| of_vm.name == snapshot.spec.disk);
    let mut vms = tables.vms.in_namespace(&own.namespace).map(|(_, vm)| vm);
    VMDeclaration::of(vms.find(|vm| has_it(vm))?, &disk).encode()
}

/// Returns the complete Backups of the same disk in the same repository, the newest first.
fn parents(tables: &Tables, backup: &Backup, id: &BackupId) -> Vec<BackupParent> {
    let namespace = backup.metadata.namespace.as_ref();
    let is_same = |other: &Backup| {
        other.metadata.namespace.as_ref() == namespace
            && other.spec.repository == backup.spec.repository
            && other.metadata.deletion_timestamp.is_none()
            && other.is_complete()
            && id_of(other).is_some_and(|other| other.disk == id.disk && other.backup != id.backup)
    };
    let all = tables.backups.all().map(|(_, other)| other).filter(|other| is_same(other));
    let moment =
        |other: &Backup| -> Option<Timestamp> { other.status.as_ref()?.taken_at.as_ref()?.parse().ok() };
    let mut found: Vec<(Option<Timestamp>, BackupParent)> = all
        .filter_map(|other| {
            let snapshot = other.status.as_ref()?.snapshot_id.clone()?;
            Some((moment(other), BackupParent { backup: id_of(other)?.backup, snapshot }))
        })
        .collect();
    found.sort_by(|a, b| (b.0, &b.1.backup).cmp(&(a.0, &a.1.backup)));
    found.into_iter().map(|(_, parent)| parent).collect()
}
