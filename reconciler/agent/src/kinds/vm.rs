//! VM: one QEMU on this host, with everything it depends on.
//!
//! ```text
//!            class, disks, networks, addresses, bootstrap there
//!  (bound) ─ Note ▸ EnsureNetworks ▸ ProbeAddresses ▸ MakeTap ▸ Launch ▸ Note ──▶ prelaunch ─────Start────▶ running
//!     ▲                                                                                                │ │
//!     │       restart policy, power cycle, another restartToken                  guest ended by itself │ │ stop asked for
//!     │                                                                            paused ◀─Pause/Start─┤ │
//!     └───────────────────────────── stopped ◀── EndProcess ◀── Note (how it ended) ◀──────────────────┘ │
//!                                       ▲                                                                │
//!                                       └──────── EndProcess ◀── guest off, or grace over ◀── PressPowerButton
//!  deleted: stopped ▸ RemoveTap ▸ RemoveInstance ▸ (disks released) ▸ Release
//! ```

mod admitting;
mod apply;
mod arriving;
mod bootstrap;
mod cdroms;
mod cpu_time;
mod declared_disks;
mod dependents;
mod firmware;
mod guest_network;
mod guest_package;
mod guest_users;
mod held;
mod hooking;
mod leaving;
mod media;
mod observe;
mod observed_users;
mod offline;
mod placement;
mod plan;
mod probing;
mod process_facts;
mod secrets;
mod secure_boot_keys;
mod seed;
mod shutdown;
mod stale;
mod status;
mod stop_mode;
mod stop_snapshots;
mod vsock;

use std::collections::BTreeSet;
use std::net::IpAddr;

use async_trait::async_trait;
use berth_api::vm::{InterfaceConfig, InterfaceStatus};
use berth_api::{
    Binding, Conditions, Disk, HotswapDiskAttachment, Readiness, Reason, StopMode, VM, VMStatus,
};
use berth_host::{DeviceSpecs, ImageSource, LaunchRequest, ProcessFacts, TapConfig};
use berth_qemu::block::ObservedDisk;
use berth_qemu::hypervisor::CpuTime;
use berth_qemu::machine::{Bus, DiskSpec, Medium, NicSpec};
use jiff::Timestamp;
use kube::ResourceExt;

pub(crate) use apply::end_process;
pub(crate) use arriving::launch as launch_arriving;
pub(crate) use firmware::FirmwareOrigin;
pub(crate) use leaving::{Leaving, abandon_left};
pub(crate) use observe::Observed;
pub(crate) use offline::{forget_restart, forget_restarts, restart_until_answered, restart_until_synced};

use crate::admission::Offer;
use crate::context::Context;
use crate::converge::{Plan, Reconciler, Requeue, converge};
use crate::departed;
use crate::error::Error;
use crate::group_turn::{self, GroupTurn};
use crate::guest_packages::PackagePlan;
use crate::hooks::HookCall;
use crate::index::{Change, Departed, Indexed, Table, Tables, instance_of};
use crate::journal::{Departure, Journal};
use crate::key::{Key, ObjectName};
use crate::lease_watcher::PendingLease;
use crate::machine::MachineState;
use crate::probes::ProbePlan;
use crate::recorder::EventType;
use crate::ssh_keys::KeysPlan;

