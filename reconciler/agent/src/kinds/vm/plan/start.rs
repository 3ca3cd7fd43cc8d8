//! Plan for the start of a VM: what it waits for, and how it is launched once everything exists.

use std::time::Duration;

use berth_api::hardware::Resolution;
use berth_api::vm::{NetworkInterface, declared_shares};
use berth_api::{
    BootSource, Firmware, Graphics, GuestOS, HugeMemory, HugePages, Power, Quantity, Readiness, Reason, Size,
    SizeError, SizeTaken, VM, Watchdog,
};
use berth_host::{HostFacts, LaunchRequest, QemuFacts, ShareFacts};
use berth_qemu::cpu_models;
use berth_qemu::hypervisor::{CpuTime, Limits};
use berth_qemu::machine::{
    self, Accelerator, Architecture, CdromSpec, Extras, MachineSpec, NIC_PORTS, NicModel, Topology,
    USUAL_NIC_PORTS,
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::super::cpu_time;
use super::super::declared_disks::{DeclaredDisk, User};
use super::super::media;
use super::super::pending_leases;
use super::super::vsock;
use super::cards::{default_queues, interfaces, links_down, model_of, nics, recorded_name, taps};
use super::devices::{self, HeldDevices};
use super::due::ended;
use super::{
    Observed, Step, architecture, enrolling, firmware, lan_addresses, obstacle, pins, seeding,
    without_address, write_journal,
};
use crate::converge::Plan;
use crate::hardware::{architecture_of, class_name};
use crate::huge_pages;
use crate::journal::{Journal, MemoryGrowth, PinnedHardware, PostStart, Run, RunProfile, epoch_of};
use crate::restores::VmRestore;

/// The ports for network cards that a machine has beside those with a card.
const SPARE_NIC_PORTS: usize = 2;
/// Retry interval for dependencies that are not watched.
const LOOK_FOR: Duration = Duration::from_secs(2);
/// How often the progress of a download is read that a disk waits for.
const LOOK_AT_PROGRESS: Duration = Duration::from_secs(10);
/// Retry interval while the host lacks something.
const ASK_HOST: Duration = Duration::from_secs(30);
/// Memory for QEMU's own peaks above its measured overhead, in bytes.
const SLACK: u64 = 256 << 20;

pub(super) fn plan(vm: &VM, observed: &Observed) -> Plan<Step> {
    match prepared(vm, observed) {
        Err(blocked) => blocked,
        Ok(prepared) => devices::surplus(observed, &prepared.devices)
            .unwrap_or_else(|| launch(vm, observed, &prepared, ended(vm, observed).is_some())),
    }
}

/// Returns everything a start needs, or the plan to wait for the first missing dependency.
/// The parts of the observation that a start needs.
struct Prepared<'a> {
    size: Size,
    host: &'a HostFacts,
    cdroms: Vec<CdromSpec>,
    devices: HeldDevices,
    /// The journal with the hardware that is pinned, which this host has.
    journal: Journal,
    pins: PinnedHardware,
}

