//! Addresses each tap's guest may send from.
//!
//! An instance's journal records the interfaces and slots it was started with. The journal is therefore the source, not
//! the VM, which may have been changed since.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_api::vm::InterfaceStatus;

use super::tap_of;
use crate::journal::Journal;
use berth_host::Port;

/// A tap of an instance, with its network and the addresses of its guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestPort {
    /// As `namespace/name`.
    pub(crate) network: String,
    pub(crate) port: Port,
    /// The security groups (`namespace/name`) that its interface was started with.
    pub(crate) groups: Vec<String>,
}

/// Returns what ports have, sorted and each once.
pub(crate) fn per_port<T: Ord>(ports: &[GuestPort], of_port: impl Fn(&GuestPort) -> Option<T>) -> Vec<T> {
    let mut all: Vec<T> = ports.iter().filter_map(of_port).collect();
    all.sort();
    all.dedup();
    all
}

/// Taps by instance, according to its journal as last read or written.
#[derive(Debug, Default)]
pub(crate) struct GuestPorts {
    by_instance: Mutex<BTreeMap<String, Vec<GuestPort>>>,
}

impl GuestPorts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<GuestPort>>> {
        self.by_instance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the taps of an instance and the addresses its guest may send from on each. `by_status`: the interfaces
    /// in the VM's status, for a journal of an earlier build that does not list them.
    pub(crate) fn record(&self, instance: &str, journal: &Journal, by_status: &[InterfaceStatus]) {
        self.lock().insert(instance.to_owned(), ports_of(instance, journal, by_status));
    }

    /// Returns the records of these instances; those without one are missing.
    pub(crate) fn of(&self, instances: &BTreeSet<String>) -> BTreeMap<String, Vec<GuestPort>> {
        let known = self.lock();
        let known = known.iter().filter(|(instance, _)| instances.contains(*instance));
        known.map(|(instance, ports)| (instance.clone(), ports.clone())).collect()
    }

    /// Adds records that were read, unless the instance has one, and removes the records of all instances but these.
    pub(crate) fn keep_only(&self, instances: &BTreeSet<String>, read: &BTreeMap<String, Vec<GuestPort>>) {
        let mut known = self.lock();
        for (instance, ports) in read {
            known.entry(instance.clone()).or_insert_with(|| ports.clone());
        }
        known.retain(|instance, _| instances.contains(instance));
    }
}

/// Returns the taps of an instance according to its journal. For a journal of an earlier agent, which recorded no
/// interfaces, those in the VM's status are used.
pub(crate) fn ports_of(instance: &str, journal: &Journal, by_status: &[InterfaceStatus]) -> Vec<GuestPort> {
    let interface = |name: &str| {
        let mut all = journal.interfaces.iter().chain(by_status);
        all.find(|interface| interface.name == name)
    };
    let recorded = |(name, slot): (&String, &u8)| {
        let interface = interface(name)?;
        // On a network with another DHCP server, or without IPv4, none is known.
        let address: Option<Ipv4Addr> = match interface.address.as_str() {
            "" => None,
            known => Some(known.parse().ok()?),
        };
        let mac = interface.mac_address.to_ascii_lowercase();
        let ipv6 = interface.ipv6_address.parse().ok();
        let port = Port { tap: tap_of(instance, *slot), mac, address, ipv6 };
        let groups = interface.security_groups.iter().map(|name| format!("{}/{name}", journal.namespace));
        Some(GuestPort { network: interface.network.clone(), port, groups: groups.collect() })
    };
    journal.slots.iter().filter_map(recorded).collect()
}
