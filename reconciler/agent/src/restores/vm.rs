//! The restore of a VM: of all its disks that a VMSnapshot has, or of none. And the list of its snapshots.
//!
//! ```text
//!                 all parts taken        no machine has the disks open
//!   declared ─▶ Waits ───────────▶ Due ─────────────────────────────────▶ Done (in status.restoredFrom)
//! ```
//!
//! Whether a disk was restored is in the note of its volume. Once one of the disks is restored, the parts for the others are not deleted
//! before these are restored too, and the VM does not start before; nor if they cannot be restored, as long as the restore is declared. With
//! the guest's memory they are not deleted before it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::vm::{MOST_LISTED_SNAPSHOTS, SnapshotOfVM, VMRestore, VMRestored};
use berth_api::{Disk, DiskSnapshot, VM};
use berth_host::{DeclaredRestore, SnapshotFacts, SystemError, VolumeFacts};
use kube::ResourceExt;

use super::memory::{self, DueMemory};
use super::{Restore, decide, done_before, facts_of};
use crate::context::Context;
use crate::error::Error;
use crate::index::{Tables, instance_of, left_on, volume_of};
use crate::journal::Journal;
use crate::key::ObjectName;

/// The restore that a VM declares, as it is on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum VmRestore {
    /// None is declared.
    #[default]
    None,
    /// It was done.
    Done(VMRestored),
    /// Nothing is restored; the text is for people.
    Waits(String),
    /// Nothing is restored as long as it is declared; the text is for people.
    Refused(String),
    Due(DueParts),
    /// Some of its disks were restored, and the others cannot be: the VM does not start. The text is for people.
    Incomplete(String),
    /// The pool of one of its disks or snapshots is away: it is not known. The VM does not start, and can be stopped. The text is for people.
    Away(String),
}

/// The parts of a restore that are left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DueParts {
    /// By the names of the disks: the identity of the snapshot, and the restore.
    pub(crate) disks: BTreeMap<String, (String, DeclaredRestore)>,
    /// Whether another disk of the VM was restored already.
    pub(crate) is_begun: bool,
    /// Whether the guest goes on with the memory of the snapshot.
    pub(crate) memory: bool,
}

/// A part of the VMSnapshot.
#[derive(Clone, Debug)]
struct Part {
    object: Arc<DiskSnapshot>,
    facts: Option<SnapshotFacts>,
}

/// Returns why a Disk cannot be restored, for people.
fn gone_from_here(disk: &str) -> String {
    format!("the file of Disk {disk} is gone from this host")
}

/// The facts that a restore is decided from.
#[derive(Debug)]
struct Seen {
    /// By the names of their Disks.
    volumes: BTreeMap<String, VolumeFacts>,
    /// The Disks whose files are gone from this host.
    lost: BTreeSet<String>,
    parts: Vec<Part>,
}

/// Observes the restore that a VM declares, also while a pool is away.
pub(crate) async fn observe_vm(ctx: &Context, vm: &VM) -> Result<VmRestore, Error> {
    match observe(ctx, vm).await {
        Err(Error::System(error @ SystemError::PoolAway { .. })) => Ok(VmRestore::Away(error.to_string())),
        found => found,
    }
}

async fn observe(ctx: &Context, vm: &VM) -> Result<VmRestore, Error> {
    let Some(restore) = vm.spec.restore.as_deref() else { return Ok(VmRestore::None) };
    if let Some(done) = vm.status.as_ref().and_then(|status| status.restored_from.as_deref())
        && done.is_of(restore)
    {
        return Ok(VmRestore::Done(done.clone()));
    }
    let Seen { volumes, lost, parts } = look(ctx, vm, restore).await?;
    let due = match decide_all(restore, &volumes, &lost, &parts) {
        VmRestore::Due(due) => due,
        decided => return Ok(decided),
    };
    match find_memory(ctx, vm, &volumes, &parts).await? {
        None => Ok(VmRestore::Due(due)),
        // All of it is restored, or nothing.
        Some(Err(text)) if !due.is_begun => Ok(VmRestore::Refused(text)),
        Some(_) => Ok(VmRestore::Due(DueParts { memory: true, ..due })),
    }
}

