//! The IPv6 side of a Network.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::Ipv6Net;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Allocation, Egress, Network};
use crate::ResourceName;

/// How VMs on a bridge of hosts get their IPv6 addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6Spec {
    /// `Static` (default): berth gives each interface an address of `ipv6CIDR`, and the guest gets it by its cloud-init network
    /// configuration. `External`: the guest gets addresses, routes and name servers from the network's own routers, by router
    /// advertisements and DHCPv6; the VM's status has its addresses once the guest uses them. Cannot change.
    #[serde(default)]
    pub allocation: Allocation,
    /// The address of the network's router, which guests use as default gateway and no VM gets: an address of `ipv6CIDR`, or a
    /// link-local one such as `fe80::1`. Left out: guests have no default route of IPv6 by this network. A change reaches guests that
    /// are created afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 39), regex(pattern = r"^[0-9a-f:]*$"))]
    #[x_kube(validation = Rule::new("isIP(self) && ip(self).family() == 6 && ip.isCanonical(self)").message("must be an IPv6 address in its shortest form, such as fe80::1"))]
    pub gateway: Option<String>,
    /// The addresses that berth gives out, first and last, for example `2001:db8:7::1000-2001:db8:7::1fff`. No other machine of the
    /// network and no DHCP server may use them. Default: those of `ipv6CIDR` with the numbers of the VMs' IPv4 addresses and others
    /// beside them, without the gateway's, `::1` of the prefix and those of hosts. A change affects interfaces that get an address afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 79), regex(pattern = r"^[0-9a-f:]+-[0-9a-f:]+$"))]
    pub range: Option<String>,
    /// In an `Overlay`, in place of `ipv6CIDR`: the IPPool from whose `networkPrefixes` the network takes a /64, which is in
    /// `status.ipv6CIDR`. No other Network has it until this one is deleted. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<ResourceName>,
    /// With `allocation` `Static`: whether each host also gives its own VMs their addresses by DHCPv6, for guests without cloud-init. The
    /// host sends these guests router advertisements too, and no machine of the network: they name `gateway`, if it is a link-local
    /// address. Machines that are not VMs of the host get no answer, and requests of its VMs reach no other DHCPv6 server. Default: false.
    /// A change reaches running guests when they ask next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<bool>,
    /// With `allocation` `External`: the IPv6 addresses that a guest may send from. `None` (default): any. `Learned`: the link-local one
    /// of its MAC address, and those that its host has learned from its neighbour discovery. The first guest that uses an address has it,
    /// unless another machine of the network answers for it; at most 16 an interface. A change reaches running guests at once: their
    /// host learns the addresses within seconds of their use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_check: Option<Ipv6SourceCheck>,
}

/// The IPv6 addresses that guests may send from where others give them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Ipv6SourceCheck {
    #[default]
    None,
    Learned,
}

impl Network {
    /// Its IPv6 prefix, if it has one that berth gives out addresses of.
    pub fn ipv6_prefix(&self) -> Option<Ipv6Net> {
        let text = match self.prefix_pool() {
            Some(_) => self.status.as_ref()?.ipv6_cidr.as_str(),
            None => self.spec.ipv6_cidr.as_str(),
        };
        let prefix: Ipv6Net = text.parse().ok()?;
        (prefix.prefix_len() == 64).then_some(prefix)
    }

    /// The IPPool that it takes its IPv6 prefix from.
    pub fn prefix_pool(&self) -> Option<&ResourceName> {
        self.spec.ipv6.as_ref()?.pool.as_ref().filter(|_| self.host_bridge().is_none())
    }

    /// Whether routers and DHCP servers that are not berth's give out its IPv6 addresses.
    pub fn is_ipv6_external(&self) -> bool {
        let external = self.spec.ipv6.as_ref().is_some_and(|ipv6| ipv6.allocation == Allocation::External);
        external && self.host_bridge().is_some()
    }

    /// Whether its hosts give their guests' IPv6 addresses out by DHCPv6, on a bridge.
    pub fn serves_dhcp6(&self) -> bool {
        let declared = self.spec.ipv6.as_ref().is_some_and(|ipv6| ipv6.dhcp == Some(true));
        declared && self.host_bridge().is_some() && self.ipv6_prefix().is_some() && !self.is_ipv6_external()
    }

    /// Whether its guests may send only from the IPv6 addresses that they have taken first, of those that others give out.
    pub fn checks_learned(&self) -> bool {
        let check = self.spec.ipv6.as_ref().and_then(|ipv6| ipv6.source_check);
        check == Some(Ipv6SourceCheck::Learned) && self.is_ipv6_external()
    }

    /// The IPv6 address of its router: in an overlay the first of the prefix.
    pub fn ipv6_gateway(&self) -> Option<Ipv6Addr> {
        if self.host_bridge().is_some() {
            return self.spec.ipv6.as_ref()?.gateway.as_ref()?.parse().ok();
        }
        Some(ipv6_at(self.ipv6_prefix()?, 1))
    }

