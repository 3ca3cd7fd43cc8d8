//! Bad input of every kind: refused before anything is planned, with the path of the attribute and the remedy; and by the
//! control plane too, for clients other than Terraform, where a schema can say it.

use std::collections::BTreeSet;

use kube::api::PostParams;
use serde_json::{Value as Json, json};
use tfplugin6::Resource as _;

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

/// One bad input.
struct Bad {
    /// A valid configuration with one change.
    config: Json,
    /// The path of the attribute.
    path: &'static str,
    /// A part of the message.
    words: &'static str,
    /// Whether the control plane refuses it too.
    everywhere: bool,
}

/// Refused by the provider and by the control plane.
fn everywhere(config: Json, path: &'static str, words: &'static str) -> Bad {
    Bad { config, path, words, everywhere: true }
}

/// Refused by the provider only: the control plane does not see it, or cannot say it in a schema.
fn here(config: Json, path: &'static str, words: &'static str) -> Bad {
    Bad { config, path, words, everywhere: false }
}

fn with(mut config: Json, pointer: &str, value: Json) -> Json {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    config.pointer_mut(parent).expect("it is there")[key] = value;
    config
}

const IGNITION: &str = "{\"ignition\": {\"version\": \"3.4.0\"}}";

fn vms() -> Vec<Bad> {
    let vm = || json!({"name": "web", "class": "small", "disks": [{"name": "root", "boot": true}], "placement": {}, "bootstrap": {}});
    let nics = |nics: Json| with(vm(), "/network_interfaces", nics);
    let limited = |limits: Json| nics(json!([{"name": "nic0", "limits": limits}]));
    let guest_name = |name: &str| nics(json!([{"name": "nic0", "guest_name": name}]));
    let mac = |mac: &str| nics(json!([{"name": "nic0", "mac_address": mac}]));
    let boots = |name: &str, value: Json| with(vm(), &format!("/bootstrap/{name}"), value);
    let users = |users: Json| with(vm(), "/guest_users", users);
    let placed = |name: &str, value: Json| with(vm(), &format!("/placement/{name}"), value);
    let disks = |disks: Json| with(vm(), "/disks", disks);
    let two_macs = json!([{"name": "a", "mac_address": "52:54:00:00:00:0a"}, {"name": "b", "mac_address": "52:54:00:00:00:0A"}]);
    let two_addresses = json!([{"name": "a", "network": "default", "address": "10.77.0.9"}, {"name": "b", "network": "default", "address": "10.77.0.9"}]);
    let write_only = json!({"user_data_wo": "#!/bin/sh", "user_data_wo_version": -1});
    let own = |name: &str, value: Json| with(vm(), &format!("/{name}"), value);
    let classless =
        |name: &str, value: Json| with(with(vm(), "/class", Json::Null), &format!("/{name}"), value);
    vec![
        everywhere(classless("memory", json!("1Gi")), "cpus", "a VM without a class needs a number of CPUs"),
        everywhere(own("cpus", json!(0)), "cpus", "0 is not between 1 and 128"),
        everywhere(own("cpus", json!(129)), "cpus", "129 is not between 1 and 128"),
        everywhere(with(own("cpus", json!(4)), "/max_cpus", json!(2)), "max_cpus", "less than cpus"),
        everywhere(
            with(classless("cpu_topology", json!({"cores": 2})), "/max_cpus", json!(4)),
            "max_cpus",
            "exclude each other",
        ),
        everywhere(
            with(own("memory", json!("2Gi")), "/max_memory", json!("1Gi")),
            "max_memory",
            "less than memory",
        ),
        everywhere(
            with(own("dedicated_cpu_placement", json!(true)), "/max_cpus", json!(4)),
            "dedicated_cpu_placement",
            "dedicated_cpu_placement and max_cpus exclude each other",
        ),
        everywhere(
            with(classless("isolate_emulator_thread", json!(true)), "/cpus", json!(1)),
            "isolate_emulator_thread",
            "it needs dedicated_cpu_placement = true",
        ),
        everywhere(own("numa_nodes", json!(9)), "numa_nodes", "9 is not between 1 and 8"),
        everywhere(
            with(own("cpus", json!(3)), "/numa_nodes", json!(2)),
            "numa_nodes",
            "3 CPUs cannot be divided evenly among 2 NUMA nodes",
        ),
        everywhere(
            with(classless("cpu_topology", json!({"cores": 2, "threads": 2})), "/numa_nodes", json!(4)),
            "numa_nodes",
            "a node has whole sockets, or whole cores of one socket",
        ),
        everywhere(
            with(own("memory", json!("513Mi")), "/numa_nodes", json!(2)),
            "numa_nodes",
            "memory 513Mi cannot be divided evenly among 2 NUMA nodes: set a multiple of 2Mi.",
        ),
        everywhere(
            with(own("max_memory", json!("4Gi")), "/numa_nodes", json!(2)),
            "numa_nodes",
            "numa_nodes and max_memory exclude each other",
        ),
        everywhere(own("huge_pages", json!("4Ki")), "huge_pages", "is not one of"),
        everywhere(
            with(own("memory", json!("513Mi")), "/huge_pages", json!("2Mi")),
            "memory",
            "513Mi is not a multiple of huge_pages, which is 2Mi: set 512Mi or 514Mi.",
        ),
        everywhere(
            with(own("max_memory", json!("4Gi")), "/huge_pages", json!("2Mi")),
            "huge_pages",
            "huge_pages and max_memory exclude each other",
        ),
        everywhere(
            with(own("memory", json!("2Gi")), "/memory_reservation", json!("3Gi")),
            "memory_reservation",
            "3Gi is more than memory, which is 2Gi",
        ),
        everywhere(
            with(own("huge_pages", json!("2Mi")), "/memory_reservation", json!("1Gi")),
            "memory_reservation",
            "memory_reservation and huge_pages exclude each other",
        ),
        everywhere(
            with(own("pci_devices", json!([{"name": "gpu"}])), "/memory_reservation", json!("1Gi")),
            "memory_reservation",
            "memory_reservation and pci_devices exclude each other",
        ),
        everywhere(
            own("memory_reservation", json!("1Mi")),
            "memory_reservation",
            "\"1Mi\" is less than 16Mi",
        ),
        everywhere(own("max_memory", json!("1Mi")), "max_memory", "\"1Mi\" is less than 16Mi"),
        everywhere(own("max_cpus", json!(129)), "max_cpus", "129 is not between 1 and 128"),
        everywhere(own("cpu_limit", json!("1500m")), "cpu_limit", "is no amount of CPUs"),
        everywhere(own("cpu_limit", json!("0")), "cpu_limit", "is no amount of CPUs"),
        everywhere(own("cpu_weight", json!(0)), "cpu_weight", "0 is not between 1 and 10000"),
        everywhere(
            with(own("cpus", json!(1)), "/cpu_reservation", json!("1.5")),
            "cpu_reservation",
            "more than cpus",
        ),
        everywhere(
            with(own("cpu_limit", json!("1")), "/cpu_reservation", json!("1.5")),
            "cpu_reservation",
            "more than cpu_limit",
        ),
        everywhere(own("cpu_model", json!("host,+kvm")), "cpu_model", "is not the name of a CPU model"),
        everywhere(own("machine_type", json!("q35")), "machine_type", "is not a machine type"),
        everywhere(own("guest_os", json!("windows")), "guest_os", "is not one of"),
        everywhere(
            own("readiness_probe", json!({"tcp_socket": {"port": 65536}})),
            "readiness_probe.tcp_socket.port",
            "65536 is not between 1 and 65535",
        ),
        everywhere(
            own("liveness_probe", json!({"exec": {"command": ["true"]}, "period_seconds": 0})),
            "liveness_probe.period_seconds",
            "0 is not between 1 and 3600",
        ),
        everywhere(
            own("hooks", json!({"pre_stop": {"exec": {"command": ["true"]}, "failure_policy": "Retry"}})),
            "hooks.pre_stop.failure_policy",
            "is not one of",
        ),
        everywhere(
            own("hooks", json!({"pre_stop": {"snapshot": {"keep": 25}}})),
            "hooks.pre_stop.snapshot.keep",
            "25 is not between 1 and 24",
        ),
        everywhere(own("start_order", json!(-1)), "start_order", "-1 is not between 0 and 65535"),
        everywhere(
            own("start_delay_seconds", json!(3601)),
            "start_delay_seconds",
            "3601 is not between 0 and 3600",
        ),
        everywhere(
            with(own("graphics", json!("VGA")), "/resolution", json!("1366x768")),
            "resolution",
            "is not one of",
        ),
        everywhere(own("resolution", json!("1920x1080")), "resolution", "set graphics to \"VGA\""),
        everywhere(
            with(own("graphics", json!("VGA")), "/keyboard_layout", json!("xx")),
            "keyboard_layout",
            "is not one of",
        ),
        everywhere(own("serial_ports", json!(5)), "serial_ports", "5 is not between 1 and 4"),
        everywhere(own("boot_order", json!(["Floppy"])), "boot_order[0]", "is not one of"),
        everywhere(own("boot_order", json!(["Disk", "Disk"])), "boot_order[1]", "is in the list twice"),
        everywhere(own("watchdog", json!("Pause")), "watchdog", "is not one of"),
        everywhere(own("serial_number", json!("a,b")), "serial_number", "is not a serial number"),
        everywhere(own("memory", json!("1Mi")), "memory", "\"1Mi\" is less than 16Mi"),
        everywhere(own("memory", json!("512MB")), "memory", "is not a quantity"),
        everywhere(own("firmware", json!("Coreboot")), "firmware", "is not one of"),
        everywhere(
            with(classless("secure_boot_keys", json!({"secret_name": "boot"})), "/cpus", json!(1)),
            "secure_boot_keys",
            "it needs firmware = \"UEFISecureBoot\"",
        ),
        everywhere(
            with(own("firmware", json!("UEFI")), "/secure_boot_keys", json!({"secret_name": "boot"})),
            "secure_boot_keys",
            "it needs firmware = \"UEFISecureBoot\"",
        ),
        everywhere(
            own("secure_boot_keys", json!({"secret_name": "a b"})),
            "secure_boot_keys.secret_name",
            "is not a name",
        ),
        everywhere(own("uuid", json!("7f2f6d5e5c1f4c399d3a0d8c5f1b2a3c")), "uuid", "is not a UUID"),
        everywhere(own("graphics", json!("vga")), "graphics", "is not one of"),
        everywhere(
            own("cpu_topology", json!({"cores": 0})),
            "cpu_topology.cores",
            "0 is not between 1 and 128",
        ),
        everywhere(
            with(own("cpus", json!(4)), "/cpu_topology", json!({"sockets": 2, "cores": 3})),
            "cpu_topology",
            "2 sockets * 3 cores * 1 threads are 6 CPUs, and cpus is 4",
        ),
        everywhere(
            classless("cpu_topology", json!({"sockets": 16, "cores": 16})),
            "cpu_topology",
            "are 256 CPUs; at most 128 are allowed",
        ),
        everywhere(with(vm(), "/name", json!("Web")), "name", "\"Web\" is not a DNS label"),
        everywhere(with(vm(), "/class", json!("a b")), "class", "\"a b\" is not a DNS label"),
        here(with(vm(), "/namespace", json!("A")), "namespace", "\"A\" is not a DNS label"),
        everywhere(with(vm(), "/labels", json!({"a b": "c"})), "labels[\"a b\"]", "not the key of a label"),
        everywhere(with(vm(), "/labels", json!({"a": "b c"})), "labels[\"a\"]", "not the value of a label"),
        everywhere(classless("class_policy", json!("Pin")), "class_policy", "name one with class"),
        everywhere(
            with(vm(), "/annotations", json!({"a b": "c"})),
            "annotations[\"a b\"]",
            "not the key of an annotation",
        ),
        here(
            with(vm(), "/annotations", json!({"berth.dev/moved-from": "u"})),
            "annotations[\"berth.dev/moved-from\"]",
            "whose annotations berth sets",
        ),
        everywhere(
            disks(json!([{"name": "a", "boot": true}, {"name": "b", "boot": true}])),
            "disks[1].boot",
            "2 disks have boot = true",
        ),
        everywhere(
            disks(json!([{"name": "a", "boot": false}])),
            "disks",
            "Exactly one disk must have boot = true",
        ),
        everywhere(disks(json!([])), "disks", "The list is empty"),
        everywhere(
            own("disks", json!([{"name": "a", "boot": true, "bus": "sata", "read_only": true}])),
            "disks[0].read_only",
            "cannot be read-only",
        ),
        everywhere(
            own("disks", json!([{"name": "a", "boot": true, "bus": "ide"}])),
            "disks[0].bus",
            "is not one of",
        ),
        everywhere(
            own(
                "disks",
                json!([{"name": "a", "boot": true, "bus": "sata"}, {"name": "b", "bus": "sata"}, {"name": "c", "bus": "sata"},
                    {"name": "d", "bus": "sata"}, {"name": "e", "bus": "sata"}, {"name": "f", "bus": "sata"}, {"name": "g", "bus": "sata"}]),
            ),
            "disks[6].bus",
            "At most 6 disks",
        ),
        everywhere(
            own("cdroms", json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}])),
            "cdroms[1].image",
            "in one drive only",
        ),
        everywhere(
            own("cdroms", json!([{"name": "a", "boot_first": true}, {"name": "b", "boot_first": true}])),
            "cdroms[1].boot_first",
            "one may",
        ),
        everywhere(
            own("pci_devices", json!([{"name": "gpu", "count": 4}, {"name": "nic", "count": 5}])),
            "pci_devices",
            "at most 8",
        ),
        everywhere(
            own("pci_devices", json!([{"name": "gpu", "count": 0}])),
            "pci_devices[0].count",
            "0 is not between 1 and 8",
        ),
        everywhere(own("pci_devices", json!([{"name": "GPU"}])), "pci_devices[0].name", "is not a DNS label"),
        everywhere(
            own("pci_devices", json!([{"name": "a"}, {"name": "a"}])),
            "pci_devices",
            "\"a\" is used twice",
        ),
        everywhere(
            with(own("pci_devices", json!([{"name": "gpu"}])), "/power", json!("Suspended")),
            "power",
            "cannot be suspended",
        ),
        everywhere(
            own("usb_devices", json!([{"name": "key", "count": 8}, {"name": "serial"}])),
            "usb_devices",
            "9 USB devices are declared; a VM can have at most 8",
        ),
        everywhere(
            own("usb_devices", json!([{"name": "key", "count": 9}])),
            "usb_devices[0].count",
            "9 is not between 1 and 8",
        ),
        everywhere(
            own("usb_devices", json!([{"name": "1-2"}, {"name": "1-2"}])),
            "usb_devices",
            "is used twice",
        ),
        everywhere(
            own("usb_devices", json!([{"name": "0403:6001"}])),
            "usb_devices[0].name",
            "is not a DNS label",
        ),
        everywhere(
            with(own("usb_devices", json!([{"name": "key"}])), "/power", json!("Suspended")),
            "power",
            "cannot be suspended",
        ),
        everywhere(
            own("vgpus", json!([{"name": "a40-8q", "count": 8}, {"name": "a40-1q"}])),
            "vgpus",
            "9 vGPUs are declared; a VM can have at most 8",
        ),
        everywhere(own("vgpus", json!([{"name": "NVIDIA A40-8Q"}])), "vgpus[0].name", "is not a DNS label"),
        everywhere(
            with(own("vgpus", json!([{"name": "a40-8q"}])), "/power", json!("Suspended")),
            "power",
            "cannot be suspended",
        ),
        everywhere(own("shares", json!([{"name": "Media"}])), "shares[0].name", "is not a DNS label"),
        everywhere(own("shares", json!([{"name": "a"}, {"name": "a"}])), "shares", "\"a\" is used twice"),
        everywhere(own("shares", json!([{"name": "a", "tag": "x,y"}])), "shares[0].tag", "is not a tag"),
        everywhere(
            own("shares", json!([{"name": "a".repeat(37)}])),
            "shares[0].name",
            "longer than 36 characters",
        ),
        everywhere(
            own("shares", json!([{"name": "a"}, {"name": "b", "tag": "a"}])),
            "shares[1].tag",
            "the tag \"a\"",
        ),
        everywhere(
            with(own("shares", json!([{"name": "a"}])), "/power", json!("Suspended")),
            "power",
            "cannot be suspended",
        ),
        everywhere(own("cdroms", json!([{"name": "a"}, {"name": "a"}])), "cdroms", "\"a\" is used twice"),
        everywhere(
            own("cdroms", json!([{"name": "a".repeat(37)}])),
            "cdroms[0].name",
            "more than 36 characters",
        ),
        everywhere(own("cdroms", json!([{}, {}, {}, {}, {}])), "cdroms", "at most 4"),
        everywhere(
            disks(json!([{"name": "a", "boot": true}, {"name": "a"}])),
            "disks",
            "\"a\" is used twice",
        ),
        everywhere(disks(json!([{"name": "A", "boot": true}])), "disks[0].name", "\"A\" is not a DNS label"),
        everywhere(
            nics(json!([{"name": "NIC"}])),
            "network_interfaces[0].name",
            "\"NIC\" is not a DNS label",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "model": "pcnet"}])),
            "network_interfaces[0].model",
            "e1000e",
        ),
        everywhere(nics(json!([{"name": "nic0", "link": "down"}])), "network_interfaces[0].link", "Down"),
        everywhere(nics(json!([{"name": "nic0", "dscp": "46"}])), "network_interfaces[0].dscp", "AF11"),
        everywhere(
            nics(json!([{"name": "nic0", "network": "a.b"}])),
            "network_interfaces[0].network",
            "not a DNS label",
        ),
        everywhere(
            limited(json!({"ingress_burst": "1Mi", "egress_bandwidth": "1M"})),
            "network_interfaces[0].limits.ingress_burst",
            "set ingress_bandwidth too",
        ),
        everywhere(
            limited(json!({"egress_bandwidth": "1k"})),
            "network_interfaces[0].limits.egress_bandwidth",
            "64k",
        ),
        everywhere(
            limited(json!({"egress_bandwidth": "1M", "egress_burst": "64Ki"})),
            "network_interfaces[0].limits.egress_burst",
            "128Ki",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "dns": ["one"]}])),
            "network_interfaces[0].dns[0]",
            "not an address",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "search_domains": ["a."]}])),
            "network_interfaces[0].search_domains[0]",
            "not a domain",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "search_domains": ["a", "a"]}])),
            "network_interfaces[0].search_domains[1]",
            "already",
        ),
        everywhere(
            nics(json!([{"name": "a", "ipv6_address": "10.77.0.9"}])),
            "network_interfaces[0].ipv6_address",
            "not an IPv6 address",
        ),
        here(
            nics(
                json!([{"name": "a", "ipv6_address": "fd00:60::9"}, {"name": "b", "ipv6_address": "FD00:60::9"}]),
            ),
            "network_interfaces[1].ipv6_address",
            "network_interfaces[0] has",
        ),
        here(limited(json!({})), "network_interfaces[0].limits", "at least one of ingress_bandwidth"),
        everywhere(
            with(vm(), "/disks", json!([{"name": "d", "boot": true, "template": {"image": "a/b"}}])),
            "disks[0].template.image",
            "not a DNS label",
        ),
        everywhere(
            with(vm(), "/disks", json!([{"name": "d", "boot": true, "template": {"pool": "fast"}}])),
            "disks[0].template.size",
            "needs a size",
        ),
        everywhere(nics(json!([{"name": "a"}, {"name": "a"}])), "network_interfaces", "\"a\" is used twice"),
        everywhere(mac("52:54:00:00:00"), "network_interfaces[0].mac_address", "six pairs"),
        everywhere(
            nics(json!([{"name": "nic0", "acceleration": "On"}])),
            "network_interfaces[0].acceleration",
            "Auto",
        ),
        everywhere(guest_name("0lan"), "network_interfaces[0].guest_name", "a letter"),
        everywhere(guest_name("a-name-too-long-"), "network_interfaces[0].guest_name", "at most 15"),
        everywhere(guest_name("lo"), "network_interfaces[0].guest_name", "not the name"),
        everywhere(
            nics(json!([{"name": "a", "guest_name": "lan0"}, {"name": "b", "guest_name": "lan0"}])),
            "network_interfaces[1].guest_name",
            "network_interfaces[0]",
        ),
        everywhere(mac("53:54:00:00:00:01"), "network_interfaces[0].mac_address", "a multicast address"),
        everywhere(mac("ff:ff:ff:ff:ff:ff"), "network_interfaces[0].mac_address", "a multicast address"),
        everywhere(
            mac("00:00:00:00:00:00"),
            "network_interfaces[0].mac_address",
            "the address of no interface",
        ),
        everywhere(
            nics(two_macs),
            "network_interfaces[1].mac_address",
            "network_interfaces[0] has the MAC address",
        ),
        everywhere(
            nics(two_addresses),
            "network_interfaces[1].address",
            "network_interfaces[0] has the address",
        ),
        everywhere(
            nics(json!([{"name": "a", "public_ip": "p"}, {"name": "b", "public_ip": "p"}])),
            "network_interfaces[1].public_ip",
            "network_interfaces[0] has the public address",
        ),
        everywhere(
            nics(json!([{"name": "a", "public_ipv6": "p"}, {"name": "b", "public_ipv6": "p"}])),
            "network_interfaces[1].public_ipv6",
            "network_interfaces[0] has the public IPv6 address",
        ),
        everywhere(
            nics(json!([{"name": "a", "public_ip": "p", "public_ipv6": "p"}])),
            "network_interfaces[0].public_ipv6",
            "public_ip names it too",
        ),
        everywhere(
            nics(json!([{"name": "a", "address": "10.0.0"}])),
            "network_interfaces[0].address",
            "not an IPv4 address",
        ),
        everywhere(placed("host", json!("a b")), "placement.host", "is not a name"),
        everywhere(placed("group", json!("A")), "placement.group", "not a DNS label"),
        everywhere(placed("move_policy", json!("Always")), "placement.move_policy", "is not one of"),
        here(
            placed("host_selector", json!({"-a": "b"})),
            "placement.host_selector[\"-a\"]",
            "not the key of a label",
        ),
        everywhere(
            placed("host_selector", json!({"a": "b c"})),
            "placement.host_selector[\"a\"]",
            "not the value of a label",
        ),
        everywhere(
            placed("preferred_host_selector", json!({"a": "-"})),
            "placement.preferred_host_selector[\"a\"]",
            "not the value of a label",
        ),
        everywhere(
            boots("ssh_authorized_keys", json!(["x"])),
            "bootstrap.ssh_authorized_keys[0]",
            "not an SSH public key",
        ),
        everywhere(users(json!([{"name": "A b"}])), "guest_users[0].name", "not the name of a user"),
        everywhere(
            users(json!([{"name": "a", "ssh_authorized_keys": ["ssh-rsa A", "x"]}])),
            "guest_users[0].ssh_authorized_keys[1]",
            "not an SSH public key",
        ),
        everywhere(
            users(json!([{"name": "a", "ssh_authorized_keys_secret": "a b"}])),
            "guest_users[0].ssh_authorized_keys_secret",
            "is not a name",
        ),
        everywhere(users(json!([{"name": "a"}, {"name": "a"}])), "guest_users", "is used twice"),
        everywhere(boots("hostname", json!("a_b")), "bootstrap.hostname", "not a DNS label"),
        everywhere(boots("domain", json!("example_org")), "bootstrap.domain", "is not a domain"),
        here(
            boots("network_config", json!("ethernets: {}\n")),
            "bootstrap.network_config",
            "The network configuration has no version",
        ),
        here(boots("meta_data", json!("- a\n")), "bootstrap.meta_data", "The meta-data is a list at line 1"),
        here(
            with(
                vm(),
                "/bootstrap",
                json!({"ssh_authorized_keys": ["ssh-rsa A"], "meta_data": "public-keys: [a]\n"}),
            ),
            "bootstrap.meta_data",
            "The key public-keys of meta_data would take the place of ssh_authorized_keys",
        ),
        here(
            with(vm(), "/bootstrap", json!({"domain": "example.org", "meta_data": "local-hostname: a\n"})),
            "bootstrap.meta_data",
            "meta_data and domain declare the same",
        ),
        here(
            with(vm(), "/bootstrap", json!({"ssh_authorized_keys": ["ssh-rsa A"], "user_data": IGNITION})),
            "bootstrap.ssh_authorized_keys",
            "Ignition would ignore it",
        ),
        here(
            with(vm(), "/bootstrap", json!({"network_config": "version: 2\n", "user_data": IGNITION})),
            "bootstrap.network_config",
            "network_config beside an Ignition configuration",
        ),
        everywhere(boots("secret_name", json!("a b")), "bootstrap.secret_name", "is not a name"),
        here(boots("user_data", json!("hello")), "bootstrap.user_data", "begin it with \"#cloud-config\""),
        here(
            boots("user_data", json!("#cloud-config\na: 1\na: 2\n")),
            "bootstrap.user_data",
            "line 3 that line 2 has too",
        ),
        here(boots("user_data", json!("#cloud-config\na: [\n")), "bootstrap.user_data", "not YAML: line"),
        here(
            boots("user_data", json!("# cloud-config\n")),
            "bootstrap.user_data",
            "not exactly \"#cloud-config\"",
        ),
        here(boots("user_data", json!("#!".repeat(40_000))), "bootstrap.user_data", "65,536 bytes at most"),
        here(with(vm(), "/bootstrap", write_only), "bootstrap.user_data_wo_version", "-1 is less than 0"),
        here(
            boots("user_data_wo_version", json!(1)),
            "bootstrap.user_data_wo_version",
            "version of user_data_wo, which is not set",
        ),
        here(
            boots("user_data_wo", json!("#!/bin/sh")),
            "bootstrap.user_data_wo_version",
            "Set user_data_wo_version too",
        ),
        here(
            with(vm(), "/bootstrap", json!({"user_data": "#!a", "secret_name": "b"})),
            "bootstrap.secret_name",
            "Only one of",
        ),
        everywhere(boots("user", json!("A b")), "bootstrap.user", "is not the name of a user"),
        here(boots("password_hash", json!("hunter2")), "bootstrap.password_hash", "begins with $6$"),
        here(boots("password_wo", json!("a\nb")), "bootstrap.password_wo", "no line break"),
        here(
            boots("password_wo", json!("hunter2")),
            "bootstrap.password_wo_version",
            "Set password_wo_version too",
        ),
        here(
            boots("password_wo_version", json!(1)),
            "bootstrap.password_wo_version",
            "password_wo, which is not set",
        ),
        everywhere(boots("guest_agent", json!("Upgrade")), "bootstrap.guest_agent", "Install"),
        here(
            boots("password_expires", json!(true)),
            "bootstrap.password_expires",
            "set password_wo or password_hash",
        ),
        here(boots("sysprep_unattend", json!("<a/>")), "bootstrap.sysprep_unattend", "another root element"),
        everywhere(
            boots("ssh_authorized_keys_secret", json!("a b")),
            "bootstrap.ssh_authorized_keys_secret",
            "is not a name",
        ),
        here(
            with(vm(), "/bootstrap", json!({"password_hash": "$6$a$b", "secret_name": "b"})),
            "bootstrap.secret_name",
            "Only one of password_hash and secret_name",
        ),
        here(
            with(vm(), "/bootstrap", json!({"user": "admin", "user_data": "#cloud-config\nuser: root\n"})),
            "bootstrap.user_data",
            "user_data and user declare the same",
        ),
        here(
            with(vm(), "/bootstrap", json!({"user": "admin", "user_data": IGNITION})),
            "bootstrap.user",
            "Ignition would ignore it",
        ),
        here(boots("user_data", json!("H4sIAAAAAAAA/0rOz0vLTAcEAAD//w==")), "bootstrap.user_data", "damaged"),
        here(boots("user_data_policy", json!("maybe")), "bootstrap.user_data_policy", "is not one of"),
        everywhere(
            with(vm(), "/power", json!("on")),
            "power",
            "\"on\" is not one of \"Running\", \"Stopped\", \"Paused\"",
        ),
        everywhere(with(vm(), "/restart_policy", json!("No")), "restart_policy", "is not one of"),
        everywhere(
            with(vm(), "/stop", json!({"grace_period_seconds": 9999})),
            "stop.grace_period_seconds",
            "not between 0 and 3600",
        ),
        everywhere(with(vm(), "/restart_token", json!("x".repeat(254))), "restart_token", "longer than 253"),
        here(
            with(vm(), "/restart_token", json!("terraform-0123456789ab")),
            "restart_token",
            "of the provider's own",
        ),
        here(with(vm(), "/wait_for", json!("ever")), "wait_for", "\"ever\" is not one of"),
        here(with(vm(), "/on_timeout", json!("x")), "on_timeout", "is not one of"),
        here(with(vm(), "/timeouts", json!({"create": "soon"})), "timeouts.create", "not a duration"),
    ]
}