/// Returns the memory with which the guest of a VM goes on that is off, and whose disks were restored: once for each restore, and only from
/// disks that were not written since. The error is for people: it cannot.
pub(crate) async fn due_memory(
    ctx: &Context,
    vm: &VM,
    journal: &Journal,
) -> Result<Option<Result<Box<DueMemory>, String>>, Error> {
    let Some(restore) = vm.spec.restore.as_deref() else { return Ok(None) };
    if journal.loaded.as_ref() == Some(&memory::loaded(restore)) {
        return Ok(None);
    }
    let Seen { volumes, lost, parts } = look(ctx, vm, restore).await?;
    let found = find_memory(ctx, vm, &volumes, &parts).await?;
    if found.is_none() {
        return Ok(None);
    }
    if let Some(disk) = lost.first() {
        return Ok(Some(Err(gone_from_here(disk))));
    }
    // The disks were restored without the memory, or the guest was booted from them since.
    for part in parts {
        let Some(volume) = volumes.get(part.object.spec.disk.as_str()) else { continue };
        // Without its snapshot it is not known whether the disk was written.
        let Some(snapshot) = part.facts else { return Ok(None) };
        if !ctx.system.is_as_in_snapshot(&volume.pool, &volume.id, &snapshot.id).await? {
            return Ok(None);
        }
    }
    Ok(found)
}

/// Returns why the guest of a VM that runs, and whose disks were restored, was booted from them: for people. None: it was not, or the
/// memory of the snapshot was not wanted, or there is none.
pub(crate) fn booted(tables: &Tables, vm: &VM, journal: &Journal) -> Option<String> {
    let restore = vm.spec.restore.as_deref().filter(|restore| restore.wants_memory())?;
    if journal.loaded.as_ref() == Some(&memory::loaded(restore)) {
        return None;
    }
    let name = &restore.snapshot;
    let parts = parts_of(tables, &ObjectName::of(vm).namespace, name.as_str());
    let has_memory = parts.first()?.status.as_ref()?.memory == Some(true);
    has_memory.then(|| {
        format!(
            "its guest was booted from the restored disks, without the memory of VMSnapshot {name}: they had been written to since they were \
             restored. Set another restore.token to restore it with the memory, or restore.memory to false"
        )
    })
}

/// Returns the memory of the snapshot, which is kept under the identity of its first part. The error is for people: it cannot be loaded.
async fn find_memory(
    ctx: &Context,
    vm: &VM,
    volumes: &BTreeMap<String, VolumeFacts>,
    parts: &[Part],
) -> Result<Option<Result<Box<DueMemory>, String>>, Error> {
    let Some(first) = parts.first().and_then(|part| part.facts.as_ref()) else { return Ok(None) };
    let volumes: Vec<&VolumeFacts> = volumes.values().collect();
    Box::pin(memory::find(ctx, vm, first, &volumes)).await
}

/// Looks for the volumes of a VM, and for the parts of the VMSnapshot that it is restored from.
async fn look(ctx: &Context, vm: &VM, restore: &VMRestore) -> Result<Seen, Error> {
    let name = ObjectName::of(vm);
    let (disks, objects) = {
        let tables = ctx.index.read();
        let disks: Vec<Arc<Disk>> = disks_of(&tables, &name, vm)
            .iter()
            .filter_map(|disk| tables.disks.get(&name.beside(disk)))
            .collect();
        (disks, parts_of(&tables, &name.namespace, restore.snapshot.as_str()))
    };
    let (mut volumes, mut lost) = (BTreeMap::new(), BTreeSet::new());
    for disk in disks {
        // A file that is here is an earlier one while another host has the data of the disk.
        let here = volume_of(&disk).filter(|_| left_on(&disk, ctx.host()).is_none());
        let Some(id) = here else { continue };
        match ctx.system.volume(disk.pool().as_str(), id).await {
            Ok(Some(volume)) => drop(volumes.insert(disk.name_any(), volume)),
            Ok(None) => {}
            Err(SystemError::VolumeLost { .. }) => drop(lost.insert(disk.name_any())),
            Err(error) => return Err(error.into()),
        }
    }
    let mut parts = Vec::new();
    for object in objects {
        let facts = facts_of(ctx, &object).await?;
        parts.push(Part { object, facts });
    }
    Ok(Seen { volumes, lost, parts })
}