    /// The address that the guest of an interface with this MAC address forms, if that is how its guests get theirs.
    pub fn formed_address(&self, mac: &str) -> Option<Ipv6Addr> {
        let prefix = self.ipv6_prefix().filter(|_| self.is_autoconfigured())?;
        ipv6_of_mac(prefix, mac)
    }

    /// Whether it is an overlay whose guests form their IPv6 addresses themselves.
    pub fn is_autoconfigured(&self) -> bool {
        self.spec.ipv6_autoconfiguration == Some(true) && self.host_bridge().is_none()
    }

    /// Whether it is an overlay whose guests also use addresses of identifiers that they choose.
    pub fn has_privacy_addresses(&self) -> bool {
        self.is_autoconfigured() && self.spec.ipv6_privacy_addresses == Some(true)
    }

    /// The addresses of its router and of its hosts' name server, which no guest may send from, whatever it is allowed.
    pub fn router_addresses(&self) -> Vec<IpAddr> {
        let is_routed_by_hosts = self.host_bridge().is_none() && self.ipv6_prefix().is_some();
        let mac = self.gateway_mac().filter(|_| is_routed_by_hosts);
        let link_local = mac.and_then(|mac| link_local_of_mac(&mac));
        let ipv4 = self.gateway().into_iter().chain(self.name_server()).map(IpAddr::V4);
        ipv4.chain(self.ipv6_gateway().into_iter().chain(link_local).map(IpAddr::V6)).collect()
    }

    /// The first and the last IPv6 address that it declares for VMs, the gateway's possibly among them. None: all of the prefix.
    pub fn ipv6_range(&self) -> Option<(Ipv6Addr, Ipv6Addr)> {
        self.host_bridge()?;
        let (first, last) = self.spec.ipv6.as_ref()?.range.as_deref()?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }

    /// The first and the last IPv6 address for VMs, the gateway's possibly among them.
    pub fn ipv6_pool(&self) -> Option<(Ipv6Addr, Ipv6Addr)> {
        let prefix = self.ipv6_prefix()?;
        // The address 0 of a prefix is that of all its routers, and 1 mostly that of one of them.
        let [lowest, usual] = [1, 2].map(|number| ipv6_at(prefix, number));
        let highest = prefix.broadcast();
        let Some((first, last)) = self.ipv6_range() else { return Some((usual, highest)) };
        (first <= last).then(|| (first.max(lowest), last.min(highest)))
    }

    /// Returns why no public IPv6 address leads to a VM of this network, as the end of a sentence that begins with the network.
    pub fn without_public_ipv6(&self) -> Option<&'static str> {
        if self.host_bridge().is_some() {
            return Some("is a bridge, on which a VM has addresses of the network itself");
        }
        if self.ipv6_prefix().is_none() {
            return Some("has no IPv6 prefix (ipv6CIDR)");
        }
        let is_closed = self.spec.ipv6_egress == Egress::None;
        is_closed.then_some("has ipv6Egress None, so that guests have no way for their answers: set it to Masquerade or Routed")
    }
}

/// The prefix of link-local addresses.
const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 64);

/// The address that a machine with this MAC address forms in a /64 prefix (modified EUI-64; RFC 4291, appendix A). None for another text.
pub fn ipv6_of_mac(prefix: Ipv6Net, mac: &str) -> Option<Ipv6Addr> {
    let bytes: Option<Vec<u8>> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let [a, b, c, d, e, f]: [u8; 6] = bytes?.try_into().ok()?;
    Some(ipv6_at(prefix, u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])))
}

/// The link-local address that a machine with this MAC address forms.
pub fn link_local_of_mac(mac: &str) -> Option<Ipv6Addr> {
    ipv6_of_mac(LINK_LOCAL, mac)
}

