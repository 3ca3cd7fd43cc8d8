//! VM: chosen a host, with its disks, addresses and identity, in one decision. After that it is its agent's.

mod placing;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use berth_api::{
    Binding, ConditionType, Disk, FORMER_UID_ANNOTATION, HOST_FINALIZER, Network, PlacementGroup, Readiness,
    Reason, VM, VMState, VMStatus, condition, former_uid,
    placement_group::TopologyClaim,
    vm::{InterfaceStatus, Refusal},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    Config, Key, Kind, World, access,
    addresses::{self, Fresh as FreshInterface},
    claims::Claim,
    draft::{Draft, Write},
    fenced,
    fleet::Fleet,
    plan::{Need, Outcome, Plan, Step},
    public_ip,
    scheduler::{Filling, Members},
    topology_claims, users,
    world::Unknown,
};
pub(super) use placing::bind_disk;
use placing::{bound, check_disk, fixed_use};

/// How long a host that refused a VM is not asked again: what it knows better will be known here by then.
const REFUSAL_COUNTS: SignedDuration = SignedDuration::from_secs(30);

/// What a VM's decision rests on.
#[derive(Debug)]
struct Observed {
    /// `None`: its class does not exist.
    size: Option<(i64, u64)>,
    disks: Vec<DiskSeen>,
    /// The group it names, if that exists.
    group: Option<Arc<PlacementGroup>>,
    /// How many other members of the group each host has.
    members: Members,
    /// The network of each interface, if it exists.
    networks: Vec<Option<Arc<Network>>>,
    filling: Filling,
    /// The host it is bound to, or that has it, is silent.
    host_silent: bool,
    /// Or gone for good.
    host_fenced: bool,
    /// A host has it already: its status was lost.
    claim: Option<Claim>,
    /// Why nothing may be placed yet.
    unknown: Option<Unknown>,
    /// The values of its group's topology key that others have.
    taken: BTreeSet<String>,
    /// The claims it could still be let in by.
    open_claims: Vec<(Key, TopologyClaim)>,
    /// The host that has just refused it, and why.
    refused_by: Option<(String, String)>,
    fresh: Fresh,
}

/// One of the VM's disks.
#[derive(Debug)]
struct DiskSeen {
    key: Key,
    object: Option<Arc<Disk>>,
    /// Another VM has it.
    user: Option<String>,
    /// The host that has its file, though its status does not say so (any more).
    claimed: Option<String>,
}

/// Identities and addresses to give out: randomness and the pool of addresses come in as data.
#[derive(Debug, Default)]
struct Fresh {
    instance_id: String,
    /// One for each disk.
    volume_ids: Vec<String>,
    /// One for each interface; the text says why there is none.
    interfaces: Vec<FreshInterface>,
}

