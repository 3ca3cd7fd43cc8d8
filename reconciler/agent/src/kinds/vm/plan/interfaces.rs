//! The network interfaces of a running machine: their links, and cards that are plugged in and out as declared. Pure.
//!
//! ```text
//!   journal: slot ▸ EnsureNetworkOf ▸ MakeTap ▸ PlugNic ▸ journal: run        UnplugNic ▸ RemoveTap ▸ journal ▸ EnsureNetworks
//! ```
//!
//! The journal names the slot of a card before the card exists, and until it is gone: from the slot follow the ids of the card
//! and of its tap, and the addresses that the tap's guest may send from. A crash between two steps therefore leaves nothing that
//! the next plan does not find.

use std::collections::BTreeSet;
use std::iter;

use berth_api::vm::{InterfaceStatus, LinkState, NetworkInterface};
use berth_api::{Readiness, Reason, VM};
use berth_host::TapConfig;
use berth_qemu::machine::{NicSpec, Tap};
use berth_qemu::nics::ObservedNic;

use super::super::{Observed, Step};
use super::cards::{card_mtu, is_unaccelerated, model_of, nic_id, queues_of, recorded_mtu, recorded_name};
use super::lan_addresses;
use super::start::unsynced_interfaces;
use super::{without_address, write_journal};
use crate::journal::{Journal, Run};
use crate::machine::MachineState;
use crate::networking::tap_of;
use crate::saved_machine::has_recorded_cards;

/// The differences between the interfaces that are declared and the cards of the running machine.
#[derive(Debug, Default)]
pub(in crate::kinds::vm) struct Changes {
    plug: Vec<Card>,
    /// Cards that are in the machine, and not in its journal yet.
    record: Vec<Card>,
    unplug: Vec<(String, u8)>,
    /// Taps of cards that are on no bridge, with the names of the interfaces.
    join: Vec<(String, TapConfig)>,
    /// Names of the interfaces whose tap is no longer on the host: their cards are exchanged, or stay without a connection.
    pub(in crate::kinds::vm) without_tap: BTreeSet<String>,
    /// Names of the interfaces that have no address or network yet.
    waiting: BTreeSet<String>,
    /// Names of the interfaces that change at the next start.
    pub(in crate::kinds::vm) power_cycle: BTreeSet<String>,
}

/// A network card, as it is to be or is.
#[derive(Clone, Debug, PartialEq)]
struct Card {
    /// As in the journal of a run.
    recorded: String,
    interface: InterfaceStatus,
    nic: NicSpec,
    tap: TapConfig,
    link: LinkState,
}

/// Returns the steps that give links the state that is declared. A link whose state is not known is set, too.
pub(super) fn links(vm: &VM, observed: &Observed, machine: &MachineState) -> Vec<Step> {
    let step = |interface: &NetworkInterface| {
        let id = nic_id(*observed.journal.slots.get(interface.name.as_str())?);
        let up = interface.link == LinkState::Up;
        let is_there = machine.nics.iter().any(|nic| nic.id == id);
        (is_there && machine.links.get(&id) != Some(&up)).then_some(Step::SetLink { nic: id, up })
    };
    vm.spec.network_interfaces.iter().filter_map(step).collect()
}

