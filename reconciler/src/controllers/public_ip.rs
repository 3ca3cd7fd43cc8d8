//! PublicIP: allocated from its pool, kept while its VM is stopped, returned when it is deleted.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc};

use berth_api::{
    ADDRESS_FINALIZER, Binding, ConditionType, IPPool, IPPoolMode, ObjectUse, PublicIP, PublicIPState,
    PublicIPStatus, Readiness, Reason, UseKind, condition,
};
use ipnet::Ipv4Net;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    Config, Key, Kind, World,
    draft::Draft,
    plan::{Need, Outcome, Plan, Step},
    users,
    world::Unknown,
};

#[derive(Debug)]
struct Observed {
    /// The address it gets, or why none.
    address: Result<Ipv4Addr, (Reason, String)>,
    /// How its pool makes addresses reachable.
    mode: Option<IPPoolMode>,
    /// The VM that has it, with the VM's host.
    user: Option<(ObjectUse, Option<String>)>,
    /// Who else answers for it where that host is.
    conflict: Option<Conflict>,
    /// Why it can be given none yet.
    unknown: Option<Unknown>,
}

/// Another machine that has the address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Conflict {
    host: String,
    mac: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Gone,
    Wait(Readiness),
    Allocated {
        address: Ipv4Addr,
        mode: Option<IPPoolMode>,
        user: Option<(ObjectUse, Option<String>)>,
        terminating: bool,
    },
}

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(ip) = world.public_ips.get(key).cloned() else { return Outcome::Settled };
    let observed = observe(world, &ip);
    let plan = plan(&ip, &observed);
    if matches!(plan.decision, Decision::Allocated { .. }) {
        users::claim(world, config, users::of_public_ip(&ip), draft);
    }
    draft.steps(world, config, &plan.steps);
    let mut status = status(&ip, &plan.decision, config.clock.now());
    if plan.decision != Decision::Gone {
        let generation = ip.metadata.generation.unwrap_or_default();
        write_conflict(&mut status, observed.conflict.as_ref(), generation, config.clock.now());
    }
    draft.status(ip.as_ref(), status);
    plan.outcome
}

fn observe(world: &World, ip: &PublicIP) -> Observed {
    let pool = world.ip_pools.cluster(ip.spec.pool.as_str());
    let mine = ip.status.as_ref().and_then(|s| s.address.as_ref()).and_then(|a| a.parse().ok());
    // What leads to a guest is its, also while its VM is not known to be there.
    let held = if mine.is_none() { world.claims.public_addresses() } else { BTreeSet::new() };
    let is_free = |address: Ipv4Addr| is_free(world, ip, address) && !held.contains(&address);
    let address = match (mine, pool) {
        (Some(mine), _) => Ok(mine),
        (None, Some(pool)) => pick(pool, ip.spec.address.as_deref(), is_free),
        (None, None) => Err((Reason::WaitingForPool, format!("IPPool {} does not exist", ip.spec.pool))),
    };
    let user = user(world, ip);
    let host = user.as_ref().and_then(|(_, host)| host.clone());
    let conflict = host.zip(address.as_ref().ok()).and_then(|(host, address)| {
        let address = address.to_string();
        let status = world.hosts.cluster(&host)?.status.as_ref()?;
        let found = status.address_conflicts.iter().find(|conflict| conflict.address == address)?;
        Some(Conflict { mac: found.mac.clone(), host })
    });
    let unknown = if mine.is_none() { world.why_not_place() } else { None };
    Observed { address, mode: pool.map(|pool| pool.spec.mode), user, conflict, unknown }
}

/// Whether nobody else has the address by what the control plane says.
fn is_free(world: &World, ip: &PublicIP, address: Ipv4Addr) -> bool {
    let free = world.index.public_ip_with(address).is_none_or(|holder| *holder == Key::of(ip));
    // A host whose own address led to a VM would be cut off.
    free && world.underlay.host_with(address).is_none()
}

/// Gives a PublicIP that has lost its status the address by which guests are reached through it.
pub(super) fn give_back(world: &World, config: &Config, key: &Key, address: Ipv4Addr, draft: &mut Draft) {
    let Some(ip) = world.public_ips.get(key) else { return };
    let had = ip.status.as_ref().is_some_and(|s| s.address.is_some());
    let other = ip.spec.address.as_ref().is_some_and(|wanted| wanted.parse() != Ok(address));
    if had || other || ip.metadata.deletion_timestamp.is_some() || !is_free(world, ip, address) {
        return;
    }
    draft.steps(world, config, &[Step::AddFinalizer(key.clone(), ADDRESS_FINALIZER)]);
    let mut status = ip.status.clone().unwrap_or_default();
    status.address = Some(address.to_string());
    status.mode = world.ip_pools.cluster(ip.spec.pool.as_str()).map(|pool| pool.spec.mode);
    draft.status(ip.as_ref(), status);
    draft.touch(key.clone());
}

