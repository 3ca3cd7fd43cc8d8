//! Bad VMs: size, hardware, placement, and life. Devices, interfaces, and the guest have modules of their own.

mod devices;
mod guest;
pub(super) mod interfaces;

use serde_json::{Value as Json, json};

use super::{Bad, everywhere, here, with};

fn vm() -> Json {
    json!({"name": "web", "class": "small", "disks": [{"name": "root", "boot": true}], "placement": {}, "bootstrap": {}})
}

/// The VM with another value of one attribute.
fn own(name: &str, value: Json) -> Json {
    with(vm(), &format!("/{name}"), value)
}

fn classless(name: &str, value: Json) -> Json {
    with(with(vm(), "/class", Json::Null), &format!("/{name}"), value)
}

pub(super) fn vms() -> Vec<Bad> {
    [own_attributes(), devices::devices(), interfaces::interfaces(), guest::guest()]
        .into_iter()
        .flatten()
        .collect()
}

fn own_attributes() -> Vec<Bad> {
    let placed = |name: &str, value: Json| with(vm(), &format!("/placement/{name}"), value);
    let rule = |name: &str| json!({"name": name, "vm_selector": {"app": "web"}});
    let affine = |name: &str, value: Json| {
        with(placed("affinity", json!([rule("web")])), &format!("/placement/affinity/0/{name}"), value)
    };
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
        everywhere(own("architecture", json!("arm64")), "architecture", "is not one of"),
        everywhere(
            with(own("architecture", json!("aarch64")), "/firmware", json!("BIOS")),
            "firmware",
            "machines of aarch64 have firmware UEFI only",
        ),
        everywhere(
            with(own("architecture", json!("aarch64")), "/guest_os", json!("Windows")),
            "guest_os",
            "Windows guests have architecture x86_64 only",
        ),
        everywhere(
            with(own("architecture", json!("aarch64")), "/serial_ports", json!(2)),
            "serial_ports",
            "machines of aarch64 have one serial port",
        ),
        everywhere(
            with(own("architecture", json!("aarch64")), "/suspend_mode", json!("Memory")),
            "suspend_mode",
            "machines of aarch64 have no suspension to memory",
        ),
        everywhere(own("suspend_mode", json!("Ram")), "suspend_mode", "is not one of"),
        everywhere(
            with(own("suspend_mode", json!("Memory")), "/firmware", json!("UEFISecureBoot")),
            "suspend_mode",
            "UEFISecureBoot has no suspension to memory",
        ),
        everywhere(
            with(own("suspend_mode", json!("Memory")), "/watchdog", json!("Reset")),
            "suspend_mode",
            "the timer of the watchdog runs on",
        ),
        everywhere(
            with(own("architecture", json!("aarch64")), "/machine_type", json!("pc-q35-7.2")),
            "machine_type",
            "it is of another architecture",
        ),
        here(
            with(own("architecture", json!("aarch64")), "/cpu_model", json!("x86-64-v3")),
            "cpu_model",
            "it is a level of x86_64",
        ),
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
        everywhere(own("io_threads_policy", json!("Auto")), "io_threads_policy", "is not one of"),
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
            affine("vm_selector", json!({})),
            "placement.affinity[0].vm_selector",
            "one label at least",
        ),
        everywhere(
            affine("vm_selector", json!({"a": "b c"})),
            "placement.affinity[0].vm_selector[\"a\"]",
            "not the value of a label",
        ),
        everywhere(
            placed("affinity", (0..9).map(|number| rule(&format!("r{number}"))).collect()),
            "placement.affinity",
            "at most 8 are allowed",
        ),
        everywhere(
            placed("affinity", json!([rule("web"), rule("web")])),
            "placement.affinity",
            "\"web\" is used twice",
        ),
        everywhere(affine("strategy", json!("Apart")), "placement.affinity[0].strategy", "is not one of"),
        everywhere(
            affine("enforcement", json!("soft")),
            "placement.affinity[0].enforcement",
            "is not one of",
        ),
        everywhere(
            affine("topology_key", json!("a b")),
            "placement.affinity[0].topology_key",
            "not the key of a label",
        ),
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
