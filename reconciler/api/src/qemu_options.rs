//! Settings of QEMU that have no attribute of their own: a fixed list of properties, none of which opens a file or a socket, or runs a
//! program.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The settings: properties of `-machine`, of `-cpu`, and `-global` properties of devices.
pub const QEMU_OPTIONS: &[&str] = &[
    "cpu.aes",
    "cpu.amd-no-ssb",
    "cpu.amd-ssbd",
    "cpu.arch-capabilities",
    "cpu.avx",
    "cpu.avx2",
    "cpu.avx512f",
    "cpu.erms",
    "cpu.hle",
    "cpu.host-phys-bits",
    "cpu.hv-avic",
    "cpu.hv-evmcs",
    "cpu.hv-passthrough",
    "cpu.hypervisor",
    "cpu.ibpb",
    "cpu.ibrs",
    "cpu.invpcid",
    "cpu.invtsc",
    "cpu.kvm",
    "cpu.kvm-asyncpf",
    "cpu.kvm-hint-dedicated",
    "cpu.kvm-poll-control",
    "cpu.kvm-pv-eoi",
    "cpu.kvm-pv-unhalt",
    "cpu.kvm-steal-time",
    "cpu.l3-cache",
    "cpu.la57",
    "cpu.md-clear",
    "cpu.migratable",
    "cpu.pcid",
    "cpu.pdpe1gb",
    "cpu.pku",
    "cpu.pmu",
    "cpu.rdrand",
    "cpu.rdseed",
    "cpu.rtm",
    "cpu.smap",
    "cpu.smep",
    "cpu.spec-ctrl",
    "cpu.ssbd",
    "cpu.stibp",
    "cpu.svm",
    "cpu.topoext",
    "cpu.tsc-deadline",
    "cpu.umip",
    "cpu.virt-ssbd",
    "cpu.vmx",
    "cpu.x2apic",
    "cpu.xsaves",
    "global.VGA.vgamem_mb",
    "global.e1000e.init-vet",
    "global.kvm-pit.lost_tick_policy",
    "global.mc146818rtc.lost_tick_policy",
    "global.pcie-root-port.x-speed",
    "global.pcie-root-port.x-width",
    "global.scsi-hd.discard_granularity",
    "global.scsi-hd.max_io_size",
    "global.scsi-hd.max_unmap_size",
    "global.scsi-hd.rotation_rate",
    "global.vfio-pci.rombar",
    "global.vfio-pci.x-no-kvm-intx",
    "global.vfio-pci.x-no-mmap",
    "global.virtio-balloon-pci.free-page-reporting",
    "global.virtio-balloon-pci.page-poison",
    "global.virtio-blk-pci.event_idx",
    "global.virtio-blk-pci.indirect_desc",
    "global.virtio-blk-pci.num-queues",
    "global.virtio-blk-pci.packed",
    "global.virtio-blk-pci.queue-size",
    "global.virtio-blk-pci.request-merging",
    "global.virtio-net-pci.csum",
    "global.virtio-net-pci.ctrl_guest_offloads",
    "global.virtio-net-pci.event_idx",
    "global.virtio-net-pci.gso",
    "global.virtio-net-pci.guest_csum",
    "global.virtio-net-pci.guest_ecn",
    "global.virtio-net-pci.guest_tso4",
    "global.virtio-net-pci.guest_tso6",
    "global.virtio-net-pci.guest_ufo",
    "global.virtio-net-pci.host_ecn",
    "global.virtio-net-pci.host_tso4",
    "global.virtio-net-pci.host_tso6",
    "global.virtio-net-pci.host_ufo",
    "global.virtio-net-pci.indirect_desc",
    "global.virtio-net-pci.mrg_rxbuf",
    "global.virtio-net-pci.packed",
    "global.virtio-net-pci.rx_queue_size",
    "global.virtio-net-pci.speed",
    "global.virtio-net-pci.tx",
    "global.virtio-net-pci.tx_queue_size",
    "global.virtio-net-pci.x-txburst",
    "global.virtio-net-pci.x-txtimer",
    "global.virtio-rng-pci.max-bytes",
    "global.virtio-rng-pci.period",
    "global.virtio-scsi-pci.cmd_per_lun",
    "global.virtio-scsi-pci.event_idx",
    "global.virtio-scsi-pci.indirect_desc",
    "global.virtio-scsi-pci.max_sectors",
    "global.virtio-scsi-pci.num_queues",
    "global.virtio-scsi-pci.packed",
    "global.virtio-scsi-pci.virtqueue_size",
    "machine.dump-guest-core",
    "machine.hpet",
    "machine.i8042",
    "machine.mem-merge",
    "machine.pit",
    "machine.smbus",
    "machine.vmport",
];

/// A setting of QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QemuOption {
    /// The property: `machine.PROPERTY`, `cpu.FLAG` or `global.DEVICE.PROPERTY`, one of a fixed list. The key of the list.
    pub name: QemuOptionName,
    /// Its value as QEMU reads it, for example `on`, `off` or `512`: 1 to 32 letters, digits, `-`, `.` and `_`.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"))]
    pub value: String,
}

/// The name of a setting of QEMU, one of [`QEMU_OPTIONS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QemuOptionName(pub String);

impl JsonSchema for QemuOptionName {
    fn schema_name() -> Cow<'static, str> {
        "QemuOptionName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "enum": QEMU_OPTIONS})
    }
}

/// Returns the values by name. Names that are not in the list, as of another version, are left out.
#[must_use]
pub fn by_name(options: &[QemuOption]) -> BTreeMap<String, String> {
    let known = options.iter().filter(|option| QEMU_OPTIONS.contains(&option.name.0.as_str()));
    known.map(|option| (option.name.0.clone(), option.value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/qemu-options.md");

    #[test]
    fn the_page_lists_each_setting() {
        for name in QEMU_OPTIONS {
            let (group, property) = name.split_once('.').expect("a group");
            let line = PAGE.lines().find(|line| line.starts_with(&format!("| `{group}.")));
            let line = line.unwrap_or_else(|| panic!("no line of {group}"));
            assert!(line.contains(&format!("`{property}`")), "docs/qemu-options.md needs {name}");
        }
    }

    #[test]
    fn no_setting_names_a_file_a_program_or_a_back_end() {
        let dangerous = [
            "file", "kernel", "initrd", "append", "dtb", "firmware", "path", "chardev", "netdev", "drive",
            "script", "rom", "bus", "memdev", "iothread", "host", "share", "serial", "mac", "addr",
        ];
        for name in QEMU_OPTIONS {
            let property = name.rsplit('.').next().expect("a property");
            let is_named = ["file", "path", "kernel", "script"].iter().any(|word| property.contains(word));
            assert!(!is_named && !dangerous.contains(&property), "{name}");
        }
    }

    #[test]
    fn a_name_of_another_version_is_left_out() {
        let option =
            |name: &str| QemuOption { name: QemuOptionName(name.to_owned()), value: "on".to_owned() };
        let options = [option("cpu.vmx"), option("machine.dumpdtb")];
        assert_eq!(by_name(&options), BTreeMap::from([("cpu.vmx".to_owned(), "on".to_owned())]));
    }
}