fn pick(
    pool: &IPPool,
    wanted: Option<&str>,
    is_free: impl Fn(Ipv4Addr) -> bool,
) -> Result<Ipv4Addr, (Reason, String)> {
    let name = pool.name_any();
    let ranges: Vec<Ipv4Net> = pool.spec.cidrs.iter().filter_map(|c| c.parse().ok()).collect();
    let Some(wanted) = wanted else {
        let mut all =
            ranges.iter().flat_map(|range| u32::from(range.network())..=u32::from(range.broadcast()));
        let free = all.find(|a| is_free(Ipv4Addr::from(*a))).map(Ipv4Addr::from);
        let none = || {
            format!(
                "no address of IPPool {name} ({}) is free: delete a PublicIP or add a range",
                pool.spec.cidrs.join(", ")
            )
        };
        return free.ok_or_else(|| (Reason::NoFreeAddress, none()));
    };
    let unavailable =
        |why: &str| (Reason::AddressUnavailable, format!("address {wanted} {why} IPPool {name}"));
    let address: Ipv4Addr = wanted.parse().map_err(|_| unavailable("is no IPv4 address of"))?;
    if !ranges.iter().any(|range| range.contains(&address)) {
        return Err(unavailable("is not in"));
    }
    if is_free(address) { Ok(address) } else { Err(unavailable("is taken in")) }
}

/// Says that somebody else has the address, while somebody does: it is kept, and leads nowhere.
fn write_conflict(status: &mut PublicIPStatus, conflict: Option<&Conflict>, generation: i64, now: Timestamp) {
    let kind = ConditionType::AddressConflict;
    let Some(Conflict { host, mac }) = conflict else {
        return condition::remove(&mut status.conditions, kind);
    };
    let text = format!(
        "{mac} answers for {} on the segment of host {host}, so that the address is not taken there; it is asked for again \
         every few seconds: take it away from that machine, or out of its IPPool's ranges",
        status.address.as_deref().unwrap_or_default()
    );
    let reason = Reason::AddressConflict;
    Readiness::Reconciling(reason, text.clone()).write(&mut status.conditions, generation, now);
    condition::set_bool(&mut status.conditions, kind, true, reason, &text, generation, now);
}

/// The VM that has the address: the one that already had it while it still names it, else the first by age.
fn user(world: &World, ip: &PublicIP) -> Option<(ObjectUse, Option<String>)> {
    let vms: Vec<_> = world
        .index
        .vms_with_public_ip(&Key::of(ip))
        .iter()
        .filter_map(|key| world.vms.get(key))
        .cloned()
        .collect();
    let current = ip.status.as_ref().and_then(|s| s.used_by.first()).map(|u| u.vm_uid.clone());
    let holds = |vm: &&Arc<berth_api::VM>| vm.uid() == current && current.is_some();
    let vm =
        vms.iter().find(holds).or_else(|| vms.iter().min_by_key(|vm| (vm.creation_timestamp(), vm.uid())))?;
    let usage = ObjectUse {
        use_kind: UseKind::Address,
        vm: vm.name_any(),
        vm_uid: vm.uid().unwrap_or_default(),
        attachment: None,
    };
    Some((usage, vm.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| b.host.clone())))
}

fn plan(ip: &PublicIP, observed: &Observed) -> Plan<Decision> {
    let key = Key::of(ip);
    let has_address = ip.status.as_ref().is_some_and(|s| s.address.is_some());
    let terminating = ip.metadata.deletion_timestamp.is_some();
    if terminating && (observed.user.is_none() || !has_address) {
        let steps = vec![Step::RemoveFinalizer(key, ADDRESS_FINALIZER)];
        return Plan { steps, decision: Decision::Gone, outcome: Outcome::Settled };
    }
    if let Some(unknown) = observed.unknown.as_ref().filter(|_| !terminating) {
        let readiness = Readiness::Reconciling(Reason::WaitingForInventory, unknown.text.clone());
        return Plan::blocked(Decision::Wait(readiness), vec![unknown.need.clone()]);
    }
    match &observed.address {
        Ok(address) => Plan {
            // An object that goes can get no new finalizer.
            steps: if terminating { Vec::new() } else { vec![Step::AddFinalizer(key, ADDRESS_FINALIZER)] },
            decision: Decision::Allocated {
                address: *address,
                mode: observed.mode,
                user: observed.user.clone(),
                terminating,
            },
            outcome: Outcome::Settled,
        },
        Err((reason, text)) => {
            let readiness = match reason {
                Reason::WaitingForPool => Readiness::Reconciling(*reason, text.clone()),
                _ => Readiness::Stalled(*reason, text.clone()),
            };
            let pool = Key::cluster(Kind::IPPool, ip.spec.pool.as_str());
            Plan::blocked(Decision::Wait(readiness), vec![Need::Object(pool), Need::Address])
        }
    }
}

