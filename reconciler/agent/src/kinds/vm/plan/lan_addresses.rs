//! The addresses that berth gives out on bridged networks, of which other machines of these networks do not know. Pure.

use berth_api::vm::InterfaceStatus;

use super::super::{LanAddress, Observed, Step};

/// Returns the step that asks the networks of these interfaces for their addresses, if berth has given out any.
pub(super) fn probe<'a>(
    observed: &Observed,
    interfaces: impl Iterator<Item = &'a InterfaceStatus>,
) -> Option<Step> {
    let addresses: Vec<LanAddress> =
        interfaces.filter_map(|interface| lan_address(observed, interface)).collect();
    (!addresses.is_empty()).then_some(Step::ProbeAddresses(addresses))
}

fn lan_address(observed: &Observed, interface: &InterfaceStatus) -> Option<LanAddress> {
    observed.lans.get(&interface.network).filter(|lan| !lan.is_external())?;
    Some(LanAddress {
        interface: interface.name.clone(),
        address: interface.address.parse().ok()?,
        mac: interface.mac_address.to_ascii_lowercase(),
        bridge: observed.accesses.get(&interface.network)?.clone(),
    })
}
