//! Status of this host. Pure. Amounts that change constantly are rounded, so that an idle host writes nothing.

use std::collections::BTreeSet;

use berth_api::backup_repository::MOST_BACKUP_FOLDERS;
use berth_api::condition;
use berth_api::hardware::is_machine_type;
use berth_api::host::{
    AddressConflict, HostArchitecture, HostDedicatedCpus, HostHugePages, Inventory, KvmStatus, MAX_DETAIL,
    MOST_CPUS, MTU, Orphan, OrphanOwner, Resources, RetainedVolume, TargetHealth, TrashedSource,
    TrashedVolume,
};
use berth_api::shares::MOST_HOST_SHARES;
use berth_api::wireguard::{address_of, is_key};
use berth_api::{
    CloneMode, ConditionType, ConditionUpdate, Conditions, DiskFilesystem, FilesystemType, Host,
    HostBackupFolder, HostShare, HostStatus, HostWireguard, HugePages, Quantity, Readiness, Reason,
    SourceFormat, in_use,
};
use berth_host::{
    BackupFolderFacts, DeclaredSource, DedicatedFacts, ForeignKind, HostFacts, HugePagesFacts, QemuFacts,
    ShareFacts, VolumeFacts, WireguardFacts, cpu_list,
};
use berth_qemu::machine::{Accelerator, Architecture};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{devices, observe::Observed, pools, ranges};
use crate::config::AgentConfig;
use crate::definitions::{self, VersionSkew};
use crate::disk_use;
use crate::networking::{CheckedTarget, Health, RefusedAddress, filtered_bridges, host_networks};

/// Maximum length of the lists in the API that can grow without bound.
const MAX_LISTED: usize = 1000;
/// Maximum number of results of health checks, and length of a failure, in the API.
const MAX_TARGETS: usize = 2048;
const MAX_FAILURE: usize = 256;
/// Maximum number and length of CPU models in the API.
const MAX_MODELS: usize = 200;
const MAX_MODEL: usize = 64;
/// Maximum length of QEMU's version in the API.
const MAX_VERSION: usize = 64;
/// Maximum number of sizes of huge pages, and of pages of one size, in the API.
const MAX_PAGE_SIZES: usize = 8;
const MOST_PAGES: i64 = 1_000_000_000;
const GIB: u64 = 1 << 30;
/// Number of orphans named in the condition; `status.orphans` lists them.
const NAMED_ORPHANS: usize = 4;
/// Number of guests named in the condition `GuestsOutliveAgent`.
const NAMED_GUESTS: usize = 4;