fn classes() -> Vec<Bad> {
    let class = || json!({"name": "small", "cpus": 1, "memory": "1Gi"});
    let memory = |memory: &str| with(class(), "/memory", json!(memory));
    vec![
        everywhere(memory("512MB"), "memory", "\"512MB\" is not a quantity"),
        everywhere(memory("-1"), "memory", "not a positive amount"),
        everywhere(memory("lots"), "memory", "is not a quantity"),
        everywhere(memory("1Ki"), "memory", "\"1Ki\" is less than 16Mi: the firmware needs some of it"),
        everywhere(memory("16777215"), "memory", "is less than 16Mi"),
        everywhere(with(class(), "/cpus", json!(0)), "cpus", "0 is not between 1 and 128"),
        everywhere(with(class(), "/cpus", json!(1.5)), "cpus", "1.5 is not a whole number"),
        everywhere(with(class(), "/firmware", json!("Coreboot")), "firmware", "is not one of"),
        everywhere(
            with(class(), "/cpu_topology", json!({"threads": 2})),
            "cpu_topology",
            "1 sockets * 1 cores * 2 threads are 2 CPUs, and cpus is 1",
        ),
        everywhere(
            with(with(class(), "/cpus", json!(2)), "/numa_nodes", json!(3)),
            "numa_nodes",
            "2 CPUs cannot be divided evenly among 3 NUMA nodes",
        ),
        everywhere(with(class(), "/name", json!("Small")), "name", "not a DNS label"),
        everywhere(
            with(class(), "/pci_devices", json!([{"name": "gpu", "count": 8}, {"name": "nic"}])),
            "pci_devices",
            "9 PCI devices are declared; a VM can have at most 8",
        ),
        everywhere(
            with(class(), "/usb_devices", json!([{"name": "Key"}])),
            "usb_devices[0].name",
            "is not a DNS label",
        ),
        everywhere(
            with(class(), "/vgpus", json!([{"name": "a40-8q", "count": 9}])),
            "vgpus[0].count",
            "9 is not between 1 and 8",
        ),
    ]
}

