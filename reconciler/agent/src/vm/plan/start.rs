//! Starting a VM: what it waits for, and how it is launched once all is there.

use std::time::Duration;

use berth_api::{Firmware, Quantity, Readiness, Reason, RestartPolicy, VM, VMClass};
use berth_qemu::hypervisor::Limits;
use berth_qemu::machine::{Accelerator, DiskSpec, NicSpec, Tap};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::super::disk_spec;
use super::super::journal::{Journal, Pins, Run, epoch_of};
use super::super::observe::{DiskSeen, User};
use super::super::seed::{Bootstrap, seed};
use super::{Observed, Step, note};
use crate::converge::Plan;
use crate::network::{bridge_of, tap_of};
use crate::system::{FirmwareKind, HostFacts, LaunchConfig, QemuFacts, TapConfig};

/// What is not watched is looked for again after this time.
const LOOK_FOR: Duration = Duration::from_secs(2);
/// How soon a host that lacks something is asked again.
const ASK_HOST: Duration = Duration::from_secs(30);
/// Room for QEMU's own bursts above its measured overhead.
const SLACK: u64 = 256 << 20;

pub(super) fn plan(vm: &VM, observed: &Observed) -> Plan<Step> {
    let mut again = false;
    if let Some(run) = &observed.journal.run
        && let Some(ended) = &run.ended
        && run.token == vm.spec.restart_token
    {
        let allowed = match vm.spec.restart_policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => !ended.orderly,
            RestartPolicy::Never => false,
        };
        if !allowed {
            let text = format!(
                "{}: restartPolicy leaves it off; change restartToken or power to start it",
                ended.how
            );
            return Plan::stands(Readiness::Stalled(Reason::GuestEnded, text));
        }
        if let Some(wait) = back_off(observed) {
            return backed_off(observed, &ended.how, wait);
        }
        again = true;
    }
    match prepared(vm, observed) {
        Err(blocked) => blocked,
        Ok((class, host, qemu)) => launch(vm, observed, class, host, qemu, again),
    }
}

fn back_off(observed: &Observed) -> Option<Duration> {
    let not_before = observed.journal.not_before?;
    let left = Duration::try_from(not_before.duration_since(observed.now)).ok()?;
    (!left.is_zero()).then_some(left)
}

fn backed_off(observed: &Observed, how: &str, wait: Duration) -> Plan<Step> {
    // A time, not a countdown: the text must not change with every look.
    let at = observed.journal.not_before.unwrap_or(Timestamp::UNIX_EPOCH);
    let at = at.round(jiff::Unit::Second).unwrap_or(at);
    let text = format!("{how}, {} times in a row: started again at {at}", observed.journal.failures);
    Plan::stands(Readiness::Stalled(Reason::CrashLoop, text)).look_again(wait)
}

