//! What is reported of this host. Pure. Amounts that move all the time are rounded, so that an idle host is silent.

use berth_api::condition::{self, set_bool};
use berth_api::host::{AddressConflict, Inventory, KvmStatus, Orphan, OrphanOwner, Resources, TrashedVolume};
use berth_api::{ConditionType, Host, HostStatus, Quantity, Readiness, Reason};
use berth_qemu::machine::Accelerator;
use jiff::Timestamp;

use super::observe::Observed;
use crate::config::AgentConfig;
use crate::definitions::{self, Standing};
use crate::network::Refused;
use crate::system::StrangerKind;

/// The API lists no more of what can pile up.
const MAX_LISTED: usize = 1000;
const GIB: u64 = 1 << 30;

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
    Readiness::Ready(Reason::AgentReady, text.to_owned()).write(&mut status.conditions, generation, now);
    let accelerated = facts.accelerator == Accelerator::Kvm;
    let reason = if accelerated { Reason::Accelerated } else { Reason::Emulated };
    let conditions = &mut status.conditions;
    set_bool(conditions, ConditionType::Accelerated, accelerated, reason, &facts.kvm.reason, generation, now);
    let forwarding = &observed.forwarding;
    let reason = if forwarding.ok { Reason::Available } else { Reason::ForeignFirewall };
    set_bool(
        conditions,
        ConditionType::Forwarding,
        forwarding.ok,
        reason,
        &forwarding.message,
        generation,
        now,
    );
    match observed.refused.values().next() {
        None => condition::remove(conditions, ConditionType::PublicAddresses),
        Some(first) => {
            let texts: Vec<&str> = observed.refused.values().take(8).map(|r| r.text.as_str()).collect();
            let (kind, text) = (ConditionType::PublicAddresses, texts.join("; "));
            set_bool(conditions, kind, false, first.reason, &text, generation, now);
        }
    }
    let conflict = |(address, refused): (&std::net::Ipv4Addr, &Refused)| {
        let mac = refused.mac.clone()?;
        Some(AddressConflict { address: address.to_string(), mac })
    };
    status.address_conflicts = observed.refused.iter().filter_map(conflict).take(MAX_LISTED).collect();
    status.version = Some(env!("CARGO_PKG_VERSION").to_owned());
    status.address = facts.address.map(|address| address.to_string());
    status.mtu = facts.mtu.map(i64::from);
    status.qemu_version = facts.qemu.as_ref().ok().map(|qemu| qemu.version.clone());
    status.accelerator = Some(if accelerated { "kvm" } else { "tcg" }.to_owned());
    status.kvm = Some(KvmStatus {
        usable: facts.kvm.usable,
        reason: facts.kvm.reason.clone(),
        mips: facts.kvm.mips.map(|mips| (mips * 100.0).round() / 100.0),
    });
    write_resources(&mut status, observed, config);
    status.vm_overhead = Some(Quantity::from_bytes(facts.overhead_bytes).0);
    status.vms = observed.usage.vms;
    status.used_by.clone_from(&observed.users);
    status.images.clone_from(&observed.images);
    status.images.sort();
    status.trash = trash(observed);
    (status.orphans, status.inventory) = orphans(observed);
    status
}

/// Whether the control plane's definitions go with this agent: said only while they do not.
pub(super) fn write_definitions(
    status: &mut HostStatus,
    standing: &Standing,
    generation: i64,
    now: Timestamp,
) {
    let kind = ConditionType::DefinitionsCurrent;
    let Some(text) = definitions::text(standing) else {
        return condition::remove(&mut status.conditions, kind);
    };
    let newer = matches!(standing, Standing::Newer(_));
    let reason = if newer { Reason::NewerDefinitions } else { Reason::OlderDefinitions };
    set_bool(&mut status.conditions, kind, false, reason, &text, generation, now);
    if newer {
        // So that nothing is placed here.
        Readiness::Reconciling(reason, text).write(&mut status.conditions, generation, now);
    }
}