/// A step of a VM's plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Reserves what the VM takes of this host, so that no other VM is admitted to it.
    ReserveCapacity(Box<Offer>),
    /// Connects to the machine's monitor. A failure is no error of the step: the next observation shows it.
    Connect(ProcessFacts),
    /// Forgets a machine that has no process.
    ForgetMachine,
    /// Watches for the guest's first DHCP lease on exactly these interfaces.
    WatchLeases(Vec<PendingLease>),
    /// Runs exactly these probes of the guest from now on.
    WatchProbes(Option<Box<ProbePlan>>),
    /// Keeps exactly these SSH keys of the guest's users from now on.
    KeepKeys(Option<Box<KeysPlan>>),
    /// Does exactly this with the package of the guest agent from now on.
    KeepPackage(Option<Box<PackagePlan>>),
    /// Begins a call of the guest, which goes on in the background.
    RunHook(Box<HookCall>),
    /// Writes the journal, so that even after a crash later steps can be distinguished from earlier ones.
    WriteJournal(Box<Journal>),
    /// Removes the files of these volumes that are left of an earlier stay here: another host has their data.
    RemoveStale(BTreeSet<String>),
    /// Brings the firmware variables and the memory of the TPM here that the VM is started with.
    TakeFirmware(FirmwareOrigin),
    /// Copies them into the shared pool of its boot disk: the last ones before the VM is given up.
    CopyFirmware,
    /// Applies the bridges and leases that this VM needs.
    EnsureNetworks,
    /// Applies the bridges that this VM needs; the DHCP servers on them may fail.
    EnsureBridges,
    /// Applies the bridge and the lease that the interface with this name needs; those of others may fail.
    EnsureNetworkOf(String),
    /// Asks the bridged networks whether other machines have these addresses.
    ProbeAddresses(Vec<LanAddress>),
    MakeTap(TapConfig),
    /// Takes these devices of the host for the machine. The journal names them.
    TakeDevices(DeviceSpecs),
    /// Gives the devices of a machine that has ended back to the drivers that they had, and removes its vGPUs.
    GiveBackDevices,
    /// Starts QEMU and connects to its monitor.
    Launch(Box<LaunchRequest>),
    /// Lets the guest run.
    Start,
    /// Stops the guest's CPUs.
    Pause,
    /// Asks the guest to suspend itself to its memory.
    SuspendGuest,
    /// Wakes up a guest that has suspended itself to its memory.
    WakeUp,
    /// Begins to save the machine's state, of at most this many bytes.
    Save {
        at_most: u64,
    },
    CancelSave,
    /// Makes the saved state durable.
    SealState,
    /// Begins to load the state of a machine that had this number of CPUs.
    Load {
        cpus: i64,
    },
    /// Removes the saved state: it is not used again.
    RemoveState,
    /// Begins to send the guest to another host, as the journal records.
    Depart(Box<Leaving>),
    /// Has the task that sends the guest end.
    CancelDeparture,
    /// Ends an attempt to send the guest that an earlier agent has begun, and lets the guest go on.
    AbandonDeparture,
    /// Asks the other host whether it runs the guest.
    SettleDeparture(Box<Departure>),
    /// Gives the machine the state that a snapshot keeps under this identity as its saved state.
    LayState(String),
    /// Has the guest agent, if there is one, set the guest's clock.
    SetClock,
    /// Counts these volumes as open by the suspended machine.
    HoldDisks(Vec<String>),
    Plug {
        disk: Box<DiskSpec>,
    },
    Unplug {
        volume: String,
    },
    /// Has QEMU close a volume that the machine has no disk of: a plug or an unplug has left it.
    CloseLeft {
        volume: String,
    },
    /// Plugs in a network card whose tap exists.
    PlugNic(Box<NicSpec>),
    /// Unplugs the card of the interface with this name.
    UnplugNic {
        name: String,
        id: String,
    },
    /// Sets the link of a network card.
    SetLink {
        nic: String,
        up: bool,
    },
    /// Changes the CPU time that the machine may use and gets.
    SetCpuTime(CpuTime),
    /// Starts the download of an image for a CD-ROM drive, which continues in the background.
    Pull(ImageSource),
    /// Has the VM enqueued on the progress of a download that another object started.
    FollowPull(ImageSource),
    /// Exchanges the medium of a drive for this one, or takes it out.
    ChangeMedium(Box<MediumChange>),
    /// Closes the tray of the drive in this slot, which the guest has opened.
    CloseTray(u8),
    /// Plugs CPUs in until the machine has this number.
    PlugCpus(i64),
    /// Requests that the guest has this many bytes of memory beside that of its start.
    RequestMemory(u64),
    PressPowerButton,
    AskGuestToShutDown,
    /// Ends QEMU, through its monitor if that answers.
    EndProcess,
    /// Publishes that the guest did not shut down within its grace period, and was powered off.
    ReportPowerOff,
    /// Publishes that the card of the interface with this name is exchanged, as its tap was removed from the host.
    ReportLostTap(String),
    RemoveTap(String),
    RemoveInstance,
    /// Removes this host's finalizer.
    Release,
}

/// An address of berth's on a bridged network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LanAddress {
    /// The name of the interface that it is for.
    pub(crate) interface: String,
    pub(crate) address: IpAddr,
    /// The bridge of the host that leads to the network.
    pub(crate) bridge: String,
}

