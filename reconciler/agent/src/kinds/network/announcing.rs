//! Public addresses → the interface of this host that they are announced on. Pure.

use std::net::IpAddr;

use berth_api::{IPPoolMode, Reason};
use berth_host::Uplink;
use ipnet::Ipv6Net;

use crate::networking::RefusedAddress;

/// Refuses an address that another machine answers for: two that answer for it would cut each other off.
pub(super) fn occupied(public: IpAddr, mac: &str) -> RefusedAddress {
    let text = format!(
        "{public} is answered for by {mac} on the segment: it is not taken, and asked for again every few seconds; take it \
         away from that machine, or out of its IPPool's ranges"
    );
    RefusedAddress { reason: Reason::AddressConflict, text, mac: Some(mac.to_owned()) }
}

/// Returns the interface a public address is announced on, if it is, or why it cannot be used by a VM here.
pub(super) fn announced_on(
    public: IpAddr,
    mode: IPPoolMode,
    uplink: Option<&Uplink>,
) -> Result<Option<String>, RefusedAddress> {
    let Some(uplink) = uplink else { return Ok(None) };
    if uplink.own.contains(&public) {
        let text = format!(
            "{public} is this host's own address, so that it leads to no VM: take it out of its IPPool's ranges"
        );
        return Err(RefusedAddress { reason: Reason::HostAddress, text, mac: None });
    }
    let cannot = |why: &String| RefusedAddress {
        reason: Reason::NoPublicInterface,
        text: format!("{public} is not announced: {why}"),
        mac: None,
    };
    match (mode, &uplink.interface) {
        (IPPoolMode::Local, _) => Ok(None),
        (IPPoolMode::L2, Ok(interface)) => match uplink.ipv6_obstacle.as_ref().filter(|_| public.is_ipv6()) {
            Some(why) => Err(cannot(why)),
            None => Ok(Some(interface.clone())),
        },
        (IPPoolMode::L2, Err(why)) => Err(cannot(why)),
    }
}

/// Returns why a public prefix cannot be routed to a VM here: an address of this host is in it, or its pool announces its addresses.
pub(super) fn unroutable(
    prefix: Ipv6Net,
    mode: IPPoolMode,
    uplink: Option<&Uplink>,
) -> Option<RefusedAddress> {
    if mode == IPPoolMode::L2 {
        let text = format!(
            "{prefix} cannot be announced: hosts answer for single addresses of an IPPool with the mode l2 only; use a PublicIP of an \
             IPPool with the mode local"
        );
        return Some(RefusedAddress { reason: Reason::NotSupported, text, mac: None });
    }
    let is_within = |own: &&IpAddr| matches!(own, IpAddr::V6(own) if prefix.contains(own));
    let own = uplink?.own.iter().find(is_within)?;
    let text = format!(
        "{prefix} has this host's own address {own}, so that it leads to no VM: take it out of its IPPool's ranges"
    );
    Some(RefusedAddress { reason: Reason::HostAddress, text, mac: None })
}