fn write_resources(status: &mut HostStatus, observed: &Observed, config: &AgentConfig) {
    let (facts, usage) = (&observed.facts, &observed.usage);
    let overcommit = i64::from(config.cpu_overcommit.max(1));
    let cpus = i64::from(facts.cpus);
    let offered = config.offered_memory(facts.memory_bytes);
    let vms = u64::try_from(usage.vms).unwrap_or(0);
    let used = usage.memory.saturating_add(vms.saturating_mul(facts.overhead_bytes));
    let mib = |bytes: u64| amount(bytes >> 20 << 20);
    let gib = |bytes: u64| amount(bytes / GIB * GIB);
    status.capacity =
        Some(Resources { cpus, memory: mib(facts.memory_bytes), storage: gib(facts.storage_total_bytes) });
    status.allocatable = Some(Resources {
        cpus: cpus * overcommit,
        memory: mib(offered),
        storage: gib(facts.storage_total_bytes),
    });
    status.free = Some(Resources {
        cpus: (cpus * overcommit - usage.cpus).max(0),
        memory: mib(offered.saturating_sub(used)),
        storage: gib(facts.storage_free_bytes),
    });
}

/// Unlike what a user declares, an amount that is left may be nothing.
fn amount(bytes: u64) -> String {
    Quantity::from_bytes(bytes).0
}

fn trash(observed: &Observed) -> Vec<TrashedVolume> {
    let mut trash: Vec<TrashedVolume> = observed
        .trash
        .iter()
        .map(|t| TrashedVolume {
            volume_id: t.volume.id.clone(),
            namespace: t.volume.owner.namespace.clone(),
            name: t.volume.owner.name.clone(),
            size: Quantity::from_bytes(t.volume.size).0,
            image: t.volume.owner.image.clone(),
            deleted_at: t.deleted_at.to_string(),
        })
        .collect();
    trash.sort_by(|a, b| b.deleted_at.cmp(&a.deleted_at).then_with(|| a.volume_id.cmp(&b.volume_id)));
    trash.truncate(MAX_LISTED);
    trash
}

/// What no object owns, and whether all of it is listed that was made for one: that comes first.
fn orphans(observed: &Observed) -> (Vec<Orphan>, Option<Inventory>) {
    let mut orphans: Vec<Orphan> = Vec::new();
    for stranger in &observed.strangers {
        let kind = match stranger.kind {
            StrangerKind::Process => "Process",
            StrangerKind::Volume => "Volume",
            StrangerKind::Instance => "Instance",
        };
        orphans.push(orphan(kind, stranger.name.clone(), stranger.detail.clone(), None));
    }
    for volume in &observed.lost_volumes {
        let owner = format!("{}/{}", volume.owner.namespace, volume.owner.name);
        orphans.push(orphan(
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
        ));
    }
    for lost in &observed.lost_instances {
        let vm = lost.vm.as_deref().unwrap_or("unknown");
        let runs = lost.pid.map_or("does not run".to_owned(), |pid| format!("runs as pid {pid}"));
        let detail = format!("no VM bound to this host has it; it was VM {vm} and {runs}");
        orphans.push(orphan("Instance", lost.instance.clone(), detail, lost.owner.clone()));
    }
    let by_name = |a: &Orphan, b: &Orphan| (&a.kind, &a.name).cmp(&(&b.kind, &b.name));
    orphans.sort_by(|a, b| a.owner.is_none().cmp(&b.owner.is_none()).then_with(|| by_name(a, b)));
    orphans.dedup();
    let complete = orphans.get(MAX_LISTED).is_none_or(|first_left_out| first_left_out.owner.is_none());
    orphans.truncate(MAX_LISTED);
    orphans.sort_by(by_name);
    (orphans, Some(Inventory { complete }))
}

fn orphan(kind: &str, name: String, detail: String, owner: Option<OrphanOwner>) -> Orphan {
    Orphan { kind: kind.to_owned(), name, detail, owner }
}
