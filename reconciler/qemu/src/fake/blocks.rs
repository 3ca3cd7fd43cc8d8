//! The block graph of fake machines: `blockdev-add`, `device_add` and their inverses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::command_error::{Answer, CommandError};
use super::machine::{Device, Disk, Happening, Later, Machine, Node};
use super::model::MachineModel;
use crate::machine::{Bus, Format, NicModel, SCSI_CONTROLLER, is_block_device};
use crate::nics::port_of;

const NODE_KEYS: [&str; 11] = [
    "encrypt",
    "driver",
    "node-name",
    "read-only",
    "cache",
    "discard",
    "detect-zeroes",
    "file",
    "backing",
    "detect-zeroes",
    "auto-read-only",
];
const FILE_KEYS: [&str; 9] =
    ["driver", "filename", "read-only", "auto-read-only", "aio", "cache", "discard", "locking", "node-name"];
const DISK_KEYS: [&str; 17] = [
    "driver",
    "id",
    "bus",
    "drive",
    "serial",
    "device_id",
    "rerror",
    "werror",
    "channel",
    "scsi-id",
    "lun",
    "wwn",
    "bootindex",
    "addr",
    "multifunction",
    "iothread",
    "share-rw",
];

pub(super) fn blockdev_add(
    world: &mut MachineModel,
    pid: i32,
    args: &Map<String, Value>,
) -> Result<(), CommandError> {
    let name = text(args, "node-name")?.to_owned();
    let machine = world.machine(pid)?;
    let (keys, nodes) = (machine.keys.clone(), machine.nodes.clone());
    let is_inactive = machine.is_inactive;
    world.opens_inactive = is_inactive;
    let opened = open(world, &keys, &nodes, args);
    // QEMU reports a file that cannot be opened before a duplicate name, and a lock after it.
    let duplicate = world.machine(pid)?.nodes.contains_key(&name);
    if duplicate && !opened.as_ref().is_err_and(|r| !r.desc.contains("lock")) {
        return Err(CommandError::generic(format!("Duplicate nodes with node-name='{name}'")));
    }
    world.machine(pid)?.nodes.insert(name, opened?);
    Ok(())
}

/// Opens a tree of nodes as QEMU does: every key is known, every file exists, is accessible and is not locked.
fn open(
    world: &MachineModel,
    keys: &BTreeMap<String, String>,
    nodes: &BTreeMap<String, Node>,
    args: &Map<String, Value>,
) -> Result<Node, CommandError> {
    only(args, &NODE_KEYS)?;
    let driver = match text(args, "driver")? {
        "raw" => Format::Raw,
        "qcow2" if args.contains_key("encrypt") => Format::EncryptedQcow2,
        "qcow2" => Format::Qcow2,
        other => return Err(CommandError::generic(format!("Unknown driver '{other}'"))),
    };
    if driver.is_encrypted() {
        check_key(keys, args)?;
    }
    let read_only = flag(args, "read-only")?;
    let file = open_file(args)?;
    let missing = |name: &str| CommandError::generic(format!("Cannot find device='' nor node-name='{name}'"));
    let (below, on) = match args.get("backing") {
        None | Some(Value::Null) => (Vec::new(), None),
        Some(_) if driver == Format::Raw => return Err(CommandError::unexpected("backing")),
        Some(Value::Object(backing)) => (open(world, keys, nodes, backing)?.chain(), None),
        Some(Value::String(name)) => {
            let node = nodes.get(name).ok_or_else(|| missing(name))?;
            (node.clone().chain(), Some(name.clone()))
        }
        Some(_) => return Err(CommandError::kind("backing", "object")),
    };
    let shown = file.display();
    let size = world
        .files
        .size(&file, driver)
        .map_err(|e| CommandError::generic(format!("Could not open '{shown}': {}", reason(&e))))?;
    if !world.granted.get(&file).is_some_and(|writable| read_only || *writable) {
        return Err(CommandError::generic(format!("Could not open '{shown}': Permission denied")));
    }
    // The device of a raw file decides whether it shares the file.
    if driver != Format::Raw && world.is_locked(&file, read_only) {
        let lock = if read_only { "shared \"write\"" } else { "\"write\"" };
        return Err(CommandError::generic(format!("Failed to get {lock} lock")));
    }
    let is_direct = args.get("cache").is_some_and(|cache| cache["direct"] == true);
    Ok(Node { driver, file, below, on, size, read_only, is_direct, snapshots: Vec::new() })
}