/// The change of the medium of a CD-ROM drive.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MediumChange {
    pub(crate) name: String,
    pub(crate) slot: u8,
    pub(crate) medium: Option<Medium>,
    /// The block node of the medium that is in the drive.
    pub(crate) former: Option<String>,
}

impl Indexed for VM {
    fn table(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.vms
    }

    fn departed(tables: &mut Tables) -> Option<&mut Departed<Self>> {
        Some(&mut tables.departed_vms)
    }

    fn keys_of(name: &ObjectName, vm: &Self, tables: &Tables) -> Vec<Key> {
        let mut keys = vec![Key::new::<VM>(name.clone()), Key::networks(), Key::host()];
        keys.extend(vm.spec.disks.iter().map(|d| Key::new::<Disk>(name.beside(d.name.as_str()))));
        let attached = vm.status.iter().flat_map(|s| &s.disks);
        keys.extend(attached.map(|d| Key::new::<Disk>(name.beside(&d.name))));
        for attachment in tables.attachments_of(name) {
            keys.push(Key::new::<HotswapDiskAttachment>(name.beside(&attachment.name_any())));
            keys.push(Key::new::<Disk>(name.beside(attachment.spec.disk.as_str())));
        }
        keys.extend(dependents::kept_apart(name, vm, tables));
        keys
    }

    fn keys_of_change(change: &Change<Self>, tables: &Tables) -> Vec<Key> {
        let both = [&change.old, &change.new].into_iter().flatten();
        let mut keys: Vec<Key> = both.flat_map(|vm| Self::keys_of(&change.name, vm, tables)).collect();
        if let (Some(old), Some(new)) = (&change.old, &change.new) {
            keys.retain(|key| dependents::is_concerned(key, old, new));
        }
        keys
    }

    fn reads_own_write(old: &Self, new: &Self) -> bool {
        dependents::admission_differs(old, new) || old.firmware_state_on() != new.firmware_state_on()
    }
}

#[derive(Debug)]
pub(crate) struct VmReconciler;

#[async_trait]
impl Reconciler for VmReconciler {
    type Object = VM;
    type Status = VMStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, vm: &VM) -> Result<Observed, Error> {
        let turn = group_turn::of(&ctx.index.read(), vm);
        // In a box: a VM is large, and the future has it across its awaits.
        let stopped =
            (turn == GroupTurn::Stopped).then(|| Box::new(group_turn::declared(vm, &turn).into_owned()));
        let vm = stopped.as_deref().unwrap_or(vm);
        let mut observed = observe::observe(ctx, vm).await?;
        observed.turn = turn;
        probing::observe(ctx, vm, &mut observed);
        hooking::observe(ctx, vm, &mut observed);
        guest_users::observe(ctx, vm, &mut observed).await?;
        guest_package::observe(ctx, vm, &mut observed);
        Ok(observed)
    }

    fn plan(vm: &VM, observed: &Observed) -> Plan<Step> {
        let vm = group_turn::declared(vm, &observed.turn);
        let vm = plan::with_models(&vm, &observed.profile);
        plan::plan(&shutdown::declared(&vm, observed.at_shutdown), observed)
    }

    async fn apply(ctx: &Context, vm: &VM, step: &Step) -> Result<(), Error> {
        apply::apply(ctx, vm, step).await
    }

    fn status(vm: &VM, observed: &Observed, readiness: &Readiness, now: Timestamp) -> VMStatus {
        let vm = group_turn::declared(vm, &observed.turn);
        let vm = plan::with_models(&vm, &observed.profile);
        status::status(&shutdown::declared(&vm, observed.at_shutdown), observed, readiness, now)
    }

    fn without_progress(stored: &VMStatus, status: &VMStatus) -> VMStatus {
        status::without_progress(stored, status)
    }

    fn awaits_guest(stored: &VMStatus, status: &VMStatus) -> bool {
        status::first_sign::is_awaited(stored, status)
    }

    fn guest_came_soon(stored: &VMStatus, status: &VMStatus) -> Option<bool> {
        status::first_sign::came_soon(stored, status)
    }

    fn event(stored: Option<&VMStatus>, status: &VMStatus) -> Option<(EventType, Reason, String)> {
        let stored = stored?;
        let found = status::restarted(stored, status)
            .or_else(|| stop_snapshots::not_taken(stored, status))
            .or_else(|| status::frozen(stored, status))
            .or_else(|| status::without_tap(stored, status));
        let warning = found.map(|(reason, note)| (EventType::Warning, reason, note));
        warning.or_else(|| {
            let (reason, note) = status::transition(stored, status)?;
            Some((EventType::Normal, reason, note))
        })
    }

    fn binding(vm: &VM) -> Option<&Binding> {
        vm.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &VMStatus) -> &Conditions {
        &status.conditions
    }
}

