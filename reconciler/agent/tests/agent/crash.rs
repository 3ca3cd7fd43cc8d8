//! The agent fails, or is cut off, at any call of its host: what is declared is reached all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use berth_agent::fake::{FaultAction, Faults, NoFaults, When};
use berth_api::{Disk, HotswapDiskAttachment, VM};
use serde_json::json;
use tokio::sync::Notify;

use crate::world::{DATA, INSTANCE, World, is_ready};

/// How many calls lie between two that are struck: all of them take minutes, and a prime wanders over everything.
const STRIDE: usize = 11;

/// Strikes the n-th side of a call, once.
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
        // Ends of processes are waited for all the time and have no effect.
        if call == "exited" || self.count.fetch_add(1, Ordering::Relaxed) + 1 != self.at {
            return FaultAction::Continue;
        }
        self.struck.notify_one();
        self.with
    }
}

/// The whole life of a VM. True when the strike hit.
async fn live(strike: Arc<Strike>) -> bool {
    let mut world = World::without_agent().await;
    world.system.set_faults(strike.clone());
    world.start_agent();
    let story = story(&world);
    let hit = tokio::select! {
        () = story => false,
        () = strike.struck.notified() => true,
    };
    if hit {
        if strike.with == FaultAction::Hang {
            world.crash_agent().await;
            world.start_agent();
        }
        again(&world).await;
    }
    world.system.set_faults(Arc::new(NoFaults));
    world.assert_quiet().await;
    let left = world.system.leftovers();
    assert!(left.processes.is_empty() && left.instances.is_empty() && left.taps.is_empty(), "{left:?}");
    assert!(left.bridges.is_empty() && left.firewall.forwards.is_empty() && left.volumes.is_empty(), "{left:?}");
    hit
}

async fn story(world: &World) {
    world.furnish().await;
    let vm = world.make_vm(json!({"networkInterfaces": [{"name": "nic0", "publicIP": "web"}]})).await;
    world.make_public_ip(&vm).await;
    world.make_attachment().await;
    finish(world).await;
}

/// From wherever the story was cut off: what was not declared yet is declared now.
async fn again(world: &World) {
    if world.api::<VM>().get_opt("web").await.expect("readable").is_none() {
        let began = world.api::<Disk>().get_opt("data").await.expect("readable").is_some();
        if !began {
            return;
        }
    }
    finish(world).await;
}

async fn exists<K>(world: &World, name: &str) -> bool
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    K::DynamicType: Default,
{
    let found = world.api::<K>().get_opt(name).await.expect("readable");
    found.is_some_and(|object| object.meta().deletion_timestamp.is_none())
}

async fn finish(world: &World) {
    if exists::<HotswapDiskAttachment>(world, "data").await {
        let attached = |a: &HotswapDiskAttachment| a.status.as_ref().is_some_and(|s| s.device.is_some());
        world.until::<HotswapDiskAttachment>("data", attached).await;
        assert!(world.system.hypervisor().view(INSTANCE).is_some_and(|v| v.disks.contains_key(DATA)));
        world.change::<Disk>("data", json!({"size": "2Gi"})).await;
        let grown = |d: &Disk| d.status.as_ref().is_some_and(|s| s.size.as_deref() == Some("2Gi"));
        world.until::<Disk>("data", grown).await;
        world.delete::<HotswapDiskAttachment>("data").await;
    }
    world.until_gone::<HotswapDiskAttachment>("data").await;
    if exists::<VM>(world, "web").await {
        world.change::<VM>("web", json!({"power": "Stopped"})).await;
        world.until::<VM>("web", |vm| is_ready(vm, "Stopped")).await;
        world.change::<VM>("web", json!({"power": "Running"})).await;
        world.until::<VM>("web", |vm| is_ready(vm, "Running")).await;
        assert_eq!(world.system.hypervisor().instances().len(), 1);
        world.delete::<VM>("web").await;
    }
    world.until_gone::<VM>("web").await;
    for disk in ["root", "data"] {
        if exists::<Disk>(world, disk).await {
            world.until::<Disk>(disk, |d| d.status.as_ref().is_some_and(|s| s.used_by.is_empty())).await;
            world.delete::<Disk>(disk).await;
        }
        world.until_gone::<Disk>(disk).await;
    }
}

fn sweep(with: FaultAction, offset: usize) {
    let stride = std::env::var("BERTH_SWEEP_STRIDE").ok().and_then(|s| s.parse().ok()).unwrap_or(STRIDE);
    for at in (1 + offset % stride..).step_by(stride) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let strike = Strike { at: at as u64, with, count: AtomicU64::new(0), struck: Notify::new() };
        let hit = runtime.expect("a runtime").block_on(live(Arc::new(strike)));
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
