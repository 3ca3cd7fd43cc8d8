//! Reads the use of the host by its VMs, for `/metrics`, `/history`, `berth top` and `berth why`.
//!
//! ```text
//!   kernel's files ─▶ host ──┐
//!   QEMU (block statistics) ─┴▶ Usage ─▶ cached for a moment ─▶ server (HTTP), console (a ticket's holder)
//! ```
//!
//! *Guarantees:* it is read for a request, and every minute for the history, at most once in [`FRESH`], a few VMs at a time. A QEMU that
//! does not answer delays neither its driver's other requests nor the rest by more than two seconds. Nothing of it is written to the control
//! plane.

mod past;
mod server;

use std::sync::Arc;
use std::time::Duration;

use berth_api::HostPool;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use crate::context::Context;
use crate::guest_memory::{ballooned, reported};
use crate::index::{instance_of, volume_of};
use crate::journal::Journal;
use crate::key::ObjectName;
use crate::networking::tap_of;
use crate::usage::{DiskUsage, PoolUsage, Usage, VmUsage};

pub(crate) use past::remember;
pub(crate) use server::serve;

/// How long a reading is used again.
const FRESH: Duration = Duration::from_secs(1);
/// The number of VMs that are read at a time.
const AT_A_TIME: usize = 32;

/// Returns a reading that is at most [`FRESH`] old. Callers at the same time share one.
pub(crate) async fn usage(ctx: &Context) -> Arc<Usage> {
    let mut cached = ctx.usage.0.lock().await;
    if let Some((at, usage)) = &*cached
        && at.elapsed() < FRESH
    {
        return usage.clone();
    }
    let read = Arc::new(read(ctx).await);
    *cached = Some((Instant::now(), read.clone()));
    read
}

/// The identity of a VM that may run, and the names of its volumes.
struct Candidate {
    name: ObjectName,
    instance: String,
    cpus: i64,
    restarts: i64,
    /// Volume → Disk.
    disks: Vec<(String, String)>,
}

async fn read(ctx: &Context) -> Usage {
    let vms = stream::iter(candidates(ctx)).map(|vm| of_vm(ctx, vm)).buffer_unordered(AT_A_TIME);
    let mut vms: Vec<VmUsage> = vms.filter_map(futures::future::ready).collect().await;
    vms.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let machine = ctx.system.host_use().await.unwrap_or_default();
    Usage { host: ctx.host().to_owned(), time: ctx.now(), machine, vms, pools: pools(ctx) }
}

/// Returns the pools as the Host reports them: a look at their file systems would take as long as the slowest of them.
fn pools(ctx: &Context) -> Vec<PoolUsage> {
    let host = ctx.index.read().hosts.get(&ObjectName::new("", ctx.host()));
    let usage = |pool: &HostPool| PoolUsage {
        name: pool.name.clone(),
        size_bytes: pool.total_bytes(),
        free_bytes: pool.free_bytes(),
        promised_bytes: pool.promised_bytes(),
        is_away: !pool.is_there(),
    };
    host.iter().filter_map(|host| host.status.as_ref()).flat_map(|status| &status.pools).map(usage).collect()
}

fn candidates(ctx: &Context) -> Vec<Candidate> {
    let tables = ctx.index.read();
    let candidate = |(name, vm): (&ObjectName, &Arc<berth_api::VM>)| {
        let status = vm.status.as_ref()?;
        let plugged = status.disks.iter().map(|disk| disk.name.as_str());
        let named = |disk: &str| {
            let found = tables.disks.get(&name.beside(disk))?;
            Some((volume_of(&found)?.to_owned(), disk.to_owned()))
        };
        Some(Candidate {
            name: name.clone(),
            instance: instance_of(vm)?.to_owned(),
            cpus: status.hardware.as_ref().map_or(0, |hardware| hardware.cpus),
            restarts: status.restarts,
            disks: plugged.filter_map(named).collect(),
        })
    };
    tables.vms.all().filter_map(candidate).collect()
}

/// Returns the use by a VM; `None` if it does not run.
async fn of_vm(ctx: &Context, vm: Candidate) -> Option<VmUsage> {
    let machine = ctx.machines.get(&vm.instance)?;
    let journal = Journal::parse(ctx.system.read_journal(&vm.instance).await.ok()??).ok()?;
    let (names, taps): (Vec<String>, Vec<String>) =
        journal.slots.iter().map(|(name, slot)| (name.clone(), tap_of(&vm.instance, *slot))).unzip();
    let identity = &machine.process.identity;
    let process = ctx.system.machine_use(&vm.instance, identity, &taps).await.ok()??;
    let (disks, balloon) = tokio::join!(machine.disk_use(), machine.balloon());
    let (disks, balloon) = (disks.unwrap_or_default(), balloon.ok());
    let run = journal.run.as_ref();
    let named = |volume: &str| vm.disks.iter().find(|(of, _)| of == volume).map(|(_, disk)| disk.clone());
    let disks = disks.into_iter().filter_map(|disk| {
        Some(DiskUsage { name: named(&disk.id)?, read: disk.read, write: disk.write, flush: disk.flush })
    });
    Some(VmUsage {
        namespace: vm.name.namespace,
        name: vm.name.name,
        cpus: vm.cpus,
        memory_bytes: run.map_or(0, |run| run.memory_bytes),
        restarts: vm.restarts,
        guest_memory: run.zip(balloon).and_then(|(run, balloon)| reported(run, balloon, ctx.now())),
        ballooned_bytes: run.zip(balloon).map_or(0, |(run, balloon)| ballooned(run, balloon)),
        interfaces: names.into_iter().zip(process.interfaces.iter().cloned()).collect(),
        process,
        disks: disks.collect(),
    })
}