/// Returns the disks QEMU has that neither the VM nor an attachment names. The boot disk, and disks on another bus than
/// virtio-scsi, stay until the machine is off.
fn surplus<'a>(machine: &'a MachineState, observed: &Observed) -> Vec<&'a ObservedDisk> {
    let is_wanted = |id: &str| is_declared(id, observed) || observed.attachments.contains_key(id);
    machine.disks.iter().filter(|disk| disk.bus == Bus::VirtioScsi && !is_wanted(&disk.id)).collect()
}

/// Whether a volume is the boot disk of the machine, or one of those that the VM declares.
fn is_declared(volume: &str, observed: &Observed) -> bool {
    let boot = observed.journal.run.as_ref().map(|run| run.boot_volume.as_str());
    Some(volume) == boot || observed.disks.iter().any(|disk| disk.volume_id.as_deref() == Some(volume))
}

/// Reconciles the VM of this name, and those of the same name that were deleted without their finalizer.
pub(crate) async fn reconcile(ctx: &Context, name: &ObjectName) -> Result<Requeue, Error> {
    let departed = Box::pin(reconcile_departed(ctx, name)).await?;
    let found = ctx.index.read().vms.get(name);
    match found {
        Some(vm) => Ok(departed.sooner(Box::pin(converge::<VmReconciler>(ctx, &vm)).await?)),
        None => Ok(departed),
    }
}

/// Brings down the departed VMs of this name.
async fn reconcile_departed(ctx: &Context, name: &ObjectName) -> Result<Requeue, Error> {
    let found = ctx.index.read().departed_vms.named(name);
    let mut again = Requeue::OnChange;
    for vm in found {
        let here = match ctx.system.read_journal(instance_of(&vm).unwrap_or_default()).await? {
            Some(journal) => Journal::parse(journal).is_ok_and(|j| Some(&j.uid) == vm.metadata.uid.as_ref()),
            None => false,
        };
        if !here || departed::exists(&ctx.client, vm.as_ref()).await? {
            ctx.index.read().departed_vms.forget(&vm);
            continue;
        }
        tracing::warn!(vm = %name, uid = vm.uid(), "deleted without its finalizer: its guest is stopped");
        let mut vm = departed::with_finalizer(vm.as_ref(), ctx.now());
        // Its addresses are free from the moment its object is gone and may already belong to another guest, so it gets
        // no grace period. A guest that ran on without its taps would keep its disks for as long.
        vm.spec.stop.mode = StopMode::Hard;
        again = again.sooner(Box::pin(converge::<VmReconciler>(ctx, &vm)).await?);
    }
    Ok(again)
}

/// Whether berth's DHCP server gives an interface no address.
fn has_no_lease(observed: &Observed, interface: &InterfaceStatus) -> bool {
    let mut configs = observed.network_config.iter().filter(|config| config.name == interface.name);
    configs.any(InterfaceConfig::is_wholly_without_dhcp)
}

/// Returns the leases that a guest takes once it runs, on interfaces of networks with berth's DHCP here. `since`: the start of its
/// machine, or a time shortly before it.
fn pending_leases(vm: &VM, observed: &Observed, since: Timestamp) -> Vec<PendingLease> {
    let interfaces = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let served = interfaces.iter().filter(|interface| !observed.lans.contains_key(&interface.network));
    let served = served.filter(|interface| !has_no_lease(observed, interface));
    let pending = served.filter_map(|interface| {
        Some(PendingLease {
            bridge: observed.bridges.get(&interface.network)?.clone(),
            mac: interface.mac_address.clone(),
            since,
        })
    });
    pending.collect()
}
