//! Backups of snapshots, and disks that are made from them.

use berth_api::{Backup, BackupRepository, ConditionType, VM, VMState, backup::VERIFY_ANNOTATION, condition};
use berth_host::{BackupFolderFacts, BackupId};
use serde_json::{Value, json};

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{all_is_deleted, has_file, web, web_is_declared, web_runs};

/// The VM runs, its host offers a folder for backups, and two snapshots of its disk are taken.
async fn two_snapshots_are_taken(rig: &Rig) {
    let nas = BackupFolderFacts { name: "nas".to_owned(), problem: None };
    rig.system.change_facts(|facts| facts.backup_folders.push(nas));
    web_is_declared(rig).await;
    web_runs(rig).await;
    for name in ["first", "second"] {
        rig.apply("DiskSnapshot", name, json!({"disk": "web-root"})).await;
        rig.until(name, "is taken", rig::is_taken).await;
    }
    rig.set_secret_value("backups", "password", "canary").await;
}

/// The VM is off: its QEMU has no part in scenarios of backups that are complete.
async fn web_is_stopped(rig: &Rig) {
    rig.apply("VM", "web", web("Stopped")).await;
    let is_stopped = |vm: &VM| rig::is_ready(vm) && rig::state(vm) == Some(VMState::Stopped);
    rig.until_vm("web", "is stopped and ready", is_stopped).await;
}

async fn snapshots_are_backed_up(rig: &Rig) {
    rig.apply("BackupRepository", "nas", json!({"folder": "nas", "passwordSecretName": "backups"})).await;
    for name in ["first", "second"] {
        rig.apply("Backup", name, json!({"repository": "nas", "snapshot": name})).await;
        rig.until(name, "is complete", is_complete).await;
    }
}

pub(crate) fn is_complete(backup: &Backup) -> bool {
    let status = backup.status.clone().unwrap_or_default();
    backup.is_complete() && condition::is_true(&status.conditions, ConditionType::Ready)
}

/// A disk of a backup, and a VM that has it.
async fn disk_is_restored(rig: &Rig) {
    rig.apply("Disk", "copy", json!({"source": {"backup": "second"}})).await;
    let vm = json!({"class": "small", "disks": [{"name": "copy", "boot": true}], "networkInterfaces": []});
    rig.apply("VM", "copy", vm).await;
    rig.until("copy", "has a file", has_file).await;
    rig.strike_until_here();
    rig.until_vm("copy", "runs", |vm| rig::state(vm) == Some(VMState::Running)).await;
}

#[test]
fn snapshots_are_backed_up_and_a_disk_is_made_from_a_backup() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter, Fault::FullDisk], async |rig| {
        two_snapshots_are_taken(rig).await;
        rig.strike_from_here();
        snapshots_are_backed_up(rig).await;
        disk_is_restored(rig).await;
        let backups = rig.system.repositories().backups();
        assert_eq!(backups.len(), 2, "{backups:?}");
        let identified = |nas: &BackupRepository| {
            nas.status.as_ref().is_some_and(|s| s.repository_id.as_deref() == Some("r-1"))
        };
        rig.until("nas", "is identified", identified).await;
        let second = backups.iter().find(|backup| backup.parent.is_some()).expect("one has a parent");
        assert!(backups.iter().any(|first| second.parent.as_ref() == Some(&first.id.backup)), "{backups:?}");
    });
}

#[test]
fn the_data_of_deleted_backups_goes_and_that_of_retained_ones_is_found_again() {
    converges(&[Fault::Error, Fault::CrashAfter], async |rig| {
        two_snapshots_are_taken(rig).await;
        web_is_stopped(rig).await;
        snapshots_are_backed_up(rig).await;
        rig.must_settle().await;
        rig.strike_from_here();
        let kept = rig.system.repositories().backups().into_iter().find(|backup| backup.parent.is_some());
        let kept = kept.expect("one has a parent").id;
        let retained = json!({"repository": "nas", "snapshot": "second", "deletionPolicy": "Retain"});
        rig.apply("Backup", "second", retained).await;
        for name in ["first", "second"] {
            rig.delete("Backup", name).await;
            rig.until_gone("Backup", name).await;
        }
        let left = || rig.system.repositories().backups();
        assert_eq!(left().iter().map(|backup| &backup.id).collect::<Vec<_>>(), [&kept]);
        let existing = json!({"repository": "nas", "existing": format!("{}/{}", kept.disk, kept.backup)});
        rig.apply("Backup", "second", existing).await;
        rig.until("second", "is found", is_complete).await;
        rig.delete("BackupRepository", "nas").await;
        rig.delete("Backup", "second").await;
        rig.until_gone("Backup", "second").await;
        rig.until_gone("BackupRepository", "nas").await;
        assert!(left().is_empty(), "{:?}", left());
        rig.strike_until_here();
        for name in ["first", "second"] {
            rig.delete("DiskSnapshot", name).await;
        }
        all_is_deleted(rig).await;
    });
}

fn repository(verification: Option<Value>) -> Value {
    let mut spec = json!({"folder": "nas", "passwordSecretName": "backups"});
    if let Some(verification) = verification {
        spec["verification"] = verification;
    }
    spec
}

/// Whether the last verification found the data whole (`True`) or damaged (`False`), and no other one is under way.
fn verified_as(status: &'static str) -> impl Fn(&Backup) -> bool {
    move |backup| {
        let conditions =
            backup.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let verified = condition::find(conditions, ConditionType::Verified.as_str());
        verified.is_some_and(|verified| verified.status == status)
            && backup.requested_verification().is_none()
    }
}

#[test]
fn backups_are_verified_and_damage_is_reported_and_deletes_nothing() {
    converges(&[Fault::Error, Fault::LostAnswer, Fault::CrashAfter], async |rig| {
        two_snapshots_are_taken(rig).await;
        web_is_stopped(rig).await;
        snapshots_are_backed_up(rig).await;
        rig.must_settle().await;
        let repositories = rig.system.repositories();
        assert!(repositories.verified().is_empty(), "nothing asks for it");
        rig.strike_from_here();
        rig.apply("BackupRepository", "nas", repository(Some(json!({"intervalDays": 7})))).await;
        for name in ["first", "second"] {
            rig.until(name, "is verified", verified_as("True")).await;
        }
        assert!(repositories.verified().iter().any(|verified| verified.base.is_none()));
        let second = repositories.backups().into_iter().find(|backup| backup.parent.is_some());
        let second: BackupId = second.expect("one has a parent").id;
        repositories.damage(&second);
        rig.annotate("Backup", "second", VERIFY_ANNOTATION, Some("now")).await;
        rig.until("second", "is damaged", verified_as("False")).await;
        rig.must_settle().await;
        let of_first = repositories.verified().iter().filter(|verified| verified.id != second).count();
        assert!(of_first >= 2, "damage beside it has the other one verified again");
        rig.until("first", "is whole", verified_as("True")).await;
        let damaged = |backup: &Backup| verified_as("False")(backup) && is_complete(backup);
        rig.until("second", "is still there", damaged).await;
        assert_eq!(repositories.backups().len(), 2);
        rig.apply("BackupRepository", "nas", repository(None)).await;
    });
}