pub(super) fn status(host: &Host, observed: &Observed, config: &AgentConfig, now: Timestamp) -> HostStatus {
    let mut status = host.status.clone().unwrap_or_default();
    let generation = host.metadata.generation.unwrap_or(0);
    let facts = &observed.facts;
    status.observed_generation = generation;
    let text = match (host.spec.draining, host.spec.cordoned) {
        (true, _) => "being drained: takes no new VMs, and stops those it has",
        (false, true) => "cordoned: takes no new VMs",
        (false, false) => "",
    };
    let readiness = match host.metadata.deletion_timestamp {
        Some(_) if !observed.users.is_empty() => {
            Readiness::Reconciling(Reason::InUse, in_use(&observed.users))
        }
        _ => Readiness::Ready(Reason::AgentReady, text.to_owned()),
    };
    readiness.write(&mut status.conditions, generation, now);
    let accelerated = facts.accelerator == Accelerator::Kvm;
    let reason = if accelerated { Reason::Accelerated } else { Reason::Emulated };
    let conditions = &mut status.conditions;
    condition::set(
        conditions,
        ConditionUpdate::from_bool(ConditionType::Accelerated, accelerated, reason, &facts.kvm.reason),
        generation,
        now,
    );
    let forwarding = &observed.forwarding;
    let reason = if forwarding.ok { Reason::Available } else { Reason::ForeignFirewall };
    condition::set(
        conditions,
        ConditionUpdate::from_bool(ConditionType::Forwarding, forwarding.ok, reason, &forwarding.message),
        generation,
        now,
    );
    match observed.refused.values().next() {
        None => condition::remove(conditions, ConditionType::PublicAddresses),
        Some(first) => {
            let texts: Vec<&str> = observed.refused.values().take(8).map(|r| r.text.as_str()).collect();
            let (kind, text) = (ConditionType::PublicAddresses, texts.join("; "));
            condition::set(
                conditions,
                ConditionUpdate::from_bool(kind, false, first.reason, &text),
                generation,
                now,
            );
        }
    }
    let networks = [
        (ConditionType::NetworksConnected, Reason::BridgeUnavailable, &observed.disconnected),
        (ConditionType::NetworksServed, Reason::NetworkServerEnds, &observed.failing_servers),
    ];
    for (kind, reason, problems) in networks {
        if problems.is_empty() {
            condition::remove(conditions, kind);
            continue;
        }
        let text = problems.iter().take(8).cloned().collect::<Vec<_>>().join("; ");
        let update = ConditionUpdate::from_bool(kind, false, reason, &text);
        condition::set(conditions, update, generation, now);
    }
    write_outlived(conditions, observed, generation, now);
    let conflict = |(address, refused): (&std::net::IpAddr, &RefusedAddress)| {
        let mac = refused.mac.clone()?;
        Some(AddressConflict { address: address.to_string(), mac })
    };
    status.address_conflicts = observed.refused.iter().filter_map(conflict).take(MAX_LISTED).collect();
    status.target_health = observed.health.iter().map(target_health).take(MAX_TARGETS).collect();
    status.version = Some(env!("CARGO_PKG_VERSION").to_owned());
    status.roles = roles(config);
    status.address = facts.address.map(|address| address.to_string());
    status.mtu = facts.mtu.and_then(believable_mtu);
    let own = config.console.as_ref().filter(|own| own.is_for_hosts);
    status.server = own.map(|own| own.published());
    status.ranges = ranges::used(observed, config);
    status.segments = ranges::segments(observed);
    let ipv6 = facts.ipv6_addresses.iter().map(ToString::to_string);
    status.ipv6_addresses = ipv6.take(ranges::MAX_RANGES).collect();
    status.networks = host_networks(&facts.links);
    status.vlans = Some(facts.links.vlans);
    status.filtered_bridges = filtered_bridges(&facts.links);
    status.wireguard = Some(wireguard(&facts.wireguard));
    let version = facts.qemu.as_ref().ok().map(|qemu| condition::cut(&qemu.version, MAX_VERSION).to_owned());
    status.qemu_version = version;
    let qemu = facts.qemu.as_ref().ok();
    // For guests of any architecture.
    let emulated = facts.emulated.as_ref().and_then(|emulated| emulated.qemu.as_ref().ok());
    let all = || qemu.into_iter().chain(emulated);
    let models = all().flat_map(|qemu| &qemu.cpu_models).filter(|model| model.len() <= MAX_MODEL);
    status.cpu_models = models.take(MAX_MODELS).cloned().collect();
    let types = all().flat_map(|qemu| &qemu.machine_types).filter(|name| is_machine_type(name));
    status.machine_types = types.take(MAX_MODELS).cloned().collect();
    status.architectures = architectures(facts);
    status.disk_io = qemu.map(|qemu| if qemu.io_uring { "io_uring" } else { "native" }.to_owned());
    status.disk_encryption = Some(true);
    let moves_guests = config.console.as_ref().is_some_and(|own| own.is_for_hosts && own.moves_guests);
    status.live_migration = moves_guests.then_some(true);
    status.firmware_moves = Some(true);
    status.vsock = Some(facts.qemu.as_ref().is_ok_and(|qemu| qemu.vsock));
    status.tpm = Some(facts.qemu.as_ref().is_ok_and(|qemu| qemu.tpm));
    status.pci_devices = devices::offered(observed);
    status.usb_devices = devices::offered_usb(observed);
    status.vgpus = devices::offered_vgpus(observed);
    status.block_devices = devices::offered_block(observed);
    status.backup_folders =
        facts.backup_folders.iter().take(MOST_BACKUP_FOLDERS).map(backup_folder).collect();
    status.pools = pools::listed(observed, &status.pools);
    status.shares = facts.shares.iter().take(MOST_HOST_SHARES).map(host_share).collect();
    status.accelerator = Some(if accelerated { "kvm" } else { "tcg" }.to_owned());
    status.kvm = Some(KvmStatus {
        usable: facts.kvm.usable,
        reason: condition::cut(&facts.kvm.reason, MAX_DETAIL).to_owned(),
        mips: facts.kvm.mips.map(|mips| (mips * 100.0).round() / 100.0),
    });
    write_resources(&mut status, host, observed, config);
    status.dedicated_cpus = dedicated_cpus(&facts.dedicated);
    status.huge_pages = facts.huge_pages.iter().filter_map(huge_pages).take(MAX_PAGE_SIZES).collect();
    write_reserved(&mut status, host, observed, config, now);
    status.vm_overhead = Some(Quantity::from_bytes(facts.overhead_bytes).0);
    status.vms = observed.usage.vms;
    status.used_by.clone_from(&observed.users);
    status.images.clone_from(&observed.images);
    status.images.sort();
    status.images.truncate(MAX_LISTED);
    status.retained = i64::try_from(observed.retained.len()).ok().filter(|count| *count > 0);
    status.retained_volumes = retained(observed);
    status.trash = trash(observed);
    (status.orphans, status.inventory) = orphans(observed);
    // A file in a pool that is away may be that of an object which the recovery would make anew elsewhere.
    if host.spec.recovery.is_some() && !pools::away(&facts.pool_folders).is_empty() {
        status.inventory = Some(Inventory { complete: false });
    }
    write_orphans(&mut status, &host.name_any(), generation, now);
    status
}

