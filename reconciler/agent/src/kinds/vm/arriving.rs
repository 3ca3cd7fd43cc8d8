//! The launch of a machine whose guest comes from another host.

use berth_api::VM;
use berth_host::{HostFacts, LaunchRequest, TapConfig};
use berth_qemu::hypervisor::CpuTime;
use berth_qemu::machine::{MachineSpec, Tap};

use super::apply::{must_not_be_refused, start_process};
use super::plan::limits_with;
use super::vsock;
use crate::context::Context;
use crate::error::Error;
use crate::index::mtu_of;
use crate::journal::{Journal, Run};
use crate::key::Key;
use crate::kinds::network;
use crate::machine::{Machine, MachineError};
use crate::networking::{find, tap_of};

/// Makes the taps and launches a QEMU that waits for the guest. The journal is written, and its instance is among those that the networks are
/// made for.
pub(crate) async fn launch(
    ctx: &Context,
    vm: &VM,
    journal: &Journal,
    machine: MachineSpec,
    host: &HostFacts,
) -> Result<Machine, Error> {
    let instance = machine.instance.clone();
    if !machine.nics.is_empty() {
        network::ensure(ctx).await?;
        must_not_be_refused(ctx, vm)?;
        let networks = journal.interfaces.iter().map(|interface| &interface.network);
        ctx.networks.must_be_made(&ctx.index.read(), networks)?;
        for tap in taps(ctx, journal, &machine)? {
            ctx.system.ensure_tap(&tap).await?;
        }
    }
    let machine = vsock::chosen_again(ctx, machine).await?;
    for disk in &machine.disks {
        ctx.machines.reserve(&instance, &journal.uid, &disk.id)?;
    }
    let most = machine.max_memory_bytes.unwrap_or(machine.memory_bytes);
    let request = LaunchRequest {
        machine,
        seed: None,
        keys: None,
        // A machine with one is not sent.
        scratch: None,
        // Its reconcile sets the declared CPU time.
        limits: limits_with(most, CpuTime::default(), host),
        dedicated: journal.run.as_ref().and_then(Run::dedicated_request),
        from_saved_state: true,
    };
    start_process(ctx, Some(&journal.uid), Key::of(vm), &request).await?;
    Ok(ctx.machines.get(&instance).ok_or(MachineError::Gone)?)
}

/// *Errors:* [`Error::NetworkRefused`] if the network of a card is not on this host.
fn taps(ctx: &Context, journal: &Journal, machine: &MachineSpec) -> Result<Vec<TapConfig>, Error> {
    let tables = ctx.index.read();
    let tap = |name: &str, queues: u8| {
        let of_slot = |slot: u8| tap_of(&machine.instance, slot) == name;
        let (interface, _) = journal.slots.iter().find(|(_, slot)| of_slot(**slot))?;
        let known = journal.interfaces.iter().find(|known| known.name == *interface)?;
        let mtu = find(&tables, &known.network).map(|network| mtu_of(&network))?;
        let bridge = ctx.networks.bridge_of(&tables, &known.network)?;
        Some(TapConfig { name: name.to_owned(), bridge, mtu, multi_queue: queues > 1 })
    };
    let names = machine.nics.iter().filter_map(|nic| match &nic.tap {
        Tap::Name(name) => Some((name, nic.queues)),
        Tap::Open { .. } => None,
    });
    let missing = |name: &String| Error::NetworkRefused {
        why: format!("the network of the card with the tap {name} is not on this host"),
    };
    names.map(|(name, queues)| tap(name, queues).ok_or_else(|| missing(name))).collect()
}
