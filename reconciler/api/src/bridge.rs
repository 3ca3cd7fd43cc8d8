//! The bridge of a Network of type `Bridge`, and the hosts that VMs on it can run on.

use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::host::HostNetwork;
use crate::security_group::port_range;

const MOST_VLAN: u16 = 4094;

/// The bridge of a Network: one that hosts have, or one that berth makes over an interface of theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.name) != has(self.interface)").message("needs name, a bridge that the hosts have, or interface, over which berth makes one: one of them"),
    validation = Rule::new("!has(self.vlan) || has(self.interface)").message("vlan is a VLAN of interface: name that, or leave vlan out").field_path(".vlan"),
    validation = Rule::new("!has(self.trunkVLANs) || self.trunkVLANs.size() == 0 || !has(self.vlan)").message("a Network has either vlan, whose tag the host adds and removes, or trunkVLANs, whose tags the guest sees: leave one of them out").field_path(".trunkVLANs")
)]
pub struct BridgeSpec {
    /// The name of a Linux bridge, the same on each host that has the network, for example `vmbr0`. berth adds one port to it while
    /// VMs of the Network are on the host, and changes nothing else of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 15), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"))]
    #[x_kube(validation = Rule::new("!self.matches('^bt[a-z]-') && self != 'berth-public'").message("is the name of a bridge that berth makes itself"))]
    pub name: Option<String>,
    /// The name of an interface of the hosts, the same on each host that has the network, for example `eth1`: a card, a bond or
    /// a VLAN interface. While VMs of the Network are on a host, berth has a bridge there with this interface as its port, or
    /// with its VLAN. Without `vlan`, the interface must have no address and no route of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 15), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"))]
    #[x_kube(validation = Rule::new("!self.matches('^(bt[a-z]-|btt[0-9a-f]{8})') && self != 'berth-public'").message("is the name of an interface that berth makes itself"))]
    #[x_kube(validation = Rule::new("self != 'lo'").message("is the loopback interface: name one that leads to a network"))]
    pub interface: Option<String>,
    /// The VLAN of `interface`, 1 to 4094: frames leave by the interface with its tag, and those with it reach the VMs. Default:
    /// none, the frames without a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4094))]
    pub vlan: Option<i64>,
    /// The VLANs whose tagged frames (802.1Q) VMs on the Network send and receive, beside frames without a tag: numbers from 1 to 4094 and
    /// ranges of them, such as `100-199`, at most 32. Not together with `vlan`, nor on a bridge with VLAN filtering. Leave out the VLAN
    /// whose frames come to the hosts without a tag (native or default VLAN, mostly 1) and those of other Networks' `vlan`: by its tag, a
    /// guest sends there under any address, also past security groups of other VMs. Default: none, and frames with a tag are dropped.
    /// Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "trunkVLANs")]
    #[schemars(length(max = 32), inner(length(max = 9)))]
    #[x_kube(validation = Rule::new("self.all(v, v.matches('^[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})?$') && v.split('-').all(n, int(n) <= 4094) && int(v.split('-')[0]) <= int(v.split('-')[v.split('-').size() - 1]))").message("each of trunkVLANs must be a VLAN from 1 to 4094 or a range of them such as 100-199"))]
    pub trunk_vlans: Vec<String>,
}

impl fmt::Display for BridgeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = self.interface.as_deref().unwrap_or_default();
        match (&self.name, self.vlan) {
            (Some(name), _) => write!(f, "bridge {name}"),
            (None, Some(vlan)) => write!(f, "VLAN {vlan} of interface {interface}"),
            (None, None) => write!(f, "interface {interface}"),
        }
    }
}

impl BridgeSpec {
    /// The VLANs of its trunk as ranges, in order and joined where they overlap or touch, without those that cannot be understood.
    pub fn trunk(&self) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> =
            self.trunk_vlans.iter().filter_map(|text| vlan_range(text)).collect();
        ranges.sort_unstable();
        let mut joined: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match joined.last_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        joined
    }

    /// Returns why no bridge of this kind can be made or used on a host with these networks, as the end of a sentence that begins
    /// with the host. `vlans`: whether the host's kernel has VLANs.
    pub fn unusable_on(&self, networks: &[HostNetwork], vlans: bool) -> Option<String> {
        let of = |kind: &str, name: &str| networks.iter().find(|n| n.kind == kind && n.name == name);
        if let Some(name) = &self.name {
            return of(HostNetwork::BRIDGE, name).is_none().then(|| format!("has no bridge {name}"));
        }
        let name = self.interface.as_deref().unwrap_or_default();
        if let Some(port) = of(HostNetwork::PORT, name) {
            return Some(format!("uses interface {name} itself: it {}; name that one", port.in_use));
        }
        let Some(found) = of(HostNetwork::INTERFACE, name) else {
            return Some(match of(HostNetwork::BRIDGE, name) {
                Some(_) => format!("has a bridge {name}, no card: name it in bridge.name"),
                None => format!("has no interface {name} that a bridge can be made over"),
            });
        };
        match self.vlan {
            None if found.in_use.is_empty() => None,
            None => Some(format!(
                "uses interface {name} itself: it {}; make a bridge there and name it in bridge.name, or set bridge.vlan",
                found.in_use
            )),
            Some(_) if !vlans => Some("has no VLANs in its kernel: run modprobe 8021q there".to_owned()),
            Some(vlan) => found.vlans.iter().find(|of| of.id == vlan).map(|of| {
                let own = &of.name;
                format!(
                    "uses VLAN {vlan} of interface {name} itself, as {own}: if it has no address, name {own} in bridge.interface without \
                     bridge.vlan; else make a bridge there and name it in bridge.name"
                )
            }),
        }
    }

    /// Returns why VMs on this bridge have no connection on a host with these networks: as [`Self::unusable_on`], and because the
    /// bridge or the interface is down.
    pub fn disconnected_on(&self, networks: &[HostNetwork], vlans: bool) -> Option<String> {
        if let Some(why) = self.unusable_on(networks, vlans) {
            return Some(if self.name.is_some() { format!("{why} that is up") } else { why });
        }
        if let Some(name) = &self.name {
            let is_up = |n: &HostNetwork| n.kind == HostNetwork::BRIDGE && n.name == *name && n.up;
            return (!networks.iter().any(is_up)).then(|| format!("has no bridge {name} that is up"));
        }
        let name = self.interface.as_deref().unwrap_or_default();
        // berth brings up an interface that is down.
        let is_cut =
            |n: &HostNetwork| n.kind == HostNetwork::INTERFACE && n.name == name && n.carrier == Some(false);
        networks.iter().any(is_cut).then(|| format!("has no carrier on interface {name}: connect its cable"))
    }
}