fn prepared<'a>(vm: &VM, observed: &'a Observed) -> Result<Prepared<'a>, Plan<Step>> {
    let waits = |reason, text: String| Plan::without_steps(Readiness::Reconciling(reason, text));
    let size = match &observed.size {
        Ok(size) => *size,
        Err(error @ SizeError::NoClass(_)) => return Err(waits(Reason::WaitingForClass, error.to_string())),
        Err(error) => {
            let stalled = Readiness::Stalled(Reason::InvalidSpec, error.to_string());
            return Err(Plan::without_steps(stalled));
        }
    };
    if let Some(network) = observed.missing_networks.first() {
        return Err(waits(Reason::WaitingForNetwork, format!("Network {network} does not exist (yet)")));
    }
    if let Some(text) = observed.refused_interfaces.values().next() {
        return Err(Plan::without_steps(Readiness::Stalled(Reason::InvalidSpec, text.clone()))
            .requeue_after(ASK_HOST));
    }
    let networks = vm.status.iter().flat_map(|s| &s.interfaces).map(|i| &i.network);
    if let Some(network) = networks.into_iter().find(|network| !observed.bridges.contains_key(*network)) {
        let text = format!("Network {network} has no identifier (yet)");
        return Err(waits(Reason::WaitingForNetwork, text));
    }
    if let Some(lacking) = vm.spec.network_interfaces.iter().find(|n| !has_interface(vm, n.name.as_str())) {
        return Err(waits(Reason::WaitingForNetwork, without_address(lacking.name.as_str())));
    }
    if let VmRestore::Incomplete(text) = &observed.restore {
        return Err(Plan::without_steps(Readiness::Stalled(Reason::RestoreRefused, text.clone())));
    }
    disks_ready(observed)?;
    if let VmRestore::Away(text) = &observed.restore {
        return Err(
            Plan::without_steps(Readiness::Stalled(Reason::PoolAway, text.clone())).requeue_after(ASK_HOST)
        );
    }
    let cdroms = media::drives(observed)?;
    if let Some(public) = observed.public.iter().find(|p| p.address.is_none()) {
        let text = obstacle(public, "does not exist or has no address (yet)");
        return Err(waits(Reason::WaitingForPublicIP, text));
    }
    seeding::ready(vm, observed)?;
    enrolling::ready(vm, observed, &size)?;
    firmware::ready(vm, observed, &size)?;
    let Some(host) = &observed.host else {
        return Err(waits(Reason::Starting, "the host is being looked at".to_owned()).requeue_after(LOOK_FOR));
    };
    architecture::check(vm, observed, &size, host)?;
    let qemu = qemu(vm, &size, host)?;
    let (journal, pins) = pins(vm, observed, host, qemu)?;
    if let Some(text) = too_large(vm, &size, observed) {
        let stalled = Readiness::Stalled(Reason::NoHostLargeEnough, text);
        return Err(Plan::without_steps(stalled).requeue_after(ASK_HOST));
    }
    // Checked again here, where the running VMs are known: the scheduler may have been mistaken.
    let needed = size.taken().memory;
    if let Some(free) = observed.free_memory.filter(|free| *free < needed) {
        let (needed, free) = (Quantity::from_bytes(needed), Quantity::from_bytes(free >> 20 << 20));
        let text = format!("the VM needs {needed} of memory and this host has {free} left");
        return Err(waits(Reason::Unschedulable, text).requeue_after(ASK_HOST));
    }
    enough_of_its_own(&size.taken(), host)?;
    let devices = devices::choose(vm, observed, host)
        .map_err(|readiness| Plan::without_steps(readiness).requeue_after(ASK_HOST))?;
    shares_ready(vm, host)?;
    vsock_ready(vm, observed, qemu)?;
    Ok(Prepared { size, host, cdroms, devices, journal, pins })
}

/// Returns the journal with the pinned hardware, and the pins of this start, which the host has.
fn pins(
    vm: &VM,
    observed: &Observed,
    host: &HostFacts,
    qemu: &QemuFacts,
) -> Result<(Journal, PinnedHardware), Plan<Step>> {
    let journal = pins::recovered(vm, &observed.journal);
    let pins = pins::pinned(vm, &journal, host, qemu);
    let model = observed.profile.cpu_model.as_ref().filter(|model| !qemu.cpu_models.contains(model));
    let lacks_model = |model: &String| {
        format!(
            "this host's CPUs or its QEMU lack a feature of cpuModel {model}: see status.cpuModels of the Host"
        )
    };
    match pins::lacks(&pins, &observed.profile, qemu).or_else(|| model.map(lacks_model)) {
        None => Ok((journal, pins)),
        Some(text) => {
            let stalled = Readiness::Stalled(Reason::NotSupported, text);
            Err(Plan::without_steps(stalled).requeue_after(ASK_HOST))
        }
    }
}

