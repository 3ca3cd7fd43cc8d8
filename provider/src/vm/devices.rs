//! The PCI and USB devices, the vGPUs, the scratch disk and the shares of a VM: what a plan checks.

use std::collections::BTreeSet;

use berth_api::passthrough::{MOST_PCI_DEVICES, MOST_USB_DEVICES};
use berth_api::vgpus::MOST_VGPUS;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
};

/// The attributes with devices of the host: the name, the word for the devices, and their maximum number in a VM.
const LISTS: [(&str, &str, i64); 3] = [
    ("pci_devices", "PCI devices", MOST_PCI_DEVICES),
    ("usb_devices", "USB devices", MOST_USB_DEVICES),
    ("vgpus", "vGPUs", MOST_VGPUS),
];

pub(crate) fn pci_devices() -> Field {
    devices("pci_devices")
}

pub(crate) fn usb_devices() -> Field {
    devices("usb_devices")
}

pub(crate) fn vgpus() -> Field {
    devices("vgpus")
}

fn devices(list: &'static str) -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name)).required(),
        Field::spec("count", Shape::Integer).default(1).effect(Effect::PowerCycle),
    ];
    Field::spec(list, Shape::Keyed(fields)).effect(Effect::PowerCycle)
}

pub(crate) fn scratch_disk() -> Field {
    let text = |name| Field::spec(name, Shape::Text(Form::Any)).effect(Effect::PowerCycle);
    let filesystem = vec![text("type").required(), text("label")];
    let fields = vec![
        Field::spec("size", Shape::Text(Form::Quantity)).required().effect(Effect::PowerCycle),
        Field::spec("filesystem", Shape::Object(filesystem)).effect(Effect::PowerCycle),
    ];
    Field::spec("scratch_disk", Shape::Object(fields)).effect(Effect::PowerCycle)
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
            let detail = format!(
                "Two shares have the tag {tag:?}: the guest could mount only one of them. Give one of them another tag."
            );
            found.push(Diagnostic::error("Duplicate tag", detail).at(path));
        }
    }
    if !shares.is_empty() && config.get("power").as_str() == Some("Suspended") {
        let detail = "A VM with shares cannot be suspended: their state cannot be saved. Set power to Stopped, or remove the shares.";
        found.push(
            Diagnostic::error("A VM with shares cannot be suspended", detail)
                .at(AttributePath::root("power")),
        );
    }
    found
}

/// Checks the lists of devices of the host in a VM or a class.
pub(crate) fn check(config: &Value) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (list, noun, most) in LISTS {
        let devices = config.get(list).elements();
        let count = |device: &Value| match device.get("count") {
            count if count.is_null() => Some(1),
            count => count.as_i64(),
        };
        let total: i64 = devices.iter().filter_map(count).fold(0, i64::saturating_add);
        if total > most {
            let detail = format!("{total} {noun} are declared; a VM can have at most {most}.");
            let path = AttributePath::root(list);
            found.push(Diagnostic::error(format!("Too many {noun}"), detail).at(path));
        }
        if !devices.is_empty() && config.get("power").as_str() == Some("Suspended") {
            let detail = format!(
                "A VM with {noun} of its host cannot be suspended: their state cannot be saved. Set power to Stopped, or remove them from {list}."
            );
            let path = AttributePath::root("power");
            found.push(Diagnostic::error(format!("A VM with {noun} cannot be suspended"), detail).at(path));
        }
    }
    found
}