/// Checks that the machine has the key of an encrypted file.
fn check_key(keys: &BTreeMap<String, String>, args: &Map<String, Value>) -> Result<(), CommandError> {
    let encrypt = args.get("encrypt").and_then(Value::as_object);
    let encrypt = encrypt.ok_or_else(|| CommandError::kind("encrypt", "object"))?;
    only(encrypt, &["format", "key-secret"])?;
    let id = text(encrypt, "key-secret")?;
    match text(encrypt, "format")? == "luks" && keys.contains_key(id) {
        true => Ok(()),
        false => Err(CommandError::generic(format!("No secret with id '{id}'"))),
    }
}

pub(super) fn add_key(machine: &mut Machine, args: &Map<String, Value>) -> Result<(), CommandError> {
    let id = text(args, "id")?;
    if text(args, "qom-type")? != "secret" {
        return Err(CommandError::generic("this fake has no other objects than secrets"));
    }
    if machine.keys.contains_key(id) {
        let words = format!("attempt to add duplicate property '{id}' to object (type 'container')");
        return Err(CommandError::generic(words));
    }
    machine.keys.insert(id.to_owned(), text(args, "data")?.to_owned());
    Ok(())
}

pub(super) fn remove_key(machine: &mut Machine, args: &Map<String, Value>) -> Result<(), CommandError> {
    let id = text(args, "id")?;
    match machine.keys.remove(id) {
        Some(_) => Ok(()),
        None => Err(CommandError::generic(format!("object '{id}' not found"))),
    }
}

impl Node {
    /// Its file and those below it.
    fn chain(self) -> Vec<PathBuf> {
        std::iter::once(self.file).chain(self.below).collect()
    }
}

fn open_file(args: &Map<String, Value>) -> Result<PathBuf, CommandError> {
    let Some(Value::Object(file)) = args.get("file") else { return Err(CommandError::missing("file")) };
    only(file, &FILE_KEYS)?;
    let path = Path::new(text(file, "filename")?).to_owned();
    let wanted = if is_block_device(&path) { "host_device" } else { "file" };
    if text(file, "driver")? != wanted {
        return Err(CommandError::generic("Unknown driver below a format node"));
    }
    if file.get("locking").is_some_and(|l| l != "on" && l != "auto") {
        return Err(CommandError::generic("this fake refuses to run without image locking"));
    }
    Ok(path)
}

/// QEMU shows `strerror` without Rust's error number.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
        _ => error.to_string(),
    }
}

pub(super) fn blockdev_del(
    world: &mut MachineModel,
    pid: i32,
    args: &Map<String, Value>,
) -> Result<(), CommandError> {
    let name = text(args, "node-name")?;
    let machine = world.machine(pid)?;
    if !machine.nodes.contains_key(name) {
        return Err(CommandError::generic(format!("Failed to find node with node-name='{name}'")));
    }
    let is_medium = machine.cdroms.values().any(|cdrom| cdrom.node.as_deref() == Some(name));
    let is_below = machine.nodes.values().any(|node| node.on.as_deref() == Some(name));
    let is_mirrored = machine.mirrors.values().any(|job| job.has(name));
    if is_medium || is_below || is_mirrored || machine.disks().any(|(_, d)| d.node == name) {
        return Err(CommandError::generic(format!("Node {name} is in use")));
    }
    machine.nodes.remove(name);
    Ok(())
}