/// What the VM's status is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// It is its agent's, or it goes.
    Leave,
    /// Not bound, for this reason.
    Wait(VMState, Readiness),
    /// Bound.
    Bind {
        host: String,
        instance_id: String,
        interfaces: Vec<InterfaceStatus>,
        /// That host has it already, and has seen it under this epoch: it was let in there.
        held: Option<i64>,
    },
    /// Not bound, and never to be under this epoch: a claim was made for it, and it is not bound by that.
    Spend(TopologyClaim),
    /// Its host is silent.
    Unknown(String),
    /// Its host has not taken it on and will not: it is placed anew.
    Unbind(Readiness),
    /// Bound, and its spec has other interfaces than it had then.
    Interfaces(Vec<InterfaceStatus>),
}

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(vm) = world.vms.get(key).cloned() else { return Outcome::Settled };
    // What was never taken on there is not lost with its host.
    let admitted = vm.status.as_ref().is_some_and(VMStatus::is_admitted);
    if admitted && let Some(outcome) = fenced::vm(world, config, &vm, draft) {
        return outcome;
    }
    let vm = with_what_was_lost(world, vm);
    let observed = observe(world, &vm, config);
    if observed.host_silent
        && let Some(status) =
            vm.status.as_ref().filter(|s| s.state != Some(VMState::Unknown) || !s.is_admitted())
        && let Some(binding) = &status.binding
        && !world.is_silence_confirmed(&binding.host, Instant::now())
    {
        draft.write(Write::ReadLease(binding.host.clone()));
        draft.touch(key.clone());
        return Outcome::Settled;
    }
    let plan = plan(&vm, &observed, &world.index.fleet);
    let claim = claim_for(world, &vm, &observed, &plan.decision);
    let plan = match spends(&observed, &plan.decision, claim.as_ref()) {
        Some(spent) => {
            // Then it is decided anew.
            draft.touch(key.clone());
            observed.open_claims.iter().for_each(|(group, _)| draft.touch(group.clone()));
            Plan::settled(Decision::Spend(spent))
        }
        None => plan,
    };
    if let Decision::Bind { host, .. } = &plan.decision {
        // Before the host knows of the VM, so that it never looks for its Secret in vain.
        access::grant(world, host, &vm, draft);
    }
    if matches!(plan.decision, Decision::Bind { .. } | Decision::Interfaces(_)) {
        users::claim(world, config, users::of_vm(&vm), draft);
    }
    if let (Decision::Bind { .. }, Some(claim), Some(group)) = (&plan.decision, claim, &observed.group) {
        draft.group_status(group, |status| {
            let same = |c: &TopologyClaim| {
                (&c.value, &c.vm_uid, c.epoch) == (&claim.value, &claim.vm_uid, claim.epoch)
            };
            status.claims.retain(|c| !same(c));
            status.claims.push(claim);
            status.claims.sort();
        });
    }
    if let (Decision::Bind { .. }, Some(claim)) = (&plan.decision, &observed.claim) {
        // While it is known: the host says so only until the VM is bound there.
        for name in vm.spec.network_interfaces.iter().filter_map(|i| i.public_ip.as_ref()) {
            let Some(address) = claim.public.get(name.as_str()) else { continue };
            let key = Key::namespaced(Kind::PublicIP, key.namespace(), name.as_str());
            public_ip::give_back(world, config, &key, *address, draft);
        }
    }
    draft.steps(world, config, &plan.steps);
    draft.status(vm.as_ref(), status(&vm, &plan.decision, config.clock.now()));
    plan.outcome
}

/// The claim by which a VM that is bound now is let in, if its group asks for one.
fn claim_for(world: &World, vm: &VM, observed: &Observed, decision: &Decision) -> Option<TopologyClaim> {
    let Decision::Bind { host, held, .. } = decision else { return None };
    let group = observed.group.as_ref().filter(|group| group.is_claimed())?;
    topology_claims::of(world, group, vm, host, next_epoch(&vm.status.clone().unwrap_or_default(), *held))
}

/// The claim to be spent first: one by which it could be let in where it is not bound to.
fn spends(observed: &Observed, decision: &Decision, claim: Option<&TopologyClaim>) -> Option<TopologyClaim> {
    let is_unbound = matches!(decision, Decision::Bind { held: None, .. } | Decision::Wait(..));
    let other = |(group, open): &&(Key, TopologyClaim)| {
        let own = observed.group.as_ref().is_some_and(|own| Key::of(own.as_ref()) == *group);
        let same = |claim: &TopologyClaim| {
            (&open.key, &open.value, open.epoch) == (&claim.key, &claim.value, claim.epoch)
        };
        !(own && claim.is_some_and(same))
    };
    let open = observed.open_claims.iter().filter(other).max_by_key(|(_, open)| open.epoch)?;
    is_unbound.then(|| open.1.clone())
}

/// Above every epoch that a host has seen of this VM, and every one that is spent.
fn next_epoch(status: &VMStatus, held: Option<i64>) -> i64 {
    status.refusal.as_ref().map_or(0, |r| r.epoch).max(held.unwrap_or(0)) + 1
}

