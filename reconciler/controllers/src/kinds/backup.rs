//! The Backup controller: binds a backup to the host of its snapshot, or one that exists already to a host that reaches its
//! repository. When the host is gone for good, a complete backup has none until it is deleted: then one that reaches the repository
//! deletes its data, and one that is to be verified, or read by a client, goes to such a host too.

mod one_host;
mod reads;
mod verification;

use std::sync::Arc;

use berth_api::{
    Backup, BackupRepository, BackupStatus, Binding, Consistency, DeletionPolicy, DiskSnapshot,
    HOST_FINALIZER, Readiness, Reason, ResourceName,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::{Key, ObjectKind},
    kinds::quota,
    plan::{Dependency, Outcome, Plan, Step},
};

/// The inputs of a Backup's decision.
#[derive(Clone, Debug, Default)]
struct Observed {
    /// Its repository, unless that is being deleted.
    repository: Option<Arc<BackupRepository>>,
    snapshot: Option<Arc<DiskSnapshot>>,
    /// Whether the host that it is bound to is fenced or removed.
    host_gone: bool,
    /// Whether that host is being deleted.
    host_leaves: bool,
    /// The host of its snapshot does not offer the folder of its repository.
    no_folder_there: bool,
    /// A host that reaches the repository.
    reaches: Option<String>,
    /// Whether it is to be read: verified, or for a client.
    is_to_be_read: bool,
    /// Of a new one: the others of its disk that are bound to another host than its snapshot.
    elsewhere: Vec<Arc<Backup>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    NoChange,
    Report(Readiness),
    Bind(Bound),
    /// Its host is gone for good or is being deleted, and its data is in the repository.
    Unbind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    host: String,
    /// The identities that it has not got yet.
    new: Option<NewIdentity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NewIdentity {
    volume_id: String,
    backup_id: String,
    /// Of one that is made of a snapshot.
    snapshot: Option<(String, ResourceName)>,
    size: Option<String>,
    taken_at: Option<String>,
    consistency: Option<Consistency>,
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(backup) = cache.tables.backups.get(key).cloned() else { return Outcome::Settled };
    let now = config.clock.now();
    let mut observed = observe(cache, &backup);
    let of_verification = verification::observe(cache, &backup, observed.repository.as_deref());
    let verification = verification::plan(&backup, &of_verification, now);
    observed.is_to_be_read = verification.is_due() || reads::is_wanted(&backup, now);
    let plan = within_quota(cache, key, &backup, plan(&backup, &observed));
    if let Decision::Bind(_) = &plan.decision {
        batch.hold(cache, [repository_key(&backup)]);
    }
    batch.steps(cache, now, &plan.steps);
    one_host::release(cache, &observed, &plan.decision, batch);
    let mut status = status(&backup, &plan.decision, now);
    verification::write(&mut status, &verification, now);
    if let (true, Some(repository), Some(binding)) =
        (verification.is_due(), &observed.repository, &status.binding)
    {
        let role = Key::secrets_role(&binding.host, &backup.namespace().unwrap_or_default());
        let secrets = repository.spec.secrets().map(ToString::to_string).collect();
        batch.allow(cache, &binding.host, role, secrets);
    }
    batch.status(backup.as_ref(), status);
    verification::concerned(cache, &backup).into_iter().for_each(|other| batch.enqueue(other));
    if let (Decision::Unbind, Some(binding)) = (&plan.decision, binding(&backup)) {
        // It is removed with the last object that is bound to it.
        batch.enqueue(Key::cluster(ObjectKind::Host, &binding.host));
    }
    let mut outcome = plan.outcome;
    if let Some(end) = reads::reconcile(cache, config, &backup, batch) {
        outcome = outcome.and(Dependency::Time(end));
    }
    if backup.is_complete() {
        // Its policy.
        outcome = outcome.and(Dependency::Object(repository_key(&backup)));
    }
    match verification {
        verification::Decision::Later(Some(next)) => outcome.and(Dependency::Time(next)),
        _ => outcome,
    }
}

/// Holds a new backup of a snapshot back while a Quota of its namespace is used up. One that exists already adds nothing.
fn within_quota(cache: &Cache, key: &Key, backup: &Backup, plan: Plan<Decision>) -> Plan<Decision> {
    let is_new = matches!(&plan.decision, Decision::Bind(Bound { new: Some(_), .. }));
    if !is_new || backup.spec.snapshot.is_none() {
        return plan;
    }
    match quota::excess(cache, key) {
        Some(excess) => {
            let readiness = Readiness::Reconciling(Reason::QuotaExceeded, excess.text);
            Plan::blocked(Decision::Report(readiness), vec![excess.dependency])
        }
        None => plan,
    }
}

fn binding(backup: &Backup) -> Option<&Binding> {
    backup.status.as_ref()?.binding.as_ref()
}

fn repository_key(backup: &Backup) -> Key {
    let namespace = backup.namespace().unwrap_or_default();
    Key::namespaced(ObjectKind::BackupRepository, &namespace, backup.spec.repository.as_str())
}

fn observe(cache: &Cache, backup: &Backup) -> Observed {
    let key = repository_key(backup);
    let repository = cache.tables.backup_repositories.get(&key);
    let lives = |object: &&Arc<BackupRepository>| {
        // Its backups are deleted before it goes.
        object.metadata.deletion_timestamp.is_none() || backup.metadata.deletion_timestamp.is_some()
    };
    let repository = repository.filter(lives).cloned();
    let snapshot = backup.spec.snapshot.as_ref();
    let snapshot =
        snapshot.and_then(|name| cache.tables.disk_snapshots.named(key.namespace(), name.as_str()));
    let folder = repository.as_ref().and_then(|repository| repository.spec.folder.as_deref());
    let offers = |host: &str| {
        let candidate = cache.index.capacity.get(host);
        folder.is_none_or(|folder| candidate.is_some_and(|host| host.backup_folders.contains(folder)))
    };
    let snapshot_host = snapshot.and_then(|s| Some(s.status.as_ref()?.binding.as_ref()?.host.as_str()));
    Observed {
        host_gone: binding(backup).is_some_and(|bound| cache.is_gone(&bound.host)),
        host_leaves: binding(backup).is_some_and(|bound| cache.is_leaving(&bound.host)),
        no_folder_there: snapshot_host.is_some_and(|host| !offers(host)),
        // Only one without a host needs another: it is looked for among all Backups of the repository.
        reaches: binding(backup).is_none().then(|| reaches(cache, backup, offers)).flatten(),
        elsewhere: snapshot
            .filter(|_| binding(backup).is_none() && !backup.is_complete())
            .map_or_else(Vec::new, |snapshot| one_host::elsewhere(cache, backup, snapshot)),
        snapshot: snapshot.cloned(),
        repository,
        is_to_be_read: false,
    }
}

/// Returns a host that reaches the repository: the one of another Backup of the same disk, so that one host changes the data of a
/// disk, or else the one with the fewest VMs.
fn reaches(cache: &Cache, backup: &Backup, offers: impl Fn(&str) -> bool) -> Option<String> {
    let usable = |host: &str| {
        cache.is_alive(host) && !cache.is_fenced(host) && !cache.is_leaving(host) && offers(host)
    };
    let (disk, _) = backup.identity()?;
    if let Some(writer) = one_host::writer(cache, backup, &disk) {
        return Some(writer).filter(|host| usable(host));
    }
    let same = one_host::hosts_of(cache, backup, &disk);
    if let Some(host) = same.iter().find(|host| usable(host)) {
        return Some(host.clone());
    }
    // One that does not answer now may be making a backup of the disk.
    if backup.metadata.deletion_timestamp.is_some() && !same.is_empty() {
        return None;
    }
    let hosts = cache.tables.hosts.all().map(|host| host.name_any()).filter(|name| usable(name));
    hosts.min_by_key(|name| (cache.index.capacity.usage(name).vms, name.clone()))
}

fn plan(backup: &Backup, observed: &Observed) -> Plan<Decision> {
    let key = Key::of(backup);
    let is_deleted = backup.metadata.deletion_timestamp.is_some();
    let is_whole = one_host::is_whole(backup);
    match binding(backup) {
        Some(bound) if observed.host_gone => {
            if is_deleted || is_whole {
                return Plan::settled(Decision::Unbind);
            }
            let text = format!(
                "its snapshot was on host {}, which is gone for good, before the backup was complete: delete it",
                bound.host
            );
            Plan::settled(Decision::Report(Readiness::Stalled(Reason::HostFenced, text)))
        }
        // It would hold the Host for as long as it exists.
        Some(_) if observed.host_leaves && is_whole && !is_deleted => Plan::settled(Decision::Unbind),
        Some(_) => {
            let mut plan = Plan::settled(Decision::NoChange);
            if !is_deleted {
                // Restored after its removal: the host has to delete the data first.
                plan.steps.push(Step::AddFinalizer(key, HOST_FINALIZER));
            }
            plan
        }
        None if is_deleted => delete_unbound(backup, observed),
        None if backup.is_complete() && observed.is_to_be_read => bind_complete(backup, observed),
        None if backup.is_complete() => Plan::settled(Decision::NoChange),
        None => bind(backup, observed),
    }
}

/// The plan for a deleted backup without a host: another one deletes its data.
fn delete_unbound(backup: &Backup, observed: &Observed) -> Plan<Decision> {
    let has_data = backup.status.as_ref().is_some_and(|status| status.backup_id.is_some());
    let deletes = backup.spec.deletion_policy == DeletionPolicy::Delete;
    if !has_data || !deletes || observed.repository.is_none() {
        let mut plan = Plan::settled(Decision::NoChange);
        plan.steps.push(Step::RemoveFinalizer(Key::of(backup), HOST_FINALIZER));
        return plan;
    }
    match &observed.reaches {
        Some(host) => Plan::settled(Decision::Bind(Bound { host: host.clone(), new: None })),
        None => no_host(backup),
    }
}

/// The plan for a complete backup without a host that is to be read.
fn bind_complete(backup: &Backup, observed: &Observed) -> Plan<Decision> {
    match &observed.reaches {
        Some(host) if observed.repository.is_some() => Plan {
            steps: vec![Step::AddFinalizer(Key::of(backup), HOST_FINALIZER)],
            ..Plan::settled(Decision::Bind(Bound { host: host.clone(), new: None }))
        },
        _ => Plan::blocked(Decision::NoChange, vec![Dependency::Hosts]),
    }
}

fn no_host(backup: &Backup) -> Plan<Decision> {
    let text = format!("no ready host can reach BackupRepository {}", backup.spec.repository);
    let readiness = Readiness::Reconciling(Reason::Pending, text);
    Plan::blocked(
        Decision::Report(readiness),
        vec![Dependency::Hosts, Dependency::Object(repository_key(backup))],
    )
}

fn bind(backup: &Backup, observed: &Observed) -> Plan<Decision> {
    let repository = Dependency::Object(repository_key(backup));
    let Some(found) = &observed.repository else {
        let text = format!("BackupRepository {} does not exist, or is being deleted", backup.spec.repository);
        let readiness = Readiness::Reconciling(Reason::WaitingForRepository, text);
        return Plan::blocked(Decision::Report(readiness), vec![repository]);
    };
    let bound = match &backup.spec.snapshot {
        None => match (&observed.reaches, backup.identity()) {
            (Some(host), Some((volume_id, backup_id))) => Bound {
                host: host.clone(),
                new: Some(NewIdentity {
                    volume_id,
                    backup_id,
                    snapshot: None,
                    size: None,
                    taken_at: None,
                    consistency: None,
                }),
            },
            _ => return no_host(backup),
        },
        Some(name) => match of_snapshot(backup, name, observed.snapshot.as_deref()) {
            Ok(bound) if observed.no_folder_there => {
                let folder = found.spec.folder.as_deref().unwrap_or_default();
                let text = format!(
                    "host {}, which has the snapshot, does not offer the folder {folder}: see status.backupFolders of the Host",
                    bound.host
                );
                let readiness = Readiness::Stalled(Reason::BackupFolderUnavailable, text);
                return Plan::blocked(Decision::Report(readiness), vec![Dependency::Hosts, repository]);
            }
            Ok(bound) => match one_host::waits(backup, observed) {
                Some(waits) => return waits,
                None => bound,
            },
            Err(text) => {
                let key = Key::of(backup);
                let snapshot = Key::namespaced(ObjectKind::DiskSnapshot, key.namespace(), name.as_str());
                let readiness = Readiness::Reconciling(Reason::WaitingForSnapshot, text);
                return Plan::blocked(Decision::Report(readiness), vec![Dependency::Object(snapshot)]);
            }
        },
    };
    Plan {
        steps: vec![Step::AddFinalizer(Key::of(backup), HOST_FINALIZER)],
        decision: Decision::Bind(bound),
        outcome: Outcome::Settled,
    }
}

/// Returns the host of the snapshot, and the identities. The error is what is waited for.
fn of_snapshot(
    backup: &Backup,
    name: &ResourceName,
    snapshot: Option<&DiskSnapshot>,
) -> Result<Bound, String> {
    let snapshot = snapshot.ok_or_else(|| format!("DiskSnapshot {name} does not exist"))?;
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(format!("DiskSnapshot {name} is being deleted"));
    }
    let status = snapshot.status.clone().unwrap_or_default();
    let (Some(binding), Some(snapshot_id), Some(volume_id), Some(pool), Some(taken_at), Some(backup_id)) = (
        status.binding,
        status.snapshot_id,
        status.volume_id,
        status.pool,
        status.taken_at,
        backup.new_identity(),
    ) else {
        return Err(format!("DiskSnapshot {name} is not taken yet"));
    };
    let new = NewIdentity {
        volume_id,
        backup_id,
        snapshot: Some((snapshot_id, pool)),
        size: status.size,
        taken_at: Some(taken_at),
        consistency: status.consistency,
    };
    Ok(Bound { host: binding.host, new: Some(new) })
}