fn images() -> Vec<Bad> {
    let image = |source: Json| json!({"name": "i", "source": source});
    let sum = "0".repeat(64);
    let from = |url: &str| image(json!({"url": url, "sha256": sum}));
    vec![
        everywhere(from("ftp://x"), "source.url", "must start with http://, https:// or oci://"),
        everywhere(from("oci:///x"), "source.url", "and a host"),
        everywhere(from("oci://r.example/x"), "source.sha256", "has its checksum in the registry"),
        everywhere(from("https://"), "source.url", "and a host"),
        everywhere(
            image(json!({"url": "https://me:p@a/x", "sha256": sum, "secret_name": "login"})),
            "source.secret_name",
            "exclude each other",
        ),
        everywhere(
            image(json!({"url": "file:///a/x", "sha256": sum, "secret_name": "login"})),
            "source.secret_name",
            "needs no Secret",
        ),
        everywhere(
            image(json!({"url": "https://a/x", "sha256": sum, "secret_name": "Log_in"})),
            "source.secret_name",
            "Log_in",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha256": "0"})),
            "source.sha256",
            "64 hexadecimal digits",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha512": "0"})),
            "source.sha512",
            "128 hexadecimal digits",
        ),
        everywhere(image(json!({"url": "http://x"})), "source", "needs the checksum"),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "trust_on_first_use": true})),
            "source.trust_on_first_use",
            "a url without a checksum",
        ),
        everywhere(
            image(json!({"url": "oci://x/y", "trust_on_first_use": true})),
            "source.trust_on_first_use",
            "a url without a checksum",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "sha512": "0".repeat(128)})),
            "source.sha512",
            "Exactly one of",
        ),
        everywhere(
            image(json!({"url": "http://x", "checksum_url": "file:///SHA512SUMS"})),
            "source.checksum_url",
            "must start with http:// or https://",
        ),
        everywhere(image(json!({})), "source", "exactly one of"),
        everywhere(image(json!({"url": "http://x", "sha256": sum, "disk": "d"})), "source", "exactly one of"),
        everywhere(image(json!({"disk": "d", "snapshot": "s"})), "source", "exactly one of"),
        here(image(json!({"file": "/f", "url": "http://x"})), "source", "exactly one of"),
        here(image(json!({"file": "/f", "upload": {"size": 1}})), "source", "exactly one of"),
        here(
            image(json!({"file": "/f", "sha512": "0".repeat(128)})),
            "source.sha512",
            "computes the SHA-256",
        ),
        here(image(json!({"file": "/f", "secret_name": "login"})), "source.secret_name", "belongs to a url"),
        everywhere(image(json!({"upload": {}, "sha256": sum})), "source.upload", "set size"),
        everywhere(
            image(json!({"upload": {"size": 0}, "sha256": sum})),
            "source.upload.size",
            "not between 1 and",
        ),
        everywhere(image(json!({"upload": {"size": 1}})), "source", "needs the checksum"),
        everywhere(
            image(json!({"upload": {"size": 1}, "sha256": sum, "sha512": "0".repeat(128)})),
            "source.sha512",
            "Exactly one of",
        ),
        everywhere(
            image(json!({"upload": {"size": 1}, "sha256": sum, "checksum_url": "http://a/b"})),
            "source.checksum_url",
            "belongs to a url",
        ),
        everywhere(image(json!({"disk": "D"})), "source.disk", "not a DNS label"),
        everywhere(image(json!({"disk": "d", "sha256": sum})), "source.sha256", "url"),
        everywhere(image(json!({"snapshot": "s", "secret_name": "login"})), "source.secret_name", "url"),
        everywhere(image(json!({"image": "other", "url": "http://x"})), "source", "exactly one of"),
        everywhere(image(json!({"image": "other", "sha256": sum})), "source.sha256", "url"),
        everywhere(image(json!({"image": "i"})), "source.image", "another image"),
        everywhere(
            image(json!({"image": "other", "image_namespace": "Golden"})),
            "source.image_namespace",
            "not a DNS label",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "image_namespace": "golden"})),
            "source.image_namespace",
            "namespace of the image in `image`",
        ),
        everywhere(with(from("http://x"), "/ova_disk", json!(1)), "ova_disk", "set format = \"ova\""),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "token": "2"})),
            "source.token",
            "fixes the content",
        ),
        everywhere(
            with(image(json!({"disk": "d", "token": "2"})), "/format", json!("iso")),
            "format",
            "has the format qcow2",
        ),
        everywhere(
            image(json!({"disk": "d", "snapshot_namespace": "golden"})),
            "source.snapshot_namespace",
            "namespace of the snapshot in `snapshot`",
        ),
        everywhere(
            with(from("http://x"), "/shared_with", json!(["team-a", "Team B"])),
            "shared_with[1]",
            "is not the name of a namespace",
        ),
        everywhere(image(json!({"disk": "d", "retries": 1})), "source.retries", "belongs to a url"),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "timeout_seconds": 5})),
            "source.timeout_seconds",
            "not between 10 and",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "retries": 1001})),
            "source.retries",
            "not between 0 and",
        ),
        everywhere(with(image(json!({"disk": "d"})), "/format", json!("raw")), "format", "format qcow2"),
        everywhere(
            with(image(json!({"disk": "d"})), "/compression", json!("xz")),
            "compression",
            "from a url",
        ),
        everywhere(with(from("http://x"), "/format", json!("ovf")), "format", "is not one of"),
        everywhere(with(from("http://x"), "/compression", json!("zip")), "compression", "is not one of"),
    ]
}