fn observe(world: &World, vm: &VM, config: &Config) -> Observed {
    let (identities, filling) = (&config.identities, config.filling);
    let namespace = vm.namespace().unwrap_or_default();
    let binding = vm.status.as_ref().and_then(|s| s.binding.as_ref());
    let networks: Vec<Option<Arc<Network>>> = vm
        .spec
        .network_interfaces
        .iter()
        .map(|i| world.networks.lookup(&namespace, i.network.as_str()).cloned())
        .collect();
    let interfaces = addresses::fresh(world, vm, &networks, identities);
    let disks: Vec<DiskSeen> = vm
        .spec
        .disks
        .iter()
        .map(|disk| {
            let key = Key::namespaced(Kind::Disk, &namespace, disk.name.as_str());
            let object = world.disks.get(&key).cloned();
            let user = other_user(world, &key, object.as_deref(), vm);
            let claimed = claim_of(world, &key, object.as_deref()).map(|claim| claim.host.clone());
            DiskSeen { key, object, user, claimed }
        })
        .collect();
    let volume_id = |disk: &DiskSeen| match claim_of(world, &disk.key, disk.object.as_deref()) {
        Some(claim) => claim.id.clone(),
        None => format!("v-{}", identities.hex(16)),
    };
    let volume_ids = disks.iter().map(volume_id).collect();
    if let Some(binding) = binding {
        return Observed {
            size: None,
            disks,
            group: None,
            members: Members::new(),
            networks,
            filling,
            host_silent: !world.is_alive(&binding.host) && world.hosts.cluster(&binding.host).is_some(),
            host_fenced: world.is_fenced(&binding.host),
            claim: None,
            unknown: None,
            taken: BTreeSet::new(),
            open_claims: Vec::new(),
            refused_by: None,
            fresh: Fresh { interfaces, volume_ids, ..Fresh::default() },
        };
    }
    let name = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref());
    let group = name.and_then(|name| world.placement_groups.named(&namespace, name.as_str()).cloned());
    // It has no host itself: whoever counts is another.
    let members = group.as_ref().map(|group| world.index.group_hosts(&Key::of(group.as_ref())));
    let claimed = group.as_ref().filter(|group| group.is_claimed());
    let taken = claimed.into_iter().flat_map(|group| topology_claims::taken(group, vm).cloned()).collect();
    let fresh = Fresh { instance_id: format!("i-{}", identities.hex(12)), volume_ids, interfaces };
    let claim = world.claims.of(&Key::of(vm), vm);
    let refusal = vm.status.as_ref().and_then(|s| s.refusal.as_ref());
    let just_now = |time: &Timestamp| config.clock.now().duration_since(*time) < REFUSAL_COUNTS;
    let refusal = refusal.filter(|r| r.time.as_ref().is_some_and(just_now));
    Observed {
        size: world.vm_size(vm),
        disks,
        group,
        members: members.unwrap_or_default(),
        networks,
        filling,
        host_silent: claim.is_some_and(|claim| !world.is_alive(&claim.host)),
        host_fenced: false,
        claim: claim.cloned(),
        unknown: world.why_not_place(),
        taken,
        open_claims: topology_claims::open(world, vm),
        refused_by: refusal.map(|r| (r.host.clone(), r.message.clone())),
        fresh,
    }
}

/// What a host has of a disk that has no host by its status.
fn claim_of<'a>(world: &'a World, key: &Key, disk: Option<&Disk>) -> Option<&'a Claim> {
    let disk = disk.filter(|disk| bound(disk).is_none())?;
    world.claims.of(key, disk)
}

/// A VM whose status was lost, with the interfaces its host has it with: but for those somebody else has been given.
fn with_what_was_lost(world: &World, vm: Arc<VM>) -> Arc<VM> {
    let status = vm.status.clone().unwrap_or_default();
    let claim = world.claims.of(&Key::of(vm.as_ref()), vm.as_ref());
    let Some(claim) = claim.filter(|_| status.binding.is_none() && status.interfaces.is_empty()) else {
        return vm;
    };
    let is_free = |i: &&InterfaceStatus| {
        let address =
            i.address.parse().is_ok_and(|address| !world.index.is_address_used(&i.network, address));
        address && !world.index.is_mac_used(&i.mac_address)
    };
    let is_wanted =
        |i: &&InterfaceStatus| vm.spec.network_interfaces.iter().any(|w| w.name.as_str() == i.name);
    let interfaces = claim.interfaces.iter().filter(is_wanted).filter(is_free);
    let interfaces = interfaces.map(|i| InterfaceStatus { public_address: None, ..i.clone() }).collect();
    let mut vm = vm.as_ref().clone();
    vm.status = Some(VMStatus { interfaces, ..status });
    Arc::new(vm)
}

fn host_of(world: &World, key: &Key) -> Option<String> {
    world.vms.get(key)?.status.as_ref()?.binding.as_ref().map(|b| b.host.clone())
}

