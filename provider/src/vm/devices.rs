//! The PCI devices of a VM: what a plan checks.

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
