//! CD-ROM drives of fake machines.

use serde_json::{Map, Value, json};

use super::blocks;
use super::command_error::CommandError;
use super::machine::{Cdrom, Machine};
use super::model::MachineModel;
use crate::machine::{CdromSpec, Medium, medium_blockdev};

/// Gives a new machine its drives with their media.
pub(super) fn build(world: &mut MachineModel, pid: i32, cdroms: &[CdromSpec]) -> Result<(), CommandError> {
    for cdrom in cdroms {
        let node = match &cdrom.medium {
            None => None,
            Some(medium) => {
                world.granted.insert(medium.file.clone(), false);
                let arguments = medium_blockdev(cdrom.slot, medium);
                let arguments =
                    arguments.as_object().ok_or_else(|| CommandError::generic("not an object"))?;
                blocks::blockdev_add(world, pid, arguments)?;
                Some(Medium::node(cdrom.slot, &medium.digest))
            }
        };
        let drive = Cdrom { node, tray_open: false };
        world.machine(pid)?.cdroms.insert(CdromSpec::id(cdrom.slot), drive);
    }
    Ok(())
}

/// Runs one of the commands of a drive.
pub(super) fn execute(
    machine: &mut Machine,
    command: &str,
    args: &Map<String, Value>,
) -> Result<Value, CommandError> {
    let id = args.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_locked = machine.cdroms.get(&id).is_some_and(|drive| machine.locks_tray(drive));
    let node = args.get("node-name").and_then(Value::as_str).map(str::to_owned);
    let exists = node.as_ref().is_none_or(|node| machine.nodes.contains_key(node));
    let Some(drive) = machine.cdroms.get_mut(&id) else {
        return Err(CommandError::not_found(format!("Device '{id}' not found")));
    };
    let was_open = drive.tray_open;
    let closed = || Err(CommandError::generic(format!("Tray of device '{id}' is not open")));
    match command {
        "blockdev-open-tray" if is_locked => {
            let text = format!(
                "Device '{id}' is locked and force was not specified, wait for tray to open and try again"
            );
            return Err(CommandError::generic(text));
        }
        "blockdev-open-tray" => drive.tray_open = true,
        "blockdev-close-tray" => drive.tray_open = false,
        "blockdev-remove-medium" | "blockdev-insert-medium" if !was_open => return closed(),
        "blockdev-remove-medium" => drive.node = None,
        _ if drive.node.is_some() => {
            return Err(CommandError::generic(format!("There already is a medium in device '{id}'")));
        }
        _ if !exists => {
            let text = format!("Node '{}' not found", node.unwrap_or_default());
            return Err(CommandError::generic(text));
        }
        _ => drive.node = node,
    }
    let is_open = drive.tray_open;
    if is_open != was_open {
        moved(machine, &id, is_open);
    }
    Ok(json!({}))
}

/// The guest opens the tray.
pub(super) fn guest_ejects(machine: &mut Machine, id: &str) {
    if let Some(drive) = machine.cdroms.get_mut(id) {
        drive.tray_open = true;
        moved(machine, id, true);
    }
}

fn moved(machine: &Machine, id: &str, open: bool) {
    machine.emit("DEVICE_TRAY_MOVED", json!({"device": "", "id": id, "tray-open": open}));
}
