//! Guests that end while their host cannot reach the control plane.

use std::time::Duration;

use berth_api::VMState;
use serde_json::json;
use tokio::time::Instant;

use crate::faults::Fault;
use crate::rig::{self, Rig, converges};
use crate::{all_is_deleted, prerequisites_are_declared, until_host, web, web_is_declared, web_runs};

/// A running VM whose user data is in a Secret.
async fn web_with_a_secret_runs(rig: &Rig) {
    rig.set_secret_value("web-data", "userData", "#!/bin/sh\n").await;
    prerequisites_are_declared(rig).await;
    rig.apply("PublicIP", "web", json!({})).await;
    let mut spec = web("Running");
    spec["bootstrap"] = json!({"secretName": "web-data"});
    rig.apply("VM", "web", spec).await;
    web_runs(rig).await;
}

#[test]
fn a_guest_with_data_in_a_secret_is_restarted_before_a_partition_ends_and_reported_after_it() {
    converges(&[Fault::Partition], async |rig| {
        web_with_a_secret_runs(rig).await;
        let instance = rig.system.hypervisor().instances().remove(0);
        let launches = rig.system.hypervisor().launches();
        rig.strike_from_here();
        let begun = Instant::now();
        rig.system.hypervisor().crash(&instance);
        let runs = || {
            let view = rig.system.hypervisor().view(&instance);
            view.is_some_and(|view| view.boot.is_some())
        };
        until_host("its guest boots again", || rig.system.hypervisor().launches() == launches + 1 && runs())
            .await;
        rig.system.hypervisor().guest_panics(&instance);
        until_host("it boots once more, after the back-off of its policy", || {
            rig.system.hypervisor().launches() == launches + 2 && runs()
        })
        .await;
        // A partition takes longer.
        assert!(begun.elapsed().as_secs() < 30, "it took {:?}", begun.elapsed());
        rig.until_vm("web", "is reported as restarted", |vm| {
            rig::is_ready(vm) && vm.status.as_ref().is_some_and(|status| status.restarts == 2)
        })
        .await;
        web_runs(rig).await;
        rig.must_settle().await;
        all_is_deleted(rig).await;
        rig.remove_secret("web-data").await;
    });
}

#[test]
fn an_agent_that_starts_in_a_partition_restarts_a_guest_that_ends() {
    converges(&[Fault::Partition], async |rig| {
        web_with_a_secret_runs(rig).await;
        rig.must_settle().await;
        let instance = rig.system.hypervisor().instances().remove(0);
        let launches = rig.system.hypervisor().launches();
        rig.strike_from_here();
        rig.restart().await;
        assert_eq!(rig.system.hypervisor().launches(), launches, "what runs goes on");
        let begun = Instant::now();
        rig.system.hypervisor().crash(&instance);
        until_host("its guest boots again", || {
            let view = rig.system.hypervisor().view(&instance);
            rig.system.hypervisor().launches() == launches + 1 && view.is_some_and(|view| view.boot.is_some())
        })
        .await;
        // A partition takes longer, also one that begins when the agent has the Lease and no objects yet.
        assert!(begun.elapsed().as_secs() < 30, "it took {:?}", begun.elapsed());
        rig.until_vm("web", "is reported as restarted", |vm| {
            rig::is_ready(vm) && vm.status.as_ref().is_some_and(|status| status.restarts == 1)
        })
        .await;
        web_runs(rig).await;
        rig.must_settle().await;
        assert_eq!(rig.system.hypervisor().launches(), launches + 1);
        all_is_deleted(rig).await;
        rig.remove_secret("web-data").await;
    });
}

#[test]
fn an_agent_that_starts_in_a_partition_starts_nothing_that_was_stopped() {
    converges(&[Fault::Partition], async |rig| {
        web_is_declared(rig).await;
        web_runs(rig).await;
        rig.apply("VM", "web", web("Stopped")).await;
        rig.until_vm("web", "is stopped", |vm| rig::state(vm) == Some(VMState::Stopped)).await;
        rig.must_settle().await;
        let launches = rig.system.hypervisor().launches();
        rig.strike_from_here();
        rig.restart().await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(rig.system.hypervisor().launches(), launches);
        rig.must_settle().await;
        all_is_deleted(rig).await;
    });
}
