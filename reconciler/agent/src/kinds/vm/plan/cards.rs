//! The network cards of a machine: their ids, models and links. Pure.

use std::borrow::Cow;

use berth_api::vm::{Acceleration, InterfaceStatus, LinkState, NetworkInterface, NicModel};
use berth_api::{Profile, VM};
use berth_host::{HostFacts, TapConfig};
use berth_qemu::machine::{self, NicSpec, Tap};

use super::super::{Observed, Step};
use crate::journal::{Journal, Run};
use crate::networking::{card_of, mtu_for, tap_of};

/// The queues of a card that declares none, at most: each takes a thread of the host's kernel.
const MOST_DEFAULT_QUEUES: u8 = 8;
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

/// Returns the number of queues of a card that declares none, in a machine that starts on this host with so many CPUs; None: one. Several are
/// of use only where the host's kernel moves the packets.
pub(super) fn default_queues(host: &HostFacts, cpus: i64) -> Option<u8> {
    let is_of_use = host.vhost_net && host.accelerator == machine::Accelerator::Kvm;
    let queues = u8::try_from(cpus).unwrap_or(MOST_DEFAULT_QUEUES).min(MOST_DEFAULT_QUEUES);
    Some(queues).filter(|queues| is_of_use && *queues > 1)
}

/// Returns the number of queues of the card in this run, 1 to 16. Only a virtio card has several.
pub(super) fn queues_of(interface: &NetworkInterface, run: Option<&Run>) -> u8 {
    if model_of(interface) != machine::NicModel::Virtio {
        return 1;
    }
    let default = run.and_then(|run| run.default_queues).filter(|_| !is_unaccelerated(interface));
    interface.queues.or(default).unwrap_or(1).clamp(1, machine::MAX_QUEUES)
}

/// Returns the taps of the cards that the machine is launched with.
pub(super) fn taps(vm: &VM, observed: &Observed, journal: &Journal) -> Vec<TapConfig> {
    interfaces(vm, journal)
        .filter_map(|(wanted, interface, slot)| {
            Some(TapConfig {
                name: tap_of(&observed.instance, slot),
                bridge: observed.bridges.get(&interface.network)?.clone(),
                mtu: observed.mtus.get(&interface.network).copied().unwrap_or(1500),
                multi_queue: queues_of(wanted, journal.run.as_ref()) > 1,
            })
        })
        .collect()
}

/// Returns the cards that the machine of the journal's run is launched with.
pub(super) fn nics(vm: &VM, observed: &Observed, journal: &Journal) -> Vec<NicSpec> {
    interfaces(vm, journal)
        .map(|(wanted, interface, slot)| NicSpec {
            id: nic_id(slot),
            tap: Tap::Name(tap_of(&observed.instance, slot)),
            mac: interface.mac_address.to_ascii_lowercase(),
            mtu: card_mtu(observed, wanted, interface),
            slot,
            model: model_of(wanted),
            port: journal.port_of(&interface.name).filter(|_| model_of(wanted).is_hot_pluggable()),
            queues: queues_of(wanted, journal.run.as_ref()),
            no_vhost: is_unaccelerated(wanted),
        })
        .collect()
}

/// Returns the interfaces listed in the spec, with what was decided for them at binding and their PCI slots.
pub(super) fn interfaces<'a>(
    vm: &'a VM,
    journal: &'a Journal,
) -> impl Iterator<Item = (&'a NetworkInterface, &'a InterfaceStatus, u8)> {
    let decided = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    vm.spec.network_interfaces.iter().filter_map(move |wanted| {
        let interface = decided.iter().find(|i| i.name == wanted.name.as_str())?;
        Some((wanted, interface, *journal.slots.get(wanted.name.as_str())?))
    })
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
