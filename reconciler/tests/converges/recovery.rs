//! Guests and disks that are found again by an agent that starts again, without a status, or by objects created anew.

use berth_api::PublicIP;
use serde_json::json;

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{all_is_deleted, web_is_declared, web_runs};

#[test]
fn an_agent_that_starts_again_takes_up_what_runs() {
    converges(&[Fault::Error, Fault::CrashAfter, Fault::Partition, Fault::StaleWatches], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        let pid = rig.pid("web").await;
        rig.strike_from_here();
        rig.restart().await;
        web_runs(rig).await;
        assert_eq!(rig.pid("web").await, pid, "it is the same QEMU");
        rig.must_settle().await;
    });
}

#[test]
fn what_runs_and_what_lies_on_a_host_is_found_again_when_every_status_was_lost() {
    converges(&[Fault::CrashAfter], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.strike_from_here();
        rig.lose_every_status().await;
        web_runs(rig).await;
        assert_eq!(what_web_is(rig).await, before, "the same QEMU, disk and addresses, nothing made twice");
        rig.must_settle().await;
        assert!(!rig.is_recovering().await, "the recovery closes by itself");
        rig.delete("PublicIP", "z-other").await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn what_lost_its_status_and_runs_on_a_host_waits_for_an_administrator_and_is_not_made_twice() {
    converges(&[], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.lose_every_status_unnoticed().await;
        rig.until_vm("web", "waits for a recovery", |vm| {
            let conditions = vm.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            berth_api::condition::find(conditions, "Stalled")
                .is_some_and(|c| c.message.contains("berth host recover h1"))
        })
        .await;
        assert_eq!(rig.system.hypervisor().instances().len(), 1, "nothing is started beside it");
        assert_eq!(rig.system.volumes_now(), before.2, "no disk is made");
        rig.open_recovery().await;
        web_runs(rig).await;
        let after = what_web_is(rig).await;
        assert_eq!((after.0, after.2), (before.0, before.2), "the same QEMU and disk");
    });
}

/// Declares another public address first, so that a new allocation for `web` would be lower than its own address.
async fn web_is_declared_second(rig: &Rig) {
    rig.apply("PublicIP", "z-other", json!({})).await;
    let has_one = |ip: &PublicIP| ip.status.as_ref().is_some_and(|s| s.address.is_some());
    rig.until("z-other", "has an address", has_one).await;
    web_is_declared(rig).await;
    web_runs(rig).await;
}

type Web = (Option<i64>, Vec<Option<String>>, std::collections::BTreeMap<String, u64>, berth_host::Firewall);

async fn what_web_is(rig: &Rig) -> Web {
    (rig.pid("web").await, rig.identity("web").await, rig.system.volumes_now(), rig.system.firewall_now())
}

#[test]
fn what_runs_and_lies_on_a_host_is_taken_up_by_objects_made_anew_that_say_which_they_were() {
    converges(&[Fault::CrashAfter], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.strike_from_here();
        rig.make_everything_anew(true).await;
        web_runs(rig).await;
        assert_eq!(what_web_is(rig).await, before, "the same QEMU, disk and addresses, nothing made twice");
        rig.must_settle().await;
        rig.delete("PublicIP", "z-other").await;
        all_is_deleted(rig).await;
    });
}

#[test]
fn what_was_taken_up_under_another_uid_is_that_ones_from_then_on() {
    converges(&[], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.make_everything_anew(true).await;
        web_runs(rig).await;
        rig.must_settle().await;
        rig.forget_former_uids().await;
        rig.lose_every_status().await;
        web_runs(rig).await;
        assert_eq!(what_web_is(rig).await, before);
    });
}

#[test]
fn an_object_of_the_same_name_that_does_not_say_that_it_was_another_is_not() {
    converges(&[], async |rig| {
        web_is_declared_second(rig).await;
        let before = what_web_is(rig).await;
        rig.make_everything_anew(false).await;
        rig.until_vm("web", "runs and is ready", rig::is_ready).await;
        let after = what_web_is(rig).await;
        let all = before.1.iter().zip(&after.1).skip(1);
        assert!(all.into_iter().all(|(before, after)| before != after), "{before:?} {after:?}");
        assert_ne!(after.0, before.0);
        assert_eq!(rig.system.hypervisor().instances().len(), 2, "the guest that was there runs on");
        assert!(before.2.keys().all(|volume| after.2.contains_key(volume)), "with its disk");
    });
}
