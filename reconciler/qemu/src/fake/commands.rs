//! QMP commands of fake machines: their names, arguments and replies.

use serde_json::{Map, Value, json};

use super::command_error::{Answer, CommandError};
use super::machine::{Cdrom, Device, Machine, Node};
use super::model::MachineModel;
use super::{balloon, blocks, cdroms, mirrors};
use crate::machine::{MEMORY_BLOCK, MEMORY_DEVICE};

/// All commands and their arguments; `!` marks required ones, `*` a command that accepts any argument.
const COMMANDS: [(&str, &[&str]); 58] = [
    ("qmp_capabilities", &["enable"]),
    ("query-status", &[]),
    ("query-version", &[]),
    ("query-name", &[]),
    ("query-uuid", &[]),
    ("query-kvm", &[]),
    ("query-block", &[]),
    ("query-blockstats", &["query-nodes"]),
    (
        "block-latency-histogram-set",
        &["!id", "boundaries", "boundaries-read", "boundaries-write", "boundaries-flush"],
    ),
    ("query-named-block-nodes", &["flat"]),
    (
        "block_set_io_throttle",
        &[
            "!id",
            "!iops",
            "!iops_rd",
            "!iops_wr",
            "!bps",
            "!bps_rd",
            "!bps_wr",
            "iops_max",
            "bps_max",
            "iops_max_length",
            "bps_max_length",
        ],
    ),
    ("query-balloon", &[]),
    ("balloon", &["!value"]),
    ("query-memory-size-summary", &[]),
    ("query-chardev", &[]),
    ("query-hotpluggable-cpus", &[]),
    ("query-memory-devices", &[]),
    ("qom-set", &["!path", "!property", "!value"]),
    ("qom-list", &["!path"]),
    ("qom-get", &["!path", "!property"]),
    ("object-add", &["!qom-type", "!id", "data"]),
    ("object-del", &["!id"]),
    ("blockdev-add", &["*", "!driver"]),
    ("blockdev-del", &["!node-name"]),
    ("blockdev-reopen", &["!options"]),
    ("transaction", &["!actions"]),
    ("blockdev-open-tray", &["!id", "force"]),
    ("blockdev-close-tray", &["!id"]),
    ("blockdev-remove-medium", &["!id"]),
    ("blockdev-insert-medium", &["!id", "!node-name"]),
    ("block_resize", &["device", "node-name", "!size"]),
    ("device_add", &["*", "!driver"]),
    ("device_del", &["!id"]),
    ("cont", &[]),
    ("stop", &[]),
    ("system_powerdown", &[]),
    ("system_reset", &[]),
    ("system_wakeup", &[]),
    ("inject-nmi", &[]),
    ("getfd", &["!fdname"]),
    ("closefd", &["!fdname"]),
    ("netdev_add", &["!type", "!id", "fds", "vhost", "vhostfds"]),
    ("netdev_del", &["!id"]),
    ("set_link", &["!name", "!up"]),
    ("announce-self", &["initial", "max", "rounds", "step"]),
    ("migrate", &["!uri"]),
    ("migrate-incoming", &["!uri"]),
    ("migrate_cancel", &[]),
    ("migrate-continue", &["!state"]),
    ("migrate-set-capabilities", &["!capabilities"]),
    ("migrate-set-parameters", &["max-bandwidth", "downtime-limit"]),
    ("query-migrate", &[]),
    ("query-jobs", &[]),
    (
        "blockdev-mirror",
        &[
            "job-id",
            "!device",
            "!target",
            "!sync",
            "copy-mode",
            "on-source-error",
            "on-target-error",
            "auto-finalize",
            "auto-dismiss",
        ],
    ),
    ("block-job-cancel", &["!device", "force"]),
    ("job-complete", &["!id"]),
    ("job-finalize", &["!id"]),
    ("job-dismiss", &["!id"]),
];

