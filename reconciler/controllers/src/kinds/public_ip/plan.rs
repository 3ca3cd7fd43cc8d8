//! The decision: a pure function of the object and the observed inputs.

use berth_api::{ADDRESS_FINALIZER, PublicIP, Readiness, Reason};

use crate::{
    key::{Key, ObjectKind},
    plan::{Dependency, Outcome, Plan, Step},
};

use super::{Decision, observe::Observed};

pub(super) fn plan(ip: &PublicIP, observed: &Observed) -> Plan<Decision> {
    let key = Key::of(ip);
    let has_address = ip.status.as_ref().is_some_and(|s| s.address.is_some());
    let terminating = ip.metadata.deletion_timestamp.is_some();
    if terminating && (observed.user.is_none() || !has_address) {
        let steps = vec![Step::RemoveFinalizer(key, ADDRESS_FINALIZER)];
        return Plan { steps, decision: Decision::Gone, outcome: Outcome::Settled };
    }
    if let Some(unknown) = observed.unknown.as_ref().filter(|_| !terminating) {
        let readiness = Readiness::Reconciling(Reason::WaitingForInventory, unknown.text.clone());
        return Plan::blocked(Decision::Wait(readiness), vec![unknown.dependency.clone()]);
    }
    match &observed.address {
        Ok(address) => Plan {
            // An object that is being deleted accepts no new finalizer.
            steps: if terminating { Vec::new() } else { vec![Step::AddFinalizer(key, ADDRESS_FINALIZER)] },
            decision: Decision::Allocated {
                address: *address,
                mode: observed.mode,
                user: observed.user.clone(),
                terminating,
                misnamed_by: observed.misnamed_by.clone(),
                balancing: observed.balancing.clone().map(Box::new),
            },
            outcome: match &observed.balancing {
                Some(balancing) => Outcome::Blocked(balancing.dependencies.clone()),
                None => Outcome::Settled,
            },
        },
        Err((reason, text)) => {
            let readiness = match reason {
                Reason::WaitingForPool | Reason::QuotaExceeded => {
                    Readiness::Reconciling(*reason, text.clone())
                }
                _ => Readiness::Stalled(*reason, text.clone()),
            };
            let pool = Key::cluster(ObjectKind::IPPool, ip.spec.pool.as_str());
            let quota = observed.over_quota.iter().map(|excess| excess.dependency.clone());
            let reserved = observed.has_reserved.then_some(Dependency::Hosts);
            let dependencies = [Dependency::Object(pool), Dependency::Address];
            let dependencies = dependencies.into_iter().chain(quota).chain(reserved);
            Plan::blocked(Decision::Wait(readiness), dependencies.collect())
        }
    }
}
