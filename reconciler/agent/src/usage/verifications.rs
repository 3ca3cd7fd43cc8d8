//! Counters of the verifications of backups.

use berth_host::VerifiedBackup;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

/// The verifications of this agent, by result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verifications {
    done: Family<Outcome, Counter>,
    read_bytes: Counter,
}

impl Verifications {
    /// Counts a verification. None: the backup could not be read.
    pub(crate) fn count(&self, found: Option<&VerifiedBackup>) {
        let result = match found {
            None => "error",
            Some(found) if found.damaged > 0 => "damaged",
            Some(_) => "whole",
        };
        self.done.get_or_create(&Outcome { result }).inc();
        self.read_bytes.inc_by(found.map_or(0, |found| found.read_bytes));
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Verifications of backups, by result";
        registry.register("backup_verifications", help, self.done.clone());
        let help = "Bytes of disks that verifications of backups have read";
        registry.register("backup_verification_bytes", help, self.read_bytes.clone());
    }
}