fn status(ip: &PublicIP, decision: &Decision, now: Timestamp) -> PublicIPStatus {
    let mut status = ip.status.clone().unwrap_or_default();
    let generation = ip.metadata.generation.unwrap_or_default();
    match decision {
        Decision::Gone => return status,
        Decision::Wait(readiness) => {
            readiness.write(&mut status.conditions, generation, now);
            status.state = Some(if matches!(readiness, Readiness::Stalled(..)) {
                PublicIPState::Failed
            } else {
                PublicIPState::Pending
            });
        }
        Decision::Allocated { address, mode, user, terminating } => {
            status.address = Some(address.to_string());
            // Of a pool that is gone, what it said last holds.
            status.mode = mode.or(status.mode);
            status.used_by = user.iter().map(|(usage, _)| usage.clone()).collect();
            let host = user.as_ref().and_then(|(_, host)| host.clone());
            status.binding = host.map(|host| Binding { host, epoch: 1 });
            status.state = Some(match (terminating, user) {
                (true, _) => PublicIPState::Terminating,
                (false, Some(_)) => PublicIPState::InUse,
                (false, None) => PublicIPState::Allocated,
            });
            let readiness = match (terminating, user) {
                (true, Some((usage, _))) => Readiness::Reconciling(
                    Reason::Deleting,
                    format!("waits for VM {} to let go of it", usage.vm),
                ),
                _ => Readiness::Ready(Reason::Allocated, String::new()),
            };
            readiness.write(&mut status.conditions, generation, now);
        }
    }
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::IPPoolSpec;

    fn pool(cidrs: &[&str]) -> IPPool {
        let cidrs = cidrs.iter().map(|c| (*c).to_owned()).collect();
        IPPool::new("p", IPPoolSpec { cidrs, ..IPPoolSpec::default() })
    }

    #[test]
    fn an_address_that_another_machine_has_says_whose_it_is_until_it_is_not() {
        let mut status = PublicIPStatus { address: Some("192.0.2.8".into()), ..PublicIPStatus::default() };
        Readiness::Ready(Reason::Allocated, String::new()).write(
            &mut status.conditions,
            1,
            Timestamp::UNIX_EPOCH,
        );
        let conflict = Conflict { host: "h1".into(), mac: "52:54:00:66:66:66".into() };
        write_conflict(&mut status, Some(&conflict), 1, Timestamp::UNIX_EPOCH);
        let said = condition::find(&status.conditions, "AddressConflict").expect("said");
        assert!(
            said.message.starts_with("52:54:00:66:66:66 answers for 192.0.2.8 on the segment of host h1"),
            "{said:?}"
        );
        assert!(!condition::is_true(&status.conditions, ConditionType::Ready));
        write_conflict(&mut status, None, 1, Timestamp::UNIX_EPOCH);
        assert_eq!(condition::find(&status.conditions, "AddressConflict"), None);
    }

    #[test]
    fn the_lowest_free_address_of_all_ranges_is_taken() {
        let pool = pool(&["192.0.2.8/31", "198.51.100.7/32"]);
        let taken = ["192.0.2.8".parse::<Ipv4Addr>().expect("an address")];
        assert_eq!(pick(&pool, None, |a| !taken.contains(&a)), Ok("192.0.2.9".parse().expect("an address")));
        assert_eq!(
            pick(&pool, None, |a| a.octets()[0] != 192),
            Ok("198.51.100.7".parse().expect("an address"))
        );
    }

    #[test]
    fn an_empty_pool_and_a_taken_or_foreign_address_are_told_apart() {
        let pool = pool(&["192.0.2.8/31"]);
        assert_eq!(pick(&pool, None, |_| false).unwrap_err().0, Reason::NoFreeAddress);
        assert!(pick(&pool, Some("192.0.2.8"), |_| false).unwrap_err().1.contains("is taken"));
        assert!(pick(&pool, Some("192.0.2.10"), |_| true).unwrap_err().1.contains("is not in"));
        assert!(pick(&pool, Some("999.1.1.1"), |_| true).unwrap_err().1.contains("no IPv4 address"));
    }
}
