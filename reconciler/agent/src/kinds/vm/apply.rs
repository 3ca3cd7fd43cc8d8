//! Applies the steps of a VM's plan.

use std::time::Duration;

use berth_api::{Disk, Reason, VM};
use berth_host::{LaunchRequest, ProcessFacts};
use berth_qemu::block::Unplugged;
use berth_qemu::cdrom::Changed;
use berth_qemu::machine::MachineSpec;
use kube::{Resource as _, ResourceExt};

use super::declared_disks::{self, User};
use super::{LanAddress, MediumChange, Step, firmware, leaving, stale};
use crate::balloons;
use crate::context::Context;
use crate::converge::release;
use crate::error::Error;
use crate::firmware_copies;
use crate::index::{instance_of, volume_of};
use crate::journal::Journal;
use crate::key::{Key, ObjectName};
use crate::kinds::network;
use crate::machine::{Machine, MachineError};
use crate::plugging::{close_left, has_limited_disk, limit, unplug};
use crate::pulls::Wanted;

/// How long a QEMU that was asked to quit may take before it is killed.
const QUIT_WAIT: Duration = Duration::from_secs(5);

pub(super) async fn apply(ctx: &Context, vm: &VM, step: &Step) -> Result<(), Error> {
    let instance = instance_of(vm).unwrap_or_default();
    let machine = || ctx.machines.get(instance).ok_or(Error::from(MachineError::Gone));
    match step {
        Step::ReserveCapacity(offer) => ctx.reservations.reserve(&ctx.index.read(), vm, offer),
        Step::Connect(process) => {
            connect(ctx, vm.metadata.uid.as_deref(), Key::of(vm), instance, process).await
        }
        Step::ForgetMachine => {
            ctx.machines.forget(instance);
            wake_disks(ctx, vm);
        }
        Step::WatchLeases(leases) => {
            let name = ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any());
            ctx.lease_watcher.watch(&name, leases.clone());
        }
        Step::WatchProbes(plan) => {
            let name = ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any());
            match plan {
                Some(plan) => ctx.probes.watch(&name, (**plan).clone(), machine()?),
                None => ctx.probes.forget(&name),
            }
        }
        Step::KeepKeys(plan) => {
            let name = ObjectName::of(vm);
            match plan {
                Some(plan) => ctx.ssh_keys.keep(&name, (**plan).clone(), machine()?),
                None => ctx.ssh_keys.forget(&name),
            }
        }
        Step::KeepPackage(plan) => {
            let name = ObjectName::of(vm);
            match plan {
                Some(plan) => ctx.guest_packages.keep(&name, (**plan).clone(), machine()?),
                None => ctx.guest_packages.forget(&name),
            }
        }
        Step::RunHook(call) => {
            let name = ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any());
            ctx.hooks.start(&name, (**call).clone(), machine()?);
        }
        Step::WriteJournal(journal) => {
            // Before that: the journal is not written again, and the disk would stay after a crash in between.
            if journal.leaves_scratch() {
                ctx.system.remove_scratch(instance).await?;
            }
            ctx.system.write_journal(instance, &journal.to_value()).await?;
            let given = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
            ctx.networks.ports.record(instance, journal, given);
            if journal.arrival.is_none() {
                ctx.networks.set_arriving(instance, None);
            }
        }
        Step::RemoveStale(volumes) => stale::remove(ctx, vm, volumes).await?,
        Step::TakeFirmware(origin) => Box::pin(firmware::take_over(ctx, vm, instance, origin)).await?,
        Step::CopyFirmware => Box::pin(firmware_copies::copy(ctx, vm, true)).await?,
        Step::EnsureNetworks => {
            network::ensure(ctx).await?;
            must_not_be_refused(ctx, vm)?;
            ctx.networks.must_be_made(&ctx.index.read(), networks_of(vm))?;
        }
        Step::EnsureBridges => {
            network::ensure(ctx).await?;
            must_not_be_refused(ctx, vm)?;
            ctx.networks.must_be_linked(&ctx.index.read(), networks_of(vm))?;
        }
        Step::EnsureNetworkOf(name) => {
            network::ensure(ctx).await?;
            let mut interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
            if let Some(interface) = interfaces.find(|interface| interface.name == *name) {
                let tables = ctx.index.read();
                if let Some(why) = network::why_not_interface(ctx, &tables, vm, interface) {
                    return Err(Error::NetworkRefused { why });
                }
                ctx.networks.must_be_made(&tables, std::iter::once(&interface.network))?;
            }
        }
        Step::ProbeAddresses(addresses) => probe_addresses(ctx, vm, addresses).await?,
        Step::MakeTap(tap) => {
            ctx.system.ensure_tap(tap).await?;
            ctx.networks.tap_made(&tap.name);
        }
        Step::TakeDevices(devices) => {
            ctx.system.take_devices(instance, devices).await?;
            ctx.enqueue(Key::host());
        }
        Step::GiveBackDevices => {
            ctx.system.give_back_devices(instance).await?;
            ctx.enqueue(Key::host());
        }
        Step::Launch(request) => launch(ctx, vm, request).await?,
        Step::Start => start(ctx, vm, instance).await?,
        Step::Pause => machine()?.pause().await?,
        Step::SuspendGuest => machine()?.suspend_guest().await?,
        Step::WakeUp => machine()?.wake_up().await?,
        Step::Save { at_most } => machine()?.save(*at_most).await?,
        Step::CancelSave => machine()?.cancel_save().await?,
        Step::SealState => ctx.system.seal_state(instance).await?,
        Step::Load { cpus } => machine()?.load(usize::try_from(*cpus).unwrap_or_default()).await?,
        Step::RemoveState => ctx.system.remove_state(instance).await?,
        Step::LayState(id) => ctx.system.lay_state(instance, id).await?,
        Step::Depart(leaving) => {
            let machine = open(ctx, vm, instance).await?;
            Box::pin(leaving::depart(ctx, vm, machine, leaving)).await?;
        }
        Step::CancelDeparture => ctx.departures.cancel(instance),
        Step::AbandonDeparture => {
            let machine = open(ctx, vm, instance).await?;
            Box::pin(leaving::abandon(ctx, instance, &machine)).await?;
        }
        Step::SettleDeparture(departure) => leaving::settle(ctx, vm, instance, departure),
        Step::SetClock => machine()?.set_clock().await,
        Step::HoldDisks(volumes) => {
            for volume in volumes {
                ctx.machines.reserve(instance, &vm.uid().unwrap_or_default(), volume)?;
            }
        }
        Step::Plug { disk } => {
            take(ctx, vm, instance, &disk.id)?;
            let machine = machine()?;
            let _alone = ctx.machines.open_alone(std::slice::from_ref(&**disk)).await;
            let lent = ctx.system.grant_disk(instance, disk).await?;
            machine.plug(lent).await?;
            limit(ctx, &machine, &[&disk.id]).await?;
        }
        Step::Unplug { volume } => {
            let done = unplug(ctx, instance, volume).await;
            // The machine may have released the disk although a later call failed.
            wake_disks(ctx, vm);
            done?;
        }
        Step::CloseLeft { volume } => {
            let done = close_left(ctx, instance, volume).await;
            wake_disks(ctx, vm);
            done?;
        }
        Step::PlugNic(nic) => machine()?.plug_nic((**nic).clone()).await?,
        Step::UnplugNic { name, id } => {
            if machine()?.unplug_nic(id).await? == Unplugged::Waiting {
                return Err(Error::InterfaceHeld { name: name.clone() });
            }
        }
        Step::SetLink { nic, up } => machine()?.set_link(nic, *up).await?,
        Step::SetCpuTime(time) => ctx.system.set_cpu_time(instance, *time).await?,
        Step::Pull(source) => ctx.pulls.start(&Wanted::Image(source.clone()), Key::of(vm)),
        Step::FollowPull(source) => ctx.pulls.follow(&Wanted::Image(source.clone()), Key::of(vm)),
        Step::ChangeMedium(change) => change_medium(ctx, instance, machine()?, change).await?,
        Step::CloseTray(slot) => machine()?.close_tray(*slot).await?,
        Step::PlugCpus(count) => {
            let machine = machine()?;
            machine.plug_cpus(usize::try_from(*count).unwrap_or_default()).await?;
            machine.set_online().await;
        }
        Step::RequestMemory(bytes) => {
            let machine = machine()?;
            machine.request_memory(*bytes).await?;
            machine.set_online().await;
        }
        Step::PressPowerButton => machine()?.press_power_button().await?,
        Step::AskGuestToShutDown => {
            let machine = machine()?;
            if !machine.ask_guest_to_shut_down().await {
                machine.press_power_button().await?;
            }
        }
        Step::EndProcess => {
            end_process(ctx, instance).await?;
            Box::pin(firmware_copies::after_stop(ctx, vm)).await;
        }
        Step::ReportPowerOff => {
            let seconds = vm.spec.stop.grace_period_seconds;
            let text = format!("the guest did not shut down within {seconds} s, and was powered off");
            ctx.recorder.warn(vm.object_ref(&()), Reason::PoweredOff.as_str(), &text);
        }
        Step::ReportLostTap(name) => {
            let text = format!(
                "the tap of {name} was removed from the host by another program: its card is exchanged"
            );
            ctx.recorder.warn(vm.object_ref(&()), Reason::TapMissing.as_str(), &text);
        }
        Step::RemoveTap(tap) => ctx.system.remove_tap(tap).await?,
        Step::RemoveInstance => {
            ctx.system.remove_instance(instance).await?;
            ctx.machines.forget(instance);
            ctx.departures.forget(instance);
            wake_disks(ctx, vm);
        }
        Step::Release => {
            Box::pin(firmware_copies::remove(ctx, vm)).await?;
            release(ctx, vm).await?;
        }
    }
    Ok(())
}

