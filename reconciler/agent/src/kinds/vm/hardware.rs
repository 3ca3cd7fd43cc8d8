//! The hardware that a class declares, compared with that of a running machine. Pure.

use berth_api::{Firmware, Quantity, VM, VMClass};

use crate::journal::Run;

/// Whether the machine has the size that its class declares now.
pub(super) fn is_synced(run: &Run, vm: &VM, class: &VMClass) -> bool {
    run.class == vm.spec.class.as_str()
        && run.cpus == class.spec.cpus
        && Quantity::from_bytes(run.memory_bytes) == Quantity::from_bytes(class_memory(class))
        && run.firmware == firmware_name(class.spec.firmware)
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