fn disks() -> Vec<Bad> {
    let disk = || json!({"name": "d", "size": "1Gi"});
    vec![
        everywhere(json!({"name": "d"}), "size", "needs a size"),
        everywhere(with(disk(), "/size", json!("1 Gi")), "size", "is not a quantity"),
        everywhere(with(disk(), "/size", json!("0")), "size", "not a positive amount"),
        everywhere(with(disk(), "/image", json!("a/b")), "image", "not a DNS label"),
        everywhere(with(disk(), "/pool", json!("")), "pool", "empty"),
        everywhere(
            with(with(disk(), "/pools", json!(["a", "b"])), "/pool", json!("fast")),
            "pool",
            "the choice of the pool",
        ),
        everywhere(
            with(with(disk(), "/pools", json!(["a", "b"])), "/pool_selector", json!({"media": "ssd"})),
            "pool_selector",
            "either",
        ),
        everywhere(
            with(with(disk(), "/source", json!({"file": "/b"})), "/pools", json!(["a"])),
            "pools",
            "file that is taken over",
        ),
        everywhere(with(disk(), "/pools", json!(["a/b"])), "pools[0]", "not a DNS label"),
        everywhere(with(disk(), "/deletion_policy", json!("Keep")), "deletion_policy", "is not one of"),
        everywhere(with(disk(), "/expand_policy", json!("Never")), "expand_policy", "is not one of"),
        everywhere(with(disk(), "/provisioning", json!("Eager")), "provisioning", "is not one of"),
        everywhere(with(disk(), "/access", json!("ReadWriteMany")), "access", "is not one of"),
        everywhere(with(disk(), "/access", json!("ReadOnlyMany")), "access", "set the image or the source"),
        here(with(disk(), "/source", json!({})), "source", "either"),
        everywhere(with(disk(), "/source", json!({"disk": "a", "snapshot": "b"})), "source", "either"),
        everywhere(
            with(with(disk(), "/source", json!({"disk": "a"})), "/image", json!("i")),
            "source",
            "an image or",
        ),
        everywhere(with(disk(), "/source", json!({"disk": "a/b"})), "source.disk", "not a DNS label"),
        everywhere(
            with(disk(), "/source", json!({"snapshot": "a", "disk_namespace": "b"})),
            "source.disk_namespace",
            "which is not set",
        ),
        everywhere(with(disk(), "/shared_with", json!(["A b"])), "shared_with[0]", "is not the name of a"),
        everywhere(with(disk(), "/source", json!({"disk": "a", "file": "/b"})), "source", "either"),
        everywhere(with(disk(), "/source", json!({"snapshot": "a", "backup": "b"})), "source", "either"),
        everywhere(with(disk(), "/source", json!({"backup": "a/b"})), "source.backup", "not a DNS label"),
        everywhere(
            with(disk(), "/source", json!({"file": "b.qcow2"})),
            "source.file",
            "the absolute path of a file",
        ),
        everywhere(
            with(with(disk(), "/source", json!({"file": "/b"})), "/provisioning", json!("Thick")),
            "provisioning",
            "file that is taken over",
        ),
        everywhere(
            with(with(disk(), "/source", json!({"file": "/b"})), "/encryption", json!({"key_class": "k"})),
            "encryption",
            "file that is taken over",
        ),
        everywhere(
            with(disk(), "/encryption", json!({"key_class": "a/b"})),
            "encryption.key_class",
            "not a DNS label",
        ),
        everywhere(
            with(with(disk(), "/source", json!({"snapshot": "a"})), "/restore", json!({"snapshot": "a"})),
            "restore.snapshot",
            "a snapshot of itself",
        ),
        everywhere(
            with(disk(), "/restore", json!({"snapshot": "a/b"})),
            "restore.snapshot",
            "not a DNS label",
        ),
        everywhere(
            with(disk(), "/restore", json!({"snapshot": "a", "token": "t".repeat(65)})),
            "restore.token",
            "64",
        ),
        here(with(disk(), "/limits", json!({})), "limits", "at least one of"),
        everywhere(with(disk(), "/limits", json!({"iops": 0})), "limits.iops", "0 is not between"),
        everywhere(
            with(disk(), "/limits", json!({"iops": 9, "read_iops": 1})),
            "limits.iops",
            "set either iops, or read_iops",
        ),
        everywhere(
            with(disk(), "/limits", json!({"bandwidth": "1Mi", "write_bandwidth": "1Mi"})),
            "limits.bandwidth",
            "set either bandwidth",
        ),
        everywhere(
            with(disk(), "/limits", json!({"read_iops": 9, "burst_iops": 10})),
            "limits.burst_iops",
            "set iops too",
        ),
        everywhere(
            with(disk(), "/limits", json!({"bandwidth": "2Mi", "burst_bandwidth": "1Mi"})),
            "limits.burst_bandwidth",
            "it is less than bandwidth",
        ),
        everywhere(
            with(disk(), "/limits", json!({"iops": 9, "burst_seconds": 5})),
            "limits.burst_seconds",
            "burst_iops or burst_bandwidth",
        ),
    ]
}

