//! Restores of disks in place: whether the restore that a Disk or its VM declares is due on this host. The disk's reconcile does it; VMs
//! and attachments wait for it before they open the disk.
//!
//! ```text
//!                         snapshot taken         no machine has the disk open
//!   declared ─▶ Waits ───────────────────▶ Due ──────────────────────────────▶ Done      Refused: until the declaration changes
//! ```
//!
//! The note beside the volume lists the restores that were done: neither a lost status nor another object repeats one. The restore of
//! a VM ([`vm`], [`memory`]) comes before that of a disk, and each follows only the restores of its own kind.

mod memory;
mod vm;

use berth_api::{Disk, DiskRestore, DiskSnapshot};
use berth_host::{DeclaredRestore, Restored, SnapshotFacts, SystemError, VolumeFacts};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::key::ObjectName;

pub(crate) use memory::DueMemory;
pub(crate) use vm::{DueParts, VmRestore, booted, due_memory, holds, observe_vm, parts_of, snapshots_of};

/// The restore that a Disk or its VM declares, as it is on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Restore {
    /// Nothing: none is declared, or it is the last one that was done.
    #[default]
    Done,
    /// Its snapshot is not there; the text is for people.
    Waits(String),
    /// It is not done as long as it is declared; the text is for people.
    Refused(String),
    /// It is done once no machine has the disk open, from this snapshot.
    Due { snapshot: String, declared: DeclaredRestore },
}

impl Restore {
    pub(crate) fn is_due(&self) -> bool {
        matches!(self, Self::Due { .. })
    }
}

pub(crate) async fn observe(ctx: &Context, disk: &Disk, volume: &VolumeFacts) -> Result<Restore, Error> {
    if let Some(due) = vm::due_of(ctx, disk).await? {
        return Ok(due);
    }
    let Some(restore) = &disk.spec.restore else { return Ok(Restore::Done) };
    let declared = of_disk(restore);
    if let Some(done) = done_before(&declared, volume) {
        return Ok(done);
    }
    let name = ObjectName::new(disk.namespace().unwrap_or_default(), restore.snapshot.as_str());
    let object = ctx.index.read().disk_snapshots.get(&name);
    let Some(object) = object else {
        return Ok(Restore::Waits(format!("DiskSnapshot {} does not exist on this host", restore.snapshot)));
    };
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(Restore::Waits(format!("DiskSnapshot {} is being deleted", restore.snapshot)));
    }
    let facts = facts_of(ctx, &object).await?;
    Ok(decide(declared, volume, &object, facts.as_ref()))
}

fn of_disk(restore: &DiskRestore) -> DeclaredRestore {
    DeclaredRestore { name: restore.snapshot.to_string(), token: restore.token.clone(), vm_snapshot: None }
}

/// Returns the file of a snapshot on this host.
async fn facts_of(ctx: &Context, object: &DiskSnapshot) -> Result<Option<SnapshotFacts>, Error> {
    let status = object.status.as_ref();
    let placed = status.and_then(|status| Some((status.pool.as_ref()?, status.snapshot_id.as_ref()?)));
    let Some((pool, id)) = placed else { return Ok(None) };
    match ctx.system.snapshot(pool.as_str(), id).await {
        Err(SystemError::SnapshotLost { .. }) => Ok(None),
        found => Ok(found?),
    }
}

/// Returns what was done of it before: `None` if nothing was. A disk follows the restores that were declared for it, and a VM those
/// that were declared for the VM.
fn done_before(declared: &DeclaredRestore, volume: &VolumeFacts) -> Option<Restore> {
    let of_same_kind =
        |done: &&Restored| done.declared.vm_snapshot.is_some() == declared.vm_snapshot.is_some();
    let mut done = volume.restores.iter().filter(of_same_kind).rev();
    let last = done.next()?;
    if last.declared.is_same(declared) {
        return Some(Restore::Done);
    }
    let before = done.find(|done| done.declared.is_same(declared))?;
    Some(Restore::Refused(format!(
        "it was restored from {} at {}, and from {} at {}: set another restore.token to restore it once more",
        source_of(&before.declared),
        before.at,
        source_of(&last.declared),
        last.at
    )))
}

/// Returns the object that it is restored from, as it was declared, for people.
fn source_of(declared: &DeclaredRestore) -> String {
    match &declared.vm_snapshot {
        Some(name) => format!("VMSnapshot {name}"),
        None => format!("DiskSnapshot {}", declared.name),
    }
}