fn networks_of(vm: &VM) -> impl Iterator<Item = &String> {
    let interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
    interfaces.map(|interface| &interface.network)
}

/// Checked after the networks were observed: a tap never joins another network's bridge.
pub(super) fn must_not_be_refused(ctx: &Context, vm: &VM) -> Result<(), Error> {
    match network::why_not(ctx, &ctx.index.read(), vm) {
        Some(why) => Err(Error::NetworkRefused { why }),
        None => Ok(()),
    }
}

/// Asks for all addresses at the same time.
///
/// *Errors:* [`Error::AddressConflict`] if another machine answers for one of them.
async fn probe_addresses(ctx: &Context, vm: &VM, addresses: &[LanAddress]) -> Result<(), Error> {
    let probes = addresses.iter().map(|wanted| ctx.system.occupant(&wanted.bridge, wanted.address));
    let answers = futures::future::join_all(probes).await;
    for (wanted, answer) in addresses.iter().zip(answers) {
        if let Some(mac) = answer?.filter(|mac| !is_of_vm(vm, mac)) {
            let (interface, address) = (wanted.interface.clone(), wanted.address);
            let conflict = Error::AddressConflict { interface, address, mac };
            ctx.networks.conflicts.record(&wanted.bridge, address, conflict.to_string());
            return Err(conflict);
        }
    }
    Ok(())
}

