//! Restarts of guests by an agent that is started without the control plane.

use std::time::Duration;

use berth_agent::AgentConfig;
use serde_json::json;

use crate::fixture::{Fixture, INSTANCE};

/// Longer than the first answer of the control plane is awaited, and a restart takes.
const LONG: Duration = Duration::from_secs(120);

fn of(identity: &str) -> impl FnOnce(&mut AgentConfig) {
    let identity = identity.to_owned();
    move |config| config.identity = identity
}

/// A host with a running VM, whose agent with the identity `a` was killed.
async fn without_agent() -> Fixture {
    let fixture = Fixture::without_agent().await;
    fixture.start_agent_configured(of("a"));
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    fixture.crash_agent().await;
    fixture
}

/// Returns how often a guest is launched that ends while an agent of the identity `a` runs without the control plane.
async fn launches_alone(fixture: &Fixture) -> u64 {
    let before = fixture.system.hypervisor().launches();
    fixture.start_agent_alone_with(of("a"));
    fixture.system.hypervisor().crash(INSTANCE);
    tokio::time::sleep(LONG).await;
    fixture.stop_agent().await;
    fixture.system.hypervisor().launches() - before
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_ends_is_restarted_once_without_the_control_plane() {
    let fixture = without_agent().await;
    assert_eq!(launches_alone(&fixture).await, 1);
    let view = fixture.system.hypervisor().view(INSTANCE).expect("it runs");
    assert!(view.booted, "{:?}", view.run_state);
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_not_restarted_any_more_once_the_control_plane_has_refused_an_agent() {
    let fixture = without_agent().await;
    // Another one holds the Lease: it has to wait.
    fixture.start_agent_configured(of("b"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    fixture.crash_agent().await;
    assert_eq!(launches_alone(&fixture).await, 0);
}