/// Checks for the host's part of a vsock device.
fn vsock_ready(vm: &VM, observed: &Observed, qemu: &QemuFacts) -> Result<(), Plan<Step>> {
    if !vm.spec.vsock || (qemu.vsock && observed.vsock_cid.is_some()) {
        return Ok(());
    }
    let stalled = Readiness::Stalled(Reason::NotSupported, vsock::NO_DEVICE.to_owned());
    Err(Plan::without_steps(stalled).requeue_after(ASK_HOST))
}

/// Checks for the folders that the VM mounts: the scheduler may have been mistaken, and they may have changed since.
fn shares_ready(vm: &VM, host: &HostFacts) -> Result<(), Plan<Step>> {
    for (name, writes) in declared_shares(vm) {
        let text = match host.shares.iter().find(|share| share.name == name) {
            None => format!("this host shares no folder {name}: its administrator does with --share"),
            Some(ShareFacts { problem: Some(problem), .. }) => format!("share {name}: {problem}"),
            Some(share) if share.read_only && writes => {
                format!("this host shares the folder {name} read-only: set readOnly, or change --share there")
            }
            Some(_) => continue,
        };
        let stalled = Readiness::Stalled(Reason::ShareUnavailable, text);
        return Err(Plan::without_steps(stalled).requeue_after(ASK_HOST));
    }
    Ok(())
}

/// Checks for the CPUs and huge pages that a machine which is to be started has for itself: others of the host's programs may use some of
/// the pages.
pub(super) fn enough_of_its_own(needed: &SizeTaken, host: &HostFacts) -> Result<(), Plan<Step>> {
    let cpus = usize::try_from(needed.dedicated_cpus).unwrap_or_default();
    let (total, free) = (host.dedicated.cpus.len(), host.dedicated.free.len());
    if cpus > total {
        let text = format!(
            "the VM needs {cpus} dedicated CPUs and this host has {total}: start its agent with --dedicated-cpus and their numbers"
        );
        let stalled = Readiness::Stalled(Reason::NoHostWithDedicatedCPUs, text);
        return Err(Plan::without_steps(stalled).requeue_after(ASK_HOST));
    }
    if cpus > free {
        let text = format!("the VM needs {cpus} dedicated CPUs and this host has {free} left");
        let waits = Readiness::Reconciling(Reason::Unschedulable, text);
        return Err(Plan::without_steps(waits).requeue_after(ASK_HOST));
    }
    enough_huge_pages(&needed.huge_memory, host)
}

fn enough_huge_pages(needed: &HugeMemory, host: &HostFacts) -> Result<(), Plan<Step>> {
    let (offered, free) = (huge_pages::offered(host), huge_pages::free(host));
    if let Some(pages) = needed.exceeds(&offered) {
        let (needed, offered) = (huge_pages::text(needed, pages), huge_pages::text(&offered, pages));
        let text = format!(
            "the VM needs {needed} and this host has {offered}: reserve more there (vm.nr_hugepages)"
        );
        let stalled = Readiness::Stalled(Reason::NoHostWithHugePages, text);
        return Err(Plan::without_steps(stalled).requeue_after(ASK_HOST));
    }
    if let Some(pages) = needed.exceeds(&free) {
        let (needed, free) = (huge_pages::text(needed, pages), huge_pages::text(&free, pages));
        let text = format!("the VM needs {needed} and this host has {free} left");
        let waits = Readiness::Reconciling(Reason::Unschedulable, text);
        return Err(Plan::without_steps(waits).requeue_after(ASK_HOST));
    }
    Ok(())
}

fn has_interface(vm: &VM, name: &str) -> bool {
    vm.status.iter().flat_map(|s| &s.interfaces).any(|i| i.name == name)
}

