//! The keys of Secure Boot of a start: they are enrolled once for each declared value, and stay with the machine.

use std::time::Duration;

use berth_api::{Firmware, Readiness, Reason, Size, VM};
use berth_qemu::efi_variables::SecureBootKeys;
use berth_qemu::machine;

use super::super::secure_boot_keys::KeysToEnroll;
use super::{Observed, Step};
use crate::converge::Plan;
use crate::journal::Journal;

/// Retry interval for Secrets that are not there: they are not watched.
const LOOK_FOR: Duration = Duration::from_secs(2);
/// Retry interval while a Secret cannot be read.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// Retry interval for Secrets that cannot be used.
const UNUSABLE: Duration = Duration::from_secs(30);

/// Checks for the keys that are to be enrolled.
pub(super) fn ready(vm: &VM, observed: &Observed, size: &Size) -> Result<(), Plan<Step>> {
    let waits = |reason, text| Plan::without_steps(Readiness::Reconciling(reason, text));
    let stalled = |text| Plan::without_steps(Readiness::Stalled(Reason::InvalidSpec, text));
    if vm.spec.secure_boot_keys.is_some() && size.firmware != Firmware::UEFISecureBoot {
        let text = format!(
            "secureBootKeys needs firmware UEFISecureBoot, and that of the class is {}",
            size.firmware.as_str()
        );
        return Err(stalled(text));
    }
    match &observed.secure_boot_keys {
        KeysToEnroll::NotDue | KeysToEnroll::Found(_) => Ok(()),
        KeysToEnroll::Missing(name) => {
            let text = format!(
                "Secret {name} with keys of Secure Boot does not exist (yet), or this host may not read it (yet)"
            );
            Err(waits(Reason::WaitingForSecret, text).requeue_after(LOOK_FOR))
        }
        KeysToEnroll::Unreadable(why) => Err(waits(Reason::Retrying, why.clone()).requeue_after(READ_AGAIN)),
        KeysToEnroll::Unusable(why) => Err(stalled(why.clone()).requeue_after(UNUSABLE)),
    }
}

/// Returns the keys to enroll, and the journal of this start. None: those that were enrolled last stay.
pub(super) fn due(observed: &Observed, journal: Journal) -> (Journal, Option<SecureBootKeys>) {
    match &observed.secure_boot_keys {
        // Until the machine runs with them, they may be enrolled or not.
        KeysToEnroll::Found(keys) => (Journal { enrolled: None, ..journal }, Some((**keys).clone())),
        _ => (journal, None),
    }
}

/// Returns the firmware of the machine.
pub(super) fn firmware(vm: &VM, size: &Size) -> machine::Firmware {
    match size.firmware {
        Firmware::BIOS => machine::Firmware::Bios,
        Firmware::UEFI => machine::Firmware::Uefi,
        Firmware::UEFISecureBoot if vm.spec.secure_boot_keys.is_some() => machine::Firmware::UefiOwnKeys,
        Firmware::UEFISecureBoot => machine::Firmware::UefiSecureBoot,
    }
}