/// Returns the restore of a disk that its VM declares, if it is due.
pub(super) async fn due_of(ctx: &Context, disk: &Disk) -> Result<Option<Restore>, Error> {
    let vm = {
        let name = ObjectName::of(disk);
        let tables = ctx.index.read();
        let users = || disk.status.iter().flat_map(|status| &status.used_by);
        let mut vms = tables.vms.all().filter(|(vm_name, vm)| {
            vm.spec.restore.is_some()
                && vm_name.namespace == name.namespace
                && users().any(|user| Some(&user.vm_uid) == vm.metadata.uid.as_ref())
        });
        vms.next().map(|(_, vm)| vm.clone())
    };
    let Some(vm) = vm else { return Ok(None) };
    let VmRestore::Due(parts) = observe_vm(ctx, &vm).await? else { return Ok(None) };
    let part = parts.disks.get(&disk.name_any()).cloned();
    Ok(part.map(|(snapshot, declared)| Restore::Due { snapshot, declared }))
}

/// Returns the VM whose restore, which has begun, still needs this snapshot.
pub(crate) async fn holds(ctx: &Context, snapshot: &DiskSnapshot) -> Result<Option<String>, Error> {
    let Some(whole) = snapshot.part_of() else { return Ok(None) };
    let name = ObjectName::of(snapshot);
    let vms: Vec<Arc<VM>> = {
        let tables = ctx.index.read();
        let declares = |vm: &VM| {
            vm.metadata.deletion_timestamp.is_none()
                && vm.spec.restore.as_ref().is_some_and(|restore| restore.snapshot.as_str() == whole.name)
        };
        let vms =
            tables.vms.all().filter(|(vm_name, vm)| vm_name.namespace == name.namespace && declares(vm));
        vms.map(|(_, vm)| vm.clone()).collect()
    };
    for vm in vms {
        let is_needed = match observe(ctx, &vm).await? {
            VmRestore::Due(parts) => parts.is_begun,
            VmRestore::Done(_) => Box::pin(is_memory_due(ctx, &vm)).await?,
            _ => false,
        };
        if is_needed {
            return Ok(Some(vm.name_any()));
        }
    }
    Ok(None)
}

/// Whether the guest of a VM whose disks were restored is still to go on with the memory of the same snapshot.
async fn is_memory_due(ctx: &Context, vm: &VM) -> Result<bool, Error> {
    let Some(instance) = instance_of(vm) else { return Ok(false) };
    let written = ctx.system.read_journal(instance).await?;
    let Some(Ok(journal)) = written.map(Journal::parse) else { return Ok(false) };
    if journal.suspension.is_some() || journal.has_process() {
        return Ok(false);
    }
    Ok(matches!(due_memory(ctx, vm, &journal).await?, Some(Ok(_))))
}

/// Returns the names of the disks that a VM declares, and of those that attachments plug into it.
fn disks_of(tables: &Tables, name: &ObjectName, vm: &VM) -> BTreeSet<String> {
    let declared = vm.spec.disks.iter().map(|disk| disk.name.to_string());
    declared.chain(tables.attachments_of(name).map(|attachment| attachment.spec.disk.to_string())).collect()
}

/// Returns the parts of the VMSnapshot of this name that are on this host, in the order of their names.
pub(crate) fn parts_of(tables: &Tables, namespace: &str, snapshot: &str) -> Vec<Arc<DiskSnapshot>> {
    let is_part = |part: &DiskSnapshot| part.part_of().is_some_and(|whole| whole.name == snapshot);
    let parts =
        tables.disk_snapshots.all().filter(|(name, part)| name.namespace == namespace && is_part(part));
    let mut parts: Vec<Arc<DiskSnapshot>> = parts.map(|(_, part)| part.clone()).collect();
    parts.sort_by_key(|part| part.name_any());
    parts
}

