//! The addresses that berth gives out on bridged networks, of which other machines of these networks do not know. Pure.

use std::net::IpAddr;

use berth_api::vm::InterfaceStatus;

use super::super::{LanAddress, Observed, Step};

/// Returns the step that asks the networks of these interfaces for their addresses, if berth has given out any.
pub(super) fn probe<'a>(
    observed: &Observed,
    interfaces: impl Iterator<Item = &'a InterfaceStatus>,
) -> Option<Step> {
    let addresses: Vec<LanAddress> =
        interfaces.flat_map(|interface| lan_addresses(observed, interface)).collect();
    (!addresses.is_empty()).then_some(Step::ProbeAddresses(addresses))
}

/// Returns the addresses of an interface on a bridged network that berth has given out.
fn lan_addresses(observed: &Observed, interface: &InterfaceStatus) -> Vec<LanAddress> {
    let (lan, bridge) = (observed.lans.get(&interface.network), observed.accesses.get(&interface.network));
    let Some((lan, bridge)) = lan.zip(bridge) else { return Vec::new() };
    let given = [(lan.is_ipv4_static(), &interface.address), (lan.is_ipv6_static(), &interface.ipv6_address)];
    let of_interface =
        |address: IpAddr| LanAddress { interface: interface.name.clone(), address, bridge: bridge.clone() };
    let addresses = given.into_iter().filter(|(is_static, _)| *is_static);
    addresses.filter_map(|(_, text)| Some(of_interface(text.parse().ok()?))).collect()
}
