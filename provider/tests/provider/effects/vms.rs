//! A VM with a value for each attribute, and the effect of each change of it.

use serde_json::{Value as Json, json};

use super::Announced;

pub(super) fn vm() -> Json {
    let mut vm = json!({
        "name": "web", "namespace": "default", "class": "small",
        "cpus": 4, "max_cpus": null, "memory": "1Gi", "max_memory": null, "huge_pages": "None", "firmware": "UEFI", "tpm": false, "graphics": "None", "cpu_limit": "2", "cpu_weight": 100, "cpu_reservation": "1", "dedicated_cpu_placement": false, "isolate_emulator_thread": false, "io_threads_policy": "Shared", "cpu_model": "x86-64-v2", "guest_os": "Linux", "watchdog": "Reset", "serial_number": "A-1", "uuid": "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c", "cpu_topology": {"sockets": 2, "cores": 2, "threads": 1},
        "disks": [{"name": "root", "boot": true, "template": null}, {"name": "data", "boot": false, "bus": "virtio-scsi", "read_only": false, "template": template()}],
        "cdroms": [{"name": "installer", "image": "i", "connected": true, "boot_first": false, "guest_can_eject": true}],
        "network_interfaces": [interface()],
        "placement": {"group": "g", "host": "h", "host_selector": {"a": "b"}, "move_policy": "Never"},
        "bootstrap": {"ssh_authorized_keys": ["ssh-rsa A"], "hostname": "web", "user_data": "x", "domain": "example.net",
            "network_config": "version: 1\n", "meta_data": "role: web\n", "user": "admin", "password_hash": "$6$a$b",
            "password_expires": true, "guest_agent": "Skip", "sysprep_unattend": "<a/>", "ssh_authorized_keys_secret": "keys"},
        "guest_users": [{"name": "debian", "ssh_authorized_keys": ["ssh-rsa A"], "ssh_authorized_keys_secret": "keys", "password_secret": "passwords"}],
        "power": "Running", "restart_policy": "Always", "stop": {"mode": "Graceful", "grace_period_seconds": 60},
        "hooks": {"post_start": hook(), "pre_stop": pre_stop()},
        "readiness_probe": probe(), "liveness_probe": probe(),
        "start_order": 2, "start_delay_seconds": 0,
        "restart_mode": "Graceful", "restart_token": "1", "labels": {"a": "b"}, "deletion_protection": false,
    });
    // One macro has no room for all of it.
    vm["numa_nodes"] = json!(1);
    vm["suspend_mode"] = json!("Disk");
    vm["guest_agent"] = json!({"policy": "Keep"});
    vm["machine_type"] = json!("pc-q35-7.2");
    vm["architecture"] = json!("x86_64");
    vm["resolution"] = Json::Null;
    vm["keyboard_layout"] = Json::Null;
    vm["sound"] = json!(false);
    vm["scratch_disk"] = json!({"size": "2Gi", "filesystem": {"type": "ext4", "label": "a"}});
    vm["serial_ports"] = json!(2);
    vm["vsock"] = json!(false);
    vm["boot_order"] = json!(["Disk", "Cdrom"]);
    vm["class_policy"] = json!("Follow");
    vm["placement"]["affinity"] = json!([{"name": "web", "vm_selector": {"app": "web"}, "strategy": "spread", "enforcement": "required",
        "topology_key": "kubernetes.io/hostname"}]);
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

fn interface() -> Json {
    json!({"name": "nic0", "network": "default", "public_ip": "a", "public_ipv6": "b", "mac_address": "52:54:00:00:00:01", "address": "10.77.0.9", "ipv6_address": "fd00:60::9",
            "model": "virtio", "queues": 2, "acceleration": "Auto", "link": "Up", "security_groups": ["a"], "allowed_addresses": ["10.77.0.100/32"], "allowed_mac_addresses": ["00:00:5e:00:01:0a"],
            "dns": ["10.77.0.53"], "search_domains": ["example.org"], "default_route": true, "gateway": "10.77.0.8", "ipv6_gateway": "fd00:60::8", "mtu": 1400,
            "routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.77.0.8"}], "dhcp4": true, "dhcp6": true, "guest_name": "lan0", "dscp": "EF",
            "limits": {"ingress_bandwidth": "1M", "egress_bandwidth": "1M", "ingress_burst": "1Mi", "egress_burst": "1Mi",
                "ingress_packets": 100, "egress_packets": 100}})
}

/// The interface without these attributes.
fn interface_without(names: &[&str]) -> Json {
    let mut interface = interface();
    for name in names {
        interface[name] = Json::Null;
    }
    interface
}

