//! Settings of bridges and their ports in messages about links. Pure.

use rtnetlink::packet_route::link::{InfoBridge, InfoBridgePort, InfoData, InfoPortData, LinkInfo};

/// Whether frames may leave by the port they came in on.
pub(super) fn hairpin(info: &LinkInfo) -> bool {
    let LinkInfo::PortData(InfoPortData::BridgePort(port)) = info else { return false };
    port.iter().any(|attribute| matches!(attribute, InfoBridgePort::HairpinMode(true)))
}

/// Whether packets between the bridge's ports pass the rules for routed packets.
pub(super) fn tracked(info: &LinkInfo) -> bool {
    let LinkInfo::Data(InfoData::Bridge(bridge)) = info else { return false };
    let is_on = |of: fn(&InfoBridge) -> bool| bridge.iter().any(of);
    is_on(|info| matches!(info, InfoBridge::NfCallIpTables(true)))
        && is_on(|info| matches!(info, InfoBridge::NfCallIp6Tables(true)))
}

/// Whether the bridge's ports are in certain VLANs only.
pub(super) fn filters_vlans(info: &LinkInfo) -> bool {
    let LinkInfo::Data(InfoData::Bridge(bridge)) = info else { return false };
    bridge.iter().any(|info| matches!(info, InfoBridge::VlanFiltering(true)))
}