/// Sets the `GuestsOutliveAgent` condition while guests are in the agent's unit of systemd.
fn write_outlived(conditions: &mut Conditions, observed: &Observed, generation: i64, now: Timestamp) {
    let kind = ConditionType::GuestsOutliveAgent;
    let Some(unit) = observed.in_agents_unit.values().next() else {
        return condition::remove(conditions, kind);
    };
    let named: Vec<&str> = observed.in_agents_unit.keys().take(NAMED_GUESTS).map(String::as_str).collect();
    let more = match observed.in_agents_unit.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "VMs {}{more} run in {unit}, as the agent does: without KillMode=process in that unit, a stop of it ends them",
        named.join(", ")
    );
    condition::set(
        conditions,
        ConditionUpdate::from_bool(kind, false, Reason::SharedUnit, &text),
        generation,
        now,
    );
}

/// Returns the purposes of this host, in an order that never changes.
fn roles(config: &AgentConfig) -> Vec<String> {
    let control_plane = config.beside_control_plane.then(|| "ControlPlane".to_owned());
    std::iter::once("VMs".to_owned()).chain(control_plane).collect()
}

/// Returns the architectures of VMs here: that of the processors, and the one that is emulated.
fn architectures(facts: &HostFacts) -> Vec<HostArchitecture> {
    let name = |accelerator| if matches!(accelerator, Accelerator::Kvm) { "kvm" } else { "tcg" };
    let own = HostArchitecture {
        name: facts.architecture.as_str().to_owned(),
        accelerator: name(facts.accelerator).to_owned(),
        // Without its QEMU the host is not ready.
        problem: facts.qemu.as_ref().ok().and_then(|qemu| missing_firmware(facts.architecture, qemu)),
    };
    let emulated = facts.emulated.as_ref().map(|emulated| HostArchitecture {
        name: emulated.architecture.as_str().to_owned(),
        accelerator: name(emulated.accelerator).to_owned(),
        problem: match &emulated.qemu {
            Ok(qemu) => missing_firmware(emulated.architecture, qemu),
            Err(text) => Some(condition::cut(text, MAX_DETAIL).to_owned()),
        },
    });
    std::iter::once(own).chain(emulated).collect()
}

