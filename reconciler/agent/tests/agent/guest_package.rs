//! The package of the guest agent in a running guest.

use std::time::Duration;

use berth_api::{VM, condition};
use serde_json::{Value, json};

use crate::fixture::{Fixture, INSTANCE, reason_of};

fn policy(policy: &str) -> Value {
    json!({"guestAgent": {"policy": policy}})
}

async fn started(spec: Value) -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(spec).await;
    fixture
}

fn reason(vm: &VM) -> String {
    vm.status.as_ref().map(|status| reason_of(&status.conditions, "GuestAgentSynced")).unwrap_or_default()
}

fn has_condition(vm: &VM) -> bool {
    vm.status.as_ref().is_some_and(|status| condition::find(&status.conditions, "GuestAgentSynced").is_some())
}

async fn until_reason(fixture: &Fixture, wanted: &str) -> VM {
    fixture.until::<VM>("web", |vm| reason(vm) == wanted).await
}

fn actions(fixture: &Fixture) -> Vec<String> {
    fixture.system.hypervisor().agent_package_actions(INSTANCE)
}

async fn until_actions(fixture: &Fixture, wanted: &[&str]) {
    for _ in 0..600 {
        if actions(fixture) == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    panic!("{:?}, not {wanted:?}", actions(fixture));
}

#[tokio::test(start_paused = true)]
async fn the_agent_is_upgraded_once_after_each_start_of_the_vm() {
    let fixture = started(policy("Upgrade")).await;
    let vm = until_reason(&fixture, "Synced").await;
    let status = vm.status.as_ref().and_then(|status| status.guest_agent.clone()).expect("a status");
    assert!(status.time.is_some(), "{status:?}");
    fixture.assert_quiet().await;
    // An agent of berth that is restarted finds the time in the status.
    fixture.crash_agent().await;
    fixture.start_agent();
    fixture.assert_quiet().await;
    fixture.system.hypervisor().guest_agent_restarts(INSTANCE);
    fixture.assert_quiet().await;
    assert_eq!(actions(&fixture), ["upgrade"]);
    // The machine is another one then.
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    until_actions(&fixture, &["upgrade"]).await;
    until_reason(&fixture, "Synced").await;
    fixture.change::<VM>("web", policy("Keep")).await;
    fixture.until::<VM>("web", |vm| !has_condition(vm)).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn the_agent_is_removed_through_itself_and_again_after_it_was_installed() {
    let fixture = started(policy("Keep")).await;
    fixture.running_vm().await;
    fixture.assert_quiet().await;
    fixture.change::<VM>("web", policy("Remove")).await;
    until_reason(&fixture, "Synced").await;
    assert_eq!(actions(&fixture), ["remove"]);
    fixture.assert_quiet().await;
    assert_eq!(actions(&fixture), ["remove"]);
    let hypervisor = fixture.system.hypervisor();
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.guest_agent = true);
    hypervisor.guest_agent_restarts(INSTANCE);
    until_actions(&fixture, &["remove", "remove"]).await;
    until_reason(&fixture, "Synced").await;
}

#[tokio::test(start_paused = true)]
async fn a_package_that_cannot_be_changed_is_named_and_tried_again() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    let hypervisor = fixture.system.hypervisor();
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.guest_agent = false);
    fixture.make_vm(policy("Upgrade")).await;
    until_reason(&fixture, "NoGuestAgent").await;
    hypervisor.set_behaviour(INSTANCE, |behaviour| {
        behaviour.guest_agent = true;
        behaviour.disabled_commands = vec!["guest-exec".to_owned()];
    });
    let vm = until_reason(&fixture, "GuestAgentRefused").await;
    assert!(format!("{vm:?}").contains("the guest agent refused guest-exec"), "{vm:?}");
    for (code, words) in [(100, "failed with exit code 100"), (64, "none of the package managers")] {
        hypervisor.package_manager_ends_with(INSTANCE, code);
        hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.disabled_commands.clear());
        let vm = fixture
            .until::<VM>("web", |vm| reason(vm) == "GuestPackageFailed" && format!("{vm:?}").contains(words))
            .await;
        assert!(crate::fixture::is_ready(&vm, "Running"), "nothing waits for it: {vm:?}");
    }
    hypervisor.package_manager_ends_with(INSTANCE, 0);
    until_reason(&fixture, "Synced").await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_gives_no_result_holds_up_only_its_own_package() {
    let fixture = started(policy("Keep")).await;
    fixture.running_vm().await;
    let hypervisor = fixture.system.hypervisor();
    hypervisor.set_behaviour(INSTANCE, |behaviour| {
        behaviour.disabled_commands = vec!["guest-exec-status".to_owned()];
    });
    fixture.change::<VM>("web", policy("Upgrade")).await;
    until_reason(&fixture, "GuestAgentRefused").await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    let vm = fixture.until::<VM>("web", |vm| crate::fixture::is_ready(vm, "Stopped")).await;
    assert!(!has_condition(&vm), "{vm:?}");
    fixture.assert_quiet().await;
}
