//! The effect of each change, attribute by attribute and for each power of a VM: the pages and the plan agree.

use std::collections::BTreeSet;

use berth_api::Power;
use serde_json::{Value as Json, json};
use terraform_provider_berth::{
    BerthProvider,
    field::{Effect, Field, Shape},
    planning,
};
use tfplugin6::{AttributePath, Step, Value, resource::PlanResponse};

use crate::stage::{Stage, text_of};

/// The effect that a plan announces for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    Live,
    PowerCycle,
    Reboot,
    /// Has no effect on a VM that has its host.
    Placement,
    Replace,
    Refused,
}

impl Announced {
    /// The same change of a VM with another declared power, by hand: nothing waits for the power cycle of a stopped VM, and only a
    /// running one is restarted.
    fn while_declared(self, power: Power) -> Self {
        match (self, power) {
            (Self::Reboot, Power::Stopped | Power::Paused | Power::Suspended) => Self::Refused,
            (Self::PowerCycle, Power::Stopped) => Self::Live,
            (other, _) => other,
        }
    }

    /// The announcement of an effect of the field table, with the default `user_data_policy`.
    fn of(effect: Effect) -> Self {
        match effect {
            Effect::Live | Effect::Start | Effect::Local => Self::Live,
            Effect::PowerCycle | Effect::Grow | Effect::Resize => Self::PowerCycle,
            Effect::Reboot => Self::Reboot,
            Effect::Replace => Self::Replace,
            Effect::Policy | Effect::Fixed | Effect::NotRunning => Self::Refused,
            Effect::Placement => Self::Placement,
        }
    }
}

fn announced(plan: &PlanResponse) -> Announced {
    let text = text_of(&plan.diagnostics);
    if text.contains("An apply of this plan fails") {
        Announced::Refused
    } else if text.contains("Does not move the VM") {
        Announced::Placement
    } else if text.contains("The VM will be restarted") {
        Announced::Reboot
    } else if !plan.requires_replace.is_empty() {
        Announced::Replace
    } else if text.contains("power cycle") {
        Announced::PowerCycle
    } else {
        Announced::Live
    }
}

/// The state after a create: the plan of the create, without unknown values.
async fn created(stage: &Stage, type_name: &str, config: &Json) -> Value {
    let mut state = stage.plan_from(Value::Null, config).await.planned.unknown_as_null();
    if type_name == "berth_vm" {
        state.set("host", "host-a");
    }
    state
}

/// `network_interfaces.public_ip`
fn attribute(path: &AttributePath) -> String {
    let names = path.steps().iter().filter_map(|step| match step {
        Step::Attribute(name) => Some(name.as_str()),
        _ => None,
    });
    names.collect::<Vec<_>>().join(".")
}

/// The attributes whose changes reach a VM or its object, with their effects. The name of a list's element is its key.
fn leaves(fields: &[Field], outer: &str, found: &mut Vec<(String, Effect)>) {
    for field in
        fields.iter().filter(|field| field.is_input() && !field.write_only && field.effect != Effect::Local)
    {
        let name = format!("{outer}{}", field.name);
        leaves(field.children(), &format!("{name}."), found);
        let is_key = field.name == "name" && !outer.is_empty();
        if !matches!(field.shape, Shape::Object(_)) && !is_key {
            found.push((name, field.effect));
        }
    }
}

fn vm() -> Json {
    let mut vm = json!({
        "name": "web", "namespace": "default", "class": "small",
        "cpus": 4, "max_cpus": null, "memory": "1Gi", "max_memory": null, "huge_pages": "None", "firmware": "UEFI", "tpm": false, "graphics": "None", "cpu_limit": "2", "cpu_weight": 100, "cpu_reservation": "1", "dedicated_cpu_placement": false, "isolate_emulator_thread": false, "cpu_model": "x86-64-v2", "guest_os": "Linux", "watchdog": "Reset", "serial_number": "A-1", "uuid": "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c", "cpu_topology": {"sockets": 2, "cores": 2, "threads": 1},
        "disks": [{"name": "root", "boot": true, "template": null}, {"name": "data", "boot": false, "bus": "virtio-scsi", "read_only": false, "template": template()}],
        "cdroms": [{"name": "installer", "image": "i", "connected": true, "boot_first": false, "guest_can_eject": true}],
        "network_interfaces": [interface()],
        "placement": {"group": "g", "host": "h", "host_selector": {"a": "b"}, "move_policy": "Never"},
        "bootstrap": {"ssh_authorized_keys": ["ssh-rsa A"], "hostname": "web", "user_data": "x", "domain": "example.net",
            "network_config": "version: 1\n", "meta_data": "role: web\n", "user": "admin", "password_hash": "$6$a$b",
            "password_expires": true, "guest_agent": "Skip", "sysprep_unattend": "<a/>", "ssh_authorized_keys_secret": "keys"},
        "guest_users": [{"name": "debian", "ssh_authorized_keys": ["ssh-rsa A"], "ssh_authorized_keys_secret": "keys"}],
        "power": "Running", "restart_policy": "Always", "stop": {"mode": "Graceful", "grace_period_seconds": 60},
        "hooks": {"post_start": hook(), "pre_stop": pre_stop()},
        "readiness_probe": probe(), "liveness_probe": probe(),
        "start_order": 2, "start_delay_seconds": 0,
        "restart_mode": "Graceful", "restart_token": "1", "labels": {"a": "b"}, "deletion_protection": false,
    });
    // One macro has no room for all of it.
    vm["numa_nodes"] = json!(1);
    vm["machine_type"] = json!("pc-q35-7.2");
    vm["resolution"] = Json::Null;
    vm["keyboard_layout"] = Json::Null;
    vm["sound"] = json!(false);
    vm["serial_ports"] = json!(2);
    vm["vsock"] = json!(false);
    vm["boot_order"] = json!(["Disk", "Cdrom"]);
    vm["class_policy"] = json!("Follow");
    vm["annotations"] = json!({"example.org/note": "any text"});
    vm["memory_reservation"] = json!("512Mi");
    vm["vm_group"] = json!("app");
    vm["pci_devices"] = json!([{"name": "gpu-a100", "count": 1}]);
    vm["usb_devices"] = json!([{"name": "licence-key", "count": 1}]);
    vm["vgpus"] = json!([{"name": "a40-8q", "count": 1}]);
    vm["shares"] = json!([{"name": "media", "tag": "films", "read_only": true}]);
    vm["secure_boot_keys"] = json!({"secret_name": "boot", "token": "1"});
    vm["restore"] = json!({"snapshot": "s", "token": "1", "memory": true});
    vm
}

/// The network without `dhcp4` and `dhcp6`, which are `true` then.
fn as_by_default(network: &Json) -> Json {
    let mut network = network.clone();
    (network["dhcp4"], network["dhcp6"]) = (Json::Null, Json::Null);
    network
}

fn interface() -> Json {
    json!({"name": "nic0", "network": "default", "public_ip": "a", "public_ipv6": "b", "mac_address": "52:54:00:00:00:01", "address": "10.77.0.9", "ipv6_address": "fd00:60::9",
            "model": "virtio", "queues": 2, "acceleration": "Auto", "link": "Up", "security_groups": ["a"], "allowed_addresses": ["10.77.0.100/32"], "allowed_mac_addresses": ["00:00:5e:00:01:0a"],
            "dns": ["10.77.0.53"], "search_domains": ["example.org"], "default_route": true, "dhcp4": true, "dhcp6": true, "guest_name": "lan0", "dscp": "EF",
            "limits": {"ingress_bandwidth": "1M", "egress_bandwidth": "1M", "ingress_burst": "1Mi", "egress_burst": "1Mi",
                "ingress_packets": 100, "egress_packets": 100}})
}

