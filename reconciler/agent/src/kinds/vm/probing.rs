//! The probes that a VM declares, and their results.

use berth_api::condition::is_true;
use berth_api::{ConditionType, VM};
use berth_host::ProcessFacts;

use super::Observed;
use super::observe::is_left_alone;
use super::status::process;
use crate::context::Context;
use crate::key::ObjectName;
use crate::probes::{GuestAddress, Outcome, ProbePlan};

/// Observes the probes of a VM. A machine whose monitor does not answer keeps those that it has.
pub(super) fn observe(ctx: &Context, vm: &VM, observed: &mut Observed) {
    let name = ObjectName::of(vm);
    let Some(running) = observed.process.clone() else {
        observed.probe_watch = (!ctx.probes.is_watching(&name, None)).then_some(None);
        return;
    };
    if observed.machine.is_none() {
        return;
    }
    let plan = wanted(vm, observed, &running);
    observed.probe_watch = (!ctx.probes.is_watching(&name, plan.as_ref())).then(|| plan.map(Box::new));
    observed.probes = ctx.probes.results(&name, &running.identity, vm.spec.liveness_probe.as_deref());
    // A guest that was ready stays so until its probe says otherwise, also when the agent was restarted.
    if observed.probes.readiness.is_none() && was_ready(vm, observed) {
        observed.probes.readiness = Some(Outcome::Success);
    }
}

/// Returns the probes of a guest that runs and is to run on.
fn wanted(vm: &VM, observed: &Observed, running: &ProcessFacts) -> Option<ProbePlan> {
    let (readiness, liveness) = (vm.spec.readiness_probe.clone(), vm.spec.liveness_probe.clone());
    if (readiness.is_none() && liveness.is_none()) || !is_left_alone(vm, observed) {
        return None;
    }
    let process = running.identity.clone();
    Some(ProbePlan { process, address: GuestAddress::of(vm, &observed.accesses), readiness, liveness })
}

/// Whether this process of the VM was ready when its status was last written.
fn was_ready(vm: &VM, observed: &Observed) -> bool {
    let is_same =
        |stored: &berth_api::VMStatus| stored.process.is_some() && stored.process == process(observed);
    vm.status
        .as_ref()
        .is_some_and(|stored| is_same(stored) && is_true(&stored.conditions, ConditionType::Ready))
}
