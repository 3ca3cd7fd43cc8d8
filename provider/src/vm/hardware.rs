//! Screen, sound, serial ports, vsock, boot order and keys of Secure Boot of a VM: fields, and what a plan checks.

use berth_api::Firmware;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Effect, Field, Shape},
    form::Form,
    references::SECRET,
};

pub(super) fn secure_boot_keys() -> Field {
    let fields = vec![
        Field::spec("secret_name", Shape::Text(Form::DottedName))
            .required()
            .refers(SECRET)
            .effect(Effect::PowerCycle),
        Field::spec("token", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
    ];
    Field::spec("secure_boot_keys", Shape::Object(fields)).effect(Effect::PowerCycle)
}

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
                format!("{path} is for VMs with a screen: set graphics to \"VGA\", or leave {path} out.");
            found.push(Diagnostic::error("No graphics card", detail).at(path));
        }
    }
    found.extend(check_boot_order(config));
    found.extend(check_secure_boot_keys(config));
    found.extend(check_suspend_mode(config));
    found
}

/// Refuses the suspension to memory with firmware that has none, and with a watchdog.
fn check_suspend_mode(config: &Value) -> Option<Diagnostic> {
    if config.get("suspend_mode").as_str() != Some("Memory") {
        return None;
    }
    if config.get("watchdog").as_str().is_some() {
        let detail = "suspend_mode = \"Memory\" and watchdog exclude each other: the timer of the watchdog runs on while the guest sleeps.";
        return Some(
            Diagnostic::error("A watchdog with suspension to memory", detail)
                .at(AttributePath::root("suspend_mode")),
        );
    }
    let is_refused = config.get("firmware").as_str() == Some(Firmware::UEFISecureBoot.as_str());
    let detail = "The firmware of UEFISecureBoot has no suspension to memory: set suspend_mode to \"Disk\", or leave it out.";
    is_refused
        .then(|| Diagnostic::error("No suspension to memory", detail).at(AttributePath::root("suspend_mode")))
}

/// Refuses keys of Secure Boot for firmware without it.
fn check_secure_boot_keys(config: &Value) -> Option<Diagnostic> {
    let (keys, firmware) = (config.get("secure_boot_keys"), config.get("firmware"));
    if keys.is_null() || keys.is_unknown() || firmware.is_unknown() {
        return None;
    }
    let is_secure_boot = match firmware.as_str() {
        Some(firmware) => firmware == Firmware::UEFISecureBoot.as_str(),
        // The class may declare it.
        None => !config.get("class").is_null(),
    };
    let path = AttributePath::root("secure_boot_keys");
    let detail = format!("{path}: it needs firmware = \"UEFISecureBoot\".");
    (!is_secure_boot).then(|| Diagnostic::error("Invalid secure_boot_keys", detail).at(path))
}

fn check_boot_order(config: &Value) -> Option<Diagnostic> {
    let (order, interfaces) = (config.get("boot_order"), config.get("network_interfaces"));
    let sources: Vec<&str> = order.elements().iter().filter_map(Value::as_str).collect();
    let path = AttributePath::root("boot_order");
    let twice = sources.iter().enumerate().find(|(i, source)| sources[..*i].contains(source));
    if let Some((i, source)) = twice {
        let path = path.index(i);
        let detail = format!("{path}: {source:?} is in the list twice: remove one of them.");
        return Some(Diagnostic::error("A boot source is listed twice", detail).at(path));
    }
    // Without the attribute a VM has an interface.
    let has_card = interfaces.is_null() || interfaces.is_unknown() || !interfaces.elements().is_empty();
    (sources.contains(&"Network") && !has_card).then(|| {
        let detail = "boot_order has \"Network\", and network_interfaces is empty: declare an interface.";
        Diagnostic::error("No network to boot from", detail).at(path)
    })
}