/// The control plane refuses some of these together.
fn template() -> Json {
    json!({"size": "2Gi", "image": "i", "source": {"disk": "d", "disk_namespace": "g", "snapshot": "s",
        "snapshot_namespace": "g", "backup": "b", "file": "/f"}, "pool": "default", "pools": ["a"], "pool_selector": {"media": "ssd"},
        "deletion_policy": "Delete", "expand_policy": "Online", "provisioning": "Thin", "encryption": {"key_class": "default"}, "limits": {"iops": 100, "read_iops": 100, "write_iops": 100, "bandwidth": "1Mi",
        "read_bandwidth": "1Mi", "write_bandwidth": "1Mi", "burst_iops": 200, "burst_bandwidth": "2Mi", "burst_seconds": 60}})
}

/// The control plane refuses more than one question.
fn probe() -> Json {
    json!({"tcp_socket": {"port": 80}, "http_get": {"port": 80, "path": "/"}, "exec": {"command": ["true"]},
        "initial_delay_seconds": 0, "period_seconds": 10, "timeout_seconds": 1, "failure_threshold": 3, "success_threshold": 1})
}

fn hook() -> Json {
    json!({"http_get": {"port": 80, "path": "/"}, "exec": {"command": ["true"]}, "timeout_seconds": 30, "failure_policy": "Ignore"})
}

fn pre_stop() -> Json {
    let mut hook = hook();
    hook["snapshot"] = json!({"keep": 3});
    hook
}

