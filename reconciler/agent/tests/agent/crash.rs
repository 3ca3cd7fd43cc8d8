//! The agent fails, or is interrupted, at any call of its host: the declared state is still reached.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use berth_api::{Disk, HotswapDiskAttachment, VM};
use berth_host::fake::{FaultAction, Faults, When};
use serde_json::json;
use tokio::sync::Notify;

use crate::fixture::{DATA, Fixture, INSTANCE, is_ready};

/// Distance between two faulted calls: faulting every call takes minutes (`BERTH_SWEEP_STRIDE=1`).
const STRIDE: usize = 29;

/// Injects a fault once, at the n-th side of a call.
#[derive(Debug)]
struct Strike {
    at: u64,
    with: FaultAction,
    count: AtomicU64,
    struck: Notify,
}

#[async_trait]
impl Faults for Strike {
    async fn fault(&self, call: &'static str, _: When) -> FaultAction {
        // Ends of processes are awaited all the time and have no effect.
        if call == "exited" || self.count.fetch_add(1, Ordering::Relaxed) + 1 != self.at {
            return FaultAction::Continue;
        }
        self.struck.notify_one();
        self.with
    }
}

/// Runs the whole life of a VM. Returns true if the fault was injected.
async fn live(strike: Arc<Strike>) -> bool {
    let fixture = Fixture::without_agent().await;
    fixture.system.set_faults(strike.clone());
    fixture.start_agent();
    let hit = Cell::new(false);
    let supervise = async {
        strike.struck.notified().await;
        hit.set(true);
        if strike.with == FaultAction::Hang {
            fixture.crash_agent().await;
            fixture.start_agent();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = story(&fixture) => {}
        () = supervise => {}
    }
    fixture.assert_quiet().await;
    let left = fixture.system.leftovers();
    assert!(left.processes.is_empty() && left.instances.is_empty() && left.taps.is_empty(), "{left:?}");
    assert!(
        left.bridges.is_empty() && left.firewall.forwards.is_empty() && left.volumes.is_empty(),
        "{left:?}"
    );
    hit.get()
}

async fn story(fixture: &Fixture) {
    fixture.furnish().await;
    let vm = fixture.make_vm(json!({"networkInterfaces": [{"name": "nic0", "publicIP": "web"}]})).await;
    fixture.make_public_ip(&vm).await;
    fixture.make_attachment().await;
    let attached = |a: &HotswapDiskAttachment| a.status.as_ref().is_some_and(|s| s.device.is_some());
    fixture.until::<HotswapDiskAttachment>("data", attached).await;
    assert!(fixture.system.hypervisor().view(INSTANCE).is_some_and(|v| v.disks.contains_key(DATA)));
    fixture.change::<Disk>("data", json!({"size": "2Gi"})).await;
    let grown = |d: &Disk| d.status.as_ref().is_some_and(|s| s.size.as_deref() == Some("2Gi"));
    fixture.until::<Disk>("data", grown).await;
    fixture.delete::<HotswapDiskAttachment>("data").await;
    fixture.until_gone::<HotswapDiskAttachment>("data").await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    fixture.until::<VM>("web", |vm| is_ready(vm, "Running")).await;
    assert_eq!(fixture.system.hypervisor().instances().len(), 1);
    fixture.delete::<VM>("web").await;
    fixture.until_gone::<VM>("web").await;
    for disk in ["root", "data"] {
        fixture.until::<Disk>(disk, |d| d.status.as_ref().is_some_and(|s| s.used_by.is_empty())).await;
        fixture.delete::<Disk>(disk).await;
        fixture.until_gone::<Disk>(disk).await;
    }
}

fn sweep(with: FaultAction, offset: usize) {
    let stride = std::env::var("BERTH_SWEEP_STRIDE").ok().and_then(|s| s.parse().ok()).unwrap_or(STRIDE);
    for at in (1 + offset % stride..).step_by(stride) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let strike = Strike { at: at as u64, with, count: AtomicU64::new(0), struck: Notify::new() };
        let strike = Arc::new(strike);
        // Shown on failure: the call that was faulted.
        eprintln!("{with:?} at side {at}");
        let hit = runtime.expect("a runtime").block_on(live(strike));
        if !hit {
            assert!(at > 100, "the story has more calls than {at}");
            return;
        }
    }
}

#[test]
fn a_call_that_fails_delays_and_changes_nothing_else() {
    sweep(FaultAction::Error, 0);
}

#[test]
fn an_agent_that_is_cut_off_at_any_call_goes_on_where_it_was() {
    sweep(FaultAction::Hang, 5);
}
