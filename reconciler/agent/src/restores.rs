//! Restores of disks in place: whether the restore that a Disk declares is due on this host. The disk's reconcile does it; VMs and
//! attachments wait for it before they open the disk.
//!
//! ```text
//!                         snapshot taken         no machine has the disk open
//!   declared ─▶ Waits ───────────────────▶ Due ──────────────────────────────▶ Done      Refused: until the Disk changes
//! ```
//!
//! The note beside the volume lists the restores that were done: neither a lost status nor another Disk object repeats one.

use berth_api::{Disk, DiskRestore, DiskSnapshot};
use berth_host::{SnapshotFacts, SystemError, VolumeFacts};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::key::ObjectName;

/// The restore that a Disk declares, as it is on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Restore {
    /// Nothing: none is declared, or it is the last one that was done.
    #[default]
    Done,
    /// Its snapshot is not there; the text is for people.
    Waits(String),
    /// It is not done as long as the Disk declares it; the text is for people.
    Refused(String),
    /// It is done once no machine has the disk open.
    Due { snapshot: String },
}

impl Restore {
    pub(crate) fn is_due(&self) -> bool {
        matches!(self, Self::Due { .. })
    }
}

pub(crate) async fn observe(ctx: &Context, disk: &Disk, volume: &VolumeFacts) -> Result<Restore, Error> {
    let Some(declared) = &disk.spec.restore else { return Ok(Restore::Done) };
    if let Some(done) = done_before(declared, volume) {
        return Ok(done);
    }
    let name = ObjectName::new(disk.namespace().unwrap_or_default(), declared.snapshot.as_str());
    let object = ctx.index.read().disk_snapshots.get(&name);
    let status = object.as_ref().and_then(|object| object.status.as_ref());
    let facts = match status.and_then(|status| Some((status.pool.as_ref()?, status.snapshot_id.as_ref()?))) {
        Some((pool, id)) => match ctx.system.snapshot(pool.as_str(), id).await {
            Err(SystemError::SnapshotLost { .. }) => None,
            found => found?,
        },
        None => None,
    };
    Ok(decide(declared, volume, object.as_deref(), facts.as_ref()))
}

fn done_before(declared: &DiskRestore, volume: &VolumeFacts) -> Option<Restore> {
    let is_it =
        |done: &berth_host::Restored| done.is_of(declared.snapshot.as_str(), declared.token.as_deref());
    let (last, earlier) = volume.restores.split_last()?;
    if is_it(last) {
        return Some(Restore::Done);
    }
    let before = earlier.iter().rfind(|done| is_it(done))?;
    Some(Restore::Refused(format!(
        "it was restored from DiskSnapshot {} at {}, and from DiskSnapshot {} at {}: set another restore.token to restore it once \
         more",
        before.name, before.at, last.name, last.at
    )))
}

fn decide(
    declared: &DiskRestore,
    volume: &VolumeFacts,
    object: Option<&DiskSnapshot>,
    facts: Option<&SnapshotFacts>,
) -> Restore {
    let name = &declared.snapshot;
    let Some(object) = object else {
        return Restore::Waits(format!("DiskSnapshot {name} does not exist on this host"));
    };
    if object.metadata.deletion_timestamp.is_some() {
        return Restore::Waits(format!("DiskSnapshot {name} is being deleted"));
    }
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
        Some(facts) if facts.taken.is_some() => Restore::Due { snapshot: facts.id.clone() },
        Some(_) => Restore::Waits(format!("DiskSnapshot {name} is not taken yet")),
        None => Restore::Waits(format!("DiskSnapshot {name} is not taken yet, or its file is lost")),
    }
}

#[cfg(test)]
mod tests {
    use berth_host::{Restored, Taken, VolumeOwner};
    use berth_qemu::machine::Format;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn declared(snapshot: &str, token: Option<&str>) -> DiskRestore {
        DiskRestore { snapshot: snapshot.into(), token: token.map(str::to_owned) }
    }

    fn volume(restores: &[(&str, Option<&str>)]) -> VolumeFacts {
        let restored = |(name, token): &(&str, Option<&str>)| Restored {
            name: (*name).into(),
            token: token.map(str::to_owned),
            snapshot: "s-1".into(),
            at: Timestamp::UNIX_EPOCH,
        };
        VolumeFacts {
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
            pool: pool.into(),
            id: "s-1".into(),
            volume: "v-1".into(),
            size: 1 << 30,
            owner: None,
            taken: is_taken.then_some(Taken { at: Timestamp::UNIX_EPOCH, frozen: false }),
        }
    }

    #[test]
    fn a_restore_is_due_with_a_snapshot_of_the_very_disk_that_is_taken() {
        let wanted = declared("before", None);
        let see = |object: Option<&DiskSnapshot>, facts: Option<SnapshotFacts>| {
            decide(&wanted, &volume(&[]), object, facts.as_ref())
        };
        let own = snapshot("v-1");
        assert_eq!(see(Some(&own), Some(facts("default", true))), Restore::Due { snapshot: "s-1".into() });
        for (object, facts) in [(None, None), (Some(&own), None), (Some(&own), Some(facts("default", false)))]
        {
            assert!(matches!(see(object, facts), Restore::Waits(_)));
        }
        let mut leaving = own.clone();
        leaving.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        assert!(matches!(see(Some(&leaving), Some(facts("default", true))), Restore::Waits(_)));
        for (object, pool) in [(snapshot("v-2"), "default"), (own, "other")] {
            let refused = see(Some(&object), Some(facts(pool, true)));
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
}