/// Returns that the firmware is missing without which no VM of an architecture starts.
fn missing_firmware(architecture: Architecture, qemu: &QemuFacts) -> Option<String> {
    let is_missing = architecture == Architecture::Aarch64 && !qemu.uefi;
    let package = architecture.firmware_package();
    is_missing.then(|| format!("UEFI firmware is not installed (Debian, Ubuntu: apt install {package})"))
}

fn host_share(share: &ShareFacts) -> HostShare {
    HostShare {
        name: share.name.clone(),
        read_only: share.read_only,
        problem: share.problem.as_deref().map(|text| condition::cut(text, MAX_DETAIL).to_owned()),
    }
}

fn backup_folder(folder: &BackupFolderFacts) -> HostBackupFolder {
    HostBackupFolder {
        name: folder.name.clone(),
        problem: folder.problem.as_deref().map(|text| condition::cut(text, MAX_DETAIL).to_owned()),
    }
}

fn target_health((target, health): (&CheckedTarget, &Health)) -> TargetHealth {
    let failure = health.as_ref().err().map(String::as_str).unwrap_or_default();
    TargetHealth {
        address: target.public.to_string(),
        port: target.port.into(),
        protocol: target.protocol.as_str().to_owned(),
        vm: target.vm.clone(),
        failure: condition::cut(failure, MAX_FAILURE).to_owned(),
    }
}

/// Returns the status with the amounts that each VM changes, and that decide nothing, as they are in the stored status.
pub(super) fn without_amounts(stored: &HostStatus, status: &HostStatus) -> HostStatus {
    HostStatus {
        free: stored.free.clone(),
        vms: stored.vms,
        used_by: stored.used_by.clone(),
        pci_devices: devices::without_use(&stored.pci_devices, &status.pci_devices),
        usb_devices: devices::without_use(&stored.usb_devices, &status.usb_devices),
        vgpus: devices::without_use(&stored.vgpus, &status.vgpus),
        dedicated_cpus: status.dedicated_cpus.clone().map(|cpus| {
            let free = stored.dedicated_cpus.as_ref().map_or(cpus.free, |stored| stored.free);
            HostDedicatedCpus { free, ..cpus }
        }),
        huge_pages: with_free_of(&stored.huge_pages, &status.huge_pages),
        pools: pools::without_amounts(&stored.pools, &status.pools),
        ..status.clone()
    }
}

fn with_free_of(stored: &[HostHugePages], pages: &[HostHugePages]) -> Vec<HostHugePages> {
    let with_free = |pages: &HostHugePages| {
        let before = stored.iter().find(|stored| stored.size == pages.size);
        HostHugePages { free: before.map_or(pages.free, |before| before.free), ..pages.clone() }
    };
    pages.iter().map(with_free).collect()
}

/// Returns the CPUs that single VMs can have for themselves, if there are some.
fn dedicated_cpus(facts: &DedicatedFacts) -> Option<HostDedicatedCpus> {
    let count = |cpus: &BTreeSet<u32>| i64::try_from(cpus.len()).unwrap_or(MOST_CPUS).min(MOST_CPUS);
    (!facts.cpus.is_empty()).then(|| HostDedicatedCpus {
        cpus: condition::cut(&cpu_list(&facts.cpus), MAX_DETAIL).to_owned(),
        total: count(&facts.cpus),
        free: count(&facts.free),
    })
}

/// Returns the huge pages of a size that VMs can have.
fn huge_pages(pages: &HugePagesFacts) -> Option<HostHugePages> {
    let size = HugePages::of_bytes(pages.page_bytes)?;
    let count = |count: u64| i64::try_from(count).unwrap_or(MOST_PAGES).min(MOST_PAGES);
    Some(HostHugePages { size: size.as_str().to_owned(), total: count(pages.total), free: count(pages.free) })
}