fn qemu<'a>(vm: &VM, size: &Size, host: &'a HostFacts) -> Result<&'a QemuFacts, Plan<Step>> {
    let stalled =
        |reason, text: String| Plan::without_steps(Readiness::Stalled(reason, text)).requeue_after(ASK_HOST);
    let qemu = host.qemu.as_ref().map_err(|missing| stalled(Reason::QemuMissing, missing.clone()))?;
    let (missing, package) = match size.firmware {
        Firmware::UEFI if !qemu.uefi => {
            ("UEFI firmware", Architecture::of_machine_type(&qemu.machine_type).firmware_package())
        }
        Firmware::UEFISecureBoot if !qemu.secure_boot => ("UEFI firmware with Secure Boot", "ovmf"),
        _ if size.tpm && !qemu.tpm => ("swtpm, which emulates a TPM,", "swtpm"),
        firmware if needs_boot_rom(vm, firmware) && !qemu.boot_roms => {
            ("iPXE, by which network cards boot,", "ipxe-qemu")
        }
        _ => return Ok(qemu),
    };
    let text = format!(
        "{missing} is not installed on this host (Debian: apt install {package}), and the VM or its class asks for it"
    );
    Err(stalled(Reason::NotSupported, text))
}

/// Checks for the disks that the VM declares.
pub(super) fn disks_ready(observed: &Observed) -> Result<(), Plan<Step>> {
    observed.disks.iter().try_for_each(disk_ready)
}

fn disk_ready(disk: &DeclaredDisk) -> Result<(), Plan<Step>> {
    let waits = |text| Err(Plan::without_steps(Readiness::Reconciling(Reason::WaitingForDisk, text)));
    match (&disk.problem, &disk.volume, &disk.user) {
        (_, _, User::Other(other)) => {
            let text = format!("Disk {} is used by VM {other}", disk.name);
            Err(Plan::without_steps(Readiness::Stalled(Reason::DiskInUse, text)))
        }
        (Some(problem), _, _) => waits(format!("Disk {}: {problem}", disk.name)).map_err(|plan| {
            // The Disk wakes the VM. This covers the case that it did so before the VM named it.
            let plan = if disk.is_locked { plan.requeue_after(LOOK_FOR) } else { plan };
            // The Disk does not report the progress of a download.
            if disk.work.is_some() { plan.requeue_after(LOOK_AT_PROGRESS) } else { plan }
        }),
        (None, None, _) => waits(format!("Disk {} has no file on this host (yet)", disk.name)),
        (None, Some(_), _) if !disk.reported => waits(format!("Disk {} is being made", disk.name)),
        (None, Some(_), User::None) => waits(format!("Disk {} is being given to this VM", disk.name)),
        (None, Some(_), User::ThisVm) if disk.grows_first => {
            waits(format!("Disk {} is being grown", disk.name))
        }
        (None, Some(_), User::ThisVm) if disk.restores_first => {
            waits(format!("Disk {} is being restored from a DiskSnapshot", disk.name))
        }
        (None, Some(_), User::ThisVm) if disk.moves_first => {
            waits(format!("Disk {} is being moved to another pool", disk.name))
        }
        (None, Some(_), User::ThisVm) => Ok(()),
    }
}