/// Who else has the disk: a user its status names, a bound VM that lists it, or a bound attachment.
fn other_user(world: &World, key: &Key, disk: Option<&Disk>, vm: &VM) -> Option<String> {
    let uid = vm.uid().unwrap_or_default();
    let named = disk.and_then(|d| d.status.as_ref()).and_then(|s| s.used_by.iter().find(|u| u.vm_uid != uid));
    if let Some(user) = named {
        return Some(user.vm.clone());
    }
    let is_other = |other: &Key| other.name != vm.name_any() && host_of(world, other).is_some();
    world.index.vms_with_disk(key).into_iter().find(is_other).map(|other| other.name)
}

fn plan(vm: &VM, observed: &Observed, fleet: &Fleet) -> Plan<Decision> {
    if let Some(binding) = vm.status.as_ref().and_then(|s| s.binding.as_ref()) {
        return match (returns(vm, observed, binding), observed.host_silent) {
            (Some(why), _) => Plan::settled(Decision::Unbind(why)),
            (None, true) => Plan::settled(Decision::Unknown(binding.host.clone())),
            (None, false) => plan_bound(vm, observed, &binding.host),
        };
    }
    if let Some(claim) = &observed.claim {
        if observed.host_silent {
            let text =
                format!("host {} has it and does not report: what runs there is not known", claim.host);
            let waits = Decision::Wait(VMState::Unknown, Readiness::Reconciling(Reason::HostSilent, text));
            return Plan::blocked(waits, vec![Need::Object(Key::cluster(Kind::Host, &claim.host))]);
        }
        // Whatever was declared since: where it is it can be stopped, changed and deleted.
        return placing::bind_again(vm, observed, claim);
    }
    if vm.metadata.deletion_timestamp.is_some() {
        // Nothing was made for it: only a finalizer set before a bind that never came holds it.
        let mut plan = Plan::settled(Decision::Leave);
        plan.steps.push(Step::RemoveFinalizer(Key::of(vm), HOST_FINALIZER));
        return plan;
    }
    if let Some(text) = awaits_its_host(vm) {
        // Whoever says later that he has it has it looked at.
        return Plan::settled(Decision::Wait(
            VMState::Pending,
            Readiness::Reconciling(Reason::WaitingForInventory, text),
        ));
    }
    placing::place(vm, observed, fleet)
}

/// Why nothing is made of an object without a host that was made real under another uid.
pub(super) fn awaits_its_host<K: ResourceExt>(object: &K) -> Option<String> {
    let uid = former_uid(object)?;
    Some(format!(
        "no host has said that it has what was made for it under the uid {uid}: it is not made anew before the annotation \
         {FORMER_UID_ANNOTATION} is taken off"
    ))
}

/// Why a VM that its host has not taken on comes back to be placed anew, if it does.
///
/// *Guarantees:* never one that was taken on. The host takes on, and the binding is taken back, by a write of this
/// object that carries the version read: never both.
fn returns(vm: &VM, observed: &Observed, binding: &Binding) -> Option<Readiness> {
    let status = vm.status.as_ref().filter(|s| !s.is_admitted())?;
    let host = &binding.host;
    if let Some(refusal) = status.refused() {
        let text = format!("host {host} refused it: {}", refusal.message);
        return Some(Readiness::Reconciling(Reason::Refused, text));
    }
    let gone = [
        (observed.host_fenced, Reason::HostFenced, "is gone for good and had not taken it on"),
        (observed.host_silent, Reason::HostSilent, "fell silent before it took it on"),
    ];
    if let Some((_, reason, text)) = gone.iter().find(|(holds, ..)| *holds) {
        return Some(Readiness::Reconciling(*reason, format!("host {host} {text}: it is placed anew")));
    }
    let elsewhere = observed.disks.iter().find_map(|disk| {
        let other = bound(disk.object.as_ref()?).filter(|b| b.host != *host)?;
        Some(format!("Disk {} is on host {}: it is placed anew", disk.key.name, other.host))
    });
    elsewhere.map(|text| Readiness::Reconciling(Reason::DiskOnOtherHost, text))
}

