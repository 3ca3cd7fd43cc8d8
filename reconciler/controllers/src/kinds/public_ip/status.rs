//! The status for a decision. Pure.

use berth_api::{
    Binding, ConditionType, ConditionUpdate, PublicIP, PublicIPState, PublicIPStatus, Readiness, Reason,
    condition, public_ip::PortStatus,
};
use k8s_openapi::jiff::Timestamp;

use super::{Decision, balancing::Balancing, observe::Conflict};

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
            condition::remove(&mut status.conditions, ConditionType::TargetsAvailable);
            readiness.write(&mut status.conditions, generation, now);
            status.state = Some(if matches!(readiness, Readiness::Stalled(..)) {
                PublicIPState::Failed
            } else {
                PublicIPState::Pending
            });
        }
        Decision::Allocated { address, mode, user, terminating, misnamed_by, balancing } => {
            status.address = Some(address.to_string());
            let prefix = ip.spec.range_at(*address).filter(|_| ip.spec.prefix_length.is_some());
            status.prefix = prefix.map(|prefix| prefix.to_string());
            // If the pool is gone, its last known mode holds.
            status.mode = mode.or(status.mode);
            status.used_by = user.iter().map(|(usage, _)| usage.clone()).collect();
            let host = match balancing {
                Some(balancing) => balancing.host.clone(),
                None => user.as_ref().and_then(|(_, host)| host.clone()),
            };
            let is_available = write_ports(&mut status, balancing.as_deref(), generation, now);
            status.binding = host.map(|host| Binding { host, epoch: 1 });
            status.state = Some(match (terminating, user.is_some() || is_available) {
                (true, _) => PublicIPState::Terminating,
                (false, true) => PublicIPState::InUse,
                (false, false) => PublicIPState::Allocated,
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
                _ => of_ports(misnamed_by.as_deref(), balancing.as_deref()),
            };
            readiness.write(&mut status.conditions, generation, now);
        }
    }
    status.observed_generation = generation;
    status
}

/// Returns the readiness of an allocated address: whether its ports can be used as declared.
fn of_ports(misnamed_by: Option<&str>, balancing: Option<&Balancing>) -> Readiness {
    if let Some(vm) = misnamed_by {
        let text = format!(
            "it has ports, so that it cannot be the whole address of VM {vm}, whose network interface names it: take publicIP or publicIPv6 out of \
             the VM, or ports out of the PublicIP"
        );
        return Readiness::Stalled(Reason::InvalidSpec, text);
    }
    match balancing.and_then(|balancing| balancing.port_shortage.as_ref()) {
        Some(text) => Readiness::Stalled(Reason::NoFreePort, text.clone()),
        None => Readiness::Ready(Reason::Allocated, String::new()),
    }
}

/// Writes the state of the ports; returns whether one of them has an available target.
fn write_ports(
    status: &mut PublicIPStatus,
    balancing: Option<&Balancing>,
    generation: i64,
    now: Timestamp,
) -> bool {
    let kind = ConditionType::TargetsAvailable;
    let Some(balancing) = balancing else {
        status.ports.clear();
        status.targets.clear();
        status.forwarding_addresses.clear();
        condition::remove(&mut status.conditions, kind);
        return false;
    };
    status.ports.clone_from(&balancing.ports);
    status.targets.clone_from(&balancing.targets);
    status.forwarding_addresses.clone_from(&balancing.forwarding_addresses);
    let text = |port: &PortStatus| {
        let PortStatus { name, port, protocol, available, total, message } = port;
        let port = port.map_or_else(|| "without a number".to_owned(), |port| port.to_string());
        let counts = format!(
            "port {name} ({protocol} {port}): {available} of {total} targets",
            protocol = protocol.as_str()
        );
        if message.is_empty() { counts } else { format!("{counts}: {message}") }
    };
    let lacking = balancing.ports.iter().filter(|port| port.available < port.total).map(text);
    let lacking: Vec<String> = lacking.chain(balancing.lost_clients.clone()).collect();
    let is_served = balancing.ports.iter().all(|port| port.available > 0);
    let reason = if is_served { Reason::Available } else { Reason::NoAvailableTarget };
    let text = lacking.join("; ");
    let update = ConditionUpdate::from_bool(kind, is_served, reason, &text);
    condition::set(&mut status.conditions, update, generation, now);
    balancing.ports.iter().any(|port| port.available > 0)
}