fn wireguard(facts: &Result<WireguardFacts, String>) -> HostWireguard {
    match facts {
        Ok(facts) => HostWireguard {
            public_key: Some(facts.public_key.clone()).filter(|key| is_key(key)),
            address: address_of(&facts.public_key).map(|address| address.to_string()),
            port: Some(facts.port.into()),
            implementation: Some(facts.implementation.as_str().to_owned()),
            problem: None,
        },
        Err(problem) => HostWireguard {
            problem: Some(condition::cut(problem, MAX_DETAIL).to_owned()),
            ..HostWireguard::default()
        },
    }
}

/// Returns the MTU as the API accepts it: None for a link that is too small for tunnels, as no tunnel traffic uses it.
fn believable_mtu(mtu: u16) -> Option<i64> {
    let mtu = i64::from(mtu).min(*MTU.end());
    MTU.contains(&mtu).then_some(mtu)
}

/// Sets the `Orphans` condition while there are orphans on this host.
fn write_orphans(status: &mut HostStatus, host: &str, generation: i64, now: Timestamp) {
    let kind = ConditionType::Orphans;
    if status.orphans.is_empty() {
        return condition::remove(&mut status.conditions, kind);
    }
    let named = status.orphans.iter().take(NAMED_ORPHANS).map(|orphan| match &orphan.owner {
        Some(owner) => {
            format!("{} {} of {} {}/{}", orphan.kind, orphan.name, owner.kind, owner.namespace, owner.name)
        }
        None => format!("{} {}", orphan.kind, orphan.name),
    });
    let named: Vec<String> = named.collect();
    let more = match status.orphans.len().saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "no object owns {}{more}: \"berth host adopt {host} NAME\" gives it to the object of its name, \
         \"berth host release {host} NAME\" ends the guest and moves its files to the trash",
        named.join(", ")
    );
    condition::set(
        &mut status.conditions,
        ConditionUpdate::from_bool(kind, true, Reason::OrphansFound, &text),
        generation,
        now,
    );
}

/// Sets the `DefinitionsCurrent` condition while the control plane's definitions do not match this agent.
pub(super) fn write_definitions(
    status: &mut HostStatus,
    skew: &VersionSkew,
    generation: i64,
    now: Timestamp,
) {
    let kind = ConditionType::DefinitionsCurrent;
    let Some(text) = definitions::text(skew) else {
        return condition::remove(&mut status.conditions, kind);
    };
    let newer = matches!(skew, VersionSkew::Newer(_));
    let reason = if newer { Reason::NewerDefinitions } else { Reason::OlderDefinitions };
    condition::set(
        &mut status.conditions,
        ConditionUpdate::from_bool(kind, false, reason, &text),
        generation,
        now,
    );
    if newer {
        // Not ready, so that nothing is scheduled here.
        Readiness::Reconciling(reason, text).write(&mut status.conditions, generation, now);
    }
}

fn write_resources(status: &mut HostStatus, host: &Host, observed: &Observed, config: &AgentConfig) {
    let (facts, usage) = (&observed.facts, &observed.usage);
    let (cpus, offered) = config.offered(facts, host.spec.reserved.as_ref());
    let vms = u64::try_from(usage.vms).unwrap_or(0);
    let used = usage.memory.saturating_add(vms.saturating_mul(facts.overhead_bytes));
    let mib = |bytes: u64| amount(bytes >> 20 << 20);
    let gib = |bytes: u64| amount(bytes / GIB * GIB);
    status.capacity = Some(Resources {
        cpus: i64::from(facts.cpus),
        memory: mib(facts.memory_bytes),
        storage: gib(facts.storage_total_bytes),
    });
    status.allocatable =
        Some(Resources { cpus, memory: mib(offered), storage: gib(facts.storage_total_bytes) });
    status.free = Some(Resources {
        cpus: (cpus - usage.cpus).max(0),
        memory: mib(offered.saturating_sub(used)),
        storage: gib(facts.storage_free_bytes),
    });
}