/// Whether an interface of the VM has this MAC address. Its machine on a host that it has left may still answer, and a guest answers by each
/// of its interfaces on a network for the addresses of all of them.
fn is_of_vm(vm: &VM, mac: &str) -> bool {
    let mut interfaces = vm.status.iter().flat_map(|status| &status.interfaces);
    interfaces.any(|interface| interface.mac_address.eq_ignore_ascii_case(mac))
}

/// *Errors:* [`Error::TrayLocked`] while the guest uses the medium in the drive: the caller retries.
async fn change_medium(
    ctx: &Context,
    instance: &str,
    machine: Machine,
    change: &MediumChange,
) -> Result<(), Error> {
    let medium = match &change.medium {
        None => None,
        Some(medium) => Some(ctx.system.grant_medium(instance, medium).await?),
    };
    if machine.change_medium(change.slot, medium).await? == Changed::Locked {
        return Err(Error::TrayLocked { name: change.name.clone() });
    }
    let former = change.former.as_deref().and_then(|node| node.split_once('-'));
    if let Some((_, digest)) = former {
        ctx.system.revoke_medium(instance, digest).await?;
    }
    Ok(())
}

async fn launch(ctx: &Context, vm: &VM, request: &LaunchRequest) -> Result<(), Error> {
    let MachineSpec { instance, disks, .. } = &request.machine;
    for disk in disks {
        // A suspended machine has kept its disks, also those that an attachment plugged in.
        let keeps = request.from_saved_state && ctx.machines.holds(&vm.uid().unwrap_or_default(), &disk.id);
        if !keeps {
            take(ctx, vm, instance, &disk.id)?;
        }
    }
    start_process(ctx, vm.metadata.uid.as_deref(), Key::of(vm), request).await?;
    if let Some(machine) = ctx.machines.get(instance) {
        balloons::prefer_launched(ctx, vm, &machine.process.identity).await;
    }
    Ok(())
}

/// Starts the QEMU of a machine whose disks are reserved, and connects to it.
pub(super) async fn start_process(
    ctx: &Context,
    uid: Option<&str>,
    key: Key,
    request: &LaunchRequest,
) -> Result<(), Error> {
    let instance = &request.machine.instance;
    let alone = ctx.machines.open_alone(&request.machine.disks).await;
    let process = ctx.system.launch(request).await?;
    drop(alone);
    tracing::info!(pid = process.identity.pid, instance, "launched");
    // Recorded before the guest may run. An unreadable journal is left to the next observation.
    if let Some(Ok(journal)) = ctx.system.read_journal(instance).await?.map(Journal::parse) {
        let updated = journal.with_process(&process).to_value();
        ctx.system.write_journal(instance, &updated).await?;
    }
    connect(ctx, uid, key, instance, &process).await;
    // A loaded state has links of its own.
    if let Some(machine) = ctx.machines.get(instance).filter(|_| !request.from_saved_state) {
        // Otherwise they are set once more.
        let _ = machine.assume_links_up().await;
    }
    Ok(())
}