/// Compares the interfaces that are declared with the cards of the machine that runs. Those of a machine that an older agent
/// started are not known.
pub(in crate::kinds::vm) fn changes(vm: &VM, observed: &Observed) -> Changes {
    let journal = &observed.journal;
    let Some(run) = &journal.run else { return Changes::default() };
    let Some(machine) = &observed.machine else {
        let power_cycle = unsynced_interfaces(run, vm, journal).into_iter().collect();
        return Changes { power_cycle, ..Changes::default() };
    };
    let Some(recorded) = &run.interfaces else { return Changes::default() };
    let mut changes = Changes::default();
    for (name, slot) in &journal.slots {
        let present = machine.nics.iter().find(|nic| nic.id == nic_id(*slot));
        if let Some(nic) = present.filter(|_| observed.lost_taps.contains(name)) {
            changes.without_tap.insert(name.clone());
            match nic.port {
                // It is plugged in again as any card that is missing.
                Some(_) => changes.unplug.push((name.clone(), *slot)),
                None => {
                    changes.power_cycle.insert(name.clone());
                }
            }
            continue;
        }
        if present.is_some()
            && observed.loose_taps.contains(name)
            && let Some((wanted, given)) = declared(vm, name)
            && let Some(card) = card(observed, wanted, given, *slot, None)
        {
            changes.join.push((name.clone(), card.tap));
        }
        match (present, declared(vm, name)) {
            (Some(nic), Some((wanted, given))) if nic.mac == given.mac_address.to_ascii_lowercase() => {
                let has_mtu = recorded.iter().find(|recorded| is_of(recorded, name));
                let has_mtu = has_mtu.is_none_or(|recorded| recorded_mtu(recorded) == wanted.mtu);
                if nic.model != model_of(wanted) || !is_launched_so(run, &nic.id, wanted) || !has_mtu {
                    changes.power_cycle.insert(name.clone());
                } else if !recorded.contains(&recorded_name(wanted, given))
                    && let Some(card) = card(observed, wanted, given, *slot, nic.port)
                {
                    changes.record.push(card);
                }
            }
            // Not declared any more, or another interface has its name.
            (Some(ObservedNic { port: None, .. }), _) => {
                changes.power_cycle.insert(name.clone());
            }
            (Some(_), _) | (None, None) => changes.unplug.push((name.clone(), *slot)),
            (None, Some((wanted, given))) => {
                changes.add(observed, machine, wanted, given, journal.port_of(name));
            }
        }
    }
    let is_lost = |name: &&str| !journal.slots.contains_key(*name) && declared(vm, name).is_none();
    let names = recorded.iter().filter_map(|name| name.split('/').next());
    changes.power_cycle.extend(names.filter(is_lost).map(str::to_owned));
    let mut slots = journal.clone();
    for wanted in &vm.spec.network_interfaces {
        let name = wanted.name.as_str();
        if journal.slots.contains_key(name) {
            continue;
        }
        slots.give_slot(name);
        match declared(vm, name) {
            Some((_, given)) => changes.add(observed, machine, wanted, given, slots.port_of(name)),
            None if !machine.nic_ports.is_empty() && model_of(wanted).is_hot_pluggable() => {
                changes.waiting.insert(name.to_owned());
            }
            None => {
                changes.power_cycle.insert(name.to_owned());
            }
        }
    }
    changes
}

/// Returns an interface of the spec with the addresses that it was given.
fn declared<'a>(vm: &'a VM, name: &str) -> Option<(&'a NetworkInterface, &'a InterfaceStatus)> {
    let wanted = vm.spec.network_interfaces.iter().find(|i| i.name.as_str() == name)?;
    let given = vm.status.as_ref()?.interfaces.iter().find(|i| i.name == name)?;
    Some((wanted, given))
}

/// Whether a card was launched or plugged in with the queues and the acceleration that are declared; one that an older agent launched has
/// one queue.
fn is_launched_so(run: &Run, id: &str, wanted: &NetworkInterface) -> bool {
    let nics = run.machine.as_ref().map(|machine| machine.nics.as_slice()).unwrap_or_default();
    let launched = nics.iter().find(|nic| nic.id == id).map_or((1, false), |nic| (nic.queues, nic.no_vhost));
    launched == (queues_of(wanted, Some(run)), is_unaccelerated(wanted))
}

fn card(
    observed: &Observed,
    wanted: &NetworkInterface,
    given: &InterfaceStatus,
    slot: u8,
    port: Option<u8>,
) -> Option<Card> {
    let mtu = observed.mtus.get(&given.network).copied();
    let tap = tap_of(&observed.instance, slot);
    let bridge = observed.bridges.get(&given.network)?.clone();
    let queues = queues_of(wanted, observed.journal.run.as_ref());
    Some(Card {
        recorded: recorded_name(wanted, given),
        interface: given.clone(),
        nic: NicSpec {
            id: nic_id(slot),
            tap: Tap::Name(tap.clone()),
            mac: given.mac_address.to_ascii_lowercase(),
            mtu: card_mtu(observed, wanted, given),
            slot,
            model: model_of(wanted),
            port,
            queues,
            no_vhost: is_unaccelerated(wanted),
        },
        tap: TapConfig { name: tap, bridge, mtu: mtu.unwrap_or(1500), multi_queue: queues > 1 },
        link: wanted.link,
    })
}

