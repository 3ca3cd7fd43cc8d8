//! The items of a virtual system's hardware.

use std::collections::BTreeSet;

use roxmltree::Node;

use super::short;
use crate::import::xml::{local, text};

/// The elements that describe a device.
const ITEMS: [&str; 3] = ["Item", "StorageItem", "EthernetPortItem"];

/// The resource type of an item.
pub(super) fn kind(item: Node<'_, '_>) -> Option<u32> {
    text(item, &["ResourceType"])?.parse().ok()
}

/// The items of the chosen configuration: one of it replaces the one of all configurations with the same id. Ranges of a size are no items
/// of their own.
pub(super) fn items<'a, 'i>(hardware: Node<'a, 'i>, chosen: Option<&str>) -> Vec<Node<'a, 'i>> {
    let is_item = |node: &Node<'a, 'i>| node.is_element() && ITEMS.contains(&node.tag_name().name());
    let is_range = |node: &Node<'a, 'i>| matches!(local(*node, "bound"), Some("min" | "max"));
    let is_chosen = |node: &Node<'a, 'i>| match (local(*node, "configuration"), chosen) {
        (None, _) => true,
        (Some(of), Some(chosen)) => of.split_whitespace().any(|id| id == chosen),
        (Some(_), None) => false,
    };
    let mut items: Vec<Node<'a, 'i>> =
        hardware.children().filter(|node| is_item(node) && !is_range(node) && is_chosen(node)).collect();
    let is_special = |node: &Node<'a, 'i>| local(*node, "configuration").is_some();
    let special: BTreeSet<&str> = items
        .iter()
        .filter(|node| is_special(node))
        .filter_map(|node| text(*node, &["InstanceID"]))
        .collect();
    items.retain(|node| {
        is_special(node) || text(*node, &["InstanceID"]).is_none_or(|instance| !special.contains(instance))
    });
    items
}

/// The name of an item.
pub(super) fn name_of(item: Node<'_, '_>) -> String {
    let name = text(item, &["ElementName"]).or_else(|| text(item, &["Caption"]));
    short(name.unwrap_or("a device"))
}

/// A number of an item. The largest one if it has none.
pub(super) fn number(item: Node<'_, '_>, field: &str) -> u32 {
    text(item, &[field]).and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}