/// Parses a VLAN such as `120`, or a range of them such as `100-199`: the first and the last one.
pub fn vlan_range(text: &str) -> Option<(u16, u16)> {
    port_range(text).filter(|(_, last)| *last <= MOST_VLAN)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn networks() -> Vec<HostNetwork> {
        let interface = json!({"kind": "Interface", "mtu": 1500, "up": true, "carrier": true});
        let with = |more: Value| {
            let mut network = interface.clone();
            network.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
            serde_json::from_value(network).expect("a network of a host")
        };
        vec![
            with(json!({"name": "vmbr0", "kind": "Bridge"})),
            with(json!({"name": "vmbr1", "kind": "Bridge", "up": false})),
            with(
                json!({"name": "eth0", "inUse": "has address 192.0.2.1/24", "vlans": [{"id": 7, "name": "eth0.7"}]}),
            ),
            with(json!({"name": "eth1"})),
            with(json!({"name": "eth2", "carrier": false})),
            with(json!({"name": "eth3", "kind": "Port", "inUse": "is a port of bond0"})),
        ]
    }

    fn bridge(spec: Value) -> BridgeSpec {
        serde_json::from_value(spec).expect("a bridge")
    }

    #[test]
    fn a_host_can_be_used_or_the_text_says_why_not_and_what_to_do() {
        let networks = networks();
        for usable in [
            json!({"name": "vmbr0"}),
            json!({"interface": "eth1"}),
            json!({"interface": "eth1", "vlan": 7}),
            json!({"interface": "eth0", "vlan": 8}),
        ] {
            assert_eq!(bridge(usable.clone()).disconnected_on(&networks, true), None, "{usable}");
        }
        for (spec, words) in [
            (json!({"name": "vmbr9"}), "has no bridge vmbr9 that is up"),
            (json!({"name": "vmbr1"}), "has no bridge vmbr1 that is up"),
            (json!({"interface": "eth9"}), "has no interface eth9"),
            (json!({"interface": "vmbr0", "vlan": 7}), "name it in bridge.name"),
            (json!({"interface": "eth0"}), "it has address 192.0.2.1/24; make a bridge"),
            (json!({"interface": "eth0", "vlan": 7}), "as eth0.7"),
            (json!({"interface": "eth2"}), "no carrier on interface eth2"),
            (json!({"interface": "eth3", "vlan": 7}), "it is a port of bond0; name that one"),
        ] {
            let why = bridge(spec.clone()).disconnected_on(&networks, true).expect("it cannot");
            assert!(why.contains(words), "{spec}: {why}");
        }
    }

    #[test]
    fn a_trunk_is_joined_ranges_without_what_cannot_be_understood() {
        let trunk = |vlans: Value| bridge(json!({"name": "vmbr0", "trunkVLANs": vlans})).trunk();
        assert_eq!(trunk(json!(["30", "1-4", "100-199", "5", "150-4094"])), [(1, 5), (30, 30), (100, 4094)]);
        assert_eq!(trunk(json!(["0", "4095", "9-8", "4000-4095", "x", "", "7"])), [(7, 7)]);
    }

    #[test]
    fn only_a_vlan_needs_vlans_and_a_cable_that_is_pulled_out_undoes_no_bridge() {
        let networks = networks();
        let tagged = bridge(json!({"interface": "eth1", "vlan": 7}));
        assert!(tagged.unusable_on(&networks, false).expect("it cannot").contains("modprobe 8021q"));
        assert_eq!(bridge(json!({"interface": "eth1"})).unusable_on(&networks, false), None);
        assert_eq!(bridge(json!({"interface": "eth2"})).unusable_on(&networks, false), None);
        assert_eq!(bridge(json!({"name": "vmbr1"})).unusable_on(&networks, false), None);
    }

    #[test]
    fn messages_name_what_is_declared() {
        for (spec, text) in [
            (json!({"name": "vmbr0"}), "bridge vmbr0"),
            (json!({"interface": "eth1"}), "interface eth1"),
            (json!({"interface": "eth1", "vlan": 120}), "VLAN 120 of interface eth1"),
        ] {
            assert_eq!(bridge(spec).to_string(), text);
        }
    }
}
