//! Screen, sound, serial ports, vsock and boot order of a VM: fields, and what a plan checks.

use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
};

pub(super) fn fields() -> [Field; 6] {
    [
        Field::spec("resolution", Shape::Text(Form::Any)),
        Field::spec("keyboard_layout", Shape::Text(Form::Any)),
        Field::spec("sound", Shape::Bool).default(false),
        Field::spec("serial_ports", Shape::Integer),
        Field::spec("vsock", Shape::Bool).default(false),
        Field::spec("boot_order", Shape::TextList(Form::BootSource)),
    ]
    .map(|field| field.effect(Effect::PowerCycle))
}

pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let graphics = config.get("graphics");
    let has_screen = graphics.is_unknown() || graphics.as_str() == Some("VGA");
    for name in ["resolution", "keyboard_layout"] {
        if config.get(name).as_str().is_some() && !has_screen {
            let path = AttributePath::root(name);
            let detail =
                format!("{path} is for a screen, which the VM does not have: set graphics to \"VGA\".");
            found.push(Diagnostic::error("A VM without a screen", detail).at(path));
        }
    }
    found.extend(check_boot_order(config));
    found
}

fn check_boot_order(config: &Value) -> Option<Diagnostic> {
    let (order, interfaces) = (config.get("boot_order"), config.get("network_interfaces"));
    let sources: Vec<&str> = order.elements().iter().filter_map(Value::as_str).collect();
    let path = AttributePath::root("boot_order");
    let twice = sources.iter().enumerate().find(|(i, source)| sources[..*i].contains(source));
    if let Some((i, source)) = twice {
        let path = path.index(i);
        let detail = format!("{path}: {source:?} is in the list twice.");
        return Some(Diagnostic::error("A boot source is listed twice", detail).at(path));
    }
    // Without the attribute a VM has an interface.
    let has_card = interfaces.is_null() || interfaces.is_unknown() || !interfaces.elements().is_empty();
    (sources.contains(&"Network") && !has_card).then(|| {
        let detail = "boot_order has \"Network\", and network_interfaces is empty: declare an interface.";
        Diagnostic::error("No network to boot from", detail).at(path)
    })
}
