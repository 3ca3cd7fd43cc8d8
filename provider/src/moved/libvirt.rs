//! `libvirt_domain` and `libvirt_volume` of dmacvicar/libvirt, in the form of the versions up to 0.8 and in that since 0.9, which
//! follows libvirt's XML.

use berth_api::{Architecture, Firmware, Quantity, hardware::is_uuid};
use serde_json::Value as Json;
use tfplugin6::Value;

use super::{
    DATA, Size, Source,
    json::{Field, bytes, disk_name, is_set, list, model, name, number, others, text},
};

/// Attributes without meaning beside libvirt, and those that berth always has.
const SILENT: [&str; 10] =
    ["id", "uuid", "hwuuid", "timeouts", "type", "emulator", "arch", "qemu_agent", "create", "destroy"];

/// A domain.
pub(super) fn domain(state: &Json) -> Source {
    let is_xml_like = ["devices", "os", "memory_unit"].iter().any(|name| state.get(name).is_some());
    if is_xml_like { domain_since_0_9(state) } else { domain_until_0_8(state) }
}

/// A disk of a domain: its file or volume, if it is a disk that berth can have.
fn disks(files: Vec<Option<&str>>) -> Option<Value> {
    let names = files.into_iter().flatten().filter_map(disk_name).enumerate();
    let disks =
        names.map(|(i, name)| Value::object([("name", Value::from(name)), ("boot", Value::Bool(i == 0))]));
    let disks: Vec<Value> = disks.collect();
    (!disks.is_empty()).then_some(Value::List(disks))
}

fn interface(i: usize, mac: Option<&str>, network: Option<&str>, model: Option<Field>) -> Value {
    let mut fields = vec![("name", Value::from(format!("nic{i}")))];
    fields.extend(network.and_then(name).map(|network| ("network", Value::from(network))));
    fields.extend(mac.map(|mac| ("mac_address", Value::from(mac))));
    fields.extend(model);
    Value::object(fields)
}

fn power(state: &Json) -> Option<(&'static str, Value)> {
    let running = state.get("running")?.as_bool()?;
    Some(("power", Value::from(if running { "Running" } else { "Stopped" })))
}

/// Names the attribute with the architecture, if that is another one than a VM has that declares none.
fn other_architecture(state: &Json, pointer: &str, name: &str) -> Option<String> {
    let arch = text(state, pointer)?;
    (Architecture::of_text(arch) != Some(Architecture::X86_64)).then(|| name.to_owned())
}

fn domain_until_0_8(state: &Json) -> Source {
    let known = ["name", "vcpu", "memory", "firmware", "running", "disk", "network_interface", "graphics"];
    let mut left_out = others(state, "", &[&known[..], &SILENT].concat());
    left_out.extend(other_architecture(state, "/arch", "arch"));
    let mut files = Vec::new();
    for (i, disk) in list(state, "/disk").iter().enumerate() {
        let file = ["/volume_id", "/file"].iter().find_map(|source| text(disk, source));
        match file.filter(|file| !file.ends_with(".iso")) {
            Some(file) => files.push(Some(file)),
            None => left_out.push(format!("disk[{i}]")),
        }
    }
    let mut interfaces = Vec::new();
    for (i, one) in list(state, "/network_interface").iter().enumerate() {
        let network = text(one, "/network_name");
        let known: &[&str] = if network.is_some() {
            &["mac", "network_name", "network_id", "wait_for_lease"]
        } else {
            &["mac", "wait_for_lease"]
        };
        left_out.extend(others(one, &format!("network_interface[{i}]."), known));
        interfaces.push(interface(i, text(one, "/mac"), network, None));
    }
    let size = Size {
        cpus: number(state, "/vcpu"),
        memory: number(state, "/memory").and_then(|amount| bytes(amount, "MiB")),
        firmware: if text(state, "/firmware").is_some() { Firmware::UEFI } else { Firmware::BIOS },
    };
    finish(state, &size, disks(files), interfaces, left_out)
}