/// Everything a start needs, or the first thing it waits for.
fn prepared<'a>(
    vm: &VM,
    observed: &'a Observed,
) -> Result<(&'a VMClass, &'a HostFacts, &'a QemuFacts), Plan<Step>> {
    let waits = |reason, text: String| Plan::stands(Readiness::Reconciling(reason, text));
    let Some(class) = &observed.class else {
        return Err(waits(
            Reason::WaitingForClass,
            format!("VMClass {} does not exist (yet)", vm.spec.class),
        ));
    };
    if let Some(network) = observed.missing_networks.first() {
        return Err(waits(Reason::WaitingForNetwork, format!("Network {network} does not exist (yet)")));
    }
    if vm.spec.network_interfaces.iter().any(|n| !has_interface(vm, n.name.as_str())) {
        return Err(waits(Reason::WaitingForNetwork, "an interface has no address yet".to_owned()));
    }
    for disk in &observed.disks {
        disk_ready(disk)?;
    }
    if let Some(public) = observed.public.iter().find(|p| p.address.is_none()) {
        let text = format!("PublicIP {} does not exist or has no address (yet)", public.name);
        return Err(waits(Reason::WaitingForPublicIP, text));
    }
    match &observed.bootstrap {
        Bootstrap::Missing(name) => {
            let text = format!(
                "Secret {name} with the bootstrap data does not exist (yet), or this host may not read it (yet)"
            );
            return Err(waits(Reason::WaitingForBootstrap, text).look_again(LOOK_FOR));
        }
        Bootstrap::Unusable(text) => {
            let stalled = Readiness::Stalled(Reason::InvalidSpec, text.clone());
            return Err(Plan::stands(stalled).look_again(ASK_HOST));
        }
        Bootstrap::NotLooked | Bootstrap::Inline | Bootstrap::Secret { .. } => {}
    }
    let Some(host) = &observed.host else {
        return Err(waits(Reason::Starting, "the host is being looked at".to_owned()).look_again(LOOK_FOR));
    };
    let qemu = qemu(class, host)?;
    if let Some(text) = too_large(class, observed) {
        let stalled = Readiness::Stalled(Reason::NoHostLargeEnough, text);
        return Err(Plan::stands(stalled).look_again(ASK_HOST));
    }
    // Looked at again here, where it is known what runs: who chose this host may have been mistaken.
    let needed = class_memory(class);
    if let Some(free) = observed.free_memory.filter(|free| *free < needed) {
        let (needed, free) = (Quantity::from_bytes(needed), Quantity::from_bytes(free >> 20 << 20));
        let text = format!("the VM needs {needed} of memory and this host has {free} left");
        return Err(waits(Reason::Unschedulable, text).look_again(ASK_HOST));
    }
    Ok((class, host, qemu))
}

fn has_interface(vm: &VM, name: &str) -> bool {
    vm.status.iter().flat_map(|s| &s.interfaces).any(|i| i.name == name)
}

fn qemu<'a>(class: &VMClass, host: &'a HostFacts) -> Result<&'a QemuFacts, Plan<Step>> {
    let stalled = |reason, text: String| Plan::stands(Readiness::Stalled(reason, text)).look_again(ASK_HOST);
    let qemu = host.qemu.as_ref().map_err(|missing| stalled(Reason::QemuMissing, missing.clone()))?;
    if class.spec.firmware == Firmware::UEFI && !qemu.uefi {
        let text = "UEFI firmware is not installed on this host (Debian: apt install ovmf), and the class asks for it";
        return Err(stalled(Reason::NotSupported, text.to_owned()));
    }
    Ok(qemu)
}

fn disk_ready(disk: &DiskSeen) -> Result<(), Plan<Step>> {
    let waits = |text| Err(Plan::stands(Readiness::Reconciling(Reason::WaitingForDisk, text)));
    match (&disk.problem, &disk.volume, &disk.user) {
        (_, _, User::Other(other)) => {
            let text = format!("Disk {} is used by VM {other}", disk.name);
            Err(Plan::stands(Readiness::Stalled(Reason::DiskInUse, text)))
        }
        (Some(problem), _, _) => waits(format!("Disk {}: {problem}", disk.name)),
        (None, None, _) => waits(format!("Disk {} has no file on this host (yet)", disk.name)),
        (None, Some(_), _) if !disk.reported => waits(format!("Disk {} is being made", disk.name)),
        (None, Some(_), User::Nobody) => waits(format!("Disk {} is being given to this VM", disk.name)),
        (None, Some(_), User::ThisVm) => Ok(()),
    }
}