/// Runs one command of a machine's monitor. The server handles `quit`, which ends the process.
pub(super) fn execute(
    world: &mut MachineModel,
    pid: i32,
    command: &str,
    args: &Map<String, Value>,
) -> Answer {
    check(command, args)?;
    if command == "cont" && world.machine(pid)?.status != "inmigrate" {
        world.activate(pid)?;
    }
    let machine = world.machine(pid)?;
    if let Some(words) = machine.behaviour.refuses.get(command) {
        return Err(CommandError::generic(words.clone()));
    }
    let value = match command {
        "qmp_capabilities" => {
            let class = "CommandNotFound";
            return Err(CommandError {
                class,
                desc: "Capabilities negotiation is already complete, command ignored".to_owned(),
            });
        }
        "query-status" => {
            json!({"status": machine.status, "singlestep": false, "running": machine.status == "running"})
        }
        "query-version" => version(),
        "query-name" => json!({"name": machine.spec.machine.name}),
        "query-uuid" => json!({"UUID": machine.spec.machine.uuid}),
        "query-kvm" => {
            json!({"enabled": machine.spec.machine.accelerator == crate::machine::Accelerator::Kvm, "present": true})
        }
        "query-block" => query_block(machine),
        "query-blockstats" => query_blockstats(machine),
        "block-latency-histogram-set" => json!({}),
        "query-named-block-nodes" => machine
            .nodes
            .iter()
            .flat_map(|(name, node)| [describe(name, node), describe_file(name, node)])
            .collect(),
        "query-chardev" => {
            let label = crate::machine::GUEST_AGENT_CHANNEL;
            let mut channels = vec![
                json!({"label": label, "frontend-open": machine.agent_port_is_open(), "filename": "unix"}),
            ];
            if machine.spec.machine.tpm {
                let filename =
                    if machine.behaviour.tpm_ended { "disconnected:unix:tpm.sock" } else { "unix:" };
                let label = crate::machine::TPM_CHANNEL;
                channels.push(json!({"label": label, "frontend-open": false, "filename": filename}));
            }
            for share in &machine.spec.machine.shares {
                let is_lost = machine.behaviour.lost_shares.contains(&share.tag);
                let filename = if is_lost { "disconnected:unix:fs0.sock" } else { "unix:" };
                let label = crate::machine::share_channel(&share.tag);
                channels.push(json!({"label": label, "frontend-open": false, "filename": filename}));
            }
            Value::Array(channels)
        }
        "query-balloon" => balloon::query(machine),
        "balloon" => return balloon::request(machine, args),
        "query-memory-size-summary" => {
            json!({"base-memory": machine.spec.machine.memory_bytes, "plugged-memory": machine.memory_plugged})
        }
        "query-hotpluggable-cpus" => hotpluggable_cpus(machine),
        "query-memory-devices" => memory_devices(machine),
        "qom-set" if balloon::is_balloon(&args["path"]) => return balloon::set_property(machine, args),
        "qom-set" => return request_memory(machine, args),
        "qom-list" => qom_list(machine, args)?,
        "qom-get" => qom_get(machine, args)?,
        "cont" => return Ok((json!({}), machine.cont().map_err(CommandError::generic)?)),
        "system_powerdown" => return Ok((json!({}), machine.powerdown())),
        "system_reset" => return Ok((json!({}), machine.reset(false))),
        "system_wakeup" => machine.wake_up().map(|()| json!({})).map_err(CommandError::generic)?,
        // A guest that is not set up for it goes on.
        "inject-nmi" => json!({}),
        "stop" => {
            machine.stop();
            json!({})
        }
        "device_del" => return blocks::device_del(world, pid, args),
        "device_add" if args.get("driver").and_then(Value::as_str) == Some(CPU) => add_cpu(machine, args)?,
        "device_add" => blocks::hot_plug(world, pid, args).map(|()| json!({}))?,
        "block_set_io_throttle" => blocks::set_limits(machine, args).map(|()| json!({}))?,
        "object-add" => blocks::add_key(machine, args).map(|()| json!({}))?,
        "object-del" => blocks::remove_key(machine, args).map(|()| json!({}))?,
        "blockdev-add" => blocks::blockdev_add(world, pid, args).map(|()| json!({}))?,
        "blockdev-del" => blocks::blockdev_del(world, pid, args).map(|()| json!({}))?,
        "blockdev-reopen" => blocks::blockdev_reopen(machine, args).map(|()| json!({}))?,
        "transaction" => blocks::transaction(machine, args).map(|()| json!({}))?,
        "blockdev-open-tray"
        | "blockdev-close-tray"
        | "blockdev-remove-medium"
        | "blockdev-insert-medium" => cdroms::execute(machine, command, args)?,
        "block_resize" => blocks::block_resize(world, pid, args).map(|()| json!({}))?,
        "closefd" => machine.close_descriptor(args).map(|()| json!({}))?,
        "netdev_add" => machine.add_backend(args).map(|()| json!({}))?,
        "netdev_del" => machine.remove_backend(args).map(|()| json!({}))?,
        "set_link" => machine.set_link(args).map(|()| json!({}))?,
        "getfd" => return Err(CommandError::generic("No file descriptor supplied via SCM_RIGHTS")),
        "migrate" => return machine.migrate(&args["uri"]),
        "migrate-incoming" => return machine.migrate_incoming(&args["uri"]),
        "migrate_cancel" => {
            machine.migrate_cancel();
            json!({})
        }
        "migrate-continue" => machine.migrate_continue().map(|()| json!({}))?,
        "announce-self" | "migrate-set-capabilities" | "migrate-set-parameters" => json!({}),
        "query-migrate" => machine.query_migrate(),
        "query-jobs" => mirrors::query(machine),
        "blockdev-mirror" => mirrors::begin(machine, args)?,
        "block-job-cancel" => mirrors::cancel(machine, &args["device"])?,
        "job-complete" => mirrors::complete(machine, &args["id"])?,
        "job-finalize" => mirrors::finalize(machine, &args["id"])?,
        "job-dismiss" => mirrors::dismiss(machine, &args["id"])?,
        other => return Err(unknown(other)),
    };
    Ok((value, Vec::new()))
}

