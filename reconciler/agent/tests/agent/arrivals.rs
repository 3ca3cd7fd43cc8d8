//! Guests that were coming to this host when its agent ended.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_host::Machines as _;
use berth_host::fake::{FaultAction, Faults, When};
use serde_json::json;

use crate::fixture::Fixture;

/// The removal of an instance does not return, as from a pool that does not answer.
#[derive(Debug)]
struct NoRemoval;

#[async_trait]
impl Faults for NoRemoval {
    async fn fault(&self, call: &'static str, _: When) -> FaultAction {
        if call == "remove_instance" { FaultAction::Hang } else { FaultAction::Continue }
    }
}

/// The removal of an instance takes longer than the start of an agent waits for it.
#[derive(Debug)]
struct SlowRemoval;

#[async_trait]
impl Faults for SlowRemoval {
    async fn fault(&self, call: &'static str, _: When) -> FaultAction {
        if call == "remove_instance" {
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        FaultAction::Continue
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_was_coming_and_cannot_be_removed_yet_holds_up_no_other_and_is_removed_later() {
    let fixture = Fixture::without_agent().await;
    let arrival = json!({"id": "m1-7", "from": "h2", "phase": "Receiving", "volumes": []});
    let journal = json!({"version": 4, "namespace": "ns", "name": "coming", "uid": "u9", "epoch": 1, "arrival": arrival});
    fixture.system.write_journal("i-coming", &journal).await.expect("written");
    fixture.system.set_faults(Arc::new(NoRemoval));
    fixture.start_agent();
    fixture.furnish().await;
    fixture.make_vm(json!({})).await;
    fixture.running_vm().await;
    let is_there = async || fixture.system.read_journal("i-coming").await.expect("read").is_some();
    assert!(is_there().await);
    fixture.system.set_faults(Arc::new(SlowRemoval));
    let removed = tokio::time::timeout(Duration::from_secs(600), async {
        while is_there().await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    removed.await.expect("it is tried again");
}