fn launch(
    vm: &VM,
    observed: &Observed,
    class: &VMClass,
    host: &HostFacts,
    qemu: &QemuFacts,
    again: bool,
) -> Plan<Step> {
    let memory = match class.spec.memory.bytes() {
        Ok(bytes) => bytes.next_multiple_of(1 << 20),
        Err(error) => return Plan::stands(Readiness::Stalled(Reason::InvalidSpec, error.to_string())),
    };
    let pins = pins(observed, host, qemu);
    let names = vm.spec.network_interfaces.iter().map(|n| n.name.as_str());
    let mut journal = observed.journal.clone().with_slots(names);
    journal.epoch = epoch_of(vm);
    journal.uid = vm.uid().unwrap_or_default();
    journal.interfaces = interfaces(vm, &journal).map(|(interface, _)| interface.clone()).collect();
    journal.pins = Some(pins.clone());
    journal.restarts += i64::from(again);
    let boot = observed.disks.iter().find(|d| d.boot).and_then(|d| d.volume_id.clone());
    journal.run = Some(Run {
        class: vm.spec.class.to_string(),
        cpus: class.spec.cpus,
        memory_bytes: memory,
        firmware: firmware_name(class.spec.firmware).to_owned(),
        boot_volume: boot.unwrap_or_default(),
        interfaces: Some(interface_names(vm, &journal)),
        token: vm.spec.restart_token.clone(),
        process: None,
        started_at: None,
        ended: None,
    });
    let taps = taps(vm, observed, &journal);
    let config = LaunchConfig {
        instance: observed.instance.clone(),
        name: format!("{}/{}", journal.namespace, journal.name),
        uuid: pins.uuid,
        cpus: u16::try_from(class.spec.cpus).unwrap_or(1),
        memory_bytes: memory,
        accelerator: host.accelerator,
        firmware: match class.spec.firmware {
            Firmware::BIOS => FirmwareKind::Bios,
            Firmware::UEFI => FirmwareKind::Uefi,
        },
        machine_type: pins.machine_type,
        cpu_model: pins.cpu_model,
        disks: disks(observed),
        nics: nics(vm, observed, &journal),
        seed: Some(seed(vm, &observed.instance, &observed.bootstrap)),
        limits: Limits { memory_max: Some(memory + 2 * host.overhead_bytes + SLACK), cpu_max_percent: None },
    };
    let mut steps = vec![note(journal)];
    if !taps.is_empty() {
        steps.push(Step::EnsureNetworks);
    }
    steps.extend(taps.into_iter().map(Step::MakeTap));
    steps.extend([Step::Launch(Box::new(config)), Step::Start]);
    Plan::steps(steps, Readiness::Reconciling(Reason::Starting, "being started".into()))
}

/// Decided at the first start and kept. Only a CPU model that the host's accelerator does not have is chosen anew.
fn pins(observed: &Observed, host: &HostFacts, qemu: &QemuFacts) -> Pins {
    let accelerator = accelerator_name(host.accelerator);
    let mut pins = observed.journal.pins.clone().unwrap_or_else(|| Pins {
        machine_type: qemu.machine_type.clone(),
        cpu_model: qemu.cpu_model.clone(),
        accelerator: accelerator.to_owned(),
        uuid: uuid_of(&observed.instance),
    });
    if pins.accelerator != accelerator {
        pins.cpu_model.clone_from(&qemu.cpu_model);
        pins.accelerator = accelerator.to_owned();
    }
    pins
}

/// The SMBIOS UUID of an instance: the same for the same identity, wherever it runs.
fn uuid_of(instance: &str) -> String {
    let digest = Sha256::digest(instance.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

fn accelerator_name(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg { .. } => "tcg",
    }
}

fn firmware_name(firmware: Firmware) -> &'static str {
    match firmware {
        Firmware::UEFI => "UEFI",
        Firmware::BIOS => "BIOS",
    }
}

/// The boot disk first: firmware finds it at the lowest target.
fn disks(observed: &Observed) -> Vec<DiskSpec> {
    let mut ordered: Vec<&DiskSeen> = observed.disks.iter().collect();
    ordered.sort_by_key(|disk| !disk.boot);
    let specs = ordered.into_iter().zip(0u8..).filter_map(|(disk, target)| {
        Some(disk_spec(disk.volume.as_ref()?, &disk.serial, disk.boot, Some(target)))
    });
    specs.collect()
}

fn taps(vm: &VM, observed: &Observed, journal: &Journal) -> Vec<TapConfig> {
    interfaces(vm, journal)
        .map(|(interface, slot)| TapConfig {
            name: tap_of(&observed.instance, slot),
            bridge: bridge_of(&interface.network),
            mtu: observed.mtus.get(&interface.network).copied().unwrap_or(1500),
        })
        .collect()
}