/// Sets the `ReservedFits` condition while the host reserves all that it has, or more.
fn write_reserved(
    status: &mut HostStatus,
    host: &Host,
    observed: &Observed,
    config: &AgentConfig,
    now: Timestamp,
) {
    let (kind, facts) = (ConditionType::ReservedFits, &observed.facts);
    let (cpus, memory) = config.reserved(facts, host.spec.reserved.as_ref());
    let has = Quantity::from_bytes(facts.memory_bytes >> 20 << 20);
    let text = if cpus >= i64::from(facts.cpus) {
        format!("{cpus} CPUs are reserved and the machine has {}", facts.cpus)
    } else if memory >= facts.memory_bytes {
        format!("{} of memory is reserved and the machine has {has}", Quantity::from_bytes(memory))
    } else {
        return condition::remove(&mut status.conditions, kind);
    };
    let text = format!("{text}: nothing is left for VMs. Declare less in spec.reserved");
    condition::set(
        &mut status.conditions,
        ConditionUpdate::from_bool(kind, false, Reason::ReservedTooLarge, &text),
        host.metadata.generation.unwrap_or(0),
        now,
    );
}

/// Formats an amount. Unlike a declared quantity, a remaining amount may be zero.
fn amount(bytes: u64) -> String {
    Quantity::from_bytes(bytes).0
}

/// The space that a file without a Disk takes: nothing changes it any more, and it is rounded as that of Disks.
fn space_of(observed: &Observed, volume: &VolumeFacts) -> Option<String> {
    observed.used.get(&volume.id).map(|used| disk_use::amount(*used, volume.size, None))
}

fn trash(observed: &Observed) -> Vec<TrashedVolume> {
    let mut trash: Vec<TrashedVolume> = observed
        .trash
        .iter()
        .map(|t| TrashedVolume {
            volume_id: t.volume.id.clone(),
            pool: t.volume.pool.clone(),
            namespace: t.volume.owner.namespace.clone(),
            name: t.volume.owner.name.clone(),
            size: Quantity::from_bytes(t.volume.size).0,
            used: space_of(observed, &t.volume),
            image: t.volume.owner.image.clone(),
            source: t.volume.owner.source.clone().map(declared_source),
            thick: t.volume.reserved.is_some(),
            shared: t.volume.is_shared(),
            key_class: t.volume.encryption.as_ref().map(|key| key.wrapped_by.clone()),
            deleted_at: t.deleted_at.to_string(),
        })
        .collect();
    trash.sort_by(|a, b| b.deleted_at.cmp(&a.deleted_at).then_with(|| a.volume_id.cmp(&b.volume_id)));
    trash.truncate(MAX_LISTED);
    trash
}

fn retained(observed: &Observed) -> Vec<RetainedVolume> {
    let volumes = observed.retained.iter().map(|volume| RetainedVolume {
        volume_id: volume.id.clone(),
        pool: volume.pool.clone(),
        namespace: volume.owner.namespace.clone(),
        name: volume.owner.name.clone(),
        size: Quantity::from_bytes(volume.size).0,
        used: space_of(observed, volume),
        image: volume.owner.image.clone(),
        source: volume.owner.source.clone().map(declared_source),
        thick: volume.reserved.is_some(),
        shared: volume.is_shared(),
        key_class: volume.encryption.as_ref().map(|key| key.wrapped_by.clone()),
    });
    let mut volumes: Vec<RetainedVolume> = volumes.collect();
    volumes.sort_by(|a, b| (&a.namespace, &a.name, &a.volume_id).cmp(&(&b.namespace, &b.name, &b.volume_id)));
    volumes.truncate(MAX_LISTED);
    volumes
}