/// The control plane refuses some of these together.
fn template() -> Json {
    json!({"size": "2Gi", "image": "i", "clone_mode": "Full", "filesystem": {"type": "ext4", "label": "a"}, "source": {"disk": "d", "disk_namespace": "g", "snapshot": "s",
        "snapshot_namespace": "g", "backup": "b", "file": "/f", "format": "raw", "device": "nvme"}, "pool": "default", "pools": ["a"], "pool_selector": {"media": "ssd"},
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

pub(super) fn changes_of_a_vm() -> Vec<(&'static str, Json, Announced)> {
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
        ("/io_threads_policy", json!("PerDisk"), Announced::PowerCycle),
        ("/io_threads_policy", Json::Null, Announced::PowerCycle),
        ("/architecture", json!("aarch64"), Announced::Replace),
        ("/architecture", Json::Null, Announced::Replace),
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
        ("/scratch_disk", Json::Null, Announced::PowerCycle),
        ("/scratch_disk/size", json!("1Gi"), Announced::PowerCycle),
        ("/scratch_disk/filesystem", Json::Null, Announced::PowerCycle),
        ("/scratch_disk/filesystem/type", json!("xfs"), Announced::PowerCycle),
        ("/scratch_disk/filesystem/label", json!("b"), Announced::PowerCycle),
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
            json!([{"name": "root", "boot": true}, {"name": "data", "template": template()}, {"name": "more", "bus": "virtio-blk"}]),
            Announced::PowerCycle,
        ),
        (
            "/disks",
            json!([{"name": "root", "boot": true}, {"name": "data", "template": template()}, {"name": "more", "read_only": true}]),
            Announced::Live,
        ),
        (
            "/disks",
            json!([{"name": "root"}, {"name": "data", "boot": true, "template": template()}]),
            Announced::PowerCycle,
        ),
        ("/disks/1/template", Json::Null, Announced::Refused),
        (
            "/disks",
            json!([{"name": "root", "boot": true}, {"name": "data"}, {"name": "more"}]),
            Announced::Refused,
        ),
        ("/disks/0/template", json!({"size": "1Gi"}), Announced::Refused),
        ("/disks/1/template/image", json!("j"), Announced::Refused),
        ("/disks/1/template/source/disk", json!("e"), Announced::Refused),
        ("/disks/1/template/source/disk_namespace", json!("h"), Announced::Refused),
        ("/disks/1/template/source/snapshot_namespace", json!("h"), Announced::Refused),
        ("/disks/1/template/source/snapshot", json!("t"), Announced::Refused),
        ("/disks/1/template/source/backup", json!("c"), Announced::Refused),
        ("/disks/1/template/source/file", json!("/g"), Announced::Refused),
        ("/disks/1/template/source/format", json!("qcow2"), Announced::Refused),
        ("/disks/1/template/source/device", json!("other"), Announced::Refused),
        ("/disks/1/template/pool", json!("fast"), Announced::Refused),
        ("/disks/1/template/provisioning", json!("Thick"), Announced::Refused),
        ("/disks/1/template/clone_mode", json!("Linked"), Announced::Refused),
        ("/disks/1/template/filesystem", Json::Null, Announced::Refused),
        ("/disks/1/template/filesystem/type", json!("xfs"), Announced::Refused),
        ("/disks/1/template/filesystem/label", json!("b"), Announced::Refused),
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
        (
            "/disks",
            json!([{"name": "other", "boot": true}, {"name": "data", "template": template()}]),
            Announced::PowerCycle,
        ),
        (
            "/disks",
            json!([{"name": "root"}, {"name": "data", "template": template()}, {"name": "other", "boot": true}]),
            Announced::PowerCycle,
        ),
        (
            "/disks",
            json!([{"name": "data", "template": template()}, {"name": "root", "boot": true}]),
            Announced::Live,
        ),
        ("/network_interfaces/0/public_ip", json!("d"), Announced::Live),
        ("/network_interfaces/0/public_ipv6", json!("c"), Announced::Live),
        ("/network_interfaces/0/security_groups", json!(["b"]), Announced::Live),
        ("/network_interfaces/0/allowed_addresses", json!(["0.0.0.0/0"]), Announced::Live),
        ("/network_interfaces/0/allowed_mac_addresses", json!(["00:00:5e:00:01:0b"]), Announced::Live),
        ("/network_interfaces/0/limits", Json::Null, Announced::Live),
        ("/network_interfaces/0/dscp", json!("CS1"), Announced::Live),
        ("/network_interfaces/0/dns", json!(["9.9.9.9"]), Announced::Live),
        ("/network_interfaces/0/search_domains", json!(["example.net"]), Announced::Live),
        ("/network_interfaces/0/default_route", Json::Null, Announced::Live),
        ("/network_interfaces/0/gateway", json!("10.77.0.7"), Announced::Live),
        ("/network_interfaces/0/ipv6_gateway", json!("fe80::7"), Announced::Live),
        ("/network_interfaces/0/routes", json!([]), Announced::Live),
        ("/network_interfaces/0/routes/0/to", json!("192.168.0.0/24"), Announced::Live),
        ("/network_interfaces/0/routes/0/via", json!("10.77.0.7"), Announced::Live),
        ("/network_interfaces/0/mtu", json!(1300), Announced::PowerCycle),
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
            json!([interface_without(&["public_ip", "mac_address", "address", "network"]), {"name": "nic1"}]),
            Announced::Live,
        ),
        (
            "/network_interfaces",
            json!([interface_without(&["mtu"]), {"name": "nic1"}]),
            Announced::PowerCycle,
        ),
        ("/network_interfaces", json!([interface_without(&["dhcp4"]), {"name": "nic1"}]), Announced::Refused),
        (
            "/network_interfaces",
            json!([interface(), {"name": "nic1", "model": "rtl8139"}]),
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
        ("/placement/affinity", json!([]), Announced::Live),
        ("/placement/affinity/0/vm_selector", json!({"app": "db"}), Announced::Live),
        ("/placement/affinity/0/strategy", json!("pack"), Announced::Live),
        ("/placement/affinity/0/enforcement", json!("preferred"), Announced::Live),
        ("/placement/affinity/0/topology_key", json!("rack"), Announced::Live),
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
        ("/guest_users/0/password_secret", json!("other"), Announced::Live),
        ("/guest_users", json!([]), Announced::Live),
        ("/guest_agent/policy", json!("Upgrade"), Announced::Live),
        ("/guest_agent", Json::Null, Announced::Live),
        ("/guest_users", json!([{"name": "root", "ssh_authorized_keys": ["ssh-rsa A"]}]), Announced::Live),
        ("/power", json!("Stopped"), Announced::Live),
        ("/suspend_mode", json!("Memory"), Announced::Live),
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