fn networks() -> Vec<Bad> {
    let network = || json!({"name": "n", "cidr": "10.80.0.0/24"});
    let ipv6 = |prefix: &str| with(network(), "/ipv6_cidr", json!(prefix));
    let bridged = || json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.80.0.0/24"});
    let over = |interface: &str, vlan: Option<i64>| {
        let mut bridge = json!({"interface": interface});
        if let Some(vlan) = vlan {
            bridge["vlan"] = vlan.into();
        }
        with(bridged(), "/bridge", bridge)
    };
    let on_lan6 = || with(bridged(), "/ipv6_cidr", json!("2001:db8:7::/64"));
    let ipv6_only = || json!({"name": "n", "ipv6_cidr": "fd00:60::/64"});
    let routed = |routes: Json| with(network(), "/routes", routes);
    let external = |name: &str, value: Json| {
        let network = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"},
            "ipv4": {"allocation": "External"}});
        with(network, &format!("/{name}"), value)
    };
    vec![
        everywhere(with(network(), "/cidr", json!("10.80.0.1/24")), "cidr", "no host bits"),
        everywhere(with(network(), "/cidr", json!("10.80.0.0")), "cidr", "not a range of IPv4 addresses"),
        everywhere(ipv6("fd00:60::1/64"), "ipv6_cidr", "no host bits"),
        everywhere(ipv6("fd00:60::/48"), "ipv6_cidr", "write a /64"),
        everywhere(ipv6("fe80::/64"), "ipv6_cidr", "neither of fc00::/7"),
        everywhere(ipv6("10.80.0.0/24"), "ipv6_cidr", "not an IPv6 prefix"),
        everywhere(with(network(), "/ipv6", json!({})), "ipv6", "only a network of type"),
        everywhere(with(bridged(), "/ipv6", json!({})), "ipv6_cidr", "`ipv6` needs it"),
        everywhere(
            with(on_lan6(), "/ipv6", json!({"gateway": "2001:db8:8::1"})),
            "ipv6.gateway",
            "not within ipv6_cidr",
        ),
        everywhere(
            with(on_lan6(), "/ipv6", json!({"range": "2001:db8:7::50-2001:db8:8::1"})),
            "ipv6.range",
            "not within ipv6_cidr",
        ),
        everywhere(
            with(on_lan6(), "/ipv6", json!({"range": "2001:db8:7::50"})),
            "ipv6.range",
            "not a sequence of IPv6 addresses",
        ),
        everywhere(with(on_lan6(), "/ipv6", json!({"allocation": "External"})), "ipv6_cidr", "leave it out"),
        everywhere(with(on_lan6(), "/ipv6", json!({"allocation": "Slaac"})), "ipv6.allocation", "Slaac"),
        everywhere(with(on_lan6(), "/ipv6_egress", json!("Routed")), "ipv6_egress", "leave it out"),
        everywhere(with(ipv6_only(), "/egress", json!("Routed")), "egress", "no `cidr`"),
        everywhere(
            with(ipv6_only(), "/routes", json!([{"to": "10.0.0.0/8", "via": "10.80.0.9"}])),
            "routes",
            "no `cidr`",
        ),
        everywhere(with(bridged(), "/egress", json!("None")), "egress", "leave it out"),
        everywhere(with(network(), "/egress", json!("nat")), "egress", "Masquerade"),
        everywhere(with(bridged(), "/isolated", json!(true)), "isolated", "Leave it out"),
        everywhere(with(bridged(), "/dhcp4", json!(false)), "dhcp4", "leave it out"),
        everywhere(with(bridged(), "/dhcp6", json!(true)), "dhcp6", "leave it out"),
        everywhere(with(network(), "/ipv6_egress", json!("Routed")), "ipv6_egress", "Set `ipv6_cidr`"),
        everywhere(with(ipv6("fd00:60::/64"), "/ipv6_egress", json!("nat")), "ipv6_egress", "Masquerade"),
        everywhere(with(network(), "/dns", json!(["one"])), "dns[0]", "not an address"),
        everywhere(with(network(), "/search_domains", json!(["a_b"])), "search_domains[0]", "not a domain"),
        everywhere(
            with(network(), "/search_domains", json!(["a", "b", "a"])),
            "search_domains[2]",
            "already",
        ),
        everywhere(
            with(network(), "/search_domains", json!(["a".repeat(51), "b".repeat(50)])),
            "search_domains",
            "101 characters in total",
        ),
        everywhere(
            with(network(), "/search_domains", json!(["a", "b", "c", "d", "e", "f", "g"])),
            "search_domains",
            "at most 6",
        ),
        everywhere(
            routed(json!([{"to": "10.0.0.0/8", "via": "10.81.0.1"}])),
            "routes[0].via",
            "not within cidr",
        ),
        everywhere(routed(json!([{"to": "10.0.0.1/8", "via": "10.80.0.9"}])), "routes[0].to", "no host bits"),
        everywhere(routed(json!([{"to": "fd00::/64", "via": "10.80.0.9"}])), "routes[0].to", "IPv4"),
        everywhere(
            routed(json!([{"to": "10.0.0.0/8", "via": "gateway"}])),
            "routes[0].via",
            "not an IPv4 address",
        ),
        everywhere(
            routed(
                json!([{"to": "10.0.0.0/8", "via": "10.80.0.9"}, {"to": "10.0.0.0/8", "via": "10.80.0.8"}]),
            ),
            "routes[1].to",
            "routes[0] leads to 10.0.0.0/8 too",
        ),
        everywhere(
            with(
                with(bridged(), "/ipv4", json!({"gateway": "10.80.0.1"})),
                "/routes",
                json!([{"to": "0.0.0.0/0", "via": "10.80.0.9"}]),
            ),
            "routes[0].to",
            "by ipv4.gateway 10.80.0.1",
        ),
        everywhere(with(network(), "/dns_domain", json!("internal")), "dns_domain", "single label"),
        everywhere(with(network(), "/dns_domain", json!("App.internal")), "dns_domain", "not a domain"),
        everywhere(with(network(), "/dns_domain", json!("app.internal.")), "dns_domain", "not a domain"),
        everywhere(
            with(network(), "/dns_domain", json!("app.local")),
            "dns_domain",
            "must not end with \"local\"",
        ),
        everywhere(with(network(), "/dns_domain", json!("app.7")), "dns_domain", "must not end with \"7\""),
        everywhere(
            with(network(), "/dns_domain", json!(format!("{}.internal", "a".repeat(42)))),
            "dns_domain",
            "50",
        ),
        everywhere(
            with(
                with(network(), "/search_domains", json!(["a".repeat(60), "b".repeat(29)])),
                "/dns_domain",
                json!("app.internal"),
            ),
            "dns_domain",
            "101 characters in total",
        ),
        everywhere(with(bridged(), "/dns_domain", json!("app.internal")), "dns_domain", "Leave it out"),
        everywhere(external("search_domains", json!(["example.org"])), "search_domains", "leave it out"),
        everywhere(
            external("routes", json!([{"to": "10.0.0.0/8", "via": "10.80.0.9"}])),
            "routes",
            "leave it out",
        ),
        everywhere(with(network(), "/mtu", json!(100)), "mtu", "100 is not between"),
        everywhere(json!({"name": "n"}), "cidr", "it is needed"),
        everywhere(with(network(), "/type", json!("Bridge")), "bridge", "needs the name of a bridge"),
        everywhere(with(network(), "/bridge", json!({"name": "vmbr0"})), "bridge", "only a network of type"),
        everywhere(with(bridged(), "/bridge", json!({})), "bridge", "set `name`"),
        everywhere(
            with(bridged(), "/bridge", json!({"name": "vmbr0", "interface": "eth1"})),
            "bridge",
            "set either `name`",
        ),
        everywhere(with(bridged(), "/bridge/vlan", json!(120)), "bridge.vlan", "a VLAN of `interface`"),
        everywhere(
            with(over("eth1", Some(120)), "/bridge/trunk_vlans", json!(["20"])),
            "bridge.trunk_vlans",
            "Leave one of them out",
        ),
        everywhere(
            with(bridged(), "/bridge/trunk_vlans", json!(["20", "4095"])),
            "bridge.trunk_vlans[1]",
            "not a VLAN",
        ),
        everywhere(over("eth1", Some(0)), "bridge.vlan", "0 is not between"),
        everywhere(over("eth1", Some(4095)), "bridge.vlan", "4095 is not between"),
        everywhere(over("eth 1", None), "bridge.interface", "not the name of an interface"),
        everywhere(over("sixteencharacter", None), "bridge.interface", "15"),
        everywhere(over("lo", Some(120)), "bridge.interface", "leads to no network"),
        everywhere(over("btx-00004d", None), "bridge.interface", "berth makes itself"),
        everywhere(over("btt01234567n0", None), "bridge.interface", "berth makes itself"),
        everywhere(with(network(), "/ipv4", json!({})), "ipv4", "only a network of type"),
        everywhere(
            with(bridged(), "/ipv4", json!({"gateway": "10.81.0.1"})),
            "ipv4.gateway",
            "not within cidr",
        ),
        everywhere(
            with(bridged(), "/ipv4", json!({"range": "10.80.0.9-10.81.0.1"})),
            "ipv4.range",
            "not within cidr",
        ),
        everywhere(
            with(bridged(), "/ipv4", json!({"range": "10.80.0.9"})),
            "ipv4.range",
            "not a sequence of IPv4 addresses",
        ),
        everywhere(with(bridged(), "/ipv4", json!({"allocation": "External"})), "cidr", "leave it out"),
        everywhere(with(bridged(), "/ipv4", json!({"allocation": "Dhcp"})), "ipv4.allocation", "Dhcp"),
        everywhere(
            with(bridged(), "/ipv4", json!({"source_check": "Lease"})),
            "ipv4.source_check",
            "always checked",
        ),
        everywhere(with(bridged(), "/ipv4", json!({"source_check": "Arp"})), "ipv4.source_check", "Arp"),
    ]
}

