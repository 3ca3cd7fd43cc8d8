//! The hardware that a class declares, compared with that of a running machine. Pure.

use berth_api::{Firmware, Quantity, VM, VMClass};

use crate::journal::Run;

/// Returns the names of what the class declares now and the machine does not have.
pub(super) fn differences(run: &Run, vm: &VM, class: &VMClass) -> Vec<&'static str> {
    let parts = [
        ("class", run.class == vm.spec.class.as_str()),
        ("cpus", run.cpus == class.spec.cpus),
        ("memory", Quantity::from_bytes(run.memory_bytes) == Quantity::from_bytes(class_memory(class))),
        ("firmware", run.firmware == firmware_name(class.spec.firmware)),
    ];
    parts.into_iter().filter(|(_, is_same)| !is_same).map(|(name, _)| name).collect()
}

/// Returns the guest memory of a class in bytes, in whole MiB.
pub(super) fn class_memory(class: &VMClass) -> u64 {
    class.spec.memory.bytes().map_or(0, |bytes| bytes.next_multiple_of(1 << 20))
}

pub(super) fn firmware_name(firmware: Firmware) -> &'static str {
    match firmware {
        Firmware::UEFI => "UEFI",
        Firmware::BIOS => "BIOS",
    }
}