/// Runs several actions: all of them, or none.
pub(super) fn transaction(machine: &mut Machine, args: &Map<String, Value>) -> Result<(), CommandError> {
    let actions = args.get("actions").and_then(Value::as_array);
    let actions = actions.ok_or_else(|| CommandError::kind("actions", "array"))?;
    let before = (machine.nodes.clone(), machine.devices.clone());
    for action in actions {
        let data = action["data"].as_object().ok_or_else(|| CommandError::missing("data"))?;
        let done = match action["type"].as_str() {
            Some("blockdev-snapshot") => blockdev_snapshot(machine, data),
            Some("blockdev-snapshot-internal-sync") => internal_snapshot(machine, data),
            other => Err(CommandError::generic(format!("this fake has no action {other:?}"))),
        };
        if let Err(error) = done {
            (machine.nodes, machine.devices) = before;
            return Err(error);
        }
    }
    Ok(())
}

/// Takes a snapshot within the image of a node.
fn internal_snapshot(machine: &mut Machine, args: &Map<String, Value>) -> Result<(), CommandError> {
    let (device, name) = (text(args, "device")?, text(args, "name")?);
    let missing = || CommandError::generic(format!("Cannot find device='{device}' nor node-name='{device}'"));
    let node = machine.nodes.get_mut(device).ok_or_else(missing)?;
    if node.read_only {
        return Err(CommandError::generic(format!("Device '{device}' is read only")));
    }
    if node.snapshots.iter().any(|taken| taken == name) {
        return Err(CommandError::generic(format!(
            "Snapshot with name '{name}' already exists on device '{device}'"
        )));
    }
    node.snapshots.push(name.to_owned());
    Ok(())
}

/// Has the devices on a node continue on an overlay above it.
fn blockdev_snapshot(machine: &mut Machine, args: &Map<String, Value>) -> Result<(), CommandError> {
    let (below, overlay) = (text(args, "node")?, text(args, "overlay")?);
    let missing = |name: &str| CommandError::generic(format!("Cannot find device='' nor node-name='{name}'"));
    refuse_mirrored(machine, below)?;
    let chain = machine.nodes.get(below).ok_or_else(|| missing(below))?.clone().chain();
    let top = machine.nodes.get_mut(overlay).ok_or_else(|| missing(overlay))?;
    if !top.below.is_empty() {
        return Err(CommandError::generic("The overlay already has a backing image"));
    }
    (top.below, top.on) = (chain, Some(below.to_owned()));
    machine.nodes.get_mut(below).ok_or_else(|| missing(below))?.read_only = true;
    for device in machine.devices.values_mut() {
        if let Some(disk) = device.disk.as_mut().filter(|disk| disk.node == below) {
            disk.node = overlay.to_owned();
        }
    }
    Ok(())
}

/// QEMU changes no node that a job reads from or writes to.
fn refuse_mirrored(machine: &Machine, name: &str) -> Result<(), CommandError> {
    match machine.mirrors.values().any(|job| job.has(name)) {
        true => {
            let words = format!("Node '{name}' is busy: block device is in use by block job: mirror");
            Err(CommandError::generic(words))
        }
        false => Ok(()),
    }
}

/// Returns the name of the node of a named node's file.
pub(super) fn file_node(name: &str) -> String {
    format!("#file-{name}")
}

/// Opens nodes with other options: the fake changes what is below a node, and nothing else.
pub(super) fn blockdev_reopen(machine: &mut Machine, args: &Map<String, Value>) -> Result<(), CommandError> {
    let options = args.get("options").and_then(Value::as_array);
    for options in options.ok_or_else(|| CommandError::kind("options", "array"))? {
        let options = options.as_object().ok_or_else(|| CommandError::kind("options", "object"))?;
        only(options, &NODE_KEYS)?;
        let (name, file, below) =
            (text(options, "node-name")?, text(options, "file")?, text(options, "backing")?);
        if file != file_node(name) {
            return Err(CommandError::generic(format!("Cannot find device='' nor node-name='{file}'")));
        }
        let missing =
            |name: &str| CommandError::generic(format!("Cannot find device='' nor node-name='{name}'"));
        let chain = machine.nodes.get(below).ok_or_else(|| missing(below))?.clone().chain();
        let node = machine.nodes.get_mut(name).ok_or_else(|| missing(name))?;
        let is_direct = options.get("cache").is_some_and(|cache| cache["direct"] == true);
        if (flag(options, "read-only")?, is_direct) != (node.read_only, node.is_direct) {
            return Err(CommandError::generic("this fake changes no other option"));
        }
        (node.below, node.on) = (chain, Some(below.to_owned()));
    }
    Ok(())
}

