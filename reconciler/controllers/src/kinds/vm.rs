//! The VM controller: decides a VM's host, disks, addresses and identity in one decision. After that the host's
//! agent owns the VM.

mod addresses;
mod labels;
mod moves;
mod observe;
mod place;
mod plan;
mod status;
mod stop_snapshots;
mod templates;
#[cfg(test)]
mod tests;

use berth_api::{
    HOST_FINALIZER, Readiness, SYSTEM_NAMESPACE, VM, VMState, VMStatus,
    console::{COPY_ACCOUNT, VM_ACCOUNTS},
    placement_group::TopologyClaim,
    vm::InterfaceStatus,
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    batch::{Write, WriteBatch},
    cache::{Cache, users},
    config::Config,
    key::{Key, ObjectKind},
    kinds::network::default_network,
    kinds::{fenced, public_ip, rebind, role, ticket_accounts},
    plan::{Dependency, Outcome, Plan, Step},
    topology,
};

use observe::{Observed, REFUSAL_COUNTS, observe, with_claimed_interfaces};
use plan::plan;
use status::{next_epoch, status};

/// The decision about the VM's status.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// The status is left as it is: the agent owns the VM, or the VM is being deleted.
    NoChange,
    /// Not bound, for this reason.
    Wait(VMState, Readiness),
    /// Bound.
    Bind {
        host: String,
        instance_id: String,
        interfaces: Vec<InterfaceStatus>,
        /// The level of x86-64 that the hosts have in common.
        cpu_baseline: Option<&'static str>,
        /// The host already holds the VM and has seen it under this epoch: the VM was admitted there.
        held: Option<i64>,
    },
    /// Deleted, and bound to this host only for the removal of the copies of its firmware state.
    RemoveCopies(String),
    /// Not bound, and never to be bound under this epoch: a claim was made under it, and this decision does not
    /// bind the VM with that claim.
    Spend(TopologyClaim),
    /// Its host is silent.
    Unknown(String),
    /// Its host has not admitted it and will not: it is placed again.
    Unbind(Readiness),
    /// Bound, and its spec has other interfaces than at bind time.
    Interfaces(Vec<InterfaceStatus>),
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(vm) = cache.tables.vms.get(key).cloned() else {
        stop_snapshots::writes_without_vm(cache, key).into_iter().for_each(|write| batch.write(write));
        return Outcome::Settled;
    };
    // A VM that was never admitted on a host is not lost with that host.
    let admitted = vm.status.as_ref().is_some_and(VMStatus::is_admitted);
    if admitted
        && let Some(outcome) =
            rebind::vm(cache, config, &vm, batch).or_else(|| fenced::vm(cache, config, &vm, batch))
    {
        return outcome;
    }
    let vm = with_claimed_interfaces(cache, vm);
    let mut observed = observe(cache, &vm, config);
    if observed.host_silent
        && let Some(status) =
            vm.status.as_ref().filter(|s| s.state != Some(VMState::Unknown) || !s.is_admitted())
        && let Some(binding) = &status.binding
        && !cache.is_silence_confirmed(&binding.host, Instant::now())
    {
        batch.write(Write::ReadLease(binding.host.clone()));
        batch.enqueue(key.clone());
        return Outcome::Settled;
    }
    if default_network::is_missing(cache, &vm)
        && let Some(network) = default_network::of_namespace(cache, config, key.namespace())
    {
        batch.write(Write::CreateNetwork(Box::new(network)));
        batch.enqueue(key.clone());
        return Outcome::Settled;
    }
    let mut disks = templates::writes(cache, &vm);
    let over_quota = templates::keep_within_quota(cache, key, &mut disks);
    observed.over_quota = observed.over_quota.or_else(|| over_quota.clone());
    let is_overdue = templates::is_overdue(&vm, &disks, config.clock.now());
    if !disks.is_empty() && !is_overdue {
        disks.into_iter().for_each(|write| batch.write(write));
        batch.enqueue(key.clone());
        return Outcome::Settled;
    }
    let plan = plan(&vm, &observed, &cache.index.capacity);
    let claim = claim_for(cache, &vm, &observed, &plan.decision);
    let plan = match claim_to_spend(&observed, &plan.decision, claim.as_ref()) {
        Some(spent) => {
            // The VM is reconciled again after this write.
            batch.enqueue(key.clone());
            observed.open_claims.iter().for_each(|(group, _)| batch.enqueue(group.clone()));
            Plan::settled(Decision::Spend(spent))
        }
        None => plan,
    };
    if let Decision::Bind { host, .. } = &plan.decision {
        // Written before the host knows of the VM, so that it never looks for the VM's Secret in vain.
        role::grant(cache, host, &vm, batch);
    }
    if matches!(plan.decision, Decision::Bind { .. } | Decision::Interfaces(_)) {
        batch.hold(cache, users::of_vm(&vm));
    }
    if let (Decision::Bind { .. }, Some(claim), Some(group)) = (&plan.decision, claim, &observed.group) {
        batch.group_status(group, |status| {
            let same = |c: &TopologyClaim| {
                (&c.value, &c.vm_uid, c.epoch) == (&claim.value, &claim.vm_uid, claim.epoch)
            };
            status.claims.retain(|c| !same(c));
            status.claims.push(claim);
            status.claims.sort();
        });
    }
    if let (Decision::Bind { .. }, Some(claim)) = (&plan.decision, &observed.claim) {
        // Done while the claim is known: the host reports it only until the VM is bound there.
        for name in vm.spec.network_interfaces.iter().flat_map(|i| i.public_ips()) {
            let Some(range) = claim.public.get(name.as_str()) else { continue };
            let key = Key::namespaced(ObjectKind::PublicIP, key.namespace(), name.as_str());
            public_ip::restore_address(cache, config, &key, *range, batch);
        }
    }
    let is_bound = vm.status.as_ref().is_some_and(|s| s.binding.is_some());
    let stays_bound = is_bound && vm.metadata.deletion_timestamp.is_none();
    if stays_bound {
        // Restores the finalizer after `kubectl replace` removed it: without it a deletion would not wait for the
        // host.
        batch.steps(cache, config.clock.now(), &[Step::AddFinalizer(key.clone(), HOST_FINALIZER)]);
    }
    batch.steps(cache, config.clock.now(), &plan.steps);
    let now = config.clock.now();
    let decided = status(&vm, &plan.decision, now);
    let outcome = waiting(&observed, plan.outcome, now);
    let (decided, outcome) = with_move(cache, config, &vm, &observed, (decided, outcome));
    if decided.live_move().is_some() {
        ticket_accounts::ensure(cache, SYSTEM_NAMESPACE, &[COPY_ACCOUNT], batch);
    }
    batch.status(vm.as_ref(), with_public_ports(cache, &vm, decided));
    if stays_bound {
        ticket_accounts::ensure(cache, key.namespace(), &VM_ACCOUNTS, batch);
    }
    stop_snapshots::writes(cache, &vm).into_iter().for_each(|write| batch.write(write));
    // The last ones, after the status, which names the missing Disk: they may be refused, and a refused write ends the batch.
    disks.into_iter().for_each(|write| batch.write(write));
    templates::metadata_writes(cache, &vm).into_iter().for_each(|write| batch.write(write));
    match over_quota {
        Some(excess) => outcome.and(excess.dependency),
        None => outcome,
    }
}