/// Connects to the machine's monitor. A machine that does not answer is an observation, and not an error: it can still
/// be ended.
async fn connect(ctx: &Context, uid: Option<&str>, key: Key, instance: &str, process: &ProcessFacts) {
    let _ = ctx.machines.connect(instance, uid, Some(key), process).await;
}

/// Lets the guest run, with the ceilings of its disks in force.
async fn start(ctx: &Context, vm: &VM, instance: &str) -> Result<(), Error> {
    let machine = open(ctx, vm, instance).await?;
    let has_limits = has_limited_disk(&ctx.index.read(), vm);
    if has_limits {
        let state = machine.state().await?;
        let volumes: Vec<&str> = state.disks.iter().map(|disk| disk.id.as_str()).collect();
        limit(ctx, &machine, &volumes).await?;
    }
    Ok(machine.start().await?)
}

/// Returns the machine of a running instance, connecting to it if needed.
async fn open(ctx: &Context, vm: &VM, instance: &str) -> Result<Machine, Error> {
    if let Some(machine) = ctx.machines.get(instance) {
        return Ok(machine);
    }
    let process = ctx.system.process(instance).await?.ok_or(MachineError::Gone)?;
    Ok(ctx.machines.connect(instance, vm.metadata.uid.as_deref(), Some(Key::of(vm)), &process).await?)
}

/// Reserves a volume for this VM's machine if the control plane still lists this VM as its user.
fn take(ctx: &Context, vm: &VM, instance: &str, volume: &str) -> Result<(), Error> {
    ctx.machines.reserve(instance, &vm.uid().unwrap_or_default(), volume)?;
    if user_of(ctx, vm, volume) == User::ThisVm {
        return Ok(());
    }
    ctx.machines.unreserve(instance, volume);
    Err(Error::Conflict)
}

fn user_of(ctx: &Context, vm: &VM, volume: &str) -> User {
    let tables = ctx.index.read();
    let disk = tables.disks.all().map(|(_, disk)| disk).find(|disk| volume_of(disk) == Some(volume));
    disk.map_or(User::None, |disk| declared_disks::user_of(disk, vm))
}

pub(crate) async fn end_process(ctx: &Context, instance: &str) -> Result<(), Error> {
    let Some(process) = ctx.system.process(instance).await? else { return Ok(()) };
    let quit = match ctx.machines.get(instance) {
        Some(machine) => tokio::time::timeout(QUIT_WAIT, machine.quit()).await.is_ok_and(|done| done.is_ok()),
        None => false,
    };
    if quit {
        // QEMU may finish its last flushes before it is killed.
        let _ = tokio::time::timeout(QUIT_WAIT, ctx.system.exited(&process.identity)).await;
    }
    ctx.system.kill(instance, QUIT_WAIT).await?;
    Ok(())
}

/// Enqueues the disks this VM uses: they may be free now.
fn wake_disks(ctx: &Context, vm: &VM) {
    let namespace = vm.namespace().unwrap_or_default();
    let keys: Vec<Key> = {
        let tables = ctx.index.read();
        let uses = |disk: &Disk| {
            let users = disk.status.iter().flat_map(|s| &s.used_by);
            users.into_iter().any(|user| Some(&user.vm_uid) == vm.metadata.uid.as_ref())
        };
        let mine = tables.disks.all().filter(|(name, disk)| name.namespace == namespace && uses(disk));
        mine.map(|(name, _)| Key::new::<Disk>(name.clone())).collect()
    };
    for key in keys {
        ctx.queue.add(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_by_another_interface_of_the_vm_is_no_conflict() {
        let interface = |name: &str, mac: &str| json!({"name": name, "network": "n/lan", "macAddress": mac});
        let vm = json!({
            "metadata": {"name": "web", "namespace": "n"}, "spec": {"disks": []},
            "status": {"interfaces": [interface("nic0", "52:54:00:00:00:0A"), interface("nic1", "52:54:00:00:00:0b")]}
        });
        let vm: VM = serde_json::from_value(vm).expect("a VM");
        assert!(is_of_vm(&vm, "52:54:00:00:00:0a") && is_of_vm(&vm, "52:54:00:00:00:0b"));
        assert!(!is_of_vm(&vm, "52:54:00:00:00:0c"));
    }
}
