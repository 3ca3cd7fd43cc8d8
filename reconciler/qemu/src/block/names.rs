//! The names of a disk's nodes.

use crate::machine::BELOW;

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