fn domain_since_0_9(state: &Json) -> Source {
    let known = ["name", "vcpu", "memory", "memory_unit", "running", "os", "devices", "current_memory"];
    let units = ["current_memory_unit", "maximum_memory_unit"];
    let mut left_out = others(state, "", &[&known[..], &units, &SILENT].concat());
    if let Some(os) = state.get("os") {
        let known = [
            "type",
            "type_arch",
            "firmware",
            "loader",
            "loader_readonly",
            "loader_secure",
            "loader_type",
            "nv_ram",
        ];
        left_out.extend(others(os, "os.", &known));
        left_out.extend(other_architecture(os, "/type_arch", "os.type_arch"));
    }
    if let Some(devices) = state.get("devices") {
        left_out.extend(others(devices, "devices.", &["disks", "interfaces", "emulator", "graphics"]));
    }
    let mut files = Vec::new();
    for (i, disk) in list(state, "/devices/disks").iter().enumerate() {
        let is_disk = text(disk, "/device").is_none_or(|device| device == "disk");
        let file = ["/source/file/file", "/source/volume/volume"].iter().find_map(|at| text(disk, at));
        match file.filter(|_| is_disk) {
            Some(file) => files.push(Some(file)),
            None => left_out.push(format!("devices.disks[{i}]")),
        }
    }
    let mut interfaces = Vec::new();
    for (i, one) in list(state, "/devices/interfaces").iter().enumerate() {
        let network = text(one, "/source/network/network");
        if network.is_none() && one.get("source").is_some_and(is_set) {
            left_out.push(format!("devices.interfaces[{i}].source"));
        }
        let model = model(one, "/model/type").unwrap_or_else(|()| {
            left_out.push(format!("devices.interfaces[{i}].model"));
            None
        });
        interfaces.push(interface(i, text(one, "/mac/address"), network, model));
    }
    let unit = text(state, "/memory_unit").unwrap_or("KiB");
    let size = Size {
        cpus: number(state, "/vcpu"),
        memory: number(state, "/memory").and_then(|amount| bytes(amount, unit)),
        firmware: match text(state, "/os/firmware") {
            _ if text(state, "/os/loader_secure") == Some("yes") => Firmware::UEFISecureBoot,
            None if text(state, "/os/loader").is_none() => Firmware::BIOS,
            _ => Firmware::UEFI,
        },
    };
    finish(state, &size, disks(files), interfaces, left_out)
}