impl Changes {
    /// Adds a card that is missing, in this port of the machine.
    fn add(
        &mut self,
        observed: &Observed,
        machine: &MachineState,
        wanted: &NetworkInterface,
        given: &InterfaceStatus,
        port: Option<u8>,
    ) {
        let is_there = |port: &u8| machine.nic_ports.contains(port);
        let Some(port) = port.filter(is_there).filter(|_| model_of(wanted).is_hot_pluggable()) else {
            self.power_cycle.insert(given.name.clone());
            return;
        };
        let is_refused = observed.refused_interfaces.contains_key(&given.name)
            || observed.conflicts.contains_key(&given.name);
        match card(observed, wanted, given, port, Some(port)).filter(|_| !is_refused) {
            Some(card) => self.plug.push(card),
            None => {
                self.waiting.insert(given.name.clone());
            }
        }
    }

    /// Returns the names of the interfaces that are being plugged in, or wait for it, and of those being unplugged.
    pub(in crate::kinds::vm) fn under_way(&self) -> (Vec<String>, Vec<String>) {
        let plugged = self.plug.iter().map(|card| card.interface.name.clone());
        let waiting = self.waiting.iter().cloned().chain(self.join.iter().map(|(name, _)| name.clone()));
        (plugged.chain(waiting).collect(), self.unplug.iter().map(|(name, _)| name.clone()).collect())
    }

    /// Returns the steps that plug cards in, without those of networks that fail.
    pub(super) fn plug(&self, observed: &Observed) -> Vec<Step> {
        let cards = self.plug.iter().filter(|card| !is_failing(observed, card));
        plug_in(observed, &cards.collect::<Vec<_>>(), &self.record)
    }

    /// Returns the steps that plug in the cards of networks that fail, which are tried again. They come after all others.
    pub(super) fn plug_failing(&self, observed: &Observed) -> Vec<Step> {
        let cards = self.plug.iter().filter(|card| is_failing(observed, card));
        plug_in(observed, &cards.collect::<Vec<_>>(), &[])
    }

    /// Returns the steps that put taps on their bridges again. A card and its guest do not notice, and a guest that has its address needs
    /// no DHCP server for that.
    pub(super) fn join(&self) -> Vec<Step> {
        if self.join.is_empty() {
            return Vec::new();
        }
        let taps = self.join.iter().map(|(_, tap)| Step::MakeTap(tap.clone()));
        iter::once(Step::EnsureBridges).chain(taps).collect()
    }

    /// Returns the steps that unplug cards, from the journal that is there before them.
    pub(super) fn unplug(&self, observed: &Observed) -> Vec<Step> {
        let mut journal = observed.journal.clone();
        let mut steps = Vec::new();
        for (name, slot) in &self.unplug {
            journal = without_card(journal, name, *slot);
            steps.push(Step::UnplugNic { name: name.clone(), id: nic_id(*slot) });
            if self.without_tap.contains(name) {
                steps.push(Step::ReportLostTap(name.clone()));
            }
            steps.extend([
                Step::RemoveTap(tap_of(&observed.instance, *slot)),
                write_journal(journal.clone()),
                Step::EnsureNetworks,
            ]);
        }
        steps
    }

    /// Returns why the VM is not as declared yet, if it does not only wait for its next start.
    pub(super) fn readiness(&self, observed: &Observed) -> Option<Readiness> {
        if let Some((name, _)) = self.unplug.first() {
            let text =
                format!("the guest is asked to release network interface {name}, and has not done so yet");
            return Some(Readiness::Reconciling(Reason::Detaching, text));
        }
        if let Some(name) = self.without_tap.first() {
            return Some(Readiness::Stalled(Reason::TapMissing, tap_missing(name)));
        }
        if let Some((name, _)) = self.join.first() {
            let text = format!(
                "another program took the tap of network interface {name} off its bridge: it is put there again"
            );
            return Some(Readiness::Reconciling(Reason::Attaching, text));
        }
        if !self.plug.is_empty() || !self.record.is_empty() {
            let text = "network interfaces are being plugged in".to_owned();
            return Some(Readiness::Reconciling(Reason::Attaching, text));
        }
        let name = self.waiting.first()?;
        let refused = self.waiting.iter().find_map(|name| observed.refused_interfaces.get(name));
        let conflict = self.waiting.iter().find_map(|name| observed.conflicts.get(name));
        Some(match (refused, conflict) {
            (Some(why), _) => Readiness::Stalled(Reason::InvalidSpec, why.clone()),
            (None, Some(text)) => Readiness::Stalled(Reason::AddressConflict, text.clone()),
            (None, None) => Readiness::Reconciling(Reason::WaitingForNetwork, without_address(name)),
        })
    }
}

