//! The status for a decision. Pure.

use berth_api::{
    Binding, ConditionType, ConditionUpdate, PublicIP, PublicIPState, PublicIPStatus, Readiness, Reason,
    condition,
};
use k8s_openapi::jiff::Timestamp;

use super::{Decision, observe::Conflict};

pub(super) fn status(
    ip: &PublicIP,
    decision: &Decision,
    conflict: Option<&Conflict>,
    now: Timestamp,
) -> PublicIPStatus {
    let mut status = ip.status.clone().unwrap_or_default();
    let generation = ip.metadata.generation.unwrap_or_default();
    match decision {
        Decision::Gone => return status,
        Decision::Wait(readiness) => {
            condition::remove(&mut status.conditions, ConditionType::AddressConflict);
            readiness.write(&mut status.conditions, generation, now);
            status.state = Some(if matches!(readiness, Readiness::Stalled(..)) {
                PublicIPState::Failed
            } else {
                PublicIPState::Pending
            });
        }
        Decision::Allocated { address, mode, user, terminating } => {
            status.address = Some(address.to_string());
            // If the pool is gone, its last known mode holds.
            status.mode = mode.or(status.mode);
            status.used_by = user.iter().map(|(usage, _)| usage.clone()).collect();
            let host = user.as_ref().and_then(|(_, host)| host.clone());
            status.binding = host.map(|host| Binding { host, epoch: 1 });
            status.state = Some(match (terminating, user) {
                (true, _) => PublicIPState::Terminating,
                (false, Some(_)) => PublicIPState::InUse,
                (false, None) => PublicIPState::Allocated,
            });
            let conflict = conflict.map(|conflict| conflict.text(*address));
            let kind = ConditionType::AddressConflict;
            match &conflict {
                None => condition::remove(&mut status.conditions, kind),
                Some(text) => {
                    let reason = Reason::AddressConflict;
                    condition::set(
                        &mut status.conditions,
                        ConditionUpdate::from_bool(kind, true, reason, text),
                        generation,
                        now,
                    );
                }
            }
            // Written once: a `Ready` in between would be a transition, and a write, each time.
            let readiness = match (conflict, terminating, user) {
                (Some(text), ..) => Readiness::Reconciling(Reason::AddressConflict, text),
                (None, true, Some((usage, _))) => Readiness::Reconciling(
                    Reason::InUse,
                    format!("deleted, and held until nothing uses it: used by VM {}", usage.vm),
                ),
                _ => Readiness::Ready(Reason::Allocated, String::new()),
            };
            readiness.write(&mut status.conditions, generation, now);
        }
    }
    status.observed_generation = generation;
    status
}