fn changes_of_a_vm() -> Vec<(&'static str, Json, Announced)> {
    vec![
        ("/name", json!("web2"), Announced::Replace),
        ("/namespace", json!("other"), Announced::Replace),
        ("/class", json!("large"), Announced::PowerCycle),
        ("/class", Json::Null, Announced::PowerCycle),
        ("/cpus", Json::Null, Announced::PowerCycle),
        ("/max_cpus", json!(8), Announced::PowerCycle),
        ("/memory", json!("2Gi"), Announced::PowerCycle),
        ("/max_memory", json!("4Gi"), Announced::PowerCycle),
        ("/memory_reservation", json!("256Mi"), Announced::Live),
        ("/memory_reservation", Json::Null, Announced::Live),
        ("/huge_pages", json!("2Mi"), Announced::PowerCycle),
        ("/huge_pages", Json::Null, Announced::PowerCycle),
        ("/numa_nodes", json!(2), Announced::PowerCycle),
        ("/numa_nodes", Json::Null, Announced::PowerCycle),
        ("/cpu_limit", json!("1.5"), Announced::Live),
        ("/cpu_limit", Json::Null, Announced::Live),
        ("/cpu_weight", json!(1), Announced::Live),
        ("/cpu_reservation", json!("0.25"), Announced::Live),
        ("/dedicated_cpu_placement", json!(true), Announced::PowerCycle),
        ("/isolate_emulator_thread", json!(true), Announced::PowerCycle),
        ("/cpu_model", json!("x86-64-v3"), Announced::PowerCycle),
        ("/machine_type", json!("pc-q35-9.2"), Announced::PowerCycle),
        ("/guest_os", json!("Windows"), Announced::PowerCycle),
        ("/watchdog", json!("PowerOff"), Announced::PowerCycle),
        ("/serial_number", Json::Null, Announced::PowerCycle),
        ("/firmware", json!("BIOS"), Announced::PowerCycle),
        ("/firmware", json!("UEFISecureBoot"), Announced::PowerCycle),
        ("/secure_boot_keys", Json::Null, Announced::PowerCycle),
        ("/secure_boot_keys/secret_name", json!("other"), Announced::PowerCycle),
        ("/secure_boot_keys/token", json!("2"), Announced::PowerCycle),
        ("/tpm", json!(true), Announced::PowerCycle),
        ("/tpm", Json::Null, Announced::PowerCycle),
        ("/graphics", json!("VGA"), Announced::PowerCycle),
        ("/resolution", json!("1920x1080"), Announced::PowerCycle),
        ("/keyboard_layout", json!("de"), Announced::PowerCycle),
        ("/sound", json!(true), Announced::PowerCycle),
        ("/serial_ports", Json::Null, Announced::PowerCycle),
        ("/vsock", json!(true), Announced::PowerCycle),
        ("/boot_order", json!(["Network", "Disk"]), Announced::PowerCycle),
        ("/boot_order", Json::Null, Announced::PowerCycle),
        ("/cdroms/0/image", json!("j"), Announced::Live),
        ("/cdroms/0/image", Json::Null, Announced::Live),
        ("/cdroms/0/connected", json!(false), Announced::Live),
        ("/cdroms/0/boot_first", json!(true), Announced::PowerCycle),
        ("/cdroms/0/guest_can_eject", json!(false), Announced::Live),
        ("/cdroms", json!([]), Announced::PowerCycle),
        ("/cdroms", json!([{"name": "installer", "image": "i"}, {"name": "drivers"}]), Announced::PowerCycle),
        ("/pci_devices", json!([]), Announced::PowerCycle),
        ("/pci_devices/0/count", json!(2), Announced::PowerCycle),
        ("/pci_devices", json!([{"name": "gpu-a100"}, {"name": "nic"}]), Announced::PowerCycle),
        ("/usb_devices", json!([]), Announced::PowerCycle),
        ("/usb_devices/0/count", json!(2), Announced::PowerCycle),
        ("/usb_devices", json!([{"name": "licence-key"}, {"name": "serial"}]), Announced::PowerCycle),
        ("/vgpus", json!([]), Announced::PowerCycle),
        ("/vgpus/0/count", json!(2), Announced::PowerCycle),
        ("/vgpus", json!([{"name": "a40-8q"}, {"name": "a40-1q"}]), Announced::PowerCycle),
        ("/restore", Json::Null, Announced::Live),
        ("/restore/snapshot", json!("other"), Announced::PowerCycle),
        ("/restore/token", json!("2"), Announced::PowerCycle),
        ("/restore/memory", json!(false), Announced::PowerCycle),
        ("/shares", json!([]), Announced::PowerCycle),
        ("/shares/0/tag", json!("videos"), Announced::PowerCycle),
        ("/shares/0/read_only", json!(false), Announced::PowerCycle),
        (
            "/shares",
            json!([{"name": "media", "tag": "films", "read_only": true}, {"name": "data"}]),
            Announced::PowerCycle,
        ),
        ("/uuid", Json::Null, Announced::PowerCycle),
        ("/cpu_topology", Json::Null, Announced::PowerCycle),
        ("/cpu_topology/sockets", json!(4), Announced::PowerCycle),
        ("/cpu_topology/cores", json!(4), Announced::PowerCycle),
        ("/cpu_topology/threads", json!(2), Announced::PowerCycle),
        ("/disks", json!([{"name": "root", "boot": true}]), Announced::Live),
        ("/disks/1/bus", json!("sata"), Announced::PowerCycle),
        ("/disks/1/read_only", json!(true), Announced::PowerCycle),
        (
            "/disks",
            json!([{"name": "root", "boot": true}, {"name": "data"}, {"name": "more", "bus": "virtio-blk"}]),
            Announced::PowerCycle,
        ),
        (
            "/disks",
            json!([{"name": "root", "boot": true}, {"name": "data"}, {"name": "more", "read_only": true}]),
            Announced::Live,
        ),
        (
            "/disks",
            json!([{"name": "root"}, {"name": "data", "boot": true, "template": template()}]),
            Announced::PowerCycle,
        ),
        ("/disks/1/template", Json::Null, Announced::Refused),
        ("/disks/0/template", json!({"size": "1Gi"}), Announced::Refused),
        ("/disks/1/template/image", json!("j"), Announced::Refused),
        ("/disks/1/template/source/disk", json!("e"), Announced::Refused),
        ("/disks/1/template/source/disk_namespace", json!("h"), Announced::Refused),
        ("/disks/1/template/source/snapshot_namespace", json!("h"), Announced::Refused),
        ("/disks/1/template/source/snapshot", json!("t"), Announced::Refused),
        ("/disks/1/template/source/backup", json!("c"), Announced::Refused),
        ("/disks/1/template/source/file", json!("/g"), Announced::Refused),
        ("/disks/1/template/pool", json!("fast"), Announced::Refused),
        ("/disks/1/template/provisioning", json!("Thick"), Announced::Refused),
        ("/disks/1/template/encryption", Json::Null, Announced::Refused),
        ("/disks/1/template/encryption/key_class", json!("other"), Announced::Live),
        ("/disks/1/template/size", json!("3Gi"), Announced::Live),
        ("/disks/1/template/deletion_policy", json!("Retain"), Announced::Live),
        ("/disks/1/template/pools", json!(["b"]), Announced::Refused),
        ("/disks/1/template/pool_selector", json!({"media": "nvme"}), Announced::Refused),
        ("/disks/1/template/expand_policy", json!("Offline"), Announced::Live),
        ("/disks/1/template/limits", Json::Null, Announced::Live),
        ("/disks/1/template/limits/iops", json!(150), Announced::Live),
        ("/disks/1/template/limits/read_iops", json!(150), Announced::Live),
        ("/disks/1/template/limits/write_iops", json!(150), Announced::Live),
        ("/disks/1/template/limits/bandwidth", json!("2Mi"), Announced::Live),
        ("/disks/1/template/limits/read_bandwidth", json!("2Mi"), Announced::Live),
        ("/disks/1/template/limits/write_bandwidth", json!("2Mi"), Announced::Live),
        ("/disks/1/template/limits/burst_iops", json!(300), Announced::Live),
        ("/disks/1/template/limits/burst_bandwidth", json!("3Mi"), Announced::Live),
        ("/disks/1/template/limits/burst_seconds", json!(1), Announced::Live),
        ("/disks", json!([{"name": "other", "boot": true}, {"name": "data"}]), Announced::PowerCycle),
        (
            "/disks",
            json!([{"name": "root"}, {"name": "data"}, {"name": "other", "boot": true}]),
            Announced::PowerCycle,
        ),
        ("/disks", json!([{"name": "data"}, {"name": "root", "boot": true}]), Announced::Live),
        ("/network_interfaces/0/public_ip", json!("d"), Announced::Live),
        ("/network_interfaces/0/public_ipv6", json!("c"), Announced::Live),
        ("/network_interfaces/0/security_groups", json!(["b"]), Announced::Live),
        ("/network_interfaces/0/allowed_addresses", json!(["0.0.0.0/0"]), Announced::Live),
        ("/network_interfaces/0/allowed_mac_addresses", json!(["00:00:5e:00:01:0b"]), Announced::Live),
        ("/network_interfaces/0/limits", Json::Null, Announced::Live),
        ("/network_interfaces/0/dscp", json!("CS1"), Announced::Live),
        ("/network_interfaces/0/dns", json!(["9.9.9.9"]), Announced::Live),
        ("/network_interfaces/0/search_domains", json!(["example.net"]), Announced::Live),
        ("/network_interfaces/0/default_route", json!(false), Announced::Live),
        ("/network_interfaces/0/limits/ingress_bandwidth", json!("2M"), Announced::Live),
        ("/network_interfaces/0/limits/egress_bandwidth", json!("2M"), Announced::Live),
        ("/network_interfaces/0/limits/ingress_burst", json!("2Mi"), Announced::Live),
        ("/network_interfaces/0/limits/egress_burst", json!("2Mi"), Announced::Live),
        ("/network_interfaces/0/limits/ingress_packets", json!(200), Announced::Live),
        ("/network_interfaces/0/limits/egress_packets", json!(200), Announced::Live),
        ("/network_interfaces/0/model", json!("e1000e"), Announced::PowerCycle),
        ("/network_interfaces/0/queues", json!(4), Announced::PowerCycle),
        ("/network_interfaces/0/acceleration", json!("Off"), Announced::PowerCycle),
        ("/network_interfaces/0/link", json!("Down"), Announced::Live),
        ("/network_interfaces/0/network", json!("lan"), Announced::Refused),
        ("/network_interfaces/0/dhcp4", json!(false), Announced::Refused),
        ("/network_interfaces/0/dhcp6", json!(false), Announced::Refused),
        ("/network_interfaces/0/guest_name", json!("lan1"), Announced::Refused),
        ("/network_interfaces/0/mac_address", json!("52:54:00:00:00:02"), Announced::Refused),
        ("/network_interfaces/0/address", json!("10.77.0.10"), Announced::Refused),
        ("/network_interfaces/0/ipv6_address", json!("fd00:60::11"), Announced::Refused),
        (
            "/network_interfaces",
            json!([{"name": "nic0", "mac_address": "52:54:00:00:00:01"}, {"name": "nic1"}]),
            Announced::Live,
        ),
        (
            "/network_interfaces",
            json!([{"name": "nic0", "mac_address": "52:54:00:00:00:01"}, {"name": "nic1", "model": "rtl8139"}]),
            Announced::PowerCycle,
        ),
        ("/network_interfaces", json!([]), Announced::Live),
        ("/placement/group", json!("h"), Announced::Replace),
        ("/placement/host", json!("other"), Announced::Refused),
        ("/placement/host", json!("host-a"), Announced::Live),
        ("/placement/host", Json::Null, Announced::Live),
        ("/placement/host_selector", json!({"a": "c"}), Announced::Placement),
        ("/placement/host_selector", json!({}), Announced::Live),
        ("/placement/move_policy", json!("WhenStopped"), Announced::Live),
        ("/bootstrap/user_data", json!("y"), Announced::Refused),
        ("/bootstrap/ssh_authorized_keys", json!(["ssh-rsa B"]), Announced::Refused),
        ("/bootstrap/ssh_authorized_keys_secret", json!("other"), Announced::Refused),
        ("/bootstrap/user", json!("other"), Announced::Refused),
        ("/bootstrap/password_hash", json!("$6$a$c"), Announced::Refused),
        ("/bootstrap/password_expires", json!(false), Announced::Refused),
        ("/bootstrap/sysprep_unattend", json!("<b/>"), Announced::Refused),
        ("/bootstrap/guest_agent", json!("Install"), Announced::Refused),
        ("/bootstrap/hostname", json!("other"), Announced::Refused),
        ("/bootstrap/domain", json!("example.org"), Announced::Refused),
        ("/bootstrap/network_config", json!("version: 2\n"), Announced::Refused),
        ("/bootstrap/meta_data", json!("role: db\n"), Announced::Refused),
        ("/guest_users/0/ssh_authorized_keys", json!(["ssh-rsa B"]), Announced::Live),
        ("/guest_users/0/ssh_authorized_keys_secret", json!("other"), Announced::Live),
        ("/guest_users", json!([]), Announced::Live),
        ("/guest_users", json!([{"name": "root", "ssh_authorized_keys": ["ssh-rsa A"]}]), Announced::Live),
        ("/power", json!("Stopped"), Announced::Live),
        ("/restart_policy", json!("Never"), Announced::Live),
        ("/stop/grace_period_seconds", json!(5), Announced::Live),
        ("/restart_mode", json!("Hard"), Announced::Live),
        ("/readiness_probe/tcp_socket/port", json!(81), Announced::Live),
        ("/readiness_probe/http_get/port", json!(81), Announced::Live),
        ("/readiness_probe/http_get/path", json!("/ready"), Announced::Live),
        ("/readiness_probe/exec/command", json!(["false"]), Announced::Live),
        ("/readiness_probe/initial_delay_seconds", json!(5), Announced::Live),
        ("/readiness_probe/period_seconds", json!(5), Announced::Live),
        ("/readiness_probe/timeout_seconds", json!(5), Announced::Live),
        ("/readiness_probe/failure_threshold", json!(5), Announced::Live),
        ("/readiness_probe/success_threshold", json!(5), Announced::Live),
        ("/readiness_probe", Json::Null, Announced::Live),
        ("/liveness_probe/tcp_socket/port", json!(81), Announced::Live),
        ("/liveness_probe/http_get/port", json!(81), Announced::Live),
        ("/liveness_probe/http_get/path", json!("/ready"), Announced::Live),
        ("/liveness_probe/exec/command", json!(["false"]), Announced::Live),
        ("/liveness_probe/initial_delay_seconds", json!(5), Announced::Live),
        ("/liveness_probe/period_seconds", json!(5), Announced::Live),
        ("/liveness_probe/timeout_seconds", json!(5), Announced::Live),
        ("/liveness_probe/failure_threshold", json!(5), Announced::Live),
        ("/liveness_probe/success_threshold", json!(5), Announced::Live),
        ("/liveness_probe", Json::Null, Announced::Live),
        ("/hooks/post_start/http_get/port", json!(81), Announced::Live),
        ("/hooks/post_start/http_get/path", json!("/ready"), Announced::Live),
        ("/hooks/post_start/exec/command", json!(["false"]), Announced::Live),
        ("/hooks/post_start/timeout_seconds", json!(5), Announced::Live),
        ("/hooks/post_start/failure_policy", json!("Fail"), Announced::Live),
        ("/hooks/pre_stop/http_get/port", json!(81), Announced::Live),
        ("/hooks/pre_stop/http_get/path", json!("/ready"), Announced::Live),
        ("/hooks/pre_stop/exec/command", json!(["false"]), Announced::Live),
        ("/hooks/pre_stop/snapshot/keep", json!(1), Announced::Live),
        ("/hooks/pre_stop/timeout_seconds", json!(5), Announced::Live),
        ("/hooks/pre_stop/failure_policy", json!("Fail"), Announced::Live),
        ("/hooks", Json::Null, Announced::Live),
        ("/start_order", json!(3), Announced::Live),
        ("/start_delay_seconds", json!(30), Announced::Live),
        ("/vm_group", json!("other"), Announced::Live),
        ("/restart_token", json!("2"), Announced::Reboot),
        ("/restart_token", Json::Null, Announced::Live),
        ("/labels/a", json!("c"), Announced::Live),
        ("/class_policy", json!("Pin"), Announced::Live),
        ("/annotations/example.org~1note", json!("another text"), Announced::Live),
        ("/deletion_protection", json!(true), Announced::Live),
    ]
}