pub(super) fn block_resize(
    world: &mut MachineModel,
    pid: i32,
    args: &Map<String, Value>,
) -> Result<(), CommandError> {
    let name = text(args, "node-name")?;
    let size =
        args.get("size").and_then(Value::as_u64).ok_or_else(|| CommandError::kind("size", "integer"))?;
    let files = world.files.clone();
    refuse_mirrored(world.machine(pid)?, name)?;
    let Some(node) = world.machine(pid)?.nodes.get_mut(name) else {
        return Err(CommandError::generic(format!("Cannot find device='' nor node-name='{name}'")));
    };
    if node.read_only {
        return Err(CommandError::generic("Image is read-only"));
    }
    if size > node.size {
        files
            .grow(&node.file, node.driver, size)
            .map_err(|e| CommandError::generic(format!("Failed to grow: {e}")))?;
    }
    // QEMU shrinks without an error, and so does this.
    node.size = size;
    Ok(())
}

pub(super) fn device_add(
    world: &mut MachineModel,
    pid: i32,
    args: &Map<String, Value>,
) -> Result<(), CommandError> {
    let driver = text(args, "driver")?;
    let Some(device_bus) = Bus::of_driver(driver) else {
        return Err(CommandError::generic(format!("'{driver}' is not a valid device model name")));
    };
    only(args, &DISK_KEYS).map_err(|r| CommandError::generic(r.desc.replace("Parameter", "Property")))?;
    let id = text(args, "id")?.to_owned();
    let bus = text(args, "bus")?;
    let shares = args.contains_key("share-rw") && flag(args, "share-rw")?;
    let opened = args.get("drive").and_then(Value::as_str).map(str::to_owned);
    let opened = opened.and_then(|node| world.machine(pid).ok()?.nodes.get(&node).cloned());
    if opened.is_some_and(|node| world.is_lock_refused(pid, &node, shares)) {
        return Err(CommandError::generic("Failed to get \"write\" lock"));
    }
    let machine = world.machine(pid)?;
    if machine.devices.contains_key(&id) {
        return Err(CommandError::generic(format!("Duplicate device ID '{id}'")));
    }
    let exists = match device_bus {
        Bus::VirtioScsi => bus == format!("{SCSI_CONTROLLER}.0"),
        Bus::VirtioBlk => bus == "pcie.0",
        Bus::Sata => ["ide.0", "ide.1", "ide.2", "ide.3", "ide.4", "ide.5"].contains(&bus),
    };
    if !exists {
        return Err(CommandError::generic(format!("Bus '{bus}' not found")));
    }
    let node = args
        .get("drive")
        .and_then(Value::as_str)
        .ok_or_else(|| CommandError::generic("drive property not set"))?;
    if !machine.nodes.contains_key(node) {
        return Err(CommandError::generic(format!("Property 'scsi-hd.drive' can't find value '{node}'")));
    }
    if let Some((other, _)) = machine.disks().find(|(_, d)| d.node == node) {
        return Err(CommandError::generic(format!(
            "Permission conflict on node '{node}': permissions 'write' are both required by block device '{other}' \
             (uses node '{node}' as 'root' child) and unshared by block device '{id}' (uses node '{node}' as 'root' child)."
        )));
    }
    let target = match args.get("scsi-id").map(Value::as_u64) {
        _ if device_bus != Bus::VirtioScsi => None,
        None => Some(machine.free_target()),
        Some(target) => Some(
            target
                .and_then(|t| u8::try_from(t).ok())
                .ok_or_else(|| CommandError::generic("bad scsi device id"))?,
        ),
    };
    if target.is_some() && machine.disks().any(|(_, d)| d.target == target) {
        return Err(CommandError::generic("lun already used by another device"));
    }
    let serial = args.get("serial").and_then(Value::as_str).unwrap_or_default().to_owned();
    let disk = Disk { node: node.to_owned(), serial, bus: device_bus, target, shares, limits: Map::new() };
    machine.devices.insert(id, Device { disk: Some(disk), ..Device::without_parts(device_bus.driver()) });
    Ok(())
}

