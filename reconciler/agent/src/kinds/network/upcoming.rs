//! The taps of VMs that are about to start here for the first time. Pure.
//!
//! The rules for them are written with the leases, when the VMs are bound: the starts of a hundred VMs do not have all rules written again
//! for each. A tap is made after the journal of its VM was written and a pass has seen that, so that the journal decides, and not what is
//! foreseen here. A tap that is not there yet lets nothing pass.

use std::collections::BTreeMap;

use berth_api::VM;
use berth_api::vm::InterfaceStatus;

use crate::index::is_to_run;
use crate::journal::Journal;
use crate::networking::{GuestPort, ports_of};

/// How many interfaces have each MAC address, and each address of a network.
#[derive(Debug, Default)]
pub(super) struct Identities(BTreeMap<(String, String), usize>);

impl Identities {
    pub(super) fn of<'a>(interfaces: impl Iterator<Item = &'a InterfaceStatus>) -> Self {
        let mut counts = BTreeMap::new();
        for identity in interfaces.flat_map(identities) {
            *counts.entry(identity).or_default() += 1;
        }
        Self(counts)
    }

    /// Whether no other interface has the same.
    fn has_alone(&self, interface: &InterfaceStatus) -> bool {
        identities(interface).iter().all(|identity| self.0.get(identity).is_none_or(|count| *count == 1))
    }
}

fn identities(interface: &InterfaceStatus) -> Vec<(String, String)> {
    let mac = (String::new(), interface.mac_address.to_ascii_lowercase());
    let addresses = [&interface.address, &interface.ipv6_address].into_iter();
    let addresses = addresses.filter(|address| !address.is_empty());
    let addresses = addresses.map(|address| (interface.network.clone(), address.clone()));
    addresses.chain([mac]).collect()
}

/// Returns the taps that the first start of a VM makes. None: it is not to run, or its start may be refused, or its addresses are not
/// known. `has_bridge`: whether a network has a bridge here and is not refused.
pub(super) fn upcoming(
    instance: &str,
    vm: &VM,
    identities: &Identities,
    has_bridge: impl Fn(&str) -> bool,
) -> Option<Vec<GuestPort>> {
    let given = vm.status.as_ref().map(|status| status.interfaces.as_slice()).unwrap_or_default();
    let is_settled = |interface: &InterfaceStatus| {
        let has_address = !(interface.address.is_empty() && interface.ipv6_address.is_empty());
        has_address && identities.has_alone(interface) && has_bridge(&interface.network)
    };
    if !is_to_run(vm) || !given.iter().all(is_settled) {
        return None;
    }
    let declared = &vm.spec.network_interfaces;
    let journal = Journal::new(vm).with_slots(declared.iter().map(|interface| interface.name.as_str()));
    let ports = ports_of(instance, &journal, given);
    (ports.len() == declared.len()).then_some(ports)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const INSTANCE: &str = "i-0123456789ab";

    fn vm(spec: &Value, first_address: &str) -> VM {
        let mut whole = json!({"class": "s", "disks": [{"name": "d", "boot": true}],
            "networkInterfaces": [{"name": "lan"}, {"name": "dmz", "securityGroups": ["web"]}]});
        for (key, value) in spec.as_object().cloned().unwrap_or_default() {
            whole[key] = value;
        }
        let interface = |name: &str, network: &str, mac: &str, address: &str| json!({"name": name, "network": network, "macAddress": mac, "address": address});
        let vm = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1"}, "spec": whole,
            "status": {"observedGeneration": 1, "instanceID": INSTANCE, "interfaces": [
                interface("dmz", "ns/dmz", "52:54:00:00:00:0B", "10.78.0.2"),
                interface("lan", "ns/lan", "52:54:00:00:00:0a", first_address),
            ]},
        });
        serde_json::from_value(vm).expect("a VM")
    }

    fn interfaces(vm: &VM) -> &[InterfaceStatus] {
        vm.status.as_ref().map(|status| status.interfaces.as_slice()).unwrap_or_default()
    }

    fn foreseen(vm: &VM, others: &[InterfaceStatus]) -> Option<Vec<GuestPort>> {
        let identities = Identities::of(interfaces(vm).iter().chain(others));
        upcoming(INSTANCE, vm, &identities, |network| network != "ns/refused")
    }

    #[test]
    fn the_taps_are_those_that_the_journal_of_the_first_start_records() {
        let vm = vm(&json!({}), "10.77.0.2");
        let mut journal = Journal::new(&vm).with_slots(["lan", "dmz"].into_iter());
        journal.interfaces = interfaces(&vm).to_vec();
        let ports = foreseen(&vm, &[]).expect("it is to run");
        assert_eq!(ports, ports_of(INSTANCE, &journal, &[]));
        let taps: Vec<_> =
            ports.iter().map(|guest| (guest.port.tap.as_str(), guest.port.mac.as_str())).collect();
        assert_eq!(taps, [("btt01234567n1", "52:54:00:00:00:0b"), ("btt01234567n0", "52:54:00:00:00:0a")]);
    }

    #[test]
    fn a_vm_that_does_not_start_or_whose_addresses_are_not_its_alone_has_none() {
        let ready = vm(&json!({}), "10.77.0.2");
        assert!(foreseen(&ready, &[]).is_some());
        assert_eq!(foreseen(&vm(&json!({"power": "Stopped"}), "10.77.0.2"), &[]), None);
        assert_eq!(foreseen(&vm(&json!({}), ""), &[]), None, "its address is not known");
        let more = json!({"networkInterfaces": [{"name": "lan"}, {"name": "dmz"}, {"name": "new"}]});
        assert_eq!(foreseen(&vm(&more, "10.77.0.2"), &[]), None, "an interface has no address yet");
        let other = |change: fn(&mut InterfaceStatus)| {
            let mut other = interfaces(&ready)[1].clone();
            change(&mut other);
            foreseen(&ready, &[other]).is_some()
        };
        assert!(!other(|other| other.address = "10.77.0.3".to_owned()), "the same MAC address");
        assert!(!other(|other| other.mac_address = "52:54:00:00:00:0c".to_owned()), "the same address");
        assert!(other(|other| {
            other.mac_address = "52:54:00:00:00:0c".to_owned();
            other.network = "ns/other".to_owned();
        }));
        let mut refused = ready.clone();
        if let Some(status) = &mut refused.status {
            status.interfaces[0].network = "ns/refused".to_owned();
        }
        assert_eq!(foreseen(&refused, &[]), None);
    }
}
