//! The status for a decision. Pure.

use berth_api::{
    Binding, ConditionType, ConditionUpdate, Readiness, Reason, VM, VMState, VMStatus, condition,
    placement_group::TopologyClaim,
    vm::{HostRefusal, InterfaceStatus},
};
use k8s_openapi::jiff::Timestamp;

use super::Decision;

/// Returns an epoch above every one that a host has seen of this VM and every spent one.
pub(super) fn next_epoch(status: &VMStatus, held: Option<i64>) -> i64 {
    status.refusal.as_ref().map_or(0, |r| r.epoch).max(held.unwrap_or(0)).saturating_add(1)
}

pub(super) fn status(vm: &VM, decision: &Decision, now: Timestamp) -> VMStatus {
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    let conditions = &mut status.conditions;
    match decision {
        Decision::NoChange => return status,
        Decision::Spend(TopologyClaim { host, epoch, .. }) => {
            let message = "it was to be bound there, and was not".to_owned();
            let refusal = HostRefusal { host: host.clone(), epoch: *epoch, message, time: None };
            status.refusal = Some(Box::new(refusal));
            return status;
        }
        Decision::Unknown(host) => {
            let text = format!("host {host} has not renewed its lease: what runs there is not known");
            Readiness::Unknown(Reason::HostSilent, text).write(conditions, generation, now);
            status.state = Some(VMState::Unknown);
            return status;
        }
        Decision::Interfaces(interfaces) => {
            status.private_address = private_address(interfaces);
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
                status.refusal = Some(Box::new(HostRefusal { host, epoch, message, time: Some(now) }));
            }
            status.admitted_epoch = None;
            // That of the host that has it no longer.
            status.operation = None;
            let (scheduled, reason) = (ConditionType::Scheduled, readiness.reason());
            condition::set(
                conditions,
                ConditionUpdate::new(scheduled, "False", reason, readiness.message()),
                generation,
                now,
            );
            readiness.write(conditions, generation, now);
            status.state = Some(VMState::Pending);
        }
        Decision::Wait(state, readiness) => {
            let scheduled = ConditionType::Scheduled;
            condition::set(
                conditions,
                ConditionUpdate::new(scheduled, "False", readiness.reason(), readiness.message()),
                generation,
                now,
            );
            readiness.write(conditions, generation, now);
            status.state = Some(*state);
        }
        Decision::Bind { host, instance_id, interfaces, cpu_baseline, held } => {
            let readiness = Readiness::bound_to(host);
            let (scheduled, reason) = (ConditionType::Scheduled, readiness.reason());
            condition::set(
                conditions,
                ConditionUpdate::new(scheduled, "True", reason, readiness.message()),
                generation,
                now,
            );
            readiness.write(conditions, generation, now);
            status.state = Some(VMState::Creating);
            let epoch = next_epoch(&status, *held);
            status.admitted_epoch = held.map(|_| epoch);
            status.binding = Some(Binding { host: host.clone(), epoch });
            status.instance_id = Some(instance_id.clone());
            status.cpu_baseline = cpu_baseline.map(str::to_owned);
            status.private_address = private_address(interfaces);
            status.interfaces.clone_from(interfaces);
        }
        Decision::RemoveCopies(host) => {
            let text = format!("host {host} removes the copies of its firmware variables and its TPM");
            Readiness::Reconciling(Reason::Deleting, text).write(conditions, generation, now);
            status.state = Some(VMState::Terminating);
            let epoch = next_epoch(&status, None);
            // There is nothing to admit: a deleted VM is not started.
            status.admitted_epoch = Some(epoch);
            status.binding = Some(Binding { host: host.clone(), epoch });
        }
    }
    status.observed_generation = generation;
    status
}

/// Returns the address of the first interface, if berth has given it one: that of IPv6 if it has no other.
fn private_address(interfaces: &[InterfaceStatus]) -> Option<String> {
    let first = interfaces.first()?;
    [&first.address, &first.ipv6_address].into_iter().find(|address| !address.is_empty()).cloned()
}