/// Plugs a disk or a network card into a running machine: the root bus takes no devices then.
pub(super) fn hot_plug(
    world: &mut MachineModel,
    pid: i32,
    args: &Map<String, Value>,
) -> Result<(), CommandError> {
    if let Some(model) = NicModel::of_driver(text(args, "driver")?) {
        return world.machine(pid)?.plug_nic(model, args);
    }
    if args["driver"] != Bus::VirtioScsi.driver() && Bus::of_driver(text(args, "driver")?).is_some() {
        return Err(CommandError::generic("Bus 'pcie.0' does not support hotplugging"));
    }
    device_add(world, pid, args)
}

/// Stores the ceilings of a disk as they are, after the checks of QEMU.
pub(super) fn set_limits(machine: &mut Machine, args: &Map<String, Value>) -> Result<(), CommandError> {
    let id = text(args, "id")?;
    let mut disks =
        machine.devices.iter_mut().filter_map(|(name, device)| Some((name, device.disk.as_mut()?)));
    let Some((_, disk)) = disks.find(|(name, disk)| disk.bus.backend(name) == id) else {
        return Err(CommandError::not_found(format!("Device '{id}' not found")));
    };
    let number = |name: &str| args.get(name).and_then(Value::as_u64).unwrap_or_default();
    for rate in ["iops", "bps"] {
        if number(rate) > 0 && number(&format!("{rate}_rd")) + number(&format!("{rate}_wr")) > 0 {
            let words = "bps/iops/max total values and read/write values cannot be used at the same time";
            return Err(CommandError::generic(words));
        }
        let burst = number(&format!("{rate}_max"));
        if burst > 0 && (number(rate) == 0 || burst < number(rate)) {
            return Err(CommandError::generic("bps_max/iops_max require corresponding bps/iops values"));
        }
    }
    disk.limits = args.clone();
    Ok(())
}

pub(super) fn device_del(world: &mut MachineModel, pid: i32, args: &Map<String, Value>) -> Answer {
    let id = text(args, "id")?.to_owned();
    let machine = world.machine(pid)?;
    let (keeps, after) = (machine.behaviour.keeps.contains(&id), machine.behaviour.unplug_time);
    let Some(device) = machine.devices.get_mut(&id) else {
        return Err(CommandError::not_found(format!("Device '{id}' not found")));
    };
    let in_port = device.nic.as_ref().is_some_and(|nic| port_of(&nic.bus).is_some());
    if !in_port && device.disk.as_ref().is_none_or(|disk| disk.bus != Bus::VirtioScsi) {
        return Err(CommandError::generic(format!("Bus '{}' does not support hotplugging", "pcie.0")));
    }
    if std::mem::replace(&mut device.unplugging, true) {
        return Err(CommandError::generic(format!("Device {id} is already in the process of unplug")));
    }
    let later = (!keeps).then_some(Later { after, life: None, what: Happening::DeviceGone(id) });
    Ok((Value::Object(Map::new()), later.into_iter().collect()))
}

fn only(args: &Map<String, Value>, known: &[&str]) -> Result<(), CommandError> {
    match args.keys().find(|k| !known.contains(&k.as_str())) {
        Some(key) => Err(CommandError::unexpected(key)),
        None => Ok(()),
    }
}

fn text<'a>(args: &'a Map<String, Value>, name: &str) -> Result<&'a str, CommandError> {
    let value = args.get(name).ok_or_else(|| CommandError::missing(name))?;
    value.as_str().ok_or_else(|| CommandError::kind(name, "string"))
}

fn flag(args: &Map<String, Value>, name: &str) -> Result<bool, CommandError> {
    match args.get(name) {
        None => Ok(false),
        Some(value) => value.as_bool().ok_or_else(|| CommandError::kind(name, "boolean")),
    }
}