/// Launches the machine; `is_restart` if its guest ended by itself.
fn launch(vm: &VM, observed: &Observed, prepared: &Prepared<'_>, is_restart: bool) -> Plan<Step> {
    let Prepared { size, host, cdroms, devices, journal, pins } = prepared;
    let (size, host, pins) = (*size, *host, pins.clone());
    let memory = size.memory;
    let profile = RunProfile::declared(vm, &observed.profile);
    let names = vm.spec.network_interfaces.iter().map(|n| n.name.as_str());
    let mut journal = journal.clone().with_slots(names);
    journal.disk_places = pins::disk_places(observed, std::mem::take(&mut journal.disk_places));
    journal.epoch = epoch_of(vm);
    firmware::record(&mut journal, &size);
    journal.uid = vm.uid().unwrap_or_default();
    journal.interfaces = interfaces(vm, &journal).map(|(_, interface, _)| interface.clone()).collect();
    journal.pins = Some(pins.clone());
    journal.pci_devices.clone_from(&devices.pci);
    journal.usb_devices.clone_from(&devices.usb);
    journal.vgpus.clone_from(&devices.vgpus);
    // It is of the machine before.
    journal.offline = None;
    let (journal, seed) = seeding::seeded(vm, observed, journal);
    let (mut journal, keys) = enrolling::due(observed, journal);
    journal.restarts += i64::from(is_restart);
    let boot = observed.disks.iter().find(|d| d.boot).and_then(|d| d.volume_id.clone());
    journal.run = Some(Run {
        class: class_name(vm),
        cpus: size.cpus,
        memory_bytes: memory,
        dedicated_cpus: size.dedicated_cpus,
        isolate_emulator_thread: size.isolate_emulator_thread,
        huge_pages: size.huge_pages,
        firmware: size.firmware.as_str().to_owned(),
        tpm: size.tpm,
        topology: Some(size.topology),
        numa_nodes: Some(size.numa_nodes),
        max_cpus: size.max_cpus,
        growth: size.max_memory.map(|most| MemoryGrowth { base: memory, most, changed_at: None }),
        graphics: vm.spec.graphics,
        profile: profile.clone(),
        cdroms: media::recorded(&observed.cdroms),
        uuid: Some(pins.uuid.clone()),
        machine: None,
        default_queues: default_queues(host, size.cpus),
        enrolls: keys.is_some(),
        boot_volume: boot.unwrap_or_default(),
        interfaces: Some(interface_names(vm, &journal)),
        token: vm.spec.restart_token.clone(),
        process: None,
        started_at: None,
        booted_at: None,
        post_start: vm
            .spec
            .hooks
            .as_ref()
            .and_then(|hooks| hooks.post_start.as_ref())
            .map(|_| PostStart::Due),
        keeps_bootstrap: seed.is_none(),
        ended: None,
    });
    let argument = |model: &str| cpu_models::argument(architecture_of(observed.profile.architecture), model);
    let cpu_model = profile.cpu_model.as_deref().map_or(pins.cpu_model, argument);
    let taps = taps(vm, observed, &journal);
    let taken = devices.specs();
    let topology = Topology {
        sockets: count(size.topology.sockets),
        cores: count(size.topology.cores),
        threads: count(size.topology.threads),
    };
    let machine = MachineSpec {
        instance: observed.instance.clone(),
        name: format!("{}/{}", journal.namespace, journal.name),
        uuid: pins.uuid,
        cpus: count(size.cpus),
        topology,
        numa_nodes: count(size.numa_nodes),
        memory_bytes: memory,
        // Nothing can be plugged in above the maximum.
        max_memory_bytes: size.max_memory.filter(|most| *most > memory),
        huge_page_bytes: size.huge_pages.bytes(),
        accelerator: host.accelerator,
        firmware: enrolling::firmware(vm, &size),
        machine_type: pins.machine_type,
        cpu_model,
        disks: pins::disks(observed, &journal.disk_places),
        cdroms: cdroms.clone(),
        nics: nics(vm, observed, &journal),
        nic_ports: nic_ports(&journal),
        graphics: match vm.spec.graphics {
            Graphics::None => machine::Graphics::None,
            Graphics::VGA => machine::Graphics::Vga,
        },
        pci_devices: taken.pci.clone(),
        usb_devices: taken.usb.clone(),
        vgpus: taken.vgpus.clone(),
        shares: profile.shares.clone(),
        extras: Extras {
            without_hpet: profile.guest_os == GuestOS::Windows && pins.windows_without_hpet,
            place_for_second_cpu: matches!(host.accelerator, Accelerator::Tcg { .. }) && topology.cpus() == 1,
            vsock_cid: observed.vsock_cid.filter(|_| profile.vsock),
            ..extras(&profile)
        },
        tpm: size.tpm,
    };
    let request = LaunchRequest {
        machine,
        seed,
        keys,
        scratch: profile.scratch(),
        limits: limits(size.max_memory.unwrap_or(memory), observed, host),
        dedicated: journal.run.as_ref().and_then(Run::dedicated_request),
        from_saved_state: false,
    };
    if let Some(run) = &mut journal.run {
        run.machine = Some(Box::new(request.machine.clone()));
    }
    let links_down = links_down(vm, &journal);
    let probe = lan_addresses::probe(observed, interfaces(vm, &journal).map(|(_, given, _)| given));
    let mut steps = vec![write_journal(journal)];
    if !taps.is_empty() {
        steps.push(Step::EnsureNetworks);
    }
    steps.extend(probe);
    steps.extend(taps.into_iter().map(Step::MakeTap));
    if !taken.is_empty() {
        steps.push(Step::TakeDevices(taken));
    }
    steps.push(Step::Launch(Box::new(request)));
    steps.extend(links_down);
    if vm.spec.power == Power::Paused {
        return Plan::steps(steps, Readiness::Reconciling(Reason::Starting, "being created paused".into()));
    }
    steps.push(Step::Start);
    let leases = pending_leases(vm, observed, observed.now);
    if !leases.is_empty() {
        steps.push(Step::WatchLeases(leases));
    }
    Plan::steps(steps, Readiness::Reconciling(Reason::Starting, "being started".into()))
}

