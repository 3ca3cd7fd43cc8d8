//! The network cards of a machine: their ids, models and links. Pure.

use std::borrow::Cow;

use berth_api::vm::{Acceleration, InterfaceStatus, LinkState, NetworkInterface, NicModel};
use berth_api::{Profile, VM};
use berth_qemu::machine;

use super::super::{Observed, Step};
use crate::journal::Journal;
use crate::networking::{card_of, mtu_for};

/// The part of a record with the largest packet that an interface declares.
const MTU: &str = "mtu=";

/// Returns the VM with the model of its class at each interface that declares none.
pub(in crate::kinds::vm) fn with_models<'a>(vm: &'a VM, profile: &Profile) -> Cow<'a, VM> {
    let is_without = |interface: &NetworkInterface| interface.model.is_none();
    let of_class = profile.network_interface_model;
    if of_class.is_none() || !vm.spec.network_interfaces.iter().any(is_without) {
        return Cow::Borrowed(vm);
    }
    let mut vm = vm.clone();
    for interface in &mut vm.spec.network_interfaces {
        interface.model = interface.model.or(of_class);
    }
    Cow::Owned(vm)
}

/// Returns the id of the card in this slot.
pub(super) fn nic_id(slot: u8) -> String {
    card_of(slot)
}

/// Returns the steps that take down the links that are declared so, of a machine that has just been launched.
pub(super) fn links_down(vm: &VM, journal: &Journal) -> Vec<Step> {
    cards_down(vm, journal).into_iter().map(|nic| Step::SetLink { nic, up: false }).collect()
}

/// Returns the ids of the cards whose links are declared down.
pub(super) fn cards_down(vm: &VM, journal: &Journal) -> Vec<String> {
    let down = vm.spec.network_interfaces.iter().filter(|interface| interface.link == LinkState::Down);
    down.filter_map(|interface| Some(nic_id(*journal.slots.get(interface.name.as_str())?))).collect()
}

/// Returns what the journal of a run records of an interface: name and MAC address, its model if it is not the default, and the largest
/// packet that it declares.
pub(super) fn recorded_name(wanted: &NetworkInterface, interface: &InterfaceStatus) -> String {
    let mut name = format!("{}/{}", interface.name, interface.mac_address);
    let model = wanted.model.unwrap_or_default();
    if model != NicModel::default() {
        name.extend(["/", model.as_str()]);
    }
    if let Some(mtu) = wanted.mtu {
        name.extend(["/", MTU, mtu.to_string().as_str()]);
    }
    name
}

/// Returns the largest packet that an interface declared, in its record.
pub(super) fn recorded_mtu(recorded: &str) -> Option<i64> {
    recorded.split('/').find_map(|part| part.strip_prefix(MTU))?.parse().ok()
}

/// Returns the largest packet of the card, where it is not the usual one. The tap keeps that of the network: a bridge has the smallest of
/// its ports.
pub(super) fn card_mtu(
    observed: &Observed,
    wanted: &NetworkInterface,
    interface: &InterfaceStatus,
) -> Option<u16> {
    let of_network = observed.mtus.get(&interface.network).copied().unwrap_or(1500);
    Some(mtu_for(of_network, wanted.mtu)).filter(|mtu| *mtu != 1500)
}

/// Returns the number of queues of the card, 1 to 16. Only a virtio card has several.
pub(super) fn queues_of(interface: &NetworkInterface) -> u8 {
    let declared = interface.queues.filter(|_| model_of(interface) == machine::NicModel::Virtio);
    declared.map_or(1, |queues| queues.clamp(1, machine::MAX_QUEUES))
}

/// Whether QEMU moves the packets of the card also where the host's kernel could, which moves those of a virtio card only: for another
/// model the declaration changes nothing, and waits for no power cycle.
pub(super) fn is_unaccelerated(interface: &NetworkInterface) -> bool {
    model_of(interface) == machine::NicModel::Virtio && interface.acceleration == Some(Acceleration::Off)
}

pub(super) fn model_of(interface: &NetworkInterface) -> machine::NicModel {
    match interface.model.unwrap_or_default() {
        NicModel::Virtio => machine::NicModel::Virtio,
        NicModel::E1000 => machine::NicModel::E1000,
        NicModel::E1000e => machine::NicModel::E1000e,
        NicModel::Rtl8139 => machine::NicModel::Rtl8139,
    }
}
