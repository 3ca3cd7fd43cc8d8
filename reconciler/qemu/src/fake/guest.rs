//! The replies of a fake guest's agent.

use serde_json::{Map, Value, json};

use super::machine::{Happening, Later, Machine};

pub(super) fn is_delimited(message: &Value) -> bool {
    message.get("execute").is_some_and(|c| c == "guest-sync-delimited")
}

/// None: no reply, because no agent listens or because the command has none.
pub(super) fn answer(machine: &mut Machine, message: &Value) -> (Option<Value>, Vec<Later>) {
    if !machine.agent_answers() {
        return (None, Vec::new());
    }
    let empty = Map::new();
    let args = message.get("arguments").and_then(Value::as_object).unwrap_or(&empty);
    let command = message.get("execute").and_then(Value::as_str).unwrap_or_default();
    if machine.behaviour.disabled_commands.iter().any(|disabled| disabled == command) {
        let desc = format!("Command {command} has been disabled for this instance");
        return (Some(json!({"error": {"class": "CommandNotFound", "desc": desc}})), Vec::new());
    }
    if machine.is_frozen
        && !is_delimited(message)
        && !command.starts_with("guest-fsfreeze-")
        && command != "guest-ping"
    {
        let desc = format!("Command {command} has been disabled: the agent is in frozen state");
        return (Some(json!({"error": {"class": "CommandNotFound", "desc": desc}})), Vec::new());
    }
    let answered = machine.programs.answer(command, args).or_else(|| machine.users.answer(command, args));
    if command == "guest-exec" && machine.programs.package.is_removed() {
        machine.remove_agent();
    }
    match answered {
        Some(Ok(value)) => return (Some(json!({ "return": value })), Vec::new()),
        Some(Err(desc)) => {
            return (Some(json!({"error": {"class": "GenericError", "desc": desc}})), Vec::new());
        }
        None => {}
    }
    let value = match command {
        "guest-fsfreeze-freeze" => {
            machine.is_frozen = true;
            machine.freezes += 1;
            json!(1)
        }
        "guest-fsfreeze-status" => json!(if machine.is_frozen { "frozen" } else { "thawed" }),
        "guest-fsfreeze-thaw" if machine.behaviour.never_thaws => {
            let error = json!({"class": "GenericError", "desc": "failed to thaw /: Device or resource busy"});
            return (Some(json!({ "error": error })), Vec::new());
        }
        "guest-fsfreeze-thaw" => json!(u8::from(std::mem::take(&mut machine.is_frozen))),
        "guest-sync-delimited" | "guest-sync" => args.get("id").cloned().unwrap_or(Value::Null),
        "guest-ping" | "guest-set-time" => json!({}),
        "guest-get-host-name" => {
            json!({"host-name": machine.behaviour.guest.host_name.as_ref().unwrap_or(&machine.spec.machine.name)})
        }
        "guest-get-osinfo" => json!({
            "id": "debian", "name": "Debian GNU/Linux", "pretty-name": "Debian GNU/Linux 12 (bookworm)", "version": "12 (bookworm)",
            "version-id": "12", "kernel-release": "6.1.0-28-amd64", "machine": "x86_64",
        }),
        "guest-network-get-interfaces" => interfaces(machine),
        "guest-get-fsinfo" => filesystems(machine),
        "guest-get-vcpus" => {
            let cpu = |id: &u32| json!({"logical-id": id, "online": true, "can-offline": *id > 0});
            machine.cpus.iter().map(cpu).collect()
        }
        "guest-shutdown" => {
            let what = match args.get("mode").and_then(Value::as_str) {
                Some("reboot") => Happening::GuestReboots,
                _ => Happening::GuestOff,
            };
            return (
                None,
                vec![Later { after: machine.behaviour.shutdown_time, life: Some(machine.life), what }],
            );
        }
        "guest-suspend-ram" => {
            if let Some(desc) = &machine.behaviour.suspend_refused {
                let error = json!({"class": "GenericError", "desc": desc});
                return (Some(json!({ "error": error })), Vec::new());
            }
            let (after, life) = (machine.behaviour.shutdown_time, Some(machine.life));
            return (None, vec![Later { after, life, what: Happening::GuestSuspends }]);
        }
        other => {
            let desc = format!("The command {other} has not been found");
            return (Some(json!({"error": {"class": "CommandNotFound", "desc": desc}})), Vec::new());
        }
    };
    (Some(json!({"return": value})), Vec::new())
}

fn interfaces(machine: &Machine) -> Value {
    let lo = json!({"name": "lo", "hardware-address": "00:00:00:00:00:00",
        "ip-addresses": [{"ip-address-type": "ipv4", "ip-address": "127.0.0.1", "prefix": 8}]});
    let nics = machine.spec.machine.nics.iter().enumerate().map(|(index, nic)| {
        let addresses = machine.behaviour.guest.addresses.iter().filter(|a| a.nic == index).map(|a| {
            let kind = if a.address.is_ipv4() { "ipv4" } else { "ipv6" };
            json!({"ip-address-type": kind, "ip-address": a.address.to_string(), "prefix": a.prefix})
        });
        json!({"name": format!("enp0s{}", 16 + nic.slot), "hardware-address": nic.mac, "ip-addresses": addresses.collect::<Value>()})
    });
    std::iter::once(lo).chain(nics).collect()
}

/// Lists the root file system, and the guest's mounts of disks that still exist.
fn filesystems(machine: &Machine) -> Value {
    let one = |(id, disk): (&String, &super::machine::Disk)| {
        let boots = machine.spec.machine.disks.iter().any(|d| d.boot && d.id == *id);
        let mounted = machine.behaviour.guest.mounts.get(&disk.serial).map(String::as_str);
        let mountpoint = if boots { Some("/") } else { mounted }?;
        Some(json!({
            "name": format!("sd-{id}"), "mountpoint": mountpoint, "type": "ext4",
            "disk": [{
                "bus-type": "scsi", "bus": 0, "target": disk.target, "unit": 0,
                "serial": format!("0QEMU_QEMU_HARDDISK_{}", disk.serial), "dev": format!("/dev/sd-{id}"),
                "pci-controller": {"domain": 0, "bus": 0, "slot": 2, "function": 0},
            }],
        }))
    };
    machine.disks().filter_map(one).collect()
}
