//! Observation of a VM.

mod indexed;
mod running;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::vm::{
    ConsoleAddress, Hardware, InterfaceConfig, ObservedAddresses, PinnedClass, SnapshotOfVM,
};
use berth_api::{CpuControls, Power, Profile, Size, SizeError, SizeTaken, VM, VMStatus};
use berth_host::{HostFacts, ProcessDetails, ProcessFacts, VolumeFacts};
use berth_qemu::hypervisor::CpuTime;
use berth_qemu::power::RunState;
use jiff::Timestamp;

use super::admitting::admission;
use super::bootstrap::Bootstrap;
use super::cdroms::{self, DeclaredCdrom};
use super::declared_disks::{DeclaredDisk, ReportedDisk, declared_disks};
use super::held::held;
use super::observed_users::GuestUsers;
use super::secure_boot_keys::KeysToEnroll;
use super::seed::Lan;
use super::{secrets, shutdown, vsock};
use crate::admission::{Admission, admitted_before};
use crate::context::Context;
use crate::disk_use::VmBytes;
use crate::error::Error;
use crate::group_turn::GroupTurn;
use crate::guest_packages::ObservedPackage;
use crate::hardware::architecture_of;
use crate::hooks::DueHook;
use crate::host_shutdown::AtShutdown;
use crate::index::{Tables, instance_of, is_to_run};
use crate::journal::{Journal, Owner, epoch_of};
use crate::key::ObjectName;
use crate::lease_watcher::PendingLease;
use crate::live_moves::DepartureState;
use crate::machine::{GuestFacts, MachineState};
use crate::networking::tap_prefix;
use crate::probes::{ProbePlan, ProbeResults};
use crate::public_address::GivenAddress;
use crate::restores::{self, DueMemory, VmRestore};
use crate::start_order::Held;
use indexed::from_index;
use running::{attached, observe_running};

