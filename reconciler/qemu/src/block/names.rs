//! The names of a disk's nodes.

use std::collections::BTreeSet;

use crate::machine::{BELOW, CdromSpec, MAX_CDROMS};

/// The beginning of the names of the nodes that the firmware has.
const FIRMWARE: &str = "firmware-";
/// The beginning of the names that QEMU chooses.
const UNNAMED: &str = "#";

/// Whether the files below the one that this disk was opened with are a part of its node: so an earlier version of berth began its
/// machines, and QEMU 7.2 aborts if such a chain is replaced. After a snapshot another node is above it, whose chain can be replaced.
pub(super) fn is_inline(names: &[String], id: &str) -> bool {
    own(names, id) == [id]
}

/// Returns those of these nodes that are of a disk and have names of their own: a node before those below it.
pub(super) fn own<'a>(names: &'a [String], id: &str) -> Vec<&'a String> {
    let mut written: Vec<(u32, &String)> =
        names.iter().filter_map(|name| Some((place_in_chain(name, id)?, name))).collect();
    written.sort();
    let is_below = |name: &&String| name.strip_prefix(id).is_some_and(|rest| rest.starts_with(BELOW));
    let written = written.into_iter().rev().map(|(_, name)| name);
    written.chain(names.iter().filter(is_below)).collect()
}

/// Returns the place of a node among those that the disk has written to: 0 for the one named like the disk, the lowest.
pub(super) fn place_in_chain(node: &str, id: &str) -> Option<u32> {
    match node.strip_prefix(id)? {
        "" => Some(0),
        rest => rest.strip_prefix('.')?.parse().ok(),
    }
}

/// Returns the ids of the disks of these nodes that are not among the ids of the devices.
pub(super) fn without_device(names: &[String], devices: &[String]) -> BTreeSet<String> {
    let of_device = |name: &str| devices.iter().any(|id| is_of(name, id));
    let left = names.iter().map(String::as_str).filter(|name| is_of_disk(name) && !of_device(name));
    left.map(|name| disk_of(name).to_owned()).collect()
}

/// Whether a disk may have nodes that it does not use: each snapshot and each mirror adds one above, and each other chain one below.
pub(super) fn has_unused(names: &[String], id: &str) -> bool {
    let (written, below): (Vec<_>, Vec<_>) =
        own(names, id).into_iter().partition(|name| place_in_chain(name, id).is_some());
    written.len() > 1 || below.len() > 1
}

fn is_of(node: &str, id: &str) -> bool {
    place_in_chain(node, id).is_some() || node.strip_prefix(id).is_some_and(|rest| rest.starts_with(BELOW))
}

/// Whether a node is neither of the firmware nor of a medium.
fn is_of_disk(node: &str) -> bool {
    let is_medium = (0..MAX_CDROMS).any(|slot| {
        let rest = node.strip_prefix(&CdromSpec::id(slot));
        rest.is_some_and(|rest| rest.starts_with('-'))
    });
    !is_medium && !node.starts_with(FIRMWARE) && !node.starts_with(UNNAMED)
}

/// Returns the id of the disk that a node is of.
fn disk_of(node: &str) -> &str {
    if let Some((id, _)) = node.split_once(BELOW) {
        return id;
    }
    match node.rsplit_once('.') {
        Some((id, place)) if place.parse::<u32>().is_ok() => id,
        _ => node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_node_without_a_device_is_of_a_disk_that_the_machine_does_not_have() {
        let names = texts(&[
            "#block7",
            "firmware-code",
            "firmware-vars",
            "cdrom0-abcdef",
            "seed",
            "v-1",
            "v-1.2",
            "v-1.below-0",
            "v-2.below-3",
            "v-3.1",
            "v-4",
        ]);
        let left = without_device(&names, &texts(&["seed", "v-1", "nic0"]));
        assert_eq!(left.into_iter().collect::<Vec<_>>(), ["v-2", "v-3", "v-4"]);
    }

    #[test]
    fn a_disk_with_its_own_node_and_one_chain_below_uses_all_of_them() {
        assert!(!has_unused(&texts(&["v-1", "v-1.below-0", "v-2", "v-2.1"]), "v-1"));
        assert!(has_unused(&texts(&["v-1", "v-1.below-0", "v-1.1"]), "v-1"));
        assert!(has_unused(&texts(&["v-1", "v-1.below-0", "v-1.below-1"]), "v-1"));
    }
}
