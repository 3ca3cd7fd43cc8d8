//! The places of a VM's disks on their buses. They are kept over power cycles: a disk that is added or taken off moves no other. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_qemu::machine::Bus;
use serde::{Deserialize, Serialize};

/// The functions of a PCI slot. A guest looks for the others of a slot only where the first one is.
const FUNCTIONS: u8 = 8;

/// The place of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskPlace {
    pub(crate) bus: Bus,
    /// The SCSI target, the number of the PCI function, or the SATA port.
    pub(crate) number: u8,
}

impl DiskPlace {
    /// Whether a disk can be there when a machine is started.
    fn is_of_a_start(self) -> bool {
        self.number < self.bus.places()
    }
}

/// The places of disks, by their names in the VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct DiskPlaces(BTreeMap<String, DiskPlace>);

impl DiskPlaces {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, DiskPlace)> {
        self.0.iter().map(|(name, place)| (name.as_str(), *place))
    }

    pub(crate) fn get(&self, name: &str) -> Option<DiskPlace> {
        self.0.get(name).copied()
    }

    /// Records the place of a disk. Another disk that is recorded there has left it.
    pub(crate) fn record(&mut self, name: &str, place: DiskPlace) {
        if place.is_of_a_start() {
            self.0.retain(|other, taken| other == name || *taken != place);
            self.0.insert(name.to_owned(), place);
        }
    }

    /// Removes the places of disks for which this does not hold.
    pub(crate) fn keep(&mut self, holds: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| holds(name));
    }

    /// Returns the places for a start with these disks: each keeps the one that it has on its bus, and the others get the lowest free ones in
    /// the order of the list. On virtio-blk, the first disk of a slot moves to the first function, if that is left empty.
    pub(crate) fn for_start(mut self, disks: &[(&str, Bus)]) -> Self {
        self.0.retain(|name, place| place.is_of_a_start() && disks.contains(&(name.as_str(), place.bus)));
        for (name, bus) in disks {
            if self.get(name).is_none()
                && let Some(number) = self.lowest_free(*bus, &BTreeSet::new())
            {
                self.record(name, DiskPlace { bus: *bus, number });
            }
        }
        self.take_first_functions();
        self
    }

    fn take_first_functions(&mut self) {
        for first in (0..Bus::VirtioBlk.places()).step_by(usize::from(FUNCTIONS)) {
            let is_in_slot = |place: &DiskPlace| {
                place.bus == Bus::VirtioBlk && (first..first + FUNCTIONS).contains(&place.number)
            };
            let in_slot = self.0.values_mut().filter(|place| is_in_slot(place));
            if let Some(lowest) = in_slot.min_by_key(|place| place.number) {
                lowest.number = first;
            }
        }
    }

    /// Returns the place for a disk that is plugged into a machine in which these numbers of the bus are taken: the one that it has, or
    /// else the lowest free one. None: QEMU chooses one, and it gets another one at the next start.
    pub(crate) fn for_plug(&self, name: &str, bus: Bus, taken: &BTreeSet<u8>) -> Option<DiskPlace> {
        let own = self.get(name).filter(|own| own.bus == bus && !taken.contains(&own.number));
        own.or_else(|| Some(DiskPlace { bus, number: self.lowest_free(bus, taken)? }))
    }

    fn lowest_free(&self, bus: Bus, taken: &BTreeSet<u8>) -> Option<u8> {
        let is_recorded = |number| self.0.values().any(|place| *place == DiskPlace { bus, number });
        (0..bus.places()).find(|number| !taken.contains(number) && !is_recorded(*number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCSI: Bus = Bus::VirtioScsi;

    fn numbers(places: &DiskPlaces) -> Vec<(&str, u8)> {
        places.iter().map(|(name, place)| (name, place.number)).collect()
    }

    #[test]
    fn a_disk_keeps_its_place_when_others_come_and_go() {
        let first = DiskPlaces::default().for_start(&[("root", SCSI), ("a", SCSI), ("b", SCSI)]);
        assert_eq!(numbers(&first), [("a", 1), ("b", 2), ("root", 0)]);
        let without = first.for_start(&[("root", SCSI), ("b", SCSI)]);
        assert_eq!(numbers(&without), [("b", 2), ("root", 0)]);
        let with_another = without.for_start(&[("c", SCSI), ("root", SCSI), ("b", SCSI), ("d", SCSI)]);
        assert_eq!(numbers(&with_another), [("b", 2), ("c", 1), ("d", 3), ("root", 0)]);
    }

    #[test]
    fn each_bus_has_places_of_its_own_and_a_disk_on_another_bus_has_another_place() {
        let first = DiskPlaces::default().for_start(&[
            ("root", SCSI),
            ("a", SCSI),
            ("b", Bus::Sata),
            ("c", Bus::VirtioBlk),
        ]);
        assert_eq!(numbers(&first), [("a", 1), ("b", 0), ("c", 0), ("root", 0)]);
        let moved =
            first.for_start(&[("root", SCSI), ("a", Bus::Sata), ("b", Bus::Sata), ("c", Bus::VirtioBlk)]);
        assert_eq!(moved.get("a"), Some(DiskPlace { bus: Bus::Sata, number: 1 }));
    }

    #[test]
    fn the_first_function_of_a_slot_is_never_empty() {
        const BLK: Bus = Bus::VirtioBlk;
        let names: Vec<String> = (0..12).map(|number| format!("d{number:02}")).collect();
        let listed = |from: usize| -> Vec<(&str, Bus)> {
            names.iter().skip(from).map(|name| (name.as_str(), BLK)).collect()
        };
        let all = DiskPlaces::default().for_start(&listed(0));
        assert_eq!((all.get("d00"), all.get("d09")), (place(0), place(9)));
        let without_first = all.clone().for_start(&listed(1));
        assert_eq!(numbers(&without_first)[..2], [("d01", 0), ("d02", 2)]);
        assert_eq!(without_first.get("d08"), place(8), "that of another slot");
        assert_eq!(numbers(&all.for_start(&listed(9)))[..2], [("d09", 8), ("d10", 10)]);
    }

    fn place(number: u8) -> Option<DiskPlace> {
        Some(DiskPlace { bus: Bus::VirtioBlk, number })
    }

    #[test]
    fn a_disk_that_is_plugged_in_has_a_place_which_no_other_disk_has_or_returns_to() {
        let mut places = DiskPlaces::default().for_start(&[("root", SCSI), ("a", SCSI)]);
        let at = |places: &DiskPlaces, name: &str, taken: &[u8]| {
            places.for_plug(name, SCSI, &taken.iter().copied().collect()).map(|place| place.number)
        };
        assert_eq!(at(&places, "b", &[0]), Some(2), "1 is that of a disk which is not plugged in now");
        assert_eq!(at(&places, "a", &[0]), Some(1));
        assert_eq!(at(&places, "a", &[0, 1]), Some(2), "something else was plugged in there meanwhile");
        places.record("b", DiskPlace { bus: SCSI, number: 1 });
        assert_eq!(numbers(&places), [("b", 1), ("root", 0)]);
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(at(&places, "c", &all), None);
    }

    #[test]
    fn places_that_no_disk_of_a_start_can_have_are_not_recorded() {
        let mut places = DiskPlaces::default();
        places.record("far", DiskPlace { bus: SCSI, number: SCSI.places() });
        places.record("blk", DiskPlace { bus: Bus::VirtioBlk, number: 16 });
        places.record("sata", DiskPlace { bus: Bus::Sata, number: 6 });
        assert!(places.is_empty(), "{places:?}");
    }
}
