//! Bad classes of VMs, quotas, and objects of the kinds that have a few rules each.

use serde_json::{Value as Json, json};

use super::{Bad, everywhere, here, with};

pub(super) fn classes() -> Vec<Bad> {
    let class = || json!({"name": "small", "cpus": 1, "memory": "1Gi"});
    let memory = |memory: &str| with(class(), "/memory", json!(memory));
    vec![
        everywhere(
            with(class(), "/disk_limits", json!({"iops": 9, "read_iops": 1})),
            "disk_limits.iops",
            "set either iops, or read_iops",
        ),
        everywhere(memory("512MB"), "memory", "\"512MB\" is not a quantity"),
        everywhere(memory("-1"), "memory", "not a positive amount"),
        everywhere(memory("lots"), "memory", "is not a quantity"),
        everywhere(memory("1Ki"), "memory", "\"1Ki\" is less than 16Mi: the firmware needs some of it"),
        everywhere(memory("16777215"), "memory", "is less than 16Mi"),
        everywhere(with(class(), "/cpus", json!(0)), "cpus", "0 is not between 1 and 128"),
        everywhere(with(class(), "/cpus", json!(1.5)), "cpus", "1.5 is not a whole number"),
        everywhere(with(class(), "/firmware", json!("Coreboot")), "firmware", "is not one of"),
        everywhere(
            with(with(class(), "/architecture", json!("aarch64")), "/firmware", json!("UEFISecureBoot")),
            "firmware",
            "machines of aarch64 have firmware UEFI only",
        ),
        everywhere(
            with(with(class(), "/architecture", json!("aarch64")), "/max_cpus", json!(2)),
            "max_cpus",
            "machines of aarch64 have no places for more CPUs",
        ),
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

pub(super) fn quotas() -> Vec<Bad> {
    let quota = |hard: Json| json!({"name": "team", "hard": hard});
    vec![
        everywhere(quota(json!({"memory": "lots"})), "hard.memory", "is not a quantity"),
        everywhere(quota(json!({"disk_size": "0Gi"})), "hard.disk_size", "is not a positive amount"),
        everywhere(quota(json!({})), "hard", "at least one limit"),
    ]
}

fn one_rule(rule: Json) -> Json {
    json!({"name": "g", "ingress": [rule]})
}

pub(super) fn others() -> Vec<(&'static str, Bad)> {
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
