//! The times in which the file systems of a guest are frozen for a snapshot. Its agent refuses most requests then, and its programs may wait
//! for their writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Machine;

/// How many of these times have begun, and how many have ended.
#[derive(Debug, Default)]
pub(super) struct Freezes {
    begun: AtomicU64,
    ended: AtomicU64,
    /// The last one has ended, and it is not known that the file systems are thawed.
    is_left: AtomicBool,
}

/// The file systems of a guest may be frozen while this exists.
#[derive(Debug)]
pub(crate) struct Freezing {
    freezes: Arc<Freezes>,
    is_thawed: bool,
}

impl Freezing {
    /// Ends the time of a freeze after which the file systems are thawed.
    pub(crate) fn thawed(mut self) {
        self.is_thawed = true;
    }
}

impl Drop for Freezing {
    fn drop(&mut self) {
        self.freezes.is_left.store(!self.is_thawed, Ordering::SeqCst);
        self.freezes.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Machine {
    /// Records that the file systems of the guest are about to be frozen for a snapshot, until the result is dropped.
    pub(crate) fn freezing(&self) -> Freezing {
        self.freezes.begun.fetch_add(1, Ordering::SeqCst);
        Freezing { freezes: self.freezes.clone(), is_thawed: false }
    }

    /// Whether the file systems may be frozen for a snapshot that is being taken, or was interrupted.
    pub(crate) fn may_be_frozen(&self) -> bool {
        let begun = self.freezes.begun.load(Ordering::SeqCst);
        begun > self.ended_freezes() || self.freezes.is_left.load(Ordering::SeqCst)
    }

    /// Returns how often the time of a freeze has ended, for [`Machine::was_frozen_since`].
    pub(crate) fn ended_freezes(&self) -> u64 {
        self.freezes.ended.load(Ordering::SeqCst)
    }

    /// Whether the file systems may have been frozen for a snapshot at any moment since this number was read.
    pub(crate) fn was_frozen_since(&self, ended: u64) -> bool {
        self.freezes.begun.load(Ordering::SeqCst) > ended
    }
}

#[cfg(test)]
mod tests {
    use berth_host::ProcessFacts;
    use berth_qemu::hypervisor::ProcessIdentity;
    use jiff::Timestamp;
    use tokio::sync::{mpsc, watch};
    use tokio::time::Instant;

    use super::super::{DriverState, GuestFacts};
    use super::*;

    impl Machine {
        /// Returns a machine without a driver and without a guest.
        pub(crate) fn unconnected() -> Self {
            let identity = ProcessIdentity { pid: 7, start_time: 1, boot_id: String::new() };
            Self {
                process: ProcessFacts { identity, started_at: Timestamp::UNIX_EPOCH, dedicated: None },
                launched: Instant::now(),
                commands: mpsc::channel(1).0,
                requests: mpsc::channel(1).0,
                driver: watch::channel(DriverState::default()).1,
                facts: watch::channel(GuestFacts::default()).1,
                freezes: Arc::default(),
            }
        }
    }

    #[test]
    fn a_freeze_counts_for_all_that_was_begun_before_its_end() {
        let machine = Machine::unconnected();
        let before = machine.ended_freezes();
        assert!(!machine.was_frozen_since(before));
        let freezing = machine.clone().freezing();
        let meanwhile = machine.ended_freezes();
        drop(freezing);
        assert!(machine.was_frozen_since(before) && machine.was_frozen_since(meanwhile));
        assert!(!machine.was_frozen_since(machine.ended_freezes()));
    }

    #[test]
    fn a_freeze_that_was_interrupted_may_have_left_the_file_systems_frozen() {
        let machine = Machine::unconnected();
        assert!(!machine.may_be_frozen());
        let freezing = machine.freezing();
        assert!(machine.may_be_frozen());
        drop(freezing);
        assert!(machine.may_be_frozen(), "nothing has thawed them");
        machine.freezing().thawed();
        assert!(!machine.may_be_frozen());
    }
}