/// Decides about the restore of a VM with these volumes, by the names of their Disks. `lost`: its Disks whose files are gone.
fn decide_all(
    restore: &VMRestore,
    volumes: &BTreeMap<String, VolumeFacts>,
    lost: &BTreeSet<String>,
    parts: &[Part],
) -> VmRestore {
    let name = &restore.snapshot;
    let declared = |part: &str| DeclaredRestore {
        name: part.to_owned(),
        token: restore.token.clone(),
        vm_snapshot: Some(name.to_string()),
    };
    let all_done = || {
        let done = volumes.values().flat_map(|volume| &volume.restores);
        done.filter(|done| done.declared.is_same(&declared(""))).map(|done| (done.at, done.snapshot.clone()))
    };
    let done = |at: jiff::Timestamp| {
        let (snapshot, token) = (name.clone(), restore.token.clone());
        VmRestore::Done(VMRestored { snapshot, token, restored_at: at.to_string() })
    };
    let last = all_done().map(|(at, _)| at).max();
    if let Some(Restore::Refused(text)) = volumes
        .values()
        .find_map(|volume| done_before(&declared(""), volume).filter(|done| *done != Restore::Done))
    {
        return VmRestore::Refused(text);
    }
    let has_done =
        |volume: &VolumeFacts| volume.restores.iter().any(|done| done.declared.is_same(&declared("")));
    let mut disks = parts.iter().map(|part| part.object.spec.disk.as_str());
    let lost = disks.find(|disk| lost.contains(*disk));
    if let Some(at) = last.filter(|_| lost.is_none() && volumes.values().all(has_done)) {
        return done(at);
    }
    // Nothing is restored then, unless a part of it is already.
    let unavailable = |text: String, otherwise: fn(String) -> VmRestore| match last {
        Some(_) => VmRestore::Incomplete(format!(
            "some of its disks were restored from VMSnapshot {name}, and the others cannot be: {text}. Take restore out to start it as it is"
        )),
        None => otherwise(text),
    };
    let ids: BTreeSet<&String> =
        parts.iter().filter_map(|part| part.object.status.as_ref()?.snapshot_id.as_ref()).collect();
    match last {
        // The snapshot is gone, or another one has its name now.
        Some(at) if parts.is_empty() || all_done().all(|(_, snapshot)| !ids.contains(&snapshot)) => {
            return done(at);
        }
        _ => {}
    }
    let Some(total) = parts.first().and_then(|part| Some(part.object.part_of()?.parts)) else {
        return VmRestore::Waits(format!(
            "VMSnapshot {name} does not exist, or has no snapshots on this host"
        ));
    };
    if parts.len() < total {
        let (here, are) = (parts.len(), if parts.len() == 1 { "is" } else { "are" });
        let text = format!("{here} of the {total} snapshots of VMSnapshot {name} {are} on this host");
        return unavailable(text, VmRestore::Waits);
    }
    if let Some(disk) = lost {
        return unavailable(gone_from_here(disk), VmRestore::Refused);
    }
    let of_vm = parts.iter().filter_map(|part| Some((part, volumes.get(part.object.spec.disk.as_str())?)));
    let mut due = DueParts { is_begun: last.is_some(), ..DueParts::default() };
    let mut is_of_vm = false;
    for (part, volume) in of_vm {
        is_of_vm = true;
        let declared = declared(&part.object.name_any());
        if done_before(&declared, volume) == Some(Restore::Done) {
            continue;
        }
        if part.object.metadata.deletion_timestamp.is_some() && !due.is_begun {
            return VmRestore::Waits(format!("VMSnapshot {name} is being deleted"));
        }
        match decide(declared, volume, &part.object, part.facts.as_ref()) {
            Restore::Due { snapshot, declared } => {
                due.disks.insert(part.object.spec.disk.to_string(), (snapshot, declared));
            }
            Restore::Waits(text) => return unavailable(text, VmRestore::Waits),
            Restore::Refused(text) => return unavailable(text, VmRestore::Refused),
            Restore::Done => {}
        }
    }
    match last {
        _ if !is_of_vm => VmRestore::Refused(format!("VMSnapshot {name} has none of the disks of this VM")),
        Some(at) if due.disks.is_empty() => done(at),
        _ => VmRestore::Due(due),
    }
}

/// Returns the snapshots of a VM that are taken, the oldest first: those with a disk of the VM.
pub(crate) fn snapshots_of(tables: &Tables, name: &ObjectName, vm: &VM) -> Vec<SnapshotOfVM> {
    let disks = disks_of(tables, name, vm);
    let volume =
        |disk: &str| tables.disks.get(&name.beside(disk)).as_deref().and_then(volume_of).map(str::to_owned);
    // By name: when it was taken, and the number of its parts that are, of all.
    let mut found: BTreeMap<&str, (&str, usize, usize)> = BTreeMap::new();
    let mut others = BTreeSet::new();
    for (_, part) in tables.disk_snapshots.all().filter(|(other, _)| other.namespace == name.namespace) {
        let (Some(whole), Some(status)) = (part.part_of(), part.status.as_ref()) else { continue };
        let Some(taken_at) = status.taken_at.as_deref() else { continue };
        let disk = part.spec.disk.as_str();
        if disks.contains(disk) && volume(disk) != status.volume_id {
            others.insert(whole.name);
        }
        let is_of_vm = usize::from(disks.contains(disk));
        let (_, taken, of_vm) = found.entry(whole.name).or_insert((taken_at, whole.parts, 0));
        *taken = taken.saturating_sub(1);
        *of_vm += is_of_vm;
    }
    let taken = found
        .into_iter()
        .filter(|(name, (_, left, of_vm))| *left == 0 && *of_vm > 0 && !others.contains(name));
    let mut taken: Vec<SnapshotOfVM> = taken
        .map(|(name, (taken_at, ..))| SnapshotOfVM { name: name.into(), taken_at: taken_at.to_owned() })
        .collect();
    taken.sort_by(|a, b| (&a.taken_at, &a.name).cmp(&(&b.taken_at, &b.name)));
    taken.drain(..taken.len().saturating_sub(MOST_LISTED_SNAPSHOTS));
    taken
}

