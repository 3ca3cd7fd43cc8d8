//! `proxmox_virtual_environment_vm` of bpg/proxmox.

use berth_api::{Firmware, Quantity};
use serde_json::Value as Json;
use tfplugin6::Value;

use super::{
    DATA, Size, Source,
    json::{bytes, list, model, name, number, others, text},
};

/// The attributes that are read, or that berth always has.
const KNOWN: [&str; 15] = [
    "name",
    "started",
    "bios",
    "cpu",
    "memory",
    "network_device",
    "protection",
    "acpi",
    "agent",
    "id",
    "efi_disk",
    "ipv4_addresses",
    "ipv6_addresses",
    "mac_addresses",
    "network_interface_names",
];

/// The least memory that a VM of berth has, in bytes.
const LEAST_MEMORY: u64 = 16 << 20;

/// A VM.
pub(super) fn vm(state: &Json) -> Source {
    let mut left_out = others(state, "", &KNOWN);
    // How long the other provider waits concerns neither VM.
    left_out.retain(|name| !name.starts_with("timeout_"));
    for (list_name, known) in [("cpu", &["cores", "sockets"][..]), ("memory", &["dedicated", "floating"])] {
        let block = state.pointer(&format!("/{list_name}/0")).unwrap_or(&Json::Null);
        left_out.extend(others(block, &format!("{list_name}."), known));
    }
    let mut interfaces = Vec::new();
    for (i, device) in list(state, "/network_device").iter().enumerate() {
        let known = ["mac_address", "enabled", "model"];
        left_out.extend(others(device, &format!("network_device[{i}]."), &known));
        let mut fields = vec![("name", Value::from(format!("nic{i}")))];
        match model(device, "/model") {
            Ok(model) => fields.extend(model),
            Err(()) => left_out.push(format!("network_device[{i}].model")),
        }
        fields.extend(text(device, "/mac_address").map(|mac| ("mac_address", Value::from(mac))));
        let address = text(state, &format!("/initialization/0/ip_config/{i}/ipv4/0/address"));
        let address = address.and_then(|address| address.split('/').next());
        fields.extend(
            address.filter(|address| *address != "dhcp").map(|address| ("address", Value::from(address))),
        );
        interfaces.push(Value::object(fields));
    }
    let mut attributes = Vec::new();
    if let Some(started) = state.get("started").and_then(Json::as_bool) {
        attributes.push(("power", Value::from(if started { "Running" } else { "Stopped" })));
    }
    if let Some(protection) = state.get("protection").and_then(Json::as_bool) {
        attributes.push(("deletion_protection", Value::Bool(protection)));
    }
    let memory = number(state, "/memory/0/dedicated").and_then(|amount| bytes(amount, "MiB"));
    attributes.extend(reservation(state, memory).map(|amount| ("memory_reservation", amount)));
    if !interfaces.is_empty() {
        attributes.push(("network_interfaces", Value::List(interfaces)));
    }
    let keys = list(state, "/initialization/0/user_account/0/keys").iter().filter_map(Json::as_str);
    let keys: Vec<Value> = keys.map(|key| Value::from(key.trim())).collect();
    if !keys.is_empty() {
        attributes.push(("bootstrap", Value::object([("ssh_authorized_keys", Value::List(keys))])));
    }
    let sockets = number(state, "/cpu/0/sockets").filter(|sockets| *sockets > 0).unwrap_or(1);
    let has_keys = state.pointer("/efi_disk/0/pre_enrolled_keys") == Some(&Json::Bool(true));
    let size = Size {
        cpus: number(state, "/cpu/0/cores").and_then(|cores| cores.checked_mul(sockets)),
        memory,
        firmware: match text(state, "/bios") {
            Some("ovmf") if has_keys => Firmware::UEFISecureBoot,
            Some("ovmf") => Firmware::UEFI,
            _ => Firmware::BIOS,
        },
    };
    let notes = vec![size.note(), DATA.to_owned()];
    Source { name: text(state, "/name").and_then(name), attributes, notes, left_out }
}