fn pools() -> Vec<(&'static str, Bad)> {
    let pool = || json!({"name": "p", "cidrs": ["192.0.2.0/27"]});
    let storage = || json!({"name": "s"});
    let ip = || json!({"name": "p"});
    vec![
        (
            "berth_ip_pool",
            everywhere(with(pool(), "/cidrs", json!(["192.0.2.0/27", "x"])), "cidrs[1]", "not a range"),
        ),
        ("berth_ip_pool", everywhere(with(pool(), "/cidrs", json!([])), "cidrs", "The list is empty")),
        (
            "berth_ip_pool",
            everywhere(
                with(pool(), "/cidrs", json!(["192.0.2.0/27", "2001:db8::/64"])),
                "cidrs[1]",
                "all of IPv4 or all of IPv6",
            ),
        ),
        (
            "berth_ip_pool",
            everywhere(with(pool(), "/cidrs", json!(["2001:db8::/48"])), "cidrs[0]", "is too large"),
        ),
        (
            "berth_ip_pool",
            everywhere(with(pool(), "/cidrs", json!(["192.0.2.1-192.1.2.1"])), "cidrs[0]", "is too long"),
        ),
        (
            "berth_ip_pool",
            everywhere(with(pool(), "/cidrs", json!(["fe80::/64"])), "cidrs[0]", "never public"),
        ),
        (
            "berth_ip_pool",
            here(with(pool(), "/cidrs", json!(["192.0.2.9-192.0.2.8"])), "cidrs[0]", "above its last"),
        ),
        ("berth_ip_pool", everywhere(with(pool(), "/mode", json!("bgp")), "mode", "is not one of")),
        ("berth_storage_pool", everywhere(with(storage(), "/type", json!("Ceph")), "type", "is not one of")),
        (
            "berth_storage_pool",
            everywhere(
                with(storage(), "/trash_retention_seconds", json!(-1)),
                "trash_retention_seconds",
                "-1 is ",
            ),
        ),
        (
            "berth_storage_pool",
            everywhere(with(storage(), "/overcommit_percent", json!(99)), "overcommit_percent", "99 is "),
        ),
        ("berth_storage_pool", everywhere(with(storage(), "/name", json!("S")), "name", "not a DNS label")),
        (
            "berth_public_ip",
            everywhere(with(ip(), "/address", json!("198.18.0.0/24")), "address", "not an address"),
        ),
        ("berth_public_ip", everywhere(with(ip(), "/pool", json!("P")), "pool", "not a DNS label")),
    ]
}

fn ports() -> Vec<(&'static str, Bad)> {
    let port = |more: Json| {
        let mut port = json!({"port": 443, "targets": ["web-1"]});
        let more = more.as_object().cloned().unwrap_or_default();
        port.as_object_mut().expect("an object").extend(more);
        json!({"name": "b", "ports": [port]})
    };
    let twice = json!({"name": "b", "ports": [
        {"port": 443, "targets": ["a"]}, {"port": 443, "protocol": "tcp", "targets": ["b"]}]});
    let check = |check: Json| port(json!({"health_check": check}));
    let bad = [
        (everywhere(port(json!({"port": 0})), "ports[0].port", "0 is ")),
        (everywhere(port(json!({"port": 65_536})), "ports[0].port", "65536 is ")),
        (everywhere(port(json!({"protocol": "sctp"})), "ports[0].protocol", "is not one of")),
        (everywhere(port(json!({"targets": ["A"]})), "ports[0].targets[0]", "not a DNS label")),
        (everywhere(port(json!({"targets": ["a", "b", "a"]})), "ports[0].targets[2]", "named twice")),
        (everywhere(twice, "ports[1].port", "declared in ports[0] too")),
        (here(
            json!({"name": "b", "ports": [{"target_port": 22, "targets": ["a"]}]}),
            "ports[0].name",
            "needs a name",
        )),
        (everywhere(
            json!({"name": "b", "ports": [{"name": "ssh", "targets": ["a"]}]}),
            "ports[0].target_port",
            "needs `target_port`",
        )),
        (everywhere(
            with(port(json!({})), "/address", json!("2001:db8::7")),
            "ports",
            "only IPv4 addresses have ports",
        )),
        (everywhere(json!({"name": "b", "port_range": "30000"}), "port_range", "not a range of ports")),
        (everywhere(json!({"name": "b", "port_range": "30-20"}), "port_range", "not a range of ports")),
        (here(
            json!({"name": "b", "port_range": "30-30", "ports": [
                {"name": "a", "target_port": 22, "targets": ["a"]}, {"name": "b", "target_port": 23, "targets": ["a"]}]}),
            "port_range",
            "has 1 ports, and 2 entries",
        )),
        (everywhere(check(json!({"interval": "2h"})), "ports[0].health_check.interval", "not a duration")),
        (everywhere(check(json!({"interval": "11m"})), "ports[0].health_check.interval", "not a duration")),
        (everywhere(check(json!({"timeout": "1m"})), "ports[0].health_check.timeout", "not a duration")),
        (everywhere(
            check(json!({"type": "tcp", "path": "/"})),
            "ports[0].health_check.path",
            "for the type",
        )),
        (everywhere(
            port(json!({"protocol": "udp", "health_check": {"interval": "2s"}})),
            "ports[0].health_check.port",
            "needs a port",
        )),
    ];
    bad.into_iter().map(|bad| ("berth_public_ip", bad)).collect()
}

fn one_rule(rule: Json) -> Json {
    json!({"name": "g", "ingress": [rule]})
}

fn others() -> Vec<(&'static str, Bad)> {
    let group = || json!({"name": "g"});
    let attachment = || json!({"vm": "web", "disk": "data"});
    let steps = |step: Json| with(group(), "/boot_order", json!([step]));
    vec![
        (
            "berth_placement_group",
            everywhere(with(group(), "/topology_key", json!("a b")), "topology_key", "key of a label"),
        ),
        (
            "berth_placement_group",
            everywhere(with(group(), "/strategy", json!("apart")), "strategy", "is not one of"),
        ),
        (
            "berth_placement_group",
            everywhere(with(group(), "/enforcement", json!("x")), "enforcement", "is not one of"),
        ),
        (
            "berth_placement_group",
            everywhere(
                with(group(), "/host_selector", json!({"a": "b c"})),
                "host_selector[\"a\"]",
                "not the value of a label",
            ),
        ),
        (
            "berth_placement_group",
            here(
                with(group(), "/preferred_host_selector", json!({"-a": "b"})),
                "preferred_host_selector[\"-a\"]",
                "not the key of a label",
            ),
        ),
        ("berth_vm_group", everywhere(with(group(), "/power", json!("Suspended")), "power", "is not one of")),
        (
            "berth_vm_group",
            everywhere(with(group(), "/parent", json!("a b")), "parent", "is not a DNS label"),
        ),
        ("berth_vm_group", everywhere(with(group(), "/parent", json!("g")), "parent", "is this group")),
        ("berth_vm_group", everywhere(steps(json!({})), "boot_order[0].vms", "name at least one VM")),
        (
            "berth_vm_group",
            everywhere(steps(json!({"vms": ["a b"]})), "boot_order[0].vms[0]", "is not a DNS label"),
        ),
        (
            "berth_vm_group",
            everywhere(
                steps(json!({"vms": ["a"], "power_on_delay_seconds": 3601})),
                "boot_order[0].power_on_delay_seconds",
                "3601 is not between 0 and 3600",
            ),
        ),
        (
            "berth_disk",
            everywhere(
                json!({"name": "d", "size": "1Gi", "placement": {"host_selector": {"a": "-"}}}),
                "placement.host_selector[\"a\"]",
                "not the value of a label",
            ),
        ),
        (
            "berth_security_group",
            everywhere(one_rule(json!({"cidrs": ["10.0.0.1/24"]})), "ingress[0].cidrs[0]", "host bits"),
        ),
        (
            "berth_security_group",
            everywhere(one_rule(json!({"cidrs": ["10.0.0.1"]})), "ingress[0].cidrs[0]", "10.0.0.1/32"),
        ),
        (
            "berth_security_group",
            everywhere(
                one_rule(json!({"cidrs": ["::/0"], "protocol": "tcp", "ports": ["90-80"]})),
                "ingress[0].ports[0]",
                "not a port",
            ),
        ),
        (
            "berth_security_group",
            everywhere(
                one_rule(json!({"cidrs": ["::/0"], "protocol": "sctp"})),
                "ingress[0].protocol",
                "is not one of",
            ),
        ),
        (
            "berth_security_group",
            everywhere(one_rule(json!({"protocol": "tcp"})), "ingress[0].cidrs", "a rule needs"),
        ),
        (
            "berth_security_group",
            everywhere(
                one_rule(json!({"cidrs": ["::/0"], "ports": ["80"]})),
                "ingress[0].ports",
                "ports need",
            ),
        ),
        (
            "berth_security_group",
            everywhere(
                one_rule(json!({"cidrs": ["::/0"], "protocol": "tcp", "icmp_types": ["echo-request"]})),
                "ingress[0].icmp_types",
                "types need",
            ),
        ),
        (
            "berth_security_group",
            everywhere(
                one_rule(
                    json!({"cidrs": ["::/0"], "protocol": "icmpv6", "icmp_types": ["timestamp-request"]}),
                ),
                "ingress[0].icmp_types[0]",
                "no query of icmpv6",
            ),
        ),
        (
            "berth_security_group",
            everywhere(
                one_rule(json!({"cidrs": ["::/0"], "protocol": "icmp", "icmp_types": ["time-exceeded"]})),
                "ingress[0].icmp_types[0]",
                "no query of icmp",
            ),
        ),
        ("berth_disk_snapshot", everywhere(json!({"name": "s", "disk": "a/b"}), "disk", "not a DNS label")),
        ("berth_vm_snapshot", everywhere(json!({"name": "s", "vm": "a/b"}), "vm", "not a DNS label")),
        (
            "berth_vm_snapshot",
            everywhere(json!({"name": "s".repeat(61), "vm": "web"}), "name", "60 characters"),
        ),
        ("berth_host", here(json!({"name": "h 1"}), "name", "is not a name")),
        (
            "berth_host",
            everywhere(
                json!({"name": "h", "namespaces": ["default", "Team A"]}),
                "namespaces[1]",
                "not a DNS label",
            ),
        ),
        (
            "berth_host",
            everywhere(
                json!({"name": "h", "labels": {"zone": "b c"}}),
                "labels[\"zone\"]",
                "value of a label",
            ),
        ),
        (
            "berth_hotswap_disk_attachment",
            everywhere(with(attachment(), "/vm", json!("a b")), "vm", "not a DNS label"),
        ),
        (
            "berth_hotswap_disk_attachment",
            everywhere(with(attachment(), "/disk", json!("D")), "disk", "not a DNS label"),
        ),
        (
            "berth_hotswap_disk_attachment",
            everywhere(with(attachment(), "/name", json!("A")), "name", "is not a name"),
        ),
        (
            "berth_hotswap_disk_attachment",
            here(with(attachment(), "/wait_for", json!("x")), "wait_for", "is not one of"),
        ),
    ]
}

