//! The PCI devices and the shares of a VM: what a plan checks.

use std::collections::BTreeSet;

use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
};

/// The maximum number of devices of a VM.
const MOST: i64 = berth_api::passthrough::MOST_PCI_DEVICES;

pub(super) fn pci_devices() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name)).required(),
        Field::spec("count", Shape::Integer).default(1).effect(Effect::PowerCycle),
    ];
    Field::spec("pci_devices", Shape::Keyed(fields)).effect(Effect::PowerCycle)
}

pub(super) fn shares() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name)).required(),
        Field::spec("tag", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
        Field::spec("read_only", Shape::Bool).default(false).effect(Effect::PowerCycle),
    ];
    Field::spec("shares", Shape::Keyed(fields)).effect(Effect::PowerCycle)
}

pub(super) fn check_shares(config: &Value) -> Vec<Diagnostic> {
    let shares = config.get("shares").elements();
    let mut found = Vec::new();
    let mut tags = BTreeSet::new();
    for (i, share) in shares.iter().enumerate() {
        let of_name = || share.get("name").as_str().filter(|_| share.get("tag").is_null());
        let Some(tag) = share.get("tag").as_str().or_else(of_name) else { continue };
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        let path = AttributePath::root("shares").index(i).attribute("tag");
        if !tag.bytes().all(is_plain) || !tag.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            let detail = format!(
                "{tag:?} is not a tag: use letters, digits, \"-\", \".\" and \"_\", first a letter or a digit."
            );
            found.push(Diagnostic::error("Invalid tag", detail).at(path.clone()));
        }
        if !tags.insert(tag) {
            let detail = format!("Two shares have the tag {tag:?}: the guest could mount only one of them.");
            found.push(Diagnostic::error("The tag is another share's", detail).at(path));
        }
    }
    if !shares.is_empty() && config.get("power").as_str() == Some("Suspended") {
        let detail =
            "A VM with shares cannot be suspended: their state cannot be saved. Set power to Stopped.";
        found.push(Diagnostic::error("Shares cannot be suspended", detail).at(AttributePath::root("power")));
    }
    found
}

pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let devices = config.get("pci_devices").elements();
    let path = AttributePath::root("pci_devices");
    let count = |device: &Value| match device.get("count") {
        count if count.is_null() => Some(1),
        count => count.as_i64(),
    };
    let total: i64 = devices.iter().filter_map(count).fold(0, i64::saturating_add);
    let mut found = Vec::new();
    if total > MOST {
        let detail = format!("{total} PCI devices are declared; a VM can have at most {MOST}.");
        found.push(Diagnostic::error("Too many PCI devices", detail).at(path.clone()));
    }
    if !devices.is_empty() && config.get("power").as_str() == Some("Suspended") {
        let detail = "A VM with PCI devices of its host cannot be suspended: their state cannot be saved. Set power to Stopped.";
        found.push(
            Diagnostic::error("PCI devices cannot be suspended", detail).at(AttributePath::root("power")),
        );
    }
    found
}