/// The device of a CPU.
const CPU: &str = "fake-x86_64-cpu";

/// The last core first, as QEMU lists them.
fn hotpluggable_cpus(machine: &Machine) -> Value {
    let places = 0..machine.spec.machine.topology.cpus();
    let one = |core: u32| {
        let mut place = json!({"type": CPU, "vcpus-count": 1, "props": {"socket-id": 0, "core-id": core, "thread-id": 0}});
        if machine.cpus.contains(&core) {
            place["qom-path"] = json!(format!("/machine/unattached/device[{core}]"));
        }
        place
    };
    places.rev().map(one).collect()
}

fn add_cpu(machine: &mut Machine, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let core = args.get("core-id").and_then(Value::as_u64).and_then(|core| u32::try_from(core).ok());
    let core = core.ok_or_else(|| CommandError::generic("CPU core-id is not set"))?;
    if core >= machine.spec.machine.topology.cpus() || !machine.cpus.insert(core) {
        return Err(CommandError::generic(format!(
            "CPU[{core}] already exists, or there is no place for it"
        )));
    }
    Ok(json!({}))
}

fn memory_devices(machine: &Machine) -> Value {
    let spec = &machine.spec.machine;
    let Some(most) = spec.max_memory_bytes else { return json!([]) };
    json!([{"type": "virtio-mem", "data": {
        "id": MEMORY_DEVICE, "size": machine.memory_plugged, "requested-size": machine.memory_requested,
        "max-size": most - spec.memory_bytes, "block-size": MEMORY_BLOCK, "node": 0,
    }}])
}

fn request_memory(machine: &mut Machine, args: &Map<String, Value>) -> Answer {
    let spec = &machine.spec.machine;
    let most = spec.max_memory_bytes.map(|most| most - spec.memory_bytes);
    let is_it = args["path"] == format!("/machine/peripheral/{MEMORY_DEVICE}").as_str()
        && args["property"] == "requested-size";
    let (Some(most), Some(bytes), true) = (most, args["value"].as_u64(), is_it) else {
        return Err(CommandError::not_found(format!("Device '{}' not found", args["path"])));
    };
    if bytes > most || !bytes.is_multiple_of(MEMORY_BLOCK) {
        return Err(CommandError::generic(format!("'requested-size' cannot be {bytes}")));
    }
    machine.memory_requested = bytes;
    machine.plug_memory();
    Ok((json!({}), Vec::new()))
}

fn check(command: &str, args: &Map<String, Value>) -> Result<(), CommandError> {
    let Some((_, parameters)) = COMMANDS.iter().find(|(name, _)| *name == command) else {
        return Err(unknown(command));
    };
    let open = parameters.contains(&"*");
    let known = |key: &str| parameters.iter().any(|p| p.trim_start_matches('!') == key);
    if let Some(key) = args.keys().find(|k| !open && !known(k)) {
        return Err(CommandError::unexpected(key));
    }
    match parameters.iter().filter_map(|p| p.strip_prefix('!')).find(|p| !args.contains_key(*p)) {
        Some(name) => Err(CommandError::missing(name)),
        None => Ok(()),
    }
}

fn unknown(command: &str) -> CommandError {
    CommandError { class: "CommandNotFound", desc: format!("The command {command} has not been found") }
}

pub(super) fn version() -> Value {
    json!({"qemu": {"major": 7, "minor": 2, "micro": 0}, "package": "fake"})
}