/// Returns the status of a VM with whether it moves to another host, and its outcome.
fn with_move(
    cache: &Cache,
    config: &Config,
    vm: &VM,
    observed: &Observed,
    (status, outcome): (VMStatus, Outcome),
) -> (VMStatus, Outcome) {
    // The status of a VM that is being deleted is its host's alone.
    if status.binding.is_none() || observed.host_silent || vm.metadata.deletion_timestamp.is_some() {
        return (status, outcome);
    }
    let now = config.clock.now();
    let decided = moves::decide(cache, config, vm);
    let live = match &decided {
        Some(Ok(())) => moves::decide_live(cache, config, vm),
        _ => None,
    };
    let status = moves::write(vm, decided.as_ref(), live, status, now);
    match decided {
        Some(_) => (status, outcome.and(Dependency::Time(moves::looked_at_again(now)))),
        None => (status, outcome),
    }
}

/// Returns the outcome of a VM that waits for a host: the one that has just refused it, or that it has left, may be chosen again later.
fn waiting(observed: &Observed, outcome: Outcome, now: Timestamp) -> Outcome {
    let again = now.checked_add(REFUSAL_COUNTS).unwrap_or(now);
    match (&observed.refused_by, &outcome) {
        (Some(_), Outcome::Blocked(_)) => outcome.and(Dependency::Time(again)),
        _ => outcome,
    }
}

/// Returns the status with the ports of public addresses that lead to the VM: in the same write as the decision, if there is one.
fn with_public_ports(cache: &Cache, vm: &VM, status: VMStatus) -> VMStatus {
    // The status of a VM that is being deleted is its host's alone.
    if vm.metadata.deletion_timestamp.is_some() {
        return status;
    }
    VMStatus { public_ports: cache.index.public_ports.of(&Key::of(vm)), ..status }
}

/// Returns the claim under which a VM bound by this decision is admitted, if its group requires one.
fn claim_for(cache: &Cache, vm: &VM, observed: &Observed, decision: &Decision) -> Option<TopologyClaim> {
    let Decision::Bind { host, held, .. } = decision else { return None };
    let group = observed.group.as_ref().filter(|group| group.is_claimed())?;
    topology::of(cache, group, vm, host, next_epoch(&vm.status.clone().unwrap_or_default(), *held))
}

/// Returns the claim to spend first: one that could admit the VM at a place other than the one it is bound to.
fn claim_to_spend(
    observed: &Observed,
    decision: &Decision,
    claim: Option<&TopologyClaim>,
) -> Option<TopologyClaim> {
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