/// A bound VM: disks it lists that have no host yet are given its own; new interfaces get addresses.
fn plan_bound(vm: &VM, observed: &Observed, host: &str) -> Plan<Decision> {
    let mut plan = plan_interfaces(vm, observed);
    if vm.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut needs = Vec::new();
    for (disk, volume_id) in observed.disks.iter().zip(&observed.fresh.volume_ids) {
        if disk.object.as_ref().is_some_and(|d| bound(d).is_some()) {
            continue;
        }
        needs.push(Need::Object(disk.key.clone()));
        let here = disk.claimed.as_ref().is_none_or(|claimed| claimed == host);
        if here && check_disk(disk).is_ok() {
            plan.steps.extend(bind_disk(&disk.key, host, volume_id, vec![fixed_use(vm)]));
        }
    }
    if !needs.is_empty() {
        plan.outcome = Outcome::Blocked(needs);
    }
    plan
}

/// What a bound VM's status has to say of its interfaces: each keeps what it was given; a new one is given an address;
/// one that the spec no longer has keeps its address while the VM runs with it.
fn plan_interfaces(vm: &VM, observed: &Observed) -> Plan<Decision> {
    let status = vm.status.clone().unwrap_or_default();
    let wanted = addresses::decide(vm, &observed.networks, &observed.fresh.interfaces);
    let is_wanted =
        |i: &&InterfaceStatus| vm.spec.network_interfaces.iter().any(|w| w.name.as_str() == i.name);
    // What is new and what is given back are never one write: the new is taken before it is written, the old is free after.
    let is_more = wanted.iter().any(|w| !status.interfaces.contains(w));
    let stays = status.process.is_some() || is_more;
    let leftover = status.interfaces.iter().filter(|i| !is_wanted(i) && stays).cloned();
    let interfaces: Vec<InterfaceStatus> = wanted.into_iter().chain(leftover).collect();
    if interfaces == status.interfaces || vm.metadata.deletion_timestamp.is_some() {
        return Plan::settled(Decision::Leave);
    }
    Plan::settled(Decision::Interfaces(interfaces))
}

fn status(vm: &VM, decision: &Decision, now: Timestamp) -> VMStatus {
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    let conditions = &mut status.conditions;
    match decision {
        Decision::Leave => return status,
        Decision::Spend(TopologyClaim { host, epoch, .. }) => {
            let message = "it was to be bound there, and was not".to_owned();
            status.refusal = Some(Refusal { host: host.clone(), epoch: *epoch, message, time: None });
            return status;
        }
        Decision::Unknown(host) => {
            let text = format!("host {host} has not renewed its lease: what runs there is not known");
            Readiness::Unknown(Reason::HostSilent, text).write(conditions, generation, now);
            status.state = Some(VMState::Unknown);
            return status;
        }
        Decision::Interfaces(interfaces) => {
            status.private_address = interfaces.first().map(|i| i.address.clone());
            status.interfaces.clone_from(interfaces);
            return status;
        }
        Decision::Unbind(readiness) => {
            if let Some(binding) = status.binding.take() {
                let message = match &status.refusal {
                    Some(refusal) if refusal.epoch == binding.epoch => refusal.message.clone(),
                    _ => readiness.message().to_owned(),
                };
                let Binding { host, epoch } = binding;
                status.refusal = Some(Refusal { host, epoch, message, time: Some(now) });
            }
            status.admitted_epoch = None;
            let (scheduled, reason) = (ConditionType::Scheduled, readiness.reason());
            condition::set(conditions, scheduled, "False", reason, readiness.message(), generation, now);
            readiness.write(conditions, generation, now);
            status.state = Some(VMState::Pending);
        }
        Decision::Wait(state, readiness) => {
            let scheduled = ConditionType::Scheduled;
            condition::set(
                conditions,
                scheduled,
                "False",
                readiness.reason(),
                readiness.message(),
                generation,
                now,
            );
            readiness.write(conditions, generation, now);
            status.state = Some(*state);
        }
        Decision::Bind { host, instance_id, interfaces, held } => {
            let text = format!("bound to host {host}");
            condition::set(
                conditions,
                ConditionType::Scheduled,
                "True",
                Reason::Bound,
                &text,
                generation,
                now,
            );
            Readiness::Reconciling(Reason::Bound, text).write(conditions, generation, now);
            status.state = Some(VMState::Creating);
            let epoch = next_epoch(&status, *held);
            status.admitted_epoch = held.map(|_| epoch);
            status.binding = Some(Binding { host: host.clone(), epoch });
            status.instance_id = Some(instance_id.clone());
            status.private_address = interfaces.first().map(|i| i.address.clone());
            status.interfaces.clone_from(interfaces);
        }
    }
    status.observed_generation = generation;
    status
}
