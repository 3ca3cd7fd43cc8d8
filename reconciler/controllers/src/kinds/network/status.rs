//! The status for a decision. Pure.

use std::collections::BTreeSet;

use berth_api::network::{MOST_NAMES, MOST_RELAYS};
use berth_api::{
    ConditionType, ConditionUpdate, Network, NetworkName, NetworkStatus, Readiness, Reason, condition,
};
use k8s_openapi::jiff::Timestamp;

use super::observe::Observed;
use crate::cache::underlay::{TUNNEL_BYTES, WIREGUARD_BYTES};

/// Returns the names that the status lists. If there are too many, those that are listed already stay: a new VM does not take the name of
/// another one away.
fn listed_names(before: &[NetworkName], names: &[NetworkName]) -> Vec<NetworkName> {
    if names.len() <= MOST_NAMES {
        return names.to_vec();
    }
    let before: BTreeSet<&str> = before.iter().map(|listed| listed.name.as_str()).collect();
    let (kept, others): (Vec<_>, Vec<_>) =
        names.iter().partition(|listed| before.contains(listed.name.as_str()));
    let mut listed: Vec<NetworkName> = kept.into_iter().chain(others).take(MOST_NAMES).cloned().collect();
    listed.sort();
    listed
}

/// The MTU announced to guests unless another is declared or needed.
pub(super) const DEFAULT_MTU: i64 = 1500;

/// Returns the MTU announced to guests, and whether it is the declared one.
pub(super) fn effective_mtu(declared: Option<i64>, fits: Option<i64>) -> (i64, bool) {
    let wanted = declared.unwrap_or(DEFAULT_MTU);
    match fits {
        Some(fits) if fits < wanted => (fits, declared.is_none()),
        _ => (wanted, true),
    }
}

pub(super) fn status(
    network: &Network,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> NetworkStatus {
    let mut status = network.status.clone().unwrap_or_default();
    let generation = network.metadata.generation.unwrap_or_default();
    readiness.write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    if observed.rejection.is_none() {
        status.vni = status.vni.or(observed.vni.map(i64::from));
        if let Some(prefix) = observed.prefix {
            status.ipv6_cidr = prefix.to_string();
        }
    }
    let (mtu, as_declared) = effective_mtu(network.spec.mtu, observed.fits);
    status.mtu = Some(mtu);
    if as_declared {
        condition::remove(&mut status.conditions, ConditionType::MTUFits);
    } else {
        let added = TUNNEL_BYTES + if network.is_encrypted() { WIREGUARD_BYTES } else { 0 };
        let text = format!(
            "{} bytes are declared and {mtu} fit through the tunnels between hosts, so guests use {mtu}: raise the \
             MTU of the hosts' interfaces to {} at least (Host status.mtu), or declare at most {mtu}",
            network.spec.mtu.unwrap_or(DEFAULT_MTU),
            network.spec.mtu.unwrap_or(DEFAULT_MTU) + added,
        );
        let reason = Reason::MTUTooLarge;
        condition::set(
            &mut status.conditions,
            ConditionUpdate::from_bool(ConditionType::MTUFits, false, reason, &text),
            generation,
            now,
        );
    }
    write_unencrypted(&mut status, &observed.unencrypted, generation, now);
    status.hosts.clone_from(&observed.hosts);
    status.hosts.sort();
    status.names = listed_names(&status.names, &observed.names);
    status.relay_addresses = observed.relays.iter().take(MOST_RELAYS).map(ToString::to_string).collect();
    status
}

/// The number of hosts that a message names.
const NAMED_HOSTS: usize = 8;

/// Sets the `TunnelsEncrypted` condition while hosts with VMs of the network cannot encrypt.
fn write_unencrypted(status: &mut NetworkStatus, hosts: &[String], generation: i64, now: Timestamp) {
    let kind = ConditionType::TunnelsEncrypted;
    if hosts.is_empty() {
        return condition::remove(&mut status.conditions, kind);
    }
    let named: Vec<&str> = hosts.iter().take(NAMED_HOSTS).map(String::as_str).collect();
    let more = match hosts.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "its VMs on {}{more} do not reach those on other hosts, as these hosts cannot encrypt, or have the key of another host: see status.wireguard of the Hosts",
        named.join(", ")
    );
    let update = ConditionUpdate::from_bool(kind, false, Reason::NotSupported, &text);
    condition::set(&mut status.conditions, update, generation, now);
}
