//! Network cards of fake machines: `netdev_add`, `device_add`, `set_link` and their inverses.

use serde_json::{Map, Value};

use super::command_error::CommandError;
use super::machine::{Device, Machine, Nic, path_of};
use crate::machine::{NicModel, NicSpec};
use crate::nics::{port_of, tap_files};

const DEVICE_KEYS: [&str; 10] =
    ["driver", "id", "netdev", "mac", "romfile", "bus", "addr", "host_mtu", "mq", "vectors"];

impl Machine {
    /// Gives QEMU the tap of a card. A tap can be opened once.
    pub(super) fn lend_tap(&mut self, nic: &NicSpec, tap: &str) -> std::io::Result<()> {
        if self.taps.in_use().any(|used| used == tap) {
            return Err(std::io::ErrorKind::ResourceBusy.into());
        }
        self.taps.lent.extend(tap_files(&nic.id, nic.queues).map(|name| (name, tap.to_owned())));
        Ok(())
    }

    pub(super) fn close_descriptor(&mut self, args: &Map<String, Value>) -> Result<(), CommandError> {
        let name = text(args, "fdname")?;
        let not_found = || CommandError::generic(format!("File descriptor named '{name}' not found"));
        self.taps.lent.remove(name).map(drop).ok_or_else(not_found)
    }

    pub(super) fn add_backend(&mut self, args: &Map<String, Value>) -> Result<(), CommandError> {
        let (id, names) = (text(args, "id")?, text(args, "fds")?);
        if text(args, "type")? != "tap" || args.get("vhost").and_then(Value::as_bool) != Some(false) {
            return Err(CommandError::generic("this fake has taps without vhost"));
        }
        if self.taps.backends.contains_key(id) {
            return Err(CommandError::generic(format!("Duplicate ID '{id}' for netdev")));
        }
        for name in names.split(':') {
            let Some(tap) = self.taps.lent.remove(name) else {
                let text = format!("File descriptor named '{name}' has not been found");
                return Err(CommandError::generic(text));
            };
            self.taps.backends.insert(id.to_owned(), tap);
        }
        Ok(())
    }

    pub(super) fn remove_backend(&mut self, args: &Map<String, Value>) -> Result<(), CommandError> {
        let id = text(args, "id")?;
        if self.devices.values().any(|device| device.nic.as_ref().is_some_and(|nic| nic.backend == id)) {
            return Err(CommandError::generic(format!("this fake refuses to take '{id}' from below a card")));
        }
        let not_found = || CommandError::not_found(format!("Device '{id}' not found"));
        self.taps.backends.remove(id).map(drop).ok_or_else(not_found)
    }

    pub(super) fn plug_nic(
        &mut self,
        model: NicModel,
        args: &Map<String, Value>,
    ) -> Result<(), CommandError> {
        if let Some(key) = args.keys().find(|key| !DEVICE_KEYS.contains(&key.as_str())) {
            let driver = model.driver();
            return Err(CommandError::generic(format!("Property '{driver}.{key}' not found")));
        }
        let (id, bus, backend) = (text(args, "id")?, text(args, "bus")?, text(args, "netdev")?);
        let mac = text(args, "mac")?.to_owned();
        if self.devices.contains_key(id) {
            return Err(CommandError::generic(format!("Duplicate device ID '{id}'")));
        }
        let path = path_of(bus);
        if !self.devices.contains_key(bus) || port_of(&path).is_none() {
            return Err(CommandError::generic(format!("Bus '{bus}' does not support hotplugging")));
        }
        let mut cards = self.devices.values().filter_map(|device| device.nic.as_ref());
        if cards.any(|nic| nic.bus == path || nic.backend == backend) {
            return Err(CommandError::generic(format!("PCI: slot 0 of {bus}, or {backend}, is in use")));
        }
        if !self.taps.backends.contains_key(backend) {
            return Err(CommandError::generic(format!("Property 'netdev' can't find value '{backend}'")));
        }
        let card = Nic { backend: backend.to_owned(), mac, bus: path, is_up: true };
        let device = Device { nic: Some(card), ..Device::without_parts(model.driver()) };
        self.devices.insert(id.to_owned(), device);
        Ok(())
    }

    pub(super) fn set_link(&mut self, args: &Map<String, Value>) -> Result<(), CommandError> {
        let id = text(args, "name")?;
        let up =
            args.get("up").and_then(Value::as_bool).ok_or_else(|| CommandError::kind("up", "boolean"))?;
        let not_found = || CommandError::not_found(format!("Device '{id}' not found"));
        let nic = self.devices.get_mut(id).and_then(|device| device.nic.as_mut()).ok_or_else(not_found)?;
        nic.is_up = up;
        Ok(())
    }

    pub(super) fn nics(&self) -> impl Iterator<Item = (&String, &Nic)> {
        self.devices.iter().filter_map(|(id, device)| Some((id, device.nic.as_ref()?)))
    }
}

fn text<'a>(args: &'a Map<String, Value>, name: &str) -> Result<&'a str, CommandError> {
    let value = args.get(name).ok_or_else(|| CommandError::missing(name))?;
    value.as_str().ok_or_else(|| CommandError::kind(name, "string"))
}