/// Everything a plan for a VM is made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) now: Timestamp,
    pub(crate) instance: String,
    /// Whether the VM may run here.
    pub(crate) admission: Admission,
    /// A new journal, not written yet, if the instance has none.
    pub(crate) journal: Journal,
    pub(crate) journal_written: bool,
    /// Why the existing journal cannot be used.
    pub(crate) journal_problem: Option<String>,
    pub(crate) process: Option<ProcessFacts>,
    /// Only observed of a process whose facts are not reported yet.
    pub(crate) details: Option<ProcessDetails>,
    /// None also while QEMU's monitor does not answer.
    pub(crate) machine: Option<MachineState>,
    pub(crate) unreachable: Option<String>,
    /// Whether the kernel's OOM killer ended a process of the machine, which has no QEMU any more.
    pub(crate) oom_killed: bool,
    /// Whether the agent has no connection to the process and has not just tried to open one.
    pub(crate) connection_due: bool,
    /// Whether a machine is still recorded for the instance, although it has no process.
    pub(crate) machine_known: bool,
    /// The leases to watch for, if other ones are watched for now.
    pub(crate) lease_watch: Option<Vec<PendingLease>>,
    /// The probes to run, if other ones run for now.
    pub(crate) probe_watch: Option<Option<Box<ProbePlan>>>,
    /// Only observed while the VM runs.
    pub(crate) probes: ProbeResults,
    /// The hook that is due or runs.
    pub(crate) hook: Option<DueHook>,
    pub(crate) guest_users: GuestUsers,
    pub(crate) guest_package: ObservedPackage,
    pub(crate) guest: GuestFacts,
    pub(crate) lease_taken: bool,
    /// The size with which it is started next.
    pub(crate) size: Result<Size, SizeError>,
    pub(crate) cpu_controls: CpuControls,
    /// The values of its class that it keeps.
    pub(crate) pinned_class: Option<Box<PinnedClass>>,
    /// The profile with which it is started next.
    pub(crate) profile: Profile,
    /// The CPU time that its machine is to have, and that which it has; only observed while it runs.
    pub(crate) wanted_cpu_time: CpuTime,
    pub(crate) cpu_time: Option<CpuTime>,
    /// In the order of the spec.
    pub(crate) disks: Vec<DeclaredDisk>,
    /// In the order of the spec.
    pub(crate) cdroms: Vec<DeclaredCdrom>,
    /// Disks to be plugged by attachments: volume → (disk, attachment).
    pub(crate) attachments: BTreeMap<String, (String, String)>,
    /// The disks that it declares, or attachments plug, as their Disks report them: by volume.
    pub(crate) reported_disks: BTreeMap<String, ReportedDisk>,
    /// The space that it takes beside its disks. None: it has not been measured.
    pub(crate) bytes: Option<VmBytes>,
    /// The volumes that its machine has open, or counts as having open, without a disk, and that neither it nor an attachment names.
    pub(crate) left_volumes: BTreeSet<String>,
    /// Mount points in the guest of volumes that are to be unplugged; without volumes that no guest agent reports on.
    pub(crate) mounts: BTreeMap<String, Vec<String>>,
    /// Its interfaces with a card in the running machine and without a tap on the host.
    pub(crate) lost_taps: BTreeSet<String>,
    /// Its interfaces with a card in the running machine whose tap is on no bridge.
    pub(crate) loose_taps: BTreeSet<String>,
    pub(crate) missing_networks: Vec<String>,
    /// Why its interfaces, by name, cannot be on their networks here, for people.
    pub(crate) refused_interfaces: BTreeMap<String, String>,
    /// Its networks that could not be made here at the last attempt.
    pub(crate) failing_networks: BTreeSet<String>,
    /// The security groups of its interfaces that do not exist.
    pub(crate) missing_groups: Vec<String>,
    /// Why a router that an interface declares is none of its Network.
    pub(crate) misrouted: Option<String>,
    /// The bridged networks of its interfaces.
    pub(crate) lans: BTreeMap<String, Lan>,
    /// The networks of its interfaces whose guests choose their IPv6 addresses.
    pub(crate) choosing: BTreeSet<String>,
    /// Interfaces of the host by which the networks of its interfaces are reached, by network.
    pub(crate) accesses: BTreeMap<String, String>,
    /// Its interfaces whose addresses other machines of their bridged networks were found to have just now, and the text about it.
    pub(crate) conflicts: BTreeMap<String, String>,
    /// The network configuration that its guest gets.
    pub(crate) network_config: Vec<InterfaceConfig>,
    /// The addresses that its guest was seen to send from. None: this agent has not read them yet.
    pub(crate) observed_addresses: Option<Vec<ObservedAddresses>>,
    /// The bridge of each of its networks.
    pub(crate) bridges: BTreeMap<String, String>,
    pub(crate) mtus: BTreeMap<String, u16>,
    pub(crate) public: Vec<DeclaredAddress>,
    /// Only observed when the VM is to be started.
    pub(crate) bootstrap: Bootstrap,
    /// Only observed when the VM is to be started.
    pub(crate) secure_boot_keys: KeysToEnroll,
    pub(crate) host: Option<HostFacts>,
    /// The context id of its vsock device; only observed when the VM is to be started with one. None also on a host without such devices.
    pub(crate) vsock_cid: Option<u32>,
    /// CPUs and bytes of guest memory this host could give the VM if it were alone here; only observed for a start, and
    /// while the VM runs with a size other than the declared one.
    pub(crate) offered: Option<(i64, u64)>,
    /// Bytes of guest memory this host can give this VM, beside what its other running VMs have; observed as `offered` is.
    pub(crate) free_memory: Option<u64>,
    /// The VMs that are started before this one, if they still hold it back; only observed for a start.
    pub(crate) held: Option<Held>,
    /// Whether its VMGroup lets it run.
    pub(crate) turn: GroupTurn,
    /// Taps of this instance; only observed while it has no QEMU and is not to be started.
    pub(crate) taps: Vec<String>,
    /// Whether its guest is paused while its memory is saved for a snapshot.
    pub(crate) is_saving: bool,
    /// Whether there is a file with the state of the suspended machine; only observed during a suspension.
    pub(crate) state_kept: bool,
    /// Whether its instance has the memory of its TPM; only observed when the VM is to be started, and had one.
    pub(crate) has_tpm_state: bool,
    /// Whether its firmware variables and the memory of its TPM are copied into the shared pool of its boot disk.
    pub(crate) copies_firmware: bool,
    /// The disks of a suspended machine, if they do not count as open yet.
    pub(crate) disks_to_hold: Vec<String>,
    /// The volumes of the disks that attachments plug; only observed when the VM is to be suspended, and while it is.
    pub(crate) attached: Vec<VolumeFacts>,
    /// The last output of a QEMU that did not resume its guest.
    pub(crate) last_words: Option<String>,
    /// Whether a Disk still lists this VM as its user.
    pub(crate) still_user: bool,
    /// The address of this host's consoles.
    pub(crate) console: Option<ConsoleAddress>,
    /// The address of this host, as its Host reports it.
    pub(crate) host_address: Option<String>,
    /// Whether this host is being drained, or the VM is to be off before the host is.
    pub(crate) draining: bool,
    /// How the VM is stopped because its host is being shut down.
    pub(crate) at_shutdown: Option<AtShutdown>,
    /// Whether the memory of a guest that is to be suspended does not fit on this host, which is being drained or shut down.
    pub(crate) no_room: bool,
    /// This agent as the holder of its host's Lease. None: restarts without the control plane are not recorded.
    pub(crate) holder: Option<String>,
    /// Why the VM's placement would not choose this host, if it would not.
    pub(crate) misplaced: Option<String>,
    pub(crate) restore: VmRestore,
    /// The memory with which its guest goes on after the restore, or why it cannot; only observed while it is to be started.
    pub(crate) memory: Option<Result<Box<DueMemory>, String>>,
    /// Why its guest was booted after the restore and did not go on with the memory; only observed while it runs.
    pub(crate) booted_restored: Option<String>,
    /// The snapshots of the VM that are taken, the oldest first.
    pub(crate) snapshots: Vec<SnapshotOfVM>,
    /// How the move of its running guest to another host is.
    pub(crate) departure: DepartureState,
}