fn query_block(machine: &Machine) -> Value {
    let one = |(id, device): (&String, &Device)| {
        let disk = device.disk.as_ref()?;
        let mut inserted = machine.nodes.get(&disk.node).map(|n| describe(&disk.node, n));
        for (name, ceiling) in disk.limits.iter().filter(|(name, _)| *name != "id") {
            if let Some(inserted) = &mut inserted {
                inserted[name] = ceiling.clone();
            }
        }
        let id = disk.bus.backend(id);
        let status = if machine.status == "io-error" { "nospace" } else { "ok" };
        let mut block = json!({"device": "", "qdev": id, "type": "unknown", "removable": false, "locked": false, "io-status": status});
        if let Some(inserted) = inserted {
            block["inserted"] = inserted;
        }
        Some(block)
    };
    let drive = |(id, drive): (&String, &Cdrom)| {
        let mut block = json!({"device": "", "qdev": id, "type": "unknown", "removable": true, "locked": machine.locks_tray(drive),
            "tray_open": drive.tray_open, "io-status": "ok"});
        if let Some((name, node)) =
            drive.node.as_ref().and_then(|name| Some((name, machine.nodes.get(name)?)))
        {
            block["inserted"] = describe(name, node);
        }
        block
    };
    machine.devices.iter().filter_map(one).chain(machine.cdroms.iter().map(drive)).collect()
}

/// A fake guest reads and writes nothing.
fn query_blockstats(machine: &Machine) -> Value {
    let disks = machine.devices.iter().filter_map(|(id, device)| Some(device.disk.as_ref()?.bus.backend(id)));
    let stats = json!({"rd_operations": 0, "rd_bytes": 0, "rd_total_time_ns": 0, "wr_operations": 0, "wr_bytes": 0,
        "wr_total_time_ns": 0, "flush_operations": 0, "flush_total_time_ns": 0});
    disks.map(|id| json!({"device": "", "qdev": id, "stats": stats})).collect()
}

fn describe(name: &str, node: &Node) -> Value {
    let mut image = json!({"filename": node.file, "format": node.driver.driver(), "virtual-size": node.size, "dirty-flag": false});
    if node.driver.is_qcow2() {
        image["cluster-size"] = json!(65536);
    }
    let mut text = json!({
        "node-name": name, "drv": node.driver.driver(), "ro": node.read_only, "file": node.file, "image": image,
        "backing_file_depth": node.below.len(), "encrypted": node.driver.is_encrypted(), "detect_zeroes": "off",
        "cache": {"writeback": true, "direct": node.is_direct, "no-flush": false},
    });
    if let Some(backing) = node.below.first() {
        text["backing_file"] = json!(backing);
    }
    text
}

/// The node of the file itself, to which QEMU gives a name.
fn describe_file(name: &str, node: &Node) -> Value {
    let mut text = describe(&blocks::file_node(name), node);
    text["drv"] = json!("file");
    text["backing_file_depth"] = json!(0);
    text
}

fn qom_list(machine: &Machine, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let path = args["path"].as_str().ok_or_else(|| CommandError::kind("path", "string"))?;
    let kind = json!({"name": "type", "type": "string"});
    if path == "/objects" {
        let keys = machine.keys.keys().map(|id| json!({"name": id, "type": "child<secret>"}));
        return Ok(std::iter::once(kind).chain(keys).collect());
    }
    if path != "/machine/peripheral" {
        return Err(CommandError::not_found(format!("Device '{path}' not found")));
    }
    let devices =
        machine.devices.iter().map(|(id, d)| json!({"name": id, "type": format!("child<{}>", d.driver)}));
    Ok(std::iter::once(kind).chain(devices).collect())
}

fn qom_get(machine: &Machine, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let path = args["path"].as_str().ok_or_else(|| CommandError::kind("path", "string"))?;
    let property = args["property"].as_str().ok_or_else(|| CommandError::kind("property", "string"))?;
    let device = path.strip_prefix("/machine/peripheral/").and_then(|id| machine.devices.get(id));
    let Some(device) = device else {
        return Err(CommandError::not_found(format!("Device '{path}' not found")));
    };
    if balloon::is_balloon(&args["path"]) && property == "guest-stats" {
        return Ok(balloon::stats(machine));
    }
    let absent = || CommandError::generic(format!("Property '{}.{property}' not found", device.driver));
    if let Some(nic) = &device.nic {
        return match property {
            "mac" => Ok(json!(nic.mac)),
            "parent_bus" => Ok(json!(nic.bus)),
            _ => Err(absent()),
        };
    }
    let disk = device.disk.as_ref().ok_or_else(absent)?;
    match property {
        "serial" => Ok(json!(disk.serial)),
        "scsi-id" => disk.target.map(|target| json!(target)).ok_or_else(absent),
        "lun" | "channel" => Ok(json!(0)),
        "drive" => Ok(json!(disk.node)),
        _ => Err(absent()),
    }
}