fn others() -> Vec<(&'static str, Json, &'static str, Json, Announced)> {
    let source = json!({"url": "https://a/x", "sha256": "0".repeat(64)});
    let image =
        json!({"name": "i", "namespace": "default", "source": source, "format": "qcow2", "guest_os": null});
    let from =
        |source: Json| json!({"name": "i", "namespace": "default", "source": source, "format": "qcow2"});
    let by_sha512 = from(json!({"url": "https://a/x", "sha512": "0".repeat(128)}));
    let by_file = from(json!({"url": "https://a/x", "checksum_url": "https://a/SHA512SUMS"}));
    let with_token =
        from(json!({"url": "https://a/x", "checksum_url": "https://a/SHA512SUMS", "token": "1"}));
    let mut of_ova = image.clone();
    (of_ova["format"], of_ova["ova_disk"]) = ("ova".into(), 1.into());
    let by_trust = from(json!({"url": "https://a/x", "trust_on_first_use": true}));
    let mut described = image.clone();
    (described["display_name"], described["description"], described["version"]) =
        ("a".into(), "a".into(), "1".into());
    (described["owner"], described["shared_with"]) = ("a".into(), json!(["team-a"]));
    described["os"] =
        json!({"family": "a", "distribution": "a", "version": "a", "variant": "a", "architecture": "a"});
    let (of_disk, of_snapshot) = (from(json!({"disk": "d"})), from(json!({"snapshot": "s"})));
    let foreign_disk = from(json!({"disk": "d", "disk_namespace": "golden"}));
    let foreign_snapshot = from(json!({"snapshot": "s", "snapshot_namespace": "golden"}));
    let of_image = from(json!({"image": "other", "image_namespace": "golden"}));
    let limited =
        from(json!({"url": "https://a/x", "sha256": "0".repeat(64), "timeout_seconds": 600, "retries": 3}));
    let of_upload = from(json!({"upload": {"size": 5}, "sha256": "0".repeat(64)}));
    let disk = json!({"name": "d", "namespace": "default", "size": "2Gi", "image": "i", "pool": "default", "deletion_policy": "Delete",
        "access": "ReadWriteOnce", "expand_policy": "Online", "provisioning": "Thin", "encryption": null, "limits": {"iops": 100, "bandwidth": "1Mi", "burst_iops": 200, "burst_bandwidth": "2Mi", "burst_seconds": 60}});
    let copy =
        |from: &str| json!({"name": "d", "namespace": "default", "size": "2Gi", "source": {from: "x"}});
    let foreign = |from: &str| {
        let mut foreign = copy(from);
        foreign["source"][format!("{from}_namespace")] = "golden".into();
        foreign["shared_with"] = json!(["team-a"]);
        foreign
    };
    let of_file = json!({"name": "d", "namespace": "default", "source": {"file": "/x"}});
    let mut imported = of_file.clone();
    imported["imported_from"] =
        json!({"system": "libvirt", "guest": "a", "guest_identity": "1", "disk": "vda"});
    let mut zoned = disk.clone();
    zoned["placement"] = json!({"host_selector": {"zone": "a"}});
    let mut chosen = disk.clone();
    chosen["pools"] = json!(["a", "b"]);
    let mut labelled = disk.clone();
    labelled["pool_selector"] = json!({"media": "ssd"});
    let restored = json!({"name": "d", "namespace": "default", "size": "2Gi", "restore": {"snapshot": "s", "token": "1"}});
    let snapshot = json!({"name": "s", "namespace": "default", "disk": "d", "shared_with": ["team-a"]});
    let of_vm = json!({"name": "s", "namespace": "default", "vm": "web", "memory": false});
    let backup = json!({"name": "b", "namespace": "default", "repository": "r", "snapshot": "s", "deletion_policy": "Delete"});
    let found = json!({"name": "b", "namespace": "default", "repository": "r", "existing": "v-1/b-1"});
    let nas = json!({"name": "r", "namespace": "default", "folder": "nas", "password_secret_name": "p",
        "verification": {"interval_days": 30, "bandwidth": "20Mi"}});
    let s3 = json!({"name": "r", "namespace": "default", "credentials_secret_name": "c", "password_secret_name": "p",
        "s3": {"endpoint": "https://s3.example.org", "region": "us-east-1", "bucket": "b-1", "prefix": "a"}});
    let each = json!({"name": "d", "namespace": "default", "size": "2Gi",
        "limits": {"read_iops": 1, "write_iops": 2, "read_bandwidth": "1Mi", "write_bandwidth": "2Mi"}});
    let class = json!({"name": "c", "namespace": "default", "cpus": 1, "memory": "1Gi", "firmware": "UEFI",
        "tpm": false, "huge_pages": "None", "dedicated_cpu_placement": false, "qemu_options": [{"name": "cpu.vmx", "value": "on"}], "pci_devices": [{"name": "nic-vf", "count": 1}], "usb_devices": [{"name": "licence-key", "count": 1}], "vgpus": [{"name": "a40-8q", "count": 1}], "cpu_topology": {"sockets": 1, "cores": 1, "threads": 1}});
    let ip = json!({"name": "p", "namespace": "default", "pool": "default", "address": "198.18.100.1"});
    let hda = json!({"name": "a", "namespace": "default", "vm": "v", "disk": "d", "force": false});
    let network = json!({"name": "n", "namespace": "default", "cidr": "10.80.0.0/24", "egress": "Masquerade", "ipv6_cidr": "fd00:60::/64", "ipv6_egress": "None", "dns": ["10.80.0.1"], "mtu": 1400, "isolated": false, "dhcp4": true, "dhcp6": true,
        "dns_domain": "app.internal", "search_domains": ["example.org"], "routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.80.0.9"}]});
    let lan = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0", "trunk_vlans": ["10"]}, "cidr": "10.80.0.0/24",
        "ipv4": {"allocation": "Static", "gateway": "10.80.0.1", "range": "10.80.0.9-10.80.0.10"}});
    let vlan = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"interface": "eth1", "vlan": 120}, "cidr": "10.80.0.0/24",
        "ipv4": {"allocation": "Static"}});
    let office = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv4": {"allocation": "External", "source_check": "None"}});
    let lan6 = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6_cidr": "2001:db8:7::/64",
        "ipv6": {"allocation": "Static", "gateway": "fe80::1", "range": "2001:db8:7::10-2001:db8:7::1f"}});
    let office6 = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6": {"allocation": "External"}});
    let pool = json!({"name": "p", "cidrs": ["192.0.2.0/24"], "mode": "local", "use_all_addresses": false});
    let storage =
        json!({"name": "s", "type": "Local", "trash_retention_seconds": 60, "overcommit_percent": 200});
    let host = json!({"name": "h", "cordoned": false, "draining": false, "reserved": {"cpus": 1, "memory": "1Gi"},
        "namespaces": ["team-a"]});
    let check = json!({"type": "http", "path": "/a", "port": 80, "interval": "2s", "timeout": "1s", "healthy_threshold": 1, "unhealthy_threshold": 2});
    let port = json!({"name": "p", "port": 443, "target_port": 8443, "protocol": "tcp", "targets": ["a"], "session_affinity": "ClientIP",
        "health_check": check});
    let balancer =
        json!({"name": "b", "namespace": "default", "pool": "default", "port_range": null, "ports": [port]});
    let rule = json!({"name": "r", "protocol": "tcp", "ports": ["80"], "cidrs": ["10.0.0.0/8"], "security_groups": ["web"]});
    let security = json!({"name": "g", "namespace": "default", "ingress": [rule], "egress": [rule]});
    let ping = json!({"name": "g", "namespace": "default", "ingress": [{"name": "r", "protocol": "icmp", "icmp_types": ["info-request"], "cidrs": ["::/0"]}]});
    let quota = json!({"name": "q", "namespace": "default", "hard": {"disk_size": "1Ti", "used_storage": "1Ti", "memory": "1Gi", "cpus": 1, "vms": 2,
        "disks": 2, "snapshots": 2, "images": 2, "public_ips": 2}});
    let group = json!({"name": "g", "namespace": "default", "strategy": "spread", "enforcement": "required",
        "host_selector": {"a": "b"}, "preferred_host_selector": {"a": "b"}});
    let step = json!({"name": "step0", "vms": ["a"], "groups": ["b"], "power_on_delay_seconds": 0});
    let vm_group = json!({"name": "g", "namespace": "default", "power": "Running", "parent": "site", "boot_order": [step]});
    let keep = json!({"last": 1, "hourly": 0, "daily": 1, "weekly": 0, "monthly": 0, "yearly": 0});
    let schedule = json!({"name": "s", "namespace": "default", "schedule": "@daily", "time_zone": "UTC", "vms": ["web"], "keep": keep,
        "backup": {"repository": "offsite", "keep": keep}, "starting_deadline_seconds": 3600, "suspend": false});
    let key_class =
        json!({"name": "k", "namespace": "default", "secret": {"name": "disk-key", "key": "key"}});
    let mut by_token = json!({"name": "k", "namespace": "default", "vault": {"address": "https://a:8200", "mount": "transit",
        "key": "berth", "namespace": "team", "ca_secret": {"name": "ca", "key": "ca.crt"}, "token_secret": {"name": "t", "key": "token"}}});
    let mut by_role = by_token.clone();
    by_token["vault"]["app_role"] = Json::Null;
    by_role["vault"]["token_secret"] = Json::Null;
    by_role["vault"]["app_role"] = json!({"role_id": "r", "secret": {"name": "t", "key": "secretID"}});
    let mut encrypted = disk.clone();
    encrypted["encryption"] = json!({"key_class": "default"});
    let mut selecting = schedule.clone();
    selecting["vms"] = Json::Null;
    selecting["vm_selector"] = json!({"tier": "web"});
    vec![
        ("berth_image", image.clone(), "/source/url", json!("https://b/x"), Announced::Live),
        ("berth_image", image.clone(), "/source/sha256", json!("1".repeat(64)), Announced::Replace),
        ("berth_image", by_sha512, "/source/sha512", json!("1".repeat(128)), Announced::Replace),
        ("berth_image", by_trust, "/source/trust_on_first_use", Json::Null, Announced::Replace),
        ("berth_image", of_ova, "/ova_disk", json!(2), Announced::Replace),
        ("berth_image", with_token, "/source/token", json!("2"), Announced::Live),
        ("berth_image", by_file, "/source/checksum_url", json!("https://b/SHA512SUMS"), Announced::Replace),
        ("berth_image", image.clone(), "/guest_os", json!("Windows"), Announced::PowerCycle),
        ("berth_image", image, "/format", json!("raw"), Announced::Replace),
        ("berth_image", described.clone(), "/display_name", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/description", Json::Null, Announced::Live),
        ("berth_image", described.clone(), "/version", json!("2"), Announced::Live),
        ("berth_image", described.clone(), "/owner", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/shared_with", json!(["*"]), Announced::Live),
        ("berth_image", described.clone(), "/os", Json::Null, Announced::Live),
        ("berth_image", described.clone(), "/os/family", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/os/distribution", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/os/version", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/os/variant", json!("b"), Announced::Live),
        ("berth_image", described, "/os/architecture", json!("b"), Announced::Live),
        ("berth_image", of_disk, "/source/disk", json!("other"), Announced::Replace),
        ("berth_image", of_snapshot, "/source/snapshot", json!("other"), Announced::Replace),
        ("berth_image", foreign_disk, "/source/disk_namespace", json!("silver"), Announced::Replace),
        ("berth_image", foreign_snapshot, "/source/snapshot_namespace", json!("silver"), Announced::Replace),
        ("berth_image", limited.clone(), "/source/timeout_seconds", json!(900), Announced::Live),
        ("berth_image", limited, "/source/retries", Json::Null, Announced::Live),
        ("berth_image", of_image.clone(), "/source/image", json!("another"), Announced::Replace),
        ("berth_image", of_image, "/source/image_namespace", json!("silver"), Announced::Replace),
        ("berth_image", of_upload, "/source/upload/size", json!(6), Announced::Replace),
        ("berth_disk", disk.clone(), "/size", json!("3Gi"), Announced::Live),
        ("berth_disk", disk.clone(), "/size", json!("1Gi"), Announced::Refused),
        ("berth_disk", disk.clone(), "/image", json!("j"), Announced::Replace),
        ("berth_disk", disk.clone(), "/pool", json!("fast"), Announced::Live),
        ("berth_disk", disk.clone(), "/access", json!("ReadOnlyMany"), Announced::Replace),
        ("berth_disk", copy("disk"), "/source/disk", json!("other"), Announced::Replace),
        ("berth_disk", copy("snapshot"), "/source/snapshot", json!("other"), Announced::Replace),
        ("berth_disk", copy("backup"), "/source/backup", json!("other"), Announced::Replace),
        ("berth_disk", foreign("disk"), "/source/disk_namespace", json!("silver"), Announced::Replace),
        (
            "berth_disk",
            foreign("snapshot"),
            "/source/snapshot_namespace",
            json!("silver"),
            Announced::Replace,
        ),
        ("berth_disk", foreign("disk"), "/shared_with", json!(["*"]), Announced::Live),
        ("berth_disk", zoned.clone(), "/placement", Json::Null, Announced::Live),
        ("berth_disk", zoned, "/placement/host_selector", json!({"zone": "b"}), Announced::Live),
        ("berth_disk", chosen, "/pools", json!(["b"]), Announced::Live),
        ("berth_disk", labelled, "/pool_selector", json!({"media": "nvme"}), Announced::Live),
        ("berth_disk", imported.clone(), "/imported_from", Json::Null, Announced::Live),
        ("berth_disk", imported.clone(), "/imported_from/system", json!("QEMU"), Announced::Live),
        ("berth_disk", imported.clone(), "/imported_from/guest", json!("b"), Announced::Live),
        ("berth_disk", imported.clone(), "/imported_from/guest_identity", json!("2"), Announced::Live),
        ("berth_disk", imported, "/imported_from/disk", json!("vdb"), Announced::Live),
        ("berth_disk", of_file, "/source/file", json!("/other"), Announced::Replace),
        ("berth_disk", encrypted.clone(), "/encryption/key_class", json!("other"), Announced::Live),
        ("berth_disk", encrypted, "/encryption", Json::Null, Announced::Replace),
        ("berth_disk", disk.clone(), "/encryption", json!({"key_class": "default"}), Announced::Replace),
        ("berth_key_class", key_class.clone(), "/secret/name", json!("other"), Announced::Replace),
        ("berth_key_class", key_class, "/secret/key", json!("other"), Announced::Replace),
        ("berth_key_class", by_token.clone(), "/vault/address", json!("https://b:8200"), Announced::Live),
        ("berth_key_class", by_token.clone(), "/vault/mount", json!("other"), Announced::Replace),
        ("berth_key_class", by_token.clone(), "/vault/key", json!("other"), Announced::Replace),
        ("berth_key_class", by_token.clone(), "/vault/namespace", Json::Null, Announced::Replace),
        ("berth_key_class", by_token.clone(), "/vault/token_secret/name", json!("other"), Announced::Live),
        ("berth_key_class", by_token.clone(), "/vault/token_secret/key", json!("other"), Announced::Live),
        ("berth_key_class", by_token.clone(), "/vault/ca_secret/name", json!("other"), Announced::Live),
        ("berth_key_class", by_token, "/vault/ca_secret", Json::Null, Announced::Live),
        ("berth_key_class", by_role.clone(), "/vault/app_role/role_id", json!("other"), Announced::Live),
        ("berth_key_class", by_role.clone(), "/vault/app_role/secret/name", json!("other"), Announced::Live),
        ("berth_key_class", by_role, "/vault/app_role/secret/key", json!("other"), Announced::Live),
        ("berth_disk_snapshot", snapshot.clone(), "/shared_with", Json::Null, Announced::Live),
        ("berth_disk_snapshot", snapshot, "/disk", json!("other"), Announced::Replace),
        ("berth_backup", backup.clone(), "/repository", json!("other"), Announced::Replace),
        ("berth_backup", backup.clone(), "/snapshot", json!("other"), Announced::Replace),
        ("berth_backup", backup, "/deletion_policy", json!("Retain"), Announced::Live),
        ("berth_backup", found, "/existing", json!("v-1/b-2"), Announced::Replace),
        ("berth_backup_repository", nas.clone(), "/folder", json!("other"), Announced::Replace),
        ("berth_backup_repository", nas.clone(), "/password_secret_name", json!("other"), Announced::Live),
        ("berth_backup_repository", nas.clone(), "/verification/interval_days", json!(7), Announced::Live),
        ("berth_backup_repository", nas.clone(), "/verification/bandwidth", json!("1Gi"), Announced::Live),
        ("berth_backup_repository", nas, "/verification", Json::Null, Announced::Live),
        (
            "berth_backup_repository",
            s3.clone(),
            "/s3/endpoint",
            json!("https://s3.example.net"),
            Announced::Replace,
        ),
        ("berth_backup_repository", s3.clone(), "/s3/region", json!("eu-north-1"), Announced::Replace),
        ("berth_backup_repository", s3.clone(), "/s3/bucket", json!("b-2"), Announced::Replace),
        ("berth_backup_repository", s3.clone(), "/s3/prefix", Json::Null, Announced::Replace),
        ("berth_backup_repository", s3, "/credentials_secret_name", json!("other"), Announced::Live),
        ("berth_vm_snapshot", of_vm.clone(), "/vm", json!("other"), Announced::Replace),
        ("berth_vm_snapshot", of_vm, "/memory", json!(true), Announced::Replace),
        ("berth_snapshot_schedule", schedule.clone(), "/schedule", json!("@hourly"), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/time_zone", json!("Asia/Tokyo"), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/vms", json!(["web", "db"]), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/last", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/hourly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/daily", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/weekly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/monthly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/yearly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup", Json::Null, Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/repository", json!("other"), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/last", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/hourly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/daily", json!(90), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/weekly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/monthly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/yearly", json!(2), Announced::Live),
        (
            "berth_snapshot_schedule",
            schedule.clone(),
            "/starting_deadline_seconds",
            json!(60),
            Announced::Live,
        ),
        ("berth_snapshot_schedule", schedule.clone(), "/suspend", json!(true), Announced::Live),
        ("berth_snapshot_schedule", selecting, "/vm_selector", json!({"tier": "db"}), Announced::Live),
        ("berth_disk", disk.clone(), "/expand_policy", json!("Offline"), Announced::Live),
        ("berth_disk", disk.clone(), "/provisioning", json!("Thick"), Announced::Replace),
        ("berth_disk", disk.clone(), "/access", json!("ReadOnlyMany"), Announced::Replace),
        ("berth_disk", disk.clone(), "/limits", Json::Null, Announced::Live),
        ("berth_disk", disk.clone(), "/limits/iops", json!(150), Announced::Live),
        ("berth_disk", disk.clone(), "/limits/bandwidth", json!("2Mi"), Announced::Live),
        ("berth_disk", disk.clone(), "/limits/burst_iops", json!(300), Announced::Live),
        ("berth_disk", disk.clone(), "/limits/burst_bandwidth", json!("3Mi"), Announced::Live),
        ("berth_disk", disk.clone(), "/limits/burst_seconds", json!(1), Announced::Live),
        ("berth_disk", each.clone(), "/limits/read_iops", json!(3), Announced::Live),
        ("berth_disk", each.clone(), "/limits/write_iops", json!(3), Announced::Live),
        ("berth_disk", each.clone(), "/limits/read_bandwidth", json!("3Mi"), Announced::Live),
        ("berth_disk", each, "/limits/write_bandwidth", json!("3Mi"), Announced::Live),
        ("berth_disk", restored.clone(), "/restore", Json::Null, Announced::Live),
        ("berth_disk", restored.clone(), "/restore/snapshot", json!("other"), Announced::Live),
        ("berth_disk", restored, "/restore/token", json!("2"), Announced::Live),
        ("berth_disk", disk, "/deletion_policy", json!("Retain"), Announced::Live),
        ("berth_vm_class", class.clone(), "/cpus", json!(2), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/memory", json!("2Gi"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/memory", Json::Null, Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/firmware", json!("BIOS"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/huge_pages", json!("2Mi"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/dedicated_cpu_placement", json!(true), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/tpm", json!(true), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/qemu_options", json!([]), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/qemu_options/0/value", json!("off"), Announced::PowerCycle),
        (
            "berth_vm_class",
            class.clone(),
            "/pci_devices",
            json!([{"name": "gpu-a100"}]),
            Announced::PowerCycle,
        ),
        ("berth_vm_class", class.clone(), "/usb_devices/0/count", json!(2), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/vgpus", json!([]), Announced::PowerCycle),
        ("berth_vm_class", class, "/cpu_topology", Json::Null, Announced::PowerCycle),
        ("berth_public_ip", ip.clone(), "/pool", json!("other"), Announced::Replace),
        ("berth_public_ip", ip, "/address", json!("198.18.100.2"), Announced::Replace),
        ("berth_public_ip", balancer.clone(), "/port_range", json!("20000-20099"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/port", json!(8443), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/target_port", json!(443), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/protocol", json!("udp"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/targets", json!(["b"]), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/session_affinity", json!("None"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check", Json::Null, Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/type", Json::Null, Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/path", json!("/b"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/port", json!(81), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/interval", json!("3s"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/timeout", json!("3s"), Announced::Live),
        (
            "berth_public_ip",
            balancer.clone(),
            "/ports/0/health_check/healthy_threshold",
            json!(3),
            Announced::Live,
        ),
        ("berth_public_ip", balancer, "/ports/0/health_check/unhealthy_threshold", json!(3), Announced::Live),
        ("berth_hotswap_disk_attachment", hda.clone(), "/vm", json!("w"), Announced::Replace),
        ("berth_hotswap_disk_attachment", hda.clone(), "/disk", json!("e"), Announced::Replace),
        ("berth_hotswap_disk_attachment", hda, "/force", json!(true), Announced::Live),
        ("berth_network", network.clone(), "/cidr", json!("10.81.0.0/24"), Announced::Replace),
        ("berth_network", network.clone(), "/ipv6_cidr", json!("fd00:61::/64"), Announced::Replace),
        ("berth_network", network.clone(), "/egress", json!("None"), Announced::Live),
        ("berth_network", network.clone(), "/ipv6_egress", json!("Routed"), Announced::Live),
        ("berth_network", network.clone(), "/dns", json!(["10.80.0.2"]), Announced::Live),
        ("berth_network", network.clone(), "/dns_domain", json!("db.internal"), Announced::Live),
        ("berth_network", network.clone(), "/search_domains", json!(["example.net"]), Announced::Live),
        ("berth_network", network.clone(), "/routes/0/to", json!("192.168.0.0/24"), Announced::Live),
        ("berth_network", network.clone(), "/routes/0/via", json!("10.80.0.8"), Announced::Live),
        ("berth_network", network.clone(), "/isolated", json!(true), Announced::Live),
        ("berth_network", network.clone(), "/dhcp4", json!(false), Announced::Replace),
        ("berth_network", network.clone(), "/dhcp6", json!(false), Announced::Replace),
        ("berth_network", as_by_default(&network), "/dhcp4", json!(true), Announced::Live),
        ("berth_network", as_by_default(&network), "/dhcp6", json!(true), Announced::Live),
        ("berth_network", network, "/mtu", json!(1450), Announced::PowerCycle),
        ("berth_network", lan.clone(), "/bridge/name", json!("vmbr1"), Announced::Replace),
        ("berth_network", lan.clone(), "/bridge/trunk_vlans", json!(["20"]), Announced::Live),
        ("berth_network", vlan.clone(), "/bridge/interface", json!("eth2"), Announced::Replace),
        ("berth_network", vlan, "/bridge/vlan", json!(121), Announced::Replace),
        ("berth_network", lan.clone(), "/ipv4/gateway", json!("10.80.0.2"), Announced::Live),
        ("berth_network", lan.clone(), "/ipv4/range", json!("10.80.0.9-10.80.0.20"), Announced::Live),
        ("berth_network", lan, "/type", json!("Overlay"), Announced::Replace),
        ("berth_network", office.clone(), "/ipv4/source_check", json!("Lease"), Announced::Live),
        ("berth_network", office, "/ipv4/allocation", json!("Static"), Announced::Replace),
        ("berth_network", lan6.clone(), "/ipv6/gateway", json!("fe80::2"), Announced::Live),
        ("berth_network", lan6, "/ipv6/range", json!("2001:db8:7::10-2001:db8:7::2f"), Announced::Live),
        ("berth_network", office6, "/ipv6/allocation", json!("Static"), Announced::Replace),
        ("berth_ip_pool", pool.clone(), "/cidrs", json!(["192.0.2.0/25"]), Announced::Live),
        ("berth_ip_pool", pool.clone(), "/mode", json!("l2"), Announced::Replace),
        ("berth_ip_pool", pool, "/use_all_addresses", json!(true), Announced::Live),
        ("berth_storage_pool", storage.clone(), "/type", json!("Shared"), Announced::Replace),
        ("berth_storage_pool", storage.clone(), "/type", json!("RBD"), Announced::Replace),
        ("berth_storage_pool", storage.clone(), "/trash_retention_seconds", json!(0), Announced::Live),
        ("berth_storage_pool", storage, "/overcommit_percent", json!(100), Announced::Live),
        ("berth_host", host.clone(), "/name", json!("h2"), Announced::Replace),
        ("berth_host", host.clone(), "/cordoned", json!(true), Announced::Live),
        ("berth_host", host.clone(), "/draining", json!(true), Announced::Live),
        ("berth_host", host.clone(), "/namespaces", json!(["team-b"]), Announced::Live),
        ("berth_host", host.clone(), "/reserved/cpus", json!(2), Announced::Live),
        ("berth_host", host, "/reserved/memory", json!("2Gi"), Announced::Live),
        ("berth_security_group", security.clone(), "/ingress/0/ports", json!(["443"]), Announced::Live),
        ("berth_security_group", security.clone(), "/ingress/0/protocol", json!("udp"), Announced::Live),
        ("berth_security_group", security.clone(), "/ingress/0/cidrs", json!(["::/0"]), Announced::Live),
        ("berth_security_group", ping, "/ingress/0/icmp_types", json!(["echo-request"]), Announced::Live),
        (
            "berth_security_group",
            security.clone(),
            "/ingress/0/security_groups",
            json!(["db"]),
            Announced::Live,
        ),
        ("berth_security_group", security, "/egress", json!([]), Announced::Live),
        ("berth_placement_group", group.clone(), "/enforcement", json!("preferred"), Announced::Live),
        ("berth_placement_group", group.clone(), "/host_selector", json!({"a": "c"}), Announced::Live),
        ("berth_placement_group", group, "/preferred_host_selector", json!({"a": "c"}), Announced::Live),
        ("berth_vm_group", vm_group.clone(), "/power", json!("Stopped"), Announced::Live),
        ("berth_vm_group", vm_group.clone(), "/parent", json!("other"), Announced::Live),
        ("berth_vm_group", vm_group.clone(), "/boot_order/0/vms", json!(["db"]), Announced::Live),
        ("berth_vm_group", vm_group.clone(), "/boot_order/0/groups", json!(["front"]), Announced::Live),
        ("berth_vm_group", vm_group, "/boot_order/0/power_on_delay_seconds", json!(5), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/disk_size", json!("2Ti"), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/used_storage", json!("2Ti"), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/memory", json!("8Gi"), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/cpus", json!(8), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/vms", json!(1), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/disks", json!(1), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/snapshots", json!(1), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/images", json!(1), Announced::Live),
        ("berth_quota", quota, "/hard/public_ips", json!(1), Announced::Live),
    ]
}

#[tokio::test]
async fn the_plan_announces_the_effect_of_each_change() {
    let provider = BerthProvider::default();
    let of_a_vm = changes_of_a_vm().into_iter().map(|(at, to, effect)| ("berth_vm", vm(), at, to, effect));
    for (type_name, config, at, to, expected) in of_a_vm.chain(others()) {
        let stage = Stage::new(&provider, type_name);
        let powers: &[Power] = if type_name == "berth_vm" { &Power::ALL } else { &[Power::Running] };
        for power in powers {
            let (mut config, mut to) = (config.clone(), to.clone());
            let mut expected = expected;
            if *power != Power::Running {
                config["power"] = power.as_str().into();
                expected = expected.while_declared(*power);
                if at == "/power" {
                    to = "Running".into();
                }
            }
            let prior = created(&stage, type_name, &config).await;
            let unchanged = stage.plan_from(prior.clone(), &config).await;
            assert!(
                unchanged.planned == prior && unchanged.diagnostics.is_empty(),
                "{type_name}: {}",
                text_of(&unchanged.diagnostics)
            );
            let mut changed = config.clone();
            *changed.pointer_mut(at).unwrap_or_else(|| panic!("{type_name}{at}")) = to;
            let plan = stage.plan_from(prior.clone(), &changed).await;
            let text = text_of(&plan.diagnostics);
            // An error in a plan would block terraform destroy.
            assert!(!plan.diagnostics.iter().any(tfplugin6::Diagnostic::is_error), "{type_name}{at}: {text}");
            let announced = announced(&plan);
            assert_eq!(announced, expected, "{type_name}{at} while {power:?}: {text}");
            assert_ne!(plan.planned, prior, "{type_name}{at}: it is a change");
            // A restore is done as soon as no VM has the disk open, and its plan says what becomes of the data.
            if announced == Announced::Live && !at.starts_with("/restore/") {
                assert!(text.is_empty(), "{type_name}{at} while {power:?}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn more_cpus_and_memory_within_their_maxima_are_live_and_restart_nothing() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_vm");
    let mut config = vm();
    for (name, value) in [
        ("cpus", json!(2)),
        ("max_cpus", json!(4)),
        ("cpu_topology", Json::Null),
        ("allow_reboot", json!(true)),
        ("max_memory", json!("4Gi")),
    ] {
        config[name] = value;
    }
    let announced_with = async |changes: &[(&str, Json)], pending: &[&str]| {
        let mut prior = created(&stage, "berth_vm", &config).await;
        prior.set(
            "pending_power_cycle",
            Value::from(pending.iter().map(|name| Value::from(*name)).collect::<Vec<_>>()),
        );
        let mut changed = config.clone();
        for (name, value) in changes {
            changed[*name] = value.clone();
        }
        announced(&stage.plan_from(prior, &changed).await)
    };
    let to = |cpus: i64| ("cpus", json!(cpus));
    assert_eq!(announced_with(&[to(3)], &[]).await, Announced::Live);
    assert_eq!(announced_with(&[to(4)], &[]).await, Announced::Live);
    let memory = |memory: &str| ("memory", json!(memory));
    assert_eq!(announced_with(&[memory("4Gi")], &[]).await, Announced::Live);
    assert_eq!(announced_with(&[memory("2Gi"), to(4)], &[]).await, Announced::Live);
    for (changes, pending) in [
        (vec![to(1)], &[][..]),
        (vec![to(4), ("max_cpus", json!(8))], &[]),
        (vec![to(4), ("max_cpus", Json::Null)], &[]),
        (vec![to(4)], &["max_cpus"]),
        (vec![("cpus", Json::Null)], &[]),
        (vec![memory("512Mi")], &[]),
        (vec![memory("2Gi"), ("max_memory", json!("8Gi"))], &[]),
        (vec![memory("2Gi")], &["max_memory"]),
    ] {
        assert_eq!(announced_with(&changes, pending).await, Announced::Reboot, "{changes:?} {pending:?}");
    }
}

#[tokio::test]
async fn a_vm_that_moves_when_it_is_stopped_moves_at_its_next_power_cycle() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_vm");
    let mut config = vm();
    config["placement"]["move_policy"] = json!("WhenStopped");
    let prior = created(&stage, "berth_vm", &config).await;
    for (attribute, to) in [("host", json!("other")), ("host_selector", json!({"a": "c"}))] {
        let mut changed = config.clone();
        changed["placement"][attribute] = to;
        let plan = stage.plan_from(prior.clone(), &changed).await;
        assert_eq!(announced(&plan), Announced::PowerCycle, "{}", text_of(&plan.diagnostics));
        assert!(plan.planned.get("host").is_unknown(), "{attribute}: it may have another one afterwards");
        changed["allow_reboot"] = json!(true);
        let plan = stage.plan_from(prior.clone(), &changed).await;
        assert_eq!(announced(&plan), Announced::Reboot, "{}", text_of(&plan.diagnostics));
    }
}

#[tokio::test]
async fn every_attribute_of_a_vm_is_announced_as_its_page_shows_it_for_each_power() {
    let provider = BerthProvider::default();
    let stage = Stage::new(&provider, "berth_vm");
    let kind = provider.kinds().iter().find(|kind| kind.info().type_name == "berth_vm").expect("a kind");
    // The host of the VM decides, which of the disks boots, the model of a card, and the maxima of CPUs and memory.
    let decided_by_more =
        ["placement.host", "placement.host_selector", "disks", "network_interfaces", "cpus", "memory"];
    let mut expected = Vec::new();
    leaves(kind.fields(), "", &mut expected);
    for power in Power::ALL {
        let mut config = vm();
        config["power"] = power.as_str().into();
        let prior = created(&stage, "berth_vm", &config).await;
        let mut seen = BTreeSet::new();
        let further = [
            ("/name_prefix", json!("other-")),
            ("/stop/mode", json!("PowerOff")),
            ("/placement/preferred_host_selector", json!({"a": "b"})),
            ("/bootstrap/user_data_wo_version", json!(2)),
            ("/bootstrap/password_wo_version", json!(2)),
            ("/bootstrap/secret_name", json!("mine")),
        ];
        let changes = changes_of_a_vm().into_iter().map(|(at, to, _)| (at, to)).chain(further);
        for (at, to) in changes {
            let mut changed = config.clone();
            let (parent, name) = at.rsplit_once('/').expect("a pointer");
            let parent = changed.pointer_mut(parent).unwrap_or_else(|| panic!("{at}"));
            let to = if at == "/power" {
                Power::ALL[usize::from(power == Power::Running)].as_str().into()
            } else {
                to
            };
            match parent {
                Json::Array(elements) => elements[name.parse::<usize>().expect("an index")] = to,
                object => object[name] = to,
            }
            let plan = stage.plan_from(prior.clone(), &changed).await;
            let changes = planning::changes(kind.fields(), &prior, &plan.planned);
            let [change] = changes.as_slice() else {
                seen.extend(changes.iter().map(|change| attribute(&change.path)));
                continue;
            };
            let name = attribute(&change.path);
            // Without a token there is nothing to do, and the encryption of a disk stays.
            let is_removed = ["restart_token", "disks.template.encryption.key_class"]
                .contains(&name.as_str())
                && plan.planned.at(&change.path).is_null();
            if !decided_by_more.contains(&name.as_str()) && !is_removed {
                let of_page = Announced::of(change.effect.with_power(power));
                assert_eq!(
                    announced(&plan),
                    of_page,
                    "{name} while {power:?}: {}",
                    text_of(&plan.diagnostics)
                );
            }
            seen.insert(name);
        }
        let missing: Vec<_> =
            expected.iter().map(|(name, _)| name).filter(|name| !seen.contains(*name)).collect();
        assert!(missing.is_empty(), "no change of {missing:?}");
    }
    let pages = terraform_provider_berth::docs::pages();
    let page = |path: &str| pages.iter().find(|(page, _)| page == path).expect("a page").1.clone();
    for (path, row) in [
        (
            "resources/vm.md",
            "| `class` | string | optional | next power cycle, or reboot if `allow_reboot` | next start | next power cycle |",
        ),
        (
            "resources/vm.md",
            "| `cpus` | number | optional | live up to `max_cpus`, else next power cycle, or reboot if `allow_reboot` | next start | next power cycle |",
        ),
        ("resources/vm.md", "| `restart_token` | string | optional | reboot | refused | refused |"),
        ("resources/vm.md", "| `group` | string | optional | replace | replace | replace |"),
        (
            "resources/vm_class.md",
            "| `cpus` | number | required | live up to `max_cpus`, else next power cycle | next start | next power cycle |",
        ),
        ("resources/disk.md", "| `size` | string | optional | live |"),
    ] {
        assert!(page(path).contains(row), "{path} has no row {row}");
    }
}