/// A public address named by an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredAddress {
    pub(crate) interface: String,
    pub(crate) name: String,
    /// Set once allocated and given to this VM.
    pub(crate) address: Option<GivenAddress>,
    pub(crate) forwarded: bool,
    /// Why it cannot be forwarded here, for people.
    pub(crate) refused: Option<String>,
}

pub(super) async fn observe(ctx: &Context, vm: &VM) -> Result<Observed, Error> {
    let name = ObjectName::of(vm);
    let instance = instance_of(vm).unwrap_or_default().to_owned();
    // Before the journal: a task that ends meanwhile has recorded more than was read, and counts as active still.
    let departure = ctx.departures.state(&instance);
    let written = ctx.system.read_journal(&instance).await?;
    let journal_written = written.is_some();
    let (journal, journal_problem) = match written.map(Journal::parse) {
        None => (Journal::new(vm), None),
        Some(Ok(journal)) => (journal, None),
        Some(Err(error)) => (Journal::new(vm), Some(error.chain())),
    };
    // An instance without a journal was not started here, and a launch checks for a running process itself. Only a plan
    // that releases what a process would hold needs to know beforehand.
    let process = match journal_written || !is_to_run(vm) {
        true => ctx.system.process(&instance).await?,
        false => None,
    };
    // Of the host, read once for both.
    let mut facts = None;
    let admission = match &process {
        Some(_) => Admission::Recorded,
        // An instance with a journal here was admitted: only its status can have been lost. One that was given up has left since.
        None if journal_written
            && !journal.uid.is_empty()
            && journal.owner(vm) != Owner::Other
            && journal.released.as_ref().is_none_or(|released| released.epoch == epoch_of(vm)) =>
        {
            admitted_before(vm)
        }
        None => admission(ctx, vm, &mut facts).await?,
    };
    let mut observed = Observed {
        now: ctx.now(),
        admission,
        journal_written,
        journal_problem,
        journal,
        process: process.clone(),
        guest: GuestFacts::default(),
        lease_taken: false,
        disks: declared_disks(ctx, vm, &name).await?,
        restore: restores::observe_vm(ctx, vm).await?,
        cdroms: cdroms::observe(ctx, vm).await?,
        mounts: BTreeMap::new(),
        bootstrap: Bootstrap::NotObserved,
        secure_boot_keys: KeysToEnroll::NotDue,
        host: None,
        vsock_cid: None,
        offered: None,
        free_memory: None,
        held: None,
        taps: Vec::new(),
        instance,
        at_shutdown: shutdown::of(ctx, vm, process.is_some()),
        ..from_index(ctx, vm, &name)
    };
    observed.draining |= observed.at_shutdown.is_some();
    observed.departure = departure;
    if observed.journal.departure.is_none() && vm.status.as_ref().and_then(VMStatus::live_move).is_none() {
        ctx.departures.forget(&observed.instance);
    }
    if observed.journal.suspension.is_some() {
        observed.state_kept = ctx.system.has_state(&observed.instance).await?;
    }
    match &process {
        // Another VM's machine is not observed for this VM.
        Some(_) if observed.journal.owner(vm) == Owner::Other => {}
        Some(process) => observe_running(ctx, vm, &name, process, &mut observed).await?,
        None => observe_absent(ctx, vm, &name, &mut observed, facts).await?,
    }
    if observed.at_shutdown == Some(AtShutdown::Suspend)
        && !shutdown::has_room(ctx, &observed.journal, observed.machine.as_ref()).await?
    {
        observed.at_shutdown = Some(AtShutdown::Stop);
    }
    if observed.draining && vm.spec.power == Power::Suspended {
        observed.no_room = !shutdown::has_room(ctx, &observed.journal, observed.machine.as_ref()).await?;
    }
    Ok(observed)
}