fn decide(
    declared: DeclaredRestore,
    volume: &VolumeFacts,
    object: &DiskSnapshot,
    facts: Option<&SnapshotFacts>,
) -> Restore {
    let name = object.name_any();
    let status = object.status.as_ref();
    let is_other = status.and_then(|status| status.volume_id.as_ref()).is_some_and(|id| *id != volume.id);
    if is_other || facts.is_some_and(|facts| facts.volume != volume.id) {
        return Restore::Refused(format!(
            "DiskSnapshot {name} was taken of another disk (Disk {}, or a former one of that name): make a Disk from it, with `source`",
            object.spec.disk
        ));
    }
    match facts {
        Some(facts) if facts.pool != volume.pool => Restore::Refused(format!(
            "DiskSnapshot {name} is in the pool {}, and the disk is in {}",
            facts.pool, volume.pool
        )),
        Some(facts) if facts.taken.is_some() => Restore::Due { snapshot: facts.id.clone(), declared },
        Some(_) => Restore::Waits(format!("DiskSnapshot {name} is not taken yet")),
        None => Restore::Waits(format!("DiskSnapshot {name} is not taken yet, or its file is lost")),
    }
}

#[cfg(test)]
mod tests {
    use berth_host::{Taken, VolumeOwner};
    use berth_qemu::machine::Format;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn declared(snapshot: &str, token: Option<&str>) -> DeclaredRestore {
        of_disk(&DiskRestore { snapshot: snapshot.into(), token: token.map(str::to_owned) })
    }

    fn volume(restores: &[(&str, Option<&str>)]) -> VolumeFacts {
        let restored = |(name, token): &(&str, Option<&str>)| Restored {
            declared: declared(name, *token),
            snapshot: "s-1".into(),
            at: Timestamp::UNIX_EPOCH,
        };
        VolumeFacts {
            problem: None,
            encryption: None,
            pool: "default".into(),
            id: "v-1".into(),
            size: 1 << 30,
            base: None,
            owner: VolumeOwner {
                namespace: "ns".into(),
                name: "d".into(),
                uid: None,
                image: None,
                source: None,
            },
            path: "/v-1.qcow2".into(),
            format: Format::Qcow2,
            backing: None,
            cache: Default::default(),
            reserved: None,
            retained: false,
            pending_snapshot: None,
            restores: restores.iter().map(restored).collect(),
            restoring: false,
        }
    }

    fn snapshot(volume: &str) -> DiskSnapshot {
        serde_json::from_value(json!({
            "metadata": {"name": "before", "namespace": "ns"}, "spec": {"disk": "d"},
            "status": {"snapshotID": "s-1", "volumeID": volume, "pool": "default"},
        }))
        .expect("a snapshot")
    }

    fn facts(pool: &str, is_taken: bool) -> SnapshotFacts {
        SnapshotFacts {
            encryption: None,
            pool: pool.into(),
            id: "s-1".into(),
            volume: "v-1".into(),
            size: 1 << 30,
            owner: None,
            taken: is_taken.then_some(Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false }),
        }
    }

    #[test]
    fn a_restore_is_due_with_a_snapshot_of_the_very_disk_that_is_taken() {
        let see = |object: &DiskSnapshot, facts: Option<SnapshotFacts>| {
            decide(declared("before", None), &volume(&[]), object, facts.as_ref())
        };
        let own = snapshot("v-1");
        let due = Restore::Due { snapshot: "s-1".into(), declared: declared("before", None) };
        assert_eq!(see(&own, Some(facts("default", true))), due);
        for facts in [None, Some(facts("default", false))] {
            assert!(matches!(see(&own, facts), Restore::Waits(_)));
        }
        for (object, pool) in [(snapshot("v-2"), "default"), (own, "other")] {
            let refused = see(&object, Some(facts(pool, true)));
            assert!(matches!(refused, Restore::Refused(_)), "{refused:?}");
        }
    }

    #[test]
    fn a_restore_that_was_done_is_not_done_again_and_one_before_the_last_says_so() {
        let a = declared("a", None);
        assert_eq!(done_before(&a, &volume(&[])), None);
        assert_eq!(done_before(&a, &volume(&[("a", None)])), Some(Restore::Done));
        assert_eq!(done_before(&declared("a", Some("2")), &volume(&[("a", None)])), None);
        let refused = done_before(&a, &volume(&[("a", None), ("b", None)]));
        let Some(Restore::Refused(text)) = refused else { panic!("{refused:?}") };
        assert!(text.contains("DiskSnapshot b") && text.contains("restore.token"), "{text}");
    }

    #[test]
    fn a_disk_follows_its_own_restores_and_a_vm_its_own() {
        let of_vm =
            |name: &str| DeclaredRestore { vm_snapshot: Some(name.into()), ..declared("part-0", None) };
        let mut both = volume(&[("a", None)]);
        both.restores.push(Restored { declared: of_vm("s"), ..both.restores[0].clone() });
        assert_eq!(done_before(&declared("a", None), &both), Some(Restore::Done));
        assert_eq!(done_before(&of_vm("s"), &both), Some(Restore::Done));
        assert_eq!(done_before(&declared("part-0", None), &both), None, "of the disk alone");
        assert_eq!(done_before(&of_vm("t"), &both), None);
        both.restores.push(Restored { declared: of_vm("t"), ..both.restores[0].clone() });
        let Some(Restore::Refused(text)) = done_before(&of_vm("s"), &both) else { panic!("refused") };
        assert!(text.contains("VMSnapshot t"), "{text}");
    }
}