fn schedules() -> Vec<Bad> {
    let schedule = || json!({"name": "s", "schedule": "@daily", "vms": ["web"], "keep": {"last": 1}});
    let scheduled = |pointer: &str, value: Json| with(schedule(), pointer, value);
    let selecting = |labels: Json| with(scheduled("/vms", Json::Null), "/vm_selector", labels);
    let backup =
        |repository: &str, keep: Json| scheduled("/backup", json!({"repository": repository, "keep": keep}));
    vec![
        everywhere(scheduled("/schedule", json!("0 3 * *")), "schedule", "4 fields"),
        everywhere(scheduled("/schedule", json!("@every 1h")), "schedule", "none of @yearly"),
        everywhere(scheduled("/schedule", json!("TZ=UTC 0 3 * * *")), "schedule", "beside the schedule"),
        here(scheduled("/schedule", json!("0 24 * * *")), "schedule", "hour: \"24\""),
        here(scheduled("/schedule", json!("0 3 31 2 *")), "schedule", "never has a moment"),
        here(scheduled("/time_zone", json!("Europe/Atlantis")), "time_zone", "is not a time zone"),
        everywhere(scheduled("/time_zone", json!("a b")), "time_zone", "is not a time zone"),
        everywhere(scheduled("/vms", json!(["a/b"])), "vms[0]", "not a DNS label"),
        everywhere(scheduled("/vms", json!(["a", "b", "a"])), "vms[2]", "named twice"),
        everywhere(scheduled("/vms", json!([])), "vms", "The list is empty"),
        everywhere(scheduled("/vms", Json::Null), "vms", "set either"),
        everywhere(scheduled("/vm_selector", json!({"a": "b"})), "vms", "set either"),
        everywhere(selecting(json!({})), "vm_selector", "at least one label"),
        everywhere(selecting(json!({"a": "b c"})), "vm_selector[\"a\"]", "value of a label"),
        everywhere(scheduled("/keep", json!({})), "keep", "at least one snapshot"),
        everywhere(
            scheduled("/keep", json!({"hourly": 20, "daily": 5})),
            "keep",
            "25 together, and at most 24",
        ),
        everywhere(scheduled("/keep/last", json!(25)), "keep.last", "25 is not between 0 and 24"),
        everywhere(backup("a/b", json!({"last": 1})), "backup.repository", "not a DNS label"),
        everywhere(backup("r", json!({})), "backup.keep", "at least one backup"),
        everywhere(
            backup("r", json!({"hourly": 300, "daily": 201})),
            "backup.keep",
            "501 together, and at most 500",
        ),
        everywhere(backup("r", json!({"last": 501})), "backup.keep.last", "501 is not between 0 and 500"),
        everywhere(
            scheduled("/starting_deadline_seconds", json!(59)),
            "starting_deadline_seconds",
            "59 is not between 60 and 86400",
        ),
    ]
}

fn backups() -> Vec<Bad> {
    let backup = || json!({"name": "b", "repository": "nas", "snapshot": "s"});
    let existing = |text: &str| json!({"name": "b", "repository": "nas", "existing": text});
    vec![
        everywhere(with(backup(), "/repository", json!("a/b")), "repository", "not a DNS label"),
        everywhere(with(backup(), "/snapshot", json!("a/b")), "snapshot", "not a DNS label"),
        everywhere(with(backup(), "/snapshot", Json::Null), "snapshot", "set either"),
        everywhere(with(backup(), "/existing", json!("v-1/b-1")), "snapshot", "set either"),
        everywhere(existing("v-1"), "existing", "is not the identity of a backup"),
        everywhere(existing("V-1/b-1"), "existing", "is not the identity of a backup"),
        everywhere(existing("v-1/b-1/c"), "existing", "is not the identity of a backup"),
        everywhere(existing(&format!("{}/b", "v".repeat(81))), "existing", "joined by"),
        everywhere(with(backup(), "/deletion_policy", json!("Keep")), "deletion_policy", "is not one of"),
    ]
}

fn repositories() -> Vec<Bad> {
    let nas = || json!({"name": "r", "folder": "nas", "password_secret_name": "p"});
    let s3 = || {
        json!({"name": "r", "credentials_secret_name": "c", "password_secret_name": "p",
            "s3": {"endpoint": "https://s3.example.org", "bucket": "b-1"}})
    };
    let at = |name: &str, text: &str| with(s3(), &format!("/s3/{name}"), json!(text));
    let verified = |days: Json, bandwidth: &str| {
        with(nas(), "/verification", json!({"interval_days": days, "bandwidth": bandwidth}))
    };
    vec![
        everywhere(with(nas(), "/folder", Json::Null), "s3", "set either"),
        everywhere(with(s3(), "/folder", json!("nas")), "s3", "set either"),
        everywhere(with(nas(), "/folder", json!("/mnt/nas")), "folder", "not a path"),
        everywhere(with(nas(), "/folder", json!("nas-")), "folder", "at both ends"),
        everywhere(with(nas(), "/folder", json!("")), "folder", "empty"),
        everywhere(with(nas(), "/folder", json!("f".repeat(37))), "folder", "longer than 36"),
        everywhere(with(nas(), "/password_secret_name", json!("a/b")), "password_secret_name", "DNS label"),
        everywhere(with(nas(), "/credentials_secret_name", json!("c")), "credentials_secret_name", "for s3"),
        everywhere(
            with(s3(), "/credentials_secret_name", Json::Null),
            "credentials_secret_name",
            "accessKeyID and secretAccessKey",
        ),
        everywhere(
            with(s3(), "/credentials_secret_name", json!("a/b")),
            "credentials_secret_name",
            "DNS label",
        ),
        everywhere(at("endpoint", "s3.example.org"), "s3.endpoint", "is not the URL of a server"),
        everywhere(at("endpoint", "https://s3.example.org/bucket"), "s3.endpoint", "without a path"),
        everywhere(at("endpoint", "https://me@s3.example.org"), "s3.endpoint", "is not the URL"),
        everywhere(at("region", "eu north"), "s3.region", "is not a region"),
        everywhere(at("bucket", "Backups"), "s3.bucket", "is not the name of a bucket"),
        everywhere(at("bucket", "backups-"), "s3.bucket", "at both ends"),
        everywhere(at("bucket", "b"), "s3.bucket", "shorter than 3 characters"),
        everywhere(at("endpoint", "http://"), "s3.endpoint", "shorter than 8 characters"),
        everywhere(at("prefix", "/a"), "s3.prefix", "is not the beginning of keys"),
        everywhere(at("prefix", "a//b"), "s3.prefix", "or twice"),
        everywhere(at("prefix", "a b"), "s3.prefix", "is not the beginning of keys"),
        everywhere(verified(json!(0), "64Mi"), "verification.interval_days", "0 is not between 1 and 365"),
        everywhere(
            verified(json!(366), "64Mi"),
            "verification.interval_days",
            "366 is not between 1 and 365",
        ),
        everywhere(verified(json!(7), "1Ki"), "verification.bandwidth", "from 1Mi to 100Gi"),
        everywhere(verified(json!(7), "101Gi"), "verification.bandwidth", "from 1Mi to 100Gi"),
        everywhere(verified(json!(7), "fast"), "verification.bandwidth", "is not a quantity"),
    ]
}

fn quotas() -> Vec<Bad> {
    let quota = |hard: Json| json!({"name": "team", "hard": hard});
    vec![
        everywhere(quota(json!({"memory": "lots"})), "hard.memory", "is not a quantity"),
        everywhere(quota(json!({"disk_size": "0Gi"})), "hard.disk_size", "is not a positive amount"),
        everywhere(quota(json!({})), "hard", "at least one limit"),
    ]
}