/// Whether the network of a card could not be made at the last attempt.
fn is_failing(observed: &Observed, card: &Card) -> bool {
    observed.failing_networks.contains(&card.interface.network)
}

/// Returns the steps that plug these cards in, and record them and those of `record`.
fn plug_in(observed: &Observed, plug: &[&Card], record: &[Card]) -> Vec<Step> {
    if plug.is_empty() && record.is_empty() {
        return Vec::new();
    }
    let mut steps = Vec::new();
    let mut journal = observed.journal.clone();
    for Card { interface, nic, .. } in plug {
        journal.slots.insert(interface.name.clone(), nic.slot);
        journal.in_ports.insert(interface.name.clone());
        journal.interfaces.retain(|known| known.name != interface.name);
        journal.interfaces.push(interface.clone());
    }
    if journal != observed.journal {
        steps.push(write_journal(journal.clone()));
    }
    steps.extend(plug.iter().map(|card| Step::EnsureNetworkOf(card.interface.name.clone())));
    steps.extend(lan_addresses::probe(observed, plug.iter().map(|card| &card.interface)));
    for card in plug {
        steps.extend([Step::MakeTap(card.tap.clone()), Step::PlugNic(Box::new(card.nic.clone()))]);
        if card.link == LinkState::Down {
            steps.push(Step::SetLink { nic: card.nic.id.clone(), up: false });
        }
    }
    let mut cards: Vec<&Card> = plug.iter().copied().chain(record).collect();
    cards.sort_by_key(|card| card.nic.slot);
    for card in cards {
        journal = with_card(journal, card);
    }
    steps.push(write_journal(journal));
    steps
}

/// Returns the message about an interface whose tap is no longer on the host, and whose card cannot be exchanged.
pub(in crate::kinds::vm) fn tap_missing(name: &str) -> String {
    format!("the tap of {name} was removed from the host by another program: restart the VM (restartToken)")
}

/// Returns the journal of a machine that has this card.
fn with_card(mut journal: Journal, card: &Card) -> Journal {
    if let Some(run) = &mut journal.run {
        let names = run.interfaces.get_or_insert_default();
        names.retain(|recorded| !is_of(recorded, &card.interface.name));
        names.push(card.recorded.clone());
        if let Some(machine) = &mut run.machine {
            machine.nics.retain(|nic| nic.id != card.nic.id);
            machine.nics.push(card.nic.clone());
        }
    }
    journal
}

/// Returns the journal of a machine that has no card in this slot.
fn without_card(mut journal: Journal, name: &str, slot: u8) -> Journal {
    journal.slots.remove(name);
    journal.in_ports.remove(name);
    journal.interfaces.retain(|interface| interface.name != name);
    if let Some(run) = &mut journal.run {
        run.interfaces.iter_mut().for_each(|names| names.retain(|recorded| !is_of(recorded, name)));
        run.machine.iter_mut().for_each(|machine| machine.nics.retain(|nic| nic.id != nic_id(slot)));
    }
    journal
}

/// Whether a record, `name/MAC`, is of the interface with this name.
fn is_of(recorded: &str, name: &str) -> bool {
    recorded.split('/').next() == Some(name)
}

/// Whether the cards of the machine are those that its journal has: a state can be loaded by a machine with the same cards only.
pub(super) fn are_recorded(observed: &Observed) -> bool {
    observed.machine.as_ref().is_none_or(|machine| has_recorded_cards(&observed.journal, machine))
}