/// Returns the limits of a machine with at most this memory.
pub(super) fn limits(memory: u64, observed: &Observed, host: &HostFacts) -> Limits {
    limits_with(memory, cpu_time::of(&observed.cpu_controls, host.cpus), host)
}

/// Returns the limits of a machine with at most this memory and this CPU time.
pub(in crate::kinds::vm) fn limits_with(memory: u64, cpu: CpuTime, host: &HostFacts) -> Limits {
    Limits { memory_max: Some(memory + 2 * host.overhead_bytes + SLACK), cpu }
}

fn extras(profile: &RunProfile) -> Extras {
    Extras {
        windows: profile.guest_os == GuestOS::Windows,
        without_hpet: false,
        place_for_second_cpu: false,
        serial_number: profile.serial_number.clone(),
        watchdog: profile.watchdog.map(|watchdog| match watchdog {
            Watchdog::Reset => machine::Watchdog::Reset,
            // Not QEMU's own power-off, which leaves no trace of the reason.
            Watchdog::PowerOff => machine::Watchdog::Stop,
        }),
        options: profile.qemu_options.clone(),
        boot_order: profile.boot_order.iter().map(|source| boot_source(*source)).collect(),
        resolution: profile.resolution.map(Resolution::size),
        keyboard_layout: profile.keyboard_layout.map(|layout| layout.as_str().to_owned()),
        sound: profile.sound,
        thread_per_disk: profile.io_threads_policy == berth_api::IoThreadsPolicy::PerDisk,
        further_serial_ports: profile.further_serial_ports,
        // Chosen by the host.
        vsock_cid: None,
    }
}

fn boot_source(source: BootSource) -> machine::BootSource {
    match source {
        BootSource::Disk => machine::BootSource::Disk,
        BootSource::Cdrom => machine::BootSource::Cdrom,
        BootSource::Network => machine::BootSource::Network,
    }
}

/// Whether the firmware boots from a network card of the VM by the card's ROM. UEFI has a driver of its own for virtio cards.
fn needs_boot_rom(vm: &VM, firmware: Firmware) -> bool {
    let needs = |card: &NetworkInterface| firmware == Firmware::BIOS || model_of(card) != NicModel::Virtio;
    vm.spec.boot_order.contains(&BootSource::Network) && vm.spec.network_interfaces.iter().any(needs)
}

/// The number of ports for network cards: those of most machines, or all if fewer than two of these would be free for cards that are
/// plugged in later.
fn nic_ports(journal: &Journal) -> u8 {
    let highest = journal.slots.keys().filter_map(|name| journal.port_of(name)).max();
    let is_within = highest.is_none_or(|port| port < USUAL_NIC_PORTS);
    let has_spare = journal.slots.len() + SPARE_NIC_PORTS <= usize::from(USUAL_NIC_PORTS);
    if is_within && has_spare { USUAL_NIC_PORTS } else { NIC_PORTS }
}