#[cfg(test)]
mod tests {
    use berth_host::{Restored, Taken, VolumeOwner};
    use berth_qemu::machine::Format;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    const NAMES: [&str; 2] = ["root", "data"];

    fn restore() -> VMRestore {
        VMRestore { snapshot: "before".into(), token: None, memory: None }
    }

    fn volume(id: &str) -> VolumeFacts {
        VolumeFacts {
            problem: None,
            encryption: None,
            pool: "default".into(),
            id: id.into(),
            size: 1 << 30,
            base: None,
            owner: VolumeOwner {
                namespace: "ns".into(),
                name: "d".into(),
                uid: None,
                image: None,
                source: None,
            },
            path: "/v.qcow2".into(),
            format: Format::Qcow2,
            backing: None,
            cache: Default::default(),
            reserved: None,
            retained: false,
            pending_snapshot: None,
            restores: Vec::new(),
            restoring: false,
        }
    }

    fn volumes() -> BTreeMap<String, VolumeFacts> {
        NAMES.map(|name| (name.to_owned(), volume(&format!("v-{name}")))).into()
    }

    fn part(place: usize, disk: &str) -> Part {
        let object = serde_json::from_value(json!({
            "metadata": {
                "name": format!("before-{place}"), "namespace": "ns", "labels": {"berth.dev/vm-snapshot": "before"},
                "annotations": {"berth.dev/vm-snapshot-parts": "2"},
            },
            "spec": {"disk": disk},
            "status": {"snapshotID": format!("s-{disk}"), "volumeID": format!("v-{disk}"), "pool": "default"},
        }));
        let facts = SnapshotFacts {
            encryption: None,
            pool: "default".into(),
            id: format!("s-{disk}"),
            volume: format!("v-{disk}"),
            size: 1 << 30,
            owner: None,
            taken: Some(Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false }),
        };
        Part { object: Arc::new(object.expect("a part")), facts: Some(facts) }
    }

    fn parts() -> Vec<Part> {
        vec![part(0, "root"), part(1, "data")]
    }

    fn restore_is_recorded(volume: &mut VolumeFacts, vm_snapshot: &str, from: &str) {
        let declared =
            DeclaredRestore { name: "before-0".into(), token: None, vm_snapshot: Some(vm_snapshot.into()) };
        volume.restores.push(Restored { declared, snapshot: from.into(), at: Timestamp::UNIX_EPOCH });
    }

    /// Decides while no file is gone.
    fn decide_with(
        restore: &VMRestore,
        volumes: &BTreeMap<String, VolumeFacts>,
        parts: &[Part],
    ) -> VmRestore {
        decide_all(restore, volumes, &BTreeSet::new(), parts)
    }

    fn due(decided: &VmRestore) -> (Vec<&str>, bool) {
        let VmRestore::Due(parts) = decided else { panic!("{decided:?}") };
        (parts.disks.keys().map(String::as_str).collect(), parts.is_begun)
    }

    #[test]
    fn all_disks_of_the_snapshot_are_restored_or_none() {
        let mut all = volumes();
        assert_eq!(due(&decide_with(&restore(), &all, &parts())), (vec!["data", "root"], false));
        for missing in [vec![], vec![part(0, "root")]] {
            assert!(matches!(decide_with(&restore(), &all, &missing), VmRestore::Waits(_)));
        }
        let mut lost = parts();
        lost[1].facts = None;
        assert!(matches!(decide_with(&restore(), &all, &lost), VmRestore::Waits(_)));
        let mut other = parts();
        other[1].facts.as_mut().expect("set").volume = "v-other".into();
        assert!(matches!(decide_with(&restore(), &all, &other), VmRestore::Refused(_)));
        all.remove("data");
        assert_eq!(
            due(&decide_with(&restore(), &all, &parts())),
            (vec!["root"], false),
            "one that it has no more"
        );
        let none = decide_with(&restore(), &BTreeMap::new(), &parts());
        assert!(matches!(none, VmRestore::Refused(_)), "the snapshot of another VM: {none:?}");
    }

    #[test]
    fn a_restore_that_has_begun_is_finished_also_from_a_snapshot_that_is_being_deleted() {
        let mut all = volumes();
        let mut leaving = parts();
        for part in &mut leaving {
            let object = Arc::make_mut(&mut part.object);
            object.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        }
        assert!(matches!(decide_with(&restore(), &all, &leaving), VmRestore::Waits(_)));
        restore_is_recorded(all.get_mut("root").expect("set"), "before", "s-root");
        assert_eq!(due(&decide_with(&restore(), &all, &leaving)), (vec!["data"], true));
        restore_is_recorded(all.get_mut("data").expect("set"), "before", "s-data");
        assert!(matches!(decide_with(&restore(), &all, &leaving), VmRestore::Done(_)));
    }

    #[test]
    fn a_restore_that_has_begun_and_cannot_be_finished_is_incomplete() {
        let mut all = volumes();
        restore_is_recorded(all.get_mut("root").expect("set"), "before", "s-root");
        let mut lost = parts();
        lost[1].facts = None;
        for parts in [lost, vec![part(0, "root")]] {
            let decided = decide_with(&restore(), &all, &parts);
            assert!(
                matches!(&decided, VmRestore::Incomplete(text) if text.contains("VMSnapshot before")),
                "{decided:?}"
            );
        }
        restore_is_recorded(all.get_mut("data").expect("set"), "before", "s-data");
        let decided = decide_with(&restore(), &all, &[part(0, "root")]);
        assert!(matches!(decided, VmRestore::Done(_)), "its snapshot may go afterwards: {decided:?}");
    }

    #[test]
    fn a_disk_whose_file_is_gone_ends_the_restore_and_is_named() {
        let (mut all, lost) = (volumes(), BTreeSet::from(["data".to_owned()]));
        all.remove("data");
        let gone = "the file of Disk data is gone";
        let decided = decide_all(&restore(), &all, &lost, &parts());
        assert!(matches!(&decided, VmRestore::Refused(text) if text.contains(gone)), "{decided:?}");
        restore_is_recorded(all.get_mut("root").expect("set"), "before", "s-root");
        let decided = decide_all(&restore(), &all, &lost, &parts());
        assert!(matches!(&decided, VmRestore::Incomplete(text) if text.contains(gone)), "{decided:?}");
        // One that the snapshot has no part of is restored in no case.
        let other = BTreeSet::from(["extra".to_owned()]);
        assert_eq!(due(&decide_all(&restore(), &volumes(), &other, &parts())), (vec!["data", "root"], false));
    }

    #[test]
    fn a_restore_is_done_once_whatever_has_its_name_later() {
        let mut all = volumes();
        for (name, volume) in &mut all {
            restore_is_recorded(volume, "before", &format!("s-{name}"));
        }
        let done = VmRestore::Done(VMRestored {
            snapshot: "before".into(),
            token: None,
            restored_at: "1970-01-01T00:00:00Z".into(),
        });
        assert_eq!(decide_with(&restore(), &all, &parts()), done);
        assert_eq!(decide_with(&restore(), &all, &[]), done, "the snapshot was deleted");
        all.insert("extra".into(), volume("v-extra"));
        assert_eq!(decide_with(&restore(), &all, &parts()), done, "a disk that the VM has got since");
        let mut again = vec![part(0, "root"), part(1, "extra")];
        for part in &mut again {
            let status = Arc::make_mut(&mut part.object).status.as_mut().expect("set");
            status.snapshot_id = Some(format!("s-again-{}", status.volume_id.as_deref().unwrap_or_default()));
        }
        assert_eq!(decide_with(&restore(), &all, &again), done, "another snapshot of the same name");
        let token = VMRestore { token: Some("2".into()), ..restore() };
        assert_eq!(due(&decide_with(&token, &all, &parts())), (vec!["data", "root"], false));
        for volume in all.values_mut() {
            restore_is_recorded(volume, "later", "s-later");
        }
        assert!(matches!(decide_with(&restore(), &all, &parts()), VmRestore::Refused(_)));
    }
}