/// Whether the guest runs and is to run on.
pub(super) fn is_left_alone(vm: &VM, observed: &Observed) -> bool {
    let runs = observed.machine.as_ref().is_some_and(|machine| machine.run_state == RunState::Running);
    runs && vm.spec.power == Power::Running
        && vm.metadata.deletion_timestamp.is_none()
        && observed.journal.stop.is_none()
        && observed.journal.suspension.is_none()
}

/// Observes a VM without a process. `facts`: the host's, if they were read.
async fn observe_absent(
    ctx: &Context,
    vm: &VM,
    name: &ObjectName,
    observed: &mut Observed,
    facts: Option<HostFacts>,
) -> Result<(), Error> {
    if observed.journal.has_process() {
        observed.oom_killed = ctx.system.oom_kills(&observed.instance).await? > 0;
    }
    match observed.journal.suspension.as_ref().filter(|_| observed.journal.is_suspended()) {
        Some(suspension) => {
            // It still has them: no other machine may change them before it goes on.
            let ids = suspension.machine.disks.iter().map(|disk| &disk.id);
            let uid = vm.metadata.uid.as_deref().unwrap_or_default();
            let unheld = ids.filter(|id| !ctx.machines.holds(uid, id));
            observed.disks_to_hold = unheld.cloned().collect();
            observed.attached = attached(ctx, name).await?;
            if suspension.attempts > 0 {
                observed.last_words = Some(ctx.system.stderr_tail(&observed.instance).await?);
            }
        }
        // Its guest may have them open on the other host, which takes their files: nothing else is done to them here.
        None if observed.journal.departure.is_some() => {
            let uid = vm.metadata.uid.as_deref().unwrap_or_default();
            let ids = observed.disks.iter().filter_map(|disk| disk.volume_id.as_ref());
            observed.disks_to_hold = ids.filter(|id| !ctx.machines.holds(uid, id)).cloned().collect();
        }
        None => observed.machine_known = ctx.machines.is_known(&observed.instance),
    }
    observed.lease_watch = (!ctx.lease_watcher.is_watching(name, &[])).then(Vec::new);
    if !is_to_run(vm) || observed.draining {
        let prefix = tap_prefix(&observed.instance);
        let taps = ctx.system.taps().await?;
        observed.taps = taps.into_iter().map(|tap| tap.name).filter(|tap| tap.starts_with(&prefix)).collect();
    }
    if is_to_run(vm) {
        if vm.had_tpm() && observed.journal.firmware != Some(epoch_of(vm)) {
            observed.has_tpm_state = ctx.system.has_tpm_state(&observed.instance).await?;
        }
        if matches!(observed.restore, VmRestore::Done(_)) && observed.journal.suspension.is_none() {
            observed.memory = restores::due_memory(ctx, vm, &observed.journal).await?;
        }
        let host = match facts {
            Some(facts) => facts,
            None => ctx.facts().await?,
        };
        let host = host.for_guests_of(architecture_of(observed.profile.architecture));
        let offered = offered(ctx, &host);
        let taken = taken_memory(&ctx.index.read(), vm, host.overhead_bytes);
        observed.free_memory = Some(offered.1.saturating_sub(taken));
        observed.offered = Some(offered);
        observed.held = held(ctx, vm, &observed.journal, &host);
        observed.host = Some(host);
        observed.vsock_cid = vsock::choose(ctx, vm, &observed.instance, &observed.journal).await?;
        // A VM that waits for the work on a disk is looked at again and again, and does not ask the control plane for Secrets each time.
        if observed.disks.iter().all(|disk| disk.work.is_none()) {
            observed.bootstrap = secrets::bootstrap(ctx, vm, &observed.instance).await?;
            observed.secure_boot_keys = secrets::secure_boot_keys(ctx, vm, &observed.journal).await?;
        }
    }
    Ok(())
}

/// Returns the CPUs and the bytes of guest memory of the largest VM that this host can run.
fn offered(ctx: &Context, host: &HostFacts) -> (i64, u64) {
    let SizeTaken { cpus, memory, .. } = ctx.offered(host);
    (cpus, memory.saturating_sub(host.overhead_bytes))
}

/// Returns the memory that the other running VMs have, as read from their status, each with `overhead` bytes above it.
fn taken_memory(tables: &Tables, vm: &VM, overhead: u64) -> u64 {
    let running = tables.vms.all().map(|(_, other)| other).filter(|other| {
        let runs = other.status.as_ref().is_some_and(|s| s.process.is_some());
        runs && other.metadata.uid != vm.metadata.uid
    });
    let taken = running.map(|other| {
        let hardware = other.status.as_ref().and_then(|s| s.hardware.as_ref());
        let taken = hardware.and_then(Hardware::taken).unwrap_or_default();
        taken.memory.saturating_add(overhead)
    });
    taken.sum()
}