fn finish(
    state: &Json,
    size: &Size,
    disks: Option<Value>,
    interfaces: Vec<Value>,
    left_out: Vec<String>,
) -> Source {
    let mut attributes: Vec<(&'static str, Value)> = power(state).into_iter().collect();
    // The domain's UUID is the id of its resource in 0.8.
    let uuid = text(state, "/uuid").or(text(state, "/id")).filter(|uuid| is_uuid(uuid));
    attributes.extend(uuid.map(|uuid| ("uuid", Value::from(uuid))));
    let has_screen = ["/graphics", "/devices/graphics"].iter().any(|at| !list(state, at).is_empty());
    attributes.extend(has_screen.then(|| ("graphics", Value::from("VGA"))));
    attributes.extend(disks.map(|disks| ("disks", disks)));
    if !interfaces.is_empty() {
        attributes.push(("network_interfaces", Value::List(interfaces)));
    }
    let notes = vec![size.note(), DATA.to_owned()];
    Source { name: text(state, "/name").and_then(name), attributes, notes, left_out }
}

/// A volume.
pub(super) fn volume(state: &Json) -> Source {
    let known =
        ["name", "size", "capacity", "capacity_unit", "format", "key", "path", "allocation", "physical"];
    let units = ["allocation_unit", "physical_unit"];
    let mut left_out = others(state, "", &[&known[..], &units, &SILENT].concat());
    // The pool `default` of either is the one that is meant when none is named.
    left_out.retain(|name| name != "pool" || text(state, "/pool") != Some("default"));
    let unit = text(state, "/capacity_unit").unwrap_or("bytes");
    let capacity = number(state, "/capacity").and_then(|amount| bytes(amount, unit));
    let size = number(state, "/size").or(capacity).filter(|size| *size > 0);
    let attributes = size.map(|size| ("size", Value::from(Quantity::from_bytes(size).0)));
    Source {
        name: text(state, "/name").and_then(disk_name),
        attributes: attributes.into_iter().collect(),
        notes: vec![DATA.to_owned()],
        left_out,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_domain_of_0_8_keeps_its_power_disks_networks_and_mac_addresses() {
        let source = domain(&json!({
            "id": "6e0c6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c", "name": "web", "vcpu": 2, "memory": 2048, "running": true, "autostart": false,
            "firmware": "", "machine": "ubuntu", "qemu_agent": true, "cloudinit": "/srv/init.iso;6e0c",
            "cpu": [{"mode": "host-passthrough"}], "graphics": [{"type": "spice", "autoport": true}], "video": [],
            "disk": [
                {"volume_id": "/srv/web-root.qcow2", "file": "", "scsi": false},
                {"volume_id": "", "file": "/srv/debian.iso"},
                {"volume_id": "/srv/web-data.img", "file": ""},
            ],
            "network_interface": [
                {"network_name": "backend", "network_id": "77", "mac": "52:54:00:00:00:01", "addresses": ["10.0.0.2"]},
                {"network_name": "", "bridge": "br0", "mac": "52:54:00:00:00:02", "wait_for_lease": true},
            ],
        }));
        let disk =
            |name: &str, boot| Value::object([("name", Value::from(name)), ("boot", Value::Bool(boot))]);
        assert_eq!(source.name.as_deref(), Some("web"));
        assert_eq!(
            source.attributes,
            [
                ("power", Value::from("Running")),
                ("uuid", Value::from("6e0c6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c")),
                ("graphics", Value::from("VGA")),
                ("disks", Value::List(vec![disk("web-root", true), disk("web-data", false)])),
                (
                    "network_interfaces",
                    Value::List(vec![
                        interface(0, Some("52:54:00:00:00:01"), Some("backend"), None),
                        interface(1, Some("52:54:00:00:00:02"), None, None),
                    ])
                ),
            ]
        );
        assert!(
            source.notes[0].ends_with("cpus = 2, memory = \"2Gi\", firmware = \"BIOS\"."),
            "{:?}",
            source.notes
        );
        assert_eq!(
            source.left_out,
            [
                "cloudinit",
                "cpu",
                "machine",
                "disk[1]",
                "network_interface[0].addresses",
                "network_interface[1].bridge"
            ]
        );
    }

    #[test]
    fn a_domain_of_0_9_is_read_by_the_names_of_libvirts_xml() {
        let source = domain(&json!({
            "id": 3, "uuid": "6e0c", "name": "Web_1", "vcpu": 4, "memory": 4, "memory_unit": "GiB", "type": "kvm",
            "running": null, "autostart": true, "title": null,
            "os": {"type": "hvm", "type_machine": "q35", "firmware": "efi", "boot_devices": null},
            "devices": {
                "disks": [
                    {"device": null, "source": {"volume": {"pool": "default", "volume": "web.qcow2"}, "file": null}},
                    {"device": "cdrom", "source": {"file": {"file": "/srv/cidata.iso"}}},
                ],
                "interfaces": [
                    {"mac": {"address": "52:54:00:00:00:03"}, "source": {"network": {"network": "default"}},
                        "model": {"type": "e1000e"}},
                    {"mac": null, "source": {"bridge": {"bridge": "br0"}, "network": null}, "model": {"type": "pcnet"}},
                ],
                "graphics": [{"vnc": {"auto_port": true}}], "consoles": null,
            },
        }));
        assert_eq!(source.name, None, "it is no name of an object");
        let expected =
            interface(0, Some("52:54:00:00:00:03"), Some("default"), Some(("model", Value::from("e1000e"))));
        assert!(source.attributes.contains(&("graphics", Value::from("VGA"))));
        let interfaces = source.attributes.iter().find(|(name, _)| *name == "network_interfaces");
        assert_eq!(interfaces.map(|(_, list)| list.index(0)), Some(&expected));
        assert!(
            source.notes[0].ends_with("cpus = 4, memory = \"4Gi\", firmware = \"UEFI\"."),
            "{:?}",
            source.notes
        );
        assert_eq!(
            source.left_out,
            [
                "autostart",
                "os.type_machine",
                "devices.disks[1]",
                "devices.interfaces[1].source",
                "devices.interfaces[1].model"
            ]
        );
    }

    #[test]
    fn a_volume_keeps_its_name_and_size() {
        let old = volume(
            &json!({"id": "/srv/web.qcow2", "name": "web.qcow2", "pool": "default", "size": 10_737_418_240_u64,
            "format": "qcow2", "base_volume_id": "/srv/debian.qcow2", "source": null}),
        );
        assert_eq!(
            (old.name.as_deref(), &old.attributes[..]),
            (Some("web"), &[("size", Value::from("10Gi"))][..])
        );
        assert_eq!(old.left_out, ["base_volume_id"]);
        let new = volume(&json!({"name": "data.raw", "pool": "fast", "capacity": 3, "capacity_unit": "GiB",
            "create": {"content": {"url": "https://example.org/x"}}}));
        assert_eq!(
            (new.name.as_deref(), &new.attributes[..]),
            (Some("data"), &[("size", Value::from("3Gi"))][..])
        );
        assert_eq!(new.left_out, ["pool"]);
    }

    #[test]
    fn another_architecture_is_left_out() {
        let left_out = |state: Json| domain(&state).left_out;
        assert_eq!(left_out(json!({"name": "web", "arch": "aarch64"})), ["arch"]);
        assert_eq!(left_out(json!({"name": "web", "os": {"type_arch": "aarch64"}})), ["os.type_arch"]);
        assert!(left_out(json!({"name": "web", "os": {"type_arch": "x86_64"}})).is_empty());
    }

    #[test]
    fn a_secure_loader_is_firmware_with_secure_boot() {
        let state =
            json!({"name": "web", "os": {"loader": "/OVMF_CODE.fd", "loader_secure": "yes"}, "devices": {}});
        assert!(domain(&state).notes[0].ends_with("firmware = \"UEFISecureBoot\"."));
    }

    #[test]
    fn any_state_is_read() {
        for state in [json!(null), json!([]), json!({"disk": 3, "vcpu": "x", "network_interface": [null, 1]})]
        {
            assert_eq!((domain(&state).name, volume(&state).name), (None, None), "{state}");
        }
    }
}