/// The address of this number in an IPv6 prefix.
pub fn ipv6_at(prefix: Ipv6Net, number: u64) -> Ipv6Addr {
    (u128::from(prefix.network()) | u128::from(number)).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(spec: serde_json::Value) -> Network {
        serde_json::from_value(json!({"metadata": {"name": "lan"}, "spec": spec})).expect("a Network")
    }

    fn address(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    #[test]
    fn with_a_pool_the_prefix_is_that_of_the_status_and_a_bridge_has_no_pool() {
        let mut pooled = network(json!({"ipv6": {"pool": "p"}}));
        assert_eq!((pooled.ipv6_prefix(), pooled.prefix_pool().map(|pool| pool.as_str())), (None, Some("p")));
        let ipv6_cidr = "2001:db8:100::/64".to_owned();
        pooled.status = Some(crate::NetworkStatus { ipv6_cidr, ..crate::NetworkStatus::default() });
        assert_eq!(pooled.ipv6_gateway(), Some(address("2001:db8:100::1")));
        let bridge = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "fd00:60::/64", "ipv6": {"pool": "p"}});
        assert_eq!(network(bridge).prefix_pool(), None);
    }

    #[test]
    fn the_ipv6_gateway_is_the_first_address_of_an_overlays_prefix() {
        let overlay = network(json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64"}));
        assert_eq!(overlay.ipv6_gateway(), "fd00:60::1".parse().ok());
        for spec in [
            json!({"cidr": "10.77.0.0/16"}),
            json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/48"}),
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64"}),
        ] {
            assert_eq!(network(spec.clone()).ipv6_gateway(), None, "{spec}");
        }
        let text = serde_json::to_value(&overlay.spec).expect("JSON");
        assert_eq!((&text["ipv6CIDR"], &text["ipv6Egress"]), (&json!("fd00:60::/64"), &json!("None")));
        assert_eq!(text.get("ipv6"), None);
    }

    #[test]
    fn a_routers_addresses_include_the_link_local_one_where_hosts_are_the_router() {
        let text = |spec: serde_json::Value| {
            let mut network = network(spec);
            network.status = Some(crate::NetworkStatus { vni: Some(77), ..Default::default() });
            network.router_addresses().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let overlay = text(json!({"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64"}));
        assert_eq!(overlay[..2], ["10.77.0.1", "fd00:60::1"]);
        assert!(overlay[2].starts_with("fe80::5054:ff:fe"), "{overlay:?}");
        assert_eq!(text(json!({"cidr": "10.77.0.0/16"})), ["10.77.0.1"]);
        let lan = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "2001:db8:7::/64", "ipv6": {"gateway": "fe80::1"}});
        assert_eq!(text(lan), ["fe80::1"]);
    }

    #[test]
    fn the_address_of_a_mac_is_its_modified_eui_64() {
        let of = |mac: &str| ipv6_of_mac("fd00:60::/64".parse().expect("a prefix"), mac);
        assert_eq!(of("52:54:00:00:00:01"), Some(address("fd00:60::5054:ff:fe00:1")));
        assert_eq!(of("02:00:5E:10:20:30"), Some(address("fd00:60::5eff:fe10:2030")));
        assert_eq!((of("52:54:00"), of("")), (None, None));
        let formed = |spec: serde_json::Value| network(spec).formed_address("52:54:00:00:00:01");
        let prefix = json!({"ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": true});
        assert_eq!(formed(prefix), Some(address("fd00:60::5054:ff:fe00:1")));
        assert_eq!(formed(json!({"ipv6CIDR": "fd00:60::/64"})), None);
    }

    #[test]
    fn guests_choose_identifiers_only_where_they_form_their_addresses() {
        let chooses = |formed: bool, chosen: Option<bool>| {
            let spec = json!({"ipv6CIDR": "fd00:60::/64", "ipv6Autoconfiguration": formed, "ipv6PrivacyAddresses": chosen});
            network(spec).has_privacy_addresses()
        };
        assert!(chooses(true, Some(true)));
        assert!(!chooses(true, None) && !chooses(true, Some(false)) && !chooses(false, Some(true)));
    }

    #[test]
    fn on_a_bridge_vms_get_ipv6_addresses_of_the_declared_range_and_the_declared_router() {
        let lan = |ipv6: serde_json::Value| {
            network(
                json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "2001:db8:7::/64", "ipv6": ipv6}),
            )
        };
        let declared = lan(json!({"gateway": "fe80::1", "range": "2001:db8:7::50-2001:db8:7::99"}));
        assert_eq!(declared.ipv6_pool(), Some((address("2001:db8:7::50"), address("2001:db8:7::99"))));
        assert_eq!(declared.ipv6_gateway(), Some(address("fe80::1")));
        let whole = lan(json!({})).ipv6_pool();
        assert_eq!(whole, Some((address("2001:db8:7::2"), address("2001:db8:7:0:ffff:ffff:ffff:ffff"))));
        assert_eq!(lan(json!({"range": "2001:db8:7::99-2001:db8:7::50"})).ipv6_pool(), None);
    }

    #[test]
    fn a_network_whose_routers_give_out_addresses_has_no_prefix_of_berths() {
        let spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6": {"allocation": "External"}});
        let external = network(spec);
        assert!(external.is_ipv6_external() && !external.is_external() && !external.has_ipv4());
        assert_eq!((external.ipv6_prefix(), external.ipv6_pool()), (None, None));
    }
    #[test]
    fn learned_addresses_are_checked_only_where_routers_give_them_out_and_if_it_is_declared() {
        let checks = |ipv6: serde_json::Value| {
            network(json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6": ipv6})).checks_learned()
        };
        assert!(checks(json!({"allocation": "External", "sourceCheck": "Learned"})));
        assert!(!checks(json!({"allocation": "External", "sourceCheck": "None"})));
        assert!(!checks(json!({"allocation": "External"})));
        assert!(!checks(json!({"sourceCheck": "Learned"})));
        let other = json!({"metadata": {"name": "lan"}, "spec": {"ipv6": {"sourceCheck": "Lease"}}});
        assert!(serde_json::from_value::<Network>(other).is_err());
    }
}