fn nics(vm: &VM, observed: &Observed, journal: &Journal) -> Vec<NicSpec> {
    interfaces(vm, journal)
        .map(|(interface, slot)| NicSpec {
            id: format!("nic{slot}"),
            tap: Tap::Name(tap_of(&observed.instance, slot)),
            mac: interface.mac_address.to_ascii_lowercase(),
            mtu: observed.mtus.get(&interface.network).copied().filter(|mtu| *mtu != 1500),
            slot,
        })
        .collect()
}

/// What the spec lists, with what was decided for it at bind.
fn interfaces<'a>(
    vm: &'a VM,
    journal: &'a Journal,
) -> impl Iterator<Item = (&'a berth_api::vm::InterfaceStatus, u8)> {
    let decided = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    vm.spec.network_interfaces.iter().filter_map(move |wanted| {
        let interface = decided.iter().find(|i| i.name == wanted.name.as_str())?;
        Some((interface, *journal.slots.get(wanted.name.as_str())?))
    })
}

/// What is said of a machine found running whose journal knows no start of it: what the objects say now.
pub(super) fn unknown_run(vm: &VM, observed: &Observed) -> Run {
    let class = observed.class.as_deref();
    let boot = observed.disks.iter().find(|d| d.boot).and_then(|d| d.volume_id.clone());
    let memory = class.and_then(|c| c.spec.memory.bytes().ok()).unwrap_or(0);
    Run {
        class: vm.spec.class.to_string(),
        cpus: class.map_or(0, |c| c.spec.cpus),
        memory_bytes: memory,
        firmware: class.map_or("", |c| firmware_name(c.spec.firmware)).to_owned(),
        boot_volume: boot.unwrap_or_default(),
        interfaces: None,
        token: vm.spec.restart_token.clone(),
        process: None,
        started_at: None,
        ended: None,
    }
}

fn interface_names(vm: &VM, journal: &Journal) -> Vec<String> {
    let name = |(interface, _): (&berth_api::vm::InterfaceStatus, u8)| {
        format!("{}/{}", interface.name, interface.mac_address)
    };
    interfaces(vm, journal).map(name).collect()
}

/// The interfaces that differ between the running machine and what it would be started with now, by name.
pub(in crate::vm) fn unsynced_interfaces(run: &Run, vm: &VM, journal: &Journal) -> Vec<String> {
    let Some(has) = &run.interfaces else { return Vec::new() };
    let names = vm.spec.network_interfaces.iter().map(|n| n.name.as_str());
    let wanted = interface_names(vm, &journal.clone().with_slots(names));
    let differing =
        has.iter().filter(|i| !wanted.contains(i)).chain(wanted.iter().filter(|i| !has.contains(i)));
    let names: std::collections::BTreeSet<&str> =
        differing.map(|i| i.split('/').next().unwrap_or_default()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Whether the machine has the size its class declares now.
pub(in crate::vm) fn is_synced(run: &Run, vm: &VM, class: &VMClass) -> bool {
    run.class == vm.spec.class.as_str()
        && run.cpus == class.spec.cpus
        && Quantity::from_bytes(run.memory_bytes) == Quantity::from_bytes(class_memory(class))
        && run.firmware == firmware_name(class.spec.firmware)
}

/// Why a VM of this class can never start on this host, however empty, if so: a class may be changed to any size.
pub(in crate::vm) fn too_large(class: &VMClass, observed: &Observed) -> Option<String> {
    let (cpus, memory) = observed.offered?;
    if class.spec.cpus <= cpus && class_memory(class) <= memory {
        return None;
    }
    Some(format!(
        "VMClass {} asks for {} CPUs and {} of memory, and this host can give a VM {cpus} CPUs and {} at most: make the \
         class smaller, or name another",
        class.name_any(),
        class.spec.cpus,
        class.spec.memory,
        Quantity::from_bytes(memory >> 20 << 20)
    ))
}

fn class_memory(class: &VMClass) -> u64 {
    class.spec.memory.bytes().map_or(0, |bytes| bytes.next_multiple_of(1 << 20))
}

/// How long ago, in a form that compares.
pub(super) fn since(then: Timestamp, now: Timestamp) -> SignedDuration {
    now.duration_since(then)
}