/// Returns the run to record for a running machine if its journal contains no start: the values the objects have now.
pub(super) fn unknown_run(vm: &VM, observed: &Observed) -> Run {
    let size = observed.size.as_ref().ok();
    let boot = observed.disks.iter().find(|d| d.boot).and_then(|d| d.volume_id.clone());
    Run {
        class: class_name(vm),
        cpus: size.map_or(0, |size| size.cpus),
        memory_bytes: size.map_or(0, |size| size.memory),
        dedicated_cpus: size.is_some_and(|size| size.dedicated_cpus),
        isolate_emulator_thread: size.is_some_and(|size| size.isolate_emulator_thread),
        huge_pages: size.map_or(HugePages::None, |size| size.huge_pages),
        firmware: size.map_or("", |size| size.firmware.as_str()).to_owned(),
        tpm: size.is_some_and(|size| size.tpm),
        topology: size.map(|size| size.topology),
        numa_nodes: size.map(|size| size.numa_nodes),
        max_cpus: size.and_then(|size| size.max_cpus),
        growth: None,
        graphics: vm.spec.graphics,
        profile: RunProfile::declared(vm, &observed.profile),
        cdroms: Vec::new(),
        uuid: None,
        machine: None,
        default_queues: None,
        boot_volume: boot.unwrap_or_default(),
        interfaces: None,
        token: vm.spec.restart_token.clone(),
        process: None,
        started_at: None,
        booted_at: None,
        post_start: None,
        keeps_bootstrap: false,
        enrolls: false,
        ended: None,
    }
}

/// Returns name and MAC address of each interface, and its model if it is not the default: journals of agents that knew
/// only the default have none.
fn interface_names(vm: &VM, journal: &Journal) -> Vec<String> {
    interfaces(vm, journal).map(|(wanted, interface, _)| recorded_name(wanted, interface)).collect()
}

/// Returns the names of interfaces that differ between the running machine and one started now.
pub(super) fn unsynced_interfaces(run: &Run, vm: &VM, journal: &Journal) -> Vec<String> {
    let Some(has) = &run.interfaces else { return Vec::new() };
    let names = vm.spec.network_interfaces.iter().map(|n| n.name.as_str());
    let wanted = interface_names(vm, &journal.clone().with_slots(names));
    let differing =
        has.iter().filter(|i| !wanted.contains(i)).chain(wanted.iter().filter(|i| !has.contains(i)));
    let names: std::collections::BTreeSet<&str> =
        differing.map(|i| i.split('/').next().unwrap_or_default()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Returns why a VM of this size can never start on this host, even an empty one, if so: a VM and its class may be changed
/// to any size.
pub(in crate::kinds::vm) fn too_large(vm: &VM, size: &Size, observed: &Observed) -> Option<String> {
    let (cpus, memory) = observed.offered?;
    let taken = size.taken();
    if taken.cpus <= cpus && taken.whole_memory <= memory {
        return None;
    }
    let is_own = vm.spec.cpus.is_some() || vm.spec.cpu_topology.is_some() || vm.spec.memory.is_some();
    let (declared_by, remedy) = match &vm.spec.class {
        Some(class) if !is_own => (format!("VMClass {class}"), "make the class smaller, or name another"),
        Some(class) => {
            (format!("the VM with VMClass {class}"), "lower its cpus or memory, or name another class")
        }
        None => ("the VM".to_owned(), "lower its cpus or memory"),
    };
    Some(format!(
        "{declared_by} asks for {} CPUs and {} of memory, and this host can give a VM {cpus} CPUs and {} at most: {remedy}",
        size.cpus,
        Quantity::from_bytes(size.memory),
        Quantity::from_bytes(memory >> 20 << 20)
    ))
}

fn count(number: i64) -> u16 {
    u16::try_from(number).unwrap_or(1)
}

/// Returns how much of a time that began then is left: nothing if the clock was set back since.
pub(super) fn left_of(span: Duration, then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).map_or(Duration::ZERO, |passed| span.saturating_sub(passed))
}