fn declared_source(source: DeclaredSource) -> TrashedSource {
    let DeclaredSource {
        disk,
        snapshot,
        namespace,
        file,
        raw,
        backup,
        full_clone,
        filesystem,
        filesystem_label,
    } = source;
    let filesystem_type = filesystem.as_deref().and_then(FilesystemType::of);
    let filesystem = filesystem_type
        .map(|filesystem_type| Box::new(DiskFilesystem { filesystem_type, label: filesystem_label }));
    let clone_mode = full_clone.then_some(CloneMode::Full);
    let format = raw.then_some(SourceFormat::Raw);
    TrashedSource { disk, snapshot, namespace, file, format, backup, clone_mode, filesystem }
}

/// Priority of an orphan in a list that is too long: the last ranks are left out first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Runs,
    Lost,
    /// A file that is retained as declared.
    Kept,
    /// Not created by berth.
    Foreign,
}

/// Returns the orphans, and whether the list contains all lost ones. Retained files do not count: there may be any
/// number of them, and a recovery would never complete.
fn orphans(observed: &Observed) -> (Vec<Orphan>, Option<Inventory>) {
    let mut orphans: Vec<(Rank, Orphan)> = Vec::new();
    for found in &observed.foreign {
        let kind = match found.kind {
            ForeignKind::Process => "Process",
            ForeignKind::Volume => "Volume",
            ForeignKind::Instance => "Instance",
        };
        orphans.push((Rank::Foreign, orphan(kind, found.name.clone(), found.detail.clone(), None)));
    }
    for volume in &observed.orphan_volumes {
        let owner = format!("{}/{}", volume.owner.namespace, volume.owner.name);
        let file = orphan(
            "Volume",
            volume.id.clone(),
            format!("no Disk has it; it was made for Disk {owner}"),
            Some(OrphanOwner {
                kind: "Disk".to_owned(),
                namespace: volume.owner.namespace.clone(),
                name: volume.owner.name.clone(),
                uid: volume.owner.uid.clone(),
                ..OrphanOwner::default()
            }),
        );
        let rank = if volume.retained { Rank::Kept } else { Rank::Lost };
        let file = Orphan {
            size: Some(Quantity::from_bytes(volume.size).0),
            pool: Some(volume.pool.clone()),
            image: volume.owner.image.clone(),
            key_class: volume.encryption.as_ref().map(|key| key.wrapped_by.clone()),
            ..file
        };
        orphans.push((rank, file));
    }
    for lost in &observed.orphan_instances {
        let vm = lost.vm.as_deref().unwrap_or("unknown");
        let runs = lost.pid.map_or("does not run".to_owned(), |pid| format!("runs as pid {pid}"));
        let detail = format!("no VM bound to this host has it; it was VM {vm} and {runs}");
        // An instance that berth is deleting, or with an unreadable journal, cannot be adopted by an object.
        let rank = if lost.owner.is_some() { Rank::Runs } else { Rank::Foreign };
        orphans.push((rank, orphan("Instance", lost.instance.clone(), detail, lost.owner.clone())));
    }
    let by_name = |a: &Orphan, b: &Orphan| (&a.kind, &a.name).cmp(&(&b.kind, &b.name));
    orphans.sort_by(|(a_rank, a), (b_rank, b)| a_rank.cmp(b_rank).then_with(|| by_name(a, b)));
    orphans.dedup();
    let complete = orphans.get(MAX_LISTED).is_none_or(|(first_left_out, _)| *first_left_out > Rank::Lost);
    orphans.truncate(MAX_LISTED);
    let mut orphans: Vec<Orphan> = orphans.into_iter().map(|(_, orphan)| orphan).collect();
    orphans.sort_by(by_name);
    (orphans, Some(Inventory { complete }))
}

fn orphan(kind: &str, name: String, detail: String, owner: Option<OrphanOwner>) -> Orphan {
    let detail = condition::cut(&detail, MAX_DETAIL).to_owned();
    Orphan { kind: kind.to_owned(), name, detail, owner, ..Orphan::default() }
}