fn key_classes() -> Vec<Bad> {
    let class = |secret: Json| json!({"name": "k", "secret": secret});
    let vault = || {
        json!({"name": "k", "vault": {"address": "https://vault.example:8200", "key": "berth",
            "token_secret": {"name": "t"}}})
    };
    let at = |name: &str, value: Json| with(vault(), &format!("/vault/{name}"), value);
    let role = json!({"role_id": "r", "secret": {"name": "t"}});
    let by = |name: &str, value: Json| {
        with(
            with(at("token_secret", Json::Null), "/vault/app_role", role.clone()),
            &format!("/vault/app_role/{name}"),
            value,
        )
    };
    vec![
        everywhere(json!({"name": "k"}), "secret", "set either"),
        everywhere(with(vault(), "/secret", json!({"name": "s"})), "secret", "set either"),
        everywhere(at("token_secret", Json::Null), "vault", "set either"),
        everywhere(at("app_role", role.clone()), "vault", "set either"),
        everywhere(at("address", json!("vault.example")), "vault.address", "is not the URL of a Vault"),
        everywhere(at("address", json!("https://vault.example/v1")), "vault.address", "without a path"),
        everywhere(
            at("address", json!("http://vault.example:8200")),
            "vault.address",
            "loopback address of the host only",
        ),
        everywhere(at("mount", json!("/transit")), "vault.mount", "is not the path of an engine"),
        everywhere(at("mount", json!("a/../b")), "vault.mount", "is not the path of an engine"),
        everywhere(at("key", json!("a/b")), "vault.key", "is not the name of a key"),
        everywhere(at("key", json!("k".repeat(129))), "vault.key", "longer than 128"),
        everywhere(at("namespace", json!("team/")), "vault.namespace", "is not a namespace"),
        everywhere(at("token_secret", json!({"name": "a/b"})), "vault.token_secret.name", "not a DNS label"),
        everywhere(
            at("token_secret", json!({"name": "t", "key": "a/b"})),
            "vault.token_secret.key",
            "not the name of an entry",
        ),
        everywhere(at("ca_secret", json!({"name": "t", "key": ""})), "vault.ca_secret.key", "empty"),
        everywhere(by("role_id", json!("a b")), "vault.app_role.role_id", "is not a role ID"),
        everywhere(
            by("secret", json!({"name": "t", "key": "/"})),
            "vault.app_role.secret.key",
            "not the name of an entry",
        ),
        everywhere(class(json!({"name": "a/b"})), "secret.name", "not a DNS label"),
        everywhere(class(json!({"name": "s", "key": ""})), "secret.key", "empty"),
        everywhere(class(json!({"name": "s", "key": "a/b"})), "secret.key", "not the name of an entry"),
        everywhere(class(json!({"name": "s", "key": "k".repeat(254)})), "secret.key", "longer than 253"),
    ]
}

fn all() -> Vec<(&'static str, Bad)> {
    let of = |type_name: &'static str, bad: Vec<Bad>| bad.into_iter().map(move |bad| (type_name, bad));
    let mut all: Vec<(&'static str, Bad)> = of("berth_vm", vms()).collect();
    all.extend(of("berth_vm_class", classes()));
    all.extend(of("berth_image", images()));
    all.extend(of("berth_disk", disks()));
    all.extend(of("berth_network", networks()));
    all.extend(of("berth_backup", backups()));
    all.extend(of("berth_backup_repository", repositories()));
    all.extend(of("berth_snapshot_schedule", schedules()));
    all.extend(of("berth_quota", quotas()));
    all.extend(of("berth_key_class", key_classes()));
    all.extend(pools());
    all.extend(others());
    all.extend(ports());
    all
}

#[tokio::test]
async fn bad_input_is_refused_with_its_path_and_a_remedy() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let all = all();
    let mut wrong = Vec::new();
    for (type_name, bad) in &all {
        let stage = Stage::new(&provider, type_name);
        let found = stage.validate(&bad.config).await;
        let is_said = found.iter().any(|found| {
            let text = format!("{}: {}", found.summary, found.detail);
            found.is_error()
                && found.attribute.as_ref().is_some_and(|path| path.to_string() == bad.path)
                && text.contains(bad.path)
                && text.contains(bad.words)
        });
        if !is_said {
            wrong.push(format!("{type_name} {} {:?}: {}", bad.path, bad.words, text_of(&found)));
        }
        // A plan without the validation before it: the control plane's words.
        let plan = text_of(&stage.plan(&bad.config).await.diagnostics);
        if plan.contains("was refused") != bad.everywhere {
            wrong.push(format!("{type_name} {} on the control plane: {plan}\n{}", bad.path, bad.config));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let kinds: BTreeSet<&str> = all.iter().map(|(type_name, _)| *type_name).collect();
    assert_eq!(kinds.len(), provider.kinds().len(), "each kind has bad input: {kinds:?}");
    assert!(provider.kinds().iter().all(|kind| kinds.contains(kind.type_name())));
    plane.close().await;
}

#[tokio::test]
async fn the_control_planes_refusal_of_a_nested_value_has_the_path_in_hcl() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    for (config, path) in vms().into_iter().filter(|bad| bad.everywhere).map(|bad| (bad.config, bad.path)) {
        let plan = Stage::new(&provider, "berth_vm").plan(&config).await;
        let at: Vec<String> = plan
            .diagnostics
            .iter()
            .filter_map(|found| found.attribute.as_ref())
            .map(ToString::to_string)
            .collect();
        // A rule about a list as a whole points at the list.
        let fits = |at: &String| path.starts_with(at.as_str()) || at.starts_with(path);
        let text = text_of(&plan.diagnostics);
        assert!(at.iter().any(fits), "{path}: {text}");
        let wanted = at.iter().find(|at| fits(at)).expect("there is one");
        assert!(text.contains(&format!("{wanted}: ")) || wanted == "name", "{text}");
    }
    plane.close().await;
}

#[tokio::test]
async fn values_that_are_not_known_yet_are_not_judged() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let unknown = json!({"name": "<unknown>", "class": "<unknown>", "disks": "<unknown>", "network_interfaces": "<unknown>"});
    assert_eq!(text_of(&Stage::new(&provider, "berth_vm").validate(&unknown).await), "");
    let nics = json!([{"mac_address": "<unknown>", "address": "10.0.0.1", "network": "<unknown>"},
        {"mac_address": "<unknown>", "address": "10.0.0.1", "network": "<unknown>"}]);
    let unknown = json!({"name": "web", "class": "a", "disks": [{"name": "a", "boot": true}], "network_interfaces": nics,
        "labels": {"a": "<unknown>"}, "bootstrap": {"user_data_wo": "<unknown>", "user_data_wo_version": 1}});
    assert_eq!(text_of(&Stage::new(&provider, "berth_vm").validate(&unknown).await), "");
    let unknown = json!({"name": "large", "cpus": 4, "memory": "4Gi", "max_cpus": "<unknown>", "max_memory": "<unknown>",
        "numa_nodes": 2, "huge_pages": "2Mi", "dedicated_cpu_placement": true});
    assert_eq!(text_of(&Stage::new(&provider, "berth_vm_class").validate(&unknown).await), "");
    let unknown =
        json!({"name": "large", "cpus": 4, "memory": "4Gi", "max_cpus": 8, "cpu_topology": "<unknown>"});
    assert_eq!(text_of(&Stage::new(&provider, "berth_vm_class").validate(&unknown).await), "");
    let unknown = json!({"name": "i", "source": {"url": "http://x", "sha256": "<unknown>", "checksum_url": "http://y"}});
    assert_eq!(text_of(&Stage::new(&provider, "berth_image").validate(&unknown).await), "");
    let unknown =
        json!({"name": "b", "repository": "<unknown>", "snapshot": "<unknown>", "existing": "<unknown>"});
    assert_eq!(text_of(&Stage::new(&provider, "berth_backup").validate(&unknown).await), "");
    let unknown = json!({"name": "r", "s3": "<unknown>", "folder": "<unknown>", "credentials_secret_name": "<unknown>",
        "password_secret_name": "<unknown>"});
    assert_eq!(text_of(&Stage::new(&provider, "berth_backup_repository").validate(&unknown).await), "");
    for unknown in [
        json!({"name": "k", "secret": "<unknown>", "vault": "<unknown>"}),
        json!({"name": "k", "vault": {"address": "<unknown>", "key": "<unknown>", "token_secret": "<unknown>", "app_role": "<unknown>"}}),
    ] {
        assert_eq!(text_of(&Stage::new(&provider, "berth_key_class").validate(&unknown).await), "");
    }
    plane.close().await;
}

/// The provider writes user data into a Secret; other clients declare it in the VM, where the schema judges its beginning.
#[tokio::test]
async fn user_data_that_no_guest_reads_is_refused_to_kubectl_too() {
    let plane = ControlPlane::in_memory().await;
    let vm = |name: &str, user_data: &str| {
        let spec = json!({"cpus": 1, "disks": [{"name": "root", "boot": true}], "bootstrap": {"userData": user_data}});
        let vm = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": name}, "spec": spec});
        serde_json::from_value(vm).expect("a VM")
    };
    let vms = plane.objects("VM");
    for (text, is_read) in [
        ("#cloud-config\npackages: [a]\n", true),
        ("\n #!/bin/sh\n", true),
        ("Content-Type: multipart/mixed; boundary=x\n", true),
        ("<PowerShell>\n", true),
        ("{\"ignition\": {\"version\": \"3.4.0\"}}", true),
        ("version: v1alpha1\nmachine:\n  type: worker\n", true),
        ("", true),
        ("hello", false),
        ("# cloud-config\n", false),
        ("packages: [a]\n", false),
        ("I2Nsb3VkLWNvbmZpZwphOiAxCg==\n", true),
        ("I2Nsb3VkLWNvbmZpZw", false),
    ] {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let created = vms.create(&dry, &vm("v", text)).await;
        let refusal = created.err().map(|error| error.to_string()).unwrap_or_default();
        let expected =
            refusal.contains("spec.bootstrap.userData") && refusal.contains("begin it with '#cloud-config'");
        assert!(if is_read { refusal.is_empty() } else { expected }, "{text:?}: {refusal}");
        // What the provider takes, the schema takes.
        let taken = berth_api::user_data::check_declared(text).is_ok();
        assert!(!taken || is_read, "{text:?}");
    }
    plane.close().await;
}