/// Returns the memory that a balloon leaves to the guest at the least, if that is less than it has: 0 stands for no balloon.
fn reservation(state: &Json, memory: Option<u64>) -> Option<Value> {
    let least = number(state, "/memory/0/floating").and_then(|amount| bytes(amount, "MiB"))?;
    (least >= LEAST_MEMORY && least < memory?).then(|| Value::from(Quantity::from_bytes(least).0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_least_that_a_balloon_leaves_becomes_a_reservation() {
        let reserved = |dedicated: u64, floating: u64| {
            let source =
                vm(&json!({"name": "web", "memory": [{"dedicated": dedicated, "floating": floating}]}));
            assert_eq!(source.left_out, Vec::<String>::new());
            source.attributes
        };
        assert_eq!(reserved(4096, 1024), [("memory_reservation", Value::from("1Gi"))]);
        for (dedicated, floating) in [(4096, 0), (4096, 4096), (4096, 8192), (4096, 8)] {
            assert!(reserved(dedicated, floating).is_empty(), "{dedicated} {floating}");
        }
    }

    #[test]
    fn a_vm_keeps_its_power_protection_addresses_and_keys() {
        let source = vm(&json!({
            "id": "101", "name": "web", "node_name": "pve1", "vm_id": 101, "started": false, "protection": true,
            "bios": "ovmf", "efi_disk": [{"pre_enrolled_keys": true}], "acpi": true, "agent": [{"enabled": true}], "tags": ["prod"], "timeout_create": 1800,
            "cpu": [{"cores": 2, "sockets": 2, "type": "host", "hotplugged": 0, "flags": []}],
            "memory": [{"dedicated": 3072, "floating": 0}],
            "disk": [{"datastore_id": "local-lvm", "interface": "scsi0", "size": 20}], "hostpci": [],
            "network_device": [{"bridge": "vmbr0", "mac_address": "BC:24:11:00:00:01", "enabled": true, "model": "virtio",
                "vlan_id": 0}, {"mac_address": "BC:24:11:00:00:02", "model": "e1000"},
                {"model": "vmxnet3"}],
            "initialization": [{"ip_config": [{"ipv4": [{"address": "10.0.0.5/24"}]}, {"ipv4": [{"address": "dhcp"}]}],
                "user_account": [{"keys": ["ssh-ed25519 AAAA me\n"], "password": "canary-secret"}]}],
        }));
        let nic = |i: usize, more: &[(&'static str, &str)]| {
            let name = ("name", Value::from(format!("nic{i}")));
            Value::object(
                [name].into_iter().chain(more.iter().map(|(name, text)| (*name, Value::from(*text)))),
            )
        };
        let first = [("mac_address", "BC:24:11:00:00:01"), ("address", "10.0.0.5")];
        let second = [("model", "e1000"), ("mac_address", "BC:24:11:00:00:02")];
        let keys = Value::List(vec![Value::from("ssh-ed25519 AAAA me")]);
        assert_eq!(
            source.attributes,
            [
                ("power", Value::from("Stopped")),
                ("deletion_protection", Value::Bool(true)),
                ("network_interfaces", Value::List(vec![nic(0, &first), nic(1, &second), nic(2, &[])])),
                ("bootstrap", Value::object([("ssh_authorized_keys", keys)])),
            ]
        );
        assert!(
            source.notes[0].ends_with("cpus = 4, memory = \"3Gi\", firmware = \"UEFISecureBoot\"."),
            "{:?}",
            source.notes
        );
        assert_eq!(
            source.left_out,
            [
                "disk",
                "initialization",
                "node_name",
                "tags",
                "vm_id",
                "cpu.type",
                "network_device[0].bridge",
                "network_device[2].model"
            ]
        );
        assert!(!format!("{source:?}").contains("canary"), "no secret is in a message");
        assert_eq!(vm(&json!("x")).name, None);
    }
}