fn status(backup: &Backup, decision: &Decision, now: Timestamp) -> BackupStatus {
    let mut status = backup.status.clone().unwrap_or_default();
    let generation = backup.metadata.generation.unwrap_or_default();
    match decision {
        Decision::NoChange => return status,
        Decision::Unbind => return one_host::unbound(backup),
        Decision::Report(readiness) => readiness.write(&mut status.conditions, generation, now),
        Decision::Bind(Bound { host, new }) => {
            // A binding that was taken back is not in the status any more, and no host acts on it.
            status.binding = Some(Binding { host: host.clone(), epoch: 1 });
            if let Some(new) = new.clone() {
                status.volume_id = Some(new.volume_id);
                status.backup_id = Some(new.backup_id);
                (status.snapshot_id, status.pool) = new.snapshot.unzip();
                status.size = new.size;
                status.taken_at = new.taken_at;
                status.consistency = new.consistency;
            }
            Readiness::bound_to(host).write(&mut status.conditions, generation, now);
        }
    }
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(spec: &Value, status: &Value) -> Backup {
        serde_json::from_value(json!({
            "metadata": {"name": "b", "namespace": "ns", "uid": "u", "generation": 1}, "spec": spec, "status": status,
        }))
        .expect("a backup")
    }

    fn of_s(status: &Value) -> Backup {
        backup(&json!({"repository": "r", "snapshot": "s"}), status)
    }

    fn deleted(mut backup: Backup) -> Backup {
        backup.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        backup
    }

    fn seen(snapshot: Option<&Value>) -> Observed {
        let repository = json!({"metadata": {"name": "r", "namespace": "ns"}, "spec": {"folder": "nas", "passwordSecretName": "p"}});
        let snapshot = snapshot.map(|status| {
            let object = json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": {"disk": "d"}, "status": status});
            Arc::new(serde_json::from_value(object).expect("a snapshot"))
        });
        Observed {
            repository: Some(Arc::new(serde_json::from_value(repository).expect("a repository"))),
            snapshot,
            reaches: Some("h2".into()),
            ..Observed::default()
        }
    }

    fn reason(plan: &Plan<Decision>) -> Reason {
        let Decision::Report(readiness) = &plan.decision else { panic!("{plan:?}") };
        assert!(matches!(plan.outcome, Outcome::Blocked(_)), "it is requeued on a change: {plan:?}");
        readiness.reason()
    }

    fn taken() -> Value {
        json!({"binding": {"host": "h1", "epoch": 1}, "snapshotID": "s-1", "volumeID": "v-1", "pool": "fast",
            "size": "4Gi", "takenAt": "2026-01-01T00:00:00Z", "consistency": "Crash"})
    }

    #[test]
    fn a_complete_backup_whose_host_is_gone_gets_another_one_to_be_read() {
        let complete =
            of_s(&json!({"volumeID": "v-1", "backupID": "b-u", "completedAt": "2026-01-01T00:00:00Z"}));
        assert_eq!(plan(&complete, &seen(None)), Plan::settled(Decision::NoChange));
        let due = Observed { is_to_be_read: true, ..seen(None) };
        let bound = Decision::Bind(Bound { host: "h2".into(), new: None });
        let binds = plan(&complete, &due);
        assert_eq!((&binds.decision, binds.steps.len()), (&bound, 1));
        let after = status(&complete, &binds.decision, Timestamp::UNIX_EPOCH);
        assert_eq!(after.backup_id.as_deref(), Some("b-u"), "its identity stays");
        let none = plan(&complete, &Observed { reaches: None, ..due });
        assert_eq!(none, Plan::blocked(Decision::NoChange, vec![Dependency::Hosts]));
    }

    #[test]
    fn a_backup_waits_for_its_repository_and_its_snapshot_and_goes_to_the_host_of_that() {
        let new = of_s(&json!(null));
        assert_eq!(reason(&plan(&new, &Observed::default())), Reason::WaitingForRepository);
        assert_eq!(reason(&plan(&new, &seen(None))), Reason::WaitingForSnapshot);
        let mut begun = taken();
        begun["takenAt"] = json!(null);
        assert_eq!(reason(&plan(&new, &seen(Some(&begun)))), Reason::WaitingForSnapshot);
        let unreachable = Observed { no_folder_there: true, ..seen(Some(&taken())) };
        assert_eq!(reason(&plan(&new, &unreachable)), Reason::BackupFolderUnavailable);
        let binds = plan(&new, &seen(Some(&taken())));
        assert_eq!(binds.steps, [Step::AddFinalizer(Key::of(&new), HOST_FINALIZER)]);
        let status = status(&new, &binds.decision, Timestamp::UNIX_EPOCH);
        assert_eq!(status.binding.map(|b| b.host).as_deref(), Some("h1"));
        assert_eq!((status.volume_id.as_deref(), status.backup_id.as_deref()), (Some("v-1"), Some("b-u")));
        assert_eq!((status.snapshot_id.as_deref(), status.size.as_deref()), (Some("s-1"), Some("4Gi")));
    }

    #[test]
    fn an_existing_backup_goes_to_a_host_that_reaches_its_repository() {
        let existing = backup(&json!({"repository": "r", "existing": "v-9/b-9"}), &json!(null));
        let none = Observed { reaches: None, ..seen(None) };
        assert_eq!(reason(&plan(&existing, &none)), Reason::Pending);
        let binds = plan(&existing, &seen(None));
        let status = status(&existing, &binds.decision, Timestamp::UNIX_EPOCH);
        assert_eq!(status.binding.map(|b| b.host).as_deref(), Some("h2"));
        assert_eq!((status.volume_id.as_deref(), status.backup_id.as_deref()), (Some("v-9"), Some("b-9")));
    }

    #[test]
    fn a_backup_whose_data_is_in_the_repository_does_not_hold_a_host_that_is_being_deleted() {
        let leaves = Observed { host_leaves: true, ..seen(None) };
        let mut bound = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1", "backupID": "b-u"});
        assert_eq!(plan(&of_s(&bound), &leaves).decision, Decision::NoChange, "that host makes it");
        bound["completedAt"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(plan(&of_s(&bound), &leaves).decision, Decision::Unbind);
        assert_eq!(plan(&of_s(&bound), &seen(None)).decision, Decision::NoChange);
        assert_eq!(plan(&deleted(of_s(&bound)), &leaves).decision, Decision::NoChange, "it deletes the data");
    }

    #[test]
    fn the_backups_of_a_host_that_is_gone_stay_and_another_one_deletes_their_data() {
        let bound = json!({"binding": {"host": "h1", "epoch": 1}, "volumeID": "v-1", "backupID": "b-u"});
        let gone = Observed { host_gone: true, ..seen(None) };
        let unfinished = plan(&of_s(&bound), &gone).decision;
        assert!(
            matches!(&unfinished, Decision::Report(r) if r.reason() == Reason::HostFenced),
            "{unfinished:?}"
        );
        let mut complete = bound;
        complete["completedAt"] = json!("2026-01-01T00:00:00Z");
        let complete = of_s(&complete);
        assert_eq!(plan(&complete, &gone).decision, Decision::Unbind);
        let unbound =
            Backup { status: Some(status(&complete, &Decision::Unbind, Timestamp::UNIX_EPOCH)), ..complete };
        assert_eq!(plan(&unbound, &seen(None)).decision, Decision::NoChange);
        let going = deleted(unbound.clone());
        let to_h2 = Decision::Bind(Bound { host: "h2".into(), new: None });
        assert_eq!(plan(&going, &seen(None)).decision, to_h2);
        assert_eq!(reason(&plan(&going, &Observed { reaches: None, ..seen(None) })), Reason::Pending);
        let mut kept = going;
        kept.spec.deletion_policy = DeletionPolicy::Retain;
        let release = [Step::RemoveFinalizer(Key::of(&kept), HOST_FINALIZER)];
        assert_eq!(plan(&kept, &seen(None)).steps, release);
        assert_eq!(plan(&deleted(of_s(&json!(null))), &seen(None)).steps, release, "there is no data");
    }
}
