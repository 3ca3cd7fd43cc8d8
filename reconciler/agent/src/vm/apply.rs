//! Taking a step for a VM.

use std::time::Duration;

use berth_api::VM;
use berth_qemu::block::Unplugged;
use kube::ResourceExt;

use super::{Journal, Step, observe::User};
use crate::context::Context;
use crate::converge::release;
use crate::disk::volume_of;
use crate::error::Error;
use crate::index::instance_of;
use crate::machine::Machine;
use crate::queue::{Key, ObjectName};
use crate::system::LaunchConfig;

/// How long a QEMU that was asked to quit may take before it is killed.
const QUIT_WAIT: Duration = Duration::from_secs(5);

pub(super) async fn apply(ctx: &Context, vm: &VM, step: &Step) -> Result<(), Error> {
    let instance = instance_of(vm).unwrap_or_default();
    let machine = || ctx.machines.get(instance).ok_or(Error::MachineGone);
    match step {
        Step::Note(journal) => ctx.system.write_journal(instance, &journal.to_value()).await?,
        Step::EnsureNetworks => crate::network::make_sure(ctx).await?,
        Step::MakeTap(tap) => ctx.system.ensure_tap(tap).await?,
        Step::Launch(config) => launch(ctx, vm, config).await?,
        Step::Start => open(ctx, vm, instance).await?.start().await?,
        Step::Plug { pool, disk } => {
            take(ctx, vm, instance, &disk.id)?;
            let machine = machine()?;
            ctx.system.grant_volume(pool, &disk.id).await?;
            machine.plug((**disk).clone()).await?;
        }
        Step::Unplug { volume } => {
            unplug(ctx, instance, volume).await?;
            wake_disks(ctx, vm);
        }
        Step::PressPowerButton => machine()?.press_power_button().await?,
        Step::AskGuestToShutDown => {
            let machine = machine()?;
            if !machine.ask_guest_to_shut_down().await {
                machine.press_power_button().await?;
            }
        }
        Step::EndProcess => end_process(ctx, instance).await?,
        Step::RemoveTap(tap) => ctx.system.remove_tap(tap).await?,
        Step::RemoveInstance => {
            ctx.system.remove_instance(instance).await?;
            ctx.machines.gone(instance);
            wake_disks(ctx, vm);
        }
        Step::Release => release(ctx, vm).await?,
    }
    Ok(())
}

async fn launch(ctx: &Context, vm: &VM, config: &LaunchConfig) -> Result<(), Error> {
    for disk in &config.disks {
        take(ctx, vm, &config.instance, &disk.id)?;
    }
    let process = ctx.system.launch(config).await?;
    tracing::info!(pid = process.identity.pid, instance = config.instance, "launched");
    // Before it is let run. What cannot be read is left to the next look.
    if let Some(Ok(journal)) = ctx.system.read_journal(&config.instance).await?.map(Journal::parse) {
        let noted = journal.with_process(&process).to_value();
        ctx.system.write_journal(&config.instance, &noted).await?;
    }
    Ok(())
}

/// The machine of an instance that runs, whether or not it was looked at before.
async fn open(ctx: &Context, vm: &VM, instance: &str) -> Result<Machine, Error> {
    if let Some(machine) = ctx.machines.get(instance) {
        return Ok(machine);
    }
    let process = ctx.system.process(instance).await?.ok_or(Error::MachineGone)?;
    let key = Key::Vm(ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any()));
    ctx.machines.open(instance, vm.metadata.uid.as_deref(), Some(key), &process).await
}

/// Takes a volume for this VM's machine, if the control plane still says that it is this VM's.
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
    match disk.and_then(|d| d.status.as_ref()?.used_by.first().cloned()) {
        None => User::Nobody,
        Some(user) if Some(&user.vm_uid) == vm.metadata.uid.as_ref() && user.attachment.is_none() => {
            User::ThisVm
        }
        Some(user) => User::Other(user.vm),
    }
}

/// Takes a volume out of a machine.
///
/// *Errors:* [`Error::StillHeld`] while the guest keeps it: to be asked again.
pub(crate) async fn unplug(ctx: &Context, instance: &str, volume: &str) -> Result<(), Error> {
    let machine = ctx.machines.get(instance).ok_or(Error::MachineGone)?;
    if machine.unplug(volume).await? == Unplugged::Waiting {
        return Err(Error::StillHeld { name: volume.to_owned() });
    }
    ctx.machines.unreserve(instance, volume);
    // What the driver saw last is what counts as held.
    machine.look().await?;
    Ok(())
}

async fn end_process(ctx: &Context, instance: &str) -> Result<(), Error> {
    let Some(process) = ctx.system.process(instance).await? else { return Ok(()) };
    let quit = match ctx.machines.get(instance) {
        Some(machine) => tokio::time::timeout(QUIT_WAIT, machine.quit()).await.is_ok_and(|done| done.is_ok()),
        None => false,
    };
    if quit {
        // Its last flushes are let through before anything harder.
        let _ = tokio::time::timeout(QUIT_WAIT, ctx.system.exited(&process.identity)).await;
    }
    ctx.system.kill(instance, QUIT_WAIT).await?;
    Ok(())
}

/// Disks this VM uses may be free now.
fn wake_disks(ctx: &Context, vm: &VM) {
    let namespace = vm.namespace().unwrap_or_default();
    let keys: Vec<Key> = {
        let tables = ctx.index.read();
        let uses = |disk: &berth_api::Disk| {
            let users = disk.status.iter().flat_map(|s| &s.used_by);
            users.into_iter().any(|user| Some(&user.vm_uid) == vm.metadata.uid.as_ref())
        };
        let mine = tables.disks.all().filter(|(name, disk)| name.namespace == namespace && uses(disk));
        mine.map(|(name, _)| Key::Disk(ObjectName::new(name.namespace.clone(), name.name.clone()))).collect()
    };
    for key in keys {
        ctx.queue.add(key);
    }
}
